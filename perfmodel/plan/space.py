"""What is searched: hardware x runtime x weights x KV cache x layout x token budget, each as a settled case.

Feasibility comes first. A layout that the model cannot be cut into, that no wire joins, that does not start or cannot
hold one such request is refused with its reason, before any time is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Final, NamedTuple

from perfmodel.errors import InfeasibleError, PerfmodelError, SpecError
from perfmodel.plan.demand import Demand, Targets
from perfmodel.serving.deployment import policy_of_plan
from perfmodel.serving.steady import Policy
from perfmodel.specs.catalogue import Catalogue, Hardware
from perfmodel.specs.deployment import Deployment
from perfmodel.specs.device import Device
from perfmodel.specs.layout import Layout
from perfmodel.specs.model import Model, MoeFfn
from perfmodel.step.question import Case, Question, case_of
from perfmodel.work.memory import memory_plan
from perfmodel.work.memory_search import concurrency_at, does_not_fit
from perfmodel.work.memory_types import MemoryPlan

__all__ = ["Candidate", "Cut", "Family", "Refused", "Space", "candidate_of", "candidates", "cuts", "families"]

_TP: Final = (1, 2, 4, 8, 16)
_PP: Final = (1, 2, 4)
_DP: Final = (2, 4, 8, 16, 32)
_MOST_RANKS: Final = 32
"""Replicas of more devices than these are searched only where sizes are given."""
_EIGHT_BIT: Final = {"fp8": "fp8", "int8": "w8a8"}
"""The usual scheme of eight bits for each dtype that a matrix engine multiplies in."""


class Cut(NamedTuple):
    """Sizes of a layout as a launch line states them."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1

    @property
    def n_devices(self) -> int:
        """Devices of one replica."""
        return self.tp * self.pp * self.dp

    @property
    def text(self) -> str:
        """The sizes that are not 1, as in tp8 or tp4 pp2.

        >>> Cut(tp=4, pp=2).text, Cut().text
        ('tp4 pp2', 'tp1')
        """
        sizes = [f"{name}{size}" for name, size in zip(self._fields, self, strict=True) if size > 1]
        return " ".join(sizes) or "tp1"


class Family(NamedTuple):
    """What a buyer tells apart: rivals are ranked by the best layout of each family."""

    model: str
    hardware: str
    runtime: str
    quantization: str
    kv_cache_dtype: str

    @property
    def stored_text(self) -> str:
        """How weights and cache are held, in words."""
        weights = "unquantised" if self.quantization == "none" else self.quantization
        cache = "16-bit" if self.kv_cache_dtype == "auto" else self.kv_cache_dtype
        return f"{weights} weights, {cache} KV"


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Names and sizes to search. Empty: what is usual for the device and model (see `families` and `cuts`).

    `in_flight` are requests in flight on a replica; empty: those that the demand needs. `headroom_frac` of the KV
    cache stays free.
    """

    models: tuple[str, ...]
    hardware: tuple[str, ...]
    runtimes: tuple[str, ...] = ()
    quantizations: tuple[str, ...] = ()
    kv_cache_dtypes: tuple[str, ...] = ()
    tp: tuple[int, ...] = ()
    pp: tuple[int, ...] = ()
    dp: tuple[int, ...] = ()
    token_budgets: tuple[int, ...] = ()
    in_flight: tuple[int, ...] = ()
    max_num_seqs: int | None = None
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    headroom_frac: float = 0.0
    calibration: str = "auto"

    def __post_init__(self) -> None:
        if not self.models or not self.hardware:
            raise SpecError("nothing to search", expected="at least one model and one device")
        if not 0 <= self.headroom_frac < 1:
            raise SpecError(
                "the headroom cannot be kept", got=f"{self.headroom_frac:g}", expected="a fraction from 0 to below 1"
            )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A family, a layout and a token budget that start: `most_in_flight` requests fit on one replica."""

    family: Family
    cut: Cut
    case: Case
    plan: MemoryPlan
    policy: Policy
    most_in_flight: float

    @property
    def device(self) -> Device:
        """The device that it runs on."""
        return self.case.setup.devices[0]


@dataclass(frozen=True, slots=True)
class Refused:
    """A family and layout that cannot be, and why: `kind` is layout, memory, links or question.

    `case` is there where memory lacks, to ask what would fit.
    """

    family: Family
    cut: Cut
    kind: str
    reason: str
    case: Case | None = None


def _usual_runtimes(device: Device) -> tuple[str, ...]:
    return ("vllm-ascend-0.18", "mindie-2.1") if device.vendor == "huawei" else ("vllm-0.11",)


def _usual_schemes(own: str, device: Device) -> tuple[str, ...]:
    """Return the checkpoint's own weights, and where those are of 16 bits the 8-bit ones that the device multiplies."""
    if own != "none":
        return (own,)
    fits = next((scheme for dtype, scheme in _EIGHT_BIT.items() if device.has_rate(dtype)), None)
    scheme = "w8a8-ascend" if fits == "w8a8" and device.vendor == "huawei" else fits
    return ("none",) if scheme is None else ("none", scheme)


def _usual_kv(device: Device) -> tuple[str, ...]:
    """Return the cache in the model's dtype, and in FP8 where the usual engine has it."""
    return ("auto", "fp8") if device.vendor in ("nvidia", "amd") else ("auto",)


def families(catalogue: Catalogue, space: Space) -> Iterator[tuple[Family, Hardware, Model]]:
    """Yield every family with its hardware and model, in the order of the names."""
    for model, hardware in product(space.models, space.hardware):
        choice, found = catalogue.model(model), catalogue.hardware(hardware)
        own = space.quantizations or _usual_schemes(choice.scheme, found.device)
        axes = (space.runtimes or _usual_runtimes(found.device), own, space.kv_cache_dtypes or _usual_kv(found.device))
        for runtime, scheme, kv in product(*axes):
            if scheme == "auto":
                scheme = choice.scheme
            yield Family(model, hardware, runtime, scheme, kv), found, choice.model


def cuts(model: Model, space: Space, most_devices: int) -> Iterator[Cut]:
    """Yield layouts of at most so many devices; what is not stated runs over powers of two.

    A mixture of experts is also cut with experts spread over all ranks of a stage, with and without copies of
    attention (DP attention). Copies of a dense model are replicas, which are counted apart.
    """
    is_moe = any(isinstance(layer.ffn, MoeFfn) for layer in model.layers)
    most = most_devices if space.tp and space.pp else min(most_devices, _MOST_RANKS)
    for tp, pp in product(space.tp or _TP, space.pp or _PP):
        if is_moe:
            for dp in space.dp or (1, *_DP):
                spread = {1, tp * dp} if dp == 1 else {tp * dp}
                yield from (Cut(tp, pp, dp, ep) for ep in sorted(spread) if tp * pp * dp <= most)
        elif tp * pp <= most:
            yield Cut(tp, pp)


def _longest(catalogue: Catalogue, family: Family, demand: Demand) -> int:
    """Return the context limit: the longest request of the mix, as far as the model reaches."""
    limit = catalogue.model(family.model).model.max_position_tokens
    longest = max(demand.longest_tokens, demand.length_tokens)
    return int(longest if limit is None else max(min(longest, limit), demand.length_tokens))


def _checked_context(model: Model, space: Space, demand: Demand) -> None:
    """Raise SpecError where a request is longer than the context, unless a longer limit is stated."""
    limit = space.max_model_len or model.max_position_tokens
    if limit is not None and demand.length_tokens > limit:
        raise SpecError(
            "the demand cannot be served",
            where="context",
            got=f"{demand.length_tokens:g} tokens (input + output)",
            expected=f"at most {limit}, {'as stated' if space.max_model_len else 'the longest of the model'}",
            cure="Shorten the requests, or give --max-model-len if the model allows it.",
        )


def _case(catalogue: Catalogue, space: Space, demand: Demand, family: Family, cut: Cut, budget: int | None) -> Case:
    stated = Deployment(
        tp=cut.tp,
        pp=cut.pp,
        dp=cut.dp if cut.dp > 1 else None,
        ep=cut.ep if cut.ep > 1 else None,
        quantization=family.quantization,
        kv_cache_dtype=family.kv_cache_dtype,
        max_model_len=space.max_model_len or _longest(catalogue, family, demand),
        max_num_seqs=space.max_num_seqs,
        max_num_batched_tokens=budget,
        gpu_memory_utilization=space.gpu_memory_utilization,
    )
    question = Question(
        hardware=family.hardware,
        model=family.model,
        deployment=stated,
        n_devices=None if catalogue.hardware(family.hardware).n_devices is None else cut.n_devices,
        batch=1.0,
        input_tokens=demand.input_tokens,
        output_tokens=demand.output_tokens,
        runtime=family.runtime,
        calibration=space.calibration,
    )
    return case_of(catalogue, question)


def _candidate(case: Case, headroom_frac: float, demand: Demand, family: Family, cut: Cut) -> Candidate | Refused:
    plan = memory_plan(case.memory)
    if not plan.starts:
        return Refused(family, cut, "memory", plan.reason, case)
    named = policy_of_plan(case, plan)
    if named == "static":
        return Refused(
            family, cut, "question", f"{case.setup.runtime.name} serves static batches: nothing to plan with"
        )
    held = float(int(concurrency_at(plan, demand.length_tokens) * (1.0 - headroom_frac)))
    most = min(held, float(plan.limits.max_num_seqs)) * plan.n_pools
    if most < 1:
        reason = f"the KV cache has room for {plan.kv_tokens} tokens and one request has {demand.length_tokens:g}"
        return Refused(family, cut, "memory", reason, case)
    return Candidate(family, cut, case, plan, "mixed" if named == "mixed" else "prefill-first", most)


def candidate_of(case: Case, demand: Demand) -> Candidate:
    """Return one replica of a settled case as a candidate; raises InfeasibleError where it cannot hold a request."""
    limit = case.memory.options.max_model_len or int(max(demand.longest_tokens, demand.length_tokens))
    case = replace(case, n_replicas=1, memory=case.memory.with_options(max_model_len=limit))
    setup, layout = case.setup, case.setup.layout
    names = Family(setup.model.name, setup.devices[0].name, setup.runtime.name, setup.scheme.name, setup.kv_dtype)
    found = _candidate(case, 0.0, demand, names, Cut(layout.tp, layout.pp, layout.dp, layout.ep))
    if isinstance(found, Refused):
        if found.kind == "memory":
            raise does_not_fit(case.memory, memory_plan(case.memory))
        raise InfeasibleError(found.reason)
    return found


def _one_line(error: PerfmodelError) -> str:
    return "; ".join(line.strip() for line in str(error).split("\n"))


def candidates(catalogue: Catalogue, space: Space, demand: Demand, targets: Targets) -> Iterator[Candidate | Refused]:
    """Yield everything that starts, and everything that does not with its reason.

    A combination of names that can never be (an unknown runtime, a scheme the device lacks) raises SpecError.
    """
    for family, hardware, model in families(catalogue, space):
        _checked_context(model, space, demand)
        most = targets.devices_of(hardware.device.name)
        for cut in cuts(model, space, most):
            try:
                Layout(tp=cut.tp, pp=cut.pp, dp=cut.dp, ep=cut.ep).checked_for(model)
            except SpecError as error:
                yield Refused(family, cut, "layout", _one_line(error))
                continue
            for budget in space.token_budgets or (None,):
                try:
                    case = _case(catalogue, space, demand, family, cut, budget)
                    yield _candidate(case, space.headroom_frac, demand, family, cut)
                except (InfeasibleError, SpecError) as error:
                    yield Refused(family, cut, "question", _one_line(error))
