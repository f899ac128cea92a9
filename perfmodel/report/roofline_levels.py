"""Operators of a roofline under every memory level: a marker for each level at the operator's rate, joined by a line.

The farther right a marker stands of its level's diagonal, the less that level can be what holds the operator back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from matplotlib.axes import Axes

from perfmodel.report.label_board import LabelBoard
from perfmodel.report.style import GREEN, INK, PINK
from perfmodel.step.ceilings import Level
from perfmodel.step.roofline import OperatorPoint

__all__ = ["LEVEL_COLOUR", "draw_level_key", "draw_levels"]

LEVEL_COLOUR: Final[dict[Level, str]] = {
    "dram": INK, "infinity_cache": PINK, "l2": GREEN, "on_chip": PINK,
}  # fmt: skip
"""Of Okabe and Ito's palette, as the phases are."""
_MARKER: Final[dict[Level, str]] = {"dram": "|", "infinity_cache": "v", "l2": "o", "on_chip": "D"}
_WORDS: Final[dict[Level, str]] = {
    "l2": "the same rate over bytes of the L2",
    "on_chip": "over bytes of on-chip memory",
}
_SIZE: Final[dict[Level, float]] = {"dram": 6.0, "infinity_cache": 6.0, "l2": 8.0, "on_chip": 3.6}
"""On-chip markers fit into those of the L2: where tiles pass both once they share a place."""


def draw_levels(board: LabelBoard, points: Iterable[OperatorPoint]) -> None:
    """Draw a marker for each level nearer than main memory, joined to the operator by a thin line."""
    for point in points:
        near = [v for v in point.levels if v.level != "dram"]
        if not near:
            continue
        rate = point.predicted_flop_per_s
        ends = [point.intensity_flop_per_byte, *(v.intensity_flop_per_byte for v in near)]
        board.axes.plot((min(ends), max(ends)), (rate, rate), color="#999999", lw=0.7, ls=":", zorder=3)
        board.note_line((min(ends), rate), (max(ends), rate))
        for view in near:
            at = (view.intensity_flop_per_byte, rate)
            board.axes.plot(
                at[:1], at[1:], marker=_MARKER[view.level], ms=_SIZE[view.level], mfc="white", mew=1.3, zorder=7,
                mec=LEVEL_COLOUR[view.level],
            )  # fmt: skip
            board.note_marker(at, _SIZE[view.level])


def draw_level_key(axes: Axes) -> None:
    """Write what the markers of near levels mean, in the corner that no diagonal crosses."""
    for i, (level, words) in enumerate(_WORDS.items()):
        y = 0.055 - 0.03 * i
        axes.plot(
            (0.66,), (y,), marker=_MARKER[level], ms=_SIZE[level], mfc="white", mec=LEVEL_COLOUR[level], mew=1.3,
            transform=axes.transAxes, clip_on=False,
        )  # fmt: skip
        axes.text(0.675, y, words, transform=axes.transAxes, va="center", fontsize=8.0, color=INK)
