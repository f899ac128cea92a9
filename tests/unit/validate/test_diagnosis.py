"""Diagnosis of measured runs: what limits, whether the run is normal, what explains it, what would help."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfmodel.errors import MeasurementError
from perfmodel.estimate import Bound
from perfmodel.measure.importers.registry import import_text
from perfmodel.measure.serving_run import ServingRun
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.deployment import Deployment
from perfmodel.step.answer import Figure
from perfmodel.step.question import Question
from perfmodel.validate.diagnosis.load import load_of
from perfmodel.validate.diagnosis.startup import with_startup_log
from perfmodel.validate.diagnosis.verdict import Compared, Diagnosis, diagnosis
from tests.unit.cli_parts import Run, answer

CATALOGUE = Catalogue.standard()
SLOTS = Question(
    hardware="rtx-4090", model="qwen3-4b", deployment=Deployment(quantization="fp8", max_num_seqs=4), input_tokens=128
)


def wave(users: int, tokens_per_s: float, ttft_s: float | None) -> ServingRun:
    """As many requests as users, all at once, 1024 tokens each (github club-3090 discussion 697: a 4090, FP8)."""
    return ServingRun(
        n_prompts=users,
        completed=users,
        duration_s=users * 1024 / tokens_per_s,
        total_input_tokens=users * 128,
        total_output_tokens=users * 1024,
        max_concurrency=users,
        request_rate_per_s=float("inf"),
        latency_s={} if ttft_s is None else {("ttft", "mean"): ttft_s},
    )


@pytest.mark.parametrize(("users", "rate", "ttft_s"), [(1, 137, None), (4, 520, None), (8, 520, 3.9), (16, 520, 11.8)])
def test_four_slots_explain_throughput_that_stays_flat(users: int, rate: float, ttft_s: float | None) -> None:
    # 4 sequences at 130 tokens/s each make 520 tokens/s; a wave takes 1024 / 130 = 7.88 s. Of 8 requests 4 wait one
    # wave: (0 + 7.88) / 2 = 3.94 s; of 16 they wait 0 to 3 waves: 11.8 s. The public thread blamed compute.
    found = diagnosis(CATALOGUE, SLOTS, wave(users, rate, ttft_s))
    assert found.is_normal
    expected = Bound.MAX_NUM_SEQS if users > 4 else Bound.ARRIVAL_RATE
    assert found.binding is expected
    assert next(iter(found.expected.step_bounds)) is Bound.WEIGHT_READ, "and compute does not limit the steps"
    if users > 4:
        best = found.effects[0]
        assert best.change.text == "--max-num-seqs 8"
        assert best.throughput_ratio > 1.5


def test_slots_that_nobody_stated_are_found() -> None:
    unstated = replace(SLOTS, deployment=Deployment(quantization="fp8"))
    found = diagnosis(CATALOGUE, unstated, wave(16, 520, 11.8))
    assert not found.is_normal
    assert found.is_explained
    assert found.explanations[0].change.text == "--max-num-seqs 4"


def test_a_run_that_nothing_explains_is_called_that() -> None:
    # 100 times slower than four slots allow, though the prompts are answered at once: no setting does that.
    found = diagnosis(CATALOGUE, SLOTS, wave(4, 5.2, 0.01))
    assert not found.is_explained
    assert not found.explanations


def test_the_limit_is_the_steps_where_more_slots_do_not_help() -> None:
    # Long prompts and one token each: reading prompts is all there is, and they wait for the token budget or a slot.
    run = ServingRun(
        n_prompts=64,
        completed=64,
        duration_s=20.0,
        total_input_tokens=64 * 4096,
        total_output_tokens=64,
        max_concurrency=64,
        latency_s={("ttft", "mean"): 5.0},
    )
    question = Question(hardware="a100-80gb-sxm", model="llama-3.1-8b", deployment=Deployment(max_num_seqs=4))
    assert diagnosis(CATALOGUE, question, run).binding is Bound.COMPUTE


def test_a_small_kv_pool_binds_and_a_lighter_cache_helps() -> None:
    deployment = Deployment(num_gpu_blocks_override=1000)
    question = Question(hardware="a100-80gb-sxm", model="llama-3.1-8b", deployment=deployment)
    run = ServingRun(
        n_prompts=100,
        completed=100,
        duration_s=60.0,
        total_input_tokens=100 * 1000,
        total_output_tokens=100 * 500,
        request_rate_per_s=float("inf"),
        latency_s={("tpot", "mean"): 0.014},
    )
    found = diagnosis(CATALOGUE, question, run)
    waits = found.expected.result.usage.limit_shares
    assert max(waits, key=lambda name: waits[name]) == "kv_capacity"
    assert not [e for e in found.effects if "utilization" in e.change.text], "a pool that is fixed does not grow"


def test_changes_that_cannot_be_made_are_named_with_the_reason() -> None:
    question = Question(hardware="a100-80gb-sxm", model="llama-3.1-8b", n_devices=8, deployment=Deployment(tp=8))
    run = ServingRun(
        n_prompts=10,
        completed=10,
        duration_s=10.0,
        total_input_tokens=1000,
        total_output_tokens=1000,
        max_concurrency=1,
        latency_s={("tpot", "mean"): 0.01},
    )
    found = diagnosis(CATALOGUE, question, run)
    changes = [text for text, _ in found.impossible] + [e.change.text for e in found.effects]
    assert any(text.startswith("-tp 16") for text in changes)


def test_a_figure_at_the_edge_counts_as_inside_only_within_the_scatter_of_runs() -> None:
    band = Figure(1.0, 0.9, 1.1)
    assert Compared(1.13, band, 0.03).is_inside
    assert not Compared(1.14, band, 0.03).is_inside
    assert Compared(0.88, band, 0.03).is_inside
    assert not Compared(0.87, band, 0.03).is_inside


def test_lengths_that_nobody_knows_are_asked_for() -> None:
    with pytest.raises(MeasurementError, match="--isl and --osl"):
        load_of(ServingRun(completed=3))
    with pytest.raises(MeasurementError, match="nothing to diagnose"):
        diagnosis(CATALOGUE, replace(SLOTS, output_tokens=10.0), ServingRun(completed=3))


def test_the_load_says_what_it_took_for_granted() -> None:
    load = load_of(ServingRun(max_concurrency=8), input_tokens=10, output_tokens=5)
    assert load.n_requests == 80
    assert any("does not say how many" in text for text in load.assumed)
    many = load_of(ServingRun(n_prompts=10**6, request_rate_per_s=3.0), input_tokens=10, output_tokens=5)
    assert many.n_requests == 5000
    assert many.trace().requests_per_s == pytest.approx(3.0, rel=0.1)


def test_a_startup_log_sets_the_pool_unless_a_flag_does() -> None:
    log = import_text(
        "INFO GPU KV cache size: 41,408 tokens\nINFO # GPU blocks: 2588, # CPU blocks: 0\n", "startup-log"
    )
    question, started = with_startup_log(SLOTS, log)
    assert question.deployment.num_gpu_blocks_override == 2588
    assert started.kv_tokens == 41408
    fixed = replace(SLOTS, deployment=replace(SLOTS.deployment, num_gpu_blocks_override=7))
    assert with_startup_log(fixed, log)[0].deployment.num_gpu_blocks_override == 7


def bench(path: Path, **changes: Any) -> Path:
    record = {
        "backend": "vllm",
        "model_id": "Qwen/Qwen3-4B",
        "num_prompts": 16,
        "request_rate": "inf",
        "max_concurrency": 16,
        "completed": 16,
        "duration": 16 * 1024 / 520,
        "total_input_tokens": 16 * 128,
        "total_output_tokens": 16 * 1024,
        "output_throughput": 520,
        "request_throughput": 520 / 1024,
        "mean_ttft_ms": 11800,
    }
    path.write_text(json.dumps(record | changes))
    return path


def test_the_command_takes_the_model_from_the_result(run_cli: Run, tmp_path: Path) -> None:
    path = bench(tmp_path / "c16.json")
    flags = ("--hardware", "rtx-4090", "-q", "fp8", "--max-num-seqs", "4")
    document = answer(run_cli, "diagnose", str(path), *flags)
    run = document["runs"][0]
    assert run["model"] == "qwen3-4b"
    assert run["binding"] == "max_num_seqs"
    assert run["is_normal"]
    assert run["changes"][0]["change"] == "--max-num-seqs 8"
    printed = run_cli("diagnose", str(path), *flags)
    assert printed.code == 0
    for words in ("measured", "80 % band", "max_num_seqs", "normal", "Change first: --max-num-seqs 8"):
        assert words in printed.out


def test_bad_input_of_the_command_has_an_answer(run_cli: Run, tmp_path: Path) -> None:
    path = bench(tmp_path / "a.json", model_id="")
    assert "--model NAME" in run_cli("diagnose", str(path), "--hardware", "rtx-4090").err
    assert "no hardware is named" in run_cli("diagnose", str(path), "--model", "qwen3-4b").err
    text = tmp_path / "x.csv"
    text.write_text("a,b\n1,2\n")
    assert run_cli("diagnose", str(text), "--hardware", "rtx-4090").code == 2


def test_two_results_side_by_side(run_cli: Run, tmp_path: Path) -> None:
    a, b = (
        bench(tmp_path / "a.json"),
        bench(tmp_path / "b.json", output_throughput=1040, mean_ttft_ms=5900, duration=15.75),
    )
    document = answer(run_cli, "compare-runs", str(a), str(b))
    rows = {row["figure"]: row for row in document["figures"]}
    assert rows["ttft_s_mean"]["b.json / a.json"] == pytest.approx(0.5)
    assert document["differences"] == []
    slower = bench(tmp_path / "c.json", max_concurrency=8)
    ran = run_cli("compare-runs", str(a), str(slower))
    assert "Not the same load. requests in flight at most: 16 in a.json, 8 in c.json" in " ".join(ran.out.split())
    assert run_cli("compare-runs", str(a)).code == 2
    assert "figure,a.json,b.json" in run_cli("compare-runs", str(a), str(b), "--csv").out


def test_a_diagnosis_is_the_same_twice() -> None:
    first, second = (diagnosis(CATALOGUE, SLOTS, wave(8, 520, 3.9)) for _ in range(2))
    assert isinstance(first, Diagnosis)
    assert first.compared == second.compared
