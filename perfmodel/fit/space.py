"""Parameters inside their bounds: natural values, the scale on which they are searched, and starting points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.errors import FitError, UnknownNameError
from perfmodel.fit.laws.base import Array, Columns, FitLaw, Mask

__all__ = ["Space", "guess_point", "search_space"]

_WIDE: Final = math.log(30.0)
"""Random starts of a positive parameter lie within this factor of its guess."""


@dataclass(frozen=True, slots=True)
class Space:
    """The free parameters of a law. A point is an array of the free ones on their search scale (log where positive)."""

    law: FitLaw
    free: tuple[int, ...]
    template: Array
    log: Mask
    low: Array
    high: Array

    @property
    def k(self) -> int:
        """Return the number of free parameters."""
        return len(self.free)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the free parameters."""
        return tuple(self.law.names[i] for i in self.free)

    def natural(self, points: Array) -> Array:
        """Return all parameters in their own units for points (m, k): an array (m, all parameters)."""
        values = np.tile(self.template, (points.shape[0], 1))
        with np.errstate(over="ignore"):
            values[:, list(self.free)] = np.where(self.log, np.exp(points), points)
        return values

    def point(self, values: Sequence[float]) -> Array:
        """Return the point of natural values (all parameters), moved into the bounds."""
        chosen = np.array([float(values[i]) for i in self.free])
        with np.errstate(divide="ignore", invalid="ignore"):
            chosen = np.where(self.log, np.log(chosen), chosen)
        chosen = np.where(np.isnan(chosen), np.where(np.isfinite(self.low), self.low, 0.0), chosen)
        return np.asarray(np.clip(chosen, self.low, self.high))

    def scale(self, point: Array) -> Array:
        """Return d natural / d point for each free parameter."""
        with np.errstate(over="ignore"):
            return np.asarray(np.where(self.log, np.exp(point), 1.0))

    def inside(self, point: Array) -> Array:
        """Return the point moved a hair off its bounds, as the solver needs it."""
        span = np.where(np.isfinite(self.high - self.low), self.high - self.low, 1.0)
        margin = 1e-10 * span
        return np.clip(point, self.low + margin, self.high - margin)

    def random_points(self, guess: Array, typical: Array, count: int, rng: np.random.Generator) -> Array:
        """Return `count` points of a Latin hypercube around the guess, inside the bounds: an array (count, k).

        A real parameter without bounds varies by three times its guess, or ten of its `typical` shifts if more.
        """
        strata = np.stack([rng.permutation(count) for _ in range(self.k)], axis=1) if self.k else np.zeros((count, 0))
        u = (strata + rng.random(strata.shape)) / max(count, 1)
        reach = np.where(self.log, _WIDE, np.maximum(3.0 * np.abs(guess), 10.0 * typical))
        bounded = ~self.log & np.isfinite(self.high) & np.isfinite(self.low)
        low = np.where(bounded, self.low, np.maximum(self.low, guess - reach))
        high = np.where(bounded, self.high, np.minimum(self.high, guess + reach))
        return np.asarray(low + u * (high - low))


def search_space(law: FitLaw, fixed: Mapping[str, float]) -> Space:
    """Return the space of the parameters of a law that are not fixed; raises for an unknown or impossible one."""
    for name, value in fixed.items():
        if name not in law.names:
            raise UnknownNameError.of(f"parameter of law {law.name}", name, law.names)
        parameter = law.parameters[law.names.index(name)]
        if not (math.isfinite(value) and parameter.low <= value <= parameter.high):
            raise FitError(
                f"law {law.name}: {name} cannot be fixed there",
                got=f"{value:g}",
                expected=f"{parameter.low:g} to {parameter.high:g}",
            )
    free = tuple(i for i, name in enumerate(law.names) if name not in fixed)
    chosen = [law.parameters[i] for i in free]
    log = np.array([p.log for p in chosen], dtype=bool)
    bounds = np.array([[math.log(v) if p.log else v for v in (p.low, p.high)] for p in chosen]).reshape(-1, 2)
    return Space(law, free, np.array([fixed.get(n, math.nan) for n in law.names]), log, bounds[:, 0], bounds[:, 1])


def guess_point(space: Space, columns: Columns, y: Array) -> Array:
    """Return the point of the law's own guess; where the guess fails, ones (or the nearest bound)."""
    with np.errstate(all="ignore"):
        try:
            values = [float(v) for v in space.law.guess(columns, y)]
        except (ArithmeticError, ValueError, IndexError, np.linalg.LinAlgError):
            values = [1.0] * len(space.law.parameters)
    return space.point([v if math.isfinite(v) else 1.0 for v in values])
