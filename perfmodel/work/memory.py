"""How a device's memory is divided: weights, activations, reserve, and the KV pool in blocks and tokens.

The identity is that of the engines' own start-up logs: pool = budget - weights - activation peak - memory outside of
the allocator, rounded down to blocks, and the smallest rank decides for all. What an engine does with the budget is its
runtime profile's `accounting`. Sources: vLLM's worker (determine_available_memory), SGLang's model runner, MindIE's
service documents; the start-up logs in tests/validation/test_startup_memory_cases.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, inf

from perfmodel.errors import SpecError
from perfmodel.specs.device import Device
from perfmodel.units import bytes_text
from perfmodel.work.kv import kv_footprint
from perfmodel.work.memory_rules import (
    StepLimits,
    activation_peak_bytes,
    cached_model,
    kv_capacity_tokens,
    sequence_bytes,
    step_limits,
)
from perfmodel.work.memory_types import MemoryCase, MemoryPlan, RankMemory, StagePlan
from perfmodel.work.storage import model_high_bytes, stage_weight_bytes

__all__ = ["memory_plan", "memory_plan_with", "stage_weights"]


def _cards(case: MemoryCase) -> list[list[tuple[Device, int]]]:
    """Return for each stage its distinct devices with the number of ranks that sit on them, first rank's card first."""
    layout, devices = case.layout, case.devices
    if len(devices) == 1:
        return [[(devices[0], layout.tp)] for _ in range(layout.pp)]
    if len(devices) == layout.pp:
        return [[(device, layout.tp)] for device in devices]
    if len(devices) == layout.pp * layout.tp:
        stages = [devices[i * layout.tp : (i + 1) * layout.tp] for i in range(layout.pp)]
        return [[(device, 1) for device in stage] for stage in stages]
    raise SpecError(
        "the devices do not match the layout",
        where="devices",
        got=str(len(devices)),
        expected=f"1, {layout.pp} (one a stage) or {layout.pp * layout.tp} (one a rank)",
    )


def stage_weights(case: MemoryCase) -> tuple[dict[str, float], ...]:
    """Return the weight bytes of one rank of each pipeline stage, by part."""
    stages, observed = range(case.layout.pp), case.options.observed_weights_bytes
    if observed is not None:
        return tuple({"observed": observed} for _ in stages)
    high_bytes, with_mtp = _element_bytes(case), case.options.with_mtp
    return tuple(
        stage_weight_bytes(case.model, case.scheme, case.layout, i, high_bytes=high_bytes, with_mtp=with_mtp)
        for i in stages
    )


def _element_bytes(case: MemoryCase) -> float:
    """Return bytes of an unquantised element: as stated, else by the model's dtype."""
    return _given(case.options.element_bytes, model_high_bytes(case.model))


def _given(value: float | None, predicted: float) -> float:
    return predicted if value is None else value


def _rank(
    case: MemoryCase,
    limits: StepLimits,
    *,
    stage: int,
    card: tuple[Device, int],
    samples: bool,
    weights: Mapping[str, float],
    block_bytes: float,
) -> RankMemory:
    device, n_ranks = card
    options, profile, layout = case.options, case.runtime.memory, case.layout
    start, stop = layout.stages(case.model.n_layers)[stage]
    total = _given(options.total_bytes, device.usable_memory.value)
    frac = _given(options.utilization, profile.default_utilization)
    activation = activation_peak_bytes(
        case.model,
        profile.activation,
        layout=layout,
        n_tokens=float(limits.max_num_batched_tokens),
        n_seqs=float(limits.max_num_seqs),
        element_bytes=_element_bytes(case),
        samples=samples,
        start=start,
        stop=stop,
    )
    activation = _given(options.observed_activation_bytes, float(activation))
    non_torch = _given(
        options.observed_non_torch_bytes, profile.non_torch + profile.non_torch_per_peer * (layout.tp - 1)
    )
    eager = options.enforce_eager if options.enforce_eager is not None else not case.runtime.decode_graphs
    graphs = 0.0 if eager else _given(options.observed_graph_bytes, profile.graphs)
    offloaded = min(options.cpu_offload_bytes, sum(weights.values()))
    taken = sum(weights.values()) - offloaded + non_torch
    inside = profile.accounting != "sglang"
    taken += (activation if inside else 0.0) + (graphs if profile.graphs_in_budget else 0.0)
    free = total - options.used_by_others_bytes
    withheld = 0.0
    match profile.accounting:
        case "vllm-v0" | "vllm-v1":
            budget = frac * total
        case "sglang":
            # The fraction is of what is free once the context exists.
            budget = frac * (free - non_torch) + non_torch
        case "plain":
            budget = frac * free
        case _:
            budget = free
            withheld = max(0.0, free - taken) * (1 - frac)
    available = budget - taken - withheld
    if options.pool_frac < 1 and available > 0:
        withheld += available * (1 - options.pool_frac)
        available *= options.pool_frac
    if options.kv_cache_memory_bytes is not None:
        available, withheld = options.kv_cache_memory_bytes, 0.0
        budget = taken + available
    n_blocks = _blocks(available, block_bytes)
    if options.num_gpu_blocks_override is not None:
        n_blocks = options.num_gpu_blocks_override
    pool = n_blocks * block_bytes if block_bytes else max(0.0, available)
    return RankMemory(
        stage=stage,
        n_ranks=n_ranks,
        samples=samples,
        device=device.name,
        total_bytes=total,
        utilization=frac,
        budget_bytes=budget,
        weight_bytes=weights,
        offloaded_bytes=offloaded,
        activation_bytes=activation,
        non_torch_bytes=non_torch,
        graph_bytes=graphs,
        graphs_in_budget=profile.graphs_in_budget,
        activation_in_budget=inside,
        withheld_bytes=withheld,
        available_bytes=available,
        pool_bytes=pool,
        n_blocks=n_blocks,
    )


def _blocks(available_bytes: float, block_bytes: float) -> int:
    if not block_bytes:
        return 0
    return int(kv_capacity_tokens(available_bytes=available_bytes, bytes_per_token=block_bytes, block_tokens=1.0))


def _stage_ranks(
    case: MemoryCase,
    limits: StepLimits,
    stage: int,
    cards: Sequence[tuple[Device, int]],
    weights: Mapping[str, float],
    block_bytes: float,
) -> list[RankMemory]:
    """Return the distinct ranks of a stage: the sampling one apart where only one samples."""
    last = stage == case.layout.pp - 1
    one = case.runtime.memory.activation.sampling == "first_rank"
    ranks = []
    for i, (device, n) in enumerate(cards):
        groups = [(1, True), (n - 1, False)] if last and one and i == 0 else [(n, last and not one)]
        ranks += [
            _rank(
                case,
                limits,
                stage=stage,
                card=(device, size),
                samples=samples,
                weights=weights,
                block_bytes=block_bytes,
            )
            for size, samples in groups
            if size
        ]
    return ranks


def memory_plan(case: MemoryCase) -> MemoryPlan:
    """Return what fits in memory, for each rank and together. It never raises for lack of memory: read `starts`.

    Raises SpecError where layout, devices or options contradict each other.
    """
    return memory_plan_with(case, stage_weights(case))


def _assumed(case: MemoryCase, limits: StepLimits, kv_bytes: float) -> tuple[str, ...]:
    options, runtime = case.options, case.runtime
    rows = list(limits.assumed)
    if options.utilization is None and options.kv_cache_memory_bytes is None:
        rows.append(f"utilisation {runtime.memory.default_utilization:g} (default of {runtime.name})")
    if options.kv_element_bytes is None and options.kv_layout == "plain":
        rows.append(f"KV elements of {kv_bytes:g} bytes (the model's dtype)")
    if options.observed_activation_bytes is None:
        rows.append(f"activation peak from the profile of {runtime.name}")
    if options.observed_non_torch_bytes is None:
        rows.append(f"memory outside of the allocator from the profile of {runtime.name}")
    if options.total_bytes is None:
        rows.append("total memory from the device file")
    if options.observed_weights_bytes is None and case.model.mtp is not None and not options.with_mtp:
        rows.append("multi-token-prediction modules are not loaded")
    return tuple(rows)


def memory_plan_with(case: MemoryCase, weights: Sequence[Mapping[str, float]]) -> MemoryPlan:
    """Return the plan for weights that are known already (`stage_weights`): what searches call again and again."""
    options, runtime, layout = case.options, case.runtime, case.layout
    model = cached_model(case.model, runtime)
    limits = step_limits(case.model, runtime, options, case.devices[0])
    block = (options.block_tokens or runtime.block_tokens) * layout.dcp
    kv_bytes = _given(options.kv_element_bytes, _element_bytes(case))
    ratio = _given(options.swa_full_ratio, runtime.memory.swa_full_ratio or 0.0)
    ranks: list[RankMemory] = []
    stages: list[StagePlan] = []
    for i, ((start, stop), cards) in enumerate(zip(layout.stages(model.n_layers), _cards(case), strict=True)):
        held = kv_footprint(
            model,
            kv_bytes_per_element=kv_bytes,
            layout=options.kv_layout,
            tp=layout.tp,
            dcp=layout.dcp,
            start=start,
            stop=stop,
        )
        per_token = held.growth_bytes_per_token + (ratio * held.window_bytes_per_token if ratio else 0.0)
        own = _stage_ranks(case, limits, i, cards, weights[i], per_token * block)
        ranks += own
        n_blocks = min(r.n_blocks for r in own) if per_token else inf
        stages.append(StagePlan(start, stop, held, per_token * block, n_blocks))
    return _joined(case, limits, ranks, stages, block=block, ratio=ratio, assumed=_assumed(case, limits, kv_bytes))


def _joined(
    case: MemoryCase,
    limits: StepLimits,
    ranks: list[RankMemory],
    stages: list[StagePlan],
    *,
    block: int,
    ratio: float,
    assumed: tuple[str, ...],
) -> MemoryPlan:
    length = limits.max_model_len
    v1 = case.runtime.memory.accounting == "vllm-v1"
    margin = min(limits.max_num_batched_tokens, length) - 1.0 if v1 else 0.0
    two_pools = bool(ratio) and any(stage.footprint.windows for stage in stages)
    uniform = all(not s.footprint.windows and not s.footprint.state_bytes_per_sequence for s in stages)
    growing = [s.n_blocks for s in stages if s.n_blocks < inf]
    n_blocks = int(min(growing)) if growing else 0
    if case.options.max_total_tokens is not None:
        n_blocks = min(n_blocks, case.options.max_total_tokens // block)
    per_sequence = [sequence_bytes(s.footprint, length, block_tokens=block, margin_tokens=margin) for s in stages]
    room = [min(max(0.0, r.available_bytes) for r in ranks if r.stage == i) for i in range(len(stages))]
    if case.options.num_gpu_blocks_override is not None:
        room = [n_blocks * s.block_bytes if s.block_bytes else has for s, has in zip(stages, room, strict=True)]
    window_tokens = None
    if uniform or two_pools:
        tokens = n_blocks * block
        concurrency = n_blocks / ceil(length / block) if v1 else tokens / length
        if two_pools:
            window_tokens = floor(tokens * ratio)
            longest = max(s.footprint.window_tokens for s in stages)
            concurrency = min(concurrency, window_tokens / min(length, longest))
    else:
        concurrency = min((has / need for has, need in zip(room, per_sequence, strict=True) if need), default=0.0)
        tokens = floor(concurrency * length)
    tight = min(range(len(stages)), key=lambda i: room[i] / per_sequence[i] if per_sequence[i] else inf)
    largest = max((s.footprint for s in stages), key=lambda f: f.growth_bytes_per_token + f.window_bytes_per_token)
    full, scarce = concurrency >= 1, (per_sequence[tight], room[tight])
    fixed = largest.state_bytes_per_sequence + sum(b * w for b, w in largest.windows)
    verdict = _verdict(case, ranks, n_blocks=n_blocks, full=full, stages=stages, length=length, scarce=scarce)
    shortage = verdict[0] if verdict else ""
    return MemoryPlan(
        ranks=tuple(ranks),
        stages=tuple(stages),
        limits=limits,
        n_pools=case.layout.dp,
        block_tokens=block,
        n_blocks=n_blocks,
        kv_tokens=tokens,
        window_pool_tokens=window_tokens,
        kv_bytes_per_token=largest.growth_bytes_per_token + largest.window_bytes_per_token,
        fixed_bytes_per_sequence=fixed,
        full_length_bytes=per_sequence[tight],
        max_concurrency=concurrency,
        n_host_blocks=_blocks(case.options.swap_space_bytes, max(s.block_bytes for s in stages)),
        fits_full_length=full and not shortage,
        starts=not shortage,
        reason=shortage,
        needs_bytes=verdict[1] if verdict else scarce[0],
        has_bytes=verdict[2] if verdict else scarce[1],
        warnings=_warnings(case, ranks, full=full, length=length, tokens=tokens),
        assumed=assumed,
    )


def _verdict(
    case: MemoryCase,
    ranks: list[RankMemory],
    *,
    n_blocks: int,
    full: bool,
    stages: list[StagePlan],
    length: int,
    scarce: tuple[float, float],
) -> tuple[str, float, float] | None:
    """Return why the engine refuses to start, what it needs and what it has; None where it starts.

    `scarce`: bytes of KV that one full sequence needs on the stage that decides, and the room there.
    """
    others = case.options.used_by_others_bytes
    for rank in ranks:
        free = rank.total_bytes - others
        if rank.budget_bytes > free * (1 + 1e-12):
            text = (
                f"stage {rank.stage} asks for {bytes_text(rank.budget_bytes)} but {bytes_text(max(0.0, free))} are free"
            )
            return text, rank.budget_bytes, free
        pinned = rank.pool_bytes + rank.budget_bytes - rank.available_bytes - rank.withheld_bytes
        if case.options.num_gpu_blocks_override is not None and pinned > free:
            blocks = f"{rank.n_blocks} KV blocks as stated"
            text = (
                f"stage {rank.stage} needs {bytes_text(pinned)} with {blocks} but {bytes_text(max(0.0, free))} are free"
            )
            return text, pinned, free
    rank = min(ranks, key=lambda r: r.available_bytes - stages[r.stage].block_bytes)
    is_growing = any(stage.n_blocks < inf for stage in stages)
    if rank.available_bytes <= 0 or (is_growing and n_blocks < 1):
        block = case.options.block_tokens or case.runtime.block_tokens
        needs = rank.budget_bytes - rank.available_bytes + stages[rank.stage].block_bytes
        text = (
            f"stage {rank.stage} needs {bytes_text(needs)} with the first KV block of {block} tokens "
            f"and has {bytes_text(rank.budget_bytes)} ({rank.utilization:g} of {bytes_text(rank.total_bytes)})"
        )
        return text, needs, rank.budget_bytes
    demands_full_length = case.runtime.memory.accounting in ("vllm-v0", "vllm-v1", "plain")
    if not full and demands_full_length:
        text = f"the KV pool cannot hold one sequence of {length} tokens"
        return text, *scarce
    return None


def _warnings(case: MemoryCase, ranks: list[RankMemory], *, full: bool, length: int, tokens: int) -> tuple[str, ...]:
    rows = []
    for rank in ranks:
        beside = rank.total_bytes - case.options.used_by_others_bytes - rank.budget_bytes
        if rank.outside_bytes > beside:
            rows.append(
                f"stage {rank.stage}: {bytes_text(rank.outside_bytes)} of graphs and activations have "
                f"{bytes_text(max(0.0, beside))} beside the budget"
            )
            break
    if not full and tokens:
        rows.append(f"a sequence of {length} tokens does not fit in a pool of {tokens}")
    position = case.model.max_position_tokens
    if position is not None and length > position:
        rows.append(f"the context limit {length} is beyond the {position} positions that the model was trained for")
    return tuple(rows)
