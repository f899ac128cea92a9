"""Least squares from several starting points: the only user of scipy.optimize.

Residuals arrive scaled to order one; the Jacobian comes from one call of the law on all shifted points at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from perfmodel.fit.laws.base import Array

__all__ = ["LOSSES", "Problem", "Solution", "jacobian", "solution", "typical_shifts"]

LOSSES: Final = ("linear", "soft_l1", "huber", "cauchy", "arctan")
_STEP: Final = 6e-6
_FINE_STEP: Final = 1e-3
_SAME_COST: Final = 1e-6
_SAME_POINT: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Problem:
    """Residuals of points (m, k) -> (m, n), the bounds of a point, and the loss that is summed.

    `log` marks coordinates whose natural step is one; `typical` is the shift of each other that moves residuals visibly.
    """

    residuals: Callable[[Array], Array]
    low: Array
    high: Array
    log: Array
    typical: Array
    loss: str = "linear"
    loss_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Solution:
    """The best point found: `n_agreeing` of `n_starts` starts ended there, `n_rival` elsewhere with the same cost."""

    point: Array
    cost: float
    converged: bool
    n_starts: int
    n_agreeing: int
    n_rival: int
    n_evaluations: int


def jacobian(problem: Problem, point: Array, *, fine: bool = False) -> Array:
    """Return d residual / d point (n, k) by central differences; `fine` extrapolates twice to about ten digits.

    Shifted points stay inside the bounds; at a bound the difference becomes one-sided.
    """
    k = point.size
    size = np.where(problem.log, 1.0, np.maximum(np.abs(point), 1e-4 * problem.typical))
    steps = (_FINE_STEP, _FINE_STEP / 2, _FINE_STEP / 4) if fine else (_STEP,)
    room = np.minimum(point - problem.low, problem.high - point)
    if fine and not (room > _FINE_STEP * size).all():
        steps = (_STEP,)
    shifts = np.concatenate([np.diag(sign * h * size) for h in steps for sign in (1.0, -1.0)])
    points = np.clip(point + shifts, problem.low, problem.high)
    values = problem.residuals(points).reshape(len(steps), 2, k, -1)
    moved = points.reshape(len(steps), 2, k, k)
    width = np.stack([np.diagonal(moved[s, 0] - moved[s, 1]) for s in range(len(steps))])
    slopes = [(values[s, 0] - values[s, 1]) / width[s][:, None] for s in range(len(steps))]
    if len(slopes) == 3:
        first = (4.0 * slopes[1] - slopes[0]) / 3.0
        second = (4.0 * slopes[2] - slopes[1]) / 3.0
        return np.asarray(((16.0 * second - first) / 15.0).T)
    return np.asarray(slopes[0].T)


def typical_shifts(residuals: Callable[[Array], Array], point: Array) -> Array:
    """Return for each coordinate the shift (a power of ten) that moves the residuals by about a tenth, 1 if none does."""
    sizes = 10.0 ** np.arange(-18.0, 19.0)
    shifted = (point + sizes[:, None, None] * np.eye(point.size)).reshape(-1, point.size)
    with np.errstate(all="ignore"):
        moved = np.sqrt(np.mean((residuals(shifted) - residuals(point[None, :])) ** 2, axis=1)).reshape(sizes.size, -1)
        distance = np.abs(np.log10(moved) + 1.0)
    distance = np.where(np.isfinite(distance), distance, np.inf)
    best = np.argmin(distance, axis=0)
    return np.where(np.isfinite(distance.min(axis=0)), sizes[best], 1.0)


def _polished(problem: Problem, point: Array, cost: float) -> tuple[Array, float]:
    """Return the point after a few Gauss-Newton steps with the fine Jacobian, while they do not raise the cost."""
    for _ in range(4):
        with np.errstate(all="ignore"):
            slopes = jacobian(problem, point, fine=True)
            residual = problem.residuals(point[None, :])[0]
            norms = np.sqrt((slopes**2).sum(axis=0))
            if not (np.isfinite(slopes).all() and (norms > 0.0).all()):
                break
            step = np.linalg.lstsq(slopes / norms, -residual, rcond=1e-13)[0] / norms
            following = point + step
            if ((following <= problem.low) | (following >= problem.high)).any():
                break
            next_cost = 0.5 * float((problem.residuals(following[None, :])[0] ** 2).sum())
        if not next_cost <= cost * (1.0 + 1e-13):
            break
        point, cost = following, min(cost, next_cost)
    return point, cost


def _descended(problem: Problem, start: Array, tolerance: float, budget: int) -> tuple[Array, float, bool, int] | None:
    """Return (point, cost, converged, evaluations) of one descent, None where residuals are not finite."""
    try:
        with np.errstate(all="ignore"):
            found = least_squares(
                lambda p: problem.residuals(p[None, :])[0],
                start,
                jac=lambda p: jacobian(problem, p),
                bounds=(problem.low, problem.high),
                method="trf",
                x_scale="jac",
                loss=problem.loss,
                f_scale=problem.loss_scale,
                ftol=tolerance,
                xtol=tolerance,
                gtol=tolerance,
                max_nfev=budget,
            )
    except (ValueError, np.linalg.LinAlgError):
        return None
    if not np.isfinite(found.cost):
        return None
    return np.asarray(found.x), float(found.cost), bool(found.status > 0), int(found.nfev)


def solution(problem: Problem, starts: Array) -> Solution | None:
    """Return the best of the descents from each row of `starts`, refined; None where no start could be evaluated."""
    margin = 1e-10 * np.where(np.isfinite(problem.high - problem.low), problem.high - problem.low, 1.0)
    ends = []
    for start in starts:
        end = _descended(problem, np.clip(start, problem.low + margin, problem.high - margin), 1e-8, 200)
        if end is not None:
            ends.append(end)
    if not ends:
        return None
    best = min(ends, key=lambda end: end[1])
    fine = _descended(problem, np.clip(best[0], problem.low + margin, problem.high - margin), 1e-14, 3000)
    refined = fine if fine is not None and fine[1] <= best[1] else best
    if problem.loss == "linear":
        point, cost = _polished(problem, refined[0], refined[1])
        refined = (point, cost, refined[2], refined[3])
    slack = best[1] * _SAME_COST + 1e-18
    near = [end for end in ends if end[1] <= best[1] + 1e-3 * best[1] + slack]
    scale = np.maximum(np.abs(refined[0]), 1e-3)
    same = [end for end in near if (np.abs(end[0] - refined[0]) <= 30 * _SAME_POINT * scale).all()]
    return Solution(
        refined[0], refined[1], refined[2] or best[2], len(starts), len(same), len(near) - len(same),
        sum(end[3] for end in ends) + (fine[3] if fine else 0),
    )  # fmt: skip
