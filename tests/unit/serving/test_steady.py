"""Steady serving in closed form: laws of nature first, then counts by hand, then the simulation of the same clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from perfmodel.errors import SpecError
from perfmodel.estimate import band, refolded
from perfmodel.serving.arrivals import Trace, simultaneous_arrivals, uniform_lengths
from perfmodel.serving.deployment import serving_case
from perfmodel.serving.engine import simulated
from perfmodel.serving.metrics import serving_result
from perfmodel.serving.steady import SteadyLimits, SteadyServing
from perfmodel.serving.steady_case import steady_case
from perfmodel.serving.steady_load import steady_serving
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.deployment import Deployment
from perfmodel.step.question import Case, Question, case_of
from perfmodel.step.request import request_estimate
from perfmodel.step.step import Engine
from tests.unit.cli_parts import Run, answer

LIMITS = SteadyLimits(token_budget=8192.0, max_num_seqs=1024.0)
POLICIES = (LIMITS, SteadyLimits(token_budget=8192.0, max_num_seqs=1024.0, policy="prefill-first"))


@pytest.fixture(scope="module")
def engine(engine_of: Callable[..., Engine]) -> Engine:
    return engine_of("llama-3.1-8b", "h100-sxm")


def served(engine: Engine, limits: SteadyLimits = LIMITS, **load: Any) -> SteadyServing:
    return steady_serving(engine, limits, **{"input_tokens": 1024.0, "output_tokens": 256.0, **load})


@pytest.mark.parametrize("limits", POLICIES, ids=lambda one: one.policy)
@pytest.mark.parametrize("kind", ["concurrency", "requests_per_s"])
def test_scalars_equal_arrays(engine: Engine, limits: SteadyLimits, kind: str) -> None:
    load = np.array([1.0, 3.0, 11.0, 40.0, 300.0])
    many = served(engine, limits, **{kind: load})
    for i, value in enumerate(load.tolist()):
        one = served(engine, limits, **{kind: value})
        for name in ("ttft_s", "tpot_s", "e2e_s", "requests_per_s", "concurrency", "stable"):
            a, b = getattr(one, name), np.broadcast_to(getattr(many, name), load.shape)[i]
            np.testing.assert_allclose(a, b, rtol=1e-8, err_msg=name)


@pytest.mark.parametrize("limits", POLICIES, ids=lambda one: one.policy)
def test_more_users_wait_longer_and_get_more_done(engine: Engine, limits: SteadyLimits) -> None:
    found = served(engine, limits, concurrency=np.arange(1.0, 1500.0))
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert np.all(np.diff(getattr(found, name)) > -1e-9), name
    rate = np.asarray(found.requests_per_s)
    assert np.all(np.diff(rate) > -2e-3 * rate[:-1])


def test_one_user_meets_nobody(engine: Engine) -> None:
    """No prompt of others: the token time is that of a batch of one."""
    alone = served(engine, concurrency=1.0)
    static = request_estimate(engine, batch=1.0, input_tokens=1024.0, output_tokens=256.0, token_budget=8192.0)
    assert alone.prompt_frac == 0.0
    assert float(alone.tpot_s) == pytest.approx(float(static.tpot.value), rel=1e-12)
    assert float(alone.ttft_s) > float(static.ttft.value)


def test_longer_requests_take_longer(engine: Engine) -> None:
    lengths = np.geomspace(16.0, 60000.0, 200)
    prompts = served(engine, concurrency=32.0, input_tokens=lengths)
    assert np.all(np.diff(prompts.ttft_s) > 0)
    assert np.all(np.diff(prompts.e2e_s) > 0)
    assert np.all(np.diff(served(engine, concurrency=32.0, output_tokens=lengths).e2e_s) > 0)


def test_trees_fold_to_their_values_and_carry_bands(engine: Engine) -> None:
    found = served(engine, concurrency=48.0, burst_frac=0.1)
    for tree in (found.ttft, found.tpot, found.e2e):
        assert float(refolded(tree)) == pytest.approx(float(tree.value), rel=1e-12)
        low, high = band(tree)
        assert low < tree.value < high


def test_steps_are_counted_as_by_hand(engine_of: Callable[..., Engine]) -> None:
    """64 users, P = 1024, O = 257, C = 8192 - 64 = 8128: D = 0.1260, rest = 1 + 256 + 0.5 = 257.5, work = 63 D = 7.937,
    S = (257.5 + 7.937 + sqrt(249.563^2 + 2 x 7.937 x 0.126)) / 2 = 257.504, a = 63 / 257.504 = 0.24466,
    f = 1 - e^-a = 0.2170, a D = 0.0308. (Under the datasheet no host time stands between.)
    """
    found = served(engine_of("llama-3.1-8b", "h100-sxm", calibration="ideal"), concurrency=64.0, output_tokens=257.0)
    assert float(found.prompt_frac) == pytest.approx(0.2170, abs=1e-4)
    assert float(found.budget_frac) == pytest.approx(0.0308, abs=1e-4)


def test_prompts_that_fill_the_budget_bound_the_rate(engine: Engine) -> None:
    """With prompts of a whole budget and short answers, steps are full: one prompt a step."""
    found = served(engine, concurrency=256.0, input_tokens=7900.0, output_tokens=4.0)
    step = found.ttft.find("step_with_own_prompt").value
    assert float(found.budget_frac) > 0.95
    assert float(found.requests_per_s * step) == pytest.approx(1.0, rel=0.06)


def test_requests_beyond_the_slots_wait_by_littles_law(engine: Engine) -> None:
    few = SteadyLimits(token_budget=8192.0, max_num_seqs=4.0)
    full, more = served(engine, few, concurrency=4.0), served(engine, few, concurrency=16.0)
    assert float(more.requests_per_s) == pytest.approx(float(full.requests_per_s), rel=1e-12)
    assert float(more.tpot_s) == pytest.approx(float(full.tpot_s), rel=1e-12)
    assert float(more.ttft_s) == pytest.approx(float(full.ttft_s + 3.0 * full.e2e_s), rel=1e-12)
    assert more.seqs_limited
    assert not full.seqs_limited


class TestOpenLoop:
    def test_concurrency_is_rate_times_time(self, engine: Engine) -> None:
        rate = np.array([0.1, 1.0, 5.0, 15.0])
        found = served(engine, requests_per_s=rate)
        np.testing.assert_allclose(found.requests_per_s, rate, rtol=1e-6)
        np.testing.assert_allclose(found.concurrency, rate * found.e2e_s, rtol=1e-6)
        assert np.all(found.stable)

    def test_a_light_load_is_nearly_alone(self, engine: Engine) -> None:
        found, alone = served(engine, requests_per_s=1e-4), served(engine, concurrency=1.0)
        assert float(found.tpot_s) == pytest.approx(float(alone.tpot_s), rel=1e-3)
        assert float(found.e2e_gain) == pytest.approx(1.0, abs=1e-3)

    def test_beyond_capacity_there_is_growth_and_no_latency(self, engine: Engine) -> None:
        most = float(served(engine, requests_per_s=1.0).capacity_requests_per_s)
        found = served(engine, requests_per_s=np.array([0.9 * most, most + 2.0]))
        assert list(np.asarray(found.stable)) == [1.0, 0.0]
        assert np.isfinite(np.asarray(found.ttft_s)).tolist() == [True, False]
        np.testing.assert_allclose(np.asarray(found.growth_requests_per_s)[1], 2.0, rtol=1e-9)

    def test_bands_widen_towards_saturation(self, engine: Engine) -> None:
        most = float(served(engine, requests_per_s=1.0).capacity_requests_per_s)
        gain = np.asarray(served(engine, requests_per_s=most * np.array([0.1, 0.5, 0.8, 0.95])).e2e_gain)
        assert np.all(np.diff(gain) > 0)


@pytest.mark.parametrize("load", [{}, {"concurrency": 1.0, "requests_per_s": 1.0}, {"concurrency": 0.0}])
def test_a_load_that_is_none_is_refused(engine: Engine, load: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        served(engine, **load)


def _case(catalogue: Catalogue, model: str, hardware: str, **stated: Any) -> Case:
    return case_of(
        catalogue,
        Question(
            model=model, hardware=hardware, batch=1.0, input_tokens=1024.0, output_tokens=512.0,
            deployment=Deployment(**stated), runtime="vllm-0.11",
        ),
    )  # fmt: skip


@pytest.mark.parametrize("users", [2, 16, 64])
def test_it_agrees_with_the_simulation(catalogue: Catalogue, users: int) -> None:
    """Same step model, ten requests a user, lengths drawn within a tenth: the mean of each request's times."""
    case = _case(catalogue, "llama-3.1-8b", "h100-sxm", max_num_batched_tokens=8192)
    n, rng = 10 * users, np.random.default_rng(1)
    inputs, outputs = (
        uniform_lengths(n, low_tokens=round(0.9 * t), high_tokens=round(1.1 * t), rng=rng) for t in (1024, 512)
    )
    trace = Trace(simultaneous_arrivals(n), inputs, outputs).closed(users)
    serving = serving_case(case, trace)
    result = serving_result(simulated(trace, serving.setup, serving.clock))
    found = steady_case(case, concurrency=float(users), burst_frac=0.1).one
    assert float(found.tpot_s) == pytest.approx(result.spreads["tpot_s"].mean, rel=0.03)
    assert float(found.ttft_s) == pytest.approx(result.spreads["ttft_s"].mean, rel=0.15)
    assert float(found.output_tokens_per_s) == pytest.approx(result.output_tokens_per_s, rel=0.08)


def test_a_full_cache_is_said(catalogue: Catalogue) -> None:
    found = steady_case(_case(catalogue, "llama-3.1-8b", "rtx-4090"), concurrency=np.array([4.0, 200.0]))
    assert np.asarray(found.one.kv_limited).tolist() == [0.0, 1.0]
    assert any("perfmodel simulate" in text for text in found.warnings)
    with pytest.raises(SpecError, match="static"):
        steady_case(
            case_of(catalogue, Question(model="llama-3.1-8b", hardware="h100-sxm", runtime="pytorch-eager")),
            concurrency=2.0,
        )


def test_replicas_share_the_load(catalogue: Catalogue) -> None:
    one = steady_case(_case(catalogue, "llama-3.1-8b", "h100-sxm"), concurrency=8.0).figures()
    two = steady_case(_case(catalogue, "llama-3.1-8b", "h100-sxm", dp=2), concurrency=16.0).figures()
    assert float(two["tpot_s"][0]) == pytest.approx(float(one["tpot_s"][0]), rel=1e-12)
    assert float(two["output_tokens_per_s"][0]) == pytest.approx(2 * float(one["output_tokens_per_s"][0]), rel=1e-12)


class TestCommand:
    def test_json_has_a_row_for_each_load(self, run_cli: Run) -> None:
        found = answer(run_cli, "steady", "llama-3.1-8b", "h100-sxm", "--max-concurrency", "1,16,64")
        assert [row["max_concurrency"] for row in found["rows"]] == [1, 16, 64]
        for row in found["rows"]:
            assert row["tpot_s_low"] < row["tpot_s"] < row["tpot_s_high"]
            assert row["requests_per_s"] * row["e2e_s"] == pytest.approx(row["max_concurrency"])

    def test_a_rate_beyond_capacity_has_no_latency(self, run_cli: Run) -> None:
        found = answer(run_cli, "steady", "llama-3.1-8b", "h100-sxm", "--request-rate", "1,500")
        assert [row["stable"] for row in found["rows"]] == [True, False]
        assert found["rows"][1]["ttft_s"] is None
        assert found["rows"][1]["growth_requests_per_s"] > 400
        ran = run_cli("steady", "llama-3.1-8b", "h100-sxm", "--request-rate", "500")
        assert ran.code == 1
        assert "stable" in ran.err

    @pytest.mark.parametrize(
        "flags", [[], ["--request-rate", "1", "--max-concurrency", "2"], ["--max-concurrency", "0"], ["-b", "x"]]
    )
    def test_bad_loads_are_one_message(self, run_cli: Run, flags: list[str]) -> None:
        ran = run_cli("steady", "llama-3.1-8b", "h100-sxm", *flags)
        assert ran.code == 2
        assert "Traceback" not in ran.err

    def test_table_and_picture(self, run_cli: Run, tmp_path: Any) -> None:
        path = tmp_path / "load.png"
        ran = run_cli("steady", "llama-3.1-8b", "rtx-4090", "-b", "1,8,128", "--osl", "1024", "--plot", str(path))
        assert ran.code == 0
        assert "KV cache full" in ran.out
        assert path.stat().st_size > 10_000
