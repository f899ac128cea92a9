"""What n equal instances on one device cost each other: a closed queueing network of the resources that they share.

An instance repeats a cycle (a step, a request). Alone it takes `cycle_s`: of that, `visit_s` is spent on each shared
resource and `own_s` on what no other instance needs (its host thread, its launches). `busy_s` is how long the whole
resource works for one cycle; where resources overlap it is more than `visit_s`.

    interleaved    R_r(n) = visit_r (1 + Q_r(n-1)),  T = own + sum R_r,  Q_r(n) = n R_r / T        exact mean values
    time_sliced    the same with the whole device as the one resource: one kernel at a time
    partitioned    T = own + n x sum visit_r: each instance has 1/n of everything for itself

and never below n x max busy_r, since a resource cannot work more than all the time: the throughput n / T stays below
what the device's own roofline allows. T(1) = cycle_s. Instances stand evenly on the devices: the fullest one counts.

A last cache that n working sets share keeps min(1, capacity / (n x resident)) of each; what no longer hits is read from
main memory as well. Only that can lower the throughput of all together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isclose
from typing import Literal

import numpy as np

from perfmodel.errors import SpecError
from perfmodel.estimate import TINY, Bound, Estimate, Law, Num, Rule, larger, leaf, leaf_shares, smaller, total, weights

__all__ = [
    "CacheDemand",
    "Contended",
    "Demand",
    "InstanceDemand",
    "Sharing",
    "asymptotic_cycle_s",
    "contended",
    "instance_demand",
    "instances_per_device",
    "most_throughput",
    "serial_cycle_s",
]

Sharing = Literal["interleaved", "time_sliced", "partitioned"]

QUEUE = Law("visit_s x (1 + queue of the others)", "mva")
SATURATED = Law("n x busy_s of the busiest resource - the rest of the cycle", "operational-analysis")
OWN = Law("host, and gaps between kernels")

_ON_DEVICE = ("cores", "memory", "link")
_RESOURCES: dict[Bound, tuple[str, Bound]] = {
    Bound.COMPUTE: ("cores", Bound.COMPUTE),
    Bound.ISSUE: ("cores", Bound.COMPUTE),
    Bound.WEIGHT_READ: ("memory", Bound.WEIGHT_READ),
    Bound.KV_READ: ("memory", Bound.WEIGHT_READ),
    Bound.ACTIVATION_IO: ("memory", Bound.WEIGHT_READ),
    Bound.LINK: ("link", Bound.LINK),
}


@dataclass(frozen=True, slots=True)
class Demand:
    """What one cycle of one instance needs of a resource that all share."""

    resource: str
    busy_s: Num
    visit_s: Num
    bound: Bound


@dataclass(frozen=True, slots=True)
class CacheDemand:
    """What an instance has in the last cache: `resident_bytes` that it would keep there, and `reread_bytes` that a
    cycle reads from them. `s_per_byte` is the price of a byte of main memory.
    """

    capacity_bytes: float
    resident_bytes: Num
    reread_bytes: Num
    s_per_byte: Num

    def kept_frac(self, n_instances: int) -> Num:
        """Return the share of the working set that stays in the cache beside n - 1 others of its kind."""
        return smaller(
            1.0 + 0.0 * self.resident_bytes, self.capacity_bytes / (n_instances * self.resident_bytes + TINY)
        )

    def lost_s(self, n_instances: int) -> Num:
        """Return the seconds of main memory that a cycle needs more than alone."""
        return self.reread_bytes * (self.kept_frac(1) - self.kept_frac(n_instances)) * self.s_per_byte


@dataclass(frozen=True, slots=True)
class InstanceDemand:
    """One instance: shared resources, own time, and the last cache where it counts.

    `launch_s` is the time between kernels: its own, unless the device is time-sliced; then nobody else can use it.
    """

    demands: tuple[Demand, ...]
    own_s: Num
    launch_s: Num = 0.0
    cache: CacheDemand | None = None

    @property
    def cycle_s(self) -> Num:
        """Time of a cycle of one instance alone: own, launches, and visits."""
        cycle: Num = self.own_s + self.launch_s
        for demand in self.demands:
            cycle = cycle + demand.visit_s
        return cycle

    @property
    def busiest_s(self) -> Num:
        """Time that the busiest resource works for one cycle: 1 over it is the most cycles a second."""
        most: Num = 0.0 * self.own_s
        for demand in self.demands:
            most = larger(most, demand.busy_s)
        return most

    def beside(self, resource: str, busy_s: Num, *, bound: Bound = Bound.ACTIVATION_IO) -> InstanceDemand:
        """Return the demand with a further resource that works beside the rest (media units in a pipeline).

        It shows only where it takes longer than everything else.
        """
        further = Demand(resource, busy_s, larger(busy_s - self.cycle_s, 0.0), bound)
        return replace(self, demands=(*self.demands, further))

    def among(self, n_instances: int, sharing: Sharing) -> InstanceDemand:
        """Return the demand of each of n instances: with what the cache loses, and as one resource if time-sliced."""
        demands = self.demands
        if self.cache is not None:
            lost_s = self.cache.lost_s(n_instances)
            demands = tuple(
                replace(d, busy_s=d.busy_s + lost_s, visit_s=d.visit_s + lost_s) if d.resource == "memory" else d
                for d in demands
            )
        if sharing != "time_sliced":
            return InstanceDemand(demands, self.own_s + self.launch_s)
        on_device = InstanceDemand(
            tuple(d for d in demands if d.resource in _ON_DEVICE), 0.0 * self.own_s, self.launch_s
        )
        device = Demand("device", larger(on_device.cycle_s, on_device.busiest_s), on_device.cycle_s, Bound.COMPUTE)
        return InstanceDemand((device, *(d for d in demands if d.resource not in _ON_DEVICE)), self.own_s)


@dataclass(frozen=True, slots=True)
class Contended:
    """n instances on one device. `slowdowns` says for each resource how much longer a visit takes than alone.

    `saturation` is what the bound of the busiest resource adds on top of the queues, as a factor of the cycle.
    """

    n_instances: int
    sharing: Sharing
    cycle: Estimate
    slowdowns: tuple[tuple[str, Num], ...]
    saturation: Num
    alone_s: Num

    @property
    def cycle_s(self) -> Num:
        """Time of a cycle."""
        return self.cycle.value

    @property
    def speed_frac(self) -> Num:
        """Speed of each instance against one alone: its IPC falls by the same factor."""
        return self.alone_s / self.cycle.value

    @property
    def cycles_per_s(self) -> Num:
        """Cycles a second of all instances together."""
        return self.n_instances / self.cycle.value

    def stretched_s(self, demand: InstanceDemand) -> Num:
        """Return how long a part of the cycle takes here, given what that part needs alone."""
        slower, here = dict(self.slowdowns), demand.among(self.n_instances, self.sharing)
        time: Num = here.own_s
        for d in here.demands:
            time = time + d.visit_s * slower[d.resource]
        return time * self.saturation


def instances_per_device(n_instances: int, n_devices: int) -> int:
    """Return the instances on the fullest device when n are spread evenly.

    >>> instances_per_device(16, 8), instances_per_device(4, 8), instances_per_device(12, 8)
    (2, 1, 2)
    """
    if n_instances < 1 or n_devices < 1:
        raise SpecError(
            "the instances cannot be placed",
            got=f"{n_instances} instances on {n_devices} devices",
            expected="at least one of both",
        )
    return -(-n_instances // n_devices)


def instance_demand(cycle: Estimate) -> InstanceDemand:
    """Return what the instance behind a tree of times needs: visits by shares of the tree, busy time by its leaves.

    Host time is the instance's own.
    """
    visit: dict[str, Num] = {}
    busy: dict[str, Num] = {}
    bounds: dict[str, Bound] = {}
    own: Num = 0.0 * cycle.value
    launch: Num = 0.0 * cycle.value
    for node, share in leaf_shares(cycle):
        if node.bound in _RESOURCES:
            resource, bounds[resource] = _RESOURCES[node.bound]
            visit[resource] = visit.get(resource, 0.0) + share * cycle.value
        elif node.bound is Bound.LAUNCH:
            launch = launch + share * cycle.value
        else:
            own = own + share * cycle.value
    for node, seconds in _worked(cycle, 1.0):
        if node.bound in _RESOURCES:
            resource, _ = _RESOURCES[node.bound]
            busy[resource] = busy.get(resource, 0.0) + seconds
    # Rounding apart, what is visited is worked on.
    demands = tuple(Demand(name, larger(busy[name], visit[name]), visit[name], bounds[name]) for name in visit)
    return InstanceDemand(demands, own, launch)


def _worked(node: Estimate, count: Num) -> list[tuple[Estimate, Num]]:
    """Return each leaf with the seconds that it works, hidden or not; alternatives count as far as they are taken."""
    if not node.parts:
        return [(node, node.value * count)]
    if node.rule is Rule.MIN:
        counts = tuple(count * w for w in weights(node))
    else:
        counts = (count * (node.parameter if node.rule is Rule.REPEAT else 1.0),) * len(node.parts)
    return [pair for part, times in zip(node.parts, counts, strict=True) for pair in _worked(part, times)]


def asymptotic_cycle_s(demand: InstanceDemand, n_instances: int, *, sharing: Sharing = "interleaved") -> Num:
    """Return the least that a cycle can take among n: max(alone, n x busiest). Source: operational analysis."""
    among = demand.among(n_instances, sharing)
    return larger(among.cycle_s, n_instances * among.busiest_s)


def serial_cycle_s(demand: InstanceDemand, n_instances: int, *, sharing: Sharing = "interleaved") -> Num:
    """Return the most that a cycle takes among n that get in each other's way at every visit: own + n x visits."""
    among = demand.among(n_instances, sharing)
    cycle = among.own_s + n_instances * (among.cycle_s - among.own_s)
    return larger(cycle, n_instances * among.busiest_s)


def contended(demand: InstanceDemand, n_instances: int, *, sharing: Sharing = "interleaved") -> Contended:
    """Return the cycle of each of n equal instances on one device; quantities may be arrays.

    >>> one = InstanceDemand((Demand("memory", 3.0, 3.0, Bound.WEIGHT_READ),), own_s=1.0)
    >>> [round(contended(one, n).cycle_s, 3) for n in (1, 2, 4)]
    [4.0, 6.25, 12.004]
    """
    if n_instances < 1:
        raise SpecError("the instances cannot be placed", got=str(n_instances), expected="at least 1")
    among = demand.among(n_instances, sharing)
    if sharing == "partitioned":
        residence: tuple[Num, ...] = tuple(n_instances * d.visit_s for d in among.demands)
    else:
        residence = _mean_values(among, n_instances)
    cycle: Num = among.own_s
    for seconds in residence:
        cycle = cycle + seconds
    least = larger(cycle, n_instances * among.busiest_s)
    parts = [leaf("own", among.own_s, bound=Bound.HOST, law=OWN)]
    parts += [
        leaf(d.resource, seconds, bound=d.bound, law=QUEUE, inputs=(("visit_s", d.visit_s), ("busy_s", d.busy_s)))
        for d, seconds in zip(among.demands, residence, strict=True)
    ]
    if among.demands:
        busiest = max(among.demands, key=lambda d: np.max(d.busy_s))
        parts.append(leaf("saturated", least - cycle, bound=busiest.bound, law=SATURATED))
    tree = total(f"cycle_among_{n_instances}", tuple(parts))
    slowdowns = tuple(
        (d.resource, (seconds + TINY) / (d.visit_s + TINY)) for d, seconds in zip(among.demands, residence, strict=True)
    )
    return Contended(n_instances, sharing, tree, slowdowns, least / (cycle + TINY), demand.cycle_s)


def _mean_values(demand: InstanceDemand, n_instances: int) -> tuple[Num, ...]:
    """Return the residence times at the resources by exact mean value analysis, from one instance up to n."""
    queues: list[Num] = [0.0 * d.visit_s for d in demand.demands]
    residence: tuple[Num, ...] = ()
    for n in range(1, n_instances + 1):
        residence = tuple(d.visit_s * (1.0 + queue) for d, queue in zip(demand.demands, queues, strict=True))
        cycle: Num = demand.own_s
        for seconds in residence:
            cycle = cycle + seconds
        queues = [n * seconds / (cycle + TINY) for seconds in residence]
    return residence


def most_throughput(
    demand: InstanceDemand, *, n_most: int, limit_s: float | None = None, sharing: Sharing = "interleaved"
) -> Contended | None:
    """Return the fewest instances that give the most cycles a second within a limit of the cycle time; None: not even
    one keeps it. Every count up to `n_most` is tried, so that the answer is exact. For scalar demands.
    """
    best: Contended | None = None
    for n in range(1, n_most + 1):
        found = contended(demand, n, sharing=sharing)
        if limit_s is not None and found.cycle_s > limit_s:
            continue
        gain = best is None or found.cycles_per_s > best.cycles_per_s
        if best is None or (gain and not isclose(found.cycles_per_s, best.cycles_per_s)):
            best = found
    return best
