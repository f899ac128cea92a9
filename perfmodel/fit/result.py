"""What a fit is: parameters with their errors, the residuals, and what is to be said about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np

from perfmodel.fit.data import FitData
from perfmodel.fit.laws.base import Array, Columns, FitLaw

__all__ = ["Diagnostics", "Errors", "Evaluation", "Finding", "FitOptions", "FitResult", "Grade", "Residual", "errors"]


class Residual(StrEnum):
    """What is squared: y - f, f/y - 1, or ln(f/y)."""

    ABSOLUTE = "absolute"
    RELATIVE = "relative"
    LOG = "log"


class Grade(StrEnum):
    """How far a fit deserves trust."""

    GOOD = "trustworthy"
    CARE = "usable with care"
    POOR = "do not use"


_SEVERITY: Final = {Grade.GOOD: 0, Grade.CARE: 1, Grade.POOR: 2}


@dataclass(frozen=True, slots=True)
class FitOptions:
    """How a fit is made.

    `loss` other than linear is robust: rows further than `loss_scale` (in standard deviations of the core) count less.
    With standard errors in the data the residuals are weighted; `seed` fixes the random starts.
    """

    residual: Residual = Residual.ABSOLUTE
    loss: str = "linear"
    loss_scale: float = 1.345
    n_starts: int = 8
    seed: int = 0
    fixed: Mapping[str, float] = field(default_factory=dict)
    start: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to be said about a fit: a stable code, how grave it is, and the sentence."""

    code: str
    grade: Grade
    text: str


@dataclass(frozen=True, slots=True)
class Errors:
    """How far predictions are from the data. Relative errors leave out rows where y is zero (NaN if there are none)."""

    r_squared: float
    rmse: float
    median_rel_frac: float
    p90_rel_frac: float
    max_rel_frac: float
    bias_rel_frac: float


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Tests on the residuals. A p value is the chance of as much structure in pure noise; NaN where n is too small."""

    runs_p: float
    spread_p: float
    spread_trend: float
    lack_of_fit_p: float
    chi_squared_p: float
    outlier_rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FitResult:
    """A fitted law.

    `values` are all parameters in their own units, `free` the indices of those that were fitted; `stderr` is NaN for
    fixed ones, for those at a bound and without degrees of freedom. `covariance` is over all parameters, zero where
    nothing is known. `low` and `high` are the 95 % interval, made on the search scale. `sigma` is the standard
    deviation of a residual: in units of y, or relative (see `options.residual`), or of the stated standard errors.
    """

    law: FitLaw
    data: FitData
    columns: Columns
    options: FitOptions
    values: Array
    free: tuple[int, ...]
    stderr: Array
    covariance: Array
    low: Array
    high: Array
    at_bound: tuple[str, ...]
    predicted: Array
    residuals: Array
    leverage: Array
    sigma: float
    dof: int
    errors: Errors
    aicc: float
    condition: float
    converged: bool
    n_starts: int
    n_agreeing: int
    n_rival: int
    diagnostics: Diagnostics
    findings: tuple[Finding, ...] = ()

    @property
    def parameters(self) -> dict[str, float]:
        """Return parameter name -> value."""
        return {name: float(v) for name, v in zip(self.law.names, self.values, strict=True)}

    @property
    def n(self) -> int:
        """Return the number of rows."""
        return self.data.n

    @property
    def k(self) -> int:
        """Return the number of fitted parameters."""
        return len(self.free)

    @property
    def grade(self) -> Grade:
        """Return the worst grade among the findings."""
        return max((f.grade for f in self.findings), key=_SEVERITY.__getitem__, default=Grade.GOOD)

    @property
    def correlation(self) -> Array:
        """Return the correlation of the parameters; NaN for those without a standard error."""
        with np.errstate(all="ignore"):
            return np.asarray(self.covariance / np.outer(self.stderr, self.stderr))

    @property
    def x_range(self) -> dict[str, tuple[float, float]]:
        """Return for each input the range of x that was fitted."""
        return {i.name: (float(c.min()), float(c.max())) for i, c in zip(self.law.inputs, self.columns, strict=True)}

    def value(self, *columns: Array) -> Array:
        """Return the fitted law at other columns, in the order of the law's inputs."""
        return self.law.value(tuple(np.atleast_1d(np.asarray(c, dtype=np.float64)) for c in columns), list(self.values))

    def extrapolated(self, *columns: Array) -> Array:
        """Tell for each row whether any column lies outside the fitted range."""
        outside = [(c < low) | (c > high) for c, (low, high) in zip(columns, self.x_range.values(), strict=True)]
        return np.asarray(np.any(np.broadcast_arrays(*outside), axis=0))


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A law with given parameters held against data."""

    law: FitLaw
    parameters: Mapping[str, float]
    predicted: Array
    residuals: Array
    errors: Errors
    verdict: str


def errors(y: Array, predicted: Array) -> Errors:
    """Return the errors of predictions; R squared is NaN where y does not vary.

    >>> round(errors(np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 3.0])).r_squared, 4)
    0.7857
    """
    difference = predicted - y
    spread = float(((y - y.mean()) ** 2).sum())
    with np.errstate(all="ignore"):
        relative = (difference / np.abs(y))[y != 0.0]
        r_squared = 1.0 - float((difference**2).sum()) / spread if spread > 0.0 else float("nan")
        rmse = float(np.sqrt(np.mean(difference**2)))
    if not relative.size:
        return Errors(r_squared, rmse, *(float("nan"),) * 4)
    size = np.abs(relative)
    return Errors(
        r_squared,
        rmse,
        float(np.median(size)),
        float(np.quantile(size, 0.9)),
        float(size.max()),
        float(np.mean(relative)),
    )
