"""Pictures of latencies: over the request rate, and their distribution in one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from matplotlib.figure import Figure

from perfmodel.report.picture import saved_picture
from perfmodel.report.style import BLUE, GREEN, GREY, ORANGE, canvas, plain, titled
from perfmodel.serving.metrics import ServingResult, Slo
from perfmodel.serving.rate_sweep import RateSweep

if TYPE_CHECKING:
    pass

__all__ = ["latency_figure", "rate_figure", "save_latencies", "save_rate_sweep"]

_TIMES: Final = (("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("e2e_s", "end to end"))


def rate_figure(sweep: RateSweep, *, title: str) -> Figure:
    """Return the picture: TTFT, TPOT and what is done over the rate at which requests are sent."""
    figure = canvas(11.0, 8.0)
    panels = figure.subplots(3, 1, sharex=True)
    sent = [point.requests_per_s for point in sweep.points]
    for axes, (name, label) in zip(panels[:2], _TIMES[:2], strict=True):
        for p, colour in ((50, BLUE), (95, ORANGE), (99, GREY)):
            found = (point.result.spreads[name].percentiles[p] for point in sweep.points)
            times = [np.nan if time is None else time for time in found]
            axes.plot(sent, times, "o-", ms=3, color=colour, lw=1.3, label=f"p{p}")
        axes.set_yscale("log")
        axes.set_ylabel(f"{label} (s)")
        most = None if sweep.slo is None else getattr(sweep.slo, name)
        if most is not None:
            axes.axhline(most, color=GREEN, lw=1.0, ls="--", label="objective")
    done = [point.result.requests_per_s for point in sweep.points]
    panels[2].plot(sent, done, "o-", ms=3, color=BLUE, lw=1.3, label="done")
    panels[2].plot(sent, sent, color=GREY, lw=0.8, ls=":", label="sent")
    if sweep.slo is not None:
        good = [point.result.goodput_requests_per_s or 0.0 for point in sweep.points]
        panels[2].plot(sent, good, "o-", ms=3, color=GREEN, lw=1.3, label="within objectives")
    panels[2].set_ylabel("requests/s")
    panels[2].set_xlabel("requests sent per second")
    panels[2].set_ylim(bottom=0)
    marks = ((sweep.knee_requests_per_s, GREY, "knee"), (sweep.best_requests_per_s, GREEN, "largest in SLO"))
    for axes in panels:
        for rate, colour, label in marks:
            if rate is not None and rate < sweep.highest_requests_per_s:
                axes.axvline(rate, color=colour, lw=1.0, ls="-.", label=f"{label}: {rate:.3g}/s")
        plain(axes)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)
    return titled(figure, title)


def latency_figure(result: ServingResult, *, title: str, slo: Slo | None = None) -> Figure:
    """Return the picture: the share of requests that took at most so long, for TTFT, TPOT and end to end."""
    figure = canvas(11.0, 4.2)
    for axes, (name, label) in zip(figure.subplots(1, 3, sharey=True), _TIMES, strict=True):
        times = np.sort(result.columns[name][np.isfinite(result.columns[name])])
        if len(times):
            axes.step(times, 100 * np.arange(1, len(times) + 1) / len(times), where="post", color=BLUE, lw=1.4)
        most = None if slo is None else getattr(slo, name)
        if most is not None:
            axes.axvline(most, color=GREEN, lw=1.0, ls="--", label="objective")
            axes.legend(frameon=False, fontsize=9, loc="lower right")
        axes.set_xlabel(f"{label} (s)")
        axes.set_ylim(0, 102)
        plain(axes)
    figure.axes[0].set_ylabel("requests (%)")
    return titled(figure, title)


def save_rate_sweep(sweep: RateSweep, path: Path, *, title: str) -> Path:
    """Write the picture of a rate sweep in the format of the path's suffix and return the path; raises SpecError."""
    return saved_picture(rate_figure(sweep, title=title), path)


def save_latencies(result: ServingResult, path: Path, *, title: str, slo: Slo | None = None) -> Path:
    """Write the picture of latencies in the format of the path's suffix and return the path; raises SpecError."""
    return saved_picture(latency_figure(result, title=title, slo=slo), path)
