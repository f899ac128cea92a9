"""What has to be served: requests of one shape, at a rate or from so many users, and how well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, isfinite
from typing import Final

from perfmodel.errors import Fault, SpecError
from perfmodel.estimate import Num, ceiling

__all__ = ["LATENCIES", "Demand", "Targets"]

LATENCIES: Final = ("ttft_s", "tpot_s", "e2e_s")
PERCENTILES: Final = (50, 90, 95, 99)
_ROUNDING: Final = 1e-9
"""A count of replicas that is above a whole number by less than this is that number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Equal requests, either at a rate (open loop) or from users who each wait for an answer (closed loop).

    A user sends the next request `think_s` after the last answer; with 0 so many requests are always in flight.
    """

    input_tokens: float
    output_tokens: float
    requests_per_s: float | None = None
    n_users: float | None = None
    think_s: float = 0.0
    spread_frac: float = 0.0
    """Lengths are even within this share of their mean; the steady state counts the mean, the simulation all."""

    def __post_init__(self) -> None:
        faults = []
        for name in ("input_tokens", "output_tokens"):
            value = getattr(self, name)
            if not (isfinite(value) and value >= 1 and value == int(value)):
                faults.append(Fault(name.replace("_", " "), f"{value:g}", "a whole number of at least 1"))
        if (self.requests_per_s is None) == (self.n_users is None):
            got = "neither" if self.n_users is None else "both"
            faults.append(Fault("demand", got, "a rate of requests or a number of concurrent users"))
        if self.requests_per_s is not None and not (isfinite(self.requests_per_s) and self.requests_per_s > 0):
            faults.append(Fault("request rate", f"{self.requests_per_s:g}", "requests per second above 0"))
        if self.n_users is not None and not (isfinite(self.n_users) and self.n_users >= 1):
            faults.append(Fault("concurrent users", f"{self.n_users:g}", "at least 1"))
        if not 0 <= self.spread_frac <= 1:
            faults.append(Fault("length spread", f"{self.spread_frac:g}", "a fraction from 0 to 1"))
        if not (isfinite(self.think_s) and self.think_s >= 0):
            faults.append(Fault("think time", f"{self.think_s:g}", "0 seconds or more"))
        if self.requests_per_s is not None and self.think_s > 0:
            faults.append(
                Fault("think time", f"{self.think_s:g} s beside a request rate", "a number of users", "Leave it out.")
            )
        if faults:
            raise SpecError("the demand cannot be planned for", faults=faults)

    @property
    def length_tokens(self) -> float:
        """Tokens of a whole request."""
        return self.input_tokens + self.output_tokens

    @property
    def longest_tokens(self) -> float:
        """Tokens of the longest request of the mix."""
        return ceil(self.input_tokens * (1 + self.spread_frac)) + ceil(self.output_tokens * (1 + self.spread_frac))

    def replicas(self, *, in_flight: Num, requests_per_s: Num) -> Num:
        """Return the fewest replicas of which each serves at most so many requests at once, or so many a second.

        Users: U / (in flight + rate x think time), since a user is either waiting or thinking. Broadcasts.

        >>> Demand(input_tokens=1, output_tokens=1, n_users=200).replicas(in_flight=30.0, requests_per_s=1.0)
        7.0
        """
        if self.n_users is not None:
            needed: Num = self.n_users / (in_flight + requests_per_s * self.think_s)
        else:
            assert self.requests_per_s is not None  # held by __post_init__
            needed = self.requests_per_s / requests_per_s
        return ceiling(needed - _ROUNDING)

    def served_per_s(self, *, e2e_s: Num) -> Num:
        """Return requests per second that are served in all: the rate asked for, or U / (end to end + think time)."""
        if self.requests_per_s is not None:
            return self.requests_per_s + 0.0 * e2e_s
        assert self.n_users is not None
        return self.n_users / (e2e_s + self.think_s)

    def text(self) -> str:
        """Return the demand in words."""
        lengths = f"{self.input_tokens:g} tokens in, {self.output_tokens:g} out"
        if self.requests_per_s is not None:
            return f"{self.requests_per_s:g} requests/s of {lengths}"
        think = f" who think {self.think_s:g} s between requests" if self.think_s else ""
        return f"{self.n_users:g} concurrent users{think}, {lengths}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What a plan must keep: latencies at a percentile (seconds), devices, money, and what is to be had.

    None: any will do. `available` counts devices by name; a device that is not named in it is not limited.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    percentile: int = 95
    max_devices: int = 64
    budget_usd_per_hour: float | None = None
    available: Mapping[str, int] = field(default_factory=dict)
    confidence_frac: float = 0.0
    """Probability that the latencies are kept, given the bands; 0 asks for none."""

    def __post_init__(self) -> None:
        faults = []
        for name in (*LATENCIES, "budget_usd_per_hour"):
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and value > 0):
                faults.append(Fault(name, f"{value:g}", "a number above 0"))
        if self.percentile not in PERCENTILES:
            faults.append(Fault("percentile", str(self.percentile), f"one of {', '.join(map(str, PERCENTILES))}"))
        if self.max_devices < 1:
            faults.append(Fault("devices", str(self.max_devices), "at least 1"))
        if not 0 <= self.confidence_frac < 1:
            faults.append(Fault("confidence", f"{self.confidence_frac:g}", "from 0 to below 1"))
        faults += [Fault(f"available {n}", str(c), "0 or more") for n, c in self.available.items() if c < 0]
        if faults:
            raise SpecError("the targets cannot be used", faults=faults)

    def devices_of(self, name: str) -> int:
        """Return how many devices of that name a plan may use."""
        return min(self.max_devices, self.available.get(name, self.max_devices))
