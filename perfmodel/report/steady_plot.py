"""Picture of steady serving over the load: TTFT, TPOT and throughput with their bands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from matplotlib.figure import Figure

from perfmodel.report.answer import setup_text
from perfmodel.report.picture import saved_picture
from perfmodel.report.style import BLUE, GREEN, GREY, ORANGE, canvas, plain, titled
from perfmodel.serving.steady_case import SteadyCase

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

__all__ = ["save_steady", "steady_figure"]

_PANELS: Final = (
    ("ttft_s", "TTFT (ms)", 1e3, BLUE),
    ("tpot_s", "TPOT (ms)", 1e3, ORANGE),
    ("output_tokens_per_s", "output tokens/s", 1.0, GREEN),
)
_WIDE: Final = 30.0
"""Beyond this range of times a logarithmic axis shows them all."""


def steady_figure(found: SteadyCase, load: NDArray[np.float64], *, is_open: bool) -> Figure:
    """Return the picture: bands of 80 % shaded, loads beyond the KV cache or not stable marked."""
    figure = canvas(12.0, 4.4)
    order = np.argsort(load)
    bands = found.figures()
    panels: tuple[Axes, ...] = tuple(figure.subplots(1, len(_PANELS)))
    for axes, (name, label, scale, colour) in zip(panels, _PANELS, strict=True):
        value, low, high = (np.broadcast_to(np.asarray(v, float), load.shape)[order] * scale for v in bands[name])
        axes.fill_between(load[order], low, high, color=colour, alpha=0.18, lw=0)
        axes.plot(load[order], value, color=colour, marker="o", ms=4, lw=1.5)
        _marked(axes, found, load, order, value)
        axes.set_xlabel("requests/s" if is_open else "users at once")
        axes.set_ylabel(label)
        if np.nanmax(value) / np.nanmin(value) > _WIDE and name == "ttft_s":
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda y, _: f"{y:,.0f}")
        else:
            axes.set_ylim(bottom=0)
        if np.min(load) > 0 and np.max(load) / np.min(load) >= 8:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        plain(axes)
    work = found.case.workload
    title = f"{setup_text(found.case)}; {work.input_tokens:g} in, {work.output_tokens:g} out, steady state"
    return titled(figure, title)


def _marked(
    axes: Axes,
    found: SteadyCase,
    load: NDArray[np.float64],
    order: NDArray[np.intp],
    value: NDArray[np.float64],
) -> None:
    """Ring the loads beyond the KV cache, and shade those that are not stable."""
    limited = np.broadcast_to(np.asarray(found.one.kv_limited) > 0, load.shape)[order]
    if limited.any():
        axes.plot(
            load[order][limited], value[limited], "o", ms=9, mfc="none", mec=GREY, label="KV cache full: simulate"
        )
        axes.legend(frameon=False, fontsize=9, loc="upper left")
    unstable = np.broadcast_to(np.asarray(found.one.stable) == 0, load.shape)[order]
    if unstable.any():
        axes.axvspan(load[order][unstable][0], load.max(), color="#999999", alpha=0.15, lw=0)
        axes.annotate(
            "not stable", (load[order][unstable][0], 0.5), xycoords=("data", "axes fraction"), fontsize=9, rotation=90,
            ha="left", va="center", color="#555555",
        )  # fmt: skip


def save_steady(found: SteadyCase, load: NDArray[np.float64], path: Path, *, is_open: bool) -> Path:
    """Write the picture in the format of the path's suffix and return the path; raises SpecError."""
    return saved_picture(steady_figure(found, load, is_open=is_open), path)
