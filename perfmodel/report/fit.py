"""A fit to look at and to read: data, curve, bands and residuals in a figure; parameters and ranking as text.

matplotlib is imported only when a figure is asked for.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from perfmodel.fit.bands import BandKind, bootstrap_band, delta_band
from perfmodel.fit.laws.base import Array
from perfmodel.fit.ranking import Criterion, Ranking, Standing
from perfmodel.fit.result import Evaluation, FitResult, Residual
from perfmodel.fit.verdict import percent, r_squared_text, verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["evaluation_text", "fit_figure", "fit_text", "ranking_text"]

_DATA_COLOUR: Final = "#1b2a41"
_FIT_COLOUR: Final = "#c8553d"
_BAND_COLOUR: Final = "#e9a178"
_RIVAL_COLOURS: Final = ("#3d7ea6", "#5b8c5a", "#8f6bb3", "#8a8a8a")
_LOG_SPAN: Final = 50.0
"""An axis is logarithmic where its values are positive and span more than this factor."""
_MAX_DOTS: Final = 20_000
_CROWDED: Final = 200
"""More rows than this are drawn faint, beneath the curve."""


def fit_figure(
    result: FitResult,
    *,
    level: float = 0.8,
    rivals: Sequence[FitResult] = (),
    evaluations: Sequence[Evaluation] = (),
    bootstrap: bool = False,
    seed: int = 0,
) -> Figure:
    """Return a figure: data with curve and bands above, residuals below.

    `rivals` are drawn as thin lines, `evaluations` (laws with given parameters) dotted. A law of several columns is
    drawn as measured against fitted values. The band comes from the delta method, or from the bootstrap.
    """
    from perfmodel.report.style import canvas, plain, titled

    figure = canvas(7.4, 6.2)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    if len(result.columns) == 1:
        _curves(upper, result, level, rivals, evaluations, bootstrap, seed)
        across = result.columns[0]
        lower.set_xlabel(_label(result.data.x_names[0], result.law.inputs[0].unit))
    else:
        _parity(upper, result)
        across = result.predicted
        lower.set_xlabel(f"fitted {_label(result.data.y_name, result.law.output_unit)}")
    upper.set_ylabel(_label(result.data.y_name, result.law.output_unit))
    _residuals(lower, result, across)
    _scale(upper, lower, across, result)
    for axes in (upper, lower):
        plain(axes)
    upper.legend(frameon=False, fontsize=8.5, loc="best")
    return titled(figure, _title(result))


def _title(result: FitResult) -> str:
    error = result.errors
    values = "   ".join(_value_text(result, i) for i in range(len(result.values)))
    median, r_squared = percent(error.median_rel_frac), r_squared_text(error.r_squared)
    noun = "parameter" if result.k == 1 else "parameters"
    lines = [
        f"{result.law.name}:  {result.law.formula}",
        values,
        f"n = {result.n}, {result.k} {noun}, R² = {r_squared}, median error {median}: {result.grade}",
    ]
    return "\n".join(textwrap.fill(line, 104) for line in lines)


def _value_text(result: FitResult, index: int) -> str:
    name, value, error = result.law.names[index], float(result.values[index]), float(result.stderr[index])
    if index not in result.free:
        return f"{name} = {value:.4g} (fixed)"
    if name in result.at_bound:
        return f"{name} = {value:.4g} (at bound)"
    return f"{name} = {value:.4g} ± {error:.2g}" if math.isfinite(error) else f"{name} = {value:.4g}"


def _label(name: str, unit: str) -> str:
    if not unit or unit == name or name.endswith("_" + unit.replace("/", "_per_")):
        return name
    return name if unit in name.split("_") else f"{name} [{unit}]"


def _is_log(values: Array) -> bool:
    return bool((values > 0.0).all() and values.max() > _LOG_SPAN * values.min())


def _thinned(n: int) -> NDArray[np.int64]:
    return np.linspace(0, n - 1, min(n, _MAX_DOTS)).astype(np.int64)


def _grid(x: Array) -> Array:
    low, high = float(x.min()), float(x.max())
    if _is_log(x):
        return np.geomspace(low, high, 200)
    return np.linspace(low, high, 200)


def _curves(
    axes: Axes,
    result: FitResult,
    level: float,
    rivals: Sequence[FitResult],
    evaluations: Sequence[Evaluation],
    bootstrap: bool,
    seed: int,
) -> None:
    x = _grid(result.columns[0])
    if result.dof > 0:
        for kind, alpha, name in ((BandKind.PREDICTION, 0.25, "new measurement"), (BandKind.CONFIDENCE, 0.6, "curve")):
            if bootstrap:
                band = bootstrap_band(result, (x,), level=level, kind=kind, seed=seed)
            else:
                band = delta_band(result, (x,), level=level, kind=kind)
            if np.isfinite(band.low).all() and np.isfinite(band.high).all():
                label = f"{100 * level:.0f} % band, {name}"
                axes.fill_between(x, band.low, band.high, color=_BAND_COLOUR, alpha=alpha, linewidth=0, label=label)
    above = 4 if result.n > _CROWDED else 2
    axes.plot(x, result.value(x), color=_FIT_COLOUR, linewidth=1.8, label=result.law.name, zorder=above)
    for rival, colour in zip(rivals, _RIVAL_COLOURS * (1 + len(rivals) // len(_RIVAL_COLOURS)), strict=False):
        axes.plot(x, rival.value(x), color=colour, linewidth=1.0, linestyle="--", label=_rival_label(rival))
    for entry in evaluations:
        curve = entry.law.value((x,), [entry.parameters[n] for n in entry.law.names])
        label = f"{entry.law.name}, given parameters (R² = {entry.errors.r_squared:.2f})"
        axes.plot(x, curve, color="#6b6b6b", linewidth=1.2, linestyle=":", label=label)
    _dots(axes, result, result.columns[0])


def _rival_label(rival: FitResult) -> str:
    return rival.law.name if rival.dof > 0 else f"{rival.law.name} (as many parameters as points)"


def _dots(axes: Axes, result: FitResult, x: Array) -> None:
    use = _thinned(result.n)
    size = 5.5 if result.n <= 60 else 2.0
    style: dict[str, Any] = {
        "linestyle": "none",
        "marker": "o",
        "markersize": size,
        "color": _DATA_COLOUR,
        "label": "data",
        "alpha": 1.0 if result.n <= _CROWDED else 0.3,
        "zorder": 3,
        "rasterized": result.n > 2000,
    }
    if result.data.stderr is None:
        axes.plot(x[use], result.data.y[use], **style)
    else:
        axes.errorbar(x[use], result.data.y[use], yerr=result.data.stderr[use], elinewidth=0.8, **style)


def _parity(axes: Axes, result: FitResult) -> None:
    ends = np.array([result.predicted.min(), result.predicted.max()])
    axes.plot(ends, ends, color=_FIT_COLOUR, linewidth=1.4, label="measured = fitted", zorder=4)
    _dots(axes, result, result.predicted)


def _residuals(axes: Axes, result: FitResult, across: Array) -> None:
    use = _thinned(result.n)
    kind = result.options.residual
    in_percent = kind is not Residual.ABSOLUTE and result.data.stderr is None
    factor = 100.0 if in_percent else 1.0
    sigma = result.sigma * factor
    if math.isfinite(sigma) and sigma > 0.0:
        axes.axhspan(-sigma, sigma, color=_BAND_COLOUR, alpha=0.3, linewidth=0)
    axes.axhline(0.0, color=_FIT_COLOUR, linewidth=1.0, zorder=4 if result.n > _CROWDED else 2)
    size = 4.5 if result.n <= 60 else 1.8
    axes.plot(
        across[use],
        -factor * result.residuals[use],
        linestyle="none",
        marker="o",
        markersize=size,
        color=_DATA_COLOUR,
        alpha=1.0 if result.n <= _CROWDED else 0.3,
        rasterized=result.n > 2000,
    )
    if result.data.stderr is not None:
        axes.set_ylabel("residual / stderr")
    else:
        axes.set_ylabel(
            {
                Residual.ABSOLUTE: "data - fit",
                Residual.RELATIVE: "data - fit [% of data]",
                Residual.LOG: "ln(data/fit) [%]",
            }[kind]
        )
    axes.margins(y=0.25)


def _scale(upper: Axes, lower: Axes, across: Array, result: FitResult) -> None:
    if _is_log(across):
        lower.set_xscale("log")
    if _is_log(result.data.y):
        upper.set_yscale("log")


def fit_text(result: FitResult) -> str:
    """Return the fit as text: formula, parameters with errors, correlations worth naming, and the verdict."""
    rows = [("parameter", "value", "std. error", "95 % interval", "unit", "meaning")]
    for i, parameter in enumerate(result.law.parameters):
        error = float(result.stderr[i])
        state = "fixed" if i not in result.free else "at bound" if parameter.name in result.at_bound else ""
        known = math.isfinite(error)
        interval = f"{result.low[i]:.4g} to {result.high[i]:.4g}" if known else ""
        rows.append(
            (
                parameter.name,
                f"{result.values[i]:.6g}",
                f"{error:.3g}" if known else state or "n/a",
                interval,
                parameter.unit,
                parameter.meaning,
            )
        )
    return "\n".join(
        [
            f"{result.law.name}: {result.law.formula}",
            f"source: {result.law.source}",
            "",
            _table(rows),
            "",
            _wrapped(verdict(result)),
        ]
    )


def ranking_text(ranking: Ranking) -> str:
    """Return the ranking as a table with its verdict; laws that were not judged say why."""
    by_aicc = ranking.criterion is Criterion.AICC
    rows = [
        (
            "",
            "law",
            "k",
            "R2",
            "AICc diff." if by_aicc else "AICc",
            "weight" if by_aicc else "",
            "left-out error",
            "left-out median",
            "",
        )
    ]
    for place, entry in enumerate(ranking.entries, 1):
        ranked = entry.standing is Standing.RANKED
        r_squared = r_squared_text(entry.result.errors.r_squared) if entry.result else ""
        score = entry.delta if by_aicc else entry.aicc
        note = entry.reason if not ranked else "as good as the first" if entry.close and place > 1 else ""
        rows.append(
            (
                str(place) if ranked else "-",
                entry.law.name,
                str(entry.result.k if entry.result else len(entry.law.parameters)),
                r_squared,
                f"{score:.2f}" if math.isfinite(score) else "n/a",
                f"{entry.weight:.2f}" if math.isfinite(entry.weight) else "",
                f"{entry.left_out_error:.3g}" if ranked else "n/a",
                percent(entry.left_out_median_frac) if ranked else "n/a",
                note,
            )
        )
    return "\n".join([_table(rows), "", _wrapped(ranking.verdict)])


def evaluation_text(entry: Evaluation, x: Sequence[float] = ()) -> str:
    """Return how a law with given parameters agrees with data: its values, and the verdict."""
    given = ", ".join(f"{name} = {value:g}" for name, value in entry.parameters.items())
    values = ", ".join(f"{v:.4g}" for v in entry.predicted[:12]) + (", ..." if entry.predicted.size > 12 else "")
    at = f" at {', '.join(f'{v:g}' for v in x[:12])}" if len(x) else ""
    return "\n".join(
        [f"{entry.law.name}: {entry.law.formula} with {given}", f"gives {values}{at}", _wrapped(entry.verdict)]
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 110)
