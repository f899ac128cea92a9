"""One measured value under stated conditions, as an object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from perfmodel.measure.schema import ALWAYS, COLUMNS, KINDS

__all__ = ["Row", "missing_columns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a measurement table. Text that is not stated is "", a number that is not stated is None.

    >>> Row(id="a", kind="gemm", device="a100-80gb-sxm", m=1, n=2, k=3, metric="time_s", value=1e-6).k
    3
    """

    id: str = ""
    kind: str = ""
    device: str = ""
    n_devices: float | None = None
    link: str = ""
    model: str = ""
    runtime: str = ""
    compute_dtype: str = ""
    quantization: str = ""
    kv_dtype: str = ""
    tp: float | None = None
    pp: float | None = None
    ep: float | None = None
    dp: float | None = None
    batch: float | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    context_tokens: float | None = None
    query_tokens: float | None = None
    request_rate_per_s: float | None = None
    m: float | None = None
    n: float | None = None
    k: float | None = None
    n_heads: float | None = None
    n_kv_heads: float | None = None
    head_dim: float | None = None
    hidden: float | None = None
    intermediate: float | None = None
    n_experts: float | None = None
    top_k: float | None = None
    message_bytes: float | None = None
    n_instances: float | None = None
    layer: float | None = None
    variant: str = ""
    op: str = ""
    metric: str = ""
    value: float | None = None
    stderr: float | None = None
    n_repeats: float | None = None
    status: str = "ok"
    grade: str = ""
    source: str = ""
    note: str = ""

    def with_columns(self, **changes: Any) -> Row:
        """Return the row with some columns replaced."""
        return replace(self, **changes)

    def cells(self) -> dict[str, Any]:
        """Return what the row states, by column."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if value not in ("", None)}


def missing_columns(row: Row, constants: Mapping[str, object] | None = None) -> tuple[str, ...]:
    """Return the columns that the kind of a row needs and that neither the row nor `constants` fill."""
    stated = {*row.cells(), *(constants or {})}
    rule = KINDS.get(row.kind)
    needed = (*ALWAYS, *rule.required) if rule else ALWAYS
    lacking = [name for name in needed if name not in stated]
    lacking += [" or ".join(group) for group in (rule.wanted if rule else ()) if not stated & set(group)]
    return tuple(dict.fromkeys(lacking))


assert tuple(f.name for f in fields(Row)) == tuple(COLUMNS), "Row and COLUMNS must list the same columns in one order"
