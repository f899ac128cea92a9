"""Replicas over the day as rows, a document and tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from perfmodel.plan.capacity import Growth, Policy, Scaled, needed_replicas, survives
from perfmodel.plan.demand import Demand, Targets
from perfmodel.plan.load_curve import LoadCurve
from perfmodel.plan.rating import Rating
from perfmodel.report.answer import setup_document, setup_text
from perfmodel.report.notes import note_parts, rate
from perfmodel.step.question import Case
from perfmodel.units import time_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

__all__ = ["ScaleView", "scale_document", "scale_rows", "scale_sheets", "scale_tables"]

_MOST_SHOWN: Final = 24


@dataclass(frozen=True, eq=False)
class ScaleView:
    """A case, its rating, a load and what an autoscaler makes of it."""

    case: Case
    demand: Demand
    targets: Targets
    rating: Rating
    load: LoadCurve
    policy: Policy
    spare: int
    scaled: Scaled
    growth: Growth | None
    usd_per_device_hour: float | None

    @property
    def devices_per_replica(self) -> int:
        """Devices of one replica."""
        return self.case.setup.layout.n_devices

    @cached_property
    def static_replicas(self) -> int:
        """Replicas that a fixed deployment needs for the peak, spare ones included."""
        return int(needed_replicas(self.load, self.rating, spare=self.spare).max())

    def usd(self, replica_hours: float) -> float | None:
        """Return what so many hours of a replica cost; None where no price is known."""
        price = self.usd_per_device_hour
        return None if price is None else price * replica_hours * self.devices_per_replica

    @property
    def static_hours(self) -> float:
        """Hours of replicas of the fixed deployment."""
        return self.static_replicas * self.load.duration_s / 3600.0


def scale_rows(view: ScaleView) -> list[dict[str, Any]]:
    """Return a row for each step of the load."""
    s = view.scaled
    needed = needed_replicas(view.load, view.rating, spare=view.spare)
    columns = {
        "time_s": view.load.time_s,
        "requests_per_s": view.load.requests_per_s,
        "needed_replicas": needed,
        "wanted_replicas": s.wanted,
        "paid_replicas": s.paid,
        "ready_replicas": s.ready,
        "served_requests_per_s": s.served_requests_per_s,
        "backlog_requests": s.backlog_requests,
        "wait_s": s.wait_s,
        "overloaded": s.overloaded,
    }
    names = list(columns)
    return [
        dict(zip(names, values, strict=True)) for values in zip(*(c.tolist() for c in columns.values()), strict=True)
    ]


def scale_document(view: ScaleView) -> dict[str, Any]:
    """Return everything with stable keys in base units, the steps in full."""
    s, rating, policy = view.scaled, view.rating, view.policy
    holds, share = survives(view.load, rating, view.static_replicas)
    return setup_document(view.case) | {
        "input_tokens": view.demand.input_tokens,
        "output_tokens": view.demand.output_tokens,
        "targets": {
            "ttft_s": view.targets.ttft_s,
            "tpot_s": view.targets.tpot_s,
            "e2e_s": view.targets.e2e_s,
            "percentile": view.targets.percentile,
        },
        "rating": {
            "capacity_requests_per_s": rating.capacity_requests_per_s,
            "target_requests_per_s": rating.target_requests_per_s,
            "mean_target_requests_per_s": rating.mean_target_requests_per_s,
            "headroom_frac": rating.headroom_frac,
            "percentiles": None
            if rating.simulated is None
            else {
                name: {f"p{p}": v for p, v in values.items()} for name, values in rating.simulated.percentiles.items()
            },
        },
        "load": {
            "peak_requests_per_s": view.load.peak_requests_per_s,
            "mean_requests_per_s": view.load.mean_requests_per_s,
            "duration_s": view.load.duration_s,
            "step_s": view.load.step_s,
        },
        "policy": {
            "target_requests_per_s": policy.target_requests_per_s,
            "min_replicas": policy.min_replicas,
            "max_replicas": policy.max_replicas,
            "start_s": policy.start_s,
            "down_window_s": policy.down_window_s,
            "up_window_s": policy.up_window_s,
            "tolerance_frac": policy.tolerance_frac,
            "metric": policy.metric,
        },
        "autoscaled": {
            "replica_hours": s.replica_hours,
            "device_hours": s.replica_hours * view.devices_per_replica,
            "usd": view.usd(s.replica_hours),
            "most_replicas": float(s.paid.max()),
            "least_replicas": float(s.paid.min()),
            "kept_frac": s.kept_frac,
            "longest_wait_s": float(s.wait_s.max()),
            "most_backlog_requests": float(s.backlog_requests.max()),
            "changes": s.changes,
            "survives_a_loss_frac": s.survived_frac(rating),
        },
        "fixed": {
            "n_replicas": view.static_replicas,
            "replica_hours": view.static_hours,
            "device_hours": view.static_hours * view.devices_per_replica,
            "usd": view.usd(view.static_hours),
            "survives_a_loss": holds,
            "load_after_a_loss_frac": share if np.isfinite(share) else None,
        },
        "growth": None if view.growth is None else [dict(row) for row in view.growth.rows],
        "months_to_limit": None if view.growth is None else view.growth.months_to_limit,
        "assumed": _assumed(view),
        "steps": scale_rows(view),
    }


def scale_sheets(view: ScaleView) -> dict[str, list[dict[str, Any]]]:
    """Return the sheets of the workbook: summary, steps, growth."""
    document = scale_document(view)
    summary = [
        {"figure": f"{part}.{name}", "value": value if isinstance(value, (int, float)) or value is None else str(value)}
        for part in ("targets", "rating", "load", "policy", "autoscaled", "fixed")
        for name, value in document[part].items()
        if not isinstance(value, dict)
    ]
    sheets: dict[str, list[dict[str, Any]]] = {"Summary": summary, "Steps": document["steps"]}
    if document["growth"] is not None:
        sheets["Growth"] = document["growth"]
    sheets["Assumed"] = [{"text": text} for text in document["assumed"]]
    return sheets


def _assumed(view: ScaleView) -> list[str]:
    found = [
        f"a replica is ready {time_text(view.policy.start_s)} after it is asked for",
        "requests come at random within a step (Poisson), and replicas share them evenly",
    ]
    if view.usd_per_device_hour is not None:
        found.append(f"{view.usd_per_device_hour:g} USD for a device and hour")
    return [*found, *view.case.assumed, f"calibration {view.case.calibration.name}"]


def _hours(view: ScaleView) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("from", "requests/s", "needed", "paid", "ready", "longest wait", "within targets"):
        table.add_column(name, justify="right")
    s, n = view.scaled, len(view.load.requests_per_s)
    needed = needed_replicas(view.load, view.rating, spare=view.spare)
    for part in np.array_split(np.arange(n), min(_MOST_SHOWN, n)):
        good = ~s.overloaded[part] & (s.backlog_requests[part] <= 0)
        wait = float(s.wait_s[part].max())
        table.add_row(
            _clock(float(view.load.time_s[part[0]])),
            rate(float(view.load.requests_per_s[part].mean())),
            f"{needed[part].max():g}",
            f"{s.paid[part].mean():.1f}",
            f"{s.ready[part].mean():.1f}",
            time_text(wait) if wait > 0 else "",
            f"{100 * float(good.mean()):.0f} %",
        )
    return table


def _clock(seconds: float) -> str:
    minutes = round(seconds / 60.0)
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def _money(usd: float | None) -> str:
    return "" if usd is None else f", {usd:,.2f} USD"


def scale_tables(view: ScaleView) -> Iterator[RenderableType]:
    """Yield the rating, the day, autoscaled against fixed, failures, growth and notes."""
    from rich.text import Text

    r, s, policy = view.rating, view.scaled, view.policy
    lengths = f"{view.demand.input_tokens:g} in, {view.demand.output_tokens:g} out"
    yield Text(f"{setup_text(view.case)}; {lengths}", style="bold")
    yield Text(
        f"One replica ({view.devices_per_replica} x {view.case.setup.devices[0].name}) is full at "
        f"{rate(r.capacity_requests_per_s)} requests/s and keeps the targets up to {rate(r.target_requests_per_s)}"
        + (f" (p{view.targets.percentile}, simulated)" if r.simulated is not None else " (mean, not simulated)")
    )
    yield Text(
        f"Load: {rate(view.load.mean_requests_per_s)} requests/s on average, "
        f"{rate(view.load.peak_requests_per_s)} at the peak, over {view.load.duration_s / 3600.0:.4g} h in steps of "
        f"{time_text(view.load.step_s)}"
    )
    yield _hours(view)
    hours, fixed = s.replica_hours, view.static_hours
    devices = view.devices_per_replica
    yield Text("Autoscaled", style="bold")
    yield Text(
        f"  {s.paid.min():g} to {s.paid.max():g} replicas at {rate(policy.target_requests_per_s)} requests/s each, "
        f"{hours:,.1f} replica hours = {hours * devices:,.1f} device hours{_money(view.usd(hours))}"
    )
    wait = float(s.wait_s.max())
    waited = f"; longest wait {time_text(wait)}" if wait > 0 else ""
    yield Text(f"  {100 * s.kept_frac:.2f} % of requests within the targets{waited}; {s.changes} changes of size")
    yield Text(f"  the targets survive the loss of a replica {100 * s.survived_frac(r):.0f} % of the time")
    yield Text(f"Fixed at the peak{f', {view.spare} spare' if view.spare else ''}", style="bold")
    saved = f"; autoscaling saves {100 * (1 - hours / fixed):.0f} %" if hours < fixed else ""
    yield Text(
        f"  {view.static_replicas} replicas, {fixed:,.1f} replica hours = {fixed * devices:,.1f} device hours"
        f"{_money(view.usd(fixed))}{saved}"
    )
    holds, share = survives(view.load, r, view.static_replicas)
    after = f"{100 * share:.0f} % of the rating" if np.isfinite(share) else "nothing left"
    yield Text(f"  after the loss of one at the peak: {after}, {'within' if holds else 'beyond'} the targets")
    if view.growth is not None:
        yield from _growth(view.growth, policy)
    yield from note_parts(_assumed(view), view.case.warnings)


def _growth(growth: Growth, policy: Policy) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text("Growth", style="bold")
    shown = [growth.rows[i] for i in sorted({0, 3, 6, 12, len(growth.rows) - 1}) if i < len(growth.rows)]
    for row in shown:
        yield Text(
            f"  month {row['month']:g}: {rate(row['peak_requests_per_s'])} requests/s at the peak, "
            f"{row['n_replicas']:g} replicas"
        )
    if growth.months_to_limit is not None:
        yield Text(f"  {policy.max_replicas} replicas no longer do in month {growth.months_to_limit}")
