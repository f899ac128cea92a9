"""Pictures of precision: drift with depth, and quality beside speed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from perfmodel.fit.drift import Crossing
from perfmodel.report.style import AMBER, BLUE, GREEN, GREY, INK, ORANGE, PINK, canvas, plain
from perfmodel.units import GB
from perfmodel.validate.quality import QualityPoint

__all__ = ["drift_figure", "quality_figure"]

_CURVES = (GREEN, PINK, BLUE, AMBER)


def drift_figure(found: Sequence[Crossing], threshold: float) -> Figure:
    """Return a figure of the points, each law through them, and the threshold."""
    data = found[0].result.data
    x, y = data.x[0], data.y
    ends = [c.depth_layers for c in found if math.isfinite(c.depth_layers) and c.depth_layers < 8 * x.max()]
    depth = np.linspace(0.0, 1.1 * max([float(x.max()), *ends]), 200)
    figure = canvas(7.2, 4.4)
    axes = figure.subplots()
    for i, c in enumerate(found):
        values = c.law.value((depth,), c.result.values.tolist())
        axes.plot(depth, values, color=_CURVES[i % len(_CURVES)], label=c.law.formula)
    axes.plot(x, y, "o", color=INK, zorder=4, label="stated")
    axes.axhline(threshold, color=ORANGE, linewidth=1.0, linestyle="--", label=f"threshold {threshold:g}")
    axes.set(xlabel="layer", ylabel="error", ylim=(0.0, 1.6 * max(threshold, float(y.max()))), xlim=(0.0, depth[-1]))
    axes.legend(frameon=False, fontsize=8.5)
    plain(axes)
    return figure


def quality_figure(points: Sequence[QualityPoint]) -> Figure:
    """Return a figure of score against speed: the front as a line, bands of the speed, area by weight bytes."""
    figure = canvas(7.2, 4.6)
    axes = figure.subplots()
    score = points[0].score
    kept = sorted((p for p in points if p.on_front), key=lambda p: p.output_tokens_per_s.value)
    axes.plot(
        [p.output_tokens_per_s.value for p in kept], [p.score.value for p in kept], "-", color=GREY, linewidth=1.2
    )
    largest = max(p.weight_bytes for p in points)
    for p in points:
        speed, colour = p.output_tokens_per_s, BLUE if p.on_front else ORANGE
        error = p.score.stderr if math.isfinite(p.score.stderr) else None
        axes.errorbar(
            [speed.value], [p.score.value],
            xerr=[[speed.value - speed.low], [speed.high - speed.value]],
            yerr=error, color=colour, linewidth=0.9, capsize=2.5, alpha=0.6,
        )  # fmt: skip
        axes.scatter([speed.value], [p.score.value], s=30 + 170 * p.weight_bytes / largest, color=colour, zorder=3)
        label = f"{p.score.model}, {p.score.scheme}\n{p.weight_bytes / GB:.1f} GB"
        axes.annotate(label, (speed.value, p.score.value), xytext=(7, 6), textcoords="offset points", fontsize=8)
    axes.set_xlabel("predicted output tokens/s (bars: 80 % band; area: weight bytes)")
    axes.set_ylabel(f"{score.op} ({'lower' if score.lower_is_better else 'higher'} is better)")
    if score.lower_is_better:
        axes.invert_yaxis()
    axes.margins(x=0.25, y=0.2)
    plain(axes)
    return figure
