"""Whole tables predicted: every kind gets a value or a reason, arrays equal single rows, nothing beats physics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.errors import MeasurementError, UnknownNameError
from perfmodel.measure.csv_io import read_table, table_from_text
from perfmodel.measure.row import Row
from perfmodel.measure.schema import KINDS
from perfmodel.measure.table import Table, table_from_rows
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.answer import answer_to
from perfmodel.step.question import Question, case_of
from perfmodel.validate.predict import predictions

A100 = {"device": "a100-80gb-sxm", "source": "made up", "value": 1e-3, "metric": "time_s", "runtime": "kernel"}
STEP = {**A100, "runtime": "vllm-0.11", "model": "llama-3.1-8b", "compute_dtype": "bf16"}
MOE = {"query_tokens": 64, "hidden": 4096, "intermediate": 1792, "n_experts": 8, "top_k": 2, "compute_dtype": "bf16"}
ATTENTION = {"n_heads": 32, "n_kv_heads": 8, "head_dim": 128, "compute_dtype": "bf16"}
ROWS: dict[str, dict[str, Any]] = {
    "gemm": {"kind": "gemm", "m": 16, "n": 4096, "k": 4096, "compute_dtype": "bf16", **A100},
    "decode": {"kind": "attention", "batch": 16, "query_tokens": 1, "context_tokens": 2048, **ATTENTION, **A100},
    "prefill": {"kind": "attention", "batch": 1, "query_tokens": 2048, "context_tokens": 0, **ATTENTION, **A100},
    "mla": {
        "kind": "mla_attention", "batch": 8, "query_tokens": 1, "context_tokens": 4096, "n_heads": 128,
        "compute_dtype": "bf16", **A100,
    },
    "moe": {"kind": "moe_ffn", **MOE, **A100},
    "norm": {"kind": "elementwise", "op": "rmsnorm", "query_tokens": 2048, "hidden": 4096, **A100},
    "all_reduce": {"kind": "collective", "op": "all_reduce", "n_devices": 8, "message_bytes": 1e6, **A100},
    "prefill_step": {"kind": "prefill_step", "batch": 1, "input_tokens": 1024, **STEP},
    "decode_step": {"kind": "decode_step", "batch": 8, "context_tokens": 1024, **STEP},
    "generate": {"kind": "generate", "batch": 8, "input_tokens": 512, "output_tokens": 128, **STEP},
    "memory": {"kind": "memory", "op": "weights", **STEP, "metric": "bytes", "value": 16e9},
}  # fmt: skip


def table(*rows: dict[str, Any]) -> Table:
    return table_from_rows(Row(**{"id": f"r{i}", **row}) for i, row in enumerate(rows))


@pytest.mark.parametrize("name", ROWS)
def test_each_kind_is_predicted_with_a_band(catalogue: Catalogue, name: str) -> None:
    found = predictions(table(ROWS[name]), catalogue)
    assert found.reason[0] == ""
    assert 0 < found.low[0] <= found.predicted[0] <= found.high[0]
    assert found.bound[0]
    assert found.calibration[0]
    assert np.isfinite(found.error[0])


@pytest.mark.parametrize("name", [n for n in ROWS if n != "memory"])
def test_no_prediction_beats_the_hard_bound(catalogue: Catalogue, name: str) -> None:
    own, least = (predictions(table(ROWS[name]), catalogue, c).predicted[0] for c in ("auto", "hard-bound"))
    assert own >= least


def test_rows_together_equal_rows_alone(catalogue: Catalogue) -> None:
    rows = [
        {**ROWS[name], **change}
        for name in ("gemm", "decode", "all_reduce", "decode_step", "generate", "prefill_step")
        for change in ({}, {"batch": 3}, {"m": 7}, {"message_bytes": 4096}, {"device": "h100-sxm"})
    ]
    whole = predictions(table(*rows), catalogue)
    for i, row in enumerate(rows):
        alone = predictions(table(row), catalogue)
        assert alone.predicted[0] == pytest.approx(whole.predicted[i], rel=1e-12)
        assert (alone.low[0], alone.high[0]) == pytest.approx((whole.low[i], whole.high[i]), rel=1e-9)
        assert alone.bound[0] == whole.bound[i]


def test_a_static_generation_equals_the_answer_to_the_same_question(catalogue: Catalogue) -> None:
    question = Question(
        hardware="a100-80gb-sxm",
        model="llama-3.1-8b",
        runtime="vllm-0.11",
        batch=8,
        input_tokens=512,
        output_tokens=128,
    )
    answer = answer_to(case_of(catalogue, question))
    time_row = ROWS["generate"]
    rate_row = {**time_row, "metric": "output_tokens_per_s", "value": 100.0}
    found = predictions(table(time_row, rate_row), catalogue)
    assert found.predicted[0] == pytest.approx(answer.figures["e2e_s"].value, rel=1e-9)
    assert found.predicted[1] == pytest.approx(answer.figures["output_tokens_per_s"].value, rel=1e-9)


HARD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown device": ({**ROWS["gemm"], "device": "a100-80gb-smx"}, "did you mean"),
    "unknown model": ({**ROWS["decode_step"], "model": "llama-9-8b"}, "unknown model"),
    "unknown runtime": ({**ROWS["decode_step"], "runtime": "homemade-engine"}, "no runtime profile"),
    "serving": (
        {**STEP, "kind": "serve", "batch": 8, "output_tokens": 128, "metric": "tpot_s"},
        "lengths",
    ),
    "no law for the op": ({**ROWS["all_reduce"], "op": "broadcast"}, "no law for a collective"),
    "no law for the scheme": ({**ROWS["gemm"], "quantization": "ternary"}, "no kernel law"),
    "too many ranks": ({**ROWS["all_reduce"], "device": "rtx-4090", "n_devices": 64}, "no wire joins"),
    "heads not divisible": ({**ROWS["decode_step"], "tp": 7, "n_devices": 7}, ""),
    "endless batch": ({**ROWS["decode_step"], "batch": np.inf}, "batch is not finite"),
    "counter": ({**A100, "kind": "counter", "op": "ipc", "metric": "1"}, "no law predicts"),
    "a GEMV prompt": ({**ROWS["prefill_step"], "variant": "gemv"}, "token by token"),
}


def test_hard_rows_say_why_and_spoil_no_other(catalogue: Catalogue) -> None:
    rows = [ROWS["gemm"], *(row for row, _ in HARD.values()), ROWS["generate"]]
    found = predictions(table(*rows), catalogue)
    for i, (name, (_, words)) in enumerate(HARD.items(), 1):
        assert found.reason[i], name
        assert words in found.reason[i], name
        assert np.isnan(found.predicted[i]), name
        assert "\n" not in found.reason[i]
    assert found.reason[0] == found.reason[-1] == ""


def test_a_table_without_values_is_a_question(catalogue: Catalogue) -> None:
    text = "kind,device,m,n,k,compute_dtype\ngemm,a100-80gb-sxm,16,4096,4096,bf16\ngemm,h100-sxm,1,8192,8192,bf16\n"
    with pytest.raises(MeasurementError):
        table_from_text(text)
    found = predictions(table_from_text(text, is_question=True), catalogue)
    assert np.all(found.predicted > 0)
    assert np.all(np.isnan(found.error))


def test_an_unknown_calibration_is_one_error(catalogue: Catalogue) -> None:
    with pytest.raises(UnknownNameError):
        predictions(table(ROWS["gemm"]), catalogue, "no-such-calibration")


def test_progress_hears_of_every_row(catalogue: Catalogue) -> None:
    heard: list[int] = []
    predictions(table(*ROWS.values()), catalogue, on_rows_done=heard.append)
    assert sum(heard) == len(ROWS)


def test_rows_of_many_kinds_are_all_predicted_or_do_not_fit(catalogue: Catalogue, tmp_path: Path) -> None:
    n = 5_000
    rng = np.random.default_rng(3)
    kinds = np.array(["gemm", "attention", "decode_step", "generate"], dtype=object)[rng.integers(0, 4, n)]
    is_step = np.isin(kinds, ("decode_step", "generate"))
    columns: dict[str, Any] = {
        "id": np.array([f"r{i}" for i in range(n)], dtype=object),
        "kind": kinds,
        "device": np.array(["a100-80gb-sxm", "h100-sxm", "rtx-4090"], dtype=object)[rng.integers(0, 3, n)],
        "model": np.where(is_step, "qwen2.5-7b", "").astype(object),
        "runtime": np.where(is_step, "vllm-0.11", "kernel").astype(object),
        "compute_dtype": np.full(n, "bf16", dtype=object),
        "metric": np.full(n, "time_s", dtype=object),
        "value": np.full(n, 1e-3),
        "status": np.full(n, "ok", dtype=object),
        "source": np.full(n, "made up", dtype=object),
        "batch": rng.integers(1, 65, n).astype(float),
        "query_tokens": np.ones(n),
        **{name: rng.integers(16, 4096, n).astype(float) for name in ("context_tokens", "input_tokens")},
        "output_tokens": np.full(n, 128.0),
        "m": rng.integers(1, 4096, n).astype(float),
        "n": np.full(n, 4096.0),
        "k": np.full(n, 4096.0),
        "n_heads": np.full(n, 32.0),
        "n_kv_heads": np.full(n, 8.0),
        "head_dim": np.full(n, 128.0),
    }
    found = predictions(Table(columns, n), catalogue)
    is_small = is_step & (columns["device"] == "rtx-4090")  # 24 GB do not hold the longest of these batches
    assert (found.reason[~is_small] == "").all()
    assert 0.5 < np.mean(found.reason[is_small] == "") < 1.0


def test_required_columns_of_every_kind_are_all_that_is_needed() -> None:
    for name, row in ROWS.items():
        rule = KINDS[str(row["kind"])]
        assert {*rule.required} <= {*row}, name


def test_a_shipped_table_reads_and_predicts(catalogue: Catalogue) -> None:
    path = catalogue.homes[-1] / "hardware" / "measurements" / "steps-gpt-fast.csv"
    measured = read_table(path)
    found = predictions(measured, catalogue)
    assert (found.reason == "").all()
    assert replace(found).table is measured


def test_what_no_device_holds_is_refused(catalogue: Catalogue) -> None:
    """70 billion weights of 2 bytes are 141 GB, 5.59 times the 25.2 GB of a 4090; 400 x 16k tokens leave 0.86 TB."""
    step = {**STEP, "kind": "decode_step", "batch": 1, "context_tokens": 1024}
    large = {**step, "device": "rtx-4090", "model": "llama-3.1-70b", "tp": 1}
    full = {**step, "batch": 400, "context_tokens": 16384}
    found = predictions(
        table(large, step, full, {**large, "kind": "generate", "input_tokens": 8, "output_tokens": 8}), catalogue
    )
    assert list(found.reason != "") == [True, False, True, True]
    assert "take 5.59 times" in found.reason[0]
    assert np.isnan(found.predicted[[0, 2, 3]]).all()
    assert found.predicted[1] > 0


def test_every_row_that_no_device_holds_says_so(catalogue: Catalogue) -> None:
    full = {**STEP, "kind": "decode_step", "batch": 4000, "context_tokens": 16384}
    asked = table(full)
    many = asked.selected(np.zeros(500, dtype=np.intp))
    found = predictions(many, catalogue)
    assert len(set(found.reason)) == 1
    assert found.reason[0]


@pytest.mark.parametrize(
    ("name", "changes", "fault"),
    [
        ("gemm", {"m": 0}, "nothing to time"),
        ("prefill_step", {"input_tokens": 0}, "nothing to time"),
        ("decode_step", {"batch": 0}, "nothing to time"),
        ("moe", {"top_k": 9}, "at most the experts of all ranks"),
    ],
)
def test_rows_without_work_are_refused(name: str, changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(MeasurementError, match=fault):
        table({**ROWS[name], **changes})


def test_empty_caches_and_spread_experts_are_work(catalogue: Catalogue) -> None:
    rows = ({**ROWS["decode_step"], "context_tokens": 0}, {**ROWS["moe"], "top_k": 9, "ep": 2})
    assert (predictions(table(*rows), catalogue).predicted > 0).all()
