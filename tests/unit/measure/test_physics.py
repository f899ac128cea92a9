"""Rows beyond physics are found, marked and kept; sound rows are left alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from perfmodel.measure.csv_io import write_table
from perfmodel.measure.physics import checked_table, implied_prefill_finding, physics_report, with_suspects
from perfmodel.measure.row import Row
from perfmodel.measure.serving_run import ServingRun
from perfmodel.measure.table import table_from_rows
from perfmodel.specs.catalogue import Catalogue

Cells = Mapping[str, object]

A100: Cells = {"device": "a100-80gb-sxm", "runtime": "x", "source": "s", "metric": "time_s", "compute_dtype": "bf16"}
GEMM: Cells = {**A100, "kind": "gemm", "m": 4096, "n": 8192, "k": 8192}
MODEL: Cells = {**A100, "model": "llama-3.1-8b", "batch": 1}
DECODE: Cells = {**MODEL, "kind": "decode_step", "context_tokens": 1024}
SERVE: Cells = {**MODEL, "kind": "serve", "output_tokens": 512, "metric": "tpot_s"}
ATTENTION: Cells = {
    **A100,
    "kind": "attention",
    "batch": 32,
    "query_tokens": 1,
    "context_tokens": 16384,
    "n_heads": 32,
    "n_kv_heads": 8,
    "head_dim": 128,
}
MLA: Cells = {**A100, "kind": "mla_attention", "batch": 128, "query_tokens": 1, "context_tokens": 16384, "n_heads": 16}
EXPERTS: Cells = {
    **A100,
    "kind": "moe_ffn",
    "query_tokens": 4096,
    "hidden": 4096,
    "intermediate": 14336,
    "n_experts": 8,
    "top_k": 2,
    "ep": 1,
}
ALL_REDUCE: Cells = {**A100, "kind": "collective", "op": "all_reduce", "n_devices": 8, "message_bytes": 2**30}


def _row(name: str, value: float, cells: Cells, status: str = "ok") -> Row:
    return Row(id=name, value=value, status=status).with_columns(**cells)


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return Catalogue.standard()


@pytest.mark.parametrize(
    ("cells", "sound", "absurd", "bound"),
    [
        (GEMM, 2.2e-3, 1.0e-3, "dense peak"),
        ({**GEMM, "m": 1}, 9e-5, 3e-5, "reading its weights"),
        (DECODE, 8.5e-3, 4e-3, "weights and cache"),
        ({**DECODE, "n_devices": 2, "tp": 2}, 4.5e-3, 2e-3, "weights and cache"),
        ({**MODEL, "kind": "prefill_step", "input_tokens": 2048}, 0.12, 0.05, "dense peak"),
        ({**SERVE, "input_tokens": 512}, 9e-3, 3e-3, "once a token"),
        ({**SERVE, "metric": "ttft_s", "input_tokens": 4096}, 0.4, 0.01, "dense peak"),
        ({**MODEL, "kind": "generate", "input_tokens": 128, "output_tokens": 128}, 1.2, 0.5, "full bandwidth"),
        (ATTENTION, 1.3e-3, 5e-4, "reading its cache"),
        (MLA, 2e-3, 5e-4, "reading its cache"),
        (EXPERTS, 1.2e-2, 4e-3, "dense peak"),
        (ALL_REDUCE, 9e-3, 1e-3, "links"),
    ],
)
def test_times_against_their_bounds(
    cells: Cells, sound: float, absurd: float, bound: str, catalogue: Catalogue
) -> None:
    table = table_from_rows([_row("sound", sound, cells), _row("absurd", absurd, cells)])
    report = physics_report(table, catalogue)
    assert [finding.row_id for finding in report.findings] == ["absurd"]
    assert bound in str(report.findings[0])
    assert report.findings[0].factor > 1
    assert report.n_checked == 2


def test_rates_and_sizes_against_their_bounds(catalogue: Catalogue) -> None:
    base: Cells = {"device": "rtx-4090", "runtime": "x", "source": "s"}
    copy: Cells = {**base, "kind": "bandwidth", "op": "hbm_copy", "metric": "bytes_per_s"}
    memory: Cells = {**base, "kind": "memory", "model": "qwen2.5-32b", "quantization": "awq-int4-g128", "op": "weights"}
    load: Cells = {"batch": 64, "input_tokens": 4096, "output_tokens": 64}
    serve: Cells = {**base, **load, "kind": "serve", "model": "llama-3.1-8b", "metric": "output_tokens_per_s"}
    rows = [
        _row("copy", 9.3e11, copy),
        _row("copy!", 1.3e12, copy),
        _row("weights", 19.3e9, {**memory, "metric": "bytes"}),
        _row("weights!", 9.08 * 2**30, {**memory, "metric": "bytes"}),
        _row("tokens!", 1e9, {**memory, "metric": "kv_tokens", "op": "kv_capacity"}),
        _row("rate", 120.0, serve),
        _row("rate!", 3000.0, serve),
        _row("requests!", 50.0, {**serve, "metric": "requests_per_s"}),
    ]
    report = physics_report(table_from_rows(rows), catalogue)
    assert {finding.row_id for finding in report.findings} == {"copy!", "weights!", "tokens!", "rate!", "requests!"}
    found = {finding.row_id: finding for finding in report.findings}
    assert (found["copy!"].value, found["copy!"].limit) == (1.3e12, 1008e9)
    assert found["rate!"].limit < 3000


def test_findings_mark_rows_and_drop_none(catalogue: Catalogue) -> None:
    table = table_from_rows([_row("a", 1e-3, GEMM), _row("b", 1e-3, GEMM, "synthetic")])
    marked = with_suspects(table, physics_report(table, catalogue))
    assert list(marked["status"]) == ["suspect", "synthetic"]
    assert "dense peak" in marked.row(0).note
    assert len(marked) == 2


def test_a_file_is_read_and_checked_in_one_go(catalogue: Catalogue, tmp_path: Path) -> None:
    write_table(table_from_rows([_row("a", 1e-3, GEMM), _row("b", 2.2e-3, GEMM)]), tmp_path / "t.csv")
    table, report = checked_table(tmp_path / "t.csv", catalogue)
    assert list(table["status"]) == ["suspect", "ok"]
    assert len(report.findings) == 1


def test_names_that_the_catalogue_lacks_are_listed(catalogue: Catalogue) -> None:
    rows = [_row("a", 1.0, {**GEMM, "device": "no-such-card"}), _row("b", 1.0, {**DECODE, "model": "no-such"})]
    report = physics_report(table_from_rows(rows), catalogue)
    assert (report.unknown_devices, report.unknown_models, report.n_checked) == (("no-such-card",), ("no-such",), 0)


def test_an_impossible_prefill_rate_is_found(catalogue: Catalogue) -> None:
    run = ServingRun(completed=100, duration_s=33.52, total_input_tokens=25e6)
    rate = run.implied_prefill_tokens_per_s or 0.0
    assert rate == pytest.approx(745_818, rel=1e-3)
    finding = implied_prefill_finding(rate, device="rtx-4090", model="llama-3.1-8b", catalogue=catalogue)
    assert finding is not None
    assert finding.factor > 10
    assert implied_prefill_finding(5000.0, device="rtx-4090", model="llama-3.1-8b", catalogue=catalogue) is None
    assert implied_prefill_finding(rate, device="none", model="llama-3.1-8b", catalogue=catalogue) is None
