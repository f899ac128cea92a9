"""The steady state of a settled case: its memory, its limits, its replicas, and what must be said about the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.errors import SpecError
from perfmodel.estimate import Num, band_factor, relative_sd
from perfmodel.serving.deployment import policy_of_plan
from perfmodel.serving.steady import Policy, SteadyServing
from perfmodel.serving.steady_load import steady_limits, steady_serving
from perfmodel.specs.quantization import Scheme
from perfmodel.step.answer import checked_memory
from perfmodel.step.question import Case
from perfmodel.work.memory_types import MemoryPlan

__all__ = ["SteadyCase", "steady_case"]

Bands = dict[str, tuple[Num, Num, Num]]


@dataclass(frozen=True, eq=False, slots=True)
class SteadyCase:
    """A case in steady state. `one` is one replica; loads are spread evenly over `n_replicas`."""

    case: Case
    plan: MemoryPlan
    one: SteadyServing
    assumed: tuple[str, ...]
    warnings: tuple[str, ...]

    def figures(self) -> Bands:
        """Return name -> (value, low, high) of the whole deployment: times in seconds, rates a second; 80 % bands.

        NaN where the load is not stable (a rate then is what a full engine does).
        """
        one, n = self.one, float(self.case.n_replicas)
        e2e = band_factor(relative_sd(one.e2e) * one.e2e_gain)
        ttft = band_factor(relative_sd(one.ttft) * one.e2e_gain)
        tpot = band_factor(relative_sd(one.tpot) * one.tpot_gain)
        open_loop = np.isfinite(one.capacity_requests_per_s)
        rate = np.where(open_loop & (np.asarray(one.stable) > 0), 1.0, band_factor(relative_sd(one.e2e)))[()]
        found = {
            "ttft_s": (one.ttft_s, ttft),
            "tpot_s": (one.tpot_s, tpot),
            "e2e_s": (one.e2e_s, e2e),
            "output_tokens_per_s": (one.output_tokens_per_s * n, rate),
            "requests_per_s": (one.requests_per_s * n, rate),
            "output_tokens_per_s_per_device": (one.output_tokens_per_s * n / self.case.n_devices, rate),
        }
        return {name: (value, value / factor, value * factor) for name, (value, factor) in found.items()}


def steady_case(
    case: Case,
    *,
    concurrency: Num | None = None,
    requests_per_s: Num | None = None,
    input_tokens: Num | None = None,
    output_tokens: Num | None = None,
    burst_frac: Num = 0.0,
    schemes: Callable[[], Sequence[Scheme]] = tuple,
) -> SteadyCase:
    """Return the steady state of all replicas of a case under users or a rate, which broadcast with the lengths.

    Lengths are those of the case where they are not given. Raises InfeasibleError where the model does not fit or the
    cache cannot hold one such request, SpecError for static batches, which have no steady state.
    """
    prompt = case.workload.input_tokens if input_tokens is None else input_tokens
    output = case.workload.output_tokens if output_tokens is None else output_tokens
    assumed = list(case.assumed)
    longest = int(np.max(np.asarray(prompt) + np.asarray(output)))
    if case.memory.options.max_model_len is None:
        case = replace(case, memory=case.memory.with_options(max_model_len=longest))
        assumed.append(f"context limit {longest} tokens (input + output)")
    plan = checked_memory(case, schemes=schemes)
    named = policy_of_plan(case, plan)
    if named == "static":
        raise SpecError(
            f"{case.setup.runtime.title} serves static batches, which have no steady state",
            expected="an engine that batches continuously",
            cure="`perfmodel estimate` answers for one batch.",
        )
    policy: Policy = "mixed" if named == "mixed" else "prefill-first"
    assumed.append(f"scheduling {policy} (as {case.setup.runtime.name} does)")
    limits = steady_limits(plan, input_tokens=prompt, output_tokens=output, policy=policy)
    if plan.n_pools > 1:
        assumed.append(f"{plan.n_pools} data-parallel ranks share sequences evenly and keep pace")
    share = 1.0 / case.n_replicas
    one = steady_serving(
        case.engine,
        limits,
        input_tokens=prompt,
        output_tokens=output,
        concurrency=None if concurrency is None else concurrency * share,
        requests_per_s=None if requests_per_s is None else requests_per_s * share,
        burst_frac=burst_frac,
    )
    assumed += [text for text in plan.assumed if text not in assumed]
    return SteadyCase(case, plan, one, tuple(dict.fromkeys(assumed)), (*case.warnings, *plan.warnings, *_remarks(one)))


def _remarks(one: SteadyServing) -> tuple[str, ...]:
    """Return sentences about what the closed form leaves out."""
    found = []
    if np.any(np.asarray(one.kv_limited) > 0):
        found.append(
            "the KV cache holds fewer requests than are sent: the rest wait, some are preempted and read again; the "
            "closed form is too kind there: `perfmodel simulate` counts it"
        )
    elif np.any(np.asarray(one.needs_simulation) > 0):
        found.append(
            "the KV cache does not hold all requests at full length: some may be preempted; `perfmodel simulate` tells"
        )
    if np.any(np.asarray(one.seqs_limited) > 0):
        found.append("max_num_seqs holds fewer requests than are sent: the rest wait for a slot")
    if not np.all(np.asarray(one.stable) > 0):
        grows = float(np.max(one.growth_requests_per_s))
        found.append(f"not stable: requests come faster than they can be served, what waits grows by {grows:.4g}/s")
    return tuple(found)
