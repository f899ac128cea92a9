"""`perfmodel sensitivity` as users call it."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path

import pytest

from tests.unit.cli_parts import Run, answer

ASKED = ("sensitivity", "llama-3.1-8b", "a100-80gb-sxm", "-b", "16", "--isl", "500", "--osl", "200")


def test_json_has_elasticities_and_answers(run_cli: Run) -> None:
    found = answer(run_cli, *ASKED, "--target", "7ms", "--break-even", "replicas,quantization=awq-int4-g128")
    figures = {row["figure"]: row for row in found["figures"]}
    assert figures["device.memory[dram].bandwidth"]["elasticity_tpot_s"] < 0
    order = [abs(row["elasticity_tpot_s"]) for row in found["figures"]]
    assert order == sorted(order, reverse=True)
    assert found["target"] == 0.007
    assert {n["figure"] for n in found["needed"]} >= {"device.memory[dram].bandwidth", "workload.concurrency"}
    assert [b["output"] for b in found["break_even"]][-1] == "output_tokens_per_s"


def test_the_table_reads_well(run_cli: Run, tmp_path: Path) -> None:
    picture = tmp_path / "t.svg"
    ran = run_cli(*ASKED, "--versus", "h100-sxm", "--plot", str(picture))
    assert ran.code == 0
    assert "device.memory[dram].bandwidth" in ran.out
    assert "What would have to be true" in ran.out
    assert "h100-sxm" in ran.out
    assert picture.read_text().count("<path") > 10


def test_csv_and_open_loop(run_cli: Run) -> None:
    ran = run_cli(*ASKED, "--request-rate", "2", "--of", "capacity", "--csv")
    rows = list(csv.DictReader(StringIO(ran.out)))
    assert float(rows[0]["elasticity_capacity_requests_per_s"]) != 0.0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--of", "beauty"), "--of"),
        (("--target", "5ms", "--versus", "h20"), "two targets"),
        (("--target", "5"), "a time with its unit"),
        (("--break-even", "luck"), "--break-even"),
        (("--break-even", "tp"), "tensor parallelism"),
        (("--change", "2"), "--change"),
        (("--of", "capacity"), "no capacity here"),
        (("--plot", "a.doc"), "picture"),
    ],
)
def test_wrong_questions_are_exit_code_2(run_cli: Run, flags: tuple[str, ...], said: str) -> None:
    ran = run_cli(*ASKED, *flags)
    assert ran.code == 2
    assert said in ran.err


def test_cost_without_a_price_says_how(run_cli: Run) -> None:
    ran = run_cli("sensitivity", "llama-3.1-8b", "h20", "-b", "4", "--of", "cost")
    assert ran.code == 2
    assert "--price" in ran.err


def test_a_rate_beyond_capacity_has_no_latency_and_says_so(run_cli: Run) -> None:
    asked = ("sensitivity", "llama-3.1-8b", "a100-80gb-sxm", "--isl", "100", "--osl", "100", "--request-rate", "1e5")
    ran = run_cli(*asked)
    assert (ran.code, ran.out) == (1, "")
    assert "a queue that grows" in ran.err
    ran = run_cli(*asked, "--of", "capacity")
    assert ran.code == 0
    assert "mean time to first token: none, as the queue grows" in ran.out
