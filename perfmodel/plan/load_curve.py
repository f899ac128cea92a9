"""Demand over time: requests per second in even steps, drawn from a daily rhythm, a trace or a table, and growth."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isfinite, pi

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import Fault, SpecError

__all__ = ["LoadCurve", "counted", "diurnal", "sampled"]

Floats = NDArray[np.float64]

_MOST_STEPS = 1_000_000
"""Steps of a curve: half a year of 15-second steps."""


@dataclass(frozen=True, eq=False, slots=True)
class LoadCurve:
    """Mean requests per second in steps of equal length, in order; raises SpecError for what is no load."""

    step_s: float
    requests_per_s: Floats

    def __post_init__(self) -> None:
        n = len(self.requests_per_s)
        faults = []
        if not (isfinite(self.step_s) and self.step_s > 0):
            faults.append(Fault("step", f"{self.step_s:g} s", "a time above 0"))
        if not 1 <= n <= _MOST_STEPS:
            faults.append(Fault("steps", str(n), f"from 1 to {_MOST_STEPS}", "Take longer steps."))
        elif not np.all(np.isfinite(self.requests_per_s) & (self.requests_per_s >= 0)):
            faults.append(Fault("requests per second", "a number below 0, or none", "finite numbers of at least 0"))
        elif not np.any(self.requests_per_s > 0):
            faults.append(Fault("requests per second", "0 throughout", "some load"))
        if faults:
            raise SpecError("the load over time cannot be used", faults=faults)

    @property
    def time_s(self) -> Floats:
        """Start of each step."""
        return self.step_s * np.arange(float(len(self.requests_per_s)))

    @property
    def duration_s(self) -> float:
        """Length of the whole curve."""
        return self.step_s * len(self.requests_per_s)

    @property
    def peak_requests_per_s(self) -> float:
        """The highest step."""
        return float(self.requests_per_s.max())

    @property
    def mean_requests_per_s(self) -> float:
        """Mean over the whole curve."""
        return float(self.requests_per_s.mean())

    def scaled(self, factor: float) -> LoadCurve:
        """Return the curve with every rate multiplied."""
        return LoadCurve(self.step_s, self.requests_per_s * factor)


def _steps(duration_s: float, step_s: float) -> int:
    if not (isfinite(duration_s) and isfinite(step_s) and 0 < step_s <= duration_s):
        got = f"{duration_s:g} s in steps of {step_s:g} s"
        raise SpecError("the load over time cannot be used", got=got, expected="a step no longer than the whole")
    n = ceil(duration_s / step_s - 1e-9)
    if n > _MOST_STEPS:
        got = f"{duration_s:g} s in steps of {step_s:g} s"
        raise SpecError("the load over time cannot be used", got=got, expected=f"at most {_MOST_STEPS} steps")
    return n


def diurnal(
    *,
    peak_requests_per_s: float,
    swing_frac: float,
    period_s: float = 86_400.0,
    step_s: float = 15.0,
    n_periods: int = 1,
) -> LoadCurve:
    """Return mean x (1 - swing cos(2 pi t / period)) with the given peak: lowest at the start, highest half-way.

    >>> day = diurnal(peak_requests_per_s=10.0, swing_frac=0.6, step_s=3600.0)
    >>> round(day.peak_requests_per_s, 2), round(float(day.requests_per_s.min()), 2)
    (9.97, 2.53)
    """
    if not 0 <= swing_frac <= 1:
        raise SpecError(
            "the load over time cannot be used", where="swing", got=f"{swing_frac:g}", expected="from 0 to 1"
        )
    if not peak_requests_per_s > 0 or not isfinite(peak_requests_per_s):
        got = f"{peak_requests_per_s:g}"
        raise SpecError("the load over time cannot be used", where="peak", got=got, expected="above 0")
    n = _steps(period_s * n_periods, step_s)
    middle = (np.arange(n) + 0.5) * step_s
    shape = 1.0 - swing_frac * np.cos(2.0 * pi * middle / period_s)
    return LoadCurve(step_s, peak_requests_per_s / (1.0 + swing_frac) * shape)


def counted(arrival_s: Floats, *, step_s: float) -> LoadCurve:
    """Return the rate of arrivals counted in steps, from the first arrival on; a last part of a step is left out.

    >>> counted(np.array([0.0, 1.0, 2.0, 12.0, 20.0]), step_s=10.0).requests_per_s.tolist()
    [0.3, 0.1]
    """
    since = np.asarray(arrival_s, dtype=np.float64) - float(np.min(arrival_s))
    n = int(float(since.max()) / step_s)
    if n < 1:
        got = f"{since.max():g} s"
        raise SpecError("the trace is shorter than one step", got=got, expected=f"at least {step_s:g} s")
    _steps(n * step_s, step_s)
    counts = np.bincount((since / step_s).astype(np.int64), minlength=n)[:n]
    return LoadCurve(step_s, counts / step_s)


def sampled(time_s: Floats, requests_per_s: Floats, *, step_s: float) -> LoadCurve:
    """Return a table of times and rates in even steps, straight lines between its points."""
    time = np.asarray(time_s, dtype=np.float64)
    if len(time) < 2 or np.any(np.diff(time) <= 0) or not np.all(np.isfinite(time)):
        raise SpecError(
            "the load over time cannot be used", where="time", expected="at least two times in growing order"
        )
    n = _steps(float(time[-1] - time[0]), step_s)
    middle = time[0] + (np.arange(n) + 0.5) * step_s
    return LoadCurve(step_s, np.interp(middle, time, requests_per_s))
