"""Replicas of a Kubernetes HorizontalPodAutoscaler, as documented, against what a replica can serve.

    desired = ceil(current x metric / target), unless |metric / target - 1| <= tolerance; then kept between min and max

`metric` is the mean over replicas of what is scaled on, `target` its wanted value. Source: Kubernetes documentation,
"Horizontal Pod Autoscaling", algorithm details; the default tolerance is 0.1. Delays, windows of stabilisation and
policies of scaling are not modelled: this is where the count settles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import SpecError
from perfmodel.estimate import Num, ceiling, larger, smaller
from perfmodel.step.answer import Figure, answer_to
from perfmodel.step.question import Case
from perfmodel.step.request import request_estimate

__all__ = ["Autoscaler", "ReplicaCapacity", "batches_up_to", "desired_replicas", "replica_capacity"]

DEFAULT_TOLERANCE_FRAC: Final = 0.1
"""Of the controller, where a deployment states none."""
MOST_BATCH: Final = 256
"""Largest batch tried for the capacity: beyond it a rate grows little, and latencies much."""
_MOST_ROUNDS: Final = 1000


def desired_replicas(
    n_replicas: Num, *, metric: Num, target: float, tolerance_frac: float = DEFAULT_TOLERANCE_FRAC
) -> Num:
    """Return how many replicas one round of the controller asks for, before limits. Values broadcast.

    >>> desired_replicas(50.0, metric=90.0, target=75.0)
    60.0
    >>> desired_replicas(50.0, metric=80.0, target=75.0)
    50.0
    """
    ratio = metric / target
    keeps = np.abs(ratio - 1.0) <= tolerance_frac
    found = np.where(keeps, n_replicas, ceiling(n_replicas * ratio))
    return float(found) if isinstance(n_replicas, float) and isinstance(metric, float) else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscaler:
    """A HorizontalPodAutoscaler on requests per second of one replica.

    Raises SpecError where the limits or the target cannot be.
    """

    min_replicas: int
    max_replicas: int
    target_requests_per_s: float
    tolerance_frac: float = DEFAULT_TOLERANCE_FRAC

    def __post_init__(self) -> None:
        if not 1 <= self.min_replicas <= self.max_replicas:
            raise SpecError(
                "the autoscaler's limits cannot be",
                got=f"min {self.min_replicas}, max {self.max_replicas}",
                expected="1 <= min <= max",
            )
        if not self.target_requests_per_s > 0.0 or not 0.0 <= self.tolerance_frac < 1.0:
            raise SpecError(
                "the autoscaler's target cannot be used",
                got=f"target {self.target_requests_per_s:g}, tolerance {self.tolerance_frac:g}",
                expected="a target above 0 and a tolerance from 0 to below 1",
            )

    def step(self, n_replicas: Num, served_requests_per_s: Num) -> Num:
        """Return the replicas after one round, with so many requests per second over all of them."""
        asked = desired_replicas(
            n_replicas,
            metric=served_requests_per_s / n_replicas,
            target=self.target_requests_per_s,
            tolerance_frac=self.tolerance_frac,
        )
        return smaller(larger(asked, float(self.min_replicas)), float(self.max_replicas))

    def settled(self, load_requests_per_s: float, *, capacity_requests_per_s: float = float("inf")) -> float:
        """Return where the count settles under a steady load, starting at the minimum.

        A replica serves at most its capacity, so that the metric never shows more than that: with a target above the
        capacity the controller sees idle replicas where there is a queue.

        >>> Autoscaler(min_replicas=2, max_replicas=12, target_requests_per_s=10.0).settled(55.0)
        6.0
        >>> hpa = Autoscaler(min_replicas=2, max_replicas=12, target_requests_per_s=250.0)
        >>> hpa.settled(1000.0, capacity_requests_per_s=11.0)
        2.0
        """
        n: Num = float(self.min_replicas)
        for _ in range(_MOST_ROUNDS):
            after = self.step(n, smaller(load_requests_per_s, n * capacity_requests_per_s))
            if after == n:
                break
            n = after
        return float(n)

    def carried(self, *, capacity_requests_per_s: float) -> float:
        """Return the greatest load that is served once the count has settled, with replicas of a capacity.

        With a target that the tolerance lets a full replica reach, all replicas come; else only the minimum stays.
        """
        reaches = capacity_requests_per_s > self.target_requests_per_s * (1.0 + self.tolerance_frac)
        return (self.max_replicas if reaches else self.min_replicas) * capacity_requests_per_s


@dataclass(frozen=True, slots=True)
class ReplicaCapacity:
    """Requests per second that one deployment serves at its best batch, one batch after the other."""

    batch: int
    requests_per_s: Figure
    e2e_s: Figure
    most_batch: float
    """Largest batch that memory and the engine's limits let run at once, of those tried."""


def batches_up_to(most: float) -> NDArray[np.float64]:
    """Return 1, 2, 4, ... up to a number of at least 1.

    >>> batches_up_to(5.0).tolist()
    [1.0, 2.0, 4.0]
    """
    return np.exp2(np.arange(np.floor(np.log2(most)) + 1.0))


def replica_capacity(case: Case, *, most_batch: int = MOST_BATCH) -> ReplicaCapacity:
    """Return what a case serves at its best batch among powers of two; its own batch is not looked at.

    Raises InfeasibleError where the model does not fit.
    """
    full = answer_to(replace(case, workload=replace(case.workload, batch=float(most_batch))))
    batches = batches_up_to(full.workload.batch)
    rates = request_estimate(
        case.engine,
        batch=batches / case.n_replicas,
        input_tokens=case.workload.input_tokens,
        output_tokens=case.workload.output_tokens,
        token_budget=float(full.memory.limits.max_num_batched_tokens),
    ).requests_per_s
    best = int(batches[int(np.argmax(rates))])
    answer = answer_to(replace(case, workload=replace(case.workload, batch=float(best))))
    return ReplicaCapacity(best, answer.figures["requests_per_s"], answer.figures["e2e_s"], full.workload.batch)
