"""A picture of an audit: stated over predicted for every figure that has a prediction, coloured by verdict."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

from perfmodel.errors import SpecError
from perfmodel.report.audit import COLOURS
from perfmodel.report.picture import saved_picture
from perfmodel.validate.audit.figures import figure_label
from perfmodel.validate.audit.run import Audit
from perfmodel.validate.audit.verdict import Finding

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["audit_figure", "save_audit_figure"]

_SPREAD: Final = 100.0
"""Ratios are drawn up to this factor; what lies beyond is drawn at the edge."""
_ROW_INCHES: Final = 0.21


def _rows(audit: Audit) -> list[tuple[str, Finding]]:
    found = []
    for judgement in audit.judgements:
        for finding in judgement.findings:
            numbers = (finding.stated, finding.model)
            if all(math.isfinite(n) and n > 0 for n in numbers):
                what = f"{figure_label(finding.name)} ({finding.check.replace('_', ' ')})"
                found.append((f"{judgement.id}, {what}", finding))
    return found


def audit_figure(audit: Audit) -> Figure:
    """Return a figure: stated over predicted, each with the band of the prediction, coloured by verdict.

    Raises SpecError where no claim has a figure and a prediction.
    """
    from perfmodel.report.style import canvas, plain

    rows = _rows(audit)[::-1]
    if not rows:
        raise SpecError("there is nothing to draw", got="no claim with a figure and a prediction above zero")
    figure = canvas(10.0, max(3.6, 1.6 + _ROW_INCHES * len(rows)))
    axes = figure.subplots()
    for at, (_, finding) in enumerate(rows):
        low, high = (_ratio(end, finding.model) for end in (finding.low, finding.high))
        if not math.isnan(low + high):
            axes.plot([low, high], [at, at], color="#c9d2dc", linewidth=6, solid_capstyle="butt", zorder=1)
        ratio = _ratio(finding.stated, finding.model)
        axes.plot([ratio], [at], "o", color=COLOURS[finding.verdict], markersize=5, zorder=3)
    axes.axvline(1.0, color="#333333", linewidth=1.0)
    axes.set_xscale("log")
    axes.set_xlim(0.8 / _SPREAD, 1.25 * _SPREAD)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=7.5)
    axes.set_ylim(-0.8, len(rows) - 0.2)
    axes.set_xlabel(f"stated / predicted; grey: band of the prediction; beyond {_SPREAD:g} times at the edge")
    plain(axes, grid="x")
    for verdict, n in audit.counts.items():
        axes.plot([], [], "o", color=COLOURS[verdict], label=f"{verdict.value}: {n} claims")
    legend = figure.legend(
        loc="outside upper left", ncols=3, frameon=False, fontsize=8.5, title=audit.document.title, title_fontsize=11
    )
    legend.set_alignment("left")
    return figure


def _ratio(value: float, model: float) -> float:
    """Return value over model, cut to what is drawn; NaN where there is none."""
    return value if math.isnan(value) else min(max(value / model, 1 / _SPREAD), _SPREAD)


def save_audit_figure(audit: Audit, path: Path) -> Path:
    """Return the path of the picture after it was drawn; raises SpecError where that cannot be done."""
    return saved_picture(audit_figure(audit), path)
