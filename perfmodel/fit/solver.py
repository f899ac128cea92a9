"""Least squares from several starting points: the only user of scipy.optimize.

Residuals arrive scaled to order one; the Jacobian comes from one call of the law on all shifted points at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from perfmodel.fit.laws.base import Array, Mask

__all__ = ["LOSSES", "Problem", "Solution", "jacobian", "nearby_minimum", "solution", "typical_shifts"]

LOSSES: Final = ("linear", "soft_l1", "huber", "cauchy", "arctan")
_STEP: Final = 6e-6
_FINE_STEP: Final = 1e-3
_SAME_COST: Final = 1e-4
_SAME_POINT: Final = 0.03
_FINALISTS: Final = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """Residuals of points (m, k) -> (m, n), the bounds of a point, and the loss that is summed.

    `log` marks coordinates whose natural step is one; `typical` is the shift of others that moves residuals visibly.
    """

    residuals: Callable[[Array], Array]
    low: Array
    high: Array
    log: Mask
    typical: Array
    loss: str = "linear"
    loss_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class _End:
    """Where one descent ended."""

    point: Array
    cost: float
    converged: bool
    n_evaluations: int


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
    """Return for each coordinate the shift (a power of ten) that moves residuals by about a tenth, 1 if none."""
    if point.size == 0:
        return np.zeros(0)
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


def _descended(problem: Problem, start: Array, tolerance: float, budget: int) -> _End | None:
    """Return where one descent ends, None where residuals are not finite."""
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
    return _End(np.asarray(found.x), float(found.cost), bool(found.status > 0), int(found.nfev))


def solution(problem: Problem, starts: Array, part: Callable[[Array], Array] | None = None) -> Solution | None:
    """Return the best of the descents from each row of `starts`, refined; None where no start could be evaluated.

    `part` gives the residuals of a sample of the rows: with many rows every start descends on the sample, and the
    distinct ends that compete there descend on all rows.
    """
    margin = 1e-10 * np.where(np.isfinite(problem.high - problem.low), problem.high - problem.low, 1.0)

    def descents(chosen: Problem, points: Array, tolerance: float, budget: int) -> list[_End]:
        inner = (np.clip(point, problem.low + margin, problem.high - margin) for point in points)
        ends = [_descended(chosen, point, tolerance, budget) for point in inner]
        return sorted((end for end in ends if end is not None), key=lambda end: end.cost)

    rough = replace(problem, residuals=part) if part is not None else problem
    ends = descents(rough, starts, 1e-8, 200)
    if not ends:
        return None
    near = [end for end in ends if end.cost <= ends[0].cost * (1.0 + _SAME_COST) + 1e-16]
    rivals = _distinct(near)
    finalists = np.array([end.point for end in (_distinct(ends)[:_FINALISTS] if part is not None else ends[:1])])
    final = descents(problem, finalists, 1e-14 if part is None else 1e-12, 3000 if part is None else 200)
    n_evaluations = sum(end.n_evaluations for end in (*ends, *final))
    if part is None and (not final or final[0].cost > ends[0].cost):
        final = ends
    if not final:
        return None
    point, cost = final[0].point, final[0].cost
    if problem.loss == "linear":
        point, cost = _polished(problem, point, cost)
    converged = final[0].converged or (part is None and ends[0].converged)
    n_agreeing = sum(_is_same(end, rivals[0]) for end in near)
    return Solution(point, cost, converged, len(starts), n_agreeing, len(near) - n_agreeing, n_evaluations)


def nearby_minimum(problem: Problem, start: Array) -> Array | None:
    """Return the minimum that one descent from `start` reaches, to about eight digits: for refits by the hundred."""
    end = _descended(problem, start, 1e-9, 100)
    return None if end is None else end.point


def _is_same(end: _End, other: _End) -> bool:
    return bool((np.abs(end.point - other.point) <= _SAME_POINT * np.maximum(np.abs(other.point), 0.1)).all())


def _distinct(ends: list[_End]) -> list[_End]:
    """Return the ends that differ from all better ones."""
    kept: list[_End] = []
    for end in ends:
        if not any(_is_same(end, other) for other in kept):
            kept.append(end)
    return kept
