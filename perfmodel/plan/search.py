"""The search: every operating point of every candidate as rows of a table, chunk by chunk."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import InfeasibleError, SpecError
from perfmodel.plan.demand import Demand, Targets
from perfmodel.plan.prices import Price, price_of
from perfmodel.plan.space import Candidate, Refused, Space, candidates
from perfmodel.serving.steady import SteadyLimits, SteadyServing
from perfmodel.serving.steady_load import steady_limits, steady_serving
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.catalogue_kept import KeptCatalogue

__all__ = ["Plan", "Table", "in_flight_points", "open_loop_at", "point_at", "searched"]

Floats = NDArray[np.float64]

_GRID: Final = 96
"""Points of the geometric grid of requests in flight where the demand does not say which are needed."""
_CHUNK_ROWS: Final = 24_576
_SWING: Final = 2.0
"""Standard deviations of a Poisson number of requests in flight for which a replica keeps room (98 of 100 moments)."""


@dataclass(frozen=True, eq=False)
class Table:
    """One row an operating point: a candidate with so many requests in flight on each replica, and the replicas needed.

    Times are means in steady state. `usd_per_hour` is NaN where no price is known.
    """

    candidate: NDArray[np.int64]
    in_flight: Floats
    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    requests_per_s: Floats
    """Of one replica."""
    n_replicas: Floats
    n_devices: Floats
    served_per_s: Floats
    """Requests per second of all replicas under the demand."""
    usd_per_hour: Floats
    output_tokens: float

    def __len__(self) -> int:
        return len(self.in_flight)

    @cached_property
    def tokens_per_s_per_user(self) -> Floats:
        """Output tokens per second that one request sees while it is answered."""
        return 1.0 / self.tpot_s

    @cached_property
    def tokens_per_s_per_device(self) -> Floats:
        """Output tokens per second of a full replica over its devices."""
        return self.requests_per_s * self.output_tokens * self.n_replicas / self.n_devices

    @cached_property
    def usd_per_million_tokens(self) -> Floats:
        """US dollars for a million output tokens under the demand: all devices are paid, busy or not."""
        return self.usd_per_hour / (self.served_per_s * self.output_tokens * 3600.0) * 1e6


@dataclass(frozen=True, eq=False, slots=True)
class Plan:
    """A question with all of its rows, what was refused, and the price of each device by name."""

    demand: Demand
    targets: Targets
    space: Space
    candidates: tuple[Candidate, ...]
    refused: tuple[Refused, ...]
    table: Table
    prices: Mapping[str, Price]
    catalogue: Catalogue


def in_flight_points(demand: Demand, space: Space, candidate: Candidate, most_devices: int) -> Floats:
    """Return how many requests in flight on a replica are worth a row, in growing order; empty where none fits.

    Users without thinking: U / R for each number of replicas R that may be had. Else a geometric grid, dense below 20.
    An open loop leaves room for its swings: the number in flight is Poisson, so that n + 2 sqrt(n) have to fit.
    """
    most = candidate.most_in_flight
    if demand.requests_per_s is not None:
        most = float(int((sqrt(most + _SWING * _SWING / 4.0) - _SWING / 2.0) ** 2))
    if space.in_flight:
        points = np.unique(np.array(space.in_flight, dtype=np.float64))
        return points[points <= most]
    if most < 1:
        return np.empty(0)
    if demand.n_users is not None and not demand.think_s:
        n_users = demand.n_users
        replicas = np.arange(1.0, max(most_devices // candidate.cut.n_devices, 1) + 1.0)
        wanted = np.append(np.ceil(n_users / replicas), min(most, n_users))
        return np.unique(np.minimum(wanted, n_users)[wanted <= most])
    return np.unique(np.rint(np.geomspace(1.0, most, _GRID)))


def _limits(candidate: Candidate, demand: Demand) -> SteadyLimits:
    return steady_limits(
        candidate.plan,
        input_tokens=demand.input_tokens,
        output_tokens=demand.output_tokens,
        policy=candidate.policy,
    )


def point_at(candidate: Candidate, demand: Demand, in_flight: float | Floats) -> SteadyServing:
    """Return the steady state of one replica of a candidate: the same lines for one number and for a column."""
    return steady_serving(
        candidate.case.engine,
        _limits(candidate, demand),
        input_tokens=demand.input_tokens,
        output_tokens=demand.output_tokens,
        concurrency=in_flight,
    )


def open_loop_at(candidate: Candidate, demand: Demand, requests_per_s: float | Floats) -> SteadyServing:
    """Return the steady state of one replica to which requests come at a rate, whatever is answered."""
    return steady_serving(
        candidate.case.engine,
        _limits(candidate, demand),
        input_tokens=demand.input_tokens,
        output_tokens=demand.output_tokens,
        requests_per_s=requests_per_s,
    )


def _columns(candidate: Candidate, demand: Demand, points: Floats, chunk_rows: int) -> Iterator[tuple[Floats, ...]]:
    for start in range(0, len(points), chunk_rows):
        part = points[start : start + chunk_rows]
        found = point_at(candidate, demand, part)
        columns = (part, found.ttft.value, found.tpot.value, found.e2e.value, found.requests_per_s)
        yield tuple(np.broadcast_to(np.asarray(c, dtype=np.float64), part.shape) for c in columns)


def searched(
    catalogue: Catalogue,
    space: Space,
    demand: Demand,
    targets: Targets,
    *,
    prices: Mapping[str, float] | None = None,
    chunk_rows: int = _CHUNK_ROWS,
    told: Callable[[int], object] | None = None,
) -> Plan:
    """Return every operating point that memory, links and divisibility allow; `prices` are for a device and hour.

    `told` is called with the number of rows of each candidate that is done. Raises UnknownNameError for names.
    """
    if targets.tpot_s is not None and demand.output_tokens <= 1:
        got = "requests of one token, which have no time per output token"
        raise SpecError("a target cannot be met or missed", where="tpot", got=got, cure="Leave it out.")
    kept = KeptCatalogue.of(catalogue)
    with _collector_off():
        found, refused, owners, parts = _evaluated(kept, space, demand, targets, chunk_rows, told)
    devices = {one.device.name: one.device for one in found}
    priced = {name: price_of(device, prices or {}) for name, device in devices.items()}
    table = _table(found, demand, priced, owners, parts)
    return Plan(demand, targets, space, tuple(found), tuple(refused), table, priced, kept)


@contextmanager
def _collector_off() -> Iterator[None]:
    """Keep the cycle collector out: trees hold no cycles, and it would look at millions of their nodes for nothing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _evaluated(
    kept: Catalogue,
    space: Space,
    demand: Demand,
    targets: Targets,
    chunk_rows: int,
    told: Callable[[int], object] | None,
) -> tuple[list[Candidate], list[Refused], list[NDArray[np.int64]], list[tuple[Floats, ...]]]:
    """Return candidates with their rows, and what was refused."""
    found: list[Candidate] = []
    refused: list[Refused] = []
    parts: list[tuple[Floats, ...]] = []
    owners: list[NDArray[np.int64]] = []
    for one in candidates(kept, space, demand, targets):
        if isinstance(one, Refused):
            refused.append(one)
            continue
        points = in_flight_points(demand, space, one, targets.devices_of(one.device.name))
        if not len(points):
            reason = f"the KV cache and the scheduler hold {one.most_in_flight:g} requests: none of those searched"
            refused.append(Refused(one.family, one.cut, "memory", reason))
            continue
        try:
            chunks = list(_columns(one, demand, points, chunk_rows))
        except (InfeasibleError, SpecError) as error:
            refused.append(Refused(one.family, one.cut, "links", str(error).split("\n")[0]))
            continue
        parts += chunks
        owners.append(np.full(len(points), len(found), dtype=np.int64))
        found.append(one)
        if told is not None:
            told(len(points))
    return found, refused, owners, parts


def _table(
    found: Sequence[Candidate],
    demand: Demand,
    prices: Mapping[str, Price],
    owners: Sequence[NDArray[np.int64]],
    parts: Sequence[tuple[Floats, ...]],
) -> Table:
    empty: NDArray[np.int64] = np.empty(0, dtype=np.int64)
    owner = np.concatenate([empty, *owners])
    columns = [np.concatenate([np.empty(0), *(part[i] for part in parts)]) for i in range(5)]
    in_flight, ttft_s, tpot_s, e2e_s, rate = columns
    per_replica = np.array([float(one.cut.n_devices) for one in found])
    price = np.array([_known(prices[one.device.name]) for one in found])
    n_replicas = np.asarray(demand.replicas(in_flight=in_flight, requests_per_s=rate), dtype=np.float64)
    n_devices = n_replicas * per_replica[owner]
    return Table(
        candidate=owner,
        in_flight=in_flight,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        e2e_s=e2e_s,
        requests_per_s=rate,
        n_replicas=n_replicas,
        n_devices=n_devices,
        served_per_s=np.asarray(demand.served_per_s(e2e_s=e2e_s), dtype=np.float64),
        usd_per_hour=n_devices * price[owner],
        output_tokens=demand.output_tokens,
    )


def _known(price: Price) -> float:
    return float("nan") if price.value_usd_per_hour is None else price.value_usd_per_hour
