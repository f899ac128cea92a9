"""A plan with what every way out needs, each computed once: figures of all rivals, launch lines, reasons, fronts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perfmodel.plan.assurance import sure_replicas
from perfmodel.plan.finalists import Contest, Finalist, finalist_of
from perfmodel.plan.launch import Launch, launch_of
from perfmodel.plan.pareto import front
from perfmodel.plan.ranking import OBJECTIVES
from perfmodel.plan.search import Plan
from perfmodel.plan.split import Split, best_split, confirmed_split, splits_of
from perfmodel.report.answer import bound_text
from perfmodel.units import time_text

__all__ = ["FRONTS", "SURE", "PlanView", "copies_text", "short_time", "target_text"]

_N_CONFIRMED: Final = 2
"""Splits of prefill and decode that are simulated."""
SURE: Final = 0.9
"""Probability for which the number of devices is stated beside the plan."""
FRONTS: Final[Mapping[str, tuple[str, str]]] = {
    "interactivity": ("tokens_per_s_per_user", "tokens_per_s_per_device"),
    "cost": ("e2e_s", "usd_per_million_tokens"),
}
"""Fronts by name: figures of a row; of `cost` less is better, of `interactivity` more."""


@dataclass(frozen=True, eq=False)
class PlanView:
    """A contest with what every way out needs, each computed once."""

    contest: Contest

    @property
    def plan(self) -> Plan:
        """The plan behind it."""
        return self.contest.ranked.plan

    @cached_property
    def finalists(self) -> dict[int, Finalist]:
        """Every rival that meets the targets as scalars: as simulated, else its best row in steady state."""
        found = dict(self.contest.finalists)
        for i in self.contest.order:
            if i not in found:
                found[i] = finalist_of(self.plan, int(self.contest.ranked.rivals[i].rows[0]))
        return found

    @cached_property
    def launches(self) -> dict[int, Launch]:
        """How the first two places are started."""
        places = self.contest.order[:2]
        return {i: launch_of(self.plan.catalogue, self.finalists[i].candidate) for i in places}

    @cached_property
    def sure(self) -> int | None:
        """Replicas of the winner with which the targets are met as surely as `SURE`."""
        winner = self.contest.winner
        return None if winner is None else sure_replicas(self.plan, winner, SURE)

    @cached_property
    def splits(self) -> tuple[Split, ...]:
        """Prefill and decode apart: the best of each finalist's family that keeps the targets, best first.

        The best two are simulated, as the plan is; where they miss a percentile they are left out.
        """
        ranking, plan = self.contest.ranked, self.plan
        found: list[tuple[Split, tuple[Split, ...]]] = []
        for i in self.contest.finalists:
            own = splits_of(ranking, ranking.rivals[i].family)
            if own:
                price = plan.prices[own[0].candidate.device.name].value_usd_per_hour
                best = best_split(own, plan.targets, price)
                found += [(best, own)] if best is not None else []
        found.sort(key=lambda pair: (pair[0].score, pair[0].n_devices))
        if not self.contest.n_simulated:
            return tuple(best for best, _ in found)
        confirmed = [confirmed_split(ranking, own) for _, own in found[:_N_CONFIRMED]]
        kept = sorted((s for s in confirmed if s is not None), key=lambda s: (s.score, s.n_devices))
        return (*kept, *(best for best, _ in found[_N_CONFIRMED:]))

    def split_verdict(self) -> str:
        """Return whether keeping prefill and decode apart would be better than the winner, in a sentence."""
        winner, ranking = self.contest.winner, self.contest.ranked
        if not self.splits or winner is None:
            return "No split of prefill and decode was found that keeps the targets."
        best = self.splits[0]
        if self.contest.n_simulated and best.simulated is None:
            return "No split of prefill and decode that was simulated keeps the targets."
        what = f"{best.n_prefill} + {best.n_decode} x {best.candidate.family.hardware} {best.candidate.cut.text}"
        figures = f"{what}, {best.n_devices} devices against {winner.n_devices}"
        if ranking.objective == "energy":
            return f"Prefill and decode apart: {figures}; their energy is not compared."
        if best.score < float(ranking.score[winner.row]) * (1 - 1e-9):
            return f"Prefill and decode apart would be better by {OBJECTIVES[ranking.objective]}: {figures}."
        return f"Prefill and decode apart are no better by {OBJECTIVES[ranking.objective]}: {figures}."

    def front_rows(self, name: str) -> NDArray[np.int64]:
        """Return the rows on a front, whether they meet the targets or not."""
        x, y = (getattr(self.plan.table, figure) for figure in FRONTS[name])
        return front(-x, -y) if name == "cost" else front(x, y)

    @cached_property
    def reference_usd_per_million_tokens(self) -> float | None:
        """The lowest cost among rivals whose price is known."""
        table = self.plan.table
        known = [float(table.usd_per_million_tokens[f.row]) for f in self.finalists.values()]
        return min((cost for cost in known if not np.isnan(cost)), default=None)

    def worth(self, finalist: Finalist) -> float | None:
        """Return the price of a device and hour at which a rival costs what the cheapest priced one costs."""
        reference, table = self.reference_usd_per_million_tokens, self.plan.table
        if reference is None:
            return None
        tokens_per_hour = float(table.served_per_s[finalist.row]) * table.output_tokens * 3600.0
        return reference * tokens_per_hour / 1e6 / finalist.n_devices

    def reason(self, i: int) -> str:
        """Return why a rival is not first; empty for the winner."""
        contest = self.contest
        rival = contest.ranked.rivals[i]
        if i in contest.lost:
            return contest.lost[i]
        if not rival.is_feasible:
            return rival.misses
        best = contest.order[0]
        if i == best:
            return ""
        return _behind(contest, self.finalists[best], self.finalists[i])


def _behind(contest: Contest, best: Finalist, own: Finalist) -> str:
    """Return by how much a rival is behind, and where its time goes."""
    score, objective = contest.ranked.score, contest.ranked.objective
    a, b = float(score[best.row]), float(score[own.row])
    where = own.bounds[0]
    spent = f"; time goes to {bound_text(where[0])} {100 * where[1]:.0f} %"
    devices = f"{own.n_devices} devices against {best.n_devices}"
    if not np.isfinite(b):
        return f"no price known; {devices}{spent}"
    if abs(b - a) <= 1e-9 * abs(a):
        e2e = float(own.point.e2e.value) / float(best.point.e2e.value) - 1.0
        return f"equal in {OBJECTIVES[objective]}; {100 * abs(e2e):.3g} % {'slower' if e2e >= 0 else 'faster'}{spent}"
    ratio = a / b if objective == "throughput" else b / a
    words = {
        "cost": f"costs {ratio:.3g} x as much: {devices}",
        "devices": devices,
        "latency": f"takes {ratio:.3g} x as long",
        "throughput": f"a device gives 1/{ratio:.3g} of the tokens",
        "energy": f"takes {ratio:.3g} x the energy",
    }
    return words[objective] + spent


def copies_text(finalist: Finalist) -> str:
    """Return on how many devices a launch line has to be started, and how often."""
    n = finalist.candidate.cut.n_devices
    devices = f"{n} device{'s' if n > 1 else ''}"
    return f"on {devices}" if finalist.n_replicas == 1 else f"on each of {finalist.n_replicas} replicas of {devices}"


def short_time(seconds: float) -> str:
    """Return a time with three digits, for tables that must be narrow.

    >>> short_time(0.04571), short_time(1.2345)
    ('45.7 ms', '1.23 s')
    """
    return time_text(float(f"{seconds:.3g}"))


def target_text(view: PlanView) -> str:
    """Return the targets in words."""
    t = view.plan.targets
    parts = [
        f"{name} at most {time_text(value)}"
        for name, value in (("TTFT", t.ttft_s), ("TPOT", t.tpot_s), ("end to end", t.e2e_s))
        if value is not None
    ]
    parts = [f"p{t.percentile} of {' and '.join(parts)}"] if parts else ["no latency target"]
    if t.confidence_frac:
        parts.append(f"met by at least {100 * t.confidence_frac:g} %")
    parts.append(f"at most {t.max_devices} devices")
    if t.budget_usd_per_hour is not None:
        parts.append(f"at most {t.budget_usd_per_hour:g} USD/h")
    return ", ".join(parts)
