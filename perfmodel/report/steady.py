"""Steady serving as a table, rows and a document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from perfmodel.estimate import Bound, Estimate, bound_shares
from perfmodel.report.answer import setup_document, setup_text
from perfmodel.report.notes import note_parts, rate
from perfmodel.serving.steady_case import SteadyCase
from perfmodel.units import time_text

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import RenderableType

__all__ = ["steady_document", "steady_rows", "steady_tables"]

_FLAGS: Final = ("kv_limited", "seqs_limited", "needs_simulation", "stable")


def steady_rows(found: SteadyCase, load: NDArray[np.float64], *, is_open: bool) -> list[dict[str, Any]]:
    """Return a row for each load: figures in base units with their bands (None where not stable), flags, bounds."""
    n, one, n_replicas = len(load), found.one, found.case.n_replicas

    def column(values: Any) -> list[float | None]:
        full = np.broadcast_to(np.asarray(values, dtype=np.float64), (n,))
        return [float(v) if np.isfinite(v) else None for v in full]

    columns: dict[str, list[Any]] = {"request_rate_per_s" if is_open else "max_concurrency": column(load)}
    for name, (value, low, high) in found.figures().items():
        columns |= {name: column(value), f"{name}_low": column(low), f"{name}_high": column(high)}
    columns |= {
        "concurrency": column(one.concurrency * n_replicas),
        "running": column(one.running * n_replicas),
        "steps_with_prompts_frac": column(one.prompt_frac),
        "token_budget_frac": column(one.budget_frac),
    }
    if is_open:
        columns |= {
            "load_frac": column(one.load_frac),
            "capacity_requests_per_s": column(one.capacity_requests_per_s * n_replicas),
            "growth_requests_per_s": column(one.growth_requests_per_s * n_replicas),
        }
    columns |= {name: [bool(v) for v in column(getattr(one, name))] for name in _FLAGS}
    columns |= {"ttft_bound": _bounds(one.ttft, n), "tpot_bound": _bounds(one.tpot, n)}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _bounds(tree: Estimate, n: int) -> list[str]:
    shares = bound_shares(tree)
    names: list[Bound] = list(shares)
    table = np.stack([np.broadcast_to(np.asarray(share, dtype=np.float64), (n,)) for share in shares.values()])
    return [names[i].value for i in np.argmax(table, axis=0)]


def steady_document(found: SteadyCase, load: NDArray[np.float64], *, is_open: bool) -> dict[str, Any]:
    """Return everything with stable keys in base units."""
    work, plan = found.case.workload, found.plan
    return setup_document(found.case) | {
        "calibration": found.case.calibration.name,
        "input_tokens": work.input_tokens,
        "output_tokens": work.output_tokens,
        "max_num_seqs": plan.limits.max_num_seqs,
        "max_num_batched_tokens": plan.limits.max_num_batched_tokens,
        "kv_tokens": plan.kv_tokens * plan.n_pools * found.case.n_replicas,
        "rows": steady_rows(found, load, is_open=is_open),
        "assumed": list(found.assumed),
        "warnings": list(found.warnings),
    }


def steady_tables(found: SteadyCase, load: NDArray[np.float64], *, is_open: bool) -> Iterator[RenderableType]:
    """Yield who and what, a row for each load, and what was assumed."""
    from rich.table import Table
    from rich.text import Text

    work = found.case.workload
    yield Text(
        f"{setup_text(found.case)}; {work.input_tokens:g} in, {work.output_tokens:g} out, steady state; "
        f"calibration {found.case.calibration.name}"
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    heads = ("req/s" if is_open else "users", "TTFT", "80 % band", "TPOT", "80 % band", "tokens/s")
    for name in (*heads, "in flight" if is_open else "req/s", "bound by", ""):
        table.add_column(name, justify="left" if name in ("bound by", "") else "right", no_wrap=True)
    for row in steady_rows(found, load, is_open=is_open):
        asked = row["request_rate_per_s" if is_open else "max_concurrency"]
        other = row["concurrency" if is_open else "requests_per_s"]
        times = [cell for name in ("ttft_s", "tpot_s") for cell in _time_cells(row, name)]
        bound = row["tpot_bound"] if row["stable"] else "not stable"
        table.add_row(f"{asked:g}", *times, rate(row["output_tokens_per_s"]), rate(other), bound, _flag(row))
    yield table
    yield from note_parts(found.assumed, found.warnings)


def _time_cells(row: dict[str, Any], name: str) -> tuple[str, str]:
    if row[name] is None:
        return "-", "-"
    low, high = (time_text(row[f"{name}_{end}"]).split(" ") for end in ("low", "high"))
    return time_text(row[name]), f"{low[0]}{'' if low[1] == high[1] else ' ' + low[1]}..{high[0]} {high[1]}"


def _flag(row: dict[str, Any]) -> str:
    if not row["stable"]:
        return f"queue +{rate(row['growth_requests_per_s'])}/s"
    if row["kv_limited"]:
        return "KV cache full"
    return "max_num_seqs full" if row["seqs_limited"] else ""
