"""Bands around a fitted curve: for the curve itself (confidence) and for a new measurement (prediction)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np
from scipy.special import stdtrit  # type: ignore[import-untyped]

from perfmodel.errors import FitError
from perfmodel.fit.fitter import fit_problem, residual_function
from perfmodel.fit.laws.base import Array, Columns
from perfmodel.fit.result import FitResult, Residual
from perfmodel.fit.solver import Problem, jacobian, nearby_minimum, typical_shifts
from perfmodel.fit.space import search_space

__all__ = ["Band", "BandKind", "bootstrap_band", "bootstrap_parameters", "delta_band"]

_LEAST_SHARE: Final = 0.05


class BandKind(StrEnum):
    """What lies within the band: the curve, or a new measurement."""

    CONFIDENCE = "confidence"
    PREDICTION = "prediction"


@dataclass(frozen=True, slots=True)
class Band:
    """A band at rows of x: the fitted curve, and the ends that hold `level` of the probability."""

    middle: Array
    low: Array
    high: Array
    level: float
    kind: BandKind


def _checked_level(level: float) -> float:
    if not 0.0 < level < 1.0:
        raise FitError("a band needs a level between 0 and 1", got=f"{level:g}", expected="for example 0.8")
    return level


def delta_band(
    result: FitResult, columns: Columns, *, level: float = 0.8, kind: BandKind = BandKind.PREDICTION
) -> Band:
    """Return the first-order band: parameter covariance through the slope of the law, Student's t, residual scatter.

    Log residuals give a log-normal band. Without degrees of freedom the band is infinite. With standard errors in the
    data a new measurement is taken to have the median of them.
    """
    _checked_level(level)
    middle = result.law.value(columns, list(result.values))
    if result.dof <= 0:
        return Band(middle, np.full_like(middle, -np.inf), np.full_like(middle, np.inf), level, kind)
    unit = _unit_of_scatter(result, middle)
    variance = _curve_variance(result, columns)
    if kind is BandKind.PREDICTION:
        variance = variance + (result.sigma * unit) ** 2
    half = float(stdtrit(result.dof, 0.5 + level / 2.0)) * np.sqrt(variance)
    if result.options.residual is Residual.LOG:
        with np.errstate(all="ignore"):
            factor = np.exp(half / np.abs(middle))
        return Band(middle, middle / factor, middle * factor, level, kind)
    return Band(middle, middle - half, middle + half, level, kind)


def _unit_of_scatter(result: FitResult, middle: Array) -> Array:
    """Return by what sigma is to be multiplied to be in units of y."""
    data = result.data
    if result.options.residual is Residual.ABSOLUTE:
        return np.full_like(middle, 1.0 if data.stderr is None else float(np.median(data.stderr)))
    return np.abs(middle) * (1.0 if data.stderr is None else float(np.median(data.stderr / data.y)))


def _curve_variance(result: FitResult, columns: Columns) -> Array:
    """Return the variance of the curve: slopes and covariance on the search scale."""
    space = search_space(result.law, result.options.fixed)
    point = space.point(list(result.values))

    size = float(np.sqrt(np.mean(result.predicted**2))) or 1.0

    def curve(points: Array) -> Array:
        return result.law.values(columns, space.natural(points)) / size

    problem = Problem(curve, space.low, space.high, space.log, typical_shifts(curve, point))
    with np.errstate(all="ignore"):
        slopes = jacobian(problem, point)
        scale = space.scale(point)
        index = list(space.free)
        covariance = result.covariance[np.ix_(index, index)] / np.outer(scale, scale)
        known = np.isfinite(np.diag(covariance))
        inner = slopes[:, known]
        variance = size**2 * np.einsum("ni,ij,nj->n", inner, covariance[np.ix_(known, known)], inner)
        moved = (np.abs(slopes[:, ~known]) > 1e-12).any(axis=1)
    return np.where(moved, np.inf, np.maximum(variance, 0.0))


def bootstrap_parameters(result: FitResult, *, n_samples: int = 200, seed: int = 0) -> Array:
    """Return fitted parameters (n_samples, all) of data made from the curve and resampled residuals.

    Residuals are enlarged by their leverage, so that their variance is that of the errors. Samples whose fit fails are
    left out. Source: Davison and Hinkley, Bootstrap Methods, 1997, section 6.3.
    """
    if result.dof <= 0:
        raise FitError("there are no residuals to resample", got=f"{result.n} points for {result.k} parameters")
    if n_samples < 10:
        raise FitError("too few bootstrap samples", got=str(n_samples), expected="at least 10")
    rng = np.random.default_rng(seed)
    space = search_space(result.law, result.options.fixed)
    start = space.point(list(result.values))
    pool = _enlarged(result)
    problem, unit, *_ = fit_problem(space, result.columns, result.data, replace(result.options, n_starts=1))
    problem = replace(problem, typical=typical_shifts(problem.residuals, start), loss_scale=result.sigma / unit)
    inner = space.inside(start)
    rows = []
    for _ in range(n_samples):
        y = _perturbed(result, rng.choice(pool, result.n))
        data = replace(result.data, y=y)
        residuals = residual_function(space, result.columns, data, result.options.residual, unit)
        found = nearby_minimum(replace(problem, residuals=residuals), inner)
        if found is not None:
            rows.append(space.natural(found[None, :])[0])
    if len(rows) < n_samples // 2:
        raise FitError("most bootstrap samples could not be fitted", got=f"{len(rows)} of {n_samples}")
    return np.array(rows)


def _enlarged(result: FitResult) -> Array:
    share = np.clip(1.0 - result.leverage, _LEAST_SHARE, 1.0)
    residuals = result.residuals / np.sqrt(share)
    return np.asarray(residuals - residuals.mean())


def _perturbed(result: FitResult, drawn: Array) -> Array:
    stderr, y, curve = result.data.stderr, result.data.y, result.predicted
    match result.options.residual:
        case Residual.ABSOLUTE:
            return curve - drawn * (1.0 if stderr is None else stderr)
        case Residual.RELATIVE:
            return curve / np.maximum(1.0 + drawn * (1.0 if stderr is None else stderr / y), 0.05)
        case _:
            return np.asarray(curve * np.exp(-drawn * (1.0 if stderr is None else stderr / y)))


def bootstrap_band(
    result: FitResult,
    columns: Columns,
    *,
    level: float = 0.8,
    kind: BandKind = BandKind.PREDICTION,
    n_samples: int = 200,
    seed: int = 0,
) -> Band:
    """Return the band between quantiles of bootstrapped curves; a new measurement adds resampled residuals.

    With few points it is narrower than the delta band, which uses Student's t.
    """
    _checked_level(level)
    rows = bootstrap_parameters(result, n_samples=n_samples, seed=seed)
    middle = result.law.value(columns, list(result.values))
    curves = result.law.values(columns, rows)
    if kind is BandKind.PREDICTION:
        rng = np.random.default_rng(seed + 1)
        drawn = rng.choice(_enlarged(result), (8, *curves.shape))
        unit = _unit_of_scatter(result, middle)
        is_log = result.options.residual is Residual.LOG
        curves = (curves * np.exp(-drawn * unit / np.abs(middle)) if is_log else curves - drawn * unit).reshape(
            -1, middle.size
        )
    low, high = np.quantile(curves, [0.5 - level / 2.0, 0.5 + level / 2.0], axis=0)
    return Band(middle, low, high, level, kind)
