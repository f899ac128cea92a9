"""`perfmodel simulate` with the flags of traffic, scheduler and replicas: what changes, and which way."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., "tuple[int, str, str]"]
BASE = ("simulate", "llama-3.1-8b", "a100-80gb-sxm", "--isl", "256", "--osl", "64", "--num-prompts", "100")


@pytest.fixture
def simulated(run_cli: Run) -> Callable[..., dict[str, Any]]:
    def run(*flags: str, base: tuple[str, ...] = BASE) -> dict[str, Any]:
        code, out, err = run_cli(*base, *flags, "--json")
        assert (code, err) == (0, "")
        found: dict[str, Any] = json.loads(out)
        assert found["checks"]["hold"]
        return found

    return run


Simulated = Callable[..., dict[str, Any]]


def test_speculation_shortens_answers_as_far_as_it_is_accepted(simulated: Simulated) -> None:
    plain = simulated("--request-rate", "2")
    drafted = simulated("--request-rate", "2", "--speculative-tokens", "3", "--acceptance-length", "3")
    refused = simulated("--request-rate", "2", "--speculative-tokens", "3", "--acceptance-length", "1")
    assert drafted["tpot_s"]["mean"] < 0.6 * plain["tpot_s"]["mean"]
    assert refused["tpot_s"]["mean"] > plain["tpot_s"]["mean"]
    assert any("speculative" in text for text in drafted["assumed"])


def test_shared_prefixes_are_found_where_the_engine_caches_them(simulated: Simulated) -> None:
    groups = ("--request-rate", "8", "--prefix-groups", "4", "--prefix-len", "2048")
    cached, off = simulated(*groups), simulated(*groups, "--no-enable-prefix-caching")
    assert cached["prefix_hit_frac"] > 0.8
    assert off["prefix_hit_frac"] is None
    assert cached["ttft_s"]["mean"] < 0.7 * off["ttft_s"]["mean"]
    assert cached["input_tokens"] == 100 * (2048 + 256)
    older = simulated(*groups, "--runtime", "vllm-0.6.3")
    assert older["prefix_cache"] is False


def test_turns_hold_what_was_said_before(simulated: Simulated) -> None:
    talk = simulated("--request-rate", "8", "--turns", "4", "--think-time", "2")
    # Prompts of 256, 576, 896 and 1,216 tokens.
    assert talk["input_tokens"] == 25 * (256 + 576 + 896 + 1216)
    assert talk["prefix_hit_frac"] > 0.6
    assert talk["duration_s"] > 3 * 2


def test_swap_reads_nothing_again_and_needs_host_memory(simulated: Simulated, run_cli: Run) -> None:
    scarce = ("--num-gpu-blocks-override", "120", "--max-num-seqs", "16")
    again = simulated(*scarce)
    swapped = simulated(*scarce, "--preemption-mode", "swap", "--swap-space", "8")
    assert again["n_preemptions"] > 0
    assert swapped["n_moved_blocks"] > 0
    assert swapped["prompt_tokens_read"] == 100 * 256 < again["prompt_tokens_read"]
    code, _, err = run_cli(*BASE, *scarce, "--preemption-mode", "swap")
    assert code == 2
    assert "--swap-space" in err


def test_urgent_requests_wait_less(run_cli: Run) -> None:
    flags = ("--request-rate", "60", "--max-num-seqs", "8", "--scheduling-policy", "priority", "--csv")
    code, out, _ = run_cli(*BASE, *flags, "--priorities", "0:0.3,5:0.7")
    assert code == 0
    rows = list(csv.DictReader(StringIO(out)))
    waits = {level: [float(r["queue_s"]) for r in rows if r["priority"] == level] for level in ("0", "5")}
    assert len(waits["0"]) + len(waits["5"]) == 100
    assert sum(waits["0"]) / len(waits["0"]) < 0.3 * sum(waits["5"]) / len(waits["5"])


def test_the_stated_numbers_of_prefill_and_decode_replicas_are_used(simulated: Simulated) -> None:
    load = ("--request-rate", "20", "--isl", "2048")
    three_to_one = simulated(*load, "--prefill-replicas", "3", "--decode-replicas", "1")
    one_to_three = simulated(*load, "--prefill-replicas", "1", "--decode-replicas", "3")
    assert three_to_one["sent_kv_tokens"] == 100 * 2048
    assert three_to_one["ttft_s"]["mean"] < one_to_three["ttft_s"]["mean"]
    assert any("3 prefill, 1 decode" in text for text in three_to_one["assumed"])
    slow = simulated(*load, "--prefill-replicas", "3", "--decode-replicas", "1", "--kv-link-bandwidth", "1")
    # 2,048 tokens of 131,072 bytes at 1 GB/s: 0.268 s between the first token and the second.
    assert slow["e2e_s"]["mean"] > three_to_one["e2e_s"]["mean"] + 0.2


def test_instances_of_one_device_get_in_each_others_way(simulated: Simulated, run_cli: Run) -> None:
    share = ("--request-rate", "8", "--gpu-memory-utilization", "0.45")
    one, two = simulated(*share), simulated(*share, "--instances-per-device", "2")
    assert two["tpot_s"]["mean"] > one["tpot_s"]["mean"]
    assert any("instances at once take 1, " in text for text in two["assumed"])
    stated = simulated(*share, "--instances-per-device", "2", "--slowdowns", "1,3")
    assert stated["tpot_s"]["mean"] > two["tpot_s"]["mean"]
    code, _, err = run_cli(*BASE, "--instances-per-device", "2")
    assert code == 2
    assert "--gpu-memory-utilization" in err


def test_ranks_apart_wait_for_the_busiest(simulated: Simulated) -> None:
    base = ("simulate", "deepseek-v3", "16xh200-sxm", "-tp", "8", "-dp", "2", "--isl", "500", "--osl", "20")
    load = ("--request-rate", "4", "--num-prompts", "30", "--max-num-seqs", "32", "-q", "fp8")
    even, apart = simulated(*load, base=base), simulated(*load, "--separate-ranks", base=base)
    assert apart["n_blocks"] == even["n_blocks"] // 2
    assert apart["tpot_s"]["mean"] > even["tpot_s"]["mean"]
    assert any("in step with the busiest" in text for text in apart["assumed"])


def test_failures_are_counted(simulated: Simulated) -> None:
    two = ("-n", "2", "-dp", "2", "--request-rate", "20", "--fail", "0@1+1")
    again, lost = simulated(*two), simulated(*two, "--on-failure", "lose")
    assert again["n_retried"] > 0
    assert again["n_completed"] == 100
    assert lost["n_refused"]["replica_failed"] > 0
    assert lost["n_completed"] + lost["n_refused"]["replica_failed"] == 100


def test_a_window_makes_larger_batches_of_a_static_server(simulated: Simulated) -> None:
    static = ("--policy", "static", "--request-rate", "3", "--max-num-seqs", "8")
    at_once, gathered = simulated(*static), simulated(*static, "--max-queue-delay", "2000")
    assert gathered["mean_decoding_seqs"] > at_once["mean_decoding_seqs"]
    assert gathered["queue_s"]["mean"] > at_once["queue_s"]["mean"]


@pytest.mark.parametrize("arrivals", ["poisson", "constant", "gamma", "on-off", "diurnal"])
def test_arrivals_keep_the_mean_rate(simulated: Simulated, arrivals: str) -> None:
    turns = {"on-off": ("--on-time", "1", "--off-time", "1"), "diurnal": ("--period", "5")}.get(arrivals, ())
    found = simulated("--request-rate", "20", "--arrivals", arrivals, "--osl", "4", "--num-prompts", "600", *turns)
    assert found["request_rate_per_s"] == pytest.approx(20, rel=0.15)


def test_lengths_of_sets_and_files(simulated: Simulated, tmp_path: Path) -> None:
    known = simulated("--lengths", "sharegpt", "--request-rate", "4", "--num-prompts", "1000", base=BASE[:3])
    # Means of 161 and 338 tokens; what is beyond 1,024 is cut.
    assert 140 < known["input_tokens"] / 1000 < 175
    assert 290 < known["output_tokens"] / 1000 < 355
    path = tmp_path / "pairs.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,100,7\n1,300,9\n")
    pairs = simulated("--lengths", str(path), "--request-rate", "4", "--num-prompts", "100", base=BASE[:3])
    assert 100 * 100 < pairs["input_tokens"] < 100 * 300
    assert (pairs["input_tokens"] - 100 * 100) / 200 == (pairs["output_tokens"] - 100 * 7) / 2
    drawn = simulated("--lengths", "lognormal", "--length-sigma", "0.5")
    assert 0.8 < drawn["input_tokens"] / 25600 < 1.25


def test_traces_are_scaled_and_cut_and_warmed_up(simulated: Simulated, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{i},50,5\n" for i in range(60)))
    base = ("simulate", "llama-3.1-8b", "a100-80gb-sxm", "--trace", str(path))
    assert simulated("--rate-scale", "4", base=base)["request_rate_per_s"] == pytest.approx(4.0)
    assert simulated("--until", "9.5", base=base)["n_requests"] == 10
    warm = simulated("--warmup", "19.5", base=base)
    assert (warm["n_completed"], warm["n_warmup"], warm["n_requests"]) == (40, 20, 60)
    assert warm["requests_per_s"] == pytest.approx(1.0, rel=0.05)


def test_bad_lines_stop_a_replay_unless_they_are_to_be_skipped(
    simulated: Simulated, run_cli: Run, tmp_path: Path
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n3,50,5\nnoon,50,5\n1,60,5\n2,-4,5\n2,70,0\n")
    base = ("simulate", "llama-3.1-8b", "a100-80gb-sxm", "--trace", str(path))
    code, _, err = run_cli(*base)
    assert code == 2
    for words in ("2 lines of trace.csv cannot be read", "line 3", "line 5", "--skip-bad"):
        assert words in err
    found = simulated("--skip-bad", base=base)
    assert found["n_completed"] == 2
    said = " ".join(found["warnings"])
    for words in ("2 lines", "1 requests without an answer", "1 requests come before the one above"):
        assert words in said
    lines = tmp_path / "trace.jsonl"
    lines.write_text('{"timestamp": 0, "input_length": 40, "output_length": 5}\n{"timestamp": 5, "inp\n')
    code, _, err = run_cli(*base[:-1], str(lines))
    assert code == 2
    assert "line 2" in err
    assert simulated("--skip-bad", base=(*base[:-1], str(lines)))["n_completed"] == 1


def test_named_blocks_of_a_trace_are_found_again(simulated: Simulated, tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    rows = [
        {"timestamp": 1000 * i, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 10 + i]} for i in range(5)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    found = simulated(base=("simulate", "llama-3.1-8b", "a100-80gb-sxm", "--trace", str(path)))
    assert found["prefix_found_tokens"] == 4 * 1024


def test_a_bench_result_is_replayed(simulated: Simulated, run_cli: Run, tmp_path: Path) -> None:
    saved = tmp_path / "result.json"
    assert run_cli(*BASE, "--request-rate", "10", "--save-result", str(saved))[0] == 0
    base = ("simulate", "llama-3.1-8b", "a100-80gb-sxm", "--trace", str(saved))
    plain = {key: value for key, value in json.loads(saved.read_text()).items() if key != "start_times"}
    saved.write_text(json.dumps(plain))
    found = simulated(base=base)
    assert (found["n_completed"], found["input_tokens"]) == (100, 25600)
    assert any("drawn at its 10 requests/s" in text for text in found["warnings"])
    stated = json.loads(saved.read_text()) | {"start_times": [7.0 + i / 2 for i in range(100)]}
    saved.write_text(json.dumps(stated))
    assert simulated(base=base)["request_rate_per_s"] == pytest.approx(2.0)
    saved.write_text(json.dumps(stated | {"input_lens": [5]}))
    code, _, err = run_cli(*base)
    assert code == 2
    assert "cannot be replayed" in err


def test_windows_release_what_lies_behind_them(simulated: Simulated) -> None:
    base = ("simulate", "gemma-3-27b", "h100-sxm", "--isl", "4000", "--osl", "20", "--num-prompts", "12")
    found = simulated("--request-rate", "2", base=base)
    assert any("release the blocks behind them" in text for text in found["assumed"])


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--arrivals", "tides"), "--arrivals"),
        (("--prefix-groups", "4"), "--prefix-len"),
        (("--think-time", "4"), "--max-concurrency or --turns"),
        (("--turns", "3", "--max-concurrency", "4"), "one of the two"),
        (("--priorities", "0:0"), "priorities"),
        (("--priorities", "high"), "--priorities"),
        (("--preferred-batch", "4"), "--max-queue-delay"),
        (("--prefill-replicas", "2"), "at least one of each"),
        (("--fail", "0"), "--fail"),
        (("--fail", "3@1"), "replica 3 of 1"),
        (("--on-failure", "ignore"), "--on-failure"),
        (("--preemption-mode", "drop"), "--preemption-mode"),
        (("--slowdowns", "1,0.5"), "--slowdowns"),
        (("--skip-bad",), "--trace"),
        (("--until", "0"), "--until"),
        (("--warmup", "1000000"), "warmup"),
        (("--prefix-caching", "maybe"), "--prefix-caching"),
    ],
)
def test_flags_that_cannot_be_used(run_cli: Run, flags: tuple[str, ...], says: str) -> None:
    code, out, err = run_cli(*BASE, *flags)
    assert (code, out) == (2, "")
    assert says in err


def test_requests_beyond_the_context_of_the_model_are_refused_and_counted(simulated: Simulated, tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    rows = [
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2023-11-16 18:15:41.0,400,10",
        "2023-11-16 18:15:42.0,200000,10",
    ]
    path.write_text("\n".join(rows))
    found = simulated("--trace", str(path), base=BASE[:3])
    assert found["n_refused"] == {"context_limit": 1}
    assert found["n_completed"] == 1
    assert found["max_model_len"] == 131072


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--on-time", "4"), "--on-time"),
        (("--request-rate", "1", "--arrivals", "diurnal", "--off-time", "4"), "--off-time"),
        (("--swing", "0.3", "--period", "60"), "--swing, --period"),
        (("--arrivals", "poisson"), "a finite --request-rate"),
        (("--request-rate", "1", "--arrivals", "poisson", "--burstiness", "4"), "--burstiness"),
        (("--lengths", "fixed", "--length-spread", "0.3"), "--length-spread"),
        (("--length-sigma", "2"), "--lengths lognormal"),
        (("--skip-bad",), "--trace, or a file of --lengths"),
        (("--rate-scale", "2"), "--rate-scale"),
        (("--lengths", "sharegpt"), "lengths of their own"),
        (("--kv-link-latency", "5"), "--prefill-replicas"),
        (("--slowdowns", "1,2"), "--instances-per-device"),
        (("--on-failure", "lose"), "--fail"),
        (("--max-concurrency", "4", "--until", "1"), "all due at once"),
    ],
)
def test_flags_that_would_change_nothing_are_refused(run_cli: Run, flags: tuple[str, ...], says: str) -> None:
    code, out, err = run_cli(*BASE, *flags)
    assert (code, out) == (2, "")
    assert says in err


def test_lengths_of_a_trace_are_drawn_from_all_of_it_whatever_its_arrivals(
    simulated: Simulated, tmp_path: Path
) -> None:
    path = tmp_path / "burst.csv"
    rows = [f"1,{n},10" for n in (100, 200, 300, 400)] + ["1,x,10", "1,7"]
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]))
    drawn = ("--lengths", str(path), "--request-rate", "4", "--num-prompts", "40", "--skip-bad")
    found = simulated(*drawn, base=BASE[:3])
    assert 150 * 40 < found["input_tokens"] < 350 * 40
    assert "2 lines that cannot be read are left out, the first at line 7" in found["warnings"]
    # Cut off in the last line: said, and left out where that is asked for.
    alone = simulated("--trace", str(path), "--skip-bad", base=BASE[:3])
    assert alone["n_completed"] == 4


def test_a_trace_of_a_header_alone_and_an_unknown_set_of_lengths_are_named(run_cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "head.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n")
    code, _, err = run_cli(*BASE[:3], "--trace", str(path))
    assert code == 2
    assert "head.csv holds no request" in err
    code, _, err = run_cli(*BASE[:3], "--lengths", "moby-dick")
    assert code == 2
    assert "set of lengths" in err


@pytest.mark.parametrize("flag", ["--save-result", "--save-requests", "--perfetto", "--plot-latency"])
def test_nothing_is_written_where_one_place_cannot_be(run_cli: Run, tmp_path: Path, flag: str) -> None:
    suffix = {"--save-requests": ".csv", "--plot-latency": ".png"}.get(flag, ".json")
    kept = ("--save-result", "--save-series", "--plot")
    good = [
        word
        for one in kept
        if one != flag
        for word in (one, str(tmp_path / f"x{one}.{'png' if one == '--plot' else 'csv'}"))
    ]
    code, out, err = run_cli(*BASE, *good, flag, str(tmp_path / "none" / f"y{suffix}"))
    assert (code, out) == (2, "")
    assert "no such folder" in err
    assert not list(tmp_path.iterdir())


def test_a_saved_run_of_a_trace_states_its_rate_and_is_replayed_as_it_was(
    simulated: Simulated, run_cli: Callable[..., Any], tmp_path: Path
) -> None:
    path, saved = tmp_path / "trace.csv", tmp_path / "run.json"
    rows = [f"{0.31 * i},{200 + 7 * i},{20 + i}" for i in range(40)]
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]))
    first = simulated("--trace", str(path), "--rate-scale", "2", "--save-result", str(saved), base=BASE[:3])
    # 39 gaps of 0.155 s.
    assert json.loads(saved.read_text())["request_rate"] == pytest.approx(1 / 0.155)
    again = simulated("--trace", str(saved), base=BASE[:3])
    assert again["ttft_s"] == first["ttft_s"]
    assert "6.452 requests/s" in " ".join(run_cli(*BASE[:3], "--trace", str(path), "--rate-scale", "2").out.split())
    assert again["e2e_s"] == first["e2e_s"]


@pytest.mark.parametrize(
    "rows", [["0,5,5", "1e300,5,5"], ["0001-01-01 00:00:00,5,5", "9999-12-31 23:59:59,5,5"], ["0,5,5", "1e10,5,5"]]
)
def test_a_trace_longer_than_the_clock_is_refused(run_cli: Run, tmp_path: Path, rows: list[str]) -> None:
    path = tmp_path / "ages.csv"
    path.write_text("\n".join(["timestamp,input_tokens,output_tokens", *rows]))
    code, out, err = run_cli(*BASE[:3], "--trace", str(path))
    assert (code, out) == (2, "")
    assert "too late to be simulated" in err
    code, out, err = run_cli("scale", *BASE[1:3], "--no-simulation", "--trace", str(path))
    assert (code, out) == (2, "")
    assert "in steps of 15 s" in err
