"""Axes that know what lies on them, so that a label finds a free place near its point.

Placement is greedy: each text tries a ring of places around its point and takes the cheapest, where cost is distance,
what the text would cover, and what its leader would cross. Earlier texts get the better places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

__all__ = ["LabelBoard"]

Floats = NDArray[np.float64]
Box = tuple[float, float, float, float]
"""x0, y0, x1, y1 in pixels."""
Point = tuple[float, float]

_ANGLES: Final = np.linspace(0.0, 2.0 * np.pi, 24, endpoint=False)
_DISTANCES_PX: Final = (3.0, 9.0, 18.0, 30.0, 45.0, 65.0, 90.0, 120.0, 155.0)
_LEADER_PX: Final = 8.0
"""A text farther than this from its marker is joined to it by a line."""
_MARGIN_PX: Final = 3.0


@dataclass
class LabelBoard:
    """The axes with what lies on it: texts, markers and leaders must not be covered, lines should not.

    Limits and scales of the axes must be set before, and its figure must have a canvas.
    """

    axes: Axes
    texts: list[Box] = field(default_factory=list)
    markers: list[Box] = field(default_factory=list)
    leaders: list[Box] = field(default_factory=list)
    lines: list[Box] = field(default_factory=list)

    def pixels(self, x: float, y: float) -> Point:
        """Return where a point of the data lies, in pixels."""
        px, py = self.axes.transData.transform((x, y))
        return float(px), float(py)

    def share_of_axes(self, point: Point) -> Point:
        """Return where a pixel lies, in shares of the axes."""
        x, y = self.axes.transAxes.inverted().transform(point)
        return float(x), float(y)

    def note_line(self, start: Point, end: Point) -> None:
        """Note a straight line between two points of the data."""
        (x0, y0), (x1, y1) = self.pixels(*start), self.pixels(*end)
        n = max(2, int(np.hypot(x1 - x0, y1 - y0) / 4.0) + 1)
        for x, y in zip(np.linspace(x0, x1, n), np.linspace(y0, y1, n), strict=True):
            self.lines.append((x - 1.5, y - 1.5, x + 1.5, y + 1.5))

    def note_marker(self, point: Point, radius_px: float) -> None:
        """Note a marker at a point of the data."""
        x, y = self.pixels(*point)
        self.markers.append((x - radius_px, y - radius_px, x + radius_px, y + radius_px))

    def text_size(self, text: str, size: float, weight: str) -> Point:
        """Return width and height of a text in pixels."""
        artist = self.axes.text(0.0, 0.0, text, fontsize=size, fontweight=weight, transform=None)
        box = artist.get_window_extent()
        artist.remove()
        return float(box.width) + 2.0, float(box.height) + 1.0

    def place(
        self,
        anchor: Point,
        text: str,
        *,
        radius_px: float,
        colour: str,
        size: float = 8.5,
        weight: str = "normal",
    ) -> None:
        """Write a text near a point of the data, whose marker has a radius, where it covers least."""
        x, y = self.pixels(*anchor)
        width, height = self.text_size(text, size, weight)
        reach = radius_px + np.repeat(_DISTANCES_PX, len(_ANGLES))
        cx = x + np.tile(np.cos(_ANGLES), len(_DISTANCES_PX)) * (reach + width / 2)
        cy = y + np.tile(np.sin(_ANGLES), len(_DISTANCES_PX)) * (reach + height / 2)
        boxes = np.stack((cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2), axis=1)
        cost = 0.6 * (reach - radius_px) + self._cost(boxes)
        end_x, end_y = np.clip(x, boxes[:, 0], boxes[:, 2]), np.clip(y, boxes[:, 1], boxes[:, 3])
        length = np.hypot(end_x - x, end_y - y) + 1e-9
        for t in np.linspace(0.0, 1.0, 9):
            start = np.minimum((radius_px + 2.0) / length, 1.0)
            at = start + (1.0 - start) * t
            lx, ly = x + (end_x - x) * at, y + (end_y - y) * at
            dots = np.stack((lx - 1.5, ly - 1.5, lx + 1.5, ly + 1.5), axis=1)
            crossed = 10.0 * _covered(dots, self.texts) + 1.5 * _covered(dots, [*self.markers, *self.leaders])
            cost += crossed * (length - radius_px > _LEADER_PX)
        frame = self.axes.bbox
        inside = (boxes[:, :2] > (frame.x0 + _MARGIN_PX, frame.y0 + _MARGIN_PX)).all(axis=1)
        inside &= (boxes[:, 2:] < (frame.x1 - _MARGIN_PX, frame.y1 - _MARGIN_PX)).all(axis=1)
        best = int(np.argmin(cost + 1e6 * ~inside))
        self._write((float(cx[best]), float(cy[best])), text, colour, size, weight)
        self.texts.append((float(boxes[best, 0]), float(boxes[best, 1]), float(boxes[best, 2]), float(boxes[best, 3])))
        if length[best] - radius_px > _LEADER_PX:
            self._draw_leader((x, y), (float(end_x[best]), float(end_y[best])), radius_px, colour)

    def _draw_leader(self, start: Point, end: Point, radius_px: float, colour: str) -> None:
        """Draw a line between two pixels; beyond the marker it must not be covered either."""
        (x0, y0), (x1, y1) = self.share_of_axes(start), self.share_of_axes(end)
        self.axes.plot((x0, x1), (y0, y1), transform=self.axes.transAxes, color=colour, lw=0.7, alpha=0.8, zorder=4)
        length = float(np.hypot(end[0] - start[0], end[1] - start[1]))
        for t in np.arange(radius_px + 6.0, length, 3.0) / length:
            x, y = start[0] + (end[0] - start[0]) * float(t), start[1] + (end[1] - start[1]) * float(t)
            self.leaders.append((x - 1.5, y - 1.5, x + 1.5, y + 1.5))

    def place_along(
        self,
        start: Point,
        end: Point,
        text: str,
        *,
        below: bool,
        colour: str,
        size: float = 8.5,
        weight: str = "normal",
    ) -> None:
        """Write a text along the line between two points of the data, on one side, where it covers least."""
        (x0, y0), (x1, y1) = self.pixels(*start), self.pixels(*end)
        angle = float(np.arctan2(y1 - y0, x1 - x0))
        width, height = self.text_size(text, size, weight)
        away = (-1.0 if below else 1.0) * (height / 2 + 2.5)
        half, n = height / 2, max(2, int(2 * width / height))
        margin = 0.5 * width / (float(np.hypot(x1 - x0, y1 - y0)) + 1e-9) + 0.02
        best: tuple[float, float, float, list[Box]] | None = None
        for t in np.linspace(min(margin, 0.5), max(1.0 - margin, 0.5), 25):
            cx, cy = x0 + (x1 - x0) * t - np.sin(angle) * away, y0 + (y1 - y0) * t + np.cos(angle) * away
            along = np.linspace(-0.5, 0.5, n) * (width - height)
            px, py = cx + np.cos(angle) * along, cy + np.sin(angle) * along
            boxes = np.stack((px - half, py - half, px + half, py + half), axis=1)
            inner = boxes + np.array([2.0, 2.0, -2.0, -2.0])
            cost = float(self._cost(inner).sum()) + 60.0 * abs(t - 0.5)
            if best is None or cost < best[0]:
                best = (cost, float(cx), float(cy), [(float(a), float(b), float(c), float(d)) for a, b, c, d in boxes])
        assert best is not None  # 25 places were tried
        self._write(best[1:3], text, colour, size, weight, degrees=float(np.degrees(angle)))
        self.texts += best[3]

    def _cost(self, boxes: Floats) -> Floats:
        """Return what each box costs for what it covers."""
        solid = [*self.texts, *self.markers, *self.leaders]
        return 20.0 * _covered(boxes, solid) + 3.0 * _covered(boxes, self.lines)

    def _write(self, centre: Point, text: str, colour: str, size: float, weight: str, *, degrees: float = 0.0) -> None:
        x, y = self.share_of_axes(centre)
        self.axes.text(
            x, y, text, transform=self.axes.transAxes, ha="center", va="center", rotation=degrees, fontsize=size,
            fontweight=weight, color=colour, zorder=7, path_effects=[withStroke(linewidth=2.2, foreground="white")],
        )  # fmt: skip


def _covered(boxes: Floats, taken: Sequence[Box]) -> Floats:
    """Return the pixels of each box that lie on what is taken."""
    if not taken:
        return np.zeros(len(boxes))
    other = np.asarray(taken)
    wide = np.minimum(boxes[:, None, 2], other[:, 2]) - np.maximum(boxes[:, None, 0], other[:, 0])
    high = np.minimum(boxes[:, None, 3], other[:, 3]) - np.maximum(boxes[:, None, 1], other[:, 1])
    result: Floats = (np.maximum(wide, 0.0) * np.maximum(high, 0.0)).sum(axis=1)
    return result
