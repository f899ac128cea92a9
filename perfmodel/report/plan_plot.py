"""Pictures of a plan: fronts by device, rivals against the targets, and where the time goes."""

from __future__ import annotations

from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from perfmodel.estimate import Bound
from perfmodel.plan.pareto import front
from perfmodel.report.answer import bound_text
from perfmodel.report.plan_view import PlanView
from perfmodel.report.style import AMBER, BLUE, GREEN, INK, ORANGE, PINK, SKY, canvas, plain

__all__ = ["cost_figure", "front_figure", "rivals_figure", "time_figure"]

COLOURS: Final = (BLUE, ORANGE, GREEN, PINK, AMBER, SKY, "#7A5195", "#8C6D31")
_RED = "#a33a1e"
_OF_BOUND: Final = {
    Bound.COMPUTE: BLUE,
    Bound.WEIGHT_READ: ORANGE,
    Bound.KV_READ: AMBER,
    Bound.ACTIVATION_IO: "#8C6D31",
    Bound.LAUNCH: PINK,
    Bound.HOST: "#7A5195",
    Bound.LINK: GREEN,
    Bound.ISSUE: SKY,
}
_MOST_BARS: Final = 14
_WIDTH: Final = 10.4


def _devices(view: PlanView) -> dict[str, str]:
    names = dict.fromkeys(one.family.hardware for one in view.plan.candidates)
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}


def _log(axes: Axes, *, x: bool = True, y: bool = True) -> None:
    for on, axis, scale in ((x, axes.xaxis, axes.set_xscale), (y, axes.yaxis, axes.set_yscale)):
        if on:
            scale("log")
            axis.set_major_locator(LogLocator(base=10.0, subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
            axis.set_minor_formatter(NullFormatter())


def front_figure(view: PlanView) -> Figure:
    """Return output tokens/s a user against tokens/s a device: the front of each device, and what was chosen."""
    figure = canvas(_WIDTH, 4.6)
    axes = figure.subplots()
    table, targets = view.plan.table, view.plan.targets
    hardware = np.array([one.family.hardware for one in view.plan.candidates])[table.candidate]
    user, device = table.tokens_per_s_per_user, table.tokens_per_s_per_device
    for name, colour in _devices(view).items():
        own = np.flatnonzero(hardware == name)
        rows = own[front(user[own], device[own])]
        axes.plot(user[rows], device[rows], color=colour, marker="o", ms=3.2, lw=1.6, label=name)
    if targets.tpot_s is not None:
        axes.axvline(1.0 / targets.tpot_s, color=_RED, lw=1.2, ls="--")
        axes.annotate(
            "TPOT target",
            (1.0 / targets.tpot_s, 0.95),
            xycoords=("data", "axes fraction"),
            xytext=(4, 0),
            textcoords="offset points",
            color=_RED,
            fontsize=9,
        )
    for place, (i, label) in enumerate(zip(view.contest.order[:2], ("chosen", "runner-up"), strict=False)):
        row = view.finalists[i].row
        style = {"s": 190.0, "marker": "*"} if place == 0 else {"s": 80.0, "marker": "D"}
        axes.scatter(user[row], device[row], color=INK, zorder=5, label=label, **style)  # type: ignore[arg-type]
    _log(axes)
    plain(axes)
    axes.set_xlabel("output tokens/s that a user sees")
    axes.set_ylabel("output tokens/s of a device")
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def cost_figure(view: PlanView) -> Figure | None:
    """Return cost against end-to-end time, one front for each device with a price; None where no price is known."""
    table = view.plan.table
    if not np.any(np.isfinite(table.usd_per_million_tokens)):
        return None
    figure = canvas(_WIDTH, 4.2)
    axes = figure.subplots()
    hardware = np.array([one.family.hardware for one in view.plan.candidates])[table.candidate]
    e2e, cost = table.e2e_s, table.usd_per_million_tokens
    for name, colour in _devices(view).items():
        own = np.flatnonzero((hardware == name) & np.isfinite(cost))
        rows = own[front(-e2e[own], -cost[own])]
        if len(rows):
            axes.plot(e2e[rows], cost[rows], color=colour, marker="o", ms=3.2, lw=1.6, label=name)
    winner = view.contest.winner
    if winner is not None and np.isfinite(cost[winner.row]):
        axes.scatter(e2e[winner.row], cost[winner.row], color=INK, marker="*", s=190, zorder=5, label="chosen")
    _log(axes)
    plain(axes)
    axes.set_xlabel("mean end-to-end time of a request (s)")
    axes.set_ylabel("USD for a million output tokens")
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _labels(view: PlanView, places: list[int]) -> list[str]:
    labels = []
    for n, i in enumerate(places):
        f = view.finalists[i]
        family = f.candidate.family
        size = f"{f.n_replicas} x {f.candidate.cut.text}"
        labels.append(f"{n + 1}  {family.hardware} {size}, {family.quantization}/{family.kv_cache_dtype}")
    return labels


def rivals_figure(view: PlanView) -> Figure:
    """Return TTFT and TPOT of the rivals with their bands, simulated percentiles, and the targets."""
    places = list(view.contest.order[:_MOST_BARS])
    figure = canvas(_WIDTH, 1.5 + 0.34 * len(places))
    left, right = figure.subplots(1, 2, sharey=True)
    at = np.arange(len(places))
    p = view.plan.targets.percentile
    for axes, name, words in ((left, "ttft_s", "time to first token (s)"), (right, "tpot_s", "time per token (ms)")):
        scale = 1.0 if name == "ttft_s" else 1e3
        bands = np.array([view.finalists[i].band(name) for i in places]) * scale
        axes.hlines(at, bands[:, 1], bands[:, 2], color="#9db4c9", lw=6, label="80 % band of the mean")
        axes.plot(bands[:, 0], at, "o", color=COLOURS[0], ms=5, label="mean, steady state")
        simulated = [(n, view.finalists[i].simulated) for n, i in enumerate(places)]
        shown = [(s.percentiles[name][p] * scale, n) for n, s in simulated if s is not None]
        if shown:
            axes.plot(*zip(*shown, strict=True), "D", color=COLOURS[1], ms=5, label=f"p{p}, simulated")
        target = getattr(view.plan.targets, name)
        if target is not None:
            axes.axvline(target * scale, color=_RED, lw=1.2, ls="--", label="target")
        axes.set_xlabel(words)
        axes.set_xlim(left=0.0)
        plain(axes)
    left.set_yticks(at, _labels(view, places))
    left.invert_yaxis()
    handles, names = max((a.get_legend_handles_labels() for a in (left, right)), key=lambda pair: len(pair[1]))
    figure.legend(handles, names, loc="outside upper right", ncols=4, frameon=False, fontsize=9)
    return figure


def time_figure(view: PlanView) -> Figure:
    """Return where the time of a request goes, one bar for each rival."""
    places = list(view.contest.order[:_MOST_BARS])
    figure = canvas(_WIDTH, 1.5 + 0.32 * len(places))
    axes = figure.subplots()
    at = np.arange(len(places))
    before = np.zeros(len(places))
    for bound, colour in _OF_BOUND.items():
        share = np.array([100 * dict(view.finalists[i].bounds).get(bound, 0.0) for i in places])
        if share.max(initial=0.0) >= 0.5:
            axes.barh(at, share, left=before, color=colour, height=0.72, label=bound_text(bound))
        before = before + share
    axes.set_yticks(at, _labels(view, places))
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of the end-to-end time (%)")
    plain(axes)
    figure.legend(loc="outside upper right", ncols=4, frameon=False, fontsize=8.5)
    return figure
