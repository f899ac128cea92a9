"""`perfmodel simulate`: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest

from perfmodel.measure.importers.base import Context
from perfmodel.measure.importers.vllm_bench import parse_serve

Run = Callable[..., "tuple[int, str, str]"]
GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "cli" / "simulate.json"
"""The keys on record, with those of the mappings under them. One that goes breaks somebody."""
BASE = ("simulate", "llama-3.1-8b", "a100-80gb-sxm", "--isl", "256", "--osl", "32", "--num-prompts", "120")


def document(run_cli: Run, *flags: str) -> dict[str, object]:
    code, out, err = run_cli(*BASE, *flags, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def test_people_read_latencies_limits_and_definitions(run_cli: Run) -> None:
    code, out, _ = run_cli(*BASE, "--request-rate", "10", "--slo-ttft", "500", "--slo-tpot", "50")
    assert code == 0
    for words in ("Time to first token", "p99", "Goodput", "Requests wait for", "Little's law", "TTFT: from when"):
        assert words in out
    assert "unstable" not in out


def test_programs_read_stable_keys_in_base_units(run_cli: Run) -> None:
    found = document(run_cli, "--request-rate", "10", "--seed", "3")
    assert found["n_completed"] == 120
    assert found["is_stable"] is True
    keys = {name: sorted(part) if isinstance(part, dict) else "" for name, part in found.items()}
    assert keys == json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert found["checks"]["hold"] is True  # type: ignore[index]
    assert 0 < found["clock_max_error_frac"] < 0.005  # type: ignore[operator]
    assert found == document(run_cli, "--request-rate", "10", "--seed", "3")
    assert found != document(run_cli, "--request-rate", "10", "--seed", "4")


def test_a_rate_beyond_saturation_is_said_to_be_one(run_cli: Run) -> None:
    code, out, _ = run_cli(*BASE, "--request-rate", "2000", "--max-num-seqs", "4", "--num-prompts", "1000")
    assert code == 0
    assert "of this trace only" in out
    assert "unstable" in out
    found = document(run_cli, "--request-rate", "2000", "--max-num-seqs", "4")
    assert found["is_stable"] is False
    assert found["binding_limit"] == "max_num_seqs"


def test_a_closed_loop_and_a_burst(run_cli: Run) -> None:
    closed = document(run_cli, "--max-concurrency", "4")
    assert closed["max_concurrency"] == 4
    assert closed["checks"]["mean_in_system"] <= 4 + 1e-9  # type: ignore[index]
    burst = document(run_cli)
    assert burst["request_rate_per_s"] is None
    assert burst["output_tokens_per_s"] > closed["output_tokens_per_s"]  # type: ignore[operator]
    static = document(run_cli, "--policy", "static", "--length-spread", "0.5")
    assert static["policy"] == "static"


def test_replicas_share_the_load(run_cli: Run) -> None:
    code, out, _ = run_cli(
        "simulate", "llama-3.1-8b", "a100-80gb-sxm", "-n", "2", "-dp", "2", "--routing", "least-loaded",
        "--request-rate", "20", "--num-prompts", "100", "--isl", "256", "--osl", "32", "--json",
    )  # fmt: skip
    assert code == 0
    assert json.loads(out)["n_replicas"] == 2


def test_a_row_for_each_request(run_cli: Run) -> None:
    code, out, _ = run_cli(*BASE, "--csv", "--request-rate", "10", "--length-spread", "0.3")
    rows = list(csv.DictReader(StringIO(out)))
    assert code == 0
    assert len(rows) == 120
    assert all(float(row["e2e_s"]) >= float(row["ttft_s"]) > float(row["queue_s"]) >= 0 for row in rows)
    assert {int(row["input_tokens"]) for row in rows} <= set(range(179, 334))


def test_a_saved_result_reads_like_a_measured_one(run_cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    code, _, _ = run_cli(*BASE, "--request-rate", "10", "--save-result", str(path))
    assert code == 0
    saved = json.loads(path.read_text())
    found = document(run_cli, "--request-rate", "10")
    assert saved["mean_ttft_ms"] == pytest.approx(1e3 * found["ttft_s"]["mean"])  # type: ignore[index]
    assert saved["median_itl_ms"] == pytest.approx(1e3 * found["itl_s"]["p50"])  # type: ignore[index]
    assert len(saved["ttfts"]) == saved["completed"] == 120
    context = Context(file="result.json", device="a100-80gb-sxm", tp=1)
    assert parse_serve(path.read_text(), context=context).rows


TRACES = {
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,374,44\n2023-11-16 18:17:05.0319600,396,10\n2023-11-16 18:17:06.0319600,879,55\n",
    "burst.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,230,1317,Conversation log\n",
    "mooncake.jsonl": '{"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": [1, 2]}\n'
    '{"timestamp": 3052, "input_length": 1025, "output_length": 26, "hash_ids": [1, 3, 4]}\n',
}


@pytest.mark.parametrize("name", TRACES)
def test_recorded_traces_are_replayed(run_cli: Run, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(TRACES[name])
    flags = ("simulate", "llama-3.1-8b", "a100-80gb-sxm", "--trace", str(path))
    code, out, err = run_cli(*flags, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["n_completed"] == len(TRACES[name].strip().splitlines()) - name.endswith(".csv")
    assert found["checks"]["hold"]
    assert any("prefix" in text for text in found["warnings"]) == name.startswith("mooncake")
    code, out, _ = run_cli(*flags, "--json", "--num-prompts", "2", "--request-rate", "4")
    assert json.loads(out)["request_rate_per_s"] == pytest.approx(4.0)
    code, out, _ = run_cli(*flags)
    assert f"of {name}" in " ".join(out.split())


def test_traces_that_cannot_be_replayed(run_cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,5,2\n0,7,3\n")
    flags = ("simulate", "llama-3.1-8b", "a100-80gb-sxm", "--trace", str(path))
    for more, says in (
        (("--isl", "4"), "lengths of their own"),
        (("--request-rate", "2"), "come at once"),
        (("--num-prompts", "0"), "--num-prompts"),
    ):
        code, _, err = run_cli(*flags, *more)
        assert code == 2
        assert says in err
    path.write_text("arrival_s,input_tokens,output_tokens\n0,0,2\n")
    code, _, err = run_cli(*flags)
    assert code == 2
    assert "input tokens 0" in err
    code, _, err = run_cli(*flags[:-1], str(tmp_path / "absent.csv"))
    assert code == 2


def test_a_picture_is_drawn(run_cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "timeline.png"
    code, _, _ = run_cli(*BASE, "--request-rate", "10", "--plot", str(path))
    assert code == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_other_engines_and_models_are_simulated(run_cli: Run) -> None:
    for flags, policy in (
        (("llama-3.1-8b", "a100-80gb-sxm", "--runtime", "vllm-0.6.3", "--chunked-prefill", "off"), "prefill-first"),
        (("llama-3.1-8b", "a100-80gb-sxm", "--runtime", "pytorch-eager"), "static"),
        (("deepseek-v3", "8xh200-sxm", "--max-num-seqs", "32"), "mixed"),
        (("gemma-3-27b", "h100-sxm"), "mixed"),
    ):
        code, out, err = run_cli(
            "simulate", *flags, "--num-prompts", "20", "--isl", "300", "--osl", "20", "--request-rate", "2", "--json"
        )
        assert (code, err) == (0, "")
        assert json.loads(out)["policy"] == policy
        assert json.loads(out)["checks"]["hold"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--request-rate", "0"), "--request-rate"),
        (("--request-rate", "fast"), "--request-rate"),
        (("--num-prompts", "0"), "--num-prompts"),
        (("--num-prompts", "20000000"), "--num-prompts"),
        (("--length-spread", "2"), "--length-spread"),
        (("--burstiness", "-1"), "--burstiness"),
        (("--policy", "lifo"), "scheduling policy"),
        (("--order", "lifo"), "order"),
        (("--routing", "dice"), "routing"),
        (("--slo-ttft", "0"), "--slo-ttft"),
        (("--plot", "picture.txt"), "picture"),
    ],
)
def test_flags_that_cannot_be_used(run_cli: Run, flags: tuple[str, ...], says: str) -> None:
    code, out, err = run_cli(*BASE, *flags)
    assert (code, out) == (2, "")
    assert says in err


def test_what_does_not_fit_is_a_no(run_cli: Run) -> None:
    code, _, err = run_cli("simulate", "llama-3.1-70b", "rtx-4090", "--num-prompts", "10")
    assert code == 1
    assert err


def test_requests_that_are_too_long_are_counted(run_cli: Run) -> None:
    found = document(run_cli, "--length-spread", "0.9", "--max-model-len", "300")
    refused = found["n_refused"]["context_limit"]  # type: ignore[index]
    assert refused > 0
    assert found["n_completed"] == 120 - refused
    assert any("refused" in text for text in found["warnings"])  # type: ignore[attr-defined]


def test_files_that_a_run_leaves_behind(run_cli: Run, tmp_path: Path) -> None:
    names = {
        "--save-requests": "requests.parquet",
        "--save-series": "series.csv",
        "--perfetto": "schedule.json",
        "--plot": "time.svg",
        "--plot-latency": "latency.png",
    }
    flags = [word for flag, name in names.items() for word in (flag, str(tmp_path / name))]
    ran = run_cli(
        "simulate", "llama-3.1-8b", "a100-80gb-sxm", "--isl", "64", "--osl", "8", "--num-prompts", "5", *flags
    )
    assert ran[0] == 0, ran[2]
    assert {path.name for path in tmp_path.iterdir()} == set(names.values())
    series = (tmp_path / "series.csv").read_text().splitlines()
    assert series[0].startswith("time_s,n_running,n_waiting,kv_used_frac")
    assert len(series) == 401
    assert run_cli("simulate", "llama-3.1-8b", "a100-80gb-sxm", "--save-requests", str(tmp_path / "x.txt"))[0] == 2
