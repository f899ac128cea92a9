"""Replicas over the day: what is needed, what an autoscaler makes of it, what a failure and growth do.

The autoscaler follows the algorithm of the Kubernetes HorizontalPodAutoscaler v2 (`plan.autoscale`), with its
stabilisation windows and its default policies: at most the larger of double and four more in 15 seconds, and down
without limit once every wish of the window agrees. Pods take time to start. What cannot be served waits (a fluid queue:
backlog grows by load - served); latencies inside of a replica are those of its rating as long as it is not overloaded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, log
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import Fault, InfeasibleError, SpecError
from perfmodel.plan.autoscale import DEFAULT_TOLERANCE_FRAC, desired_replicas
from perfmodel.plan.load_curve import LoadCurve
from perfmodel.plan.rating import Rating

__all__ = ["Growth", "Policy", "Scaled", "grown", "needed_replicas", "policy_for", "scaled", "survives"]

Floats = NDArray[np.float64]

_MOST_MONTHS: Final = 60
_POLICY_PERIOD_S: Final = 15.0
_UP_PODS: Final = 4
_UP_FACTOR: Final = 2
"""Default scale-up policies of Kubernetes: the larger of 100 percent and 4 pods in 15 seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How replicas are scaled: what a HorizontalPodAutoscaler can be told, and how long a replica takes to start.

    `target_requests_per_s` is the mean per replica that the autoscaler aims at. `metric`: what it sees, the requests
    that arrive (at a gateway) or those that are served.
    """

    target_requests_per_s: float
    min_replicas: int = 1
    max_replicas: int = 64
    start_s: float = 120.0
    down_window_s: float = 300.0
    up_window_s: float = 0.0
    tolerance_frac: float = DEFAULT_TOLERANCE_FRAC
    metric: str = "arriving"

    def __post_init__(self) -> None:
        faults = []
        if not 1 <= self.min_replicas <= self.max_replicas:
            got = f"{self.min_replicas} to {self.max_replicas}"
            faults.append(Fault("replicas", got, "1 <= min <= max"))
        if not self.target_requests_per_s > 0:
            faults.append(Fault("target", f"{self.target_requests_per_s:g}", "requests per second above 0"))
        if not 0 <= self.tolerance_frac < 1:
            faults.append(Fault("tolerance", f"{self.tolerance_frac:g}", "from 0 to below 1"))
        faults += [
            Fault(name, f"{getattr(self, name):g}", "0 seconds or more")
            for name in ("start_s", "down_window_s", "up_window_s")
            if getattr(self, name) < 0
        ]
        if self.metric not in ("arriving", "served"):
            faults.append(Fault("metric", self.metric, "arriving or served"))
        if faults:
            raise SpecError("the scaling policy cannot be used", faults=faults)


@dataclass(frozen=True, eq=False, slots=True)
class Scaled:
    """What happened, step by step: load, replicas wanted, paid and ready, requests served and waiting.

    `overloaded` marks steps in which ready replicas get more than their rating allows.
    """

    load: LoadCurve
    wanted: Floats
    paid: Floats
    ready: Floats
    served_requests_per_s: Floats
    backlog_requests: Floats
    wait_s: Floats
    overloaded: NDArray[np.bool_]

    @property
    def replica_hours(self) -> float:
        """Hours of replicas that are paid, starting ones included."""
        return float(self.paid.sum()) * self.load.step_s / 3600.0

    @property
    def kept_frac(self) -> float:
        """Share of requests that arrive while replicas are within their rating and nothing waits."""
        good = ~self.overloaded & (self.backlog_requests <= 0.0)
        return float(self.load.requests_per_s[good].sum() / self.load.requests_per_s.sum())

    def survived_frac(self, rating: Rating) -> float:
        """Return the share of time in which the load would stay within the rating if one ready replica were lost."""
        left = (self.ready - 1.0) * rating.target_requests_per_s
        return float(np.mean(self.load.requests_per_s <= left * (1 + 1e-9)))

    @property
    def changes(self) -> int:
        """How often the number of paid replicas changes."""
        return int(np.count_nonzero(np.diff(self.paid)))


def needed_replicas(load: LoadCurve, rating: Rating, *, spare: int = 0, least: int = 1) -> Floats:
    """Return the fewest replicas that keep the targets in each step, with `spare` more: no delay, no memory."""
    needed: Floats = np.ceil(load.requests_per_s / rating.target_requests_per_s - 1e-9)
    return np.maximum(needed + spare, float(least)).astype(np.float64)


def policy_for(
    load: LoadCurve,
    rating: Rating,
    *,
    spare: int = 0,
    min_replicas: int = 1,
    max_replicas: int = 64,
    tolerance_frac: float = DEFAULT_TOLERANCE_FRAC,
    **more: Any,
) -> Policy:
    """Return a policy that keeps the targets, with `spare` replicas more than the peak needs (N + spare).

    The controller does nothing within its tolerance, so that it aims below the rating by that much; spare replicas
    lower the aim further, to rating x N / (N + spare) with the N of the peak, and raise the minimum. Raises
    InfeasibleError where the peak needs more than `max_replicas`.
    """
    at_peak = ceil(load.peak_requests_per_s / rating.target_requests_per_s - 1e-9)
    if at_peak + spare > max_replicas:
        raise InfeasibleError(
            "the peak needs more replicas than are allowed",
            got=f"{at_peak} and {spare} spare",
            expected=f"at most {max_replicas}",
            cure=f"Allow {at_peak + spare}, loosen the targets, or take a faster replica.",
        )
    aim = rating.target_requests_per_s * at_peak / (at_peak + spare) / (1.0 + tolerance_frac)
    return Policy(
        target_requests_per_s=aim,
        min_replicas=max(min_replicas, 1 + spare),
        max_replicas=max_replicas,
        tolerance_frac=tolerance_frac,
        **more,
    )


def scaled(load: LoadCurve, rating: Rating, policy: Policy) -> Scaled:
    """Return what the autoscaler does with a load, starting with what the first step needs.

    One round of the controller a step of the load (15 s is that of Kubernetes).
    """
    n, step = len(load.requests_per_s), load.step_s
    first = ceil(load.requests_per_s[0] / policy.target_requests_per_s)
    current = min(max(first, policy.min_replicas), policy.max_replicas)
    starting: deque[tuple[float, int]] = deque()
    wishes: deque[tuple[float, float]] = deque()
    wishes_up: deque[tuple[float, float]] = deque()
    ready, backlog = current, 0.0
    rows = np.empty((6, n))
    for i, rate in enumerate(load.requests_per_s.tolist()):
        now = i * step
        while starting and starting[0][0] <= now:
            ready += starting.popleft()[1]
        most = ready * rating.capacity_requests_per_s
        served = min(rate + backlog / step, most)
        backlog = max(0.0, backlog + (rate - served) * step)
        seen = rate if policy.metric == "arriving" else served
        rows[:, i] = (0.0, float(current), float(ready), served, backlog, backlog / most if most else 0.0)
        wish = _wish(current, seen, policy)
        current, ready = _moved(policy, now, step, wish, current, ready, (starting, wishes, wishes_up))
        rows[0, i] = wish
    wanted, paid, up, served_per_s, waiting, wait_s = rows
    overloaded = load.requests_per_s > up * rating.target_requests_per_s * (1 + 1e-9)
    return Scaled(load, wanted, paid, up, served_per_s, waiting, wait_s, overloaded)


def _wish(current: int, seen: float, policy: Policy) -> float:
    """Return the replicas that one round asks for, within the limits."""
    n = float(current)
    asked = desired_replicas(
        n, metric=seen / n, target=policy.target_requests_per_s, tolerance_frac=policy.tolerance_frac
    )
    return min(max(float(asked), float(policy.min_replicas)), float(policy.max_replicas))


Queue = deque[tuple[float, float]]


def _moved(
    policy: Policy,
    now: float,
    step: float,
    wish: float,
    current: int,
    ready: int,
    queues: tuple[deque[tuple[float, int]], Queue, Queue],
) -> tuple[int, int]:
    """Return (paid, ready) replicas after a round: stabilised, limited by policy, new ones on their way."""
    starting, wishes, wishes_up = queues
    for queue, window in ((wishes, policy.down_window_s), (wishes_up, policy.up_window_s)):
        queue.append((now, wish))
        while queue[0][0] < now - window:
            queue.popleft()
    if wish > current:
        target = min(w for _, w in wishes_up)
        rounds = max(1.0, step / _POLICY_PERIOD_S)
        limit = max(current * _UP_FACTOR**rounds, current + _UP_PODS * rounds)
        after = int(min(max(target, current), limit))
        if after > current:
            starting.append((now + max(policy.start_s, step), after - current))
        return after, ready
    after = int(min(max(w for _, w in wishes), current))
    gone = current - after
    while gone and starting:
        due, n = starting.pop()
        kept = max(n - gone, 0)
        gone -= n - kept
        if kept:
            starting.append((due, kept))
    return after, ready - gone


def survives(load: LoadCurve, rating: Rating, n_replicas: int, n_lost: int = 1) -> tuple[bool, float]:
    """Return whether the peak is still served within the rating after replicas are lost, and the load of one then.

    The load is over what the rating allows: above 1 the targets are missed.
    """
    left = n_replicas - n_lost
    if left < 1:
        return False, float("inf")
    share = load.peak_requests_per_s / left / rating.target_requests_per_s
    return share <= 1.0 + 1e-9, share


@dataclass(frozen=True, slots=True)
class Growth:
    """Replicas at the peak month by month, and when a limit is reached (None: not within five years)."""

    rows: tuple[Mapping[str, float], ...]
    months_to_limit: int | None


def grown(
    load: LoadCurve,
    rating: Rating,
    *,
    growth_per_month_frac: float,
    max_replicas: int,
    spare: int = 0,
    months: int = 12,
) -> Growth:
    """Return the replicas that the growing peak needs; raises InfeasibleError where the limit does not do today."""
    if growth_per_month_frac <= -1 or not 1 <= months <= _MOST_MONTHS:
        raise SpecError(
            "the growth cannot be used",
            got=f"{growth_per_month_frac:g} a month over {months} months",
            expected=f"above -1, and 1 to {_MOST_MONTHS} months",
        )

    def needed(month: int) -> float:
        peak = load.peak_requests_per_s * (1.0 + growth_per_month_frac) ** month
        return float(ceil(peak / rating.target_requests_per_s - 1e-9)) + spare

    if needed(0) > max_replicas:
        raise InfeasibleError(
            "the peak needs more replicas than are allowed",
            got=f"{needed(0):g} with {spare} spare",
            expected=f"at most {max_replicas}",
            cure=f"Allow {needed(0):g}, loosen the targets, or take a faster replica.",
        )
    rows = tuple(
        {
            "month": float(m),
            "peak_requests_per_s": load.peak_requests_per_s * (1.0 + growth_per_month_frac) ** m,
            "n_replicas": needed(m),
        }
        for m in range(months + 1)
    )
    if growth_per_month_frac <= 0:
        return Growth(rows, None)
    most = (max_replicas - spare) * rating.target_requests_per_s
    exact = log(most / load.peak_requests_per_s) / log(1.0 + growth_per_month_frac)
    limit = next((m for m in range(max(int(exact) - 1, 0), int(exact) + 3) if needed(m) > max_replicas), None)
    return Growth(rows, limit if limit is not None and limit <= _MOST_MONTHS else None)
