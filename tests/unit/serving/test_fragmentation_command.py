"""The command that compares allocators: its figures, its files, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
QUICK = ("--count", "600", "--pool", "20GiB")


def test_the_document_says_what_the_closed_forms_say(run_cli: Run, tmp_path: Path) -> None:
    """Uniform 20,000 to 32,000 under 32,000: 18.75 %. Bytes of a token: 131,072. Row: 131,072 / (32 layers x 2)."""
    picture = tmp_path / "waste.png"
    ran = run_cli("fragmentation", "llama-3.1-8b", "a100-80gb-sxm", *QUICK, "--json", "--plot", str(picture))
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert (document["bytes_per_token"], document["row_bytes"], document["line_bytes"]) == (131_072, 2048.0, 128.0)
    by_name = {row["allocator"]: row for row in document["rows"]}
    assert list(by_name) == ["fixed 32000", "paged 16", "paged 128", "best fit (pytorch)"]
    assert by_name["fixed 32000"]["closed_internal_frac"] == pytest.approx(0.1875)
    assert by_name["fixed 32000"]["padded_read_frac"] == pytest.approx(0.8125)
    for row in document["rows"]:
        assert row["useful_frac"] + row["internal_frac"] + row["external_frac"] == pytest.approx(1.0)
        if row["closed_is_exact"]:
            assert row["waste_of_held_frac"] == pytest.approx(row["closed_internal_frac"], rel=0.1)
    assert picture.stat().st_size > 10_000


def test_lengths_from_a_file_and_growth(run_cli: Run, tmp_path: Path) -> None:
    """Lengths 100 and 300 in blocks of 256: 100 of 256 and 300 of 512 are useful, 400 of 768 in sum."""
    path = tmp_path / "lengths.txt"
    path.write_text("100, 300\n100 300\n", encoding="utf-8")
    asked = (
        "fragmentation",
        "llama-3.1-8b",
        "--lengths",
        str(path),
        "-a",
        "paged:256",
        "--count",
        "400",
        "--pool",
        "2GiB",
    )
    row = json.loads(run_cli(*asked, "--json").out)["rows"][0]
    assert row["closed_internal_frac"] == pytest.approx(1 - 400 / 768)
    assert row["line_read_frac"] is None
    grown = json.loads(run_cli(*asked, "--json", "--growth", "50", "-a", "best-fit").out)["rows"][1]
    assert grown["copied_bytes_per_sequence"] > 0
    assert grown["copy_s_per_sequence"] is None


def test_the_table_and_the_csv(run_cli: Run) -> None:
    asked = (
        "fragmentation",
        "deepseek-v2-lite",
        *QUICK,
        "--lengths",
        "lognormal:8000:0.8:32000",
        "-a",
        "window:4096:128",
    )
    table = run_cli(*asked)
    assert "window 4096, blocks of 128" in table.out
    assert "a pool of 40 GiB" not in table.out
    assert run_cli(*asked, "--csv").out.startswith("allocator,closed_internal_frac")
    assert "never filled" in run_cli("fragmentation", "llama-3.1-8b", "--count", "2", "-a", "paged:16").out


def test_sliding_layers_are_named(run_cli: Run) -> None:
    ran = run_cli("fragmentation", "gpt-oss-20b", "--count", "5", "-a", "paged:16")
    assert ran.code == 0, ran.err
    assert "sliding layers" in ran.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--lengths", "uniform:5"), "--lengths"),
        (("--lengths", "uniform:9:5"), "low <= high"),
        (("--lengths", "nofile"), "--lengths"),
        (("--lengths", "fixed:x"), "--lengths"),
        (("--lengths", "fixed:1.5"), "--lengths"),
        (("--lengths", "lognormal:nan:1"), "lognormal"),
        (("-a", "slab:3"), "--allocator"),
        (("-a", "paged:0"), "--allocator"),
        (("-a", "paged"), "--allocator"),
        (("-a", "best-fit:jemalloc"), "unknown allocator"),
        (("-a", "fixed:20000"), "does not fit"),
        (("--pool", "1MiB"), "room for"),
        (("--count", "0"), "--count"),
        (("--prompt-share", "2", "--growth", "1"), "--prompt-share"),
        (("--plot", "x.doc"), "picture"),
    ],
)
def test_what_is_refused(run_cli: Run, words: tuple[str, ...], says: str) -> None:
    ran = run_cli("fragmentation", "llama-3.1-8b", "--count", "50", *words)
    assert ran.code == 2, ran.out
    assert says in ran.err


def test_a_file_without_lengths_is_refused(run_cli: Run, tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    for text in ("", "12 abc", "1.5", "99999999999"):
        path.write_text(text, encoding="utf-8")
        ran = run_cli("fragmentation", "llama-3.1-8b", "--lengths", str(path))
        assert ran.code == 2
        assert "holds no lengths" in ran.err
