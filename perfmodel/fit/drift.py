"""Where an error that grows with depth reaches a threshold, by each law of drift that the points can bear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.errors import FitError
from perfmodel.fit.data import data_from_arrays
from perfmodel.fit.fitter import fit
from perfmodel.fit.laws.base import FitLaw
from perfmodel.fit.laws.general import DRIFT_LAWS
from perfmodel.fit.result import FitResult

__all__ = ["Crossing", "crossings"]

_DEEPEST: Final = 1e6
_HALVINGS: Final = 200


@dataclass(frozen=True, slots=True)
class Crossing:
    """A law fitted to points, and the depth at which it reaches the threshold: infinite where it never does."""

    law: FitLaw
    result: FitResult
    depth_layers: float


def crossings(layers: Sequence[float], errors: Sequence[float], threshold: float) -> tuple[Crossing, ...]:
    """Return each law of drift that the points can bear, with the depth at which it reaches the threshold.

    Raises FitError where no law can be fitted, or the threshold is not above zero.

    >>> [round(c.depth_layers, 1) for c in crossings([5.0, 10.0, 20.0], [1.0, 2.0, 4.0], 6.0)][0]
    30.0
    """
    if not (threshold > 0.0 and math.isfinite(threshold)):
        raise FitError("a threshold has to be above zero", got=f"{threshold:g}")
    data = data_from_arrays({"layer": np.asarray(layers, dtype=np.float64)}, np.asarray(errors, dtype=np.float64))
    found = []
    for law in DRIFT_LAWS:
        if len(law.parameters) <= data.n:
            result = fit(law, data)
            found.append(Crossing(law, result, _depth_layers(law, result, threshold)))
    if not found:
        raise FitError("no law of drift can be fitted", got=f"{data.n} points", expected="at least two")
    return tuple(found)


def _depth_layers(law: FitLaw, result: FitResult, threshold: float) -> float:
    """Return the depth at which the law reaches the threshold, by bisection; infinite where it does not rise to it."""

    def value(depth: float) -> float:
        return float(law.value((np.array([depth]),), result.values.tolist())[0])

    low, high = 0.0, 1.0
    while value(high) < threshold:
        low, high = high, 2.0 * high
        if high > _DEEPEST:
            return math.inf
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if value(middle) < threshold else (low, middle)
    return 0.5 * (low + high)
