"""What the errors of a group of rows depend on: rank correlations with the numbers that describe a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.measure.schema import COLUMNS
from perfmodel.validate.parts import Floats
from perfmodel.validate.predict import Predictions

__all__ = ["Trend", "rank_correlation", "trends"]

_SKIPPED: Final = ("value", "stderr", "n_repeats", "layer")
_LEAST_ROWS: Final = 6
_WORTH_NAMING: Final = 0.5


@dataclass(frozen=True, slots=True)
class Trend:
    """Errors go with a column: Spearman's correlation, and the median errors of its lower and upper third."""

    column: str
    correlation: float
    low_frac: float
    high_frac: float


def _ranks(values: Floats) -> Floats:
    """Return ranks, ties sharing their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2.0)[inverse.reshape(-1)], dtype=np.float64)


def rank_correlation(x: Floats, y: Floats) -> float:
    """Return Spearman's rank correlation; 0 where one of the two does not vary.

    >>> rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0]))
    1.0
    """
    a, b = _ranks(x), _ranks(y)
    if not (np.ptp(a) > 0 and np.ptp(b) > 0):
        return 0.0
    return float(round(np.corrcoef(a, b)[0, 1], 12))


def trends(found: Predictions, *, most: int = 2) -> tuple[Trend, ...]:
    """Return the columns that the errors go with most, strongest first; none where there are fewer than six rows."""
    use = np.flatnonzero(np.isfinite(found.error))
    if len(use) < _LEAST_ROWS:
        return ()
    error = found.error[use]
    result = []
    for name, column in found.table.columns.items():
        if COLUMNS[name].cell == "text" or name in _SKIPPED:
            continue
        values = column[use].astype(np.float64)
        known = np.isfinite(values)
        if np.count_nonzero(known) < _LEAST_ROWS or np.ptp(values[known]) == 0:
            continue
        correlation = rank_correlation(values[known], error[known])
        if abs(correlation) >= _WORTH_NAMING:
            first, last = np.quantile(values[known], (1 / 3, 2 / 3))
            low, high = error[known][values[known] <= first], error[known][values[known] >= last]
            result.append(Trend(name, correlation, float(np.median(low)), float(np.median(high))))
    return tuple(sorted(result, key=lambda t: -abs(t.correlation))[:most])
