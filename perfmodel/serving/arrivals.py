"""Traffic: when requests arrive and how long they are. Every random draw takes the Generator it is given.

Open loop: arrivals come whether or not earlier requests are done. Closed loop: `max_in_flight` users, each of whom
sends the next request `think_ns` after the last one was answered. Both at once is what `vllm bench serve` does with a
rate and a `--max-concurrency`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite, pi
from typing import Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from perfmodel.errors import Fault, SpecError
from perfmodel.serving.prefix_cache import Prefixes
from perfmodel.units import NS_PER_S

__all__ = [
    "Tokens",
    "Trace",
    "constant_arrivals",
    "diurnal_arrivals",
    "empirical_lengths",
    "fixed_lengths",
    "gamma_arrivals",
    "lognormal_lengths",
    "on_off_arrivals",
    "poisson_arrivals",
    "simultaneous_arrivals",
    "uniform_lengths",
    "whole_ns",
]

Tokens = NDArray[np.int64]

_DIURNAL_POINTS: Final = 4096
_MOST_S: Final = 4e9
"""Half of what nanoseconds in 64 bits reach, so that the last request can be served as well."""
"""Points a period at which the cumulated rate of a day is tabulated."""


@dataclass(frozen=True, eq=False, slots=True)
class Trace:
    """Requests in order of arrival; raises SpecError for what cannot be served by anything.

    With `max_in_flight` a request is sent once it is due and one of so many users is free; its arrival counts from
    then. `think_ns`: how long the user who got the i-th request waits after its answer. `priority`: the lowest number
    is served first, where the scheduler heeds it. `prefixes`: what prompts have in common. `after`: the earlier request
    whose answer a request waits for, as the turns of a conversation do; -1 for none.
    """

    arrival_ns: NDArray[np.int64]
    input_tokens: Tokens
    output_tokens: Tokens
    max_in_flight: int | None = None
    think_ns: NDArray[np.int64] | None = None
    priority: NDArray[np.int64] | None = None
    prefixes: Prefixes | None = None
    after: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        faults = [*self._shape_faults()]
        if not faults:
            faults = [
                *_low(self.arrival_ns, 0, "arrival time"),
                *_low(self.input_tokens, 1, "input tokens"),
                *_low(self.output_tokens, 1, "output tokens"),
                *(_low(self.think_ns, 0, "think time") if self.think_ns is not None else ()),
                *self._order_faults(),
                *self._turn_faults(),
            ]
        if self.max_in_flight is not None and self.max_in_flight < 1:
            faults.append(Fault("max_in_flight", str(self.max_in_flight), "at least 1"))
        if self.max_in_flight is not None and self.after is not None:
            faults.append(Fault("max_in_flight", "beside turns that wait for answers", "one of the two"))
        if faults:
            raise SpecError("the traffic cannot be served", faults=faults)

    def __len__(self) -> int:
        return len(self.arrival_ns)

    @property
    def is_open(self) -> bool:
        """Whether arrivals do not wait for answers."""
        return self.max_in_flight is None and self.after is None

    @property
    def span_ns(self) -> int:
        """Time from the first to the last arrival."""
        return int(self.arrival_ns[-1] - self.arrival_ns[0])

    @property
    def requests_per_s(self) -> float | None:
        """Mean rate of arrival; None for all at once and for a closed loop."""
        return (len(self) - 1) * NS_PER_S / self.span_ns if self.is_open and self.span_ns > 0 else None

    @property
    def priorities(self) -> list[int]:
        """The priority of each request; 0 for all where none is stated."""
        return [0] * len(self) if self.priority is None else [int(p) for p in self.priority]

    def scaled(self, rate_factor: float) -> Trace:
        """Return the trace with requests coming `rate_factor` times as fast."""
        if not (isfinite(rate_factor) and rate_factor > 0):
            raise SpecError("the trace cannot be scaled", where="rate_factor", got=str(rate_factor), expected="above 0")
        return replace(self, arrival_ns=whole_ns(self.arrival_ns / rate_factor / NS_PER_S))

    def cut(self, n_requests: int) -> Trace:
        """Return the first `n_requests` requests."""
        return self.picked(slice(0, n_requests))

    def picked(self, which: slice | NDArray[np.int64]) -> Trace:
        """Return some of the requests."""
        think_ns, priority, prefixes = self.think_ns, self.priority, self.prefixes
        after = self.after
        if after is not None:
            place = np.full(len(self) + 1, -1)
            place[:-1][which] = np.arange(len(self.arrival_ns[which]))
            after = place[after[which]]
        return Trace(
            self.arrival_ns[which],
            self.input_tokens[which],
            self.output_tokens[which],
            self.max_in_flight,
            None if think_ns is None else think_ns[which],
            None if priority is None else priority[which],
            None if prefixes is None else prefixes.picked(which),
            after,
        )

    def closed(self, n_users: int, *, think_ns: NDArray[np.int64] | None = None) -> Trace:
        """Return the trace as sent by `n_users` users, each waiting for an answer before the next request."""
        return replace(self, max_in_flight=n_users, think_ns=think_ns)

    def _shape_faults(self) -> list[Fault]:
        n = len(self.arrival_ns)
        if n == 0:
            return [Fault("trace", "no requests", "at least one")]
        columns = {
            "arrival_ns": self.arrival_ns,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "think_ns": self.think_ns,
            "priority": self.priority,
            "after": self.after,
        }
        faults = []
        for name, column in columns.items():
            if column is None:
                continue
            if column.shape != (n,):
                faults.append(Fault(name, f"shape {column.shape}", f"one figure for each of {n} requests"))
            elif column.dtype != np.int64:
                faults.append(Fault(name, str(column.dtype), "int64", "Round times to whole nanoseconds."))
        if self.prefixes is not None and len(self.prefixes.group) != n:
            faults.append(Fault("prefixes", f"of {len(self.prefixes.group)} requests", f"of all {n}"))
        return faults

    def _order_faults(self) -> list[Fault]:
        back = np.flatnonzero(np.diff(self.arrival_ns) < 0)
        if not len(back):
            return []
        i = int(back[0]) + 1
        got = f"{self.arrival_ns[i]} ns after {self.arrival_ns[i - 1]} ns"
        return [Fault(f"request {i}", got, "arrivals in order", "Sort the requests by arrival.")]

    def _turn_faults(self) -> list[Fault]:
        if self.after is None:
            return []
        places = np.arange(len(self))
        wrong = np.flatnonzero((self.after < -1) | (self.after >= places))
        faults = [Fault(f"request {i}", f"after request {self.after[i]}", "an earlier one, or -1") for i in wrong[:1]]
        waited = self.after[self.after >= 0]
        if len(np.unique(waited)) < len(waited):
            faults.append(Fault("after", "two requests wait for the same answer", "one"))
        return faults


def _low(column: NDArray[np.int64], least: int, what: str) -> list[Fault]:
    bad = np.flatnonzero(column < least)
    if not len(bad):
        return []
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    return [Fault(f"request {bad[0]}{more}", f"{what} {column[bad[0]]}", f"at least {least}")]


def _checked(n_requests: int, **above_zero: float) -> None:
    faults = [
        Fault(name, f"{value:g}", "a finite number above 0")
        for name, value in above_zero.items()
        if not (isfinite(value) and value > 0)
    ]
    if n_requests < 1:
        faults.append(Fault("n_requests", str(n_requests), "at least 1"))
    if faults:
        raise SpecError("the traffic cannot be drawn", faults=faults)


def whole_ns(times_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return times in whole nanoseconds; raises SpecError for those that a clock of 64 bits does not reach.

    >>> whole_ns(np.array([0.0, 1.5])).tolist()
    [0, 1500000000]
    """
    most_s = float(np.max(np.abs(times_s), initial=0.0))
    if not most_s <= _MOST_S:
        got, expected = f"{most_s:.4g} s after the first one", f"at most {_MOST_S:g} s"
        raise SpecError("a request comes too late to be simulated", got=got, expected=expected)
    times_ns: NDArray[np.int64] = np.rint(times_s * NS_PER_S).astype(np.int64)
    return times_ns


def _from_first(times_s: NDArray[np.float64]) -> NDArray[np.int64]:
    return whole_ns(times_s - times_s[0])


def simultaneous_arrivals(n_requests: int) -> NDArray[np.int64]:
    """Return arrival times for requests that are all there at the start."""
    _checked(n_requests)
    return np.zeros(n_requests, np.int64)


def constant_arrivals(n_requests: int, *, requests_per_s: float) -> NDArray[np.int64]:
    """Return arrival times at equal distances, in nanoseconds from the first.

    >>> constant_arrivals(3, requests_per_s=4.0).tolist()
    [0, 250000000, 500000000]
    """
    _checked(n_requests, requests_per_s=requests_per_s)
    return _from_first(np.arange(n_requests) / requests_per_s)


def gamma_arrivals(n_requests: int, *, requests_per_s: float, burstiness: float, rng: Generator) -> NDArray[np.int64]:
    """Return arrival times with gamma-distributed gaps of shape `burstiness`, as `vllm bench serve` draws them.

    1 is a Poisson process; below 1 requests come in bursts, above 1 more evenly.
    """
    _checked(n_requests, requests_per_s=requests_per_s, burstiness=burstiness)
    gaps = rng.gamma(burstiness, 1.0 / (requests_per_s * burstiness), n_requests)
    return _from_first(np.cumsum(gaps))


def poisson_arrivals(n_requests: int, *, requests_per_s: float, rng: Generator) -> NDArray[np.int64]:
    """Return arrival times of a Poisson process: exponential gaps."""
    _checked(n_requests, requests_per_s=requests_per_s)
    return _from_first(np.cumsum(rng.exponential(1.0 / requests_per_s, n_requests)))


def on_off_arrivals(
    n_requests: int, *, requests_per_s: float, on_s: float, off_s: float, rng: Generator
) -> NDArray[np.int64]:
    """Return arrival times that are Poisson for `on_s` and silent for `off_s`, in turn.

    `requests_per_s` is the rate while on; the mean rate is lower by on / (on + off).
    """
    _checked(n_requests, requests_per_s=requests_per_s, on_s=on_s, off_s=off_s)
    busy = np.cumsum(rng.exponential(1.0 / requests_per_s, n_requests))
    return _from_first(busy + np.floor(busy / on_s) * off_s)


def diurnal_arrivals(
    n_requests: int, *, requests_per_s: float, swing_frac: float, period_s: float, rng: Generator
) -> NDArray[np.int64]:
    """Return Poisson arrival times whose rate is requests_per_s x (1 - swing_frac cos(2 pi t / period_s)).

    Drawn by inverting the cumulated rate, tabulated at fixed points of a period.
    """
    _checked(n_requests, requests_per_s=requests_per_s, period_s=period_s)
    if not 0 <= swing_frac <= 1:
        raise SpecError("the traffic cannot be drawn", where="swing_frac", got=str(swing_frac), expected="from 0 to 1")
    phase = np.linspace(0.0, 1.0, _DIURNAL_POINTS + 1)
    passed = phase - swing_frac * np.sin(2 * pi * phase) / (2 * pi)
    mean_units = np.cumsum(rng.exponential(1.0, n_requests)) / (requests_per_s * period_s)
    whole = np.floor(mean_units)
    return _from_first((whole + np.interp(mean_units - whole, passed, phase)) * period_s)


def fixed_lengths(n_requests: int, *, tokens: int) -> Tokens:
    """Return the same length for every request."""
    _checked(n_requests, tokens=tokens)
    return np.full(n_requests, tokens, np.int64)


def uniform_lengths(n_requests: int, *, low_tokens: int, high_tokens: int, rng: Generator) -> Tokens:
    """Return whole lengths drawn evenly from low to high, both included."""
    _checked(n_requests, low_tokens=low_tokens, high_tokens=high_tokens)
    if high_tokens < low_tokens:
        got = f"{low_tokens} to {high_tokens}"
        raise SpecError("the traffic cannot be drawn", where="lengths", got=got, expected="low <= high")
    return rng.integers(low_tokens, high_tokens, n_requests, endpoint=True, dtype=np.int64)


def lognormal_lengths(
    n_requests: int, *, mean_tokens: float, sigma: float, rng: Generator, most_tokens: int | None = None
) -> Tokens:
    """Return log-normal lengths with this mean and this standard deviation of the logarithm, at least 1.

    Lengths beyond `most_tokens` are cut to it, which lowers the mean.
    """
    _checked(n_requests, mean_tokens=mean_tokens, sigma=sigma)
    drawn = rng.lognormal(np.log(mean_tokens) - sigma * sigma / 2, sigma, n_requests)
    return np.clip(np.rint(drawn), 1, most_tokens).astype(np.int64)


def empirical_lengths(
    n_requests: int, *, input_tokens: Tokens, output_tokens: Tokens, rng: Generator
) -> tuple[Tokens, Tokens]:
    """Return (input, output) lengths drawn with replacement from observed pairs, so that they stay correlated."""
    _checked(n_requests)
    if not len(input_tokens) or len(input_tokens) != len(output_tokens):
        got = f"{len(input_tokens)} inputs, {len(output_tokens)} outputs"
        raise SpecError("the traffic cannot be drawn", where="lengths", got=got, expected="as many of both, at least 1")
    picked = rng.integers(0, len(input_tokens), n_requests)
    return input_tokens[picked].astype(np.int64), output_tokens[picked].astype(np.int64)
