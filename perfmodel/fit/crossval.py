"""Errors on rows and groups that the fit has not seen."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from perfmodel.errors import FitError
from perfmodel.fit.fitter import fit, fit_problem
from perfmodel.fit.laws.base import Array, Mask
from perfmodel.fit.result import FitResult, Residual
from perfmodel.fit.solver import nearby_minimum
from perfmodel.fit.space import search_space

__all__ = ["LeftOut", "is_supported", "left_out_groups", "left_out_rows"]

_MOST_FOLDS: Final = 30
_FOLDS: Final = 10


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Predictions of each row by a fit without its group. `error` is the root mean square residual, of the fit's kind.

    `by_group` holds the median absolute relative error of each group (NaN where its fit failed).
    """

    predicted: Array
    error: float
    median_rel_frac: float
    p90_rel_frac: float
    n_failed: int
    by_group: dict[str, float]


def is_supported(n: int, k: int) -> bool:
    """Tell whether n points allow k parameters to be judged by leaving one out: n - 1 rows must overdetermine them.

    >>> is_supported(4, 2), is_supported(4, 3)
    (True, False)
    """
    return n - 1 > k


def left_out_rows(result: FitResult) -> LeftOut:
    """Return the errors on left-out rows: one at a time up to 30 rows, else ten random tenths (seeded)."""
    n = result.n
    if not is_supported(n, result.k):
        raise FitError(
            f"law {result.law.name}: {n} points do not allow a left-out error",
            got=f"{result.k} parameters",
            expected=f"more than {result.k + 1} points",
        )
    shuffled = np.random.default_rng(result.options.seed).permutation(n)
    fold = np.arange(n) if n <= _MOST_FOLDS else shuffled % _FOLDS
    return _left_out(result, [f"fold {f + 1}" for f in fold])


def left_out_groups(result: FitResult) -> LeftOut:
    """Return the errors on whole groups left out (the data's group column)."""
    if result.data.group is None:
        raise FitError("there is no group column", expected="data with groups", cure="Name one with --group.")
    if len(set(result.data.group)) < 2:
        raise FitError(
            "one group cannot be left out", got=f"only {result.data.group[0]!r}", expected="at least two groups"
        )
    return _left_out(result, list(result.data.group))


def _left_out(result: FitResult, labels: list[str]) -> LeftOut:
    y = result.data.y
    predicted = np.full(y.size, np.nan)
    names = np.array(labels)
    failed = 0
    for label in dict.fromkeys(labels):
        out = names == label
        try:
            predicted[out] = _prediction(result, ~out, out)
        except FitError:
            failed += 1
    residual = _residual(result, predicted)
    with np.errstate(all="ignore"):
        relative = np.abs(predicted / y - 1.0)
    seen = np.isfinite(residual)
    usable = relative[np.isfinite(relative)]
    by_group = {label: float(np.median(relative[names == label])) for label in dict.fromkeys(labels)}
    return LeftOut(
        predicted,
        float(np.sqrt(np.mean(residual[seen] ** 2))) if seen.any() else math.nan,
        float(np.median(usable)) if usable.size else math.nan,
        float(np.quantile(usable, 0.9)) if usable.size else math.nan,
        failed,
        by_group,
    )


def _prediction(result: FitResult, use: Mask, out: Mask) -> Array:
    """Return what a fit of the rows `use` predicts for the rows `out`; with many rows one descent from the solution."""
    part, there = result.data.subset(use), tuple(c[out] for c in result.columns)
    if result.n <= _MOST_FOLDS:
        options = replace(result.options, start=result.parameters, n_starts=min(result.options.n_starts, 4))
        return result.law.value(there, list(fit(result.law, part, options).values))
    space = search_space(result.law, result.options.fixed)
    if space.k == 0:
        return result.law.value(there, list(result.values))
    if part.n < space.k:
        raise FitError(f"law {result.law.name}: too few rows are left without this group", got=str(part.n))
    columns = tuple(c[use] for c in result.columns)
    problem, unit, start, _ = fit_problem(
        space, columns, part, replace(result.options, start=result.parameters, n_starts=1)
    )
    point = nearby_minimum(replace(problem, loss_scale=result.sigma / unit), space.inside(start[0]))
    if point is None:
        raise FitError(f"law {result.law.name} cannot be evaluated without some of the rows")
    return result.law.value(there, list(space.natural(point[None, :])[0]))


def _residual(result: FitResult, predicted: Array) -> Array:
    y, stderr = result.data.y, result.data.stderr
    with np.errstate(all="ignore"):
        match result.options.residual:
            case Residual.ABSOLUTE:
                return predicted - y if stderr is None else (predicted - y) / stderr
            case Residual.RELATIVE:
                residual = predicted / y - 1.0
            case _:
                residual = np.log(predicted / y)
        return residual if stderr is None else residual / (stderr / y)
