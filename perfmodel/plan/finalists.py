"""The best rivals run again: as scalars with bands and bounds, and through the simulation, which knows percentiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.estimate import Bound, band_factor, bound_shares, exposure, relative_sd
from perfmodel.plan.demand import LATENCIES, PERCENTILES, Demand, Targets
from perfmodel.plan.ranking import Ranked, Rival, limit_words, row_energy_j
from perfmodel.plan.robustness import Likelihood, likelihood
from perfmodel.plan.search import Floats, Plan, open_loop_at, point_at
from perfmodel.plan.space import Candidate
from perfmodel.serving.arrivals import Tokens, Trace, poisson_arrivals, uniform_lengths
from perfmodel.serving.deployment import serving_case
from perfmodel.serving.engine import simulated
from perfmodel.serving.metrics import ServingResult, serving_result
from perfmodel.serving.steady import SteadyServing
from perfmodel.units import NS_PER_S, time_text

__all__ = [
    "Contest",
    "Finalist",
    "Simulated",
    "contested",
    "finalist_of",
    "percentiles_of",
    "simulated_replica",
    "traffic",
]

_LEAST_REQUESTS: Final = 600
_MOST_REQUESTS: Final = 6000
_ROUNDS: Final = 12
"""Requests of each user: enough that users who began together have drifted apart."""
_WARM_FRAC: Final = 0.1
_MOST_TRIES: Final = 8
"""Rows of one family that are simulated before it counts as missing the targets."""
_MOST_WEIGHED: Final = 60
"""Rows of one family that are looked at for a confidence."""
_MOST_SIMULATIONS: Final = 40
_MOST_DEVICES: Final = 6
"""Devices of which the best family is simulated, whatever its place."""
_N_SHOWN: Final = 2
"""Places that have to be confirmed by simulation: the winner and the runner-up."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """What the simulation of one replica says: latencies by percentile, after warming up."""

    percentiles: Mapping[str, Mapping[int, float]]
    n_requests: int
    n_preemptions: int
    requests_per_s: float
    is_stable: bool

    def misses(self, targets: Targets) -> str:
        """Return which targets it misses at the percentile asked for; empty where it meets all."""
        if not self.is_stable:
            return "requests come faster than they are served: the queue grows"
        parts = []
        for name in LATENCIES:
            most, found = getattr(targets, name), self.percentiles[name][targets.percentile]
            if most is not None and found > most:
                parts.append(
                    f"p{targets.percentile} of {limit_words(name)} {time_text(found)}, above {time_text(most)}"
                )
        return "; ".join(parts)


@dataclass(frozen=True, eq=False, slots=True)
class Finalist:
    """One row of a plan, run again as scalars. `simulated` None: it was not simulated."""

    candidate: Candidate
    row: int
    n_replicas: int
    point: SteadyServing
    bounds: tuple[tuple[Bound, float], ...]
    likelihood: Likelihood
    energy_j_per_output_token: float | None
    simulated: Simulated | None

    @property
    def n_devices(self) -> int:
        """Devices of all replicas."""
        return self.n_replicas * self.candidate.cut.n_devices

    def band(self, name: str) -> tuple[float, float, float]:
        """Return (value, low, high) of ttft_s, tpot_s or e2e_s in steady state."""
        tree = getattr(self.point, name[:-2])
        gain = self.point.tpot_gain if name == "tpot_s" else self.point.e2e_gain
        factor = float(band_factor(relative_sd(tree) * gain))
        return float(tree.value), float(tree.value) / factor, float(tree.value) * factor


@dataclass(frozen=True, eq=False, slots=True)
class Contest:
    """Rivals after the simulation: finalists by family index, who lost in it, and the final order."""

    ranked: Ranked
    finalists: Mapping[int, Finalist]
    """Of each simulated rival, by its place in `ranked.rivals`: the first row that meets the targets."""
    lost: Mapping[int, str]
    """Rivals none of whose simulated rows meets the targets, and by what the last one missed."""
    order: tuple[int, ...]
    """Places of the rivals that meet the targets, best first, those not simulated by their steady state."""
    n_simulated: int

    @property
    def winner(self) -> Finalist | None:
        """The best that the simulation confirms."""
        return self._at(0)

    @property
    def runner_up(self) -> Finalist | None:
        """The second best."""
        return self._at(1)

    def _at(self, place: int) -> Finalist | None:
        return self.finalists.get(self.order[place]) if len(self.order) > place else None


def traffic(demand: Demand, n_replicas: int, e2e_s: float, rng: np.random.Generator) -> tuple[Trace, slice]:
    """Return the requests that one of so many replicas sees, and which of them count.

    Users begin spread over the time of one request, so that they are not in step; the first request of each and the
    last ones, when the replica runs empty, do not count.
    """

    def lengths(n: int, tokens: float) -> Tokens:
        low, high = (max(1, round(tokens * (1 + side * demand.spread_frac))) for side in (-1, 1))
        return uniform_lengths(n, low_tokens=low, high_tokens=high, rng=rng)

    if demand.requests_per_s is not None:
        rate = demand.requests_per_s / n_replicas
        n = int(min(_MOST_REQUESTS, max(_LEAST_REQUESTS, _ROUNDS * rate * e2e_s)))
        arrival = poisson_arrivals(n, requests_per_s=rate, rng=rng)
        trace = Trace(arrival, lengths(n, demand.input_tokens), lengths(n, demand.output_tokens))
        return trace, slice(int(_WARM_FRAC * n), n)
    assert demand.n_users is not None
    users = -(-int(demand.n_users) // n_replicas)
    n = int(min(max(_LEAST_REQUESTS, _ROUNDS * users), max(_MOST_REQUESTS, 4 * users)))
    started = np.rint(np.linspace(0.0, e2e_s + demand.think_s, users) * NS_PER_S).astype(np.int64)
    arrival = np.concatenate([started, np.full(n - users, started[-1], dtype=np.int64)])
    think_ns = np.rint(rng.exponential(demand.think_s, n) * NS_PER_S).astype(np.int64) if demand.think_s else None
    trace = Trace(arrival, lengths(n, demand.input_tokens), lengths(n, demand.output_tokens))
    return trace.closed(users, think_ns=think_ns), slice(users, n - users // 2)


def simulated_replica(
    candidate: Candidate, demand: Demand, *, n_replicas: int, e2e_s: float, seed: int = 0
) -> tuple[Simulated, ServingResult]:
    """Return what one of `n_replicas` replicas does under its share of the demand; `e2e_s` is about what it takes."""
    trace, counted = traffic(demand, n_replicas, e2e_s, np.random.default_rng(seed))
    serving = serving_case(candidate.case, trace)
    result = serving_result(simulated(trace, serving.setup, serving.clock))
    return percentiles_of(result, counted), result


def percentiles_of(result: ServingResult, counted: slice) -> Simulated:
    """Return latencies by percentile of the requests that count."""
    found: dict[str, dict[int, float]] = {}
    for name in LATENCIES:
        column = result.columns[name][counted]
        column = column[np.isfinite(column)]
        values = np.percentile(column, PERCENTILES) if len(column) else np.zeros(len(PERCENTILES))
        found[name] = dict(zip(PERCENTILES, values.tolist(), strict=True))
    n = len(result.run.trace)
    return Simulated(found, n, result.n_preemptions, result.requests_per_s, result.is_stable)


def finalist_of(plan: Plan, row: int, simulation: Simulated | None = None) -> Finalist:
    """Return a row run again as scalars; where it was simulated in an open loop, at its own share of the rate."""
    table, demand, targets = plan.table, plan.demand, plan.targets
    candidate, n_replicas = plan.candidates[table.candidate[row]], int(table.n_replicas[row])
    if demand.requests_per_s is not None and simulation is not None:
        point = open_loop_at(candidate, demand, demand.requests_per_s / n_replicas)
    else:
        point = point_at(candidate, demand, float(table.in_flight[row]))
    times = {name: float(getattr(point, name[:-2]).value) for name in LATENCIES}
    if simulation is not None:
        times = {name: simulation.percentiles[name][targets.percentile] for name in LATENCIES}
    sure = likelihood(
        ttft_s=times["ttft_s"],
        tpot_s=times["tpot_s"],
        ttft_exposure={k: v * point.e2e_gain for k, v in exposure(point.ttft).items()},
        tpot_exposure={k: v * point.tpot_gain for k, v in exposure(point.tpot).items()},
        most_ttft_s=targets.ttft_s,
        most_tpot_s=targets.tpot_s,
    )
    shares = sorted(((b, float(s)) for b, s in bound_shares(point.e2e).items() if s > 0), key=lambda pair: -pair[1])
    energy = float(row_energy_j(plan, np.array([row]))[0])
    joules = None if np.isnan(energy) else energy
    return Finalist(candidate, row, n_replicas, point, tuple(shares), sure, joules, simulation)


def _tried(plan: Plan, rival: Rival) -> Iterator[int]:
    """Yield rows of a rival worth simulating, best first: one for each layout and number of replicas.

    Where a confidence is asked for, those whose means alone do not reach it are passed over.
    """
    wanted = plan.targets.confidence_frac
    seen: set[tuple[int, float]] = set()
    n_yielded = 0
    for row in rival.rows.tolist():
        key = (int(plan.table.candidate[row]), float(plan.table.n_replicas[row]))
        if key in seen:
            continue
        seen.add(key)
        if not wanted or finalist_of(plan, row).likelihood.both >= wanted:
            n_yielded += 1
            yield row
        if n_yielded >= _MOST_TRIES or len(seen) >= _MOST_WEIGHED:
            return


def contested(
    ranking: Ranked, *, simulate: bool = True, seed: int = 0, told: Callable[[int], object] | None = None
) -> Contest:
    """Return the rivals after simulation of the best: of each device the best family, and the first two places.

    A row that misses a target in the simulation gives way to the next of its family. Where `simulate` is false the
    steady state decides. `told` is called with 1 after each simulation.
    """
    plan = ranking.plan
    feasible = [i for i, rival in enumerate(ranking.rivals) if rival.is_feasible]
    finalists: dict[int, Finalist] = {}
    lost: dict[int, str] = {}
    n_run = 0

    def score(i: int) -> tuple[float, float, float]:
        row = finalists[i].row if i in finalists else int(ranking.rivals[i].rows[0])
        table: tuple[Floats, Floats] = (plan.table.n_devices, plan.table.e2e_s)
        return float(ranking.score[row]), float(table[0][row]), float(table[1][row])

    def settle(i: int, *, simulated_too: bool) -> None:
        nonlocal n_run
        missed = f"the targets are met with less than {100 * plan.targets.confidence_frac:g} %"
        for row in _tried(plan, ranking.rivals[i]):
            if not simulated_too or n_run >= _MOST_SIMULATIONS:
                finalists[i] = finalist_of(plan, row)
                return
            found, _ = simulated_replica(
                plan.candidates[plan.table.candidate[row]],
                plan.demand,
                n_replicas=int(plan.table.n_replicas[row]),
                e2e_s=float(plan.table.e2e_s[row]),
                seed=seed,
            )
            n_run += 1
            if told is not None:
                told(1)
            missed = found.misses(plan.targets)
            if missed:
                missed = f"in the simulation {missed}"
                continue
            one = finalist_of(plan, row, found)
            if one.likelihood.both >= plan.targets.confidence_frac:
                finalists[i] = one
                return
            missed = f"the targets are met with {100 * one.likelihood.both:.0f} % only"
        lost[i] = missed

    for i in _best_of_each_device(ranking, feasible):
        settle(i, simulated_too=simulate)
    while True:
        order = sorted((i for i in feasible if i not in lost), key=score)
        open_places = [i for i in order[:_N_SHOWN] if i not in finalists]
        if open_places:
            settle(open_places[0], simulated_too=simulate)
            continue
        weighed = [i for i in order if i not in finalists] if plan.targets.confidence_frac else []
        if not weighed:
            return Contest(ranking, finalists, lost, tuple(order), n_run)
        for i in weighed:
            settle(i, simulated_too=False)


def _best_of_each_device(ranking: Ranked, feasible: list[int]) -> list[int]:
    best: dict[str, int] = {}
    for i in feasible:
        best.setdefault(ranking.rivals[i].family.hardware, i)
    return list(best.values())[:_MOST_DEVICES]
