"""Operator tables of Ascend profilers: op_summary_*.csv, op_statistic_*.csv, kernel_details.csv.

Column names of both generations are read (Block Dim and Block Num, with and without Model ID). "N/A" is an empty cell.
Collectives are listed twice by msprof, once a stream: equal start, type and duration count once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from perfmodel.errors import MeasurementError
from perfmodel.measure.importers.base import Context, Imported
from perfmodel.measure.importers.operators import operator_rows
from perfmodel.measure.importers.reading import Grid, csv_grid, number_of
from perfmodel.measure.profile import OperatorTiming, Shape, dtype_name, shapes_from_text
from perfmodel.measure.text import Faults

__all__ = ["parse_operators", "parse_statistic"]

_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "name": ("op name", "name", "kernel_name", "op_name"),
    "type": ("op type", "type", "op_type", "kernel_type"),
    "core": ("task type", "accelerator core", "core type", "kernel_type"),
    "start": ("task start time(us)", "start time(us)", "task_start(us)"),
    "duration": ("task duration(us)", "duration(us)", "average duration(us)", "task_time(us)", "avg time(us)"),
    "wait": ("task wait time(us)", "wait time(us)"),
    "blocks": ("block num", "block dim"),
    "device": ("device_id", "device id"),
    "stream": ("stream id", "stream_id"),
    "step": ("step id", "infer id"),
    "input_shapes": ("input shapes",),
    "output_shapes": ("output shapes",),
    "input_dtypes": ("input data types",),
    "output_dtypes": ("output data types",),
    "input_formats": ("input formats",),
    "calls": ("count",),
}
_PMU: Final = (
    "_ratio",
    "_time(us)",
    "_bw(gb/s)",
    "_cycles",
    "_miss_rate",
    "_hit",
    "utilization(%)",
    "memory_bound",
    "_fops",
)
_BIG_RUN: Final = 2_000_000


def _positions(grid: Grid, needed: Sequence[str]) -> dict[str, int]:
    """Return where each known column stands; raises MeasurementError for needed ones that do not."""
    plain = [header.strip().lower() for header in grid.header]
    found: dict[str, int] = {}
    for name, spellings in _COLUMNS.items():
        position = next((plain.index(word) for word in spellings if word in plain), None)
        if position is not None:
            found[name] = position
    missing = [name for name in needed if name not in found]
    if missing:
        raise MeasurementError(
            f"{grid.name} is no operator table of a profiler",
            got=", ".join(grid.header)[:120],
            expected="; ".join(f"{name}: {' or '.join(_COLUMNS[name])}" for name in missing),
        )
    return found


def _counters(grid: Grid, known: Iterable[int]) -> list[tuple[int, str]]:
    """Return the hardware counters of a table: every further column that ends as one does."""
    taken = set(known)
    return [
        (i, header.strip())
        for i, header in enumerate(grid.header)
        if i not in taken and header.strip().lower().endswith(_PMU)
    ]


def _number(row: Sequence[str], at: Mapping[str, int], name: str) -> float | None:
    return number_of(row[at[name]]) if name in at else None


def _text(row: Sequence[str], at: Mapping[str, int], name: str) -> str:
    word = row[at[name]].strip() if name in at else ""
    return "" if word.upper() == "N/A" else word


def _shapes(row: Sequence[str], at: Mapping[str, int], name: str, line: int, faults: Faults) -> tuple[Shape, ...]:
    word = _text(row, at, name)
    try:
        return shapes_from_text(word)
    except ValueError:
        faults.add(f"line {line}, {name.replace('_', ' ')}", word, 'sizes such as "16,4096;4096,12288"')
        return ()


def _list(word: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in word.strip('"').split(";")) if word.strip('"') else ()


def _timings(grid: Grid, faults: Faults, bad: Faults) -> list[OperatorTiming]:
    at = _positions(grid, ("name", "duration") if "op state" not in (h.lower() for h in grid.header) else ("duration",))
    counters = _counters(grid, at.values())
    found = []
    for line, row in grid.rows:
        duration = _number(row, at, "duration")
        if duration is None or duration < 0 or not math.isfinite(duration):
            (faults if duration is None else bad).add(f"line {line}, duration", row[at["duration"]], "microseconds")
            continue
        start, wait = _number(row, at, "start"), _number(row, at, "wait")
        inputs = _list(_text(row, at, "input_dtypes"))
        values = tuple((name, value) for i, name in counters if (value := number_of(row[i])) is not None)
        calls = _number(row, at, "calls")
        found.append(
            OperatorTiming(
                name=_text(row, at, "name"),
                type=_text(row, at, "type"),
                duration_s=duration / 1e6,
                start_s=None if start is None else start / 1e6,
                wait_s=None if wait is None else wait / 1e6,
                n_calls=int(calls) if calls and 1 <= calls < _BIG_RUN**2 else 1,
                device=_text(row, at, "device"),
                stream=_text(row, at, "stream"),
                core=_text(row, at, "core"),
                n_blocks=_number(row, at, "blocks"),
                input_shapes=_shapes(row, at, "input_shapes", line, faults),
                output_shapes=_shapes(row, at, "output_shapes", line, faults),
                input_dtypes=tuple(dtype_name(word) or word for word in inputs),
                output_dtypes=tuple(dtype_name(w) or w for w in _list(_text(row, at, "output_dtypes"))),
                input_formats=_list(_text(row, at, "input_formats")),
                step=_text(row, at, "step"),
                place=f"line {line}",
                counters=values,
            )
        )
    return found


def _once(timings: Sequence[OperatorTiming]) -> tuple[list[OperatorTiming], int]:
    """Return timings without collectives that are listed again for another stream, and how many were dropped."""
    seen: set[tuple[Any, ...]] = set()
    kept = []
    for timing in timings:
        key = (timing.device, timing.start_s, timing.type or timing.name, timing.duration_s)
        if timing.family == "collective" and timing.start_s is not None and key in seen:
            continue
        seen.add(key)
        kept.append(timing)
    return kept, len(timings) - len(kept)


def parse_operators(text: str, *, context: Context) -> Imported:
    """Return the operators of op_summary_*.csv or kernel_details.csv; matmuls and elementwise ones also as rows."""
    grid = csv_grid(text, context.name)
    faults, bad = Faults(), Faults()
    timings, n_repeated = _once(_timings(grid, faults, bad))
    if not timings and (faults or bad):
        raise (faults or bad).raised(f"{context.name} holds no usable operator")
    if not timings:
        raise MeasurementError(
            f"{context.name} holds no operator", expected="lines below the header", cure="Profile a longer run."
        )
    warnings = [str(fault) for fault in (*faults, *bad)]
    if n_repeated:
        warnings.append(f"{n_repeated} collectives are listed twice (once a stream) and count once")
    families: dict[str, float] = {}
    for timing in timings:
        families[timing.family] = families.get(timing.family, 0.0) + timing.duration_s * timing.n_calls
    facts = {"device_s_by_family": families, "n_operators": len(timings)}
    return Imported(
        format="msprof-operators",
        rows=operator_rows(timings, context, "operators", "cann"),
        operators=tuple(timings),
        facts=facts,
        warnings=tuple(warnings),
        bad_durations=tuple(bad),
    )


def parse_statistic(text: str, *, context: Context) -> Imported:
    """Return op_statistic_*.csv: one timing for each type of operator, the mean of all its calls."""
    grid = csv_grid(text, context.name)
    faults = Faults()
    timings = _statistic(grid, faults)
    if faults:
        raise faults.raised(f"{context.name} is no whole table of operator types")
    total = sum(t.duration_s * t.n_calls for t in timings)
    return Imported(format="msprof-statistic", operators=tuple(timings), facts={"device_s": total})


def _statistic(grid: Grid, faults: Faults) -> list[OperatorTiming]:
    at = _positions(grid, ("type", "duration", "calls"))
    found = []
    for line, row in grid.rows:
        mean, count = _number(row, at, "duration"), _number(row, at, "calls")
        if mean is None or count is None or not 0 <= mean < math.inf or not 1 <= count < _BIG_RUN**2:
            faults.add(f"line {line}", ", ".join(row), "a count and an average time in microseconds")
            continue
        kind = _text(row, at, "type")
        core, device = _text(row, at, "core"), _text(row, at, "device")
        found.append(
            OperatorTiming(name=kind, type=kind, duration_s=mean / 1e6, n_calls=int(count), core=core, device=device)
        )
    return found
