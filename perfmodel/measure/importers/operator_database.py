"""Operator tables of Ascend planning tools: one CSV an operator, shapes quoted, average duration in microseconds.

Files start with a UTF-8 mark. Attention tables have columns of their own; zero KV heads stands for as many as query
heads. Mixture-of-experts tables count the experts of one device under Local Experts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

from perfmodel.errors import MeasurementError
from perfmodel.measure.importers.base import Context, Imported, named_rows
from perfmodel.measure.importers.operators import gemm_size
from perfmodel.measure.importers.reading import csv_grid, first_of, number_of
from perfmodel.measure.profile import dtype_name, shapes_from_text
from perfmodel.measure.row import Row
from perfmodel.measure.text import Faults

__all__ = ["parse"]

_DURATION: Final = "average duration(us)"
_QUANT: Final = {
    "bf16": ("bf16", "none"),
    "fp16": ("fp16", "none"),
    "w8a8": ("int8", "w8a8"),
    "w8a8_dynamic": ("int8", "w8a8"),
    "int8": ("int8", "w8a8"),
}


def _gemm(cells: Mapping[str, str], base: Row) -> Row | None:
    size = gemm_size(shapes_from_text(cells.get("input shapes", "")), shapes_from_text(cells.get("output shapes", "")))
    if size is None:
        return None
    batch, m, n, k = size
    dtypes = [dtype_name(word) for word in cells.get("input data types", "").split(";")]
    dtype, scheme = _QUANT.get(cells.get("quant type", "").lower(), (dtypes[0] if dtypes else "", ""))
    return base.with_columns(
        kind="gemm", op="matmul", m=m, n=n, k=k, batch=batch if batch > 1 else None,
        compute_dtype=base.compute_dtype or dtype, quantization=base.quantization or scheme,
    )  # fmt: skip


def _attention(cells: Mapping[str, str], base: Row) -> Row | None:
    numbers = {
        name: number_of(cells.get(name)) for name in ("batch", "seq len", "num heads", "num kv heads", "head size")
    }
    if any(numbers[name] is None for name in ("batch", "seq len", "num heads", "head size")):
        return None
    words = f"{cells.get('op type', '')} {base.variant}".lower()
    decode = "decode" in words or "paged" in words or "incre" in words
    length = numbers["seq len"]
    return base.with_columns(
        kind="attention",
        op="decode" if decode else "prefill",
        batch=numbers["batch"],
        query_tokens=1 if decode else length,
        context_tokens=length if decode else 0,
        n_heads=numbers["num heads"],
        n_kv_heads=numbers["num kv heads"] or numbers["num heads"],
        head_dim=numbers["head size"],
        compute_dtype=base.compute_dtype or dtype_name(cells.get("input data types", "").split(";")[0]),
    )


def _moe(cells: Mapping[str, str], base: Row) -> Row | None:
    tokens, hidden, width = (number_of(cells.get(n)) for n in ("num tokens", "hidden size", "intermediate size"))
    experts = number_of(first_of(cells, "local experts", "num experts"))
    if None in (tokens, hidden, width, experts):
        return None
    ep = number_of(cells.get("ep size"))
    return base.with_columns(
        kind="moe_ffn", query_tokens=tokens, hidden=hidden, intermediate=width, n_experts=experts,
        top_k=number_of(cells.get("topk")) or number_of(cells.get("top k")), ep=ep if ep and ep >= 1 else None,
        note="experts of one device",
    )  # fmt: skip


def _row(cells: Mapping[str, str], base: Row) -> Row | None:
    if "num tokens" in cells:
        return _moe(cells, base)
    return _attention(cells, base) if "num heads" in cells else _gemm(cells, base)


def parse(text: str, *, context: Context) -> Imported:
    """Return the lines of an operator table as matmul, attention or expert rows."""
    grid = csv_grid(text, context.name)
    headers = tuple(header.strip().lower() for header in grid.header)
    if _DURATION not in headers:
        raise MeasurementError(
            f"{context.name} is no operator table",
            got=", ".join(grid.header)[:120],
            expected="a column Average Duration(us)",
        )
    faults = Faults()
    operator = PurePath(context.file).stem
    stated: dict[str, Any] = {k: v for k, v in context.filled(runtime="cann").cells().items() if k != "batch"}
    base = Row(metric="time_s", variant=context.variant or operator, **stated)
    rows = []
    for line, row in grid.rows:
        cells = dict(zip(headers, row, strict=True))
        duration = number_of(cells[_DURATION])
        if duration is None or not 0 < duration < math.inf:
            faults.add(f"line {line}, Average Duration(us)", cells[_DURATION], "microseconds above 0")
            continue
        try:
            found = _row(cells, base)
        except ValueError as error:
            faults.add(
                f"line {line}, Input Shapes", cells.get("input shapes", ""), 'sizes such as "1,256;256,256"', str(error)
            )
            continue
        if found is None:
            faults.add(f"line {line}", ", ".join(row)[:70], "shapes of a matmul, of attention, or of experts")
        else:
            rows.append(found.with_columns(value=duration / 1e6))
    if faults and not rows:
        raise faults.raised(f"{context.name} holds no operator that can be read")
    facts = {"columns": grid.header}
    warnings = tuple(str(fault) for fault in faults)
    return Imported(
        format="operator-database", rows=named_rows(rows, context, "operator"), facts=facts, warnings=warnings
    )
