"""Campaigns: rows are those of single runs, the same on one process, several, and a cluster."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from perfmodel.errors import SpecError
from perfmodel.plan.campaign import campaign_columns, campaign_tasks, task_rows
from perfmodel.serving.deployment import serving_case
from perfmodel.serving.engine import simulated
from perfmodel.serving.metrics import serving_result
from perfmodel.serving.result_row import RESULT_COLUMNS, result_row
from perfmodel.serving.traffic import Traffic
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.question import Question, case_of
from tests.unit.cli_parts import Run

QUESTION = Question(hardware="a100-80gb-sxm", model="llama-3.1-8b", input_tokens=128, output_tokens=16)
TRAFFIC = Traffic(n_requests=30, input_tokens=128, output_tokens=16, requests_per_s=5.0, length_spread_frac=0.3)


def test_a_row_is_what_the_single_run_gives() -> None:
    axes = {"quantization": ("none", "fp8"), "request_rate": ("2", "inf"), "seed": ("1", "2")}
    rows = [row for task in campaign_tasks(QUESTION, axes, TRAFFIC) for row in task_rows(task)]
    assert [(r["quantization"], r["request_rate"], r["seed"]) for r in rows] == [
        (q, rate, seed) for q in ("none", "fp8") for rate in (2.0, float("inf")) for seed in (1.0, 2.0)
    ]
    trace = Traffic(
        n_requests=30, input_tokens=128, output_tokens=16, requests_per_s=2.0, length_spread_frac=0.3, seed=2
    ).trace()
    serving = serving_case(case_of(Catalogue.standard(), QUESTION), trace)
    alone = result_row(serving_result(simulated(trace, serving.setup, serving.clock)))
    assert {name: rows[1][name] for name in alone} == alone


def test_every_row_has_the_promised_columns_and_types() -> None:
    axes = {"tp": ("1", "3"), "seed": ("1",)}
    rows = [row for task in campaign_tasks(QUESTION, axes, TRAFFIC) for row in task_rows(task)]
    columns = campaign_columns(axes)
    assert rows[0].keys() == columns.keys()
    assert rows[1]["error"], "32 heads do not divide by 3"
    assert rows[1].keys() == {"tp", "seed", "error"}
    for name, kind in RESULT_COLUMNS.items():
        assert rows[0][name] is None or isinstance(rows[0][name], kind), name


def test_load_axes_change_lengths_and_users() -> None:
    axes = {"max_concurrency": ("1", "4"), "output_tokens": ("4",), "request_rate": ("inf",)}
    (task,) = campaign_tasks(QUESTION, axes, TRAFFIC)
    one, four = task_rows(task)
    assert one["mean_decoding_seqs"] <= 1.0 < four["mean_decoding_seqs"]
    assert one["output_tokens_per_s"] < four["output_tokens_per_s"]


@pytest.mark.parametrize(
    "axes", [{"seed": ("1.5",)}, {"request_rate": ("0",)}, {"request_rate": ("fast",)}, {"max_concurrency": ("0",)}]
)
def test_values_that_are_no_load_are_refused(axes: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(SpecError, match="cannot take this value"):
        campaign_tasks(QUESTION, axes, TRAFFIC)


def test_too_many_runs_are_refused_before_any_is_made() -> None:
    many = {"seed": tuple(map(str, range(2000))), "request_rate": tuple(str(i + 1) for i in range(2000))}
    with pytest.raises(SpecError, match="too large"):
        campaign_tasks(QUESTION, many, TRAFFIC)


FLAGS = ("campaign", "llama-3.1-8b", "a100-80gb-sxm", "--isl", "128", "--osl", "8", "--num-prompts", "20")
AXES = ("--vary", "request_rate=2,inf", "--vary", "seed=1:2", "--vary", "tp=1,3")


def test_the_command_writes_the_same_rows_everywhere(run_cli: Run, tmp_path: Path) -> None:
    one, two, cluster = (tmp_path / name for name in ("one.csv", "two.csv", "cluster.parquet"))
    assert run_cli(*FLAGS, *AXES, "-o", str(one), "--workers", "1").code == 0
    assert run_cli(*FLAGS, *AXES, "-o", str(two), "--workers", "2").code == 0
    ran = run_cli(*FLAGS, *AXES, "-o", str(cluster), "--scheduler", "local", "--workers", "2")
    assert ran.code == 0
    assert "8 runs written" in ran.err
    assert "4 of them without result" in " ".join(ran.err.split())
    assert one.read_bytes() == two.read_bytes()
    with one.open() as file:
        rows = list(csv.DictReader(file))
    table = pq.read_table(cluster).to_pylist()
    assert [row["tp"] for row in rows] == [row["tp"] for row in table] == ["1"] * 4 + ["3"] * 4
    assert [float(row["e2e_s_mean"] or "nan") for row in rows[:4]] == [row["e2e_s_mean"] for row in table[:4]]


def test_bad_flags_of_the_command(run_cli: Run, tmp_path: Path) -> None:
    target = tmp_path / "x.csv"
    assert run_cli(*FLAGS, "-o", str(target)).code == 2
    assert "axis" in run_cli(*FLAGS, "--vary", "colour=red", "-o", str(target)).err
    assert ".csv or .parquet" in run_cli(*FLAGS, *AXES, "-o", str(tmp_path / "x.txt")).err
    assert not target.exists()


def test_a_sweep_is_the_same_on_processes_and_as_parquet(run_cli: Run, tmp_path: Path) -> None:
    flags = ("sweep", "llama-3.1-8b", "4xa100-80gb-sxm", "--vary", "tp=1,3,4", "--vary", "batch=1:20", "--isl", "64")
    here, there, table = (tmp_path / name for name in ("a.csv", "b.csv", "c.parquet"))
    for path, more in ((here, ()), (there, ("--workers", "2")), (table, ())):
        assert run_cli(*flags, "-o", str(path), *more).code == 0
    assert here.read_bytes() == there.read_bytes()
    rows = pq.read_table(table).to_pylist()
    with here.open() as file:
        text = list(csv.DictReader(file))
    assert len(rows) == len(text) == 41
    assert [row["tpot_s"] for row in rows if not row["error"]] == [float(r["tpot_s"]) for r in text if not r["error"]]
