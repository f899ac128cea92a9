"""How many copies of a deployment share its devices best: latency, throughput and memory against their number.

Each instance serves its own batch on the same devices; n instances stand evenly on the groups of devices that one of
them needs (its tensor-parallel ranks), and the fullest group sets the latency. Times come from the step model, shared
by cost/contention.py, on devices whose last cache is cut into n; one instance is the step model exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from perfmodel.cost.contention import (
    CacheDemand,
    Contended,
    InstanceDemand,
    Sharing,
    asymptotic_cycle_s,
    contended,
    instance_demand,
    instances_per_device,
    serial_cycle_s,
)
from perfmodel.cost.kernel import KernelPrices
from perfmodel.errors import SpecError
from perfmodel.estimate import Estimate
from perfmodel.specs.calibration import CalibratedDevice
from perfmodel.specs.device import Device, MemoryLevel
from perfmodel.specs.model import FixedWork
from perfmodel.specs.setup import Setup
from perfmodel.step.fitting import fit_of
from perfmodel.step.question import Case
from perfmodel.step.request import RequestEstimate, request_estimate
from perfmodel.step.step import Engine
from perfmodel.units import bytes_text
from perfmodel.work.kernel import Work
from perfmodel.work.memory import memory_plan
from perfmodel.work.memory_types import MemoryCase, MemoryPlan

__all__ = ["InstanceRow", "best_instances", "fixed_work_demand", "fixed_work_rows", "instance_rows"]

_SAME_RATE: Final = 2e-3
"""Rates that differ by less are alike: the model is far from as good as that."""


@dataclass(frozen=True, slots=True)
class InstanceRow:
    """`n_instances` on all devices, `n_per_device` on the fullest. A cycle is a batch of requests, or of samples.

    `items_per_s` counts output tokens, or samples, of all instances. `best_cycle_s` and `worst_cycle_s` are bounds:
    nobody waits until a resource is full, and nobody ever uses what another leaves idle. `one_batch_items_per_s` is
    what a single instance a device would do with all those sequences in its one batch. `tree` explains the cycle.
    """

    n_instances: int
    n_per_device: int
    cycle_s: float
    ttft_s: float | None
    tpot_s: float | None
    best_cycle_s: float
    worst_cycle_s: float
    speed_frac: float
    items_per_s: float
    most_items_per_s: float
    least_items_per_s: float
    one_batch_items_per_s: float | None
    limit: str
    fits: bool
    needs: str
    tree: Estimate


def _limit(found: Contended) -> str:
    """Return the part of the cycle that takes longest, or the resource that is full."""
    parts = {part.name: float(part.value) for part in found.cycle.parts}
    if parts.pop("saturated", 0.0) > 0.0:
        busy = {part.name: float(value) for part in found.cycle.parts for key, value in part.inputs if key == "busy_s"}
        return f"{max(busy, key=lambda name: busy[name])} full"
    return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True, slots=True)
class _OnOne:
    """n instances on one group of devices: times, bounds, and whether they fit."""

    found: Contended
    best_cycle_s: float
    worst_cycle_s: float
    fits: bool
    needs: str


def _rows(
    demand: Callable[[int], InstanceDemand],
    n_most: int,
    *,
    n_groups: int,
    items_per_cycle: float,
    sharing: Sharing,
    fits: Callable[[int], tuple[bool, str]],
    parts: Callable[[Contended], tuple[float | None, float | None, float | None]],
) -> tuple[InstanceRow, ...]:
    """Return the rows; `demand` is that of one of n, `parts` TTFT, TPOT and the rate of all sequences in one batch."""
    if n_most < 1:
        raise SpecError("the instances cannot be counted", got=str(n_most), expected="at least 1")
    groups = [
        _OnOne(
            contended(one, n, sharing=sharing),
            float(asymptotic_cycle_s(one, n, sharing=sharing)),
            float(serial_cycle_s(one, n, sharing=sharing)),
            *fits(n),
        )
        for n in range(1, instances_per_device(n_most, n_groups) + 1)
        for one in (demand(n),)
    ]
    rate = [items_per_cycle * n / float(g.found.cycle_s) for n, g in enumerate(groups, start=1)]
    most = [items_per_cycle * n / g.best_cycle_s for n, g in enumerate(groups, start=1)]
    least = [items_per_cycle * n / g.worst_cycle_s for n, g in enumerate(groups, start=1)]
    rows: list[InstanceRow] = []
    for n in range(1, n_most + 1):
        n_here = instances_per_device(n, n_groups)
        here = groups[n_here - 1]
        ttft_s, tpot_s, one_batch = parts(here.found)
        rows.append(
            InstanceRow(
                n_instances=n,
                n_per_device=n_here,
                cycle_s=float(here.found.cycle_s),
                ttft_s=ttft_s,
                tpot_s=tpot_s,
                best_cycle_s=here.best_cycle_s,
                worst_cycle_s=here.worst_cycle_s,
                speed_frac=float(groups[0].found.cycle_s / here.found.cycle_s),
                items_per_s=_of_all(rate, n, n_groups),
                most_items_per_s=_of_all(most, n, n_groups),
                least_items_per_s=_of_all(least, n, n_groups),
                one_batch_items_per_s=None if one_batch is None else one_batch * min(n, n_groups),
                limit=_limit(here.found),
                fits=here.fits,
                needs=here.needs,
                tree=here.found.cycle,
            )
        )
    return tuple(rows)


def _of_all(rates: Sequence[float], n_instances: int, n_groups: int) -> float:
    """Return the sum over groups: some hold one instance more than the others, which may hold none."""
    low, n_more = divmod(n_instances, n_groups)
    more = rates[low] * n_more if n_more else 0.0
    return more + (rates[low - 1] * (n_groups - n_more) if low else 0.0)


def _share_of_memory(case: MemoryCase, n_per_device: int) -> MemoryPlan:
    """Return the plan of an instance that may take 1/n of what one alone would."""
    utilization = case.options.utilization
    if utilization is None:
        utilization = case.runtime.memory.default_utilization
    if case.runtime.memory.accounting in ("vllm-v0", "vllm-v1", "plain", "sglang"):
        return memory_plan(case.with_options(utilization=utilization / n_per_device))
    total = min(device.usable_memory.value for device in case.devices)
    others = case.options.used_by_others_bytes + total * (n_per_device - 1) / n_per_device
    return memory_plan(case.with_options(used_by_others_bytes=others))


def instance_rows(case: Case, n_most: int, *, sharing: Sharing = "interleaved") -> tuple[InstanceRow, ...]:
    """Return a row for each number of instances from 1 to `n_most`; `workload.batch` is the batch of each instance.

    Raises SpecError for pipelines: stages of several instances would interleave, which is not modelled.
    """
    if case.setup.layout.pp > 1:
        raise SpecError("instances of a pipeline are not modelled", got=f"pp {case.setup.layout.pp}", expected="pp 1")
    work, n_groups = case.workload, case.n_replicas
    length = int(work.input_tokens + work.output_tokens)
    if case.memory.options.max_model_len is None:
        case = replace(case, memory=case.memory.with_options(max_model_len=length))
    budget = float(memory_plan(case.memory).limits.max_num_batched_tokens)

    def request(n_here: int, batch: float) -> RequestEstimate:
        return request_estimate(
            Engine(_with_cache_of(case.setup, n_here), case.calibration),
            batch=batch,
            input_tokens=work.input_tokens,
            output_tokens=work.output_tokens,
            token_budget=budget,
        )

    of = {n: request(n, work.batch) for n in range(1, instances_per_device(max(n_most, 1), n_groups) + 1)}

    def parts(found: Contended) -> tuple[float, float, float]:
        one = of[found.n_instances]
        ttft_s, tpot_s = (found.stretched_s(instance_demand(tree)) for tree in (one.ttft, one.tpot))
        one_batch = request(1, work.batch * found.n_instances)
        return float(ttft_s), float(tpot_s), float(one_batch.output_tokens_per_s)

    return _rows(
        lambda n: instance_demand(of[n].e2e),
        n_most,
        n_groups=n_groups,
        items_per_cycle=work.batch * work.output_tokens,
        sharing=sharing,
        fits=lambda n: fit_of(_share_of_memory(case.memory, n), length, work.batch),
        parts=parts,
    )


def _with_cache_of(setup: Setup, n_instances: int) -> Setup:
    """Return the setup on devices whose last caches hold an n-th: what an instance finds there among n of its kind."""

    def cut(level: MemoryLevel) -> MemoryLevel:
        if level.capacity is None or level.level not in ("l2", "infinity_cache"):
            return level
        less = level.capacity.model_copy(update={"value": level.capacity.value / n_instances})
        return level.model_copy(update={"capacity": less})

    devices = tuple(d.model_copy(update={"memory": tuple(cut(level) for level in d.memory)}) for d in setup.devices)
    return setup if n_instances == 1 else replace(setup, devices=devices)


def fixed_work_demand(
    work: FixedWork,
    device: CalibratedDevice,
    *,
    batch: float,
    dtype: str = "fp16",
    element_bytes: float = 2.0,
    n_pixels: float = 0.0,
) -> InstanceDemand:
    """Return what a batch of samples needs: one pass of the network, its weights from the last cache while they stay.

    With `n_pixels` each sample is decoded by the media units first, beside the network of the batch before; raises
    SpecError where the device file lists none.
    """
    spec = device.device
    weights = work.n_params * element_bytes
    prices = KernelPrices(device)
    s_per_byte = 1.0 / (device.kernel("matmul").memory.value * spec.dram_bytes_per_s)
    cache = CacheDemand(spec.last_cache_bytes, weights, weights, s_per_byte)
    missed = weights * (1.0 - float(cache.kept_frac(1)))
    tree = prices.time(
        Work(
            "network",
            "matmul",
            dtype,
            flop=work.flop_per_sample * batch,
            weight_bytes=missed,
            io_bytes=work.activation_bytes_per_sample * batch,
        )
    )
    demand = replace(instance_demand(tree), cache=cache)
    if not n_pixels:
        return demand
    unit = next((unit for unit in spec.media if unit.work == "jpeg_decode"), None)
    if unit is None:
        raise SpecError(
            f"{spec.title} lists no units that decode images",
            where=spec.name,
            expected="`media` with jpeg_decode",
            cure="Leave the image size out, or add the figure to the device file.",
        )
    return demand.beside("media", batch * n_pixels / (unit.images_per_s.value * unit.n_pixels.value))


def fixed_work_rows(
    demand: InstanceDemand,
    device: Device,
    n_most: int,
    *,
    batch: float,
    instance_bytes: float,
    n_devices: int = 1,
    sharing: Sharing = "interleaved",
) -> tuple[InstanceRow, ...]:
    """Return a row for each number of instances of a network of fixed work; each takes `instance_bytes` of memory."""

    def fits(n_here: int) -> tuple[bool, str]:
        needs, has = n_here * instance_bytes, device.usable_memory.value
        return (True, "") if needs <= has else (False, f"{bytes_text(needs)} of {bytes_text(has)}")

    return _rows(
        lambda _: demand,
        n_most,
        n_groups=n_devices,
        items_per_cycle=batch,
        sharing=sharing,
        fits=fits,
        parts=lambda _: (None, None, None),
    )


def best_instances(
    rows: Sequence[InstanceRow], *, limit_s: float | None = None, of: str = "cycle_s"
) -> InstanceRow | None:
    """Return the row of the highest throughput whose instances fit and keep the limit of a latency; None: none does.

    `of` names the latency: cycle_s, ttft_s or tpot_s. Every row is looked at. Of those within 0.2 % of the most,
    the fewest instances count: further ones would only make each slower.
    """
    allowed = [row for row in rows if row.fits and (limit_s is None or (getattr(row, of) or 0.0) <= limit_s)]
    most = max((row.items_per_s for row in allowed), default=0.0)
    return next((row for row in allowed if row.items_per_s >= most * (1.0 - _SAME_RATE)), None)
