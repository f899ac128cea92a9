"""What one replica carries: the rate at which it is full, and the highest rate at which it keeps the targets."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final

from perfmodel.errors import Fault, InfeasibleError
from perfmodel.plan.demand import LATENCIES, Demand, Targets
from perfmodel.plan.finalists import Simulated, simulated_replica
from perfmodel.plan.inverse import bisected
from perfmodel.plan.search import open_loop_at
from perfmodel.plan.space import Candidate
from perfmodel.units import time_text

__all__ = ["Rating", "rating_of"]

_LEAST_FRAC: Final = 1e-4
"""Of the capacity: a replica that misses the targets even then is said to miss them alone."""
_FULL_FRAC: Final = 0.98
"""Of the capacity, at most: nearer to it the queue of a random arrival process has no end."""
_TRIES: Final = 12
_STEP_BACK: Final = 0.93
"""The rate is lowered by this factor until the simulated percentiles keep the targets."""


@dataclass(frozen=True, slots=True)
class Rating:
    """Requests per second of one replica: `capacity` where it is full, `target` up to which it keeps the targets.

    `mean_target` is where the mean alone keeps them; `simulated` is what the simulation says at the target.
    """

    capacity_requests_per_s: float
    target_requests_per_s: float
    mean_target_requests_per_s: float
    simulated: Simulated | None

    @property
    def headroom_frac(self) -> float:
        """Share of the capacity that the targets leave unused."""
        return 1.0 - self.target_requests_per_s / self.capacity_requests_per_s


def rating_of(
    candidate: Candidate, demand: Demand, targets: Targets, *, simulate: bool = True, seed: int = 0
) -> Rating:
    """Return the rating of one replica for requests like those of the demand (whose rate or users do not count).

    Raises InfeasibleError where even a single request misses a target.
    """
    tiny = open_loop_at(candidate, demand, 1e-9)
    capacity = float(tiny.capacity_requests_per_s)

    def excess(rate: float) -> float:
        point = open_loop_at(candidate, demand, rate)
        ratios = [
            float(getattr(point, name[:-2]).value) / most
            for name in LATENCIES
            if (most := getattr(targets, name)) is not None
        ]
        return max(ratios, default=0.0) - 1.0

    low, high = _LEAST_FRAC * capacity, _FULL_FRAC * capacity
    if excess(low) > 0:
        raise InfeasibleError(
            "one replica misses the targets with a single request", faults=_alone(candidate, demand, targets)
        )
    found = high if excess(high) <= 0 else bisected(excess, low, high, rel_width=1e-6)
    mean_target = high if found is None else found
    if not simulate:
        return Rating(capacity, mean_target, mean_target, None)
    rate = mean_target
    simulation: Simulated | None = None
    for _ in range(_TRIES):
        load = Demand(
            input_tokens=demand.input_tokens,
            output_tokens=demand.output_tokens,
            requests_per_s=rate,
            spread_frac=demand.spread_frac,
        )
        e2e_s = float(open_loop_at(candidate, load, rate).e2e.value)
        simulation, _ = simulated_replica(candidate, load, n_replicas=1, e2e_s=e2e_s, seed=seed)
        if not simulation.misses(targets):
            return Rating(capacity, rate, mean_target, simulation)
        rate *= _STEP_BACK if simulation.is_stable else sqrt(_STEP_BACK) * _STEP_BACK
    raise InfeasibleError(
        "one replica misses the targets at every load that was simulated",
        got=simulation.misses(targets) if simulation is not None else "",
        expected=f"p{targets.percentile} within the targets at {rate:.3g} requests/s",
        cure="Loosen the targets, or take a faster layout.",
    )


def _alone(candidate: Candidate, demand: Demand, targets: Targets) -> list[Fault]:
    point = open_loop_at(candidate, demand, 1e-9)
    return [
        Fault(name, time_text(float(getattr(point, name[:-2]).value)), f"at most {time_text(most)}")
        for name in LATENCIES
        if (most := getattr(targets, name)) is not None and float(getattr(point, name[:-2]).value) > most
    ]
