"""Prefill and decode apart: the best split of each family, in closed form, beside the plan that mixes them.

Prefill replicas read one prompt after the other (many servers with even service times, Sakasegawa); the cache then
crosses the link; decode replicas only decode. With a rate r, prompt time P, decode step S at n sequences:

    prefill replicas   r P / busy           decode replicas   r (osl - 1) S / n
    ttft = P + wait    tpot = S + transfer / (osl - 1)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import PerfmodelError
from perfmodel.plan.demand import LATENCIES, Demand, Targets
from perfmodel.plan.finalists import Simulated, percentiles_of, traffic
from perfmodel.plan.ranking import Ranked
from perfmodel.plan.search import Plan
from perfmodel.plan.space import Candidate, Family
from perfmodel.serving.deployment import serving_case
from perfmodel.serving.engine import simulated
from perfmodel.serving.metrics import serving_result
from perfmodel.serving.options import ServingOptions
from perfmodel.serving.parts import kv_link
from perfmodel.step.request import request_estimate
from perfmodel.units import NS_PER_S

__all__ = ["Split", "best_split", "confirmed_split", "simulated_split", "splits_of"]

Floats = NDArray[np.float64]

_GRID: Final = 64
_BUSIEST: Final = 0.95
_FURTHER: Final = 4
"""Prefill replicas beyond the fewest that are tried: they shorten the wait."""
_EVEN_SERVICE: Final = 0.5
_TRIES: Final = 6
_TIGHTER: Final = 0.85
"""Of the mean of a split that misses a percentile: what the next one may have at most."""
_ROUNDS: Final = 20
"""Rounds in which the rate of waiting users and the wait settle."""


@dataclass(frozen=True, slots=True)
class Split:
    """Prefill and decode replicas of one layout; means in steady state. `score` as of the plan's objective."""

    candidate: Candidate
    n_prefill: int
    n_decode: int
    in_flight: float
    """Sequences that decode on one decode replica."""
    ttft_s: float
    tpot_s: float
    e2e_s: float
    served_per_s: float
    usd_per_million_tokens: float
    score: float
    simulated: Simulated | None = field(default=None, kw_only=True)

    @property
    def n_devices(self) -> int:
        """Devices of all replicas."""
        return (self.n_prefill + self.n_decode) * self.candidate.cut.n_devices


def _waiting(busy: Floats, n_servers: Floats, service_s: float) -> Floats:
    """Return the mean wait for one of many servers with even service times (Sakasegawa)."""
    share = np.minimum(busy, 1.0 - 1e-9)
    wait: Floats = (
        service_s * _EVEN_SERVICE * share ** (np.sqrt(2.0 * (n_servers + 1.0)) - 1.0) / (n_servers * (1.0 - share))
    )
    return wait


def _splits(plan: Plan, candidate: Candidate, objective: str) -> list[Split]:
    demand, work = plan.demand, candidate.case.engine
    isl, steps = demand.input_tokens, demand.output_tokens - 1.0
    budget = float(candidate.plan.limits.max_num_batched_tokens)
    n = np.unique(np.rint(np.geomspace(1.0, max(candidate.most_in_flight, 1.0), _GRID)))
    alone = request_estimate(work, batch=1.0, input_tokens=isl, output_tokens=1.0, token_budget=budget)
    prompt_s = float(alone.ttft.value)
    decode = request_estimate(work, batch=n, input_tokens=isl, output_tokens=demand.output_tokens, token_budget=budget)
    link, _ = kv_link(candidate.case, candidate.plan, ServingOptions(n_prefill=1, n_decode=1))
    transfer_s = (link.latency_ns + link.busy_ns(int(isl))) / NS_PER_S
    decoding_s = steps * np.broadcast_to(np.asarray(decode.tpot.value, dtype=np.float64), n.shape) + transfer_s
    price = plan.prices[candidate.device.name].value_usd_per_hour
    found = []
    for further in range(_FURTHER):
        wait = np.zeros_like(n)
        for _ in range(_ROUNDS if demand.n_users is not None else 1):
            e2e = prompt_s + wait + decoding_s
            rate = np.asarray(demand.served_per_s(e2e_s=e2e), dtype=np.float64)
            n_prefill = np.ceil(rate * prompt_s / _BUSIEST - 1e-9) + further
            wait = _waiting(rate * prompt_s / n_prefill, n_prefill, prompt_s)
        n_decode = np.maximum(np.ceil(rate * decoding_s / n - 1e-9), 1.0)
        n_devices = (n_prefill + n_decode) * candidate.cut.n_devices
        tokens_per_s = rate * demand.output_tokens
        usd = np.nan if price is None else price
        cost = n_devices * usd / (tokens_per_s * 3600.0) * 1e6
        ttft, tpot = prompt_s + wait, decoding_s / max(steps, 1.0)
        score = {"devices": n_devices, "latency": e2e, "throughput": -tokens_per_s / n_devices}.get(objective, cost)
        for i in range(len(n)):
            value = (float(column[i]) for column in (n, ttft, tpot, e2e, rate, cost, score))
            found.append(Split(candidate, int(n_prefill[i]), int(n_decode[i]), *value))
    return found


def splits_of(ranking: Ranked, family: Family) -> tuple[Split, ...]:
    """Return every split of a family that is searched, whatever the targets. Energy as objective counts as cost."""
    found: list[Split] = []
    for candidate in ranking.plan.candidates:
        if candidate.family == family:
            try:
                found += _splits(ranking.plan, candidate, ranking.objective)
            except PerfmodelError:
                continue  # no link to send caches over
    return tuple(found)


def best_split(splits: Sequence[Split], targets: Targets, price: float | None) -> Split | None:
    """Return the split that keeps the targets on average and has the best score; None where none does.

    `price` is that of a device and hour: a budget without one is not kept.
    """

    def keeps(split: Split) -> bool:
        device = split.candidate.device.name
        budget = targets.budget_usd_per_hour
        cost = inf if price is None else price * split.n_devices
        return (
            isfinite(split.score)
            and split.n_devices <= targets.devices_of(device)
            and all((most := getattr(targets, name)) is None or getattr(split, name) <= most for name in LATENCIES)
            and (budget is None or cost <= budget)
        )

    return min(filter(keeps, splits), key=lambda s: (s.score, s.n_devices, s.e2e_s), default=None)


def simulated_split(split: Split, demand: Demand, *, seed: int = 0) -> Simulated:
    """Return what all replicas of a split do under the whole demand, request by request."""
    trace, counted = traffic(demand, 1, split.e2e_s, np.random.default_rng(seed))
    options = ServingOptions(n_prefill=split.n_prefill, n_decode=split.n_decode)
    serving = serving_case(split.candidate.case, trace, options=options)
    return percentiles_of(serving_result(simulated(trace, serving.setup, serving.clock)), counted)


def confirmed_split(ranking: Ranked, splits: Sequence[Split], *, seed: int = 0) -> Split | None:
    """Return the best of the splits of a family whose simulated percentiles keep the targets; None where none is found.

    A split that misses one gives way to the best with a tighter mean of what it missed.
    """
    plan, aimed = ranking.plan, ranking.plan.targets
    for _ in range(_TRIES if splits else 0):
        price = plan.prices[splits[0].candidate.device.name].value_usd_per_hour
        split = best_split(splits, aimed, price)
        if split is None:
            return None
        found = simulated_split(split, plan.demand, seed=seed)
        if not found.misses(plan.targets):
            return replace(split, simulated=found)
        missed = {
            name: getattr(split, name) * _TIGHTER
            for name in LATENCIES
            if (most := getattr(plan.targets, name)) is not None and found.percentiles[name][aimed.percentile] > most
        }
        if not missed:
            return None  # the queue grows
        aimed = replace(aimed, **missed)
    return None
