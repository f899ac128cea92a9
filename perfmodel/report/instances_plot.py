"""Picture of instances that share devices: throughput of all, and speed of each, against their number."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from perfmodel.report.picture import saved_picture
from perfmodel.report.style import BLUE, GREY, ORANGE, canvas, plain, titled
from perfmodel.step.instances import InstanceRow

__all__ = ["instances_figure", "save_instances"]

_PALE = "#cfe3f1"


def instances_figure(rows: Sequence[InstanceRow], best: InstanceRow | None, *, title: str, items: str) -> Figure:
    """Return the picture; the band lies between the bounds, open circles do not fit into memory."""
    figure = canvas(11.0, 5.2)
    left, right = figure.subplots(1, 2)
    n = [row.n_instances for row in rows]
    alone = rows[0].cycle_s
    left.fill_between(
        n, [row.least_items_per_s for row in rows], [row.most_items_per_s for row in rows],
        color=_PALE, lw=0, label="between the bounds",
    )  # fmt: skip
    left.plot(n, [row.items_per_s for row in rows], color=BLUE, lw=1.4, label="all instances")
    one_batch = [(row.n_instances, row.one_batch_items_per_s) for row in rows if row.one_batch_items_per_s is not None]
    if one_batch:
        left.plot(*zip(*one_batch, strict=True), color=GREY, lw=1.1, ls="--", label="one instance, one larger batch")
    right.fill_between(
        n, [100 * alone / row.worst_cycle_s for row in rows], [100 * alone / row.best_cycle_s for row in rows],
        color=_PALE, lw=0, label="between the bounds",
    )  # fmt: skip
    right.plot(n, [100 * row.speed_frac for row in rows], color=ORANGE, lw=1.4, label="each instance")
    right.plot(n, [100 / row.n_per_device for row in rows], color=GREY, lw=1.1, ls=":", label="1 / instances on one")
    for axes, color, values in (
        (left, BLUE, [row.items_per_s for row in rows]),
        (right, ORANGE, [100 * row.speed_frac for row in rows]),
    ):
        for row, value in zip(rows, values, strict=True):
            face = color if row.fits else "white"
            axes.plot([row.n_instances], [value], "o", ms=5, mfc=face, mec=color, mew=1.2, zorder=3)
        if best is not None:
            axes.axvline(best.n_instances, color=GREY, lw=0.8, zorder=0)
        axes.set_xlabel("instances")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        plain(axes)
        if not all(row.fits for row in rows):
            axes.plot([], [], "o", mfc="white", mec=GREY, label="does not fit into memory")
        axes.legend(frameon=False, fontsize=9, loc="best")
    left.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    left.set_ylabel(f"{items}/s of all")
    right.set_ylabel("speed of each against one alone (%)")
    return titled(figure, title)


def save_instances(
    rows: Sequence[InstanceRow], best: InstanceRow | None, path: Path, *, title: str, items: str
) -> Path:
    """Write the picture in the format of the path's suffix and return the path; raises SpecError."""
    return saved_picture(instances_figure(rows, best, title=title, items=items), path)
