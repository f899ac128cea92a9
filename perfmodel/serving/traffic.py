"""Traffic as a few numbers: how many requests, how fast, how long, from which seed; drawn into a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import SpecError
from perfmodel.serving.arrivals import (
    Tokens,
    Trace,
    constant_arrivals,
    diurnal_arrivals,
    gamma_arrivals,
    lognormal_lengths,
    on_off_arrivals,
    simultaneous_arrivals,
    uniform_lengths,
)

__all__ = ["Arrivals", "Lengths", "Traffic"]


Arrivals = Literal["gamma", "constant", "on-off", "diurnal"]
Lengths = Literal["uniform", "lognormal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requests drawn from a seed.

    `requests_per_s` None: all at once; else the mean rate. `burstiness`: shape of the gamma distribution of gaps, 1 for
    a Poisson process. On-off arrivals are Poisson for `on_s` and silent for `off_s`; diurnal ones swing by `swing_frac`
    around the mean over `period_s`. Lengths are drawn evenly within `length_spread_frac` of their mean, or log-normal
    with `input_sigma` and `output_sigma`, cut at `most_tokens`. With `max_in_flight` so many users wait for an answer
    before the next request.

    >>> traffic = Traffic(n_requests=3, input_tokens=10.0, output_tokens=5.0)
    >>> traffic.trace().input_tokens.tolist()
    [10, 10, 10]
    """

    n_requests: int
    input_tokens: float
    output_tokens: float
    requests_per_s: float | None = None
    burstiness: float = 1.0
    length_spread_frac: float = 0.0
    max_in_flight: int | None = None
    seed: int = 0
    arrivals: Arrivals = "gamma"
    on_s: float = 10.0
    off_s: float = 10.0
    swing_frac: float = 0.5
    period_s: float = 86400.0
    lengths: Lengths = "uniform"
    input_sigma: float = 1.0
    output_sigma: float = 1.0
    most_tokens: int | None = None

    def trace(self) -> Trace:
        """Return the requests, the same for the same seed; raises SpecError for numbers that make no traffic."""
        if not 0 <= self.length_spread_frac <= 1:
            raise SpecError(
                "the traffic cannot be drawn",
                where="length_spread_frac",
                got=f"{self.length_spread_frac:g}",
                expected="from 0 to 1",
            )
        rng = np.random.default_rng(self.seed)
        arrival_ns = self._arrival_ns(rng)
        inputs = self._lengths(self.input_tokens, self.input_sigma, rng)
        trace = Trace(arrival_ns, inputs, self._lengths(self.output_tokens, self.output_sigma, rng))
        return trace if self.max_in_flight is None else trace.closed(self.max_in_flight)

    def _arrival_ns(self, rng: np.random.Generator) -> NDArray[np.int64]:
        n, rate = self.n_requests, self.requests_per_s
        if rate is None:
            return simultaneous_arrivals(n)
        match self.arrivals:
            case "constant":
                return constant_arrivals(n, requests_per_s=rate)
            case "on-off":
                on_rate = rate * (self.on_s + self.off_s) / self.on_s
                return on_off_arrivals(n, requests_per_s=on_rate, on_s=self.on_s, off_s=self.off_s, rng=rng)
            case "diurnal":
                return diurnal_arrivals(
                    n, requests_per_s=rate, swing_frac=self.swing_frac, period_s=self.period_s, rng=rng
                )
            case _:
                return gamma_arrivals(n, requests_per_s=rate, burstiness=self.burstiness, rng=rng)

    def _lengths(self, tokens: float, sigma: float, rng: np.random.Generator) -> Tokens:
        if self.lengths == "lognormal":
            most = self.most_tokens
            return lognormal_lengths(self.n_requests, mean_tokens=tokens, sigma=sigma, rng=rng, most_tokens=most)
        low, high = (max(1, round(tokens * (1 + side * self.length_spread_frac))) for side in (-1, 1))
        return uniform_lengths(self.n_requests, low_tokens=low, high_tokens=high, rng=rng)
