"""Picture of a day: load against what ready replicas carry, replicas, and waiting."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

from perfmodel.report.picture import saved_picture
from perfmodel.report.scale import ScaleView
from perfmodel.report.style import BLUE, GREEN, GREY, ORANGE, canvas, plain, titled

__all__ = ["save_scale", "scale_figure"]

_HOUR: Final = 3600.0


def scale_figure(view: ScaleView, *, title: str) -> Figure:
    """Return the picture: load and limits above, replicas in the middle, longest wait below where anything waits."""
    s, load = view.scaled, view.load
    waits = bool(s.wait_s.max() > 0)
    figure = canvas(10.4, 7.4 if waits else 5.6)
    axes = figure.subplots(3 if waits else 2, 1, sharex=True)
    hours = load.time_s / _HOUR
    top, middle = axes[0], axes[1]
    top.plot(hours, load.requests_per_s, color=BLUE, lw=1.8, label="load")
    limit, full = s.ready * view.rating.target_requests_per_s, s.ready * view.rating.capacity_requests_per_s
    top.step(hours, limit, where="post", color=GREEN, lw=1.3, label="within the targets")
    top.step(hours, full, where="post", color=GREY, lw=1.0, ls="--", label="full replicas")
    top.set_ylabel("requests/s")
    middle.step(hours, s.paid, where="post", color=ORANGE, lw=1.6, label="paid")
    middle.step(hours, s.ready, where="post", color=GREEN, lw=1.3, label="ready")
    middle.axhline(view.static_replicas, color=GREY, lw=1.0, ls="--", label="fixed")
    middle.set_ylabel("replicas")
    if waits:
        axes[2].plot(hours, s.wait_s, color=ORANGE, lw=1.4, label="wait")
        axes[2].set_ylabel("waiting (s)")
    axes[-1].set_xlabel("time (h)")
    for one in axes:
        one.set_ylim(bottom=0)
        one.margins(x=0)
        plain(one)
        one.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)
    return titled(figure, title)


def save_scale(view: ScaleView, path: Path, *, title: str) -> Path:
    """Write the picture in the format of the path's suffix and return the path; raises SpecError."""
    return saved_picture(scale_figure(view, title=title), path)
