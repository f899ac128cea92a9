"""What a law is: a pure function of columns and parameters, with everything a fit of it has to know.

A law's function receives a tuple of columns and a tuple of parameters. Both broadcast: with parameters of shape (m, 1)
and columns of shape (n,) it returns (m, n), so that Jacobians, starting points and bootstrap bands are one call each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Columns", "FitLaw", "Input", "Mask", "Parameter", "positive", "real"]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Columns = tuple[Array, ...]
Values = Sequence[Array]

_LEAST: Final = 1e-30
_MOST: Final = 1e30


@dataclass(frozen=True, slots=True)
class Parameter:
    """One coefficient of a law: bounds in its own unit; `log` searches it on a logarithmic scale (it is positive)."""

    name: str
    unit: str
    meaning: str
    low: float = -math.inf
    high: float = math.inf
    log: bool = False


@dataclass(frozen=True, slots=True)
class Input:
    """One column that a law reads, with the range in which the law makes sense."""

    name: str
    unit: str
    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True, slots=True)
class FitLaw:
    """A law that can be fitted: `function(columns, parameters)` and `guess(columns, y)` are pure.

    `family` groups rivals, `hints` are column names for which the law is a natural candidate, `limits` are assumptions
    that every verdict on this law repeats.
    """

    name: str
    title: str
    formula: str
    source: str
    inputs: tuple[Input, ...]
    parameters: tuple[Parameter, ...]
    function: Callable[[Columns, Values], Array]
    guess: Callable[[Columns, Array], Sequence[float]]
    output: str = "y"
    output_unit: str = ""
    family: str = "general"
    hints: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the parameters, in order."""
        return tuple(parameter.name for parameter in self.parameters)

    def value(self, columns: Columns, values: Sequence[float]) -> Array:
        """Return the law at the rows of `columns` for one set of parameter values."""
        with np.errstate(all="ignore"):
            result = self.function(columns, [np.asarray(v, dtype=np.float64) for v in values])
        return np.broadcast_to(np.asarray(result, dtype=np.float64), columns[0].shape)

    def values(self, columns: Columns, rows: Array) -> Array:
        """Return the law for many parameter sets at once: rows (m, k) and columns (n,) give (m, n)."""
        with np.errstate(all="ignore"):
            result = self.function(columns, [rows[:, j : j + 1] for j in range(rows.shape[1])])
        return np.broadcast_to(np.asarray(result, dtype=np.float64), (rows.shape[0], *columns[0].shape))


def positive(name: str, unit: str, meaning: str, low: float = _LEAST, high: float = _MOST) -> Parameter:
    """Return a parameter that is above zero and searched on a logarithmic scale.

    >>> positive("bandwidth", "bytes/s", "rate").log
    True
    """
    return Parameter(name, unit, meaning, low, high, log=True)


def real(name: str, unit: str, meaning: str, low: float = -math.inf, high: float = math.inf) -> Parameter:
    """Return a parameter that is searched on its own scale."""
    return Parameter(name, unit, meaning, low, high)
