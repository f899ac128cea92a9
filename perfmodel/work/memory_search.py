"""Memory questions asked backwards: the largest context, the smallest utilisation, and what would make a case fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from perfmodel.bisection import first_true, last_true
from perfmodel.errors import Fault, InfeasibleError, SpecError
from perfmodel.specs.quantization import Scheme
from perfmodel.units import bytes_text
from perfmodel.work.memory import memory_plan, memory_plan_with, stage_weights
from perfmodel.work.memory_rules import sequence_bytes
from perfmodel.work.memory_types import MemoryCase, MemoryPlan

__all__ = [
    "Remedy",
    "concurrency_at",
    "does_not_fit",
    "largest_context_tokens",
    "smallest_utilization",
    "utilization_for_tokens",
    "what_would_fit",
]

_LONGEST_TOKENS: Final = 2**24
"""Contexts are searched up to here where the model states no limit of its own."""
_UTILIZATION_STEPS: Final = 10_000
"""A utilisation is found to a ten-thousandth: finer than any engine's log."""
_SAFE_UTILIZATION: Final = 0.97
"""Above this share the driver and other processes usually take what is left, so that it is not proposed."""
_RANKS: Final = (1, 2, 4, 8, 16, 32, 64)


def _fits(case: MemoryCase, weights: Sequence[Mapping[str, float]]) -> bool:
    try:
        return memory_plan_with(case, weights).fits_full_length
    except SpecError:
        return False


def largest_context_tokens(case: MemoryCase, *, beyond_model: bool = False) -> int:
    """Return the largest context limit with which the case starts and holds one full sequence; 0 for none.

    At most the positions that the model was trained for, unless `beyond_model`. An engine that switches to chunked
    prefill above some limit may fit there though it does not fit a little below: both sides are searched.
    """
    position = case.model.max_position_tokens
    high = _LONGEST_TOKENS if beyond_model or position is None else position
    above = case.runtime.scheduler.chunked_prefill_above_tokens
    weights = stage_weights(case)

    def fits(length: int) -> bool:
        return _fits(case.with_options(max_model_len=length), weights)

    ranges = [(1, high)]
    if above is not None and above < high and case.options.chunked_prefill is None:
        ranges = [(above + 1, high), (1, above)]
    return next((best for low, top in ranges if (best := last_true(fits, low, top)) is not None), 0)


def _utilization(case: MemoryCase, enough: Callable[[MemoryPlan], bool]) -> float | None:
    """Return the smallest utilisation whose plan is `enough`; only blocks may be asked, not whether it starts."""
    weights = stage_weights(case)

    def holds(step: int) -> bool:
        frac = step / _UTILIZATION_STEPS
        return enough(memory_plan_with(case.with_options(utilization=frac, kv_cache_memory_bytes=None), weights))

    step = first_true(holds, 1, _UTILIZATION_STEPS)
    return None if step is None else step / _UTILIZATION_STEPS


def smallest_utilization(case: MemoryCase) -> float | None:
    """Return the smallest utilisation (or static fraction) that holds one full sequence; None where none does."""
    found = _utilization(case, lambda plan: plan.n_blocks >= 1 and plan.max_concurrency >= 1)
    if found is None or not memory_plan(case.with_options(utilization=found, kv_cache_memory_bytes=None)).starts:
        return None
    return found


def utilization_for_tokens(case: MemoryCase, kv_tokens: int) -> float | None:
    """Return the smallest utilisation whose pool holds `kv_tokens`; None where not even all of the device does."""
    return _utilization(case, lambda plan: plan.kv_tokens >= kv_tokens)


def concurrency_at(plan: MemoryPlan, length: float) -> float:
    """Return how many sequences of `length` tokens fit at once in one pool, in whole blocks, windows full but no more.

    This is the concurrency that a real mix of lengths sees, not the engine's worst case.
    """
    found = []
    for i, stage in enumerate(plan.stages):
        need = sequence_bytes(stage.footprint, length, block_tokens=plan.block_tokens, margin_tokens=0.0)
        room = min(rank.pool_bytes for rank in plan.ranks if rank.stage == i)
        if need:
            found.append(room / need)
    if plan.window_pool_tokens is not None:
        window = max(stage.footprint.window_tokens for stage in plan.stages)
        found = [plan.kv_tokens / length, plan.window_pool_tokens / min(length, window)]
    return min(found, default=0.0)


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that makes the case fit, with the number that matters and what the plan becomes."""

    kind: str
    text: str
    value: float
    plan: MemoryPlan


def _remedy(kind: str, text: str, value: float, case: MemoryCase) -> Remedy | None:
    try:
        plan = memory_plan(case)
    except SpecError:
        return None
    return Remedy(kind, text, value, plan) if plan.fits_full_length else None


def _fewer_seqs(case: MemoryCase, plan: MemoryPlan, weights: Sequence[Mapping[str, float]]) -> Remedy | None:
    seqs = last_true(lambda n: _fits(case.with_options(max_num_seqs=n), weights), 1, plan.limits.max_num_seqs - 1)
    if seqs is None:
        return None
    changed = case.with_options(max_num_seqs=seqs)
    return _remedy("max_num_seqs", f"--max-num-seqs {seqs} (sampling is profiled for fewer)", seqs, changed)


def _fewer_tokens(case: MemoryCase, plan: MemoryPlan, weights: Sequence[Mapping[str, float]]) -> Remedy | None:
    def fits(n: int) -> bool:
        return _fits(case.with_options(max_num_batched_tokens=n, chunked_prefill=True), weights)

    # A budget below max_num_seqs would cap the sequences instead, which is another remedy.
    tokens = last_true(fits, plan.limits.max_num_seqs, plan.limits.max_num_batched_tokens - 1)
    if tokens is None:
        return None
    tokens = tokens // 256 * 256 if tokens > 256 else tokens
    changed = case.with_options(max_num_batched_tokens=tokens, chunked_prefill=True)
    text = f"--max-num-batched-tokens {tokens} with chunked prefill"
    return _remedy("max_num_batched_tokens", text, tokens, changed)


def _wider_cases(case: MemoryCase) -> Iterator[tuple[int, MemoryCase]]:
    """Yield the case over more and more devices, by the tensor parallelism that spreads it."""
    if any(device != case.devices[0] for device in case.devices):
        return
    for tp in (n for n in _RANKS if n > case.layout.tp):
        try:
            ep = tp * case.layout.dp if case.layout.ep == case.layout.n_expert_ranks > 1 else case.layout.ep
            layout = replace(case.layout, tp=tp, ep=ep).checked_for(case.model)
        except SpecError:
            continue
        yield tp, replace(case, layout=layout, devices=case.devices[:1])


def _more_devices(case: MemoryCase) -> Remedy | None:
    for tp, wider in _wider_cases(case):
        found = _remedy("tp", f"tensor parallelism {tp} ({wider.layout.n_devices} devices)", tp, wider)
        if found:
            return found
    return None


def _lighter_on_more_devices(case: MemoryCase, schemes: Sequence[Scheme], most_tp: float) -> Remedy | None:
    """Return the fewest devices, below a tensor parallelism, on which lighter weights fit that do not fit on these."""
    for tp, wider in _wider_cases(case):
        found = _lighter_weights(wider, schemes) if tp < most_tp else None
        if found:
            text = f"{found.text} with tensor parallelism {tp} ({wider.layout.n_devices} devices)"
            return replace(found, kind="weights_tp", text=text)
    return None


def _lighter_weights(case: MemoryCase, schemes: Sequence[Scheme]) -> Remedy | None:
    lighter = [s for s in schemes if s.bits_with_scales < case.scheme.bits_with_scales]
    for scheme in sorted(lighter, key=lambda s: -s.bits_with_scales):
        text = f"weights as {scheme.name} ({scheme.bits_with_scales:.3g} bits)"
        found = _remedy("weights", text, scheme.bits_with_scales, replace(case, scheme=scheme))
        if found:
            return found
    return None


def _more_utilization(case: MemoryCase) -> Remedy | None:
    found = smallest_utilization(case)
    if found is None or found > _SAFE_UTILIZATION:
        return None
    changed = case.with_options(utilization=found, kv_cache_memory_bytes=None)
    instead = "no --kv-cache-memory-bytes, and " if case.options.kv_cache_memory_bytes is not None else ""
    return _remedy("utilization", f"{instead}--gpu-memory-utilization {found:.4g} or more", found, changed)


def _shorter_context(case: MemoryCase) -> Remedy | None:
    length = largest_context_tokens(case)
    if not length:
        return None
    return _remedy("max_model_len", f"--max-model-len {length}", length, case.with_options(max_model_len=length))


def _smaller_kv(case: MemoryCase) -> Remedy | None:
    if case.options.kv_element_bytes is not None and case.options.kv_element_bytes <= 1:
        return None
    return _remedy("kv_dtype", "an FP8 KV cache", 1.0, case.with_options(kv_element_bytes=1.0))


def what_would_fit(case: MemoryCase, *, schemes: Sequence[Scheme] = ()) -> tuple[Remedy, ...]:
    """Return changes with which the case starts and holds one full sequence, cheapest first.

    Each alone suffices. `schemes` are quantisations that may be proposed for the weights; where none fits on these
    devices, they are proposed with the fewest devices that hold them.
    """
    plan, weights = memory_plan(case), stage_weights(case)
    lighter, wider = _lighter_weights(case, schemes), _more_devices(case)
    both = None if lighter else _lighter_on_more_devices(case, schemes, wider.value if wider else math.inf)
    found = (
        _more_utilization(case),
        _fewer_seqs(case, plan, weights),
        _fewer_tokens(case, plan, weights),
        _smaller_kv(case),
        _shorter_context(case),
        lighter,
        both,
        wider,
    )
    return tuple(remedy for remedy in found if remedy is not None)


def does_not_fit(case: MemoryCase, plan: MemoryPlan, *, schemes: Sequence[Scheme] = ()) -> InfeasibleError:
    """Return the error that says what is needed, what is there and what would fit."""
    remedies = [remedy.text for remedy in what_would_fit(case, schemes=schemes)]
    reason = plan.reason or f"a sequence of {plan.limits.max_model_len} tokens does not fit"
    has, needs = max(0.0, plan.has_bytes), plan.needs_bytes
    where = " + ".join(dict.fromkeys(device.title for device in case.devices))
    fitting = remedies or ["nothing that changes flags, KV dtype, weights or tensor parallelism"]
    return InfeasibleError(
        f"{case.model.title or case.model.name} does not fit on {case.layout.n_devices} x {where}",
        where="memory of one rank",
        got=bytes_text(has),
        expected=f"{bytes_text(needs)}, so that {bytes_text(max(0.0, needs - has))} are short: {reason}",
        faults=[
            *(Fault(f"would fit: {text}") for text in fitting),
            *([Fault(f"assumed: {'; '.join(plan.assumed)}")] if plan.assumed else []),
        ],
    )
