"""Text output of nccl-tests and hccl_test: times of collectives against message size.

Bandwidths are computed anew from bytes and time, never read: versions of hccl_test print GiB/s under the heading GB/s.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from perfmodel.errors import MeasurementError
from perfmodel.measure.importers.base import Context, Imported, named_rows
from perfmodel.measure.importers.reading import number_of
from perfmodel.measure.row import Row
from perfmodel.measure.text import Faults
from perfmodel.units import GB, GIB

__all__ = [
    "Point",
    "bus_factor",
    "implied_ranks",
    "non_monotone_sizes",
    "parse_hccl",
    "parse_nccl",
    "unit_of_bandwidth",
]

_OPS: Final = {
    "all_reduce": ("all_reduce", "allreduce"), "all_gather": ("all_gather", "allgather"),
    "reduce_scatter": ("reduce_scatter", "reducescatter"), "all_to_all": ("alltoall", "all_to_all"),
    "broadcast": ("broadcast",), "send_recv": ("sendrecv", "send_recv"), "reduce": ("reduce_perf", "reduce_test"),
    "scatter": ("scatter",), "gather": ("gather",),
}  # fmt: skip
_DTYPES: Final = {
    "float": "fp32",
    "half": "fp16",
    "bfloat16": "bf16",
    "float16": "fp16",
    "fp32": "fp32",
    "fp16": "fp16",
    "int8": "int8",
    "double": "fp64",
}


@dataclass(frozen=True, slots=True)
class Point:
    """One size of a sweep; `bandwidth_printed` is what the tool printed as algorithm bandwidth, in its own unit."""

    line: int
    message_bytes: float
    time_s: float
    bandwidth_printed: float | None = None
    bus_printed: float | None = None
    dtype: str = ""
    is_wrong: bool = False

    @property
    def bytes_per_s(self) -> float:
        """Algorithm bandwidth: bytes over time."""
        return self.message_bytes / self.time_s


def bus_factor(op: str, n_ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth of an operation.

    >>> bus_factor("all_reduce", 32)
    1.9375
    """
    if op == "all_reduce":
        return 2.0 * (n_ranks - 1) / n_ranks
    return (n_ranks - 1) / n_ranks if op in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


def implied_ranks(bus_over_algorithm: float, op: str = "all_reduce") -> int | None:
    """Return the number of ranks that a ratio of bus to algorithm bandwidth implies, None where it implies none.

    >>> implied_ranks(98.34 / 50.76)
    32
    """
    share = bus_over_algorithm / 2.0 if op == "all_reduce" else bus_over_algorithm
    if not 0.45 < share < 1.0:
        return None
    return min(range(2, 4097), key=lambda n: abs((n - 1) / n - share))


def unit_of_bandwidth(message_bytes: float, time_s: float, printed: float) -> float | None:
    """Return the unit in bytes per second behind a printed bandwidth: 1e9, 2**30, or None where neither fits.

    >>> unit_of_bandwidth(8192, 764.55e-6, 0.00998) == 2**30
    True
    """
    if printed <= 0:
        return None
    unit = message_bytes / time_s / printed
    near = min((GB, GIB), key=lambda u: abs(unit / u - 1))
    return near if abs(unit / near - 1) < 0.03 else None


def non_monotone_sizes(points: Sequence[tuple[float, float]]) -> tuple[float, ...]:
    """Return the sizes at which bandwidth falls below that of a smaller size by more than 3 %: a change of protocol."""
    dips, best = [], 0.0
    for size, bandwidth in sorted(points):
        if bandwidth < best * 0.97:
            dips.append(size)
        best = max(best, bandwidth)
    return tuple(dips)


def _op(text: str, context: Context) -> str:
    if context.op:
        return context.op
    words = f"{context.file}\n{text}".lower()
    return next((op for op, names in _OPS.items() if any(name in words for name in names)), "")


def _ranks(text: str, context: Context) -> int | None:
    """Return ranks as stated, else as the header lists them ("# Rank 0 Group ..."), else by mpirun's -n."""
    if context.n_devices is not None:
        return context.n_devices
    listed = re.findall(r"^#\s+Rank\s+(\d+)\b", text, re.MULTILINE)
    if listed:
        return len(set(listed))
    flag = re.search(r"(?:mpirun|mpiexec)[^\n]*?\s-np?\s+(\d+)|rank_?size[ :=]+(\d+)", text)
    return int(flag[1] or flag[2]) if flag else None


_NCCL_ROW: Final = re.compile(r"^\s*\d+\s+\d+\s+[a-z]\w*\s")


def _nccl_points(text: str, faults: Faults) -> tuple[list[Point], list[Point]]:
    """Return (out-of-place, in-place) points of nccl-tests."""
    outside: list[Point] = []
    inside: list[Point] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not _NCCL_ROW.match(line):
            continue
        words = line.split()
        start = next((i for i in range(3, len(words)) if "." in words[i]), len(words))
        sides = (words[start : start + 4], words[start + 4 : start + 8])
        if len(sides[0]) < 3:
            faults.add(
                f"line {number}",
                line.strip(),
                "size count type redop root time algbw busbw #wrong",
                "The output is cut off.",
            )
            continue
        for side, points in zip(sides, (outside, inside), strict=True):
            values = [number_of(word) for word in side]
            if len(side) >= 3 and values[0] is not None and 0 < values[0] < inf:
                wrong = len(side) > 3 and bool(values[3])
                dtype = _DTYPES.get(words[2], "")
                points.append(Point(number, float(words[0]), values[0] / 1e6, values[1], values[2], dtype, wrong))
    return outside, inside


def parse_nccl(text: str, *, context: Context) -> Imported:
    """Return the out-of-place times of an nccl-tests run; ranks come from its header or the ratio of bandwidths."""
    faults = Faults()
    outside, inside = _nccl_points(text, faults)
    average = re.search(r"Avg bus bandwidth\s*:\s*(\S+)", text)
    mean = number_of(average[1]) if average else None
    warnings = []
    if mean == 0 or (average and mean is None):
        warnings.append("the average bus bandwidth is 0: the run measured nothing, or only empty messages")
    points = [p for p in outside or inside if p.message_bytes > 0]
    if faults and not points:
        raise faults.raised(f"{context.name} is no whole nccl-tests output")
    warnings += [str(fault) for fault in faults]
    op = _op(text, context)
    ratios = [p.bus_printed / p.bandwidth_printed for p in points[-4:] if p.bus_printed and p.bandwidth_printed]
    ranks = _ranks(text, context) or (implied_ranks(ratios[-1], op or "all_reduce") if ratios else None)
    facts = {"avg_bus_bandwidth_bytes_per_s": None if mean is None else mean * GB, "n_ranks": ranks}
    usable = not (average and not mean)
    return _collectives(points, context, op, ranks, "nccl-tests", "nccl", facts, warnings, usable)


def parse_hccl(text: str, *, context: Context) -> Imported:
    """Return the times of a hccl_test run; the heading spells aveg_time (the binary) or avg_time (documents)."""
    faults = Faults()
    columns: list[str] = []
    points = []
    for number, line in enumerate(text.splitlines(), start=1):
        cells = [cell.strip() for cell in re.split(r"\|", line.strip().strip("|"))]
        if "data_size" in line:
            columns = [re.sub(r"[^a-z_]", "", cell.lower().split("(")[0]) for cell in cells]
        elif columns and cells and number_of(cells[0 if columns[0] == "data_size" else -1]) is not None:
            point = _hccl_point(number, dict(zip(columns, cells, strict=False)), faults)
            if point is not None:
                points.append(point)
    if faults:
        raise faults.raised(f"{context.name} is no whole hccl_test output")
    units = {unit_of_bandwidth(p.message_bytes, p.time_s, p.bandwidth_printed) for p in points if p.bandwidth_printed}
    warnings = []
    if GIB in units:
        warnings.append("alg_bandwidth is printed in GiB/s although headed GB/s: bytes over time are used")
    ranks = _ranks(text, context)
    facts = {"n_ranks": ranks, "bandwidth_unit_bytes": max((u for u in units if u), default=None)}
    return _collectives(points, context, _op(text, context), ranks, "hccl-test", "hccl", facts, warnings, usable=True)


def _hccl_point(line: int, cells: dict[str, str], faults: Faults) -> Point | None:
    time_us = number_of(cells.get("aveg_time") or cells.get("avg_time") or "")
    size = number_of(cells.get("data_size", ""))
    if time_us is None or size is None:
        faults.add(
            f"line {line}",
            " | ".join(cells.values()),
            "data_size | aveg_time | alg_bandwidth | check_result",
            "The output is cut off.",
        )
        return None
    failed = "fail" in cells.get("check_result", "").lower()
    usable = 0 < time_us < inf and size > 0
    return (
        Point(line, size, time_us / 1e6, number_of(cells.get("alg_bandwidth", "")), None, "", failed)
        if usable
        else None
    )


def _collectives(
    points: Sequence[Point], context: Context, op: str, ranks: int | None, format_name: str, runtime: str,
    facts: dict[str, Any], warnings: list[str], usable: bool,
) -> Imported:  # fmt: skip
    if not points and usable:
        raise MeasurementError(f"{context.name} holds no line of a sweep", expected="lines of size and time")
    cells = {**context.filled(runtime=runtime).cells(), "n_devices": ranks}
    base = Row(kind="collective", op=op, metric="time_s", **cells)
    rows = [
        base.with_columns(
            message_bytes=p.message_bytes,
            value=p.time_s,
            compute_dtype=context.compute_dtype or p.dtype,
            status="invalid" if p.is_wrong or not usable else "ok",
            note="the result was wrong" if p.is_wrong else "",
        )
        for p in points
    ]
    if any(p.is_wrong for p in points):
        warnings.append("some results were wrong: those rows are invalid")
    dips = non_monotone_sizes([(p.message_bytes, p.bytes_per_s) for p in points])
    if dips:
        warnings.append(
            f"bandwidth falls at {', '.join(f'{size:.0f}' for size in dips[:4])} bytes: another protocol, or disturbed"
        )
    facts |= {"op": op, "non_monotone_bytes": dips, "usable": usable and bool(points)}
    if points:
        best = max(points, key=lambda p: p.bytes_per_s)
        facts["best_algorithm_bytes_per_s"] = best.bytes_per_s
        if op and ranks:
            facts["best_bus_bytes_per_s"] = best.bytes_per_s * bus_factor(op, ranks)
    return Imported(
        format=format_name,
        rows=named_rows(rows, context, format_name),
        facts=facts,
        warnings=tuple(warnings),
        usable_for_fit=usable,
    )
