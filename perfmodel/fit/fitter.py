"""Fits: one law on one set of data, by least squares from several starting points."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy.special import stdtrit  # type: ignore[import-untyped]

from perfmodel.errors import FitError
from perfmodel.fit.data import FitData, law_columns
from perfmodel.fit.diagnostics import diagnostics
from perfmodel.fit.laws.base import Array, Columns, FitLaw, Mask
from perfmodel.fit.result import Evaluation, FitOptions, FitResult, Residual, errors
from perfmodel.fit.solver import LOSSES, Problem, Solution, jacobian, solution, typical_shifts
from perfmodel.fit.space import Space, guess_point, search_space
from perfmodel.fit.verdict import evaluation_verdict, findings

__all__ = ["evaluation", "fit", "fit_problem", "information_criterion", "residual_function"]

_SCREENED: Final = 64
"""Random points tried for each start; the best become starts."""
_SAMPLE_ROWS: Final = 1000
"""With more than twice as many rows, starts are compared on a random sample of this many."""
_AT_BOUND: Final = 1e-3
"""A parameter is at its bound when going there moves predictions by less than this share of the residuals."""
_SINGULAR: Final = 1e-10
_LEAST_RATIO: Final = 1e-4
"""Below this ratio of prediction to y the logarithm continues as its tangent, so that a search may cross zero."""


def fit(law: FitLaw, data: FitData, options: FitOptions | None = None) -> FitResult:
    """Return the law fitted to the data.

    Raises FitError for fewer rows than free parameters, columns that do not suit the law, y <= 0 with log or relative
    residuals, and where no start leads anywhere.
    """
    chosen = options or FitOptions()
    columns = law_columns(law, data)
    space = search_space(law, chosen.fixed)
    _check(space, data, chosen)
    problem, unit, starts, part = fit_problem(space, columns, data, chosen)
    if space.k == 0:
        found: Solution | None = Solution(np.zeros(0), 0.0, True, 1, 1, 0, 1)
    else:
        found = solution(problem, starts, part)
    if found is None:
        raise FitError(
            f"law {law.name} cannot be evaluated on this data",
            got="values that are not finite from every start",
            cure="Give starting values, or choose another law.",
        )
    if chosen.loss != "linear":
        problem, found = _robust(problem, found, chosen.loss_scale)
    return _result(space, columns, data, chosen, problem, unit, found)


def _check(space: Space, data: FitData, options: FitOptions) -> None:
    if data.n < space.k:
        raise FitError(
            f"law {space.law.name} cannot be fitted: fewer rows than parameters",
            got=f"{data.n} rows for {space.k} parameters ({', '.join(space.names)})",
            expected=f"at least {space.k + 1} rows",
            cure="Fix some parameters, choose a law with fewer, or add measurements.",
        )
    if options.loss not in LOSSES:
        raise FitError(f"unknown loss {options.loss!r}", expected=f"one of {', '.join(LOSSES)}")
    if options.n_starts < 1 or not options.loss_scale > 0.0:
        raise FitError(
            "a fit needs at least one start and a loss scale above zero",
            got=f"{options.n_starts}, {options.loss_scale:g}",
        )
    if options.residual is not Residual.ABSOLUTE and not (data.y > 0.0).all():
        bad = int(np.flatnonzero(~(data.y > 0.0))[0])
        raise FitError(
            f"{options.residual} residuals need y above zero",
            where=f"row {data.rows[bad]}, {data.y_name}",
            got=f"{data.y[bad]:g}",
            cure="Use absolute residuals, or remove the row.",
        )


@dataclass(frozen=True, slots=True)
class _Residuals:
    """Residuals of points, each in units of its expected size: the stated standard error, or y, or one for all."""

    space: Space
    columns: Columns
    y: Array
    kind: Residual
    weight: Array

    def __call__(self, points: Array) -> Array:
        values = self.space.law.values(self.columns, self.space.natural(points))
        with np.errstate(all="ignore"):
            match self.kind:
                case Residual.ABSOLUTE:
                    return np.asarray((values - self.y) * self.weight)
                case Residual.RELATIVE:
                    return np.asarray((values / self.y - 1.0) * self.weight)
                case _:
                    ratio = values / self.y
                    extended = math.log(_LEAST_RATIO) + ratio / _LEAST_RATIO - 1.0
                    logs = np.where(ratio < _LEAST_RATIO, extended, np.log(np.maximum(ratio, _LEAST_RATIO)))
                    return np.asarray(logs * self.weight)


def residual_function(space: Space, columns: Columns, data: FitData, kind: Residual, unit: float) -> _Residuals:
    """Return the function points -> residuals, divided by `unit`."""
    if data.stderr is None:
        weight = np.full(data.n, 1.0 / unit)
    else:
        own = data.stderr if kind is Residual.ABSOLUTE else data.stderr / data.y
        weight = 1.0 / (own * unit)
    return _Residuals(space, columns, data.y, kind, weight)


def fit_problem(
    space: Space, columns: Columns, data: FitData, options: FitOptions
) -> tuple[Problem, float, Array, _Residuals | None]:
    """Return the problem for the solver, the unit of its residuals, starting points, and residuals of a sample of rows.

    The sample is None where there are few rows.
    """
    unit = _unit(data, options.residual)
    residuals = residual_function(space, columns, data, options.residual, unit)
    guess = guess_point(space, columns, data.y)
    if options.start is not None:
        values = space.natural(guess[None, :])[0]
        for name, value in options.start.items():
            if name not in space.law.names:
                raise FitError(
                    f"law {space.law.name} has no parameter {name!r} to start from", expected=", ".join(space.law.names)
                )
            values[space.law.names.index(name)] = value
        guess = space.point(list(values))
    typical = typical_shifts(residuals, guess)
    problem = Problem(residuals, space.low, space.high, space.log, typical, options.loss)
    if options.n_starts == 1 or space.k == 0:
        return problem, unit, guess[None, :], None
    rng = np.random.default_rng(options.seed)
    part = None
    if data.n > 2 * _SAMPLE_ROWS:
        use = np.zeros(data.n, dtype=bool)
        use[rng.choice(data.n, _SAMPLE_ROWS, replace=False)] = True
        part = residual_function(space, tuple(c[use] for c in columns), data.subset(use), options.residual, unit)
    points = space.random_points(guess, typical, _SCREENED * options.n_starts, rng)
    return problem, unit, _starts(part or residuals, points, guess, options.n_starts), part


def _starts(residuals: _Residuals, points: Array, guess: Array, n_starts: int) -> Array:
    """Return the guess, the random points of least cost, and for a third of the starts points whatever their cost."""
    with np.errstate(over="ignore"):
        cost = np.nansum(np.minimum(residuals(points) ** 2, 1e6), axis=1)
    order = np.argsort(np.where(np.isfinite(cost), cost, np.inf), kind="stable")
    best = points[order[: max(1, (n_starts - 1) * 2 // 3)]]
    return np.concatenate([guess[None, :], best, points[: n_starts - 1 - len(best)]])


def _unit(data: FitData, kind: Residual) -> float:
    if kind is not Residual.ABSOLUTE:
        y = np.log(data.y)
        scale = float(np.std(y))
        return (
            scale * (1.0 if data.stderr is None else 1.0 / float(np.median(data.stderr / data.y)))
            if scale > 0.0
            else 1.0
        )
    y = data.y if data.stderr is None else (data.y - data.y.mean()) / data.stderr
    scale = float(np.std(y))
    return scale if scale > 1e-12 * float(np.abs(y).max()) and scale > 0.0 else float(np.abs(y).max()) or 1.0


def _robust(problem: Problem, found: Solution, scale: float) -> tuple[Problem, Solution]:
    """Return the problem and solution with the loss scaled to the core of the residuals (MAD), twice refined."""
    for _ in range(4):
        residual = problem.residuals(found.point[None, :])[0]
        core = float(np.median(np.abs(residual))) / 0.6745
        problem = replace(problem, loss_scale=max(scale * core, 1e-12))
        again = solution(problem, found.point[None, :])
        if again is None:
            break
        found = replace(again, n_starts=found.n_starts, n_agreeing=found.n_agreeing, n_rival=found.n_rival)
    return problem, found


def _snapped(problem: Problem, point: Array, residual: Array, slopes: Array) -> tuple[Array, Mask]:
    """Return the point with parameters that are as good as at a bound put there, and which those are."""
    bound = np.zeros(point.size, dtype=bool)
    size = math.sqrt(float((residual**2).sum())) + 1e-9 * math.sqrt(residual.size)
    for j in range(point.size):
        for edge in (problem.low[j], problem.high[j]):
            distance = abs(point[j] - edge)
            near = (
                distance <= 1e-6 * max(1.0, abs(edge))
                if problem.log[j]
                else distance <= max(1e-3 * problem.typical[j], 1e-9 * abs(edge))
            )
            if not (math.isfinite(edge) and near):
                continue
            if float(np.sqrt((slopes[:, j] ** 2).sum())) * distance <= _AT_BOUND * size:
                point = point.copy()
                point[j], bound[j] = edge, True
    return point, bound


def _result(
    space: Space, columns: Columns, data: FitData, options: FitOptions, problem: Problem, unit: float, found: Solution
) -> FitResult:
    n, k, law = data.n, space.k, space.law
    point = found.point
    problem = replace(problem, typical=typical_shifts(problem.residuals, point))
    residual = problem.residuals(point[None, :])[0]
    with np.errstate(all="ignore"):
        slopes = jacobian(problem, point, fine=True) if k else np.zeros((n, 0))
    if not np.isfinite(slopes).all():
        slopes = jacobian(problem, point)
    point, bound = _snapped(problem, point, residual, slopes)
    dof = n - k
    inner = ~bound
    variance = _variance(problem, residual, dof)
    covariance, leverage, condition = _covariance(slopes[:, inner], variance, n)
    full = np.zeros((k, k))
    full[np.ix_(inner, inner)] = covariance
    scale = space.scale(point)
    index = np.array(space.free, dtype=int)
    total = np.zeros((len(law.parameters),) * 2)
    total[np.ix_(index, index)] = full * np.outer(scale, scale)
    stderr = np.full(len(law.parameters), np.nan)
    with np.errstate(invalid="ignore"):
        stderr[index[inner]] = np.sqrt(np.diag(total))[index[inner]]
    values = space.natural(point[None, :])[0]
    predicted = law.value(columns, list(values))
    low, high = _interval(space, point, full, inner, dof, values)
    residuals = problem.residuals(point[None, :])[0] * unit
    result = FitResult(
        law,
        data,
        columns,
        options,
        values,
        space.free,
        stderr,
        total,
        low,
        high,
        tuple(space.names[j] for j in np.flatnonzero(bound)),
        predicted,
        residuals,
        leverage,
        math.sqrt(variance) * unit if dof > 0 else math.nan,
        dof,
        errors(data.y, predicted),
        information_criterion(float((residuals**2).sum()), n, k) if options.loss == "linear" else math.nan,
        condition,
        found.converged,
        found.n_starts,
        found.n_agreeing,
        found.n_rival,
        diagnostics(columns, predicted, residuals, leverage, k, data.rows, stated_errors=data.stderr is not None),
    )
    return replace(result, findings=findings(result))


def _variance(problem: Problem, residual: Array, dof: int) -> float:
    """Return the variance of a residual; for a robust loss that of the M estimator (Huber, Robust Statistics, 1981)."""
    if dof <= 0:
        return math.nan
    if problem.loss == "linear":
        return float((residual**2).sum()) / dof
    z = residual / problem.loss_scale
    match problem.loss:
        case "huber":
            psi, slope = np.clip(z, -1.0, 1.0), (np.abs(z) <= 1.0) * 1.0
        case "soft_l1":
            psi, slope = z / np.sqrt(1.0 + z * z), (1.0 + z * z) ** -1.5
        case "cauchy":
            psi, slope = z / (1.0 + z * z), (1.0 - z * z) / (1.0 + z * z) ** 2
        case _:
            psi, slope = z / (1.0 + z**4), (1.0 - 3.0 * z**4) / (1.0 + z**4) ** 2
    mean = max(float(slope.mean()), 0.05)
    small_sample = 1.0 + (residual.size - dof) / residual.size * float(slope.var()) / mean**2
    return (small_sample * problem.loss_scale / mean) ** 2 * float((psi**2).sum()) / dof


def _covariance(slopes: Array, variance: float, n: int) -> tuple[Array, Array, float]:
    """Return (covariance on the search scale, leverage of each row, condition of the scaled Jacobian).

    Directions that the data say nothing about get an infinite variance.
    """
    k = slopes.shape[1]
    if k == 0:
        return np.zeros((0, 0)), np.zeros(n), 1.0
    norms = np.sqrt((slopes**2).sum(axis=0))
    dead = norms <= 1e-12
    u, s, vt = np.linalg.svd(slopes / np.where(dead, 1.0, norms), full_matrices=False)
    keep = s > _SINGULAR * s[0]
    leverage = np.asarray((u[:, keep] ** 2).sum(axis=1))
    condition = float(s[0] / s[-1]) if s[-1] > 0.0 else math.inf
    inverse = np.where(keep, 1.0 / np.where(keep, s, 1.0), 0.0)
    covariance = variance * (vt.T * inverse**2) @ vt / np.outer(np.where(dead, 1.0, norms), np.where(dead, 1.0, norms))
    lost = (np.abs(vt[~keep]) > 1e-3).any(axis=0) | dead
    covariance[lost, lost] = np.inf
    return covariance, leverage, math.inf if dead.any() else condition


def _interval(
    space: Space, point: Array, covariance: Array, inner: Mask, dof: int, values: Array
) -> tuple[Array, Array]:
    """Return the 95 % interval of each parameter, made on the search scale and kept within its bounds."""
    low, high = np.full(values.size, np.nan), np.full(values.size, np.nan)
    if dof <= 0:
        return low, high
    with np.errstate(all="ignore"):
        half = float(stdtrit(dof, 0.975)) * np.sqrt(np.diag(covariance))
        for sign, target in ((-1.0, low), (1.0, high)):
            ends = np.clip(point + sign * half, space.low, space.high)
            natural = space.natural(ends[None, :])[0]
            target[list(space.free)] = np.where(inner, natural[list(space.free)], np.nan)
    return low, high


def information_criterion(sum_of_squares: float, n: int, k: int) -> float:
    """Return AICc of a least-squares fit with k parameters and sigma (k + 1 in all); NaN where n - (k+1) - 1 <= 0.

    Hurvich and Tsai, Biometrika 76, 1989.

    >>> information_criterion(0.1, 4, 2)
    nan
    """
    total = k + 1
    if n - total - 1 <= 0:
        return math.nan
    least = max(sum_of_squares, 1e-280)
    return n * math.log(least / n) + 2.0 * total + 2.0 * total * (total + 1.0) / (n - total - 1.0)


def evaluation(law: FitLaw, parameters: Mapping[str, float], data: FitData) -> Evaluation:
    """Return how a law with the given parameters, nothing fitted, agrees with the data."""
    missing = [name for name in law.names if name not in parameters]
    unknown = [name for name in parameters if name not in law.names]
    if missing or unknown:
        raise FitError(f"law {law.name} has other parameters", got=", ".join(parameters), expected=", ".join(law.names))
    columns = law_columns(law, data)
    predicted = law.value(columns, [parameters[name] for name in law.names])
    found = errors(data.y, predicted)
    return Evaluation(law, dict(parameters), predicted, predicted - data.y, found, evaluation_verdict(law, found, data))
