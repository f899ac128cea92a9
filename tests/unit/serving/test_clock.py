"""The clock against the step model, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from perfmodel.errors import SpecError
from perfmodel.serving.clock import FixedClock, Stepwise, TableClock
from perfmodel.serving.step_table import EngineTimes, prompt_slice, step_table
from perfmodel.specs.layout import Layout
from perfmodel.step.step import Engine
from perfmodel.work.kernel import Slice

CASES = [
    ("llama-3.1-8b", ("a100-80gb-sxm",), {}),
    ("llama-3.1-8b", ("a100-80gb-sxm",), {"calibration": "ideal"}),
    ("deepseek-v3", ("h200-sxm",), {"layout": Layout(tp=8)}),
    ("qwen3-30b-a3b", ("h100-sxm",), {}),
    ("qwen3-32b", ("rtx-4090",), {"layout": Layout(tp=1, pp=2)}),
]


@pytest.fixture(params=CASES, ids=lambda case: "-".join((case[0], *map(str, case[2]))))
def engine(request: pytest.FixtureRequest, engine_of: Callable[..., Engine]) -> Engine:
    name, devices, more = request.param
    return engine_of(name, *devices, **more)


def test_the_table_stays_within_half_a_percent_of_the_step_model(engine: Engine) -> None:
    table = step_table(EngineTimes(engine), n_seqs=128, context_tokens=4096, prompt_tokens=2048)
    assert 0 < table.max_error_frac < 0.005
    if engine.setup.layout.pp > 1:
        return
    clock = TableClock(table)
    rng = np.random.default_rng(3)
    for _ in range(40):
        n, p, past = int(rng.integers(1, 129)), int(rng.integers(64, 1025)), int(rng.integers(0, 2000))
        context = int(n * rng.integers(30, 4000))
        mean = context / n
        decode = Slice("decode", float(n), 1.0, mean, mean)
        exact = engine.step("step", (decode,)).value
        assert clock.decode_ns(n, context) / 1e9 == pytest.approx(exact, rel=0.005)
        # A cut prompt and a fresh one, each as a slice of its own: priced as two launches where a kernel takes both.
        chunk = Slice("prefill", 1.0, float(p), past + 1.0, float(past + p), float(past))
        fresh = Slice("prefill", 1.0, 60.0, 1.0, 60.0)
        pairs = p * past + p * (p + 1) // 2 + 60 * 61 // 2
        exact = engine.step("step", (decode, chunk, fresh)).value
        got = clock.mixed_ns(n, context, prompt_tokens=p + 60, pairs=pairs) / 1e9
        assert got == pytest.approx(exact, rel=0.05)
        exact = engine.step("step", (chunk,)).value
        got = clock.mixed_ns(0, 0, prompt_tokens=p, pairs=pairs - 60 * 61 // 2) / 1e9
        assert got == pytest.approx(exact, rel=0.005)


@pytest.mark.parametrize(("tokens", "attended"), [(100.0, 50.5), (100.0, 10.0), (100.0, 700.0), (1.0, 1.0)])
def test_the_prompt_slice_has_the_tokens_and_pairs_it_was_made_for(tokens: float, attended: float) -> None:
    one = prompt_slice(tokens, attended)
    assert one.n_tokens == pytest.approx(tokens)
    assert one.n_pairs() == pytest.approx(tokens * attended)


def test_prompts_beyond_the_table_take_time_in_proportion(engine_of: Callable[..., Engine]) -> None:
    times = EngineTimes(engine_of("llama-3.1-8b", "a100-80gb-sxm"))
    clock = TableClock(step_table(times, n_seqs=2, context_tokens=4096, prompt_tokens=512))
    once = clock.mixed_ns(1, 100, prompt_tokens=512, pairs=512 * 256)
    assert clock.mixed_ns(1, 100, prompt_tokens=1024, pairs=1024 * 256) == pytest.approx(2 * once, rel=1e-6)
    with pytest.raises(SpecError, match="too small"):
        clock.decode_ns(3, 300)


def test_a_fixed_clock() -> None:
    clock = FixedClock(100, 50, 7)
    assert clock.decode_run(3, 10, n_most=9, until_ns=350) == (4, 400)
    assert Stepwise(clock).decode_run(3, 10, n_most=9, until_ns=350) == (4, 400)
    assert Stepwise(clock).decode_ns(3, 10) == 100
    assert clock.mixed_ns(3, 10, prompt_tokens=10, pairs=55) == 120
    assert Stepwise(clock).mixed_ns(3, 10, prompt_tokens=10, pairs=55) == 120
    with pytest.raises(SpecError, match="stands still"):
        FixedClock(0, 1)


class _Broken:
    def decode_s(self, n_seqs: np.ndarray, context: np.ndarray) -> np.ndarray:
        return 1e-3 * np.ones_like(context)

    def mixed_s(
        self, n_seqs: np.ndarray, context: np.ndarray, prompt_tokens: np.ndarray, attended: np.ndarray
    ) -> np.ndarray:
        return 1e-3 * np.ones_like(context)

    def prompt_s(self, prompt_tokens: np.ndarray, attended: np.ndarray) -> np.ndarray:
        return 0.0 * attended


def test_tables_that_cannot_be_made() -> None:
    with pytest.raises(SpecError, match="at least 1 of each"):
        step_table(_Broken(), n_seqs=0, context_tokens=5, prompt_tokens=5)
    with pytest.raises(SpecError, match="prompt steps"), np.errstate(all="ignore"):
        step_table(_Broken(), n_seqs=2, context_tokens=5, prompt_tokens=5)
