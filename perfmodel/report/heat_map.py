"""Heat map of a profile: types of operators against time, beside their shares; below, how busy each stream is.

Colour is the time of a type's operators in a slice of time over the slice, at most 1 (several streams). Without start
times columns are the streams (or steps) of the profile, and colour is the share of the whole time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from perfmodel.measure.profile import OperatorTiming
from perfmodel.measure.profiling.profile_file import Profile, natural
from perfmodel.measure.profiling.shares import OperatorShare, operator_shares, type_of
from perfmodel.report.picture import saved_picture
from perfmodel.report.style import BLUE, GREY, INK, canvas
from perfmodel.units import time_text

__all__ = ["heat_map_figure", "save_heat_map"]

Floats = NDArray[np.float64]

_BAR: Final = BLUE
_LINE: Final = "#d9d9d9"
_MOST_ROWS: Final = 14
_MOST_STREAMS: Final = 8
_MOST_COLUMNS: Final = 24
_N_SLICES: Final = 120
_OTHERS: Final = "all others"


def heat_map_figure(profile: Profile, *, title: str) -> Figure:
    """Return the picture of a profile."""
    shares = operator_shares(profile)
    rows = _rows(shares)
    names = [name for name, _ in rows]
    height = 1.9 + 0.34 * len(rows) + (0.5 + 0.28 * min(len(profile.streams), _MOST_STREAMS))
    figure = canvas(13.0, max(3.6, height))
    n_streams = min(len(profile.streams), _MOST_STREAMS)
    timed = profile.has_times
    grid = figure.add_gridspec(
        2 if timed else 1, 2, width_ratios=(4.2, 1.0), height_ratios=(len(rows), n_streams + 0.6) if timed else (1,)
    )
    heat, bars = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
    if timed:
        span = _span(profile)
        values = _busy(profile, span, names, lambda o: type_of(o) if type_of(o) in names else _OTHERS)
        _draw_heat(figure, heat, values, names, label="operator time in each slice of time", extent=span[1] - span[0])
        below = figure.add_subplot(grid[1, 0])
        _draw_streams(below, profile, span)
    else:
        values, columns = _columns(profile, names)
        _draw_heat(figure, heat, values, names, label="share of all time", columns=columns)
    _draw_bars(bars, rows)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12.5, fontweight="bold", color=INK)
    return figure


def save_heat_map(profile: Profile, path: Path, *, title: str) -> Path:
    """Write the picture in the format of the path's suffix and return the path; raises SpecError."""
    return saved_picture(heat_map_figure(profile, title=title), path)


def _rows(shares: Sequence[OperatorShare]) -> list[tuple[str, tuple[float, float]]]:
    """Return (type, (time, share)) of the longest types, the rest as one row."""
    shown = list(shares[: _MOST_ROWS if len(shares) > _MOST_ROWS + 1 else None])
    rows = [(one.type, (one.total_s, one.share)) for one in shown]
    rest = shares[len(shown) :]
    if rest:
        rows.append((_OTHERS, (sum(one.total_s for one in rest), sum(one.share for one in rest))))
    return rows


def _span(profile: Profile) -> tuple[float, float]:
    starts = [o.start_s or 0.0 for o in profile.operators]
    ends = [(o.start_s or 0.0) + o.duration_s for o in profile.operators]
    return min(starts), max(ends)


def _busy(
    profile: Profile, span: tuple[float, float], names: Sequence[str], row_of: Callable[[OperatorTiming], str]
) -> Floats:
    """Return the time of each row's operators in each slice over the slice, at most 1."""
    edges = np.linspace(span[0], span[1], _N_SLICES + 1)
    width = edges[1] - edges[0]
    found = np.zeros((len(names), _N_SLICES))
    place = {name: i for i, name in enumerate(names)}
    for o in profile.operators:
        start, end = o.start_s or 0.0, (o.start_s or 0.0) + o.duration_s
        first = int(np.clip((start - span[0]) / width, 0, _N_SLICES - 1))
        last = int(np.clip((end - span[0]) / width, 0, _N_SLICES - 1))
        inside = np.minimum(edges[first + 1 : last + 2], end) - np.maximum(edges[first : last + 1], start)
        found[place[row_of(o)], first : last + 1] += np.maximum(inside, 0.0) / width
    return np.minimum(found, 1.0)


def _columns(profile: Profile, names: Sequence[str]) -> tuple[Floats, list[str]]:
    """Return shares of all time by type and by stream, step or device, whichever the profile tells apart."""
    keys: tuple[Callable[[OperatorTiming], str], ...] = (
        lambda o: o.stream and f"stream {o.stream}",
        lambda o: o.step and f"step {o.step}",
        lambda o: o.device and f"device {o.device}",
    )
    key = next((k for k in keys if len({k(o) for o in profile.operators}) > 1), lambda _: "all operators")
    columns = sorted({key(o) for o in profile.operators})[:_MOST_COLUMNS]
    found = np.zeros((len(names), len(columns)))
    for o in profile.operators:
        name = type_of(o) if type_of(o) in names else _OTHERS
        if key(o) in columns:
            found[names.index(name), columns.index(key(o))] += o.duration_s * o.n_calls / profile.total_s
    return found, [column or "not stated" for column in columns]


def _draw_heat(
    figure: Figure,
    axes: Axes,
    values: Floats,
    names: Sequence[str],
    *,
    label: str,
    extent: float = 0.0,
    columns: Sequence[str] = (),
) -> None:
    scale, unit = _unit(extent)
    box = (0.0, extent * scale, len(names), 0.0) if extent else None
    top = 1.0 if extent else float(values.max())
    image = axes.imshow(
        100 * values, aspect="auto", cmap=_heat(), vmin=0.0, vmax=100 * top, extent=box, interpolation="nearest"
    )
    offset = 0.5 if extent else 0.0
    axes.set_yticks([i + offset for i in range(len(names))], [_short(name) for name in names], fontsize=9)
    axes.tick_params(left=False)
    for i in range(1, len(names)):
        axes.axhline(i if extent else i - 0.5, color=_LINE, lw=1.0)
    if extent:
        axes.set_xlabel(f"time from the first operator ({unit})", fontsize=9, color=GREY)
        axes.xaxis.set_major_locator(MaxNLocator(9))
    else:
        axes.set_xticks(range(len(columns)), columns, fontsize=9, rotation=30 if len(columns) > 6 else 0)
        for i, row in enumerate(values):
            for j, value in enumerate(row):
                if value > 0:
                    ink = "white" if value > 0.55 * top else INK
                    axes.text(j, i, f"{value:.1%}", ha="center", va="center", fontsize=8, color=ink)
    for side in axes.spines.values():
        side.set_color(_LINE)
    bar = figure.colorbar(image, ax=axes, location="left", fraction=0.03, pad=0.01)
    bar.set_label(f"{label} (%)", fontsize=8.5, color=GREY)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)


def _heat() -> LinearSegmentedColormap:
    """Return colours from white (nothing runs) over orange and purple to nearly black."""
    return LinearSegmentedColormap.from_list(
        "heat", ["#ffffff", "#fde3b0", "#f9a35c", "#dd4f4f", "#8a226a", "#3b0f4f", "#16061e"]
    )


def _draw_bars(axes: Axes, rows: Sequence[tuple[str, tuple[float, float]]]) -> None:
    places = np.arange(len(rows))
    axes.barh(places, [100 * share for _, (_, share) in rows], color=_BAR, height=0.72)
    most = max(share for _, (_, share) in rows)
    for place, (_, (time, share)) in zip(places, rows, strict=True):
        axes.text(
            100 * (share + 0.02 * most), float(place), f"{share:.1%}  {time_text(time)}", va="center", fontsize=8.5
        )
    axes.set_xlim(0, 100 * most * 1.75)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks([])
    axes.set_xticks([])
    axes.set_title("share of all operator time", fontsize=9, color=GREY, loc="left")
    for side in axes.spines.values():
        side.set_visible(False)


def _draw_streams(axes: Axes, profile: Profile, span: tuple[float, float]) -> None:
    """Draw how busy each stream is over the same time."""
    streams = sorted(profile.streams, key=lambda s: -sum(profile.operators[i].duration_s for i in profile.streams[s]))
    shown = sorted(streams[:_MOST_STREAMS], key=natural)
    several = len({device for device, _ in streams}) > 1
    names = [f"{device} " * several + f"stream {stream or '?'}" for device, stream in shown]
    place = dict(zip(shown, names, strict=True))
    kept = [o for o in profile.operators if (o.device, o.stream) in place]
    part = Profile(profile.name, profile.formats, tuple(kept))
    values = _busy(part, span, names, lambda o: place[(o.device, o.stream)])
    scale, unit = _unit(span[1] - span[0])
    box = (0.0, (span[1] - span[0]) * scale, len(names), 0.0)
    axes.imshow(100 * values, aspect="auto", cmap="Greys", vmin=0, vmax=100, extent=box, interpolation="nearest")
    axes.set_yticks([i + 0.5 for i in range(len(names))], [_short(name) for name in names], fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(9))
    axes.set_xlabel(f"time ({unit}); black: the stream is busy", fontsize=9, color=GREY)
    axes.tick_params(left=False)
    for i in range(1, len(names)):
        axes.axhline(i, color=_LINE, lw=1.0)
    for side in axes.spines.values():
        side.set_color(_LINE)


def _unit(seconds: float) -> tuple[float, str]:
    """Return the factor and the name of a unit in which a span reads well."""
    return next(((f, u) for least, f, u in ((1.0, 1.0, "s"), (1e-3, 1e3, "ms")) if seconds >= least), (1e6, "us"))


def _short(name: str) -> str:
    return name if len(name) <= 26 else f"{name[:24]}.."
