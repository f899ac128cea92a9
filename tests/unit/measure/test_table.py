"""The measurement table: what it accepts, what it refuses and how it says so, and that it survives a round trip."""

from __future__ import annotations

import gzip
import math
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import MeasurementError, SpecError, UnknownNameError
from perfmodel.measure.csv_io import csv_text, read_table, sidecar_path, table_from_text, write_table
from perfmodel.measure.row import Row, missing_columns
from perfmodel.measure.schema import COLUMNS, KINDS, STATUSES
from perfmodel.measure.sidecar import Sidecar, sidecar_from_text
from perfmodel.measure.table import Table, table_from_rows

HEADER = "id,kind,device,runtime,compute_dtype,m,n,k,metric,value,status,source"
GOOD = "g1,gemm,a100-80gb-sxm,kernel,bf16,16,4096,4096,time_s,2.5e-05,ok,own"


def _message(text: str, **kwargs: object) -> str:
    with pytest.raises(MeasurementError) as caught:
        table_from_text(text, **kwargs)  # type: ignore[arg-type]
    return str(caught.value)


def test_a_plain_table_is_read() -> None:
    table = table_from_text(f"{HEADER}\n{GOOD}\n")
    row = table.row(0)
    assert (len(table), row.m, row.value, row.tp) == (1, 16.0, 2.5e-05, None)
    assert np.isnan(table["layer"]).all()


@pytest.mark.parametrize("prefix", ["\ufeff", ""])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_marks_and_line_ends_do_not_matter(prefix: str, end: str) -> None:
    assert len(table_from_text(prefix + end.join([HEADER, GOOD, ""]))) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("time_s", "time_ms"), "divide by 1000"),
        (("2.5e-05", "nan"), "Leave the cell empty"),
        (("2.5e-05", "inf"), "a finite number"),
        (("2.5e-05", "-1"), "at least 0"),
        (("2.5e-05", "0"), "above 0"),
        (("2.5e-05", "25 us"), "without a unit"),
        (("2.5e-05", "1,5"), "cells"),
        (("own", ""), "Say where the figure comes from"),
        (("gemm", "gem"), "did you mean gemm?"),
        (("ok", "okay"), "did you mean ok?"),
        (("bf16", "bfloat16"), "did you mean bf16?"),
        (("bf16", ""), "kind gemm needs"),
        (("a100-80gb-sxm", ""), "hardware catalogue"),
    ],
)
def test_a_fault_is_named_with_its_line_and_a_cure(change: tuple[str, str], said: str) -> None:
    message = _message(f"{HEADER}\n{GOOD}\n{GOOD.replace('g1', 'g2').replace(*change)}\n")
    assert "line 3" in message
    assert said in message


def test_all_faults_are_reported_at_once_and_the_list_is_capped() -> None:
    lines = [GOOD.replace("g1", f"g{i}").replace("2.5e-05", "-1") for i in range(50)]
    message = _message("\n".join([HEADER, *lines]))
    assert message.count("line ") == 20
    assert "and 30 more" in message


def test_a_column_that_is_empty_throughout_is_one_fault() -> None:
    lines = "\n".join(GOOD.replace("a100-80gb-sxm", "").replace("g1", f"g{i}", 1) for i in range(50))
    with pytest.raises(MeasurementError, match="column device: got nothing in any row") as caught:
        table_from_text(f"{HEADER}\n{lines}\n")
    assert [fault.where for fault in caught.value.faults] == ["column device"]


def test_an_unknown_column_is_refused_by_name() -> None:
    assert "did you mean runtime" in _message(f"{HEADER},runtme\n{GOOD},x\n")


def test_a_column_may_not_stand_twice() -> None:
    assert "each column once" in _message(f"{HEADER},m\n{GOOD},1\n")


def test_a_semicolon_table_is_explained() -> None:
    assert "commas, not with ';'" in _message(f"{HEADER}\n{GOOD}\n".replace(",", ";"))


def test_a_truncated_file_is_explained() -> None:
    assert "cut off" in _message(f"{HEADER}\n{GOOD}\n{GOOD[:20]}")
    assert "quote is not closed" in _message(f'{HEADER}\n"{GOOD}\n')


def test_ids_are_unique() -> None:
    assert "First used at line 2" in _message(f"{HEADER}\n{GOOD}\n{GOOD}\n")


def test_an_empty_text_is_no_table() -> None:
    assert "a header" in _message("")


def test_blank_lines_are_passed_over_wherever_they_are() -> None:
    text = HEADER + "\n" + GOOD + "\n" * 2500 + GOOD.replace("g1", "g2") + "\n"
    assert len(table_from_text(text)) == 2


def test_a_missing_file_and_a_folder_are_measurement_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(MeasurementError):
            read_table(path)


def test_a_sidecar_fills_constant_columns(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,m,value\na,16,1e-5\nb,32,2e-5\n")
    sidecar_path(path).write_text(
        "measured_by: us\nsource: own run\nlicence: CC0\nhow_to_read: whole microseconds\n"
        "constants: {kind: gemm, device: l4, runtime: kernel, n: 8, k: 8, metric: time_s, compute_dtype: bf16}\n"
    )
    table = read_table(path)
    assert set(table["source"]) == {"own run"}
    assert set(table["k"]) == {8.0}
    assert table.sidecar.how_to_read == ("whole microseconds",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("constants: {devise: l4}", "did you mean"),
        ("constants: {value: 1}", "row to row"),
        ("constants: {tp: many}", "a number"),
        ("licens: MIT", "licens"),
    ],
)
def test_a_wrong_sidecar_is_refused(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        sidecar_from_text(text)


def test_usable_rows_are_the_default_and_others_come_on_request() -> None:
    copy = Row(kind="bandwidth", device="l4", runtime="x", op="hbm_copy", metric="bytes_per_s", value=1e9, source="y")
    rows = [copy.with_columns(id=status, status=status) for status in STATUSES]
    table = table_from_rows(rows)
    assert list(table.where()["status"]) == ["ok", "inferred"]
    assert len(table.where(status=None)) == 5
    assert len(table.where(status="suspect")) == 1


def test_a_runtime_is_found_by_its_family_and_by_its_version() -> None:
    rows = [
        Row(id=r, kind="bandwidth", device="l4", runtime=r, op="o", metric="bytes_per_s", value=1e9, source="y")
        for r in ("vllm-0.6.3", "vllm", "vllmx-1")
    ]
    table = table_from_rows(rows)
    assert list(table.where(runtime="vllm")["runtime"]) == ["vllm-0.6.3", "vllm"]
    assert len(table.where(runtime="vllm-0.6.3")) == 1


def test_a_serving_row_without_lengths_can_be_shown_and_is_not_complete() -> None:
    cells = {
        "kind": "serve",
        "device": "l4",
        "runtime": "x",
        "metric": "ttft_s",
        "value": 1.0,
        "source": "y",
        "model": "m",
    }
    table = table_from_rows([Row(id="a", **cells), Row(id="b", batch=1, input_tokens=1, output_tokens=1, **cells)])  # type: ignore[arg-type]
    assert list(table.complete["id"]) == ["b"]
    assert missing_columns(table.row(0)) == ("batch or request_rate_per_s", "input_tokens", "output_tokens")


def test_a_status_change_leaves_the_original_alone() -> None:
    table = table_from_text(f"{HEADER}\n{GOOD}\n")
    changed = table.with_status({0: ("suspect", "too quick")})
    assert (changed.row(0).status, changed.row(0).note) == ("suspect", "too quick")
    assert table.row(0).status == "ok"


def test_an_unknown_column_is_no_column_of_a_table() -> None:
    with pytest.raises(UnknownNameError, match="query_tokens"):
        table_from_text(f"{HEADER}\n{GOOD}\n")["query_token"]


def test_counts_and_joins() -> None:
    table = table_from_text(f"{HEADER}\n{GOOD}\n")
    assert len(table.joined(table)) == 2
    assert table.counts("device") == {"a100-80gb-sxm": 1}


_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12).map(str.strip)
_COUNT = st.none() | st.integers(1, 4096).map(float)
_NUMBER = st.none() | st.floats(1e-9, COLUMNS["batch"].most, allow_nan=False)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    kind = draw(st.sampled_from(["gemm", "serve", "memory", "counter"]))
    metric = draw(st.sampled_from(sorted(KINDS[kind].metrics)))
    rows = []
    for i in range(draw(st.integers(0, 5))):
        value = draw(st.floats(1e-12, 1e15))
        fixed = Row(
            kind=kind, device="l4", runtime="x", op="o", model="m", m=1, n=2, k=3, compute_dtype="bf16", source="s"
        )
        rows.append(
            fixed.with_columns(
                id=f"r{i}",
                metric=metric,
                value=value,
                tp=draw(_COUNT),
                batch=draw(_NUMBER),
                note=draw(_TEXT),
                variant=draw(_TEXT),
                request_rate_per_s=draw(st.sampled_from([None, 0.5, math.inf])),
                status=draw(st.sampled_from(STATUSES)),
            )
        )
    constants: dict[str, str | int | float] = draw(st.sampled_from([{}, {"link": "pcie"}, {"pp": 2}]))
    return table_from_rows(rows, sidecar=Sidecar(title=draw(_TEXT), constants=constants))


@settings(max_examples=80, deadline=None)
@given(tables())
def test_what_is_written_reads_back_equal(table: Table) -> None:
    again = table_from_text(csv_text(table), sidecar=table.sidecar)
    first = table_from_text(csv_text(again), sidecar=again.sidecar)
    assert again == first
    for name in ("id", "note", "variant", "value", "batch", "request_rate_per_s", "tp"):
        assert (
            np.array_equal(again[name], table[name])
            if again[name].dtype == object
            else np.array_equal(again[name], table[name], equal_nan=True)
        )


def test_files_round_trip_with_their_sidecar(tmp_path: Path) -> None:
    sidecar = Sidecar(source="own", licence="CC0", known_faults=("none",))
    table = table_from_text(f"{HEADER}\n{GOOD}\n", sidecar=sidecar)
    files = write_table(table, tmp_path / "t.csv")
    assert [file.name for file in files] == ["t.csv", "t.yaml"]
    assert read_table(tmp_path / "t.csv") == table


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_a_table_or_a_measurement_error(text: str) -> None:
    for garbled in (text, f"{HEADER}\n{text}", f"{HEADER}\n{GOOD}\n{text}"):
        try:
            table_from_text(garbled)
        except MeasurementError:
            continue


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 400), st.integers(0, 400), st.text(max_size=5))
def test_a_garbled_table_is_a_table_or_an_error_of_ours(start: int, length: int, patch: str) -> None:
    text = f"{HEADER}\n{GOOD}\n{GOOD.replace('g1', 'g2')}\n"
    try:
        table_from_text(text[:start] + patch + text[start + length :])
    except MeasurementError:
        return


def test_bytes_of_spreadsheets_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for encoding in ("utf-8-sig", "utf-16", "gb18030"):
        path.write_bytes(f"{HEADER},note\n{GOOD},首次\n".encode(encoding))
        assert read_table(path).row(0).note == "首次"
    path.write_bytes(b"\x00\x01\x02")
    with pytest.raises(MeasurementError):
        read_table(path)


def test_packed_files_are_unpacked_and_broken_ones_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    packed = gzip.compress(f"{HEADER}\n{GOOD}\n".encode())
    path.write_bytes(packed)
    assert len(read_table(path)) == 1
    path.write_bytes(packed[:-12])
    with pytest.raises(MeasurementError, match="gzip"):
        read_table(path)


def test_a_hundred_thousand_rows_load_quickly() -> None:
    names = list(COLUMNS)
    cells = dict.fromkeys(names, "") | dict(zip(HEADER.split(","), GOOD.split(","), strict=True))
    body = [",".join({**cells, "id": f"g{i}", "m": str(i % 997 + 1)}.values()) for i in range(100_000)]
    text = "\n".join([",".join(names), *body])
    start = time.process_time()
    assert len(table_from_text(text)) == 100_000
    assert time.process_time() - start < 6.0  # about 1.5 s on a quiet machine
