"""`perfmodel scale` as users call it."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path

import pytest
from openpyxl import load_workbook

from tests.unit.cli_parts import Run, answer

ASKED = ("scale", "llama-3.1-8b", "a100-80gb-sxm", "--isl", "512", "--osl", "128", "--tpot", "30ms", "--step", "5min")
DAY = (*ASKED, "--peak-rate", "60")


def test_json_has_the_day(run_cli: Run) -> None:
    found = answer(run_cli, *DAY, "--spare", "1", "--growth", "0.1", "--price", "2/h")
    rating = found["rating"]
    assert rating["target_requests_per_s"] <= rating["capacity_requests_per_s"]
    assert rating["percentiles"]["tpot_s"]["p95"] <= 0.03
    assert len(found["steps"]) == 288
    assert found["load"]["peak_requests_per_s"] == pytest.approx(60, rel=1e-3)
    auto, fixed = found["autoscaled"], found["fixed"]
    assert auto["replica_hours"] < fixed["replica_hours"]
    assert auto["usd"] == pytest.approx(2.0 * auto["device_hours"])
    assert fixed["survives_a_loss"] is True
    assert found["growth"][0]["n_replicas"] == fixed["n_replicas"]


def test_the_table_the_manifest_the_picture_and_the_workbook(run_cli: Run, tmp_path: Path) -> None:
    hpa, plot, book = tmp_path / "hpa.yaml", tmp_path / "day.png", tmp_path / "day.xlsx"
    ran = run_cli(
        *DAY, "--hpa", str(hpa), "--name", "chat", "--plot", str(plot), "--xlsx", str(book), "--growth", "0.2"
    )
    assert ran.code == 0
    for words in ("One replica", "Autoscaled", "Fixed at the peak", "Growth", "after the loss of one"):
        assert words in ran.out
    assert "kind: HorizontalPodAutoscaler" in hpa.read_text()
    assert plot.stat().st_size > 10_000
    assert load_workbook(book).sheetnames == ["Summary", "Steps", "Growth", "Assumed"]


def test_a_table_and_a_trace_as_load(run_cli: Run, tmp_path: Path) -> None:
    table = tmp_path / "load.csv"
    table.write_text("time_s,requests_per_s\n0,5\n3600,20\n7200,5\n")
    ran = run_cli(*ASKED, "--load", str(table), "--no-simulation", "--csv")
    rows = list(csv.DictReader(StringIO(ran.out)))
    assert len(rows) == 24
    assert max(float(row["requests_per_s"]) for row in rows) == pytest.approx(19.375)
    trace = tmp_path / "azure.csv"
    lines = [f"2023-11-16 18:{m:02d}:{s:02d}.0000000,500,100" for m in range(30) for s in range(0, 60, 2)]
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(lines) + "\n")
    found = answer(run_cli, "scale", "llama-3.1-8b", "l40s", "--trace", str(trace), "--step", "60s", "--no-simulation")
    assert (found["input_tokens"], found["output_tokens"]) == (500, 100)
    assert found["load"]["mean_requests_per_s"] == pytest.approx(0.5)


def test_what_cannot_be_served_is_exit_code_1(run_cli: Run) -> None:
    ran = run_cli(*DAY, "--max-replicas", "2")
    assert ran.code == 1
    assert "more replicas than are allowed" in ran.err
    ran = run_cli(*ASKED[:7], "--peak-rate", "60", "--tpot", "1ms")
    assert ran.code == 1
    assert "single request" in ran.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "has to be said once"),
        (("--peak-rate", "5", "--load", "x.csv"), "has to be said once"),
        (("--load", "nowhere.csv"), "cannot be read"),
        (("--peak-rate", "5", "--swing", "3"), "--swing"),
        (("--peak-rate", "5", "--metric", "cpu"), "metric"),
        (("--peak-rate", "5", "--min-replicas", "9", "--max-replicas", "8"), "min"),
        (("--peak-rate", "5", "--hpa", "x.yaml", "--name", "Bad Name"), "name"),
        (("--peak-rate", "5", "--start", "soon"), "--start"),
    ],
)
def test_wrong_questions_are_exit_code_2(run_cli: Run, flags: tuple[str, ...], said: str) -> None:
    ran = run_cli(*ASKED, "--no-simulation", *flags)
    assert ran.code == 2
    assert said in ran.err


def test_a_broken_table_is_named(run_cli: Run, tmp_path: Path) -> None:
    table = tmp_path / "load.csv"
    table.write_text("a,b\n1,2\n")
    ran = run_cli(*ASKED, "--load", str(table))
    assert ran.code == 2
    assert "time_s and requests_per_s" in ran.err


def test_the_shape_of_a_day_beside_a_table_of_load_is_refused(run_cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "load.csv"
    path.write_text("time_s,requests_per_s\n0,1\n60,2\n")
    asked = ("scale", "llama-3.1-8b", "a100-80gb-sxm", "--no-simulation", "--load", str(path))
    ran = run_cli(*asked, "--swing", "0.3")
    assert (ran.code, ran.out) == (2, "")
    assert "--swing, --period" in ran.err
    assert run_cli(*asked).code == 0
