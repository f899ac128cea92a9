"""From a settled case to what the simulation needs: limits of the scheduler, blocks of the pool, the clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from perfmodel.errors import SpecError
from perfmodel.serving.arrivals import Trace
from perfmodel.serving.clock import TableClock
from perfmodel.serving.engine import ServingSetup
from perfmodel.serving.scheduler import SchedulerLimits
from perfmodel.serving.step_table import EngineTimes, step_table
from perfmodel.specs.quantization import Scheme
from perfmodel.step.answer import checked_memory
from perfmodel.step.question import Case
from perfmodel.work.memory_types import MemoryPlan

__all__ = ["ServingCase", "policy_of_plan", "serving_case"]

_V0_WATERMARK_FRAC: Final = 0.01
"""Share of blocks that vLLM V0 keeps free at admission (vllm/core/block_manager.py)."""
_POLICY_OF_ACCOUNTING: Final = {
    "vllm-v0": "prefill-first",
    "vllm-v1": "mixed",
    "sglang": "mixed",
    "mindie": "prefill-first",
    "free-fraction": "mixed",
    "plain": "static",
}


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
    order: str = "fcfs",
    routing: str = "round-robin",
    schemes: Callable[[], Sequence[Scheme]] = tuple,
) -> ServingCase:
    """Return the simulation behind a case for a trace.

    Raises InfeasibleError where the model does not fit, SpecError for what is not simulated.
    """
    if case.setup.speculation is not None:
        raise SpecError(
            "speculative decoding is not simulated",
            expected="no drafted tokens",
            cure="`perfmodel estimate` prices it for a static batch.",
        )
    assumed = list(case.assumed)
    served = trace.input_tokens + trace.output_tokens
    if case.memory.options.max_model_len is None:
        longest = int(served.max())
        case = replace(case, memory=case.memory.with_options(max_model_len=longest))
        assumed.append(f"context limit {longest} tokens (the longest request)")
    plan = checked_memory(case, schemes=schemes)
    accounting = case.setup.runtime.memory.accounting
    if policy is None:
        policy = policy_of_plan(case, plan)
        assumed.append(f"scheduling {policy} (as {case.setup.runtime.name} does)")
    runtime = case.setup.runtime
    limits = _limits(plan, v0=accounting == "vllm-v0", reserves_prompt=runtime.scheduler.reserves_prompt)
    if plan.n_pools > 1:
        assumed.append(f"{plan.n_pools} data-parallel ranks share sequences evenly and keep pace")
    if case.setup.layout.pp > 1:
        assumed.append(f"a step passes the pipeline as {case.setup.layout.pp} equal microbatches")
    if any(s.footprint.windows or s.footprint.state_bytes_per_sequence for s in plan.stages):
        assumed.append("KV of windows and states counted as blocks of the mean: kv_tokens of the memory plan")
    longest = min(int(served.max()), limits.max_model_len)
    most_read = min(limits.max_num_batched_tokens, int(trace.input_tokens.sum()) + longest)
    table = step_table(
        EngineTimes(case.engine),
        n_seqs=min(limits.max_num_seqs, len(trace)),
        context_tokens=longest,
        prompt_tokens=max(most_read, 2),
    )
    setup = ServingSetup(limits=limits, policy=policy, order=order, n_replicas=case.n_replicas, routing=routing)
    assumed += [text for text in plan.assumed if text not in assumed]
    return ServingCase(case, plan, setup, TableClock(table), tuple(assumed), (*case.warnings, *plan.warnings))


def policy_of_plan(case: Case, plan: MemoryPlan) -> str:
    """Return how the engine of a case schedules with the limits of its plan: mixed, prefill-first or static."""
    policy = _POLICY_OF_ACCOUNTING[case.setup.runtime.memory.accounting]
    return "prefill-first" if policy == "mixed" and not plan.limits.chunked_prefill else policy


def _limits(plan: MemoryPlan, *, v0: bool, reserves_prompt: bool) -> SchedulerLimits:
    return SchedulerLimits(
        max_num_seqs=plan.limits.max_num_seqs * plan.n_pools,
        max_num_batched_tokens=plan.limits.max_num_batched_tokens * plan.n_pools,
        max_model_len=plan.limits.max_model_len,
        n_blocks=max(1, plan.kv_tokens // plan.block_tokens) * plan.n_pools,
        block_tokens=plan.block_tokens,
        chunked=plan.limits.chunked_prefill,
        watermark_frac=_V0_WATERMARK_FRAC if v0 else 0.0,
        reserves_prompt=reserves_prompt,
    )
