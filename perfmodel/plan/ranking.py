"""Which rows meet the targets, which is best, and why each rival lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import SpecError
from perfmodel.plan.demand import LATENCIES
from perfmodel.plan.search import Floats, Plan
from perfmodel.plan.space import Family
from perfmodel.step.energy import datasheet_s, power_w
from perfmodel.step.request import decode_pass, prefill_slice
from perfmodel.units import time_text

__all__ = ["OBJECTIVES", "Ranked", "Rival", "excesses", "limit_words", "objective_of", "ranked", "row_energy_j"]

Mask = NDArray[np.bool_]

OBJECTIVES: Final[Mapping[str, str]] = {
    "cost": "US dollars for a million output tokens",
    "devices": "devices",
    "latency": "mean end-to-end time of a request",
    "throughput": "output tokens/s of a device",
    "energy": "joules for an output token",
}
_WORDS: Final[Mapping[str, str]] = {
    "ttft_s": "time to first token",
    "tpot_s": "time per output token",
    "e2e_s": "end-to-end time",
    "devices": "devices",
    "budget": "US dollars an hour",
}


@dataclass(frozen=True, slots=True)
class Rival:
    """The best of a family: the row that meets the targets, or the one that misses them least, or none at all.

    `rows` are all rows of the family that meet the targets, best first.
    """

    family: Family
    rows: NDArray[np.int64]
    nearest: int | None
    misses: str
    """Why no row meets the targets; empty where one does."""

    @property
    def row(self) -> int | None:
        """The best row, or the one that misses least."""
        return int(self.rows[0]) if len(self.rows) else self.nearest

    @property
    def is_feasible(self) -> bool:
        """Whether some row meets every target."""
        return len(self.rows) > 0


@dataclass(frozen=True, eq=False, slots=True)
class Ranked:
    """Rivals in order: those that meet the targets by the objective, then the others."""

    plan: Plan
    objective: str
    score: Floats
    meets: Mask
    rivals: tuple[Rival, ...]
    remarks: tuple[str, ...]

    @property
    def winner(self) -> Rival | None:
        """The best of all; None where nothing meets the targets."""
        first = self.rivals[0] if self.rivals else None
        return first if first is not None and first.is_feasible else None


def excesses(plan: Plan) -> dict[str, Floats]:
    """Return, for each target that is set, by what ratio each row exceeds it: above 1 is a miss.

    A row without a price exceeds a budget by infinity, since nobody can tell.
    """
    table, targets = plan.table, plan.targets
    found: dict[str, Floats] = {}
    for name in LATENCIES:
        most = getattr(targets, name)
        if most is not None:
            found[name] = getattr(table, name) / most
    limits = np.array([float(targets.devices_of(one.device.name)) for one in plan.candidates])
    with np.errstate(divide="ignore"):
        found["devices"] = table.n_devices / limits[table.candidate] if len(table) else np.empty(0)
    if targets.budget_usd_per_hour is not None:
        ratio = table.usd_per_hour / targets.budget_usd_per_hour
        found["budget"] = np.where(np.isnan(ratio), np.inf, ratio)
    return found


def limit_words(name: str) -> str:
    """Return a target in words."""
    return _WORDS[name]


def objective_of(plan: Plan, asked: str) -> tuple[str, tuple[str, ...]]:
    """Return the objective, and what has to be said about prices. `auto` is cost, or devices where a price lacks."""
    unknown = sorted(name for name, price in plan.prices.items() if price.value_usd_per_hour is None)
    if asked not in ("auto", *OBJECTIVES):
        raise SpecError("unknown objective", got=repr(asked), expected=f"auto, {', '.join(OBJECTIVES)}")
    if not unknown:
        return ("cost" if asked == "auto" else asked), ()
    names = ", ".join(unknown)
    said = f"no price is known for {names}: give --price {unknown[0]}=.../h"
    if asked == "auto":
        return "devices", (f"{said}; ranked by the number of devices until then",)
    if asked == "cost":
        return "cost", (f"{said}; they stand behind what has one",)
    return asked, (said,)


def _score(plan: Plan, objective: str) -> Floats:
    table = plan.table
    if objective == "cost":
        return np.where(np.isnan(table.usd_per_million_tokens), np.inf, table.usd_per_million_tokens)
    if objective == "devices":
        return table.n_devices
    if objective == "latency":
        return table.e2e_s
    if objective == "throughput":
        return -table.tokens_per_s_per_device
    energy = row_energy_j(plan)
    return np.where(np.isnan(energy), np.inf, energy)


def row_energy_j(plan: Plan, rows: NDArray[np.int64] | None = None) -> Floats:
    """Return joules for an output token of rows (all where None); NaN where a device file states no board power.

    Power of the linear model, by what the mean second of a replica computes and reads.
    """
    table = plan.table
    chosen = np.arange(len(table)) if rows is None else rows
    result = np.full(len(chosen), np.nan)
    owner = table.candidate[chosen]
    work = plan.demand
    for i in np.unique(owner):
        here = np.flatnonzero(owner == i)
        one, at = plan.candidates[i], chosen[here]
        engine, n = one.case.engine, table.in_flight[at]
        decode, n_micro = decode_pass(engine, batch=n, input_tokens=work.input_tokens, output_tokens=work.output_tokens)
        prompt = prefill_slice(1.0 / one.cut.dp, work.input_tokens, n_steps=1.0)
        rate, n_steps_per_s = table.requests_per_s[at], n_micro / table.tpot_s[at]
        watts, idle_power_frac = 0.0, one.case.usual.idle_power_frac.value
        for stage in engine.stages:
            computing, reading = (
                rate * of_prompt + n_steps_per_s * of_decode
                for of_prompt, of_decode in zip(
                    datasheet_s(engine, stage, (prompt,)), datasheet_s(engine, stage, (decode,)), strict=True
                )
            )
            power = power_w(
                stage.kernels.device.device, mfu_frac=computing, mbu_frac=reading, idle_power_frac=idle_power_frac
            )
            watts = watts + (np.nan if power is None else power * one.cut.tp * one.cut.dp)
        result[here] = watts / (rate * work.output_tokens)
    return result


def ranked(plan: Plan, objective: str = "auto") -> Ranked:
    """Return the rivals in order; ties go to fewer devices, then to the lower end-to-end time, then to the first."""
    chosen, remarks = objective_of(plan, objective)
    table = plan.table
    score = _score(plan, chosen)
    over = excesses(plan)
    worst = np.max(np.array(list(over.values())), axis=0) if len(table) else np.empty(0)
    meets = worst <= 1.0
    index = {family: i for i, family in enumerate(dict.fromkeys(one.family for one in plan.candidates))}
    of_candidate = np.array([index[one.family] for one in plan.candidates], dtype=np.int64)
    of_row = of_candidate[table.candidate] if len(table) else np.empty(0, dtype=np.int64)
    good = np.flatnonzero(meets)
    good = good[np.lexsort((good, table.e2e_s[good], table.n_devices[good], score[good]))]
    rivals = [_rival(plan, family, good[of_row[good] == i], of_row == i, worst, over) for family, i in index.items()]
    seen = set(index)
    rivals += [_refused(plan, family) for family in dict.fromkeys(r.family for r in plan.refused) if family not in seen]
    place = {int(row): n for n, row in enumerate(good)}

    def order(rival: Rival) -> tuple[float, float]:
        if rival.is_feasible:
            return 0.0, float(place[int(rival.rows[0])])
        return (1.0, float(worst[rival.nearest])) if rival.nearest is not None else (2.0, 0.0)

    return Ranked(plan, chosen, score, meets, tuple(sorted(rivals, key=order)), remarks)


def _rival(
    plan: Plan, family: Family, rows: NDArray[np.int64], own: Mask, worst: Floats, over: Mapping[str, Floats]
) -> Rival:
    if len(rows):
        return Rival(family, rows, None, "")
    mine = np.flatnonzero(own)
    nearest = int(mine[np.argmin(worst[mine])])
    return Rival(family, rows, nearest, _miss_text(plan, nearest, over))


def _miss_text(plan: Plan, row: int, over: Mapping[str, Floats]) -> str:
    one = plan.candidates[plan.table.candidate[row]]
    parts = [
        f"{limit_words(name)} {_amount(plan, name, row)}, above {_limit(plan, name, one.device.name)}"
        for name, ratio in over.items()
        if ratio[row] > 1.0
    ]
    return f"{'; '.join(parts)} ({one.cut.text} x {plan.table.n_replicas[row]:g}, the nearest)"


def _amount(plan: Plan, name: str, row: int) -> str:
    table = plan.table
    if name in LATENCIES:
        return time_text(float(getattr(table, name)[row]))
    if name == "devices":
        return f"{table.n_devices[row]:g}"
    usd = table.usd_per_hour[row]
    return "not known" if np.isnan(usd) else f"{usd:.4g}"


def _limit(plan: Plan, name: str, device: str) -> str:
    targets = plan.targets
    if name in LATENCIES:
        return time_text(getattr(targets, name))
    return f"{targets.devices_of(device)}" if name == "devices" else f"{targets.budget_usd_per_hour:g}"


def _refused(plan: Plan, family: Family) -> Rival:
    """Return the rival of a family nothing of which can run: the reason of its largest layout that could be cut."""
    own = [r for r in plan.refused if r.family == family]
    telling = [r for r in own if r.kind == "memory"] or [r for r in own if r.kind != "layout"] or own
    said = max(telling, key=lambda r: r.cut.n_devices)
    return Rival(family, np.empty(0, dtype=np.int64), None, f"{said.reason} ({said.cut.text}, the largest tried)")
