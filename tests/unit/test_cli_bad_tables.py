"""Measured tables with something wrong in them: said in one message, and nothing written over."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from perfmodel.measure.csv_io import write_table
from perfmodel.measure.row import Row
from perfmodel.measure.table import Table, table_from_rows
from perfmodel.specs.catalogue import Catalogue
from tests.unit.cli_parts import Run

DEVICE = "h100-sxm"
SHAPES = [(m, n, k) for m in (16, 512, 8192) for n in (1024, 8192) for k in (1024, 4096, 8192)]


def time_s(m: int, n: int, k: int) -> float:
    """600 Tflop/s, 2.8 TB/s and 5 us: what an H100 does, about."""
    return max(2 * m * n * k / 600e12, 2 * (m * k + n * k + m * n) / 2.8e12) + 5e-6


def rows(**changes: Any) -> list[Row]:
    base = {"kind": "gemm", "device": DEVICE, "runtime": "kernel", "compute_dtype": "bf16", "source": "own run"}
    return [
        Row(**{"id": f"g{i}", "metric": "time_s", "m": m, "n": n, "k": k, "value": time_s(m, n, k), **base, **changes})
        for i, (m, n, k) in enumerate(SHAPES)
    ]


def saved(folder: Path, listed: list[Row], name: str = "mine.csv") -> str:
    write_table(table_from_rows(listed), folder / name)
    return str(folder / name)


def too_quick() -> list[Row]:
    listed = rows()
    return [listed[0].with_columns(value=1e-9), *listed[1:]]


@pytest.mark.parametrize("command", ["calibrate", "validate", "predict", "fit"])
def test_a_row_beyond_physics_is_told_and_not_used(run_cli: Run, tmp_path: Path, command: str) -> None:
    table, out = saved(tmp_path, too_quick()), tmp_path / "out.txt"
    ran = {
        "calibrate": lambda: run_cli("calibrate", DEVICE, table, "-o", str(out), "--json"),
        "validate": lambda: run_cli("validate", table, "--json"),
        "predict": lambda: run_cli("predict", table, "-o", str(out)),
        "fit": lambda: run_cli("fit", table, "--x", "m", "--y", "value", "--law", "linear"),
    }[command]()
    assert ran.code == 0
    assert "1 of 18 rows beat what their device can do" in ran.err + ran.out
    assert "g0" in ran.err + ran.out
    if command == "calibrate":
        assert '"n_rows": 17' in ran.out
    if command == "predict":
        with out.open() as file:
            first = next(csv.DictReader(file))
        assert first["status"] == "suspect"
        assert "beats" in first["note"]


def test_rows_in_another_unit_are_told(run_cli: Run, tmp_path: Path) -> None:
    ms = [row.with_columns(value=(row.value or 0.0) * (1000.0 if i % 2 else 1.0)) for i, row in enumerate(rows())]
    ran = run_cli("calibrate", DEVICE, saved(tmp_path, ms), "-o", "-")
    assert "9 of 18 rows take more than 300 times" in " ".join(ran.out.split())
    assert "are all values in seconds?" in " ".join(ran.out.split())


def test_contradictory_repeats_are_told(run_cli: Run, tmp_path: Path) -> None:
    again = [row.with_columns(id=f"{row.id}-b", value=20 * (row.value or 0.0)) for row in rows()]
    ran = run_cli("calibrate", DEVICE, saved(tmp_path, [*rows(), *again]), "-o", "-")
    assert "repeats of 18 shapes differ by more than a factor of 2" in " ".join(ran.out.split())


def test_one_shape_tells_no_coefficients(run_cli: Run, tmp_path: Path) -> None:
    out = tmp_path / "made.yaml"
    out.write_text("mine")
    same = saved(tmp_path, rows(m=64, n=1024, k=1024))
    ran = run_cli("calibrate", DEVICE, same, "-o", str(out), "--force")
    assert (ran.code, out.read_text()) == (2, "mine")
    assert "all rows measure the same work" in ran.err
    one_weight = saved(tmp_path, [row.with_columns(m=16.0 * 2**i) for i, row in enumerate(rows(n=1024, k=1024))][:14])
    ran = run_cli("calibrate", DEVICE, one_weight, "-o", "-")
    assert ran.code == 0
    assert "errors are on sizes left out" in " ".join(ran.out.split())


def test_a_device_that_no_catalogue_has_is_told(run_cli: Run, tmp_path: Path) -> None:
    listed = rows()
    table = saved(tmp_path, [listed[0].with_columns(device="h1000"), *listed[1:]])
    ran = run_cli("calibrate", DEVICE, table, "-o", "-")
    assert ran.code == 0
    assert "1 of 18 rows are of a device that the catalogue lacks: h1000 (did you mean" in ran.err
    nothing = run_cli("validate", saved(tmp_path, rows(device="h1000"), "other.csv"))
    assert nothing.code == 1
    assert "no row could be predicted" in nothing.err


def test_counts_that_no_machine_holds_are_refused(run_cli: Run, tmp_path: Path) -> None:
    table = saved(tmp_path, rows())
    text = Path(table).read_text().replace(",16,1024,1024,", ",1e300,1024,1024,")
    Path(table).write_text(text)
    for command in (("calibrate", DEVICE, table, "-o", "-"), ("predict", table), ("validate", table)):
        ran = run_cli(*command)
        assert ran.code == 2
        assert "got 1e+300, expected at most 1e+12" in ran.err


def test_a_cell_that_is_no_number_is_one_fault(run_cli: Run, tmp_path: Path) -> None:
    table = saved(tmp_path, rows())
    lines = Path(table).read_text().splitlines()
    at = lines[0].split(",").index("value")
    cells = lines[3].split(",")
    cells[at] = "12 us"
    Path(table).write_text("\n".join([*lines[:3], ",".join(cells), *lines[4:]]) + "\n")
    ran = run_cli("validate", table)
    assert ran.code == 2
    assert ran.err.count("line 4") == 1


def test_a_table_counts_once(run_cli: Run, tmp_path: Path) -> None:
    table = saved(tmp_path, rows())
    for command in (("validate", table, table), ("calibrate", DEVICE, table, table, "-o", "-")):
        ran = run_cli(*command)
        assert ran.code == 2
        assert "named twice" in ran.err


def test_no_command_writes_over_what_it_reads(run_cli: Run, tmp_path: Path) -> None:
    table = saved(tmp_path, rows())
    sidecar = tmp_path / "mine.yaml"
    sidecar.write_text("title: mine\n")
    picture = tmp_path / "data.png"
    picture.write_text("x,y\n1,2\n2,3\n3,5\n4,4\n")
    before = {path: path.read_text() for path in tmp_path.iterdir()}
    for command in (
        ("fit", table, "--x", "m", "--y", "value", "-o", table, "--force"),
        ("fit", str(picture), "--x", "x", "--y", "y", "--plot", str(picture)),
        ("calibrate", DEVICE, table, "-o", table, "--force"),
        ("calibrate", DEVICE, table, "-o", str(sidecar), "--force"),
        ("predict", table, "-o", table),
        ("validate", table, "--write", table),
        ("import", str(picture), "-o", str(picture)),
    ):
        ran = run_cli(*command)
        assert ran.code == 2, command
        assert "the output is a file that is read" in ran.err, command
    assert {path: path.read_text() for path in tmp_path.iterdir()} == before


def test_a_flat_line_at_zero_is_no_warning(run_cli: Run, tmp_path: Path) -> None:
    (tmp_path / "zero.csv").write_text("x,time_s\n1,0\n2,0\n3,0\n4,0\n5,0\n")
    ran = run_cli("fit", str(tmp_path / "zero.csv"), "--x", "x", "--y", "time_s")
    assert ran.code == 0
    assert "R2 = not defined" in " ".join(ran.out.split())
    assert "Warning" not in ran.err


def test_negative_times_are_told(run_cli: Run, tmp_path: Path) -> None:
    (tmp_path / "below.csv").write_text("x,time_s\n1,1\n2,-2\n3,3\n4,4\n5,5\n")
    ran = run_cli("fit", str(tmp_path / "below.csv"), "--x", "x", "--y", "time_s")
    assert "time_s is below zero in row 3" in ran.out + ran.err


def test_shipped_tables_keep_to_physics(catalogue: Catalogue) -> None:
    from perfmodel.measure.physics import checked_table
    from perfmodel.validate.shipped import shipped_tables

    for path in shipped_tables(catalogue):
        table, report = checked_table(path, catalogue)
        assert isinstance(table, Table)
        assert report.usable == (), path.name
        assert not report.unknown_devices, path.name
        assert not report.unknown_models, path.name


def test_an_import_tells_names_and_times_that_cannot_be(run_cli: Run, tmp_path: Path) -> None:
    """1,600 prompt tokens a second are sound for an 8B model on an H100 and not for one of 405B on L4 cards."""
    run = Path(__file__).parent / "measure" / "data" / "vllm_serve.json"
    ran = run_cli("import", str(run), "--device", "no-such", "--model", "none-such", "--runtime", "x")
    assert ran.code == 0
    assert "rows are of a device that the catalogue lacks: no-such" in ran.err
    small = run_cli("import", str(run), "--device", DEVICE, "--model", "llama-3.1-8b", "--runtime", "x")
    assert "beat what their device can do" not in small.err
    large = run_cli("import", str(run), "--device", "l4", "--model", "llama-3.1-405b", "--runtime", "x")
    assert "times what l4 can" in large.err
