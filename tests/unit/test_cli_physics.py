"""`issue` and `layout` as commands: what they print, their JSON and CSV, and what they refuse."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli_parts import answer

CHAIN = "vadd c, a, b; vmul d, c, b; vdiv e, d, a"
HEADS = ("[B,L,H,D]", "[B,H,L,D]", "--size", "B=1,L=4096,H=128,D=192", "--read", "B=1,H=1")


def test_a_chain_on_a_device(run_cli: Callable[..., Any]) -> None:
    """83.01 cycles (see test_issue.py) at 1.8 GHz are 46.1 ns."""
    found = answer(run_cli, "issue", "ascend-910b2", CHAIN)
    assert found["core"] == "ascend-c220"
    assert found["n_cycles"] == pytest.approx(83.0144)
    assert found["time_s"] == pytest.approx(46.119e-9, rel=1e-4)
    assert found["ipc"] == pytest.approx(3 / 83.0144)
    assert found["ipc"] < found["ceiling_ipc"] <= 1
    text = run_cli("issue", "ascend-910b2", CHAIN).out
    assert "83.01 cycles" in text
    assert "no forwarding" in " ".join(text.split())
    rows = list(csv.DictReader(io.StringIO(run_cli("issue", "ascend-910b2", CHAIN, "--csv").out)))
    assert [row["waits_for"] for row in rows] == ["", "c", "d"]


def test_a_program_in_a_file_as_a_loop(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "chain.txt"
    file.write_text(CHAIN.replace(";", "\n") + "\n# done\n", encoding="utf-8")
    once = answer(run_cli, "issue", "ascend-910b2", str(file))
    often = answer(run_cli, "issue", "ascend-910b2", str(file), "--iterations", "50")
    assert often["n_instructions"] == 50 * once["n_instructions"]
    quick = answer(run_cli, "issue", "ascend-910b2", str(file), "--iterations", "50", "--forwarding")
    assert quick["steady_ipc"] > often["steady_ipc"]
    slow = answer(run_cli, "issue", "ascend-910b2", str(file), "--latency", "vadd=1000")
    assert slow["n_cycles"] == pytest.approx(once["n_cycles"] + 1000 - 22.2)
    assert "and 110 more" in run_cli("issue", "ascend-910b2", str(file), "--iterations", "50").out


def test_a_change_of_ipc(run_cli: Callable[..., Any]) -> None:
    change = answer(run_cli, "issue", "ascend-910b2", "--ipc", "3.8,1.9", "--longer", "1.12")["change"]
    assert change["largest_time_ratio"] == 2
    assert change["needed_issue_share"] == pytest.approx(1.12)
    assert change["needed_instruction_growth"] == pytest.approx(1.06)
    assert "cannot be" in run_cli("issue", "ascend-910b2", "--ipc", "3.8,1.9", "--longer", "1.12").out
    half = answer(run_cli, "issue", "ascend-910b2", "--ipc", "3.8,1.9", "--issue-share", "0.5")["change"]
    assert half["time_ratio"] == 1.5
    assert half["needed_issue_share"] is None


def test_times_of_a_model_stretch_by_the_work_of_cores_alone(run_cli: Callable[..., Any]) -> None:
    """With a share s of core work, half the IPC gives 1 + s: at most +100 %, less where memory and host take time."""
    words = ("issue", "ascend-910b2", "--ipc", "3.8,1.9", "--model", "deepseek-r1-distill-qwen-7b", "--isl", "2048")
    times = answer(run_cli, *words)["times"]
    for time in times.values():
        assert 0 < time["core_share"] < 1
        assert time["stretched_s"] == pytest.approx(time["time_s"] * (1 + time["core_share"]))
    assert times["ttft"]["core_share"] > times["tpot"]["core_share"]  # decode waits for memory
    assert "TTFT" in run_cli(*words).out


def test_layouts_of_a_model(run_cli: Callable[..., Any]) -> None:
    """DeepSeek-V2: heads of 192, latents of 576 with 64 rotary elements; 32-byte alignment on lines of 128."""
    asked = ("layout", "--model", "deepseek-v2", "--on", "a100-80gb-sxm", "--alignment", "32")
    rows = {row["read"]: row for row in answer(run_cli, *asked)["rows"]}
    assert rows["latent of a token"]["line_use_frac"] == pytest.approx(1152 / 1248)
    assert rows["rotary part of the latents"]["line_use_frac"] == pytest.approx(128 / 224)
    assert rows["queries of a head, tokens first"]["line_use_frac"] == pytest.approx(384 / 480)
    assert rows["expanded keys of a head, heads first"]["n_runs"] == 1
    grouped = {row["read"] for row in answer(run_cli, "layout", "--model", "qwen3-8b", "--line", "128")["rows"]}
    assert "cached keys of a head, heads first" in grouped
    assert "latent of a token" in run_cli(*asked).out


def test_layouts_side_by_side(run_cli: Callable[..., Any]) -> None:
    """384 bytes of each token touch 1.5 lines of 512: half of 1.6 TB/s. 48 KiB apart all lanes meet in one bank."""
    token_major, head_major = answer(run_cli, "layout", *HEADS, "--on", "ascend-910b2")["rows"]
    assert token_major["line_use_frac"] == pytest.approx(0.5)
    assert token_major["effective_bytes_per_s"] == pytest.approx(0.8e12)
    assert (token_major["bank_passes"], head_major["bank_passes"]) == (16, 1)
    assert head_major["line_use_frac"] == 1
    text = run_cli("layout", *HEADS, "--on", "ascend-910b2").out
    assert "[B,L,H,D]" in text
    assert "800 GB/s" in text
    rows = list(csv.DictReader(io.StringIO(run_cli("layout", *HEADS, "--line", "128", "--csv").out)))
    assert [float(row["line_use_frac"]) for row in rows] == [1, 1]
    assert {row["effective_bytes_per_s"] for row in rows} == {""}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("issue", "ascend-910b2"), "nothing to run"),
        (("issue", "ascend-910b2", "vadd c a b x"), "cannot be read"),
        (("issue", "ascend-910b2", "vfly c, a"), "unknown instruction"),
        (("issue", "mi300x", CHAIN), "no pipes are known"),
        (("issue", "ascend-910b2", CHAIN, "--iterations", "0"), "--iterations"),
        (("issue", "ascend-910b2", CHAIN, "--width", "nan"), "--width"),
        (("issue", "ascend-910b2", CHAIN, "--latency", "vadd"), "--latency"),
        (("issue", "ascend-910b2", CHAIN, "--latency", "vadd=-1"), "--latency"),
        (("issue", "ascend-910b2", "no-such-file"), "no-such-file"),
        (("issue", "ascend-910b2", "--ipc", "3.8"), "--ipc"),
        (("issue", "ascend-910b2", "--ipc", "3.8,0"), "--ipc"),
        (("issue", "ascend-910b2", "--ipc", "2,2"), "does not change"),
        (("issue", "ascend-910b2", "--ipc", "2,1", "--csv"), "no table"),
        (("issue", "ascend-910b2", CHAIN, "--csv", "--json"), "two formats"),
        (("issue", "ascend-910b2", CHAIN, "--model", "qwen3-8b"), "no change"),
        (("layout", "--line", "64"), "nothing is asked for"),
        (("layout", "[B,L]", "--size", "B=1,L=2", "--model", "qwen3-8b", "--line", "64"), "two things"),
        (("layout", "--model", "no-such-model", "--line", "64"), "unknown model"),
        (("layout", "[B,L]", "--size", "B=1,L=2"), "no cache line"),
        (("layout", "[B,L]", "--size", "B=1", "--line", "64"), "lacks sizes"),
        (("layout", "[B,L]", "--size", "B=1,L=x", "--line", "64"), "--size"),
        (("layout", "[B,L]", "--size", "B=1,L=8", "--read", "L=9", "--line", "64"), "cannot be read"),
        (("layout", "[B,L]", "--size", "B=1,L=8", "--line", "64", "--alignment", "48"), "divides"),
        (("layout", "[B,L]", "--size", "B=1,L=8", "--on", "gaudi2"), "not known"),
    ],
)
def test_what_cannot_be_answered_is_refused(run_cli: Callable[..., Any], words: tuple[str, ...], message: str) -> None:
    ran = run_cli(*words)
    assert ran.code == 2
    assert message in ran.err
    assert "Traceback" not in ran.err


def test_json_holds_no_text_beside_it(run_cli: Callable[..., Any]) -> None:
    ran = run_cli("issue", "ascend-910b2", CHAIN, "--ipc", "2,1", "--json")
    assert set(json.loads(ran.out)) >= {"n_cycles", "instructions", "change"}


def test_a_matmul_through_the_hierarchy(run_cli: Callable[..., Any]) -> None:
    """96 of 1568 MiB miss (see test_traffic.py); at 42.7 % it would be 0.573 x 1568 = 898.5 MiB, 9.36 times as many."""
    words = ("hierarchy", "matmul", "ascend-910b2", "4096", "4096", "4096")
    found = answer(run_cli, *words, "--stated-use", "0.892", "--stated-hit", "0.427")
    assert found["l2_hit_frac"] == pytest.approx(1 - 96 / 1568)
    assert [level["level"] for level in found["levels"]] == ["dram", "l2"]
    assert found["stated"]["implied_dram_bytes"] == pytest.approx(0.573 * 1568 * 2**20)
    assert found["stated"]["implied_n_moves"] == pytest.approx(0.573 * 1568 / 96)
    assert found["stated"]["implied_time_s"] == pytest.approx(0.573 * 1568 * 2**20 / (0.892 * 1.6e12))
    text = run_cli(*words).out
    assert "93.9 %" in text
    assert "groups of 5 columns, zigzag" in text
    rows = answer(run_cli, "hierarchy", "matmul", "ascend-910b2", "16384", "16384", "16384", "--order", "rows")
    assert rows["l2_hit_frac"] == pytest.approx(0.3178, abs=1e-3)
    small = answer(run_cli, *words, "--l2", "1MiB", "--tile", "64x64")
    assert small["l2_hit_frac"] < found["l2_hit_frac"]
    columns = list(csv.DictReader(io.StringIO(run_cli(*words, "--csv").out)))
    assert float(columns[0]["l2_hit_frac"]) == pytest.approx(found["l2_hit_frac"])


def test_streams_and_gathers(run_cli: Callable[..., Any]) -> None:
    warm = answer(run_cli, "hierarchy", "stream", "ascend-910b2", "100MiB", "--warm")
    cold = answer(run_cli, "hierarchy", "stream", "ascend-910b2", "100MiB")
    assert (warm["dram_read_bytes"], cold["dram_read_bytes"]) == (0, 100 * 2**20)
    assert warm["time_s"] < cold["time_s"]
    table = ("--rows", "2.4e6", "--row-bytes", "256", "--accesses", "6e7")
    spread = answer(run_cli, "hierarchy", "gather", "ascend-910b2", *table)
    # 2.4e6 x 256 = 614.4 MB over lines of 512: 0.95 x 201.3 MB of it are there
    assert spread["l2_hit_frac"] == pytest.approx(0.95 * 192 * 2**20 / 614.4e6, abs=1e-3)
    local = answer(run_cli, "hierarchy", "gather", "ascend-910b2", *table, "--skew", "1")
    assert local["l2_hit_frac"] > spread["l2_hit_frac"]
    assert "skew 1" in run_cli("hierarchy", "gather", "ascend-910b2", *table, "--skew", "1").out


def test_ridges_by_dtype_and_level(run_cli: Callable[..., Any]) -> None:
    """353.9e12 / 1.6e12 = 221, / 7e12 = 50.6 flop/B in fp16; a tile of 128 x 256 has 2 x 128 x 256 / (2 x 384)."""
    shown = answer(run_cli, "hierarchy", "show", "ascend-910b2")["rows"]
    rows = {(row["dtype"], row["level"], row["memory"]): row for row in shown}
    half = {level: row for (dtype, level, _), row in rows.items() if dtype == "fp16"}
    assert half["dram"]["ridge_flop_per_byte"] == pytest.approx(353.9 / 1.6)
    assert half["l2"]["ridge_flop_per_byte"] == pytest.approx(353.9 / 7)
    assert half["l2"]["tile_flop_per_byte"] == pytest.approx(2 * 128 * 256 / (2 * 384))
    # narrower dtypes raise the peak and leave the bandwidth
    assert len({row["bytes_per_s"] for row in rows.values() if row["level"] == "dram"}) == 1
    ridges = [rows[dtype, "dram", "HBM2e"]["ridge_flop_per_byte"] for dtype in ("fp16", "int8", "int4")]
    assert ridges == sorted(ridges)
    assert "never the bandwidth" in run_cli("hierarchy", "show", "h100-sxm").out
    assert "fp8,dram" in run_cli("hierarchy", "show", "h100-sxm", "--csv").out


def test_a_class_of_cores_is_shown_with_its_sources(run_cli: Callable[..., Any]) -> None:
    text = run_cli("hardware", "core", "ascend-910b2").out
    assert "vadd fp16: latency" in text
    assert answer(run_cli, "hardware", "core", "ascend-c220")["issue_width"]["value"] == 1
    assert run_cli("hardware", "core", "no-such-core").code == 2


def test_curves_of_a_device(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    """Row after row a 910B2 loses its hits once a row of panels exceeds the L2; in groups it keeps nine in ten."""
    rows = answer(run_cli, "hierarchy", "curve", "ascend-910b2")["rows"]
    last = {row["order"]: row for row in rows if row["kind"] == "matmul" and row["n"] > 30000}
    assert last["rows"]["l2_hit_frac"] < 0.35
    assert last["usual"]["l2_hit_frac"] > 0.9
    streams = {state: [r for r in rows if r.get("state") == state] for state in ("cold", "warm")}
    faster = [w["time_s"] < c["time_s"] for c, w in zip(streams["cold"], streams["warm"], strict=True)]
    assert faster == [row["bytes"] <= 0.95 * 192 * 2**20 for row in streams["cold"]]
    target = tmp_path / "curve.png"
    assert run_cli("hierarchy", "curve", "ascend-910b2", "-o", str(target)).code == 0
    assert target.stat().st_size > 10_000
    assert "kind,order,n" in run_cli("hierarchy", "curve", "h100-sxm", "--csv").out


def test_the_hierarchy_against_measurements(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    shipped = Path(__file__).resolve().parents[2] / "hardware" / "measurements"
    found = answer(run_cli, "hierarchy", "validate", str(shipped / "l2-hit-rates.csv"))
    assert len(found["hit_rates"]) == 3
    assert all(abs(row["difference_frac"]) < 0.02 for row in found["hit_rates"])
    text = run_cli("hierarchy", "validate", str(shipped / "ascend-910b2-kernels.csv")).out
    assert "cold" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("matmul", "ascend-910b2", "0", "1", "1"), "M"),
        (("matmul", "ascend-910b2", "1", "1", "x"), "K"),
        (("matmul", "ascend-910b2", "1", "1", "1", "--dtype", "fp7"), "dtype"),
        (("matmul", "ascend-910b2", "1", "1", "1", "--dtype", "fp8"), "no fp8"),
        (("matmul", "ascend-910b2", "1", "1", "1", "--order", "spiral"), "order"),
        (("matmul", "ascend-910b2", "1", "1", "1", "--tile", "128"), "--tile"),
        (("matmul", "ascend-910b2", "1", "1", "1", "--l2", "big"), "--l2"),
        (("matmul", "ascend-910b2", "1", "1", "1", "--stated-hit", "0.5"), "both"),
        (("matmul", "no-such-device", "1", "1", "1"), "unknown"),
        (("curve", "ascend-910b2", "-o", "x.gif"), "picture"),
        (("stream", "ascend-910b2", "much"), "SIZE"),
        (("gather", "ascend-910b2", "--rows", "0", "--row-bytes", "2", "--accesses", "1"), "--rows"),
        (("gather", "ascend-910b2", "--rows", "9", "--row-bytes", "2", "--accesses", "1", "--skew", "nan"), "--skew"),
        (("validate", "no-such-table.csv"), "no-such-table"),
    ],
)
def test_questions_about_the_hierarchy_that_cannot_be_answered(
    run_cli: Callable[..., Any], words: tuple[str, ...], message: str
) -> None:
    ran = run_cli("hierarchy", *words)
    assert ran.code == 2
    assert message in ran.err
    assert "Traceback" not in ran.err
