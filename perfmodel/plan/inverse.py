"""Questions asked backwards: which figure makes a target true, and where two curves cross."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, isfinite, log
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import PerfmodelError, SpecError
from perfmodel.plan.knobs import Knob, Scene
from perfmodel.plan.sensitivity import outputs

__all__ = ["Needed", "bisected", "crossings", "needed_for"]

Floats = NDArray[np.float64]

_ROUNDS: Final = 200
_FARTHEST: Final = 64.0
"""A figure is turned up or down by at most this factor: beyond, it is another machine."""


def bisected(f: Callable[[float], float], low: float, high: float, *, rel_width: float = 1e-9) -> float | None:
    """Return x in [low, high] where f changes its sign, found by halving in the logarithm; None where it does not.

    `f` is monotone (else one of its sign changes is found); both ends are above zero. Ends where f is zero count.

    >>> round(bisected(lambda x: x * x - 2.0, 0.1, 10.0), 6)
    1.414214
    """
    if not 0.0 < low < high < float("inf"):
        raise SpecError("no interval to search", got=f"{low:g} to {high:g}", expected="0 < low < high")
    at_low, at_high = f(low), f(high)
    if at_low == 0.0:
        return low
    if at_high == 0.0:
        return high
    if not (isfinite(at_low) and isfinite(at_high)) or (at_low > 0.0) == (at_high > 0.0):
        return None
    for _ in range(_ROUNDS):
        middle = exp(0.5 * (log(low) + log(high)))
        if high / low - 1.0 < rel_width or not low < middle < high:
            break
        value = f(middle)
        if value == 0.0:
            return middle
        if (value > 0.0) == (at_low > 0.0):
            low = middle
        else:
            high = middle
    return exp(0.5 * (log(low) + log(high)))


@dataclass(frozen=True, slots=True)
class Needed:
    """What a knob has to be for an output to reach a target; `factor` None: no value within reach does it."""

    knob: Knob
    factor: float | None

    @property
    def value(self) -> float | None:
        """The figure that is needed, in its own unit."""
        return None if self.factor is None else self.knob.value * self.factor


def needed_for(scene: Scene, knob: Knob, output: str, target: float, *, farthest: float = _FARTHEST) -> Needed:
    """Return by what factor a knob has to be turned so that an output of the scene becomes the target.

    The nearest factor is sought on the side towards which the output moves to the target. Where the model stops
    fitting on the way, up to there.
    """

    def off(factor: float) -> float:
        try:
            value = float(np.atleast_1d(outputs(knob.turned(scene, factor))[output])[0])
        except PerfmodelError:
            return float("nan")
        return log(value / target) if value > 0 and isfinite(value) else float("nan")

    here = off(1.0)
    if here == 0.0:
        return Needed(knob, 1.0)
    for far in (farthest, 1.0 / farthest):
        end = far
        at_end = off(end)
        while not isfinite(at_end) and abs(log(end)) > 1e-3:
            end = exp(0.5 * log(end))
            at_end = off(end)
        if isfinite(at_end) and (at_end > 0.0) != (here > 0.0):
            low, high = (1.0, end) if end > 1.0 else (end, 1.0)
            found = bisected(off, low, high)
            if found is not None:
                return Needed(knob, found)
    return Needed(knob, None)


def crossings(x: Floats, a: Floats, b: Floats, gap: Callable[[float], float]) -> tuple[float, ...]:
    """Return where a - b changes its sign along x (all above zero), each refined by halving with `gap(x)` = a - b.

    Points where either is not finite part the curve.
    """
    difference = a - b
    found = []
    for i in range(len(x) - 1):
        here, there = difference[i], difference[i + 1]
        if not (np.isfinite(here) and np.isfinite(there)):
            continue
        if here == 0.0:
            found.append(float(x[i]))
        elif there != 0.0 and (here > 0) != (there > 0):
            refined = bisected(gap, float(x[i]), float(x[i + 1]))
            found.append(float(x[i + 1]) if refined is None else refined)
    return tuple(found)
