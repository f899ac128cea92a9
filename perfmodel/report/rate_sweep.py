"""Latency over request rate as a table, a document, rows and a picture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from perfmodel.report.answer import setup_document, setup_text
from perfmodel.report.notes import note_parts, rate
from perfmodel.report.serving import LIMIT_WORDS
from perfmodel.serving.deployment import ServingCase
from perfmodel.serving.metrics import DEFINITIONS
from perfmodel.serving.rate_sweep import KNEE_FACTOR, RatePoint, RateSweep
from perfmodel.serving.result_row import result_row
from perfmodel.units import time_text

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["rate_sweep_document", "rate_sweep_rows", "rate_sweep_tables"]

_COLUMNS = (("ttft_s", 50), ("ttft_s", 95), ("tpot_s", 50), ("tpot_s", 95), ("e2e_s", 50), ("e2e_s", 95))


def rate_sweep_rows(sweep: RateSweep) -> Iterator[dict[str, Any]]:
    """Yield a row for each rate, with stable keys in base units."""
    for point in sweep.points:
        yield {"request_rate_per_s": point.requests_per_s, **result_row(point.result)}


def rate_sweep_document(serving: ServingCase, sweep: RateSweep) -> dict[str, Any]:
    """Return the sweep with stable keys in base units."""
    slo = sweep.slo
    return setup_document(serving.case) | {
        "calibration": serving.case.calibration.name,
        "policy": serving.setup.policy,
        "n_requests": len(sweep.points[0].result.run.trace),
        "capacity_requests_per_s": sweep.capacity_requests_per_s,
        "knee_requests_per_s": sweep.knee_requests_per_s,
        "best_requests_per_s": sweep.best_requests_per_s,
        "highest_requests_per_s": sweep.highest_requests_per_s,
        "slo": None if slo is None else {"ttft_s": slo.ttft_s, "tpot_s": slo.tpot_s, "e2e_s": slo.e2e_s},
        "slo_frac": sweep.slo_frac,
        "points": list(rate_sweep_rows(sweep)),
        "definitions": dict(DEFINITIONS) | {"knee_requests_per_s": _knee_definition()},
        "assumed": list(serving.assumed),
        "warnings": list(serving.warnings),
    }


def rate_sweep_tables(serving: ServingCase, sweep: RateSweep, *, what: str) -> Iterator[RenderableType]:
    """Yield what `sweep-rate` prints: heading, a line for each rate, the knee, the largest rate in the objectives."""
    from rich.table import Table
    from rich.text import Text

    yield Text(f"{setup_text(serving.case)}; {what}; calibration {serving.case.calibration.name}", style="bold")
    table = Table(box=None, pad_edge=False)
    heads = ("sent/s", "done/s", *(f"{name[:-2].upper()} p{p}" for name, p in _COLUMNS))
    for head in (*heads, *(("in SLO",) if sweep.slo is not None else ())):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("requests wait for", no_wrap=True)
    for point in sweep.points:
        table.add_row(*_cells(point, with_slo=sweep.slo is not None))
    yield table
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_column(no_wrap=True)
    facts.add_column()
    facts.add_row("All at once", f"{rate(sweep.capacity_requests_per_s)} requests/s done")
    facts.add_row("Knee", _rate_text(sweep, sweep.knee_requests_per_s, below="nothing"))
    if sweep.slo is not None:
        best = _rate_text(sweep, sweep.best_requests_per_s, below="not even the lowest rate")
        facts.add_row("Within objectives", f"{best} ({100 * sweep.slo_frac:g} % of the requests)")
    yield facts
    yield Text(f"Knee: {_knee_definition()}", style="dim")
    yield from note_parts(serving.assumed, serving.warnings)


def _cells(point: RatePoint, *, with_slo: bool) -> list[str]:
    result = point.result
    times = [result.spreads[name].percentiles[p] for name, p in _COLUMNS]
    cells = [rate(point.requests_per_s), rate(result.requests_per_s)]
    cells += ["-" if time is None else time_text(time) for time in times]
    if with_slo:
        cells.append("-" if result.goodput_frac is None else f"{100 * result.goodput_frac:.3g} %")
    limit = LIMIT_WORDS[result.binding_limit]
    return [*cells, limit if result.is_stable else f"{limit}, piles up"]


def _rate_text(sweep: RateSweep, found: float | None, *, below: str) -> str:
    if found is None:
        return below
    beyond = "at least " if found >= sweep.highest_requests_per_s else ""
    return f"{beyond}{rate(found)} requests/s"


def _knee_definition() -> str:
    return (
        f"largest rate at which nothing piles up and the mean end-to-end time is at most {KNEE_FACTOR:g} times that of "
        "the lowest rate"
    )
