"""What certainty costs: replicas with which the targets are met with a wanted probability."""

from __future__ import annotations

from math import ceil
from typing import Final

from perfmodel.estimate import exposure
from perfmodel.plan.demand import Demand, Targets
from perfmodel.plan.finalists import Finalist
from perfmodel.plan.robustness import Likelihood, likelihood
from perfmodel.plan.search import Plan, open_loop_at, point_at

__all__ = ["likelihood_with", "sure_replicas"]

_MOST_TIMES: Final = 64
"""More replicas than so many times those of the plan are not searched."""


def likelihood_with(finalist: Finalist, demand: Demand, targets: Targets, n_replicas: int) -> Likelihood:
    """Return how likely the targets are met with another number of replicas of the same layout.

    Times of the steady state, in the ratio that the simulation found between percentile and mean at the planned number.
    """
    if demand.requests_per_s is not None:
        point = open_loop_at(finalist.candidate, demand, demand.requests_per_s / n_replicas)
    else:
        assert demand.n_users is not None
        point = point_at(finalist.candidate, demand, float(ceil(demand.n_users / n_replicas)))
    ratios = {"ttft_s": 1.0, "tpot_s": 1.0}
    if finalist.simulated is not None:
        for name in ratios:
            mean = float(getattr(finalist.point, name[:-2]).value)
            ratios[name] = finalist.simulated.percentiles[name][targets.percentile] / mean
    return likelihood(
        ttft_s=float(point.ttft.value) * ratios["ttft_s"],
        tpot_s=float(point.tpot.value) * ratios["tpot_s"],
        ttft_exposure={k: v * point.e2e_gain for k, v in exposure(point.ttft).items()},
        tpot_exposure={k: v * point.tpot_gain for k, v in exposure(point.tpot).items()},
        most_ttft_s=targets.ttft_s,
        most_tpot_s=targets.tpot_s,
    )


def sure_replicas(plan: Plan, finalist: Finalist, probability: float) -> int | None:
    """Return the fewest replicas with which the targets are met that likely; None where no number helps.

    More replicas never make it less likely, so that the number is found by halving.
    """
    demand = plan.demand

    def holds(n_replicas: int) -> bool:
        return likelihood_with(finalist, demand, plan.targets, n_replicas).both >= probability

    low, high = finalist.n_replicas, finalist.n_replicas * _MOST_TIMES
    if demand.n_users is not None:
        high = max(low, min(high, int(demand.n_users)))
    if holds(low):
        return low
    if not holds(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
