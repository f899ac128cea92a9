"""Operator timings with known shapes as rows of the measurement table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, Final

from perfmodel.measure.importers.base import Context, named_rows
from perfmodel.measure.profile import OperatorTiming, Shape
from perfmodel.measure.row import Row

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
    if size is None or not timing.input_dtypes or 0 in size:
        return None
    batch, m, n, k = size
    cells: dict[str, Any] = {"batch": batch} if batch > 1 else {}
    return base.with_columns(
        kind="gemm", m=m, n=n, k=k, compute_dtype=base.compute_dtype or timing.input_dtypes[0], **cells
    )


def _elementwise(timing: OperatorTiming, base: Row) -> Row | None:
    shape = timing.input_shapes[0] if timing.input_shapes else ()
    if len(shape) < 2 or 0 in shape:
        return None
    op = _ELEMENTWISE[timing.family]
    return base.with_columns(kind="elementwise", op=op, query_tokens=prod(shape[:-1]), hidden=shape[-1])


_READERS: Final = {"gemm": _gemm, **dict.fromkeys(_ELEMENTWISE, _elementwise)}


def operator_rows(timings: Iterable[OperatorTiming], context: Context, default: str, runtime: str) -> tuple[Row, ...]:
    """Return a row for each timing whose shapes say what was computed; times of equal operators are averaged."""
    stated = context.filled(runtime=runtime)
    groups: dict[Row, list[float]] = {}
    weights: dict[Row, int] = {}
    for timing in timings:
        reader = _READERS.get(timing.family)
        if reader is None or not 0 < timing.duration_s < float("inf"):
            continue
        cells = {k: v for k, v in stated.cells().items() if k not in ("batch", "input_tokens", "output_tokens")}
        dtype = stated.compute_dtype or (timing.input_dtypes[0] if timing.input_dtypes else "")
        row = reader(timing, Row(metric="time_s", variant=timing.type, **{**cells, "compute_dtype": dtype}))
        if row is not None:
            groups.setdefault(row, []).append(timing.duration_s * timing.n_calls)
            weights[row] = weights.get(row, 0) + timing.n_calls
    rows = [row.with_columns(value=sum(times) / weights[row], n_repeats=weights[row]) for row, times in groups.items()]
    return named_rows(rows, context, default)
