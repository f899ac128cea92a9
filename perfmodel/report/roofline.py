"""The roofline as a picture: ceilings and memory diagonals, operators of a prefill and a decode step below them.

A marker stands at the predicted rate, its area follows the operator's share of the step; a thin line leads up to the
roof of its dtype. The table beside the picture lists every share, also of what has no place under a roof.
Colours are of Okabe and Ito's palette, told apart with every common colour blindness.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from perfmodel.report.label_board import LabelBoard
from perfmodel.report.picture import saved_picture
from perfmodel.report.roofline_levels import LEVEL_COLOUR, draw_level_key, draw_levels
from perfmodel.report.style import BLUE, GREY, INK, ORANGE
from perfmodel.step.roofline import OperatorPoint, Phase, Roofline
from perfmodel.units import bandwidth_text, rate_text, time_text

__all__ = ["roofline_figure", "save_roofline"]


_PHASES: Final[tuple[Phase, Phase]] = ("prefill", "decode")
_COLOUR: Final[dict[Phase, str]] = {"prefill": BLUE, "decode": ORANGE}
_MARKER: Final[dict[Phase, str]] = {"prefill": "o", "decode": "s"}
_PALE = "#b8b8b8"
_LEVEL_STYLE: Final = {"dram": ("-", 2.0), "l2": ("--", 1.2), "infinity_cache": ("--", 1.2), "on_chip": (":", 1.2)}
_LEAST_SHARE: Final = 0.001
"""Operators below this share of their step stand in the table only."""
_DPI: Final = 100.0
_PANEL: Final = (0.085, 0.08, 0.548, 0.805)
_TABLE: Final = (0.792, 0.08, 0.196, 0.805)
_COLUMNS: Final = (0.0, 0.085, 0.79, 1.0)
_ROW_HEIGHT: Final = 0.0225
_MOST_ROWS: Final = 32


def roofline_figure(data: Roofline, *, n_labels: int = 6) -> Figure:
    """Return the picture; in each phase the `n_labels` longest operators bear their names, the others a number."""
    figure = Figure(figsize=(14.5, 8.4), dpi=_DPI, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes(_PANEL)
    shown = [p for p in data.points if p.time_share >= _LEAST_SHARE] or list(data.points)
    _set_axes(axes, data, shown)
    board = LabelBoard(axes)
    named = {id(p) for phase in _PHASES for p in [q for q in shown if q.phase == phase][:n_labels]}
    _draw_ceilings(board, data)
    draw_levels(board, [p for p in shown if id(p) in named])
    _draw_points(board, shown)
    _draw_memories(board, data)
    _draw_ridges(board, data)
    numbers = _numbers(data, [p for p in shown if id(p) not in named])
    for point in sorted(shown, key=lambda p: (id(p) not in named, -p.time_share)):
        is_named = id(point) in named
        board.place(
            (point.intensity_flop_per_byte, point.predicted_flop_per_s),
            f"{point.name} {_short_share(point.time_share)}" if is_named else str(numbers[point.name]),
            radius_px=_radius_px(point.time_share),
            colour=_COLOUR[point.phase],
            size=8.5 if is_named else 7.5,
            weight="bold" if is_named else "normal",
        )
    _draw_table(figure, data, numbers)
    if any(p.levels for p in shown):
        draw_level_key(axes)
    _draw_titles(figure, data)
    return figure


def save_roofline(data: Roofline, path: Path | str, *, n_labels: int = 6) -> Path:
    """Return the path of the picture, written as PNG, SVG or PDF by its suffix.

    Raises SpecError for another suffix or a place that cannot be written to.
    """
    return saved_picture(roofline_figure(data, n_labels=n_labels), Path(path))


def _set_axes(axes: Axes, data: Roofline, shown: Sequence[OperatorPoint]) -> None:
    """Scale the axes so that every shown point, its roof and the ceilings fit."""
    used = [c.flop_per_s for c in data.ceilings if c.is_used]
    intensities = [p.intensity_flop_per_byte for p in shown]
    intensities += [v.intensity_flop_per_byte for p in shown for v in p.levels]
    ridges = [r.ridge_flop_per_byte for r in data.ridges if r.is_used and r.level == "dram"]
    lowest = min([p.predicted_flop_per_s for p in shown] or used)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(min([*intensities, 1.0]) / 3.0, max([*intensities, *ridges]) * 3.0)
    axes.set_ylim(lowest / 2.5, max(c.flop_per_s for c in data.ceilings) * 2.2)
    where = "the level" if any(p.levels for p in shown) else "main memory"
    axes.set_xlabel(f"Arithmetic intensity, flop per byte of {where}", fontsize=10, color=INK)
    axes.set_ylabel("Arithmetic rate of one device", fontsize=10, color=INK)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(10.0, numticks=20))
        axis.set_minor_locator(LogLocator(10.0, subs=tuple(range(2, 10)), numticks=200))
        axis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: rate_text(y)))
    axes.tick_params(labelsize=9, colors=INK)
    axes.set_axisbelow(True)
    axes.grid(visible=True, which="major", color="#e3e3e3", lw=0.7)
    axes.grid(visible=True, which="minor", color="#f3f3f3", lw=0.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _draw_memories(board: LabelBoard, data: Roofline) -> None:
    """Draw a diagonal for each memory level with its name along it."""
    axes, top = board.axes, max(c.flop_per_s for c in data.ceilings)
    is_hierarchical = any(p.levels for p in data.points)
    (low_x, high_x), (low_y, _) = axes.get_xlim(), axes.get_ylim()
    rates = sorted(m.bytes_per_s for m in data.memories)
    visible = []
    for memory in data.memories:
        rate = memory.bytes_per_s
        start, end = max(low_x, low_y / rate), min(high_x, top / rate)
        if end > start:
            style, width = _LEVEL_STYLE[memory.level]
            colour = INK if memory.level == "dram" else GREY
            if is_hierarchical:
                colour = LEVEL_COLOUR[memory.level]
            axes.plot((start, end), (start * rate, end * rate), ls=style, lw=width, color=colour, zorder=2)
            board.note_line((start, start * rate), (end, end * rate))
            visible.append((memory, start, end, colour))
    for memory, start, end, colour in visible:
        rate, is_main = memory.bytes_per_s, memory.level == "dram"
        next_rate = next((other for other in rates if other > rate), np.inf)
        board.place_along(
            (start, start * rate),
            (end, end * rate),
            f"{memory.name} {bandwidth_text(rate)}",
            below=not is_main and next_rate / rate < 1.9,
            colour=colour,
            size=9.0 if is_main else 8.0,
            weight="bold" if is_main else "normal",
        )


def _draw_ceilings(board: LabelBoard, data: Roofline) -> None:
    """Draw the peaks from the fastest memory's ridge to the right edge, labelled there; equal peaks share a line."""
    axes = board.axes
    (low_x, right), low_y = axes.get_xlim(), axes.get_ylim()[0]
    fastest, main = max(m.bytes_per_s for m in data.memories), data.memories[0].bytes_per_s
    groups: dict[float, list[tuple[bool, str]]] = {}
    for c in data.ceilings:
        if c.flop_per_s > low_y:
            groups.setdefault(c.flop_per_s, []).append((not c.is_used, c.name))
    heights = _spread([board.pixels(right, rate)[1] for rate in groups], gap_px=14.0)
    for (rate, names), height in zip(groups.items(), heights, strict=True):
        is_used = any(not unused for unused, _ in names)
        colour = INK if is_used else _PALE
        left = max(low_x, rate / fastest)
        axes.plot((left, right), (rate, rate), color=colour, lw=0.9, zorder=1)
        board.note_line((left, rate), (right, rate))
        if is_used:
            axes.plot((min(rate / main, right), right), (rate, rate), color=INK, lw=2.0, zorder=2)
        own_y, y = board.share_of_axes(board.pixels(right, rate))[1], board.share_of_axes((0.0, height))[1]
        axes.plot((1.0, 1.012), (own_y, y), transform=axes.transAxes, color=colour, lw=0.8, clip_on=False)
        axes.text(
            1.016, y, f"{', '.join(name for _, name in sorted(names))} {rate_text(rate)}", transform=axes.transAxes,
            va="center", fontsize=8.5, fontweight="bold" if is_used else "normal", color=INK if is_used else GREY,
        )  # fmt: skip


def _spread(heights: Sequence[float], *, gap_px: float) -> list[float]:
    """Return falling heights, moved as little as needed to stand `gap_px` apart."""
    result = list(heights)
    for _ in range(200):
        for i in range(len(result) - 1):
            lack = max(0.0, gap_px - (result[i] - result[i + 1]))
            result[i] += lack / 2
            result[i + 1] -= lack / 2
    return result


def _area(share: float) -> float:
    """Return the marker area in square points for a share of the step."""
    return 22.0 + 800.0 * share


def _radius_px(share: float) -> float:
    return 0.5 * float(np.sqrt(_area(share))) * _DPI / 72.0


def _draw_points(board: LabelBoard, shown: Iterable[OperatorPoint]) -> None:
    """Draw markers, and a line from each to its roof."""
    axes = board.axes
    for p in shown:
        x, colour = p.intensity_flop_per_byte, _COLOUR[p.phase]
        axes.plot((x, x), (p.predicted_flop_per_s, p.bound_flop_per_s), color=colour, lw=0.8, alpha=0.6, zorder=3)
        axes.plot((x,), (p.bound_flop_per_s,), marker="o", ms=3.2, mfc="white", mec=colour, mew=1.0, zorder=4)
        board.note_line((x, p.predicted_flop_per_s), (x, p.bound_flop_per_s))
        axes.scatter(
            (x,), (p.predicted_flop_per_s,), s=_area(p.time_share), marker=_MARKER[p.phase], color=colour, alpha=0.8,
            edgecolors="white", linewidths=0.7, zorder=6 - p.time_share,
        )  # fmt: skip
        board.note_marker((x, p.predicted_flop_per_s), _radius_px(p.time_share))


def _draw_ridges(board: LabelBoard, data: Roofline) -> None:
    """Mark the ridges of used ceilings; those with main memory bear their value."""
    low, high = board.axes.get_xlim()
    ridges = [r for r in data.ridges if r.is_used and low < r.ridge_flop_per_byte < high]
    for r in ridges:
        at, is_main = (r.ridge_flop_per_byte, r.flop_per_s), r.level == "dram"
        size, colour = (7.0, INK) if is_main else (4.5, GREY)
        board.axes.plot(at[:1], at[1:], marker="D", ms=size, mfc="white", mec=colour, mew=1.2, zorder=5)
        board.note_marker(at, size * 0.7 * _DPI / 72.0)
    for r in ridges:
        if r.level == "dram":
            text = f"ridge {r.ridge_flop_per_byte:.3g} flop/B"
            board.place((r.ridge_flop_per_byte, r.flop_per_s), text, radius_px=7.0, colour=INK, size=8.0)


def _numbers(data: Roofline, unnamed: Iterable[OperatorPoint]) -> dict[str, int]:
    """Return the numbers of operators that the picture numbers, in the order of the table."""
    wanted = {p.name for p in unnamed}
    return {name: i for i, name in enumerate((n for n in _by_share(data) if n in wanted), start=1)}


def _by_share(data: Roofline) -> dict[str, dict[Phase, float]]:
    """Return operator -> share of each phase, the longest first."""
    shares: dict[str, dict[Phase, float]] = {}
    for p in data.points:
        own = shares.setdefault(p.name, {})
        own[p.phase] = own.get(p.phase, 0.0) + p.time_share
    return dict(sorted(shares.items(), key=lambda pair: -max(pair[1].values())))


def _draw_table(figure: Figure, data: Roofline, numbers: dict[str, int]) -> None:
    """Write every share of the two steps beside the picture, with the key of the markers below."""
    axes = figure.add_axes(_TABLE)
    axes.set_axis_off()
    axes.set_xlim(0.0, 1.0)
    axes.set_ylim(0.0, 1.0)
    operators = list(_by_share(data).items())
    others: dict[str, dict[Phase, float]] = {}
    for o in data.others:
        others.setdefault(o.name, {})[o.phase] = o.time_share
    n_shown = max(4, _MOST_ROWS - len(others))
    rest = [sum(shares.get(p, 0.0) for _, shares in operators[n_shown:]) for p in _PHASES]
    y = 1.0
    _write_row(axes, y, ("", "share of a step", "prefill", "decode"), weight="bold")
    y -= 0.3 * _ROW_HEIGHT
    for name, shares in operators[:n_shown]:
        y -= _ROW_HEIGHT
        _write_row(axes, y, (str(numbers.get(name, "")), name, *(_share_text(shares.get(p)) for p in _PHASES)))
    if operators[n_shown:]:
        y -= _ROW_HEIGHT
        _write_row(axes, y, ("", f"{len(operators) - n_shown} more", *(_share_text(share) for share in rest)))
    y -= 1.4 * _ROW_HEIGHT
    _write_row(axes, y, ("", "not under a roof", "", ""), colour=GREY, style="italic")
    for name, shares in sorted(others.items(), key=lambda pair: -max(pair[1].values())):
        y -= _ROW_HEIGHT
        _write_row(axes, y, ("", name, *(_share_text(shares.get(p)) for p in _PHASES)))
    y -= 1.4 * _ROW_HEIGHT
    times = {s.phase: time_text(float(f"{s.step_s:.3g}")) for s in data.steps}
    _write_row(axes, y, ("", "one step", times["prefill"], times["decode"]), weight="bold")
    _draw_key(axes)


def _short_share(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else "<1%"


def _share_text(share: float | None) -> str:
    if share is None:
        return "-"
    return f"{100 * share:.1f} %" if share >= _LEAST_SHARE else "< 0.1 %"


def _write_row(
    axes: Axes,
    y: float,
    cells: tuple[str, ...],
    *,
    weight: str = "normal",
    colour: str = INK,
    style: Literal["normal", "italic"] = "normal",
) -> None:
    """Write a line of the table: number, name, share of prefill, share of decode."""
    colours = (GREY, colour, _COLOUR["prefill"], _COLOUR["decode"])
    for x, cell, own in zip(_COLUMNS, cells, colours, strict=True):
        axes.text(
            x, y, cell if len(cell) < 30 else f"{cell[:27]}...", ha="right" if x > 0.5 else "left", va="top",
            fontsize=8.0, color=own, fontweight=weight, fontstyle=style,
        )  # fmt: skip


def _draw_key(axes: Axes) -> None:
    """Draw what markers, areas and ticks mean."""
    lines = (0.095, 0.068, 0.041, 0.014)
    for y, phase in zip(lines, _PHASES, strict=False):
        axes.scatter((0.03,), (y,), s=60, marker=_MARKER[phase], color=_COLOUR[phase], alpha=0.8)
    axes.plot((0.03,), lines[2:3], marker="o", ms=3.2, mfc="white", mec=GREY, mew=1.0)
    axes.plot((0.03,), lines[3:], marker="D", ms=6, mfc="white", mec=INK, mew=1.2)
    texts = ("prefill, predicted", "decode, predicted", "roof above it", "ridge of main memory (small: of a cache)")
    for y, text in zip(lines, texts, strict=True):
        axes.text(0.085, y, text, va="center", fontsize=8.0, color=INK)
    for x, share in ((0.62, 0.01), (0.74, 0.1), (0.9, 0.5)):
        axes.scatter((x,), (0.08,), s=_area(share), marker="o", facecolors="none", edgecolors=GREY, lw=0.8)
        axes.text(x, 0.044, f"{share:.0%}", ha="center", va="center", fontsize=7.5, color=GREY)


def _draw_titles(figure: Figure, data: Roofline) -> None:
    """Write what the picture is of: model and device, then the deployment, then the two steps."""
    left = _PANEL[0]
    figure.text(left, 0.957, f"{data.model} on {data.device}", fontsize=14, fontweight="bold", color=INK)
    weights = "unquantised" if data.scheme == "none" else data.scheme
    facts = (
        data.layout, f"{weights} weights", f"{data.dtype} activations", f"{data.kv_dtype} KV cache",
        f"batch {data.batch:g}", f"{data.input_tokens:g} tokens in, {data.output_tokens:g} out", data.runtime,
        f"calibration {data.calibration}",
    )  # fmt: skip
    figure.text(left, 0.93, "  |  ".join(fact for fact in facts if fact), fontsize=9.5, color=GREY)
    prefill, decode = (next(s for s in data.steps if s.phase == phase) for phase in _PHASES)
    rank = " on each data-parallel rank" if "DP" in data.layout else ""
    served = f"{decode.n_seqs:g} sequence{'' if decode.n_seqs == 1 else 's'}"
    steps = f"A prefill step reads {prefill.n_tokens:.6g} tokens, a decode step serves {served}{rank}."
    figure.text(left, 0.907, steps, fontsize=9.5, color=GREY)
