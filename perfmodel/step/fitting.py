"""Whether memory holds what a step is priced for; a step can be priced either way."""

from __future__ import annotations

from perfmodel.step.question import Case
from perfmodel.work.memory import memory_plan
from perfmodel.work.memory_search import concurrency_at
from perfmodel.work.memory_types import MemoryPlan

__all__ = ["fit_of", "unfit_reason", "unfit_remarks"]


def fit_of(plan: MemoryPlan, length_tokens: float, batch: float) -> tuple[bool, str]:
    """Return whether a batch of sequences of that length fits beside the weights of one replica, and what lacks."""
    if not plan.starts:
        return False, plan.reason
    held = float(int(concurrency_at(plan, length_tokens))) * plan.n_pools
    if held < batch:
        return False, f"KV for {held:g} of {batch:g} sequences"
    return True, ""


def unfit_reason(case: Case, *, batch: float | None = None) -> str:
    """Return what lacks for a batch of the case's requests (its own batch where none is given), "" where all fits.

    Without a stated limit of the context the engine is one for requests of just this length.
    """
    length = int(case.workload.input_tokens + case.workload.output_tokens)
    memory = case.memory
    if memory.options.max_model_len is None:
        memory = memory.with_options(max_model_len=length)
    asked = case.workload.batch if batch is None else batch
    return fit_of(memory_plan(memory), length, asked / case.n_replicas)[1]


def unfit_remarks(case: Case, *, batch: float | None = None) -> tuple[str, ...]:
    """Return what a price assumes where memory does not hold the batch, nothing where it does.

    >>> from perfmodel import api
    >>> unfit_remarks(api.case("llama-2-7b", "ascend-910b2", batch=1, isl=512, osl=16))
    ()
    >>> (remark,) = unfit_remarks(api.case("llama-2-7b", "ascend-910b2", batch=800, isl=512, osl=16))
    >>> remark.startswith("priced as if it fitted: KV for ")
    True
    """
    reason = unfit_reason(case, batch=batch)
    return (f"priced as if it fitted: {reason}",) if reason else ()
