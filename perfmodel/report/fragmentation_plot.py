"""Picture of allocators side by side: shares of the pool, and what is useful and held over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.figure import Figure

from perfmodel.report.picture import saved_picture
from perfmodel.report.style import AMBER, BLUE, GREEN, GREY, ORANGE, PINK, SKY, canvas, plain, titled
from perfmodel.serving.pool_study import PoolRow

__all__ = ["pool_figure", "save_pool"]

_COLORS: Final = (BLUE, ORANGE, GREEN, PINK, AMBER, SKY, GREY)
_DASHES: Final = ("-", "-", "-", "-", (0, (4, 2)))
_PARTS: Final = (("useful_frac", "useful", BLUE), ("internal_frac", "held, not useful", AMBER),
                 ("external_frac", "free while sequences wait", "#d0d0d0"))  # fmt: skip
_SMOOTHED: Final = 120


def _thinned(
    values: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return at most so many means of stretches of equal length, so that a noisy line can be read."""
    return np.array([part.mean() for part in np.array_split(values, min(_SMOOTHED, len(values)))])


def pool_figure(rows: Sequence[PoolRow], *, title: str) -> Figure:
    """Return the picture: a bar an allocator on the left, occupancy over the events of the run on the right."""
    figure = canvas(13.5, max(4.2, 1.6 + 0.62 * len(rows)))
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1.0))
    places = np.arange(len(rows))[::-1]
    start = np.zeros(len(rows))
    for key, label, color in _PARTS:
        shares = np.array([100 * getattr(row.run, key) for row in rows])
        left.barh(places, shares, left=start, color=color, label=label, height=0.62)
        for place, at, share in zip(places, start, shares, strict=True):
            if share >= 4:
                left.text(at + share / 2, place, f"{share:.1f}", ha="center", va="center", fontsize=9,
                          color="white" if color == BLUE else "black")  # fmt: skip
        start += shares
    left.set_yticks(places, [row.policy for row in rows])
    left.set_xlim(0, 100)
    left.set_xlabel("share of the pool (%)")
    left.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=9)
    for i, row in enumerate(rows):
        color, dashes = _COLORS[i % len(_COLORS)], _DASHES[i % len(_DASHES)]
        used, held = _thinned(row.run.used_frac), _thinned(row.run.held_frac)
        time = np.linspace(0.0, 100.0, len(used))
        right.plot(time, 100 * used, color=color, lw=1.5, ls=dashes, label=row.policy)
        right.plot(time, 100 * held, color=color, lw=0.9, ls=":")
    right.plot([], [], color=GREY, lw=0.9, ls=":", label="held")
    right.set_xlabel("events of the run (%)")
    right.set_ylabel("useful (lines) and held (dots), % of the pool")
    right.set_ylim(0, 104)
    right.set_xlim(0, 100)
    right.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    plain(left, grid=None)
    plain(right)
    return titled(figure, title)


def save_pool(rows: Sequence[PoolRow], path: Path, *, title: str) -> Path:
    """Write the picture in the format of the path's suffix and return the path; raises SpecError."""
    return saved_picture(pool_figure(rows, title=title), path)
