"""First guesses that laws make from the data alone: straight lines, non-negative splits, half-way points."""

from __future__ import annotations

from typing import Final

import numpy as np

from perfmodel.fit.laws.base import Array

__all__ = ["half_way", "line", "log_line", "nonnegative", "order", "positive_or"]

_TINY: Final = 1e-300


def line(x: Array, y: Array) -> tuple[float, float]:
    """Return (intercept, slope) of the least-squares line; slope 0 where x is constant.

    >>> line(np.array([0.0, 1.0]), np.array([1.0, 3.0]))
    (1.0, 2.0)
    """
    dx = x - x.mean()
    spread = float(dx @ dx)
    slope = float(dx @ (y - y.mean())) / spread if spread > 0.0 else 0.0
    return float(y.mean()) - slope * float(x.mean()), slope


def log_line(x: Array, y: Array) -> tuple[float, float]:
    """Return (factor, exponent) of factor * x**exponent through the rows where both are positive.

    >>> log_line(np.array([1.0, 2.0]), np.array([3.0, 6.0]))
    (3.0, 1.0)
    """
    use = (x > 0.0) & (y > 0.0)
    if use.sum() < 2:
        return float(np.abs(y).mean()) + _TINY, 0.0
    intercept, slope = line(np.log(x[use]), np.log(y[use]))
    return round(float(np.exp(np.clip(intercept, -60.0, 60.0))), 14) or _TINY, round(
        float(np.clip(slope, -8.0, 8.0)), 14
    )


def nonnegative(columns: tuple[Array, ...], y: Array) -> tuple[float, ...]:
    """Return non-negative weights w of y = sum(w * column), fitted on relative errors; columns that hurt get 0.

    Columns that would have a negative weight are dropped one by one, the most negative first.
    """
    scale = np.where(np.abs(y) > 0.0, np.abs(y), 1.0)
    matrix = np.stack([np.broadcast_to(c, y.shape) / scale for c in columns], axis=1)
    norms = np.sqrt((matrix**2).sum(axis=0)) + _TINY
    kept = list(range(len(columns)))
    weights = np.zeros(len(columns))
    while kept:
        solution = np.linalg.lstsq(matrix[:, kept] / norms[kept], y / scale, rcond=None)[0]
        if (solution >= 0.0).all():
            weights[kept] = solution / norms[kept]
            break
        kept.pop(int(np.argmin(solution)))
    return tuple(float(w) for w in weights)


def positive_or(value: float, otherwise: float) -> float:
    """Return the value where it is positive and finite, else the other one (at least a tiny positive number)."""
    return value if np.isfinite(value) and value > 0.0 else max(otherwise, _TINY)


def order(x: Array, y: Array) -> tuple[Array, Array]:
    """Return x ascending, and y in the same order."""
    index = np.argsort(x, kind="stable")
    return x[index], y[index]


def half_way(x: Array, y: Array) -> float:
    """Return the x at which y is first half way between its value at the least and at the greatest x.

    >>> half_way(np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0, 2.0]))
    2.0
    """
    xs, ys = order(x, y)
    middle = 0.5 * (ys[0] + ys[-1])
    rising = ys[-1] >= ys[0]
    hit = np.flatnonzero(ys >= middle if rising else ys <= middle)
    i = int(hit[0]) if hit.size else len(xs) - 1
    if i == 0:
        return float(xs[0])
    step = ys[i] - ys[i - 1]
    share = (middle - ys[i - 1]) / step if step != 0.0 else 1.0
    return float(xs[i - 1] + share * (xs[i] - xs[i - 1]))
