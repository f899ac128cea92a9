"""Operator timings with known shapes as rows of the measurement table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, prod
from typing import Any, Final

from perfmodel.measure.importers.base import Context, named_rows
from perfmodel.measure.profile import OperatorTiming, Shape
from perfmodel.measure.row import Row
from perfmodel.measure.schema import DTYPES

__all__ = ["gemm_size", "operator_rows"]

_ELEMENTWISE: Final = {"norm": "rmsnorm", "rope": "rope", "activation": "act_fn", "softmax": "softmax"}


def gemm_size(shapes: Sequence[Shape], outputs: Sequence[Shape] = ()) -> tuple[int, int, int, int] | None:
    """Return (batch, m, n, k) of a matmul from the shapes of its operands; the second may be stored transposed.

    None where shapes do not fit each other, as for weights in the blocked NZ format.

    >>> gemm_size([(16, 4096), (4096, 12288)])
    (1, 16, 12288, 4096)
    >>> gemm_size([(16, 4096), (12288, 4096)], [(16, 12288)])
    (1, 16, 12288, 4096)
    """
    if len(shapes) < 2 or len(shapes[0]) < 2 or len(shapes[1]) < 2:
        return None
    first, second = shapes[0], shapes[1]
    m, k, batch = first[-2], first[-1], prod(first[:-2])
    out = outputs[0] if outputs and len(outputs[0]) >= 2 else None
    if len(second) == 2 and len(first) > 2:
        m, batch = batch * m, 1
    if len(second) == 4 and out is not None and prod(second) == k * out[-1]:
        return batch, m, out[-1], k  # weights in 16 x 16 blocks (FRACTAL_NZ): only the product of their sizes is known
    if len(second) not in (2, len(first)):
        return None
    rows, columns = second[-2], second[-1]
    if rows == k and (columns != k or out is None or out[-1] == columns):
        return (batch, m, columns, k) if out is None or out[-1] in (columns, k) else None
    if columns == k:
        return batch, m, rows, k
    if first[-2] == rows and out is not None:  # first operand stored transposed
        return batch, first[-1], columns, rows
    return None


def _gemm(timing: OperatorTiming, base: Row) -> Row | None:
    size = gemm_size(timing.input_shapes, timing.output_shapes)
    if size is None or not base.compute_dtype or 0 in size:
        return None
    batch, m, n, k = size
    cells: dict[str, Any] = {"batch": batch} if batch > 1 else {}
    return base.with_columns(kind="gemm", m=m, n=n, k=k, **cells)


def _elementwise(timing: OperatorTiming, base: Row) -> Row | None:
    shape = timing.input_shapes[0] if timing.input_shapes else ()
    if len(shape) < 2 or 0 in shape:
        return None
    op = _ELEMENTWISE[timing.family]
    return base.with_columns(kind="elementwise", op=op, query_tokens=prod(shape[:-1]), hidden=shape[-1])


_READERS: Final = {"gemm": _gemm, **dict.fromkeys(_ELEMENTWISE, _elementwise)}


def operator_rows(timings: Iterable[OperatorTiming], context: Context, default: str, runtime: str) -> tuple[Row, ...]:
    """Return a row for each timing whose shapes say what was computed; times of equal operators are averaged."""
    cells = context.filled(runtime=runtime).cells()
    base = {k: v for k, v in cells.items() if k not in ("batch", "input_tokens", "output_tokens", "context_tokens")}
    groups: dict[tuple[Any, ...], list[OperatorTiming]] = {}
    for timing in timings:
        if timing.family in _READERS and timing.input_shapes and 0 < timing.duration_s < inf:
            key = (timing.type, timing.family, timing.input_shapes, timing.output_shapes, timing.input_dtypes)
            groups.setdefault(key, []).append(timing)
    rows = [row for group in groups.values() if (row := _group_row(group, base)) is not None]
    return named_rows(rows, context, default)


def _group_row(group: Sequence[OperatorTiming], cells: Mapping[str, Any]) -> Row | None:
    """Return the mean of equal operators as a row, None where the shapes do not say what was computed."""
    first = group[0]
    dtype = cells.get("compute_dtype") or next(iter(first.input_dtypes), "")
    known = dtype if dtype in DTYPES else ""
    row = _READERS[first.family](first, Row(metric="time_s", variant=first.type, **{**cells, "compute_dtype": known}))
    if row is None:
        return None
    n_calls = sum(timing.n_calls for timing in group)
    return row.with_columns(value=sum(t.duration_s * t.n_calls for t in group) / n_calls, n_repeats=n_calls)
