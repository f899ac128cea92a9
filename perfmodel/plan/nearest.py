"""Where nothing meets the targets: which are at fault, by how much, and what would help."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from perfmodel.errors import Fault, InfeasibleError
from perfmodel.plan.demand import LATENCIES
from perfmodel.plan.finalists import Contest
from perfmodel.plan.ranking import Ranked, excesses
from perfmodel.plan.search import Floats, Plan
from perfmodel.plan.space import Refused
from perfmodel.plan.split import best_split, splits_of
from perfmodel.specs.calibration import Calibration
from perfmodel.step.request import request_estimate
from perfmodel.step.step import Engine
from perfmodel.units import bytes_text, time_text
from perfmodel.work.memory import memory_plan
from perfmodel.work.memory_search import what_would_fit

__all__ = ["not_feasible"]

_FLAGS = {
    "ttft_s": "--ttft",
    "tpot_s": "--tpot",
    "e2e_s": "--e2e",
    "devices": "--max-devices",
    "budget": "--budget",
}


def not_feasible(contest: Contest) -> InfeasibleError:
    """Return the error that names the nearest miss, targets that exclude each other, and what would help."""
    ranking = contest.ranked
    plan = ranking.plan
    problem = f"no configuration meets the targets for {plan.demand.text()}"
    if not len(plan.table):
        return InfeasibleError(problem, faults=_nothing_starts(plan))
    over = excesses(plan)
    if contest.lost and ranking.winner is not None:
        faults = [
            Fault(f"nearest: {describe(plan, int(ranking.rivals[i].rows[0]))}", text)
            for i, text in list(contest.lost.items())[:3]
        ]
        cure = (
            "Means meet the targets, percentile or confidence do not: more devices, a looser target, or less of either."
        )
        return InfeasibleError(problem, faults=[*faults, *_split(ranking), Fault(cure=cure)])
    faults = [_nearest(ranking), *_conflicts(plan, over), *_split(ranking), *_remedies(plan, over)]
    return InfeasibleError(problem, faults=faults)


def _split(ranking: Ranked) -> list[Fault]:
    """Return the best split of prefill and decode that keeps the targets on average, where one does."""
    plan, found = ranking.plan, []
    for family in dict.fromkeys(one.family for one in plan.candidates):
        splits = splits_of(ranking, family)
        if splits:
            price = plan.prices[splits[0].candidate.device.name].value_usd_per_hour
            one = best_split(splits, plan.targets, price)
            found += [one] if one is not None else []
    if not found:
        return []
    best = min(found, key=lambda s: (s.score, s.n_devices))
    family = best.candidate.family
    text = (
        f"would do: prefill and decode apart, {best.n_prefill} + {best.n_decode} x {family.hardware} "
        f"{best.candidate.cut.text} ({best.n_devices} devices), {family.stored_text}, {family.runtime}: "
        "on average; `perfmodel simulate` with --prefill-replicas and --decode-replicas tells percentiles"
    )
    return [Fault(text)]


def describe(plan: Plan, row: int) -> str:
    """Return a row in words: how many replicas of what."""
    one, n = plan.candidates[plan.table.candidate[row]], plan.table.n_replicas[row]
    f = one.family
    return f"{n:g} x {f.hardware} {one.cut.text}, {f.stored_text}, {f.runtime}"


def _nearest(ranking: Ranked) -> Fault:
    first = next(rival for rival in ranking.rivals if rival.nearest is not None)
    assert first.nearest is not None
    return Fault(f"nearest: {describe(ranking.plan, first.nearest)}", first.misses.rsplit(" (", 1)[0])


def _conflicts(plan: Plan, over: dict[str, Floats]) -> list[Fault]:
    """Return targets that no row meets alone, or the first pair that each row breaks one of."""
    alone = [name for name, ratio in over.items() if not np.any(ratio <= 1.0)]
    found = [Fault(_alone(plan, name, over[name])) for name in alone]
    rest = [name for name in over if name not in alone]
    for a, b in combinations(rest, 2):
        if not np.any((over[a] <= 1.0) & (over[b] <= 1.0)):
            found.append(
                Fault(f"{_FLAGS[a]} and {_FLAGS[b]} exclude each other here: each can be met, and never both at once")
            )
    return found


def _alone(plan: Plan, name: str, ratio: Floats) -> str:
    text = f"{_FLAGS[name]} alone is out of reach of everything searched"
    if name == "budget" and not np.any(np.isfinite(plan.table.usd_per_hour)):
        return f"{_FLAGS[name]} cannot be checked: no price is known, give --price DEVICE=.../h"
    if name not in ("ttft_s", "tpot_s"):
        return text
    bound = _least_possible(plan, name, plan.catalogue.calibration("hard-bound"))
    asked = getattr(plan.targets, name)
    if asked < bound:
        return f"{text}: {time_text(asked)} is below what physics allows for one request alone, {time_text(bound)}"
    return f"{text}: the best is {time_text(float(np.min(ratio)) * asked)}"


def _least_possible(plan: Plan, name: str, bound: Calibration) -> float:
    """Return the least time of one request alone on any candidate under the hard bound."""
    best = float("inf")
    for one in plan.candidates:
        request = request_estimate(
            Engine(one.case.setup, bound),
            batch=1.0,
            input_tokens=plan.demand.input_tokens,
            output_tokens=plan.demand.output_tokens,
            token_budget=float(one.plan.limits.max_num_batched_tokens),
        )
        best = min(best, float(getattr(request, name[:-2]).value))
    return best


def _remedies(plan: Plan, over: dict[str, Floats]) -> list[Fault]:
    """Return for each target the least loosening that makes some row meet all, the others as they are."""
    found = []
    for name, ratio in over.items():
        others = np.ones(len(plan.table), dtype=np.bool_)
        for other, values in over.items():
            if other != name:
                others &= values <= 1.0
        with np.errstate(invalid="ignore"):
            usable = np.flatnonzero(others & np.isfinite(ratio))
        if not len(usable):
            continue
        row = int(usable[np.argmin(ratio[usable])])
        found.append(Fault(f"would do: {_FLAGS[name]} {_loosened(plan, name, row)} ({describe(plan, row)})"))
    if not found:
        found.append(Fault("no single target loosened would do: several have to give"))
    return found


def _loosened(plan: Plan, name: str, row: int) -> str:
    if name in LATENCIES:
        # Rounded up, so that the text read back still allows the row.
        value = float(getattr(plan.table, name)[row])
        return f"{np.ceil(value * 1e6) / 1e3:g}ms" if value < 1 else f"{np.ceil(value * 1e3) / 1e3:g}s"
    if name == "devices":
        return f"{plan.table.n_devices[row]:g}"
    return f"{np.ceil(plan.table.usd_per_hour[row] * 100) / 100:g}/h"


def _nothing_starts(plan: Plan) -> list[Fault]:
    """Return why nothing starts: for each device the layout that lacks least, and what would fit there."""
    short: dict[str, tuple[float, Refused]] = {}
    for refused in plan.refused:
        if refused.kind == "memory" and refused.case is not None:
            memory = memory_plan(refused.case.memory)
            lacks = memory.needs_bytes - memory.has_bytes
            best = short.get(refused.family.hardware)
            if best is None or lacks < best[0]:
                short[refused.family.hardware] = lacks, refused
    faults = []
    for lacks, refused in sorted(short.values(), key=lambda pair: pair[0]):
        case = refused.case
        assert case is not None
        what = f"nearest: {refused.family.hardware} {refused.cut.text}, {refused.family.stored_text}"
        faults.append(Fault(what, f"{bytes_text(max(0.0, lacks))} too little memory on a rank: {refused.reason}"))
        schemes = [plan.catalogue.scheme(name) for name in ("fp8", "w8a8", "awq-int4-g128")]
        faults += [Fault(f"would fit: {r.text}") for r in what_would_fit(case.memory, schemes=schemes)]
    if not faults:
        reasons = dict.fromkeys(f"{r.family.hardware} {r.cut.text}: {r.reason}" for r in plan.refused)
        faults = [Fault(text) for text in list(reasons)[:6]]
    return faults or [Fault("nothing was searched", cure="Allow at least one device for each name.")]
