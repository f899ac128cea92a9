"""From a settled case to what the simulation needs: limits of the scheduler, blocks of the pool, the clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from perfmodel.cost.host import first_token_time
from perfmodel.errors import SpecError
from perfmodel.serving.arrivals import Trace
from perfmodel.serving.clock import TableClock
from perfmodel.serving.decoding import ONE_TOKEN, Pace
from perfmodel.serving.engine import ServingSetup
from perfmodel.serving.fleet_setup import Disaggregation
from perfmodel.serving.options import ServingOptions
from perfmodel.serving.parts import kv_link, shared_device, swap_of, window_groups
from perfmodel.serving.scheduler import SchedulerLimits
from perfmodel.serving.step_table import EngineTimes, step_table
from perfmodel.specs.quantization import Scheme
from perfmodel.step.answer import checked_memory
from perfmodel.step.question import Case
from perfmodel.units import NS_PER_S, time_text
from perfmodel.work.memory_types import MemoryPlan

__all__ = ["ServingCase", "policy_of_plan", "serving_case"]

_V0_WATERMARK_FRAC: Final = 0.01
"""Share of blocks that vLLM V0 keeps free at admission (vllm/core/block_manager.py)."""
_POLICY_OF_ACCOUNTING: Final = {
    "vllm-v0": "prefill-first",
    "vllm-v1": "mixed",
    "sglang": "prefill-first",
    "mindie": "prefill-first",
    "free-fraction": "mixed",
    "plain": "static",
}

_CACHES_PREFIXES: Final = ("vllm-v1", "sglang")
"""Accountings of engines that look prompts up in a prefix cache unless they are told not to."""


@dataclass(frozen=True, eq=False, slots=True)
class ServingCase:
    """A case ready to be simulated, with everything that was assumed on the way."""

    case: Case
    plan: MemoryPlan
    setup: ServingSetup
    clock: TableClock
    assumed: tuple[str, ...]
    warnings: tuple[str, ...]


def serving_case(
    case: Case,
    trace: Trace,
    *,
    policy: str | None = None,
    options: ServingOptions | None = None,
    schemes: Callable[[], Sequence[Scheme]] = tuple,
) -> ServingCase:
    """Return the simulation behind a case for a trace.

    Raises InfeasibleError where the model does not fit, SpecError for what is not simulated.
    """
    options = options or ServingOptions()
    assumed = list(case.assumed)
    served = trace.input_tokens + trace.output_tokens
    if case.memory.options.max_model_len is None:
        longest, most = int(served.max()), case.setup.model.max_position_tokens
        why = "the longest request"
        if most is not None and longest > most:
            longest, why = most, "the longest of the model"
        case = replace(case, memory=case.memory.with_options(max_model_len=longest))
        assumed.append(f"context limit {longest} tokens ({why})")
    plan = checked_memory(case, schemes=schemes)
    if policy is None:
        policy = policy_of_plan(case, plan)
        assumed.append(f"scheduling {policy} (as {case.setup.runtime.name} does)")
    outside_s = _outside_s(case, trace)
    if outside_s:
        assumed.append(f"{time_text(outside_s)} of way in and out (host_first_token) in TTFT and end to end")
    n_ranks = plan.n_pools if options.separate_ranks else 1
    limits = _limits(case, plan if n_ranks == 1 else replace(plan, n_pools=1), assumed)
    if n_ranks > 1:
        assumed.append(f"{n_ranks} data-parallel ranks, each with blocks of its own, in step with the busiest")
    elif plan.n_pools > 1:
        assumed.append(f"{plan.n_pools} data-parallel ranks share sequences evenly and keep pace")
    if case.setup.layout.pp > 1:
        assumed.append(f"a step passes the pipeline as {case.setup.layout.pp} equal microbatches")
    longest = min(int(served.max()), limits.max_model_len)
    most_read = n_ranks * min(limits.max_num_batched_tokens, int(trace.input_tokens.sum()) + longest)
    n_seqs = n_ranks * min(limits.max_num_seqs, len(trace))
    table = step_table(EngineTimes(case.engine), n_seqs=n_seqs, context_tokens=longest, prompt_tokens=max(most_read, 2))
    setup = _setup(case, plan, trace, options, assumed, policy=policy, limits=limits)
    setup = replace(setup, outside_ns=round(outside_s * NS_PER_S))
    if n_ranks > 1:
        setup = replace(setup, n_replicas=setup.n_replicas * n_ranks, n_ranks=n_ranks)
    assumed += [text for text in plan.assumed if text not in assumed]
    return ServingCase(case, plan, setup, TableClock(table), tuple(assumed), (*case.warnings, *plan.warnings))


def _outside_s(case: Case, trace: Trace) -> float:
    """Return what a request spends outside of the engine, with as many others there as there are users of a replica."""
    n_in_flight = max(1.0, (trace.max_in_flight or 1) / case.n_replicas)
    outside = first_token_time(case.setup.runtime, n_in_flight=n_in_flight)
    return 0.0 if outside is None else float(outside.value)


def _setup(
    case: Case,
    plan: MemoryPlan,
    trace: Trace,
    options: ServingOptions,
    assumed: list[str],
    *,
    policy: str,
    limits: SchedulerLimits,
) -> ServingSetup:
    """Return the setup with everything that the options ask for."""
    n_replicas, apart, sharing = case.n_replicas, None, None
    if options.n_prefill:
        both = options.n_prefill + options.n_decode
        if n_replicas not in (1, both):
            got = f"{n_replicas} replicas, {options.n_prefill} for prefill and {options.n_decode} for decode"
            raise SpecError("prefill and decode cannot be apart", got=got, expected=f"{both} replicas, or one named")
        link, text = kv_link(case, plan, options)
        n_replicas, apart = both, Disaggregation(n_prefill=options.n_prefill, n_decode=options.n_decode, link=link)
        assumed += [f"{both} replicas like the one named: {options.n_prefill} prefill, {options.n_decode} decode", text]
    if options.n_instances > 1:
        n_replicas *= options.n_instances
        inputs, outputs = float(trace.input_tokens.mean()), float(trace.output_tokens.mean())
        most = limits.n_blocks * limits.block_tokens / (inputs + outputs)
        n_seqs = max(1.0, min(float(limits.max_num_seqs), most, len(trace) / n_replicas))
        sharing, text = shared_device(case, plan, options, n_seqs=n_seqs, input_tokens=inputs, output_tokens=outputs)
        assumed.append(text)
    swap = swap_of(case, plan) if options.swaps else None
    if swap is not None:
        assumed.append(f"a block crosses the host link in {swap.block_ns / 1e3:.3g} us, and hides behind nothing")
    speculation = case.setup.speculation
    pace = ONE_TOKEN
    if speculation is not None:
        pace = Pace.of(speculation.acceptance_length, n_draft=int(speculation.n_draft))
        assumed.append("every sequence gains the mean of the speculative tokens, rounded over steps")
    return ServingSetup(
        limits=limits,
        policy=policy,
        order=options.order,
        n_replicas=n_replicas,
        routing=options.routing,
        prefix_cache=_caches_prefixes(case, trace, options, limits),
        pace=pace,
        swap=swap,
        window=options.window,
        apart=apart,
        failures=options.failures,
        sharing=sharing,
    )


def _caches_prefixes(case: Case, trace: Trace, options: ServingOptions, limits: SchedulerLimits) -> bool:
    """Return whether prompts find what others have read: as stated, or where the engine does so by default."""
    if trace.prefixes is None or limits.n_window_groups:
        return False
    if options.prefix_cache is not None:
        return options.prefix_cache
    return case.setup.runtime.memory.accounting in _CACHES_PREFIXES


def policy_of_plan(case: Case, plan: MemoryPlan) -> str:
    """Return how the engine of a case schedules with the limits of its plan: mixed, prefill-first or static.

    vLLM V0 reads prompts beside decodes once prompts are cut; SGLang does not (unless --enable-mixed-chunk); in-flight
    batching of TensorRT-LLM does, also with whole prompts.
    """
    accounting = case.setup.runtime.memory.accounting
    if accounting == "vllm-v0" and plan.limits.chunked_prefill:
        return "mixed"
    return _POLICY_OF_ACCOUNTING[accounting]


def _limits(case: Case, plan: MemoryPlan, assumed: list[str]) -> SchedulerLimits:
    """Return what the scheduler may do, with windows in blocks where they can be told apart."""
    runtime = case.setup.runtime
    v0 = runtime.memory.accounting == "vllm-v0"
    limits = SchedulerLimits(
        max_num_seqs=plan.limits.max_num_seqs * plan.n_pools,
        max_num_batched_tokens=plan.limits.max_num_batched_tokens * plan.n_pools,
        max_model_len=plan.limits.max_model_len,
        n_blocks=max(1, plan.kv_tokens // plan.block_tokens) * plan.n_pools,
        block_tokens=plan.block_tokens,
        chunked=plan.limits.chunked_prefill,
        watermark_frac=_V0_WATERMARK_FRAC if v0 else 0.0,
        reserves_prompt=runtime.scheduler.reserves_prompt,
    )
    if not any(s.footprint.windows or s.footprint.state_bytes_per_sequence for s in plan.stages):
        return limits
    windows = window_groups(plan)
    if windows is None:
        assumed.append("KV of windows and states counted as blocks of the mean: kv_tokens of the memory plan")
        return limits
    groups, text = windows
    assumed.append(text)
    return replace(limits, **groups)  # type: ignore[arg-type]
