"""The picture that belongs to a result, by what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.errors import SpecError
from perfmodel.fit.result import FitResult
from perfmodel.measure.profiling.answer import ProfileAnswer
from perfmodel.serving.metrics import ServingResult
from perfmodel.serving.rate_sweep import RateSweep
from perfmodel.step.roofline import Roofline
from perfmodel.validate.audit.run import Audit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["figure_of"]


def figure_of(
    result: Roofline | ServingResult | RateSweep | FitResult | Audit | ProfileAnswer, *, title: str = ""
) -> Figure:
    """Return the picture of a result; raises SpecError for something that has none."""
    if isinstance(result, Roofline):
        from perfmodel.report.roofline import roofline_figure

        return roofline_figure(result)
    if isinstance(result, FitResult):
        from perfmodel.report.fit import fit_figure

        return fit_figure(result)
    if isinstance(result, Audit):
        from perfmodel.report.audit_plot import audit_figure

        return audit_figure(result)
    if isinstance(result, ProfileAnswer):
        from perfmodel.report.heat_map import heat_map_figure

        return heat_map_figure(result.profile, title=title or result.profile.name)
    from perfmodel.report.latency_plot import latency_figure, rate_figure

    if isinstance(result, RateSweep):
        return rate_figure(result, title=title)
    if isinstance(result, ServingResult):
        return latency_figure(result, title=title)
    raise SpecError("there is no picture of this", got=type(result).__name__, expected="a roofline, run, sweep or fit")
