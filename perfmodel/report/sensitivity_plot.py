"""The tornado: what each figure does to an output when it is changed by so much."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.figure import Figure

from perfmodel.plan.sensitivity import OUTPUTS, outputs
from perfmodel.report.picture import saved_picture
from perfmodel.report.sensitivity import SensitivityView, knob_text
from perfmodel.report.style import BLUE, INK, ORANGE, canvas, plain, titled

__all__ = ["save_tornado", "tornado_figure"]

_MOST_BARS: Final = 16
_LEAST_SWING: Final = 1e-3


def tornado_figure(view: SensitivityView, *, title: str = "") -> Figure:
    """Return the picture: bars from the output at the lower to that at the higher value, widest on top."""
    base = float(np.atleast_1d(outputs(view.scene)[view.output])[0])
    scale = 1e3 if view.output in ("ttft_s", "tpot_s") and base < 1 else 1.0
    chosen = [e for e in view.effects if e.swing(view.output) > _LEAST_SWING]
    chosen = sorted(chosen, key=lambda effect: -effect.swing(view.output))[:_MOST_BARS]
    figure = canvas(10.4, 1.7 + 0.33 * max(len(chosen), 3))
    axes = figure.subplots()
    percent = 100 * view.change_frac
    for place, effect in enumerate(chosen):
        for side, colour in ((effect.low, BLUE), (effect.high, ORANGE)):
            end = float(np.atleast_1d(side[view.output])[0])
            axes.barh(place, (end - base) * scale, left=base * scale, color=colour, height=0.7)
    for colour, label in ((BLUE, f"figure {percent:g} % lower"), (ORANGE, f"figure {percent:g} % higher")):
        axes.barh(0, 0, left=base * scale, color=colour, label=label)
    axes.axvline(base * scale, color=INK, lw=1.0)
    names = [
        f"{e.knob.name}  ({knob_text(e.knob, e.knob.value)})" if np.isfinite(e.knob.value) else e.knob.name
        for e in chosen
    ]
    axes.set_yticks(range(len(chosen)), names, fontsize=9)
    axes.invert_yaxis()
    unit = " (ms)" if scale == 1e3 else " (s)" if view.output in ("ttft_s", "tpot_s", "e2e_s") else ""
    axes.set_xlabel(f"{OUTPUTS[view.output]}{unit}")
    plain(axes, grid="x")
    figure.legend(loc="outside lower right", ncols=2, frameon=False, fontsize=9)
    return titled(figure, title) if title else figure


def save_tornado(view: SensitivityView, path: Path, *, title: str) -> Path:
    """Write the picture in the format of the path's suffix and return the path; raises SpecError."""
    return saved_picture(tornado_figure(view, title=title), path)
