"""The answer to a question: times, rates and memory, each with its band and the limit that binds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from perfmodel.errors import InfeasibleError
from perfmodel.estimate import Bound, Estimate, band_factor, bound_shares, ceiling, combined_exposure, exposure, spread
from perfmodel.specs.calibration import Calibration
from perfmodel.specs.quantization import Scheme
from perfmodel.step.energy import datasheet_s, power_w
from perfmodel.step.question import Case, Workload
from perfmodel.step.request import RequestEstimate, decode_pass, prefill_slice, request_estimate
from perfmodel.step.step import Engine
from perfmodel.work.kernel import Slice
from perfmodel.work.memory import memory_plan
from perfmodel.work.memory_search import concurrency_at, does_not_fit
from perfmodel.work.memory_types import MemoryPlan

__all__ = ["Answer", "Figure", "answer_to", "checked_memory"]


Schemes = Callable[[], Sequence[Scheme]]
"""Gives the weight schemes to propose where a model does not fit; asked only then."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A predicted number with its 80 % band."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, rel_sd: float) -> Figure:
        """Return the log-normal band around a value."""
        factor = float(band_factor(rel_sd))
        return cls(value, value / factor, value * factor)


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything that `estimate` shows. `figures` has base units in its keys; trees explain ttft, tpot and e2e.

    `workload` is what runs at once: its batch is below the one asked for where KV cache or max_num_seqs bind.
    """

    case: Case
    workload: Workload
    request: RequestEstimate
    memory: MemoryPlan
    figures: Mapping[str, Figure]
    bounds: Mapping[str, tuple[tuple[Bound, float], ...]]
    assumed: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def bound(self) -> Bound:
        """What limits the deployment first."""
        return self.bounds["e2e"][0][0]


def checked_memory(case: Case, *, schemes: Schemes = tuple) -> MemoryPlan:
    """Return the memory plan of the case; raises InfeasibleError with what would fit where it does not start."""
    plan = memory_plan(case.memory)
    if not plan.starts:
        raise does_not_fit(case.memory, plan, schemes=schemes())
    return plan


def answer_to(case: Case, *, ideal: Calibration | None = None, schemes: Schemes = tuple) -> Answer:
    """Return the full answer; with `ideal` also the datasheet floor of each time.

    Raises InfeasibleError where weights, activations and one such sequence do not fit.
    """
    work = case.workload
    length = int(work.input_tokens + work.output_tokens)
    assumed = list(case.assumed)
    if case.memory.options.max_model_len is None:
        assumed.append(f"context limit {length} tokens (input + output)")
        case = replace(case, memory=case.memory.with_options(max_model_len=length))
    plan = checked_memory(case, schemes=schemes)
    running, limit, note = _running(case, plan, length)
    engine = case.engine
    budget = float(plan.limits.max_num_batched_tokens)
    request = request_estimate(
        engine,
        batch=running.batch / case.n_replicas,
        input_tokens=running.input_tokens,
        output_tokens=running.output_tokens,
        token_budget=budget,
    )
    warnings = [*case.warnings, *plan.warnings, *note, *_shallow(case)]
    figures = _figures(case, engine, request)
    if ideal is not None:
        figures |= _floors(case, ideal, running, budget)
    bounds = {
        name: _ranked(tree) for name, tree in (("ttft", request.ttft), ("tpot", request.tpot), ("e2e", request.e2e))
    }
    if limit is not None:
        bounds["e2e"] = ((limit, 1.0), *bounds["e2e"])
    assumed += [text for text in plan.assumed if text not in assumed]
    return Answer(
        case, running, request, plan, figures, bounds, tuple(dict.fromkeys(assumed)), tuple(dict.fromkeys(warnings))
    )


def _running(case: Case, plan: MemoryPlan, length: int) -> tuple[Workload, Bound | None, tuple[str, ...]]:
    """Return the workload that runs at once, and what cut it."""
    work, n_pools = case.workload, case.n_replicas * plan.n_pools
    by_kv = float(int(concurrency_at(plan, length))) * n_pools
    by_seqs = float(plan.limits.max_num_seqs) * n_pools
    most = min(by_kv, by_seqs)
    if by_kv < 1:
        raise InfeasibleError(
            "the KV cache cannot hold one such request",
            got=f"room for {plan.kv_tokens} tokens",
            expected=f"at least {length}",
            cure="Shorten the request, or use more devices, lower-bit weights or an FP8 KV cache.",
        )
    if work.batch <= most:
        return work, None, ()
    limit = Bound.KV_CAPACITY if by_kv <= by_seqs else Bound.MAX_NUM_SEQS
    reason = (
        f"the KV cache holds {by_kv:g} requests of {length} tokens"
        if limit is Bound.KV_CAPACITY
        else f"max_num_seqs is {by_seqs:g}"
    )
    note = (
        f"of {work.batch:g} requests {most:g} run at once, since {reason}; the times do not count the wait of the rest"
    )
    return replace(work, batch=most), limit, (note,)


def _shallow(case: Case) -> tuple[str, ...]:
    """Return a remark for each device whose coefficients are those of a class and not its own."""
    if case.calibration.status != "prior":
        return ()
    remarks = []
    for device in {d.name: d for d in case.setup.devices}.values():
        own = case.calibration.for_device(device)
        if not own.is_fitted:
            remarks.append(f"no fit for {device.name}: class-typical coefficients ({own.origin}), wide bands")
    return tuple(remarks)


def _ranked(tree: Estimate) -> tuple[tuple[Bound, float], ...]:
    pairs = ((bound, float(share)) for bound, share in bound_shares(tree).items())
    return tuple(sorted((pair for pair in pairs if pair[1] > 0), key=lambda pair: -pair[1]))


def _figures(case: Case, engine: Engine, r: RequestEstimate) -> dict[str, Figure]:
    n_replicas = case.n_replicas
    of_ttft, of_tpot = exposure(r.ttft), exposure(r.tpot)
    e2e_sd = float(spread(combined_exposure(r.e2e, {id(r.ttft): of_ttft, id(r.tpot): of_tpot})))
    ttft_sd, tpot_sd = float(spread(of_ttft)), float(spread(of_tpot))
    per_s = float(r.output_tokens_per_s) * n_replicas
    per_rank = ceiling(r.batch / float(case.setup.layout.dp))
    prefill = prefill_slice(per_rank, r.input_tokens, n_steps=r.n_prefill_steps)
    mfu, prefill_mbu = _utilisation(engine, prefill, float(r.ttft.value) / float(r.n_prefill_steps))
    decode, n_microbatches = decode_pass(
        engine, batch=r.batch, input_tokens=r.input_tokens, output_tokens=r.output_tokens
    )
    tokens_per_pass = 1.0 if case.setup.speculation is None else case.setup.speculation.acceptance_length
    decode_mfu, mbu = _utilisation(engine, decode, float(r.tpot.value) * tokens_per_pass / float(n_microbatches))
    figures = {
        "ttft_s": Figure.of(float(r.ttft.value), ttft_sd),
        "tpot_s": Figure.of(float(r.tpot.value), tpot_sd),
        "e2e_s": Figure.of(float(r.e2e.value), e2e_sd),
        "output_tokens_per_s": Figure.of(per_s, e2e_sd),
        "output_tokens_per_s_per_device": Figure.of(per_s / case.n_devices, e2e_sd),
        "decode_tokens_per_s": Figure.of(float(r.batch / r.tpot.value) * n_replicas, tpot_sd),
        "requests_per_s": Figure.of(float(r.requests_per_s) * n_replicas, e2e_sd),
        "prefill_mfu_frac": Figure.of(mfu, ttft_sd),
        "decode_mbu_frac": Figure.of(mbu, tpot_sd),
        "decode_mfu_frac": Figure.of(decode_mfu, tpot_sd),
    }
    energy = _energy_j_per_token(case, r, (mfu, prefill_mbu), (decode_mfu, mbu))
    if energy is not None:
        figures["energy_j_per_output_token"] = Figure.of(energy, (case.usual.energy_rel_sd.value**2 + e2e_sd**2) ** 0.5)
    return figures


def _utilisation(engine: Engine, one: Slice, step_s: float) -> tuple[float, float]:
    """Return (MFU, MBU) of the mean device in one step: what the datasheet would need over the time it takes."""
    computing_s = reading_s = 0.0
    for stage in engine.stages:
        computing, reading = datasheet_s(engine, stage, (one,))
        computing_s, reading_s = computing_s + float(computing), reading_s + float(reading)
    busy = step_s * len(engine.stages)
    return (computing_s / busy, reading_s / busy) if busy > 0 else (0.0, 0.0)


def _energy_j_per_token(
    case: Case, r: RequestEstimate, prefill: tuple[float, float], decode: tuple[float, float]
) -> float | None:
    layout = case.setup.layout
    decode_s = float(r.e2e.value) - float(r.ttft.value)
    joules, idle = 0.0, case.usual.idle_power_frac.value
    for stage in range(layout.pp):
        for (mfu, mbu), busy_s in ((prefill, float(r.ttft.value)), (decode, decode_s)):
            watts = power_w(case.setup.device_of_stage(stage), mfu_frac=mfu, mbu_frac=mbu, idle_power_frac=idle)
            if watts is None:
                return None
            joules += float(watts) * busy_s * layout.tp * layout.dp
    return joules / float(r.batch * r.output_tokens)


def _floors(case: Case, ideal: Calibration, running: Workload, token_budget: float) -> dict[str, Figure]:
    floor = request_estimate(
        Engine(case.setup, ideal),
        batch=running.batch / case.n_replicas,
        input_tokens=running.input_tokens,
        output_tokens=running.output_tokens,
        token_budget=token_budget,
    )
    trees = {"ttft_floor_s": floor.ttft, "tpot_floor_s": floor.tpot, "e2e_floor_s": floor.e2e}
    return {name: Figure.of(float(tree.value), 0.0) for name, tree in trees.items()}
