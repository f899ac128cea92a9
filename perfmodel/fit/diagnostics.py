"""Tests of whether residuals still hold something that the law should have said."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from scipy.special import chdtrc, fdtrc, ndtri, stdtr  # type: ignore[import-untyped]

from perfmodel.fit.data import repeat_groups
from perfmodel.fit.laws.base import Array, Columns
from perfmodel.fit.result import Diagnostics

__all__ = ["diagnostics", "runs_p", "spread_trend"]

_LEAST_ROWS: Final = 8
"""Fewer residuals than this say nothing about patterns."""


def diagnostics(
    columns: Columns,
    predicted: Array,
    residuals: Array,
    leverage: Array,
    k: int,
    rows: tuple[int, ...],
    *,
    stated_errors: bool,
) -> Diagnostics:
    """Return the tests on residuals (all of one expected size) of a fit with k free parameters."""
    n = residuals.size
    flat = bool(np.ptp(residuals) <= 1e-9 * max(float(np.abs(residuals).max()), 1e-300)) or not np.any(
        np.abs(residuals) > 1e-10
    )
    usable = n >= _LEAST_ROWS and n > k + 2 and not flat
    order = np.lexsort((predicted, columns[0]))
    trend, trend_p = spread_trend(predicted, residuals) if usable else (math.nan, math.nan)
    dof = n - k
    chi_p = float(chdtrc(dof, float((residuals**2).sum()))) if stated_errors and dof > 0 else math.nan
    return Diagnostics(
        runs_p(residuals[order]) if usable else math.nan,
        trend_p,
        trend,
        _lack_of_fit_p(columns, residuals, k) if usable else math.nan,
        chi_p,
        tuple(rows[i] for i in _outliers(residuals, leverage, dof)) if usable else (),
    )


def runs_p(residuals: Array) -> float:
    """Return the one-sided p value of too few sign changes (Wald and Wolfowitz) in residuals sorted by x.

    >>> runs_p(np.array([1.0] * 10 + [-1.0] * 10)) < 0.001
    True
    """
    above = residuals > 0.0
    n_up, n_down = int(above.sum()), int((~above).sum())
    n = n_up + n_down
    if min(n_up, n_down) < 2:
        return math.nan
    runs = 1 + int((above[1:] != above[:-1]).sum())
    mean = 1.0 + 2.0 * n_up * n_down / n
    variance = (mean - 1.0) * (mean - 2.0) / (n - 1.0)
    return _normal_cdf((runs + 0.5 - mean) / math.sqrt(variance)) if variance > 0.0 else math.nan


def _normal_cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


def _ranks(values: Array) -> Array:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - 0.5 * (counts - 1))[inverse.reshape(-1)], dtype=np.float64)


def spread_trend(predicted: Array, residuals: Array) -> tuple[float, float]:
    """Return (rank correlation of residual size with the fitted value, its two-sided p value)."""
    a, b = _ranks(predicted), _ranks(np.abs(residuals))
    a, b = a - a.mean(), b - b.mean()
    size = math.sqrt(float(a @ a) * float(b @ b))
    if size == 0.0:
        return math.nan, math.nan
    r = float(a @ b) / size
    dof = residuals.size - 2
    t = abs(r) * math.sqrt(dof / max(1.0 - r * r, 1e-12))
    return r, 2.0 * float(stdtr(dof, -t))


def _lack_of_fit_p(columns: Columns, residuals: Array, k: int) -> float:
    """Return the p value of the F test of residuals against the scatter of repeats at equal x; NaN without repeats."""
    groups = repeat_groups(columns).astype(int)
    counts = np.bincount(groups)
    pure_dof = residuals.size - counts.size
    lack_dof = counts.size - k
    if pure_dof < 3 or lack_dof < 1:
        return math.nan
    means = np.bincount(groups, weights=residuals) / counts
    pure = float(((residuals - means[groups]) ** 2).sum())
    lack = float((counts * means**2).sum())
    if pure <= 1e-20 * lack:
        return math.nan
    return float(fdtrc(lack_dof, pure_dof, (lack / lack_dof) / (pure / pure_dof)))


def _outliers(residuals: Array, leverage: Array, dof: int) -> list[int]:
    """Return the rows whose residual is too large for so many: beyond the normal quantile of 1 - 0.05/(2n)."""
    n = residuals.size
    scaled = residuals / np.sqrt(np.clip(1.0 - leverage, 0.05, 1.0))
    core = float(np.median(np.abs(scaled))) / 0.6745 * math.sqrt(n / max(dof, 1))
    if core <= 0.0:
        return []
    limit = max(float(ndtri(1.0 - 0.025 / n)), 3.5) * (1.0 + 2.0 / max(dof, 1))
    index = np.flatnonzero(np.abs(scaled) > limit * core)
    return [int(i) for i in index[np.argsort(-np.abs(scaled[index]))]]
