"""Latency over request rate: the same requests sent faster and faster, until the deployment no longer keeps up.

Every rate serves the same lengths and the same arrival pattern, drawn once and compressed in time, so that two points
differ by the rate alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Final

import numpy as np

from perfmodel.bisection import turn
from perfmodel.errors import SpecError
from perfmodel.serving.arrivals import Trace
from perfmodel.serving.clock import Clock
from perfmodel.serving.engine import ServingSetup, simulated
from perfmodel.serving.metrics import ServingResult, Slo, serving_result
from perfmodel.serving.records import Told

__all__ = ["RatePoint", "RateSweep", "rate_sweep"]

KNEE_FACTOR: Final = 2.0
"""The knee: mean end-to-end time is so many times that of the lowest rate; waiting then takes as long as service."""
_LOWEST_FRAC, _HIGHEST_FRAC = 0.05, 1.2
"""Rates that are swept where none are stated, as shares of the throughput when all requests come at once."""
_CLOSE_FRAC: Final = 0.01
"""Bisection ends where the rate is known to so much."""


@dataclass(frozen=True, slots=True)
class RatePoint:
    """The figures of one rate. `requests_per_s` is the rate at which requests are sent."""

    requests_per_s: float
    result: ServingResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSweep:
    """Points in order of rate, and what follows from them.

    `capacity_requests_per_s` is the throughput when all requests come at once, their first and last waves included.
    `knee_requests_per_s` is the largest rate at which nothing piles up and the mean end-to-end time is at most
    `KNEE_FACTOR` times that of the lowest rate; `best_requests_per_s` the largest one at which a share `slo_frac` of
    the requests meets the objectives. None: not reached at the lowest rate, or no objective was stated. A value equal
    to the highest rate means that the limit lies beyond it.
    """

    points: tuple[RatePoint, ...]
    capacity_requests_per_s: float
    knee_requests_per_s: float | None
    best_requests_per_s: float | None
    slo: Slo | None
    slo_frac: float

    @property
    def highest_requests_per_s(self) -> float:
        """The largest rate that was simulated."""
        return self.points[-1].requests_per_s


def rate_sweep(
    trace: Trace,
    setup: ServingSetup,
    clock: Clock,
    *,
    rates_per_s: Sequence[float] = (),
    n_points: int = 20,
    slo: Slo | None = None,
    slo_frac: float = 0.95,
    told: Told | None = None,
) -> RateSweep:
    """Return the trace served at each rate; without rates at `n_points` of them, up to beyond capacity.

    Raises SpecError for a trace whose requests all come at once, a closed loop, and rates that are not above zero.
    """
    own = trace.requests_per_s
    if own is None or not trace.is_open:
        raise SpecError("no rate can be swept", got="a trace without a rate of its own", expected="an open loop")
    if any(not (isfinite(rate) and rate > 0) for rate in rates_per_s) or (not rates_per_s and n_points < 2):
        raise SpecError("no rate can be swept", where="rates", expected="rates above 0, or at least 2 points")
    if not 0 < slo_frac <= 1:
        raise SpecError("no rate can be swept", where="slo_frac", got=f"{slo_frac:g}", expected="above 0, at most 1")

    def served(one: Trace) -> ServingResult:
        return serving_result(simulated(one, setup, clock, told=told), slo=slo)

    def at(rate: float) -> RatePoint:
        return RatePoint(rate, served(trace.scaled(rate / own)))

    capacity = served(replace(trace, arrival_ns=np.zeros_like(trace.arrival_ns))).requests_per_s
    if not capacity:
        raise SpecError("no rate can be swept", got="no request is served", expected="requests that fit the engine")
    rates = sorted(rates_per_s) or np.linspace(_LOWEST_FRAC * capacity, _HIGHEST_FRAC * capacity, n_points).tolist()
    points = tuple(at(rate) for rate in rates)
    idle_s = points[0].result.spreads["e2e_s"].mean or 0.0

    def before_knee(point: RatePoint) -> bool:
        mean_s = point.result.spreads["e2e_s"].mean
        return point.result.is_stable and mean_s is not None and mean_s <= KNEE_FACTOR * idle_s

    def good(point: RatePoint) -> bool:
        return point.result.is_stable and (point.result.goodput_frac or 0.0) >= slo_frac

    return RateSweep(
        points=points,
        capacity_requests_per_s=capacity,
        knee_requests_per_s=_largest(before_knee, points, at),
        best_requests_per_s=None if slo is None else _largest(good, points, at),
        slo=slo,
        slo_frac=slo_frac,
    )


def _largest(
    meets: Callable[[RatePoint], bool], points: Sequence[RatePoint], at: Callable[[float], RatePoint]
) -> float | None:
    """Return the largest rate up to which all points meet a condition, to `_CLOSE_FRAC`; None where the first fails."""
    fails = next((i for i, point in enumerate(points) if not meets(point)), None)
    if fails == 0:
        return None
    if fails is None:
        return points[-1].requests_per_s
    low, high = points[fails - 1].requests_per_s, points[fails].requests_per_s
    return turn(lambda rate: meets(at(rate)), low, high, rel_width=_CLOSE_FRAC)[0]
