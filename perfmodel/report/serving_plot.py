"""Picture of a simulated run over time: batch and queue, KV cache, tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from perfmodel.report.picture import saved_picture
from perfmodel.serving.timeline import Timeline

__all__ = ["save_timeline", "timeline_figure"]

_BLUE, _ORANGE, _GREEN, _GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
_DPI: Final = 100.0


def timeline_figure(line: Timeline, *, title: str) -> Figure:
    """Return the picture: requests, KV cache and tokens, one under the other."""
    figure = Figure(figsize=(11.0, 7.6), dpi=_DPI, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    top, middle, bottom = figure.subplots(3, 1, sharex=True)
    top.plot(line.time_s, line.n_running, color=_BLUE, label="running", lw=1.3)
    top.plot(line.time_s, line.n_waiting, color=_ORANGE, label="waiting", lw=1.3)
    middle.plot(line.time_s, 100 * line.kv_used_frac, color=_GREEN, label="blocks held", lw=1.3)
    bottom.plot(line.time_s, line.output_tokens_per_s, color=_BLUE, label="output", lw=1.3)
    bottom.plot(line.time_s, line.prompt_tokens_per_s, color=_GREY, label="prompt", lw=1.0)
    top.set_ylabel("requests")
    middle.set_ylabel("KV cache held (%)")
    middle.set_ylim(0, 104)
    bottom.set_ylabel("tokens/s")
    bottom.set_xlabel("time from the first request (s)")
    for axes in (top, middle, bottom):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(visible=True, color="#e6e6e6", lw=0.6)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)
        axes.margins(x=0)
    for axes in (top, bottom):
        axes.set_ylim(bottom=0)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return figure


def save_timeline(line: Timeline, path: Path, *, title: str) -> Path:
    """Write the picture in the format of the path's suffix and return the path; raises SpecError."""
    return saved_picture(timeline_figure(line, title=title), path)
