"""The public interface: the same answers as the command line, one set of words, errors that say what to do."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from perfmodel import api
from perfmodel.errors import InfeasibleError, MeasurementError, SpecError, UnknownNameError
from perfmodel.step.answer import Answer
from tests.unit.cli_parts import Run, answer

LLAMA = ("llama-3.1-8b", "a100-80gb-sxm")


def test_an_estimate_is_that_of_the_command(run_cli: Run) -> None:
    found = api.estimate(*LLAMA, batch=16, isl=2048, osl=256)
    printed = answer(run_cli, "estimate", *LLAMA, "--batch", "16", "--isl", "2048", "--osl", "256")
    assert {name: f.value for name, f in found.figures.items()} == {name: printed[name] for name in found.figures}


def test_a_sweep_is_the_estimate_at_each_point() -> None:
    columns = api.sweep(*LLAMA, vary={"tp": [1, 3], "batch": [1, 8]}, devices=3, isl=512, osl=64)
    assert columns["tp"].tolist() == ["1", "1", "3"]
    assert "32" in columns["error"][2], "32 heads do not divide by 3"
    assert np.isnan(columns["tpot_s"][2])
    one = api.estimate(*LLAMA, tp=1, devices=3, batch=8, isl=512, osl=64)
    assert columns["tpot_s"][1] == pytest.approx(one.figures["tpot_s"].value, rel=1e-12)


def test_words_of_deployments_and_questions_are_one_set() -> None:
    found = api.question("m", "h", tp=2, isl=5, concurrency=3, max_num_seqs=7)
    assert (found.deployment.tp, found.input_tokens, found.batch, found.deployment.max_num_seqs) == (2, 5, 3, 7)
    with pytest.raises(UnknownNameError, match="quantization"):
        api.question("m", "h", quantisation="fp8")


def test_a_comparison_keeps_what_has_no_answer() -> None:
    rows = api.comparison(
        "deepseek-v3", "h100-sxm", vary={"quantization": ["fp8", "awq-int4-g128"]}, batch=1, isl=8, osl=8
    )
    assert [values["quantization"] for values, _ in rows] == ["fp8", "awq-int4-g128"]
    assert all(isinstance(found, InfeasibleError) for _, found in rows)
    rows = api.comparison(*LLAMA, vary={"hardware": ["a100-80gb-sxm", "h100-sxm"]}, batch=1, isl=8, osl=8)
    slow, fast = (found for _, found in rows)
    assert isinstance(slow, Answer)
    assert isinstance(fast, Answer)
    assert fast.figures["tpot_s"].value < slow.figures["tpot_s"].value


def test_a_simulation_takes_traffic_or_a_trace() -> None:
    traffic = api.Traffic(n_requests=30, input_tokens=64, output_tokens=8, requests_per_s=5.0, seed=4)
    drawn, traced = (api.simulation(*LLAMA, traffic=t) for t in (traffic, traffic.trace()))
    assert drawn.spreads["e2e_s"] == traced.spreads["e2e_s"]


def test_pictures_of_results_and_of_nothing(tmp_path: Path) -> None:
    traffic = api.Traffic(n_requests=50, input_tokens=64, output_tokens=8)
    results: tuple[Any, ...] = (
        api.roofline(*LLAMA, batch=4, isl=64, osl=8),
        api.rate_sweep(*LLAMA, traffic=traffic, rates_per_s=[1.0, 2.0]),
        api.simulation(*LLAMA, traffic=traffic),
        api.audit(),
    )
    for i, result in enumerate(results):
        path = tmp_path / f"{i}.png"
        api.figure(result).savefig(path)
        assert path.stat().st_size > 5000
    with pytest.raises(SpecError, match="no picture"):
        api.figure(3)  # type: ignore[arg-type]


def test_a_measured_run_is_diagnosed_from_its_file(tmp_path: Path) -> None:
    bench = {
        "backend": "vllm", "num_prompts": 8, "completed": 8, "max_concurrency": 8, "request_rate": "inf",
        "duration": 8 * 1024 / 520, "total_input_tokens": 8 * 128, "total_output_tokens": 8 * 1024,
    }  # fmt: skip
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(bench | {"output_throughput": 520, "request_throughput": 0.5, "mean_ttft_ms": 3900}))
    (found,) = api.diagnosis(path, "qwen3-4b", "rtx-4090", quantization="fp8", max_num_seqs=4)
    assert found.binding.value == "max_num_seqs"
    with pytest.raises(MeasurementError):
        api.diagnosis(tmp_path / "none.json", "qwen3-4b", "rtx-4090")


def test_every_function_has_an_example_that_runs() -> None:
    functions = [getattr(api, name) for name in api.__all__]
    own = [f for f in functions if getattr(f, "__module__", "").startswith("perfmodel.api")]
    without = [f.__name__ for f in own if ">>>" not in (f.__doc__ or "")]
    # `case` is `question` looked up, `diagnosis` and `profile` need files: tests are their examples.
    assert without == ["case", "diagnosis", "profile"]


def test_the_documentation_names_every_function() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text()
    listed = {line.strip("- ") for line in page.splitlines() if line.startswith("        - ")}
    homes = ("perfmodel.api", "perfmodel.api_judging", "perfmodel.api_kernels")
    own = {name for name in api.__all__ if getattr(getattr(api, name), "__module__", "") in homes}
    assert listed == own


@pytest.mark.parametrize("batches", [[0.0], [-1.0], [math.nan], [math.inf], [1.0, 0.5]])
def test_no_step_of_less_than_a_sequence_is_handed_out(batches: list[float]) -> None:
    with pytest.raises(SpecError, match="batches"):
        api.dispatch(api.case("llama-3.2-1b", "l4", batch=1, isl=64, osl=16), batches=batches)


@pytest.mark.parametrize(
    "stated",
    [
        {"duration_s": -1.0},
        {"duration_s": math.nan},
        {"duration_s": math.inf},
        {"prefills_per_s": -1.0},
        {"prefills_per_s": math.nan},
        {"decode_core_share": math.nan},
        {"seed": -1},
        {"seed": 1.5},
    ],
)
def test_streams_that_no_time_can_hold_are_refused(stated: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        api.streams(
            api.case("llama-3.2-1b", "l4", batch=1, isl=64, osl=16),
            **{"duration_s": 0.01, "prefills_per_s": 1.0} | stated,
        )


@pytest.mark.parametrize(
    "stated", [{"faster": {"MatMul": factor}} for factor in (0.0, -1.0, math.nan, math.inf)] + [{"handover_s": -1.0}]
)
def test_a_profile_has_no_what_if_without_a_factor(stated: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        api.profile(Path(__file__).parent / "measure" / "data" / "op_summary_new.csv", **stated)


def test_fusion_knows_two_phases() -> None:
    with pytest.raises(SpecError, match="prefill or decode"):
        api.fusion(api.case("llama-3.2-1b", "l4", batch=1, isl=64, osl=16), phase=cast(Any, "training"))
