"""Checks of a deployment's figures against the model: rates, latencies, memory, what limits, and whether it starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Final, Literal

from pydantic import Field

from perfmodel.errors import InfeasibleError
from perfmodel.estimate import Z80, Bound
from perfmodel.step.answer import Answer, Figure
from perfmodel.units import GB, bandwidth_text, time_text
from perfmodel.validate.audit.base import Check, Desk, MissingError, Ref, first_line
from perfmodel.validate.audit.figures import figure_text
from perfmodel.validate.audit.traffic import served
from perfmodel.validate.audit.verdict import Finding, Verdict, graded

__all__ = [
    "Feasible",
    "LessThanProportional",
    "LimitCause",
    "MemoryPeak",
    "Speedup",
    "Throughput",
    "Ttft",
    "times_text",
]

_MOST_BATCH: Final = 4096
_IDLE_FRAC: Final = 0.2
"""A resource that is busy for less than this share of the time saturates nothing."""
_CLOSE_FRAC: Final = 0.1
"""A growth within this of the bytes saved is in proportion to them."""
_BOUNDS: Final[Mapping[str, tuple[Bound, ...]]] = {
    "memory bandwidth": (Bound.WEIGHT_READ, Bound.KV_READ, Bound.ACTIVATION_IO),
    "compute": (Bound.COMPUTE,),
    "host": (Bound.HOST, Bound.LAUNCH),
    "host link": (),
    "interconnect": (Bound.LINK,),
}


class Throughput(Check):
    """Generated tokens per second of a set-up."""

    kind: Literal["throughput"]
    setup: str
    figure: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield the rate's place between the hard bound and the band, and how many requests in flight would give it."""
        run, stated = served(desk, self.setup), desk.value(self.figure)
        bound = desk.answer(self.setup, calibration="hard-bound").figures["output_tokens_per_s"].value
        model = run.output_tokens_per_s

        def rate(batch: int) -> float:
            return desk.answer(self.setup, batch=batch).figures["output_tokens_per_s"].value

        fits = _batch_giving(stated, rate)
        asked = desk.setup(self.setup).batch
        yield graded(
            self.kind,
            self.figure.rpartition(".")[2],
            stated=stated,
            model=model.value,
            low=model.low,
            high=model.high,
            most=bound,
            inside="inside the model's band",
            cause=f"{times_text(stated, model.value)} the model at {asked} in flight; {fits}",
            bound=f"above what {run.device} can give at all: {bound:,.0f} tokens/s at its peak rates",
            working=(
                *run.working,
                f"{stated:g} tokens/s for {asked} requests: each gets one every {time_text((asked or 1) / stated)}",
                f"hard bound {bound:,.0f} tokens/s",
                fits,
            ),
        )


class Ttft(Check):
    """Time to first token of a set-up, as a mean or at a percentile."""

    kind: Literal["ttft"]
    setup: str
    figure: Ref
    percentile: Literal[50, 90, 95, 99] | None = None

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield the latency's place, and how many prompts read together would give it."""
        run, stated = served(desk, self.setup), desk.value(self.figure)
        bound = desk.answer(self.setup, calibration="hard-bound", batch=1).figures["ttft_s"].value
        model = run.ttft(self.percentile)

        def latency(batch: int) -> float:
            return desk.answer(self.setup, batch=batch).figures["ttft_s"].value

        alone = latency(1)
        n = _largest(lambda batch: latency(batch) <= stated)
        fits = (
            f"{time_text(stated)} is what {n} prompt{'s' if n > 1 else ''} read together would take"
            if n
            else f"even one prompt alone takes {time_text(alone)} by the model"
        )
        asked = desk.setup(self.setup).batch
        yield graded(
            self.kind,
            self.figure.rpartition(".")[2],
            stated=stated,
            model=model.value,
            low=model.low,
            high=model.high,
            least=bound,
            inside="inside the model's band",
            cause=f"{times_text(stated, model.value)} the model at {asked} in flight; {fits}",
            bound=f"below what one prompt needs at the peak rates of {run.device}: {time_text(bound)}",
            working=(*run.working, f"hard bound of one prompt {time_text(bound)}", fits),
        )


class MemoryPeak(Check):
    """Device memory of a set-up while it serves."""

    kind: Literal["memory_peak"]
    setup: str
    figure: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield whether the engine could hold just so much: one that reserves a share holds that share."""
        stated = desk.printed(self.figure)
        answer = desk.answer(self.setup)
        rank, plan, load = answer.memory.tightest, answer.memory, answer.workload
        held = rank.budget_bytes + (0.0 if rank.graphs_in_budget else rank.graph_bytes)
        kv = load.batch / answer.case.n_replicas * (load.input_tokens + load.output_tokens) * plan.kv_bytes_per_token
        need = rank.weights_on_device_bytes + rank.activation_bytes + rank.non_torch_bytes + kv
        weights = rank.weights_on_device_bytes
        working = (
            f"budget {rank.utilization:g} x {rank.total_bytes / GB:.4g} GB = {rank.budget_bytes / GB:.4g} GB",
            (
                f"the load alone: weights {weights / GB:.4g} + activations {rank.activation_bytes / GB:.3g} + outside "
                f"of the allocator {rank.non_torch_bytes / GB:.3g} + KV of {load.batch:g} requests {kv / GB:.3g} = "
                f"{need / GB:.4g} GB"
            ),
        )
        name = self.figure.rpartition(".")[2]
        reserves = answer.case.setup.runtime.memory.accounting != "plain"
        low = (rank.budget_bytes if reserves else need) - stated.resolution
        high = held + rank.outside_bytes + stated.resolution
        finding = graded(
            self.kind,
            name,
            stated=stated.value,
            model=held,
            low=low,
            high=high,
            least=weights,
            most=rank.total_bytes + stated.resolution,
            inside="the share of the device that the engine reserves"
            if reserves
            else "between the load and the budget",
            cause=f"the load alone needs {need / GB:.4g} GB",
            bound=f"impossible: the weights are {weights / GB:.4g} GB, the device has {rank.total_bytes / GB:.4g}",
            working=working,
        )
        if finding.verdict is Verdict.PLAUSIBLE and reserves:
            reason = (
                f"at utilisation {rank.utilization:g} {answer.case.setup.runtime.name} reserves "
                f"{rank.budget_bytes / GB:.4g} GB whatever the model; {figure_text(name, stated.value)} is no peak of "
                f"it (weights, activations and KV of this load would need {need / GB:.3g} GB)"
            )
            finding = replace(finding, verdict=Verdict.CONTRADICTS_ITSELF, reason=reason)
        yield finding


class Feasible(Check):
    """Whether a set-up can exist: weights, cache and activations fit, the layout works out, the lengths are legal."""

    kind: Literal["feasible"]
    setup: str

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield whether the set-up starts; where it does not, the memory that lacks."""
        try:
            answer = desk.answer(self.setup)
        except InfeasibleError as error:
            needs = [f"{fault}" for fault in error.faults]
            yield Finding(
                check=self.kind,
                verdict=Verdict.CONTRADICTS_PHYSICS,
                reason=f"beyond the device memory: {first_line(error)}",
                working=tuple(needs),
            )
            return
        rank = answer.memory.tightest
        cut = answer.workload.batch < (desk.setup(self.setup).batch or 1)
        yield Finding(
            check=self.kind,
            verdict=Verdict.PLAUSIBLE if cut else Verdict.REPRODUCED,
            reason=f"starts; of the requests {answer.workload.batch:g} run at once"
            if cut
            else f"starts: weights {rank.weights_on_device_bytes / GB:.4g} of {rank.total_bytes / GB:.4g} GB a device",
            working=tuple(f"{name}: {size / GB:.4g} GB" for name, size in rank.waterfall()),
        )


class Speedup(Check):
    """Relative change of a figure from one set-up to another: `figure` = after / before - 1."""

    kind: Literal["speedup"]
    before: str
    after: str
    of: Literal["output_tokens_per_s", "ttft_s"]
    figure: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield the change's place in the band of the model's two answers, taken to err independently."""
        stated = desk.value(self.figure)
        runs = [served(desk, name) for name in (self.before, self.after)]
        figures = [r.output_tokens_per_s if self.of == "output_tokens_per_s" else r.ttft(None) for r in runs]
        ratio = figures[1].value / figures[0].value
        factor = math.exp(Z80 * math.hypot(*(_rel_sd(f) for f in figures)))
        alone = [desk.answer(name, batch=1).figures[self.of].value for name in (self.before, self.after)]
        name = self.figure.rpartition(".")[2]
        listed = ", ".join(
            f"{setup} {figure_text(self.of, f.value)}"
            for setup, f in zip((self.before, self.after), figures, strict=True)
        )
        one = alone[1] / alone[0] - 1.0
        yield graded(
            self.kind,
            name,
            stated=stated,
            model=ratio - 1.0,
            low=ratio / factor - 1.0,
            high=ratio * factor - 1.0,
            inside="inside the band of the two answers",
            cause=f"the model changes by {_change(ratio - 1.0)} at this load, by {_change(one)} for one request alone",
            working=(listed, f"one request alone: {_change(one)}"),
        )


class LimitCause(Check):
    """A resource that is said to limit a set-up, perhaps from some number of requests in flight on."""

    kind: Literal["limit_cause"]
    setup: str
    resource: Literal["memory bandwidth", "compute", "host", "host link", "interconnect"]
    from_batch: Annotated[int, Field(ge=1)] | None = None

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield how busy the resource is at most, and what limits by the model."""
        batch = self.from_batch or desk.setup(self.setup).batch or 1
        answer = desk.answer(self.setup, batch=batch)
        shares = dict(answer.bounds["tpot"])
        busy, how = _busy_frac(self.resource, answer)
        own = sum(shares.get(bound, 0.0) for bound in _BOUNDS[self.resource])
        groups = {name: sum(shares.get(b, 0.0) for b in bounds) for name, bounds in _BOUNDS.items() if bounds}
        leader = max(groups, key=lambda name: groups[name])
        what = ", ".join(
            f"{name} {100 * share:.0f} %" for name, share in sorted(groups.items(), key=lambda p: -p[1]) if share > 0.01
        )
        rates = {n: desk.answer(self.setup, batch=n).figures["output_tokens_per_s"].value for n in (batch, 2 * batch)}
        growth = rates[2 * batch] / rates[batch] - 1.0
        if leader == self.resource:
            verdict, reason = Verdict.REPRODUCED, f"the model agrees: {what} of a decode step"
        elif max(busy, own) >= _IDLE_FRAC:
            verdict = Verdict.PLAUSIBLE
            part = f"{self.resource} takes part ({100 * max(busy, own):.0f} %)"
            reason = f"{part}, but more of a decode step is {leader}: {what}"
        else:
            verdict = Verdict.CONTRADICTS_PHYSICS
            reason = f"{self.resource} is busy {100 * busy:.2g} % of the time at most; by the model it is {what}"
        yield Finding(
            check=self.kind,
            verdict=verdict,
            reason=reason,
            name="busy_frac",
            model=busy,
            working=(
                how,
                f"decode step at batch {batch}: {time_text(answer.figures['tpot_s'].value)}; {what}",
                f"from batch {batch} to {2 * batch} the rate grows by {100 * growth:.0f} %",
            ),
        )


class LessThanProportional(Check):
    """A smaller model that is said not to raise the rate in proportion, since a resource limits: on one device."""

    kind: Literal["less_than_proportional"]
    larger: str
    smaller: str
    resource: Literal["memory bandwidth", "compute", "host"]
    batch: Annotated[int, Field(ge=1)] = 1

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield the growth of the rate beside that of the bytes, and what limits the smaller model.

        Where memory bandwidth or compute limits, less of it to move or compute raises the rate in proportion.
        """
        before, after = (desk.answer(name, batch=self.batch) for name in (self.larger, self.smaller))
        weights = [a.memory.tightest.weights_on_device_bytes for a in (before, after)]
        rates = [a.figures["output_tokens_per_s"].value for a in (before, after)]
        less, growth = weights[0] / weights[1], rates[1] / rates[0]
        shares = dict(after.bounds["tpot"])
        groups = {name: sum(shares.get(b, 0.0) for b in bounds) for name, bounds in _BOUNDS.items() if bounds}
        leader = max(groups, key=lambda name: groups[name])
        holds = growth < less * (1.0 - _CLOSE_FRAC)
        is_cause = leader == self.resource and self.resource == "host"
        found = f"{growth:.2g} times the rate for {less:.2g} times fewer bytes of weights"
        if not holds:
            verdict, reason = Verdict.PLAUSIBLE, f"by the model in proportion: {found}"
        elif is_cause:
            verdict, reason = Verdict.REPRODUCED, f"{found}, since {leader} limits"
        else:
            verdict = Verdict.PLAUSIBLE
            reason = (
                f"not in proportion, as stated ({found}), but where {self.resource} limits it would be: the smaller "
                f"model is limited by {leader} ({100 * groups[leader]:.0f} %)"
            )
        yield Finding(
            check=self.kind,
            verdict=verdict,
            reason=reason,
            name="growth",
            model=growth,
            working=(
                f"batch {self.batch}, weights and rate of each",
                *(
                    f"{a.case.setup.model.title}: {size / GB:.3g} GB, {rate:,.4g} tokens/s"
                    for a, size, rate in zip((before, after), weights, rates, strict=True)
                ),
            ),
        )


def _busy_frac(resource: str, answer: Answer) -> tuple[float, str]:
    """Return the largest share of a decode step for which a resource can be busy at its nominal rate, and how."""
    step_s = answer.figures["tpot_s"].value
    if resource == "memory bandwidth":
        return answer.figures["decode_mbu_frac"].value, "bytes that must be read over nominal bandwidth x step time"
    if resource == "compute":
        return answer.figures["decode_mfu_frac"].value, "flop over peak x step time"
    setup = answer.case.setup
    if resource == "host link":
        link = next((link for link in setup.devices[0].links if link.kind.startswith("pcie")), None)
        if link is None:
            raise MissingError(f"the device file of {setup.devices[0].name} states no host link")
        rate = link.bandwidth_per_direction.value
        n_bytes = answer.workload.batch * setup.model.vocab_size * setup.element_bytes
        how = (
            f"even if the logits of all {answer.workload.batch:g} sequences ({n_bytes / 1e6:.3g} MB) crossed the link "
            f"at each step of {time_text(step_s)}: {bandwidth_text(n_bytes / step_s)} of {bandwidth_text(rate)}"
        )
        return n_bytes / step_s / rate, how
    shares = dict(answer.bounds["tpot"])
    return sum(shares.get(bound, 0.0) for bound in _BOUNDS[resource]), "share of the step by the model"


def _rel_sd(figure: Figure) -> float:
    return math.log(figure.high / figure.value) / Z80 if figure.high > figure.value else 0.0


def times_text(stated: float, model: float) -> str:
    """Return a ratio as words: 1.3 times, or 0.4 % of."""
    ratio = stated / model
    return f"{ratio:.2g} times" if ratio >= 0.01 else f"{100 * ratio:.2g} % of"


def _change(frac: float) -> str:
    return f"{100 * frac:+.0f} %"


def _largest(holds: Callable[[int], bool]) -> int:
    """Return the largest batch for which a condition that ends once holds; 0 where it never does."""
    if not holds(1):
        return 0
    low, high = 1, 2
    while high <= _MOST_BATCH and holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _batch_giving(stated: float, rate: Callable[[int], float]) -> str:
    one = rate(1)
    n = _largest(lambda batch: rate(batch) <= stated)
    if n == 0:
        return f"one request alone gives {one:,.4g} tokens/s by the model"
    if n == 1:
        return f"the rate of about one request in flight ({one:,.4g} tokens/s by the model)"
    return f"the rate of about {n} requests in flight"
