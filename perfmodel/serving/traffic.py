"""Traffic as a few numbers: how many requests, how fast, how long, from which seed; drawn into a trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.errors import SpecError
from perfmodel.serving.arrivals import Tokens, Trace, gamma_arrivals, simultaneous_arrivals, uniform_lengths

__all__ = ["Traffic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requests whose lengths are drawn evenly within a share of their mean.

    `requests_per_s` None: all at once. `burstiness`: shape of the gamma distribution of gaps, 1 for a Poisson process.
    With `max_in_flight` so many users wait for an answer before the next request.

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

    def trace(self) -> Trace:
        """Return the requests, the same for the same seed; raises SpecError for numbers that make no traffic."""
        if not 0 <= self.length_spread_frac <= 1:
            raise SpecError(
                "the traffic cannot be drawn",
                where="length_spread_frac",
                got=f"{self.length_spread_frac:g}",
                expected="from 0 to 1",
            )
        rng, n = np.random.default_rng(self.seed), self.n_requests
        if self.requests_per_s is None:
            arrival = simultaneous_arrivals(n)
        else:
            arrival = gamma_arrivals(n, requests_per_s=self.requests_per_s, burstiness=self.burstiness, rng=rng)
        trace = Trace(arrival, self._lengths(self.input_tokens, rng), self._lengths(self.output_tokens, rng))
        return trace if self.max_in_flight is None else trace.closed(self.max_in_flight)

    def _lengths(self, tokens: float, rng: np.random.Generator) -> Tokens:
        low, high = (max(1, round(tokens * (1 + side * self.length_spread_frac))) for side in (-1, 1))
        return uniform_lengths(self.n_requests, low_tokens=low, high_tokens=high, rng=rng)
