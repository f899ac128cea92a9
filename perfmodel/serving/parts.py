"""The parts of a simulation that follow from a case: links for KV caches, slowdown of instances, windows in blocks."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from perfmodel.cost.contention import contended, instance_demand
from perfmodel.cost.host import offload_time
from perfmodel.errors import SpecError
from perfmodel.serving.engine import Swap
from perfmodel.serving.fleet_setup import KvLink, Sharing
from perfmodel.serving.options import ServingOptions
from perfmodel.serving.sharing import SlowdownTable
from perfmodel.step.question import Case
from perfmodel.step.request import decode_slice
from perfmodel.step.step import host_link
from perfmodel.units import NS_PER_S
from perfmodel.work.memory_types import MemoryPlan

__all__ = ["kv_link", "shared_device", "swap_of", "window_groups"]

_NETWORKS: Final = ("infiniband", "roce", "ethernet")
_FINEST_GROUP: Final = 256
"""Parts of a block at which the shares of windowed and full layers are cut off."""


def swap_of(case: Case, plan: MemoryPlan) -> Swap:
    """Return preemption by swap over the host link; raises SpecError where no host memory is set aside for it."""
    if not plan.n_host_blocks:
        raise SpecError(
            "nothing can be swapped out", got="no host memory", cure="Give --swap-space with the GiB of each rank."
        )
    block_bytes = max(stage.block_bytes for stage in plan.stages)
    stage = case.engine.stages[0]
    link = host_link(case.setup.device_of_stage(0))
    frac = stage.kernels.device.collective(link.kind).bandwidth
    seconds = offload_time(block_bytes, bytes_per_s=link.bandwidth_per_direction.value, bandwidth_frac=frac).value
    return Swap(host_blocks=plan.n_host_blocks * plan.n_pools, block_ns=round(float(seconds) * NS_PER_S))


def kv_link(case: Case, plan: MemoryPlan, options: ServingOptions) -> tuple[KvLink, str]:
    """Return the link from prefill to decode replicas, and what was assumed of it.

    Every rank sends its own share at once. Without a stated one it is the outermost fabric of the system, or the
    device's network link.
    """
    bytes_per_s, latency_s, name = options.link_bytes_per_s, options.link_latency_s, "stated KV link"
    if bytes_per_s is None or latency_s is None:
        found_bytes_per_s, found_latency_s, found = _usual_link(case)
        name = found if bytes_per_s is None else name
        bytes_per_s = found_bytes_per_s if bytes_per_s is None else bytes_per_s
        latency_s = found_latency_s if latency_s is None else latency_s
    token_ns = plan.kv_bytes_per_token / bytes_per_s * NS_PER_S
    text = f"KV caches sent over {name}: {bytes_per_s / 1e9:.3g} GB/s and {latency_s * 1e6:.3g} us a rank"
    return KvLink(latency_ns=round(latency_s * NS_PER_S), token_ns=token_ns), text


def _usual_link(case: Case) -> tuple[float, float, str]:
    """Return (bytes per second, latency, name) of the link between replicas, at the share that copies reach."""
    device, system = case.setup.devices[0], case.setup.system
    if system is not None:
        fabric = system.fabrics[-1]
        nominal, latency, name, kind = fabric.bandwidth_per_direction, fabric.latency.value, fabric.name, fabric.kind
    else:
        links = sorted(device.links, key=lambda link: link.kind not in _NETWORKS)
        if not links:
            raise SpecError(
                f"{device.title} lists no link to send KV caches over",
                cure="Give --kv-link-bandwidth and --kv-link-latency.",
            )
        link = links[0]
        nominal, name, kind = link.bandwidth_per_direction, link.name, link.kind
        latency = link.latency.value if link.latency is not None else 0.0
    frac = case.engine.stages[0].kernels.device.collective(kind).bandwidth.value
    return nominal.value * frac, latency, name


def shared_device(
    case: Case, plan: MemoryPlan, options: ServingOptions, *, n_seqs: float, input_tokens: float, output_tokens: float
) -> tuple[Sharing, str]:
    """Return how instances of one device slow each other down, and what was assumed of it.

    Raises SpecError where the memory that each may take does not fit so often.
    """
    n = options.n_instances
    share = plan.tightest.utilization
    if n * share > 1.0 + 1e-9:
        raise SpecError(
            "the instances do not fit on one device",
            got=f"{n} instances that each take {share:g} of the memory",
            expected=f"at most {1 / n:.3g} each",
            cure=f"Give --gpu-memory-utilization {1 / n * 0.95:.2f}.",
        )
    if options.slowdowns:
        return Sharing(n_instances=n, contention=SlowdownTable(options.slowdowns)), "slowdown of instances as stated"
    step = case.engine.step("step", (decode_slice(n_seqs, input_tokens, output_tokens),), n_microbatches=1.0)
    demand = instance_demand(step)
    alone = float(contended(demand, 1).cycle_s)
    factors = tuple(max(1.0, float(contended(demand, k).cycle_s) / alone) for k in range(1, n + 1))
    shown = ", ".join(f"{factor:.3g}" for factor in factors)
    text = (
        f"steps of 1 to {n} instances at once take {shown} times as long: contention of steps of {n_seqs:.4g} sequences"
    )
    return Sharing(n_instances=n, contention=SlowdownTable((1.0, *factors[1:]))), text


def window_groups(plan: MemoryPlan) -> tuple[dict[str, int], str] | None:
    """Return windows as groups of layers for the scheduler's limits, with the pool in their blocks, and a text.

    None where no layer has a window, or where windows differ, states are kept, or stages or pools are several.
    """
    footprint = plan.stages[0].footprint
    windows = {tokens for _, tokens in footprint.windows}
    if len(plan.stages) > 1 or len(windows) != 1 or footprint.state_bytes_per_sequence or plan.window_pool_tokens:
        return None
    window = int(next(iter(windows)))
    windowed_bytes = sum(size for size, _ in footprint.windows)
    full_bytes = footprint.growth_bytes_per_token
    ratio = Fraction(windowed_bytes / full_bytes).limit_denominator(_FINEST_GROUP) if full_bytes else None
    n_full, n_window = (0, 1) if ratio is None else (ratio.denominator, ratio.numerator)
    if n_window < 1:
        return None
    unit_bytes = (full_bytes + windowed_bytes) / (n_full + n_window) * plan.block_tokens
    room_bytes = plan.max_concurrency * plan.full_length_bytes
    groups = {
        "n_full_groups": n_full,
        "n_window_groups": n_window,
        "window_tokens": window,
        "n_blocks": max(1, int(room_bytes / unit_bytes)) * plan.n_pools,
    }
    text = f"windows of {window} tokens release the blocks behind them ({n_window} of {n_full + n_window} parts of KV)"
    return groups, text
