"""`perfmodel plan` as users call it."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path

import pytest

from tests.unit.cli_parts import Run, answer

ASKED = (
    "plan", "llama-3.1-8b", "--isl", "512", "--osl", "128", "--hardware", "a100-80gb-sxm,rtx-4090",
    "--tp", "1,2", "--pp", "1", "-q", "none", "--kv-cache-dtype", "auto", "--max-devices", "16",
)  # fmt: skip
USERS = (*ASKED, "--concurrent-users", "48", "--ttft", "1s", "--tpot", "40ms")


def test_json_has_the_plan(run_cli: Run) -> None:
    found = answer(run_cli, *USERS, "--price", "rtx-4090=0.4/h")
    assert found["objective"] == "cost"
    rivals = found["rivals"]
    assert [r["place"] for r in rivals] == [1, 2]
    assert rivals[0]["usd_per_million_tokens"] <= rivals[1]["usd_per_million_tokens"]
    for rival in rivals:
        assert rival["ttft_s_p95"] <= 1.0
        assert rival["tpot_s_p95"] <= 0.04
        assert 0.0 < rival["probability"] <= 1.0
        assert rival["n_devices"] <= 16
    assert rivals[0]["reason"] == ""
    assert rivals[1]["reason"]
    assert found["launch"][0]["text"].startswith("vllm serve meta-llama/")
    users = [point["tokens_per_s_per_user"] for point in found["fronts"]["interactivity"]]
    assert users == sorted(users)
    assert found["prices"]["rtx-4090"]["source"] == "as stated"


def test_the_table_says_who_wins_and_why_the_other_lost(run_cli: Run) -> None:
    ran = run_cli(*USERS)
    assert ran.code == 0
    for words in (
        "Why the others lost",
        "Start the winner",
        "no price is known for rtx-4090",
        "Pareto front",
        "Assumed",
    ):
        assert words in ran.out
    assert "- rtx-4090: from the profile of vllm-0.11: activation peak" in ran.out
    assert "of 1 replicas" not in ran.out


def test_csv_has_a_row_for_each_rival(run_cli: Run) -> None:
    ran = run_cli(*ASKED, "--request-rate", "8", "--tpot", "40ms", "--no-simulation", "--csv")
    rows = list(csv.DictReader(StringIO(ran.out)))
    assert [row["place"] for row in rows] == ["1", "2"]
    assert rows[0]["simulated"] == "False"


def test_nothing_that_will_do_is_exit_code_1(run_cli: Run) -> None:
    ran = run_cli(*ASKED, "--concurrent-users", "48", "--tpot", "4ms")
    assert ran.code == 1
    assert ran.out == ""
    assert "nearest:" in ran.err
    assert "would do: --tpot" in ran.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "a rate of requests or a number of concurrent users"),
        (("--concurrent-users", "5", "--request-rate", "2"), "both"),
        (("--concurrent-users", "5", "--ttft", "2"), "a time with its unit"),
        (("--concurrent-users", "5", "--ttft", "fast"), "a time with its unit"),
        (("--concurrent-users", "0"), "--concurrent-users"),
        (("--concurrent-users", "5", "--percentile", "77"), "percentile"),
        (("--concurrent-users", "5", "--price", "h20"), "device=price"),
        (("--concurrent-users", "5", "--available", "h20=some"), "--available"),
        (("--concurrent-users", "5", "--objective", "beauty"), "unknown objective"),
        (("--concurrent-users", "5", "--budget", "0"), "price"),
        (("--request-rate", "-3"), "--request-rate"),
        (("--request-rate", "3", "--think", "4s"), "think time"),
        (("--concurrent-users", "5", "--json", "--csv"), "two formats"),
    ],
)
def test_wrong_questions_are_exit_code_2(run_cli: Run, flags: tuple[str, ...], said: str) -> None:
    ran = run_cli(*ASKED, *flags)
    assert ran.code == 2
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_nothing_available_is_exit_code_1(run_cli: Run) -> None:
    ran = run_cli(*USERS, "--available", "a100-80gb-sxm=0", "--available", "rtx-4090=0")
    assert ran.code == 1
    assert "Allow at least one device" in ran.err


def test_counted_and_other_names_of_hardware(run_cli: Run) -> None:
    """2xrtx-4090: no more than two are to be had; a100 is another name."""
    found = answer(
        run_cli, "plan", "llama-3.1-8b", "--isl", "512", "--osl", "128", "--concurrent-users", "4",
        "--hardware", "a100,2xrtx-4090", "-q", "none", "--no-simulation",
    )  # fmt: skip
    assert found["targets"]["available"] == {"rtx-4090": 2}
    assert {row["hardware"] for row in found["rivals"]} == {"a100-80gb-sxm", "rtx-4090"}
    assert all(row.get("n_devices", 0) <= 2 for row in found["rivals"] if row["hardware"] == "rtx-4090")


def test_one_token_has_no_time_per_token(run_cli: Run) -> None:
    asked = ("plan", "llama-3.1-8b", "--isl", "512", "--osl", "1", "--request-rate", "5", "--hardware", "l40s")
    found = answer(run_cli, *asked, "--tp", "1", "--ttft", "1s")
    assert not [key for key in found["rivals"][0] if key.startswith("tpot_s")]
    assert " - " in run_cli(*asked, "--tp", "1", "--ttft", "1s").out
    ran = run_cli(*asked, "--tpot", "50ms")
    assert ran.code == 2
    assert "have no time per output token" in ran.err


def test_requests_beyond_the_context_are_refused(run_cli: Run) -> None:
    asked = (
        "plan",
        "qwen3-8b",
        "--isl",
        "40000",
        "--osl",
        "10000",
        "--concurrent-users",
        "1",
        "--hardware",
        "h200-sxm",
    )
    ran = run_cli(*asked)
    assert ran.code == 2
    assert "at most 40960" in ran.err
    assert run_cli(*asked, "--max-model-len", "60000", "--tp", "1", "--no-simulation").code == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--price", "h20=1/h"), "--price: got h20"),
        (("--available", "h20=4"), "--available: got h20"),
        (("--available", "rtx-4090=4", "--available", "rtx-4090=8"), "said twice"),
        (("--report", "/nonexistent/x.html"), "no such folder"),
    ],
)
def test_what_would_change_nothing_or_cannot_be_written_is_refused_before_the_search(
    run_cli: Run, tmp_path: Path, flags: tuple[str, ...], said: str
) -> None:
    page = tmp_path / "page.html"
    asked = ("plan", "llama-3.1-8b", "--isl", "512", "--osl", "128", "--request-rate", "4", "--hardware", "rtx-4090")
    ran = run_cli(*asked, "--report", str(page), *flags)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert not page.exists()
