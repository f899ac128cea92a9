"""A plan as one page to show to others, and as a workbook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.metadata import version
from typing import Any

import numpy as np

from perfmodel.estimate import Estimate, leaf_shares
from perfmodel.plan.finalists import Finalist
from perfmodel.plan.knobs import Scene
from perfmodel.plan.nearest import describe
from perfmodel.plan.ranking import OBJECTIVES
from perfmodel.plan.sensitivity import effects
from perfmodel.plan.space import Family
from perfmodel.report.notes import rate
from perfmodel.report.page import cards, figure_html, items, page, section, table
from perfmodel.report.plan import assumptions, plan_document, plan_rows, split_rows, warnings
from perfmodel.report.plan_view import FRONTS, SURE, PlanView, copies_text, short_time, target_text
from perfmodel.report.sensitivity import SensitivityView
from perfmodel.serving.metrics import DEFINITIONS
from perfmodel.sources import citation

__all__ = ["plan_page", "plan_sheets"]

_MOST_SOURCES = 40
_CHANGE_FRAC = 0.1
_MOST_FRONT = 20


def plan_page(view: PlanView) -> str:
    """Return the plan as a self-contained page."""
    title = f"Serving plan: {', '.join(view.plan.space.models)}"
    return page(title, [*_opening(view, title), *_body(view), *_sensitivity(view), *_closing(view)])


def _sensitivity(view: PlanView) -> Iterator[str]:
    """Yield what moves the winner's time per output token: the figures worth measuring or negotiating."""
    from perfmodel.report.sensitivity_plot import tornado_figure

    winner = view.contest.winner
    if winner is None:
        return
    price = view.plan.prices[winner.candidate.device.name].value_usd_per_hour
    scene = Scene(
        case=winner.candidate.case,
        concurrency=float(winner.point.concurrency),
        input_tokens=view.plan.demand.input_tokens,
        output_tokens=view.plan.demand.output_tokens,
        usd_per_device_hour=price,
    )
    found = SensitivityView(scene, "tpot_s", _CHANGE_FRAC, effects(scene, change_frac=_CHANGE_FRAC))
    caption = (
        "Mean time per output token of one replica of the winner when one figure alone is changed; the whole model is "
        "evaluated again for each bar."
    )
    yield section("What matters most", figure_html(tornado_figure(found), caption, name="tornado"))


def _opening(view: PlanView, title: str) -> Iterator[str]:
    plan, winner = view.plan, view.contest.winner
    assert winner is not None  # a plan without one is an error, and has no page
    yield f"<h1>{escape(title)}</h1>"
    yield f'<p class="lead">{escape(plan.demand.text())}; {escape(target_text(view))}.</p>'
    yield f"<p><b>Answer.</b> {escape(_verdict(view, winner))}</p>"
    yield cards(_cards(view, winner))


def _verdict(view: PlanView, winner: Finalist) -> str:
    family, n = winner.candidate.family, winner.n_replicas
    copies = f"{n} replicas of" if n > 1 else "one replica of"
    text = (
        f"{winner.n_devices} x {family.hardware}: {copies} {winner.candidate.cut.text}, {family.stored_text}, "
        f"under {family.runtime}; best of {len(view.plan.table):,} "
        f"operating points by {OBJECTIVES[view.contest.ranked.objective]}."
    )
    runner_up = view.contest.runner_up
    if runner_up is not None:
        text += f" Runner-up: {describe(view.plan, runner_up.row)} ({view.reason(view.contest.order[1])})."
    return text


def _cards(view: PlanView, winner: Finalist) -> list[tuple[str, str, str]]:
    numbers, row, p = view.plan.table, winner.row, view.plan.targets.percentile
    found = [(f"{winner.n_devices}", "devices", f"{winner.n_replicas} x {winner.candidate.cut.text}")]
    if np.isfinite(numbers.usd_per_hour[row]):
        per = f"{numbers.usd_per_million_tokens[row]:.3g} USD a million tokens"
        found.append((f"{numbers.usd_per_hour[row]:.4g} USD/h", "cost", per))
    for name, words in (("ttft_s", "time to first token"), ("tpot_s", "time per output token")):
        value, low, high = winner.band(name)
        band = f"mean {short_time(value)}, 80 % band {short_time(low)} to {short_time(high)}"
        shown = value if winner.simulated is None else winner.simulated.percentiles[name][p]
        found.append((short_time(shown), f"{words}, {'mean' if winner.simulated is None else f'p{p}'}", band))
    tokens = float(numbers.served_per_s[row]) * numbers.output_tokens
    found.append((rate(tokens), "output tokens/s in all", f"{rate(float(numbers.served_per_s[row]))} requests/s"))
    sure = f"{view.sure} replicas make it {100 * SURE:.0f} %" if view.sure and view.sure > winner.n_replicas else ""
    found.append((f"{100 * winner.likelihood.both:.0f} %", "probability that the targets hold", sure))
    if winner.energy_j_per_output_token is not None:
        found.append((f"{winner.energy_j_per_output_token:.3g} J", "energy of an output token", "linear power model"))
    return found


def _body(view: PlanView) -> Iterator[str]:
    from perfmodel.report.plan_plot import cost_figure, front_figure, rivals_figure, time_figure

    p = view.plan.targets.percentile
    yield section(
        "Who was compared",
        f"<p>Each line is the best layout of a device, runtime, weight scheme and KV cache. TTFT and TPOT are p{p} of "
        "the simulation, or, marked ~, means of the steady state. <i>Worth</i> is the price of a device at which it "
        "would cost as much a token as the cheapest rival with a known price.</p>",
        table(*_rivals(view), numbers=(0, 5, 6, 7, 8, 9, 10, 11, 12), first=True),
        table(*_reasons(view), numbers=(0,)),
    )
    yield section(
        "Latency against the targets",
        figure_html(rivals_figure(view), "Bars: 80 % band of the predicted mean. Diamonds: simulated.", name="rivals"),
    )
    yield section(
        "Where the time goes",
        figure_html(
            time_figure(view), "Share of the end-to-end time of a request by what it is spent on.", name="time"
        ),
    )
    fronts = [
        figure_html(
            front_figure(view),
            "Fronts of each device over all layouts and loads, targets aside: right is faster for a user, up is more "
            "work from each device.",
            name="front",
        ),
        table(*_front(view, "interactivity"), numbers=(0, 1, 3, 4)),
    ]
    cost = cost_figure(view)
    if cost is not None:
        fronts.append(figure_html(cost, "Cost against latency, for devices with a known price.", name="cost"))
    yield section("Trade-offs", *fronts)
    if view.splits:
        yield section(
            "Prefill and decode apart",
            f"<p>{escape(view.split_verdict())} Replicas that only read prompts hand their KV caches to replicas that "
            "only decode, over the outermost fabric of the system.</p>",
            table(*_splits(view), numbers=(3, 4, 5, 6, 7)),
        )
    launches = []
    for words, (i, launch) in zip(("Winner", "Runner-up"), view.launches.items(), strict=False):
        f = view.finalists[i]
        where = f", as {launch.file}" if launch.file else ""
        head = f"{words}: {copies_text(f)}{where}"
        launches.append(f"<p><b>{escape(head)}</b></p><pre>{escape(launch.shown)}</pre>{items(launch.notes)}")
    yield section("How to start it", *launches)


def _rivals(view: PlanView) -> tuple[list[str], list[list[str]]]:
    """Return those that meet the targets with their figures."""
    p = view.plan.targets.percentile
    columns = ["#", "Hardware", "Runtime", "Weights, KV", "Replicas", "Devices", f"TTFT p{p}", f"TPOT p{p}"]
    columns += ["tok/s user", "tok/s device", "USD/Mtok", "Worth USD/h", "Met by"]
    rows = []
    for row in plan_rows(view):
        if row["status"] != "meets":
            continue
        cells = [str(row["place"]), row["hardware"], row["runtime"]]
        cells += [f"{row['quantization']}, {row['kv_cache_dtype']}", f"{row['n_replicas']} x {row['layout']}"]
        cells.append(str(row["n_devices"]))
        for name in ("ttft_s", "tpot_s"):
            shown, mean = row.get(f"{name}_p{p}"), row.get(name)
            cells.append("-" if mean is None else f"~{short_time(mean)}" if shown is None else short_time(shown))
        cells += [f"{row[name]:.3g}" for name in ("tokens_per_s_per_user", "tokens_per_s_per_device")]
        cost, worth = row["usd_per_million_tokens"], row["break_even_usd_per_device_hour"]
        cells += ["?" if cost is None else f"{cost:.3g}", "" if worth is None else f"{worth:.2f}"]
        rows.append([*cells, f"{100 * row['probability']:.0f} %"])
    return columns, rows


def _splits(view: PlanView) -> tuple[list[str], list[list[str]]]:
    p = view.plan.targets.percentile
    columns = ["Hardware, runtime", "Weights, KV", "Prefill + decode", "Devices", f"TTFT p{p}", f"TPOT p{p}"]
    columns += ["requests/s", "USD/Mtok"]
    rows = []
    for row in split_rows(view):
        cells = [f"{row['hardware']}, {row['runtime']}", f"{row['quantization']}, {row['kv_cache_dtype']}"]
        cells.append(f"{row['n_prefill_replicas']} + {row['n_decode_replicas']} x {row['layout']}")
        cells.append(str(row["n_devices"]))
        for name in ("ttft_s", "tpot_s"):
            shown = row.get(f"{name}_p{p}")
            cells.append(f"~{short_time(row[name])}" if shown is None else short_time(shown))
        cost = row["usd_per_million_tokens"]
        rows.append([*cells, f"{row['requests_per_s']:.3g}", "?" if cost is None else f"{cost:.3g}"])
    return columns, rows


def _stored(row: Mapping[str, Any]) -> str:
    return Family(*(row[name] for name in Family._fields)).stored_text


def _reasons(view: PlanView) -> tuple[list[str], list[list[str]]]:
    """Return why each rival is not first."""
    rows = [
        [
            str(row["place"]),
            f"{row['hardware']}, {row['runtime']}, {_stored(row)}",
            row["status"],
            row["reason"],
        ]
        for row in plan_rows(view)
        if row["reason"]
    ]
    return ["#", "Rival", "Targets", "Why it is not first"], rows


def _front(view: PlanView, name: str) -> tuple[list[str], list[list[str]]]:
    rows = view.front_rows(name)
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _MOST_FRONT)).astype(int))]
    numbers, x, y = view.plan.table, *FRONTS[name]
    columns = ["tok/s user", "tok/s device", "Configuration", "In flight a replica", "Devices", "Meets targets"]
    cells = [
        [
            rate(float(getattr(numbers, x)[row])),
            rate(float(getattr(numbers, y)[row])),
            describe(view.plan, int(row)),
            f"{numbers.in_flight[row]:g}",
            f"{numbers.n_devices[row]:g}",
            "yes" if view.contest.ranked.meets[row] else "no",
        ]
        for row in rows
    ]
    return columns, cells


def _sources(trees: Sequence[Estimate]) -> list[str]:
    """Return what the figures rest on, what counts most first: each source with the coefficients that it gives."""
    weight: dict[str, float] = {}
    held: dict[str, dict[str, str]] = {}
    for tree in trees:
        for leaf, share in leaf_shares(tree):
            given = [(citation(leaf.law.source), "", "")] if leaf.law.source else []
            given += [(c.source, c.key, f"{c.key} {c.value:.3g} +- {100 * c.rel_sd:.0f} %") for c in leaf.coefficients]
            for source, key, text in given:
                if source:
                    weight[source] = weight.get(source, 0.0) + float(share)
                    held.setdefault(source, {}).update({key: text} if key else {})
    ordered = sorted(weight, key=lambda source: -weight[source])[:_MOST_SOURCES]
    return [f"{source}: {', '.join(held[source].values())}" if held[source] else source for source in ordered]


def _closing(view: PlanView) -> Iterator[str]:
    said = warnings(view)
    if said:
        yield section("To be heeded", items(said, kind="warn"))
    yield section("Assumed", items(assumptions(view)))
    prices = [
        [name, "?" if price.value_usd_per_hour is None else f"{price.value_usd_per_hour:g}", price.source]
        for name, price in view.plan.prices.items()
    ]
    yield section("Prices", table(["Device", "USD/h", "Source"], prices, numbers=(1,)))
    words = [f"{name}: {text}" for name, text in DEFINITIONS.items() if name in ("ttft_s", "tpot_s", "e2e_s")]
    yield section(
        "How to read the figures",
        items(
            [
                *words,
                "band: 80 % of a log-normal distribution around the prediction, from the spread of each coefficient",
                "met by: probability that the true p-th percentiles are within the targets, given the bands",
                "tok/s user: 1 / mean time per output token; tok/s device: of a replica in steady state, over devices",
                f"{view.contest.n_simulated} configurations were simulated, the others are closed forms of the mean",
            ]
        ),
    )
    winner = view.contest.winner
    if winner is not None:
        point = winner.point
        yield section(
            "Sources of the winner's figures, what counts most first", items(_sources((point.ttft, point.tpot)))
        )
    yield f'<p class="soft">perfmodel {version("perfmodel")}. Analytical prediction, not a measurement.</p>'


def plan_sheets(view: PlanView) -> dict[str, list[Mapping[str, Any]]]:
    """Return the sheets of the workbook: question, rivals, fronts, refused layouts, prices, notes."""
    document = plan_document(view)
    asked = [
        {"figure": f"{part}.{name}", "value": value if value is None or isinstance(value, (int, float)) else str(value)}
        for part in ("demand", "targets")
        for name, value in document[part].items()
    ]
    asked += [{"figure": name, "value": document[name]} for name in ("objective", "n_configurations", "n_simulated")]
    refused = [
        {**r.family._asdict(), "layout": r.cut.text, "kind": r.kind, "reason": r.reason} for r in view.plan.refused
    ]
    notes = [{"kind": "assumed", "text": text} for text in document["assumed"]]
    notes += [{"kind": "note", "text": text} for text in document["warnings"]]
    launch = [{"place": one["place"], "file": one["file"], "text": one["text"]} for one in document["launch"]]
    return {
        "Question": asked,
        "Rivals": document["rivals"],
        "Prefill and decode apart": document["splits"],
        "Front user-device": document["fronts"]["interactivity"],
        "Front cost-latency": document["fronts"]["cost"],
        "Launch": launch,
        "Refused": refused,
        "Prices": [{"device": name, **price} for name, price in document["prices"].items()],
        "Notes": notes,
    }
