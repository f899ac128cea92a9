"""Sweeps: the same numbers as single questions, whatever the chunks, threads and replicas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from perfmodel.errors import SpecError
from perfmodel.estimate import Z80, relative_sd
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.deployment import Deployment
from perfmodel.specs.layout import Layout
from perfmodel.specs.setup import Speculation
from perfmodel.step import sweep
from perfmodel.step.answer import answer_to
from perfmodel.step.grid import Block, grid_of, swept
from perfmodel.step.question import Question, case_of
from perfmodel.step.request import request_estimate
from perfmodel.step.step import Engine
from perfmodel.step.sweep import SweepTotals, sweep_totals
from perfmodel.step.variation import parsed_axes

EngineOf = Callable[..., Engine]

ENGINES: dict[str, dict[str, Any]] = {
    "dense": {"name": "llama-3.1-8b", "device": "a100-80gb-sxm"},
    "dense_tp2_pp2": {"name": "llama-3.1-8b", "device": "a100-80gb-sxm", "layout": Layout(tp=2, pp=2)},
    "eager": {"name": "llama-3.1-8b", "device": "a100-80gb-sxm", "runtime": "pytorch-eager"},
    "speculative": {"name": "llama-3.1-8b", "device": "a100-80gb-sxm", "speculation": Speculation(2, 1.9)},
    "experts": {"name": "deepseek-v3", "device": "h200-sxm", "layout": Layout(tp=8, ep=8)},
    "sliding": {"name": "gpt-oss-20b", "device": "h100-sxm"},
    "hybrid": {"name": "qwen3-next-80b-a3b", "device": "h100-sxm", "layout": Layout(tp=2)},
}


def rows(n: int) -> tuple[np.ndarray[Any, np.dtype[np.float64]], ...]:
    rng = np.random.default_rng(5)
    return tuple(np.floor(np.exp(rng.uniform(0, np.log(top), n))) for top in (600, 60_000, 4000))


def totals(engine: Engine, n: int, **options: Any) -> SweepTotals:
    batch, isl, osl = rows(n)
    return sweep_totals(engine, batch=batch, input_tokens=isl, output_tokens=osl, token_budget=8192.0, **options)


@pytest.mark.parametrize("calibration", ["ideal", "prior"])
@pytest.mark.parametrize("key", ENGINES)
def test_rows_are_single_questions(engine_of: EngineOf, key: str, calibration: str) -> None:
    made = dict(ENGINES[key])
    engine = engine_of(made.pop("name"), made.pop("device"), calibration=calibration, **made)
    found = totals(engine, 20)
    for i, (batch, isl, osl) in enumerate(zip(*rows(20), strict=True)):
        one = request_estimate(
            engine, batch=float(batch), input_tokens=float(isl), output_tokens=float(osl), token_budget=8192.0
        )
        assert found.ttft_s[i] == pytest.approx(one.ttft.value, rel=1e-12)
        assert found.tpot_s[i] == pytest.approx(one.tpot.value, rel=1e-12)
        assert found.e2e_s[i] == pytest.approx(one.e2e.value, rel=1e-12)
        assert found.output_tokens_per_s[i] == pytest.approx(one.output_tokens_per_s, rel=1e-12)
        assert found.ttft_sd[i] == pytest.approx(relative_sd(one.ttft), rel=1e-9)
        assert found.tpot_sd[i] == pytest.approx(relative_sd(one.tpot), rel=1e-9)
        assert found.e2e_sd[i] == pytest.approx(relative_sd(one.e2e), rel=1e-9)


def test_chunks_and_threads_change_nothing(engine_of: EngineOf, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of("llama-3.1-8b", "a100-80gb-sxm", layout=Layout(tp=2))
    whole = totals(engine, 100, n_threads=1)
    monkeypatch.setattr(sweep, "CHUNK_ROWS", 7)
    done: list[int] = []
    cut = totals(engine, 100, n_threads=3, on_rows_done=done.append)
    assert sum(done) == 100
    assert len(done) == 15
    for a, b in zip(whole, cut, strict=True):
        assert np.allclose(a, b, rtol=1e-13, atol=0)


def test_no_rows_are_no_rows(engine_of: EngineOf) -> None:
    assert all(len(column) == 0 for column in totals(engine_of("llama-3.1-8b", "a100-80gb-sxm"), 0))


# --- grids -----------------------------------------------------------------------------------------------------------


def grid(catalogue: Catalogue, *axes: str, **changes: Any) -> list[Block]:
    fields: dict[str, Any] = {
        "hardware": "a100-80gb-sxm", "model": "llama-3.1-8b",
        "batch": 2.0, "input_tokens": 500.0, "output_tokens": 50.0,
    }  # fmt: skip
    return list(swept(catalogue, grid_of(Question(**(fields | changes)), parsed_axes(list(axes)))))


def test_a_grid_is_every_combination(catalogue: Catalogue) -> None:
    blocks = grid(catalogue, "tp=1,2,4", "batch=1,8", "isl=100:300:100")
    assert [dict(block.names) for block in blocks] == [{"tp": "1"}, {"tp": "2"}, {"tp": "4"}]
    for block in blocks:
        assert block.error == ""
        assert block.columns["batch"].tolist() == [1, 1, 1, 8, 8, 8]
        assert block.columns["input_tokens"].tolist() == [100, 200, 300] * 2
        assert np.all(block.columns["fits"] == 1)
        assert np.all(block.columns["tpot_s_low"] <= block.columns["tpot_s"])


@pytest.mark.parametrize("changes", [{}, {"n_devices": 2, "deployment": Deployment(tp=1)}, {"n_devices": 4}])
def test_grid_rows_are_answers(catalogue: Catalogue, changes: dict[str, Any]) -> None:
    """Also where replicas share a batch that they cannot split evenly: three requests on two replicas are three."""
    (block,) = grid(catalogue, "batch=1,3,8", **changes)
    for i, batch in enumerate((1.0, 3.0, 8.0)):
        question = Question(
            hardware="a100-80gb-sxm",
            model="llama-3.1-8b",
            batch=batch,
            input_tokens=500.0,
            output_tokens=50.0,
            **changes,
        )
        figures = answer_to(case_of(catalogue, question)).figures
        for name in ("ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s"):
            assert block.columns[name][i] == pytest.approx(figures[name].value, rel=1e-12), (name, batch)
            assert block.columns[f"{name}_high"][i] == pytest.approx(figures[name].high, rel=1e-9)


def test_the_budget_of_a_row_follows_its_length(catalogue: Catalogue) -> None:
    """vLLM 0.6.3 does not cut prompts: a step then holds 2048 tokens or one whole context, whatever is longer."""
    (block,) = grid(catalogue, "input_tokens=500,6000", runtime="vllm-0.6.3", batch=12.0)
    for i, input_tokens in enumerate((500.0, 6000.0)):
        question = Question(
            hardware="a100-80gb-sxm",
            model="llama-3.1-8b",
            batch=12.0,
            input_tokens=input_tokens,
            output_tokens=50.0,
            runtime="vllm-0.6.3",
        )
        figures = answer_to(case_of(catalogue, question)).figures
        assert block.columns["ttft_s"][i] == pytest.approx(figures["ttft_s"].value, rel=1e-12)


def test_what_does_not_fit_is_marked_and_what_cannot_be_is_explained(catalogue: Catalogue) -> None:
    blocks = grid(catalogue, "tp=1,3,2", "batch=1,5000")
    assert [bool(block.error) for block in blocks] == [False, True, False]
    assert "32 attention heads" in blocks[1].error
    assert blocks[0].columns["fits"].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("axis", ["batch=0,1", "batch=1.5", "isl=nan", "isl=inf", "osl=-3"])
def test_numbers_of_a_grid_are_whole(catalogue: Catalogue, axis: str) -> None:
    with pytest.raises(SpecError):
        grid(catalogue, axis)


def test_a_grid_has_an_end(catalogue: Catalogue) -> None:
    with pytest.raises(SpecError, match="too large"):
        grid(catalogue, "batch=1:10000", "isl=1:10000")


def test_a_band_is_that_of_its_deviation(engine_of: EngineOf, catalogue: Catalogue) -> None:
    (block,) = grid(catalogue, "batch=1,8")
    ratio = block.columns["tpot_s_high"] / block.columns["tpot_s"]
    engine = case_of(catalogue, Question(hardware="a100-80gb-sxm", model="llama-3.1-8b")).engine
    one = request_estimate(engine, batch=1.0, input_tokens=500.0, output_tokens=50.0, token_budget=8192.0)
    assert np.log(ratio[0]) / Z80 == pytest.approx(relative_sd(one.tpot), rel=1e-9)


def test_a_batch_fits_in_a_sweep_where_the_single_answer_runs_it_whole(catalogue: Catalogue) -> None:
    """Each replica holds whole sequences: 2 x 13.8 are 26 at once, not 27."""
    question = Question(
        hardware="2xa100-80gb-sxm", model="llama-3.1-8b", input_tokens=32000.0, output_tokens=512.0,
        deployment=Deployment(tp=1, dp=2),
    )  # fmt: skip
    (block,) = swept(catalogue, grid_of(question, parsed_axes(["batch=20:32"])))
    for batch, fits in zip(block.columns["batch"], block.columns["fits"], strict=True):
        whole = answer_to(case_of(catalogue, replace(question, batch=float(batch)))).workload.batch == batch
        assert fits == whole
    assert 0 < block.columns["fits"].sum() < len(block.columns["fits"])
