"""A plan as rows, a document and tables: who wins, what each rival lacks, the fronts, and how to start the winner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from perfmodel.plan.demand import LATENCIES
from perfmodel.plan.finalists import Finalist
from perfmodel.plan.nearest import describe
from perfmodel.plan.ranking import OBJECTIVES, Rival
from perfmodel.report.notes import assumption_lines, note_parts, rate
from perfmodel.report.plan_view import FRONTS, SURE, PlanView, copies_text, short_time, target_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

__all__ = ["assumptions", "plan_document", "plan_rows", "plan_tables", "split_rows", "warnings"]

_MOST_SHOWN: Final = 16


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _figures(view: PlanView, finalist: Finalist) -> dict[str, Any]:
    table, row = view.plan.table, finalist.row
    found: dict[str, Any] = {
        "layout": finalist.candidate.cut.text,
        "n_replicas": finalist.n_replicas,
        "n_devices": finalist.n_devices,
        "in_flight_per_replica": float(finalist.point.concurrency),
        "most_in_flight_per_replica": finalist.candidate.most_in_flight,
    }
    for name in LATENCIES:
        if name == "tpot_s" and view.plan.demand.output_tokens <= 1:
            continue  # no token follows the first
        value, low, high = finalist.band(name)
        found |= {name: value, f"{name}_low": low, f"{name}_high": high}
        if finalist.simulated is not None:
            found |= {f"{name}_p{p}": v for p, v in finalist.simulated.percentiles[name].items()}
    found |= {
        "tokens_per_s_per_user": float(table.tokens_per_s_per_user[row]),
        "tokens_per_s_per_device": float(table.tokens_per_s_per_device[row]),
        "requests_per_s": float(table.served_per_s[row]),
        "usd_per_hour": _plain(table.usd_per_hour[row]),
        "usd_per_million_tokens": _plain(table.usd_per_million_tokens[row]),
        "break_even_usd_per_device_hour": view.worth(finalist),
        "energy_j_per_output_token": finalist.energy_j_per_output_token,
        "probability_ttft": finalist.likelihood.ttft,
        "probability_tpot": finalist.likelihood.tpot,
        "probability": finalist.likelihood.both,
        "bound": finalist.bounds[0][0].value,
        "simulated": finalist.simulated is not None,
    }
    return found


def _status(view: PlanView, i: int) -> str:
    rival = view.contest.ranked.rivals[i]
    if i in view.contest.lost:
        return "misses"
    return "meets" if rival.is_feasible else "misses" if rival.nearest is not None else "cannot run"


def _places(view: PlanView) -> list[int]:
    contest = view.contest
    return [*contest.order, *(i for i in range(len(contest.ranked.rivals)) if i not in contest.order)]


def plan_rows(view: PlanView) -> list[dict[str, Any]]:
    """Return a row for each rival in order, in base units; figures only of those that meet the targets."""
    rows = []
    for place, i in enumerate(_places(view)):
        rival: Rival = view.contest.ranked.rivals[i]
        row: dict[str, Any] = {"place": place + 1, "status": _status(view, i), **rival.family._asdict()}
        if i in view.finalists:
            row |= _figures(view, view.finalists[i])
        rows.append(row | {"reason": view.reason(i)})
    return rows


def _front_document(view: PlanView, name: str) -> list[dict[str, Any]]:
    table = view.plan.table
    return [
        {
            **{figure: float(getattr(table, figure)[row]) for figure in FRONTS[name]},
            "configuration": describe(view.plan, int(row)),
            "in_flight_per_replica": float(table.in_flight[row]),
            "n_devices": float(table.n_devices[row]),
            "meets_targets": bool(view.contest.ranked.meets[row]),
        }
        for row in view.front_rows(name)
    ]


def split_rows(view: PlanView) -> list[dict[str, Any]]:
    """Return a row for each split of prefill and decode, best first, in base units."""
    rows = []
    for split in view.splits:
        row: dict[str, Any] = {
            **split.candidate.family._asdict(),
            "layout": split.candidate.cut.text,
            "n_prefill_replicas": split.n_prefill,
            "n_decode_replicas": split.n_decode,
            "n_devices": split.n_devices,
            "decoding_per_replica": split.in_flight,
            "requests_per_s": split.served_per_s,
            "usd_per_million_tokens": _plain(split.usd_per_million_tokens),
        }
        for name in LATENCIES:
            row[name] = getattr(split, name)
            if split.simulated is not None:
                row |= {f"{name}_p{p}": v for p, v in split.simulated.percentiles[name].items()}
        rows.append(row)
    return rows


def plan_document(view: PlanView) -> dict[str, Any]:
    """Return the whole plan with stable keys in base units."""
    plan, contest = view.plan, view.contest
    demand, targets = plan.demand, plan.targets
    return {
        "demand": {
            "input_tokens": demand.input_tokens,
            "output_tokens": demand.output_tokens,
            "requests_per_s": demand.requests_per_s,
            "concurrent_users": demand.n_users,
            "think_s": demand.think_s,
            "length_spread_frac": demand.spread_frac,
        },
        "targets": {
            **{name: getattr(targets, name) for name in LATENCIES},
            "percentile": targets.percentile,
            "max_devices": targets.max_devices,
            "budget_usd_per_hour": targets.budget_usd_per_hour,
            "available": dict(targets.available),
            "confidence_frac": targets.confidence_frac,
        },
        "objective": contest.ranked.objective,
        "n_configurations": len(plan.table),
        "n_layouts": len(plan.candidates),
        "n_refused": len(plan.refused),
        "n_simulated": contest.n_simulated,
        "rivals": plan_rows(view),
        "launch": [
            {"place": place + 1, "text": one.text, "file": one.file, "notes": list(one.notes)}
            for place, one in enumerate(view.launches.values())
        ],
        "splits": split_rows(view),
        "split_verdict": view.split_verdict(),
        "sure": {"probability": SURE, "n_replicas": view.sure},
        "fronts": {name: _front_document(view, name) for name in FRONTS},
        "prices": {
            name: {"usd_per_hour": price.value_usd_per_hour, "source": price.source}
            for name, price in plan.prices.items()
        },
        "assumed": assumptions(view),
        "warnings": warnings(view),
    }


def assumptions(view: PlanView) -> list[str]:
    """Return what the plan as a whole takes for granted, then what each of the first two places assumes."""
    plan, found = view.plan, []
    demand = plan.demand
    if demand.n_users is not None and not demand.think_s:
        found.append("each user sends the next request as soon as the last is answered (think time 0)")
    if demand.requests_per_s is not None:
        found.append("requests arrive at random (Poisson)")
    if demand.spread_frac:
        found.append(f"lengths even within {100 * demand.spread_frac:g} % of isl and osl in the simulation")
    found.append("replicas get equal shares of the load")
    for name, price in plan.prices.items():
        if price.value_usd_per_hour is not None:
            found.append(f"{name} at {price.value_usd_per_hour:g} USD/h a device ({price.source})")
    for i in view.launches:
        candidate = view.finalists[i].candidate
        family = candidate.family.hardware
        own = assumption_lines((*candidate.case.assumed, *candidate.plan.assumed))
        found += [f"{family}: {text}" for text in own]
        found.append(f"{candidate.family.hardware}: calibration {candidate.case.calibration.name}")
    return list(dict.fromkeys(found))


def warnings(view: PlanView) -> list[str]:
    """Return what must be said beside the figures."""
    found = list(view.contest.ranked.remarks)
    for i in view.launches:
        candidate = view.finalists[i].candidate
        found += [*candidate.case.warnings, *candidate.plan.warnings]
        if view.finalists[i].simulated is None:
            found.append(
                f"{candidate.family.hardware}: means of the steady state, not simulated: percentiles are higher"
            )
    return list(dict.fromkeys(found))


def _cell(view: PlanView, finalist: Finalist, name: str) -> str:
    if name == "tpot_s" and view.plan.demand.output_tokens <= 1:
        return "-"
    if finalist.simulated is None:
        return f"~{short_time(float(getattr(finalist.point, name[:-2]).value))}"
    return short_time(finalist.simulated.percentiles[name][view.plan.targets.percentile])


def _table(view: PlanView) -> Table:
    from rich import box
    from rich.table import Table

    p = view.plan.targets.percentile
    priced = any(price.value_usd_per_hour is not None for price in view.plan.prices.values())
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("#", justify="right")
    table.add_column("hardware, runtime", min_width=16, max_width=18, overflow="fold")
    table.add_column("weights, KV", min_width=9)
    table.add_column("replicas", min_width=8)
    columns = ["dev.", f"TTFT\np{p}", f"TPOT\np{p}", "tok/s\nuser", "tok/s\ndevice"]
    columns += ["USD/\nMtok", "worth\nUSD/h"] if priced else []
    for name in [*columns, "met\nby"]:
        table.add_column(name, justify="right", no_wrap=True)
    several = len(view.plan.space.models) > 1
    for place, i in enumerate(view.contest.order[:_MOST_SHOWN]):
        f, row = view.finalists[i], view.finalists[i].row
        family, numbers = f.candidate.family, view.plan.table
        cost = float(numbers.usd_per_million_tokens[row])
        cells = [
            f"{f.n_devices}",
            _cell(view, f, "ttft_s"),
            _cell(view, f, "tpot_s"),
            rate(float(f"{numbers.tokens_per_s_per_user[row]:.3g}")),
            rate(float(f"{numbers.tokens_per_s_per_device[row]:.3g}")),
        ]
        worth = view.worth(f)
        if priced:
            cells += ["?" if np.isnan(cost) else f"{cost:.3g}", "" if worth is None else f"{worth:.2f}"]
        name = f"{family.model} on {family.hardware}" if several else family.hardware
        table.add_row(
            str(place + 1),
            f"{name} {family.runtime}",
            f"{family.quantization}, {family.kv_cache_dtype}",
            f"{f.n_replicas} x {f.candidate.cut.text}",
            *cells,
            f"{100 * f.likelihood.both:.0f} %",
        )
    return table


def plan_tables(view: PlanView) -> Iterator[RenderableType]:
    """Yield the ranked table, why each rival lost, the fronts in short, launch lines, assumptions and warnings."""
    from rich.padding import Padding
    from rich.text import Text

    plan, contest = view.plan, view.contest
    yield Text(f"{', '.join(plan.space.models)}: {plan.demand.text()}; {target_text(view)}", style="bold")
    yield Text(
        f"{len(plan.table):,} operating points of {len(plan.candidates)} layouts, {len(plan.refused)} layouts refused, "
        f"{contest.n_simulated} simulated; best first by {OBJECTIVES[contest.ranked.objective]}"
    )
    yield _table(view)
    yield Text(
        "~ mean of the steady state, where not simulated. met by: probability that the targets hold, by the bands"
    )
    if view.reference_usd_per_million_tokens is not None:
        yield Text("worth USD/h: price of a device at which it costs as much a token as the cheapest with a price")
    yield Text("Why the others lost", style="bold")
    for place, i in enumerate(_places(view)):
        if i != contest.order[0]:
            family = contest.ranked.rivals[i].family
            label = f"{family.hardware}, {family.stored_text}, {family.runtime}"
            yield Padding(Text(f"{place + 1}. {label}: {view.reason(i)}"), (0, 0, 0, 2), expand=False)
    yield from _fronts(view)
    yield from _splits(view)
    for words, (i, launch) in zip(("Start the winner", "Start the runner-up"), view.launches.items(), strict=False):
        f = view.finalists[i]
        where = f" as {launch.file}" if launch.file else ""
        yield Text(f"{words}, {copies_text(f)}{where}", "bold")
        yield Text(launch.shown)
        for note in launch.notes:
            yield Text(f"Note: {note}", style="yellow")
    yield from _sure_text(view)
    yield from note_parts(assumptions(view), warnings(view))


def _fronts(view: PlanView) -> Iterator[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    rows = view.front_rows("interactivity")
    if not len(rows):
        return
    yield Text("Pareto front, tokens/s a user against tokens/s a device (targets aside)", style="bold")
    table = view.plan.table
    for row in rows[np.unique(np.linspace(0, len(rows) - 1, 6).astype(int))]:
        user, device = table.tokens_per_s_per_user[row], table.tokens_per_s_per_device[row]
        text = f"{rate(float(user))} a user, {rate(float(device))} a device: {describe(view.plan, int(row))}"
        yield Padding(Text(text), (0, 0, 0, 2), expand=False)


def _splits(view: PlanView) -> Iterator[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    yield Text(view.split_verdict(), style="bold")
    p = view.plan.targets.percentile
    for split in view.splits:
        family, found = split.candidate.family, split.simulated
        times = [
            f"{words} {'~' if found is None else ''}"
            + short_time(getattr(split, name) if found is None else found.percentiles[name][p])
            for words, name in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"))
        ]
        what = f"{split.n_prefill} prefill + {split.n_decode} decode x {family.hardware} {split.candidate.cut.text}"
        text = f"{split.n_devices} devices, {', '.join(times)}: {what}, {family.stored_text}, {family.runtime}"
        yield Padding(Text(text), (0, 0, 0, 2), expand=False)


def _sure_text(view: PlanView) -> Iterator[RenderableType]:
    from rich.text import Text

    winner = view.contest.winner
    if winner is None:
        return
    chance = f"The bands give the winner {100 * winner.likelihood.both:.0f} % to meet the targets"
    if view.sure is None:
        yield Text(f"{chance}; no number of its replicas makes it {100 * SURE:.0f} %: calibrate on measurements")
    elif view.sure > winner.n_replicas:
        n = view.sure * winner.candidate.cut.n_devices
        yield Text(f"{chance}; {view.sure} replicas ({n} devices) make it {100 * SURE:.0f} %")
    else:
        yield Text(f"{chance}")
