"""What a message costs on a fabric: latency + bandwidth forms of the usual algorithms.

With n ranks, S bytes on each, W bytes/s that one device sends one way, a latency l per step and a start s per call:

    ring all-reduce      s + 2 (n-1) l + 2 (n-1)/n S/W
    two-shot all-reduce  s + 2 l       + 2 (n-1)/n S/W     (every peer reached directly: switch or full mesh)
    one-shot all-reduce  s + l         + (n-1) S/W
    in-switch            s + 2 l       + S/W
    all-gather, reduce-scatter  s + steps l + (n-1)/n S/W   (S = gathered buffer)
    all-to-all           s + l + (n-1)/n S/W
    point to point       s + l + S/W

Over several levels an all-reduce is a reduce-scatter inside, an all-reduce between, an all-gather inside; all-gather
and reduce-scatter send between groups only each rank's share of what its group holds; an all-to-all passes both levels
whole. One rank costs nothing by the same formulas. A fit may add waits to the start: for each step of the ring (NCCL
and its kind, which then use rings and the switch alone), for each further rank, between two shots; and a knee q < 1
with which start and transfer add up to (start^q + transfer^q)^(1/q). In a full mesh a message between two devices
uses their one direct link; a root shared by all (PCIe tree) is left to the calibrated bandwidth share. Sources:
Hockney; Thakur et al.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from perfmodel.errors import InfeasibleError, SpecError
from perfmodel.estimate import (
    Bound,
    Coefficient,
    Estimate,
    Law,
    Num,
    leaf,
    quickest,
    slowest,
    soft_slowest,
    total,
    uncertain,
)
from perfmodel.specs.calibration import CalibratedDevice
from perfmodel.specs.system import Fabric, System
from perfmodel.work.kernel import Message

__all__ = ["NetworkPrices"]

START = Law("start_s + n_steps x latency_s", "hockney")
WAIT = Law("count x wait_s")
TRANSFER = Law("bytes_sent / (bandwidth_frac x bandwidth_bytes_per_s)", "thakur")

_DIRECT = ("switch", "full_mesh", "pair")


@dataclass(frozen=True, slots=True)
class NetworkPrices:
    """Prices messages on the fabrics of a system."""

    system: System | None
    device: CalibratedDevice

    def time(self, message: Message) -> Estimate:
        """Return the time of one message; raises an error where no wire joins the ranks."""
        if message.n_ranks <= 1:
            return leaf(message.name, message.n_bytes * 0.0, bound=Bound.LINK, law=TRANSFER)
        levels = self._levels(message)
        if len(levels) > 1:
            return self._hierarchical(message, levels)
        tree = self._flat(message.name, message.op, message.n_bytes, *levels[0])
        kind = levels[0][0].kind
        measured = self.device.collective(kind).measured_bytes
        if measured is None or self.device.calibration.extrapolation is None:
            return tree
        return uncertain(tree, (self.device.beyond(kind, message.n_bytes, measured),))

    def _levels(self, message: Message) -> list[tuple[Fabric, int]]:
        """Return the fabrics that the ranks span with the number of ranks (or groups) that each joins."""
        fabrics = self.system.fabrics if self.system else ()
        levels: list[tuple[Fabric, int]] = []
        joined, stride = 1, message.stride
        for fabric in fabrics:
            reach = max(1, min(message.n_ranks, fabric.n_devices // stride))
            if reach > joined:
                levels.append((fabric, -(-reach // joined)))
                joined = reach
            if joined >= message.n_ranks:
                return levels
        if self.system is None:
            raise SpecError(
                f"{message.n_ranks} ranks must talk, and how {self.device.device.name} is wired is not known",
                where="usual_system",
                got="none in the device file",
                expected="the system that joins such devices",
                cure="Name a system as HARDWARE, or state usual_system in the device file.",
            )
        raise InfeasibleError(
            f"{message.n_ranks} ranks must exchange {message.op.replace('_', '-')} messages, but no wire joins them",
            where=self.system.title,
            got=f"fabrics for {max((f.n_devices for f in fabrics), default=1)} devices",
            expected=f"at least {message.n_ranks * message.stride}",
            cure="Choose a larger system or fewer ranks.",
        )

    def _flat(self, name: str, op: str, n_bytes: Num, fabric: Fabric, n: int) -> Estimate:
        if op == "all_reduce":
            return self._all_reduce(name, n_bytes, fabric, n)
        in_ring = fabric.topology not in _DIRECT or self.device.collective(fabric.kind).hop is not None
        steps, sent = {
            "all_gather": (n - 1 if in_ring else 1, (n - 1) / n),
            "reduce_scatter": (n - 1 if in_ring else 1, (n - 1) / n),
            "all_to_all": (1, (n - 1) / n),
            "point_to_point": (1, 1.0),
        }[op]
        peers = 1 if op == "point_to_point" else n - 1
        return self._algorithm(name, n_bytes, fabric, n, steps=steps, sent=sent, peers=peers)

    def _all_reduce(self, name: str, n_bytes: Num, fabric: Fabric, n: int) -> Estimate:
        fit = self.device.collective(fabric.kind)
        ring_peers = 1 if fabric.topology == "full_mesh" else n - 1
        ring_sent, direct = 2 * (n - 1) / n, fabric.topology in _DIRECT
        ways = []
        if fit.one_shot is None or not direct:
            steps = 2 * (n - 1)
            ways.append(self._algorithm("ring", n_bytes, fabric, n, steps=steps, sent=ring_sent, peers=ring_peers))
        if direct and fit.hop is None:
            second = () if fit.second_shot is None else (("second_shot", 1.0, fit.second_shot),)
            ways += [
                self._algorithm("two_shot", n_bytes, fabric, n, steps=2, sent=ring_sent, peers=n - 1, waits=second),
                self._algorithm(
                    "one_shot", n_bytes, fabric, n, steps=1, sent=float(n - 1), peers=n - 1, share=fit.one_shot
                ),
            ]
        if fabric.reduces_in_switch and (self.device.calibration.is_physics_only or (fit.switch is not None and n > 2)):
            steps = 2 if fit.hop is None else 2 * (n - 1)
            ways.append(
                self._algorithm(
                    "in_switch", n_bytes, fabric, n, steps=steps, sent=1.0, peers=n - 1, share=fit.switch, idle=False
                )
            )
        return quickest(name, tuple(ways))

    def _algorithm(
        self,
        name: str,
        n_bytes: Num,
        fabric: Fabric,
        n: int,
        *,
        steps: int,
        sent: float,
        peers: int,
        share: Coefficient | None = None,
        waits: tuple[tuple[str, float, Coefficient], ...] = (),
        idle: bool = True,
    ) -> Estimate:
        """Return start-up and transfer of one algorithm.

        `share` replaces the usual share of the bandwidth, `waits` (name, count, time) add to the start-up, `idle` tells
        whether few peers leave channels idle.
        """
        fit = self.device.collective(fabric.kind)
        nominal = fabric.bandwidth_per_direction.value
        usable = nominal * min(1.0, peers / (fabric.n_devices - 1)) if fabric.topology == "full_mesh" else nominal
        bandwidth = share if share is not None else fit.bandwidth
        frac = bandwidth.value
        reached = min(frac, fabric.efficiency.value) if fabric.efficiency and frac < 1 else frac
        noise = (Coefficient(f"{fabric.kind}.scatter", 1.0, fit.scatter),) if fit.scatter > 0 else ()
        is_whole = self.device.calibration.is_physics_only or fit.hop is not None or fit.one_shot is not None
        latency = 0.0 if is_whole else fabric.latency.value
        start = leaf(
            "start",
            fit.start.value + steps * latency + n_bytes * 0.0,
            bound=Bound.LINK,
            law=START,
            inputs=(("start_s", fit.start.value), ("n_steps", float(steps)), ("latency_s", latency)),
            coefficients=(fit.start, *noise),
        )
        if fit.hop is not None:
            waits = (*waits, ("hops", float(steps), fit.hop))
        if fit.peer is not None:
            waits = (*waits, ("peers", float(n - 1), fit.peer))
        if waits:
            added = tuple(
                leaf(
                    what,
                    count * time.value + n_bytes * 0.0,
                    bound=Bound.LINK,
                    law=WAIT,
                    inputs=(("count", count), ("wait_s", time.value)),
                    coefficients=(time, *noise),
                )
                for what, count, time in waits
            )
            start = total("start_up", (start, *added))
        excess = 1.0 + 2.0 * fit.pair_excess_frac / n if idle else 1.0
        transfer = leaf(
            "transfer",
            n_bytes * (sent * excess / (reached * usable)),
            bound=Bound.LINK,
            law=TRANSFER,
            inputs=(
                ("bytes_sent", n_bytes * sent),
                ("bandwidth_frac", reached / excess),
                ("bandwidth_bytes_per_s", usable),
            ),
            coefficients=(bandwidth, *noise),
        )
        if fit.knee is None:
            return total(name, (start, transfer))
        return soft_slowest(name, (start, transfer), fit.knee)

    def _hierarchical(self, message: Message, levels: list[tuple[Fabric, int]]) -> Estimate:
        (inner, n_inner), *outer = levels
        if message.op == "point_to_point":
            fabric, _ = levels[-1]
            return self._flat(message.name, message.op, message.n_bytes, fabric, 2)
        if self.device.calibration.status == "bound":
            return self._side_by_side(message, levels)
        if message.op == "all_reduce":
            scatter = self._flat("reduce_scatter_inside", "reduce_scatter", message.n_bytes, inner, n_inner)
            shard = message.n_bytes * (1.0 / n_inner)
            between = [self._flat(f"all_reduce_{f.name}", "all_reduce", shard, f, n) for f, n in outer]
            gather = self._flat("all_gather_inside", "all_gather", message.n_bytes, inner, n_inner)
            return total(message.name, (scatter, *between, gather))
        parts, shard = [], message.n_bytes
        for fabric, n in levels:
            parts.append(self._flat(f"{message.op}_{fabric.name}", message.op, shard, fabric, n))
            shard = shard if message.op == "all_to_all" else shard * (1.0 / n)
        return total(message.name, tuple(parts))

    def _side_by_side(self, message: Message, levels: list[tuple[Fabric, int]]) -> Estimate:
        """Return the bound over several levels: all work at once, each carries the least that has to cross it."""
        parts, shard, n_groups = [], message.n_bytes, prod(n for _, n in levels)
        for fabric, n in levels:
            n_groups //= n
            least = shard * (1.0 / n_groups) if message.op == "all_to_all" else shard
            parts.append(self._flat(f"{message.op}_{fabric.name}", message.op, least, fabric, n))
            shard = shard if message.op == "all_to_all" else shard * (1.0 / n)
        return slowest(message.name, tuple(parts))
