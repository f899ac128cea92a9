"""What pictures have in common: colours, an empty figure, axes without a frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["AMBER", "BLUE", "GREEN", "GREY", "INK", "ORANGE", "PINK", "SKY", "canvas", "plain", "titled"]

BLUE, ORANGE, GREEN, PINK, AMBER, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
"""Of Okabe and Ito's palette, which colour-blind readers tell apart."""
INK, GREY = "#222222", "#666666"
_LINE: Final = "#e6e6e6"


def canvas(width: float, height: float) -> Figure:
    """Return an empty white figure of so many inches, whose parts make room for each other."""
    figure = Figure(figsize=(width, height), dpi=100.0, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain(axes: Axes, *, grid: Literal["both", "x", "y"] | None = "both") -> None:
    """Take the frame off above and on the right, and lay a light grid under the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    if grid is not None:
        axes.grid(visible=True, axis=grid, color=_LINE, lw=0.6)


def titled(figure: Figure, title: str) -> Figure:
    """Return the figure with its title on the left."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure
