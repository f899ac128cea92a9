"""Picture of a simulated run over time: batch and queue, KV cache, tokens."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from perfmodel.report.picture import saved_picture
from perfmodel.report.style import BLUE, GREEN, GREY, ORANGE, canvas, plain, titled
from perfmodel.serving.timeline import Timeline

__all__ = ["save_timeline", "timeline_figure"]


def timeline_figure(line: Timeline, *, title: str) -> Figure:
    """Return the picture: requests, KV cache and tokens, one under the other."""
    figure = canvas(11.0, 7.6)
    top, middle, bottom = figure.subplots(3, 1, sharex=True)
    top.plot(line.time_s, line.n_running, color=BLUE, label="running", lw=1.3)
    top.plot(line.time_s, line.n_waiting, color=ORANGE, label="waiting", lw=1.3)
    middle.plot(line.time_s, 100 * line.kv_used_frac, color=GREEN, label="blocks held", lw=1.3)
    bottom.plot(line.time_s, line.output_tokens_per_s, color=BLUE, label="output", lw=1.3)
    bottom.plot(line.time_s, line.prompt_tokens_per_s, color=GREY, label="prompt", lw=1.0)
    top.set_ylabel("requests")
    middle.set_ylabel("KV cache held (%)")
    middle.set_ylim(0, 104)
    bottom.set_ylabel("tokens/s")
    bottom.set_xlabel("time from the first request (s)")
    for axes in (top, middle, bottom):
        plain(axes)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)
        axes.margins(x=0)
    for axes in (top, bottom):
        axes.set_ylim(bottom=0)
    return titled(figure, title)


def save_timeline(line: Timeline, path: Path, *, title: str) -> Path:
    """Write the picture in the format of the path's suffix and return the path; raises SpecError."""
    return saved_picture(timeline_figure(line, title=title), path)
