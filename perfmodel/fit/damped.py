"""Robust fit of logarithms with a normal prior on each, and the scatter and coverage of errors on rows left out.

Kernels and collectives are fitted in this one way. Residuals are log(predicted / measured) under a soft-L1 loss: a row
counts by its relative error and a few bad rows do not pull. A parameter that the rows do not tell stays at its prior,
with the prior's width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from perfmodel.estimate import Z80

__all__ = ["NOISE", "Floats", "Search", "covered_rows", "scatter_of", "solved"]

Floats = NDArray[np.float64]

NOISE: Final = 0.1
"""Nominal scatter of log times: where the robust loss bends, and the unit in which a prior counts against a row."""
_LEAST_NOISE: Final = 1e-9
_LEAST_ERROR: Final = -0.99
"""A prediction below a hundredth of the measurement counts as that: its logarithm must stay finite."""


class Search(NamedTuple):
    """Prior and limits of the logarithms, one entry per parameter; starts are kept `margin` inside the limits."""

    centres: Floats
    widths: Floats
    low: Floats
    high: Floats
    margin: float
    x_scale: Floats | float = 1.0


def solved(
    predicted: Callable[[Floats], Floats], measured: Floats, start: Floats, search: Search
) -> tuple[Floats, Floats]:
    """Return (log parameters, their covariance) for `predicted(logs)` against `measured`, both in seconds, by row."""
    log_measured = np.log(measured)

    def residuals(logs: Floats) -> Floats:
        of_rows = np.log(predicted(logs)) - log_measured
        return np.concatenate([of_rows, NOISE * (logs - search.centres) / search.widths])

    found = least_squares(
        residuals, np.clip(start, search.low + search.margin, search.high - search.margin),
        bounds=(search.low, search.high), loss="soft_l1", f_scale=NOISE, x_scale=search.x_scale,
        max_nfev=60, xtol=1e-10, ftol=1e-10,
    )  # fmt: skip
    n_rows = len(log_measured)
    rest = residuals(found.x)[:n_rows]
    noise = max(float(np.sqrt(np.sum(rest**2) / max(1, n_rows - len(search.low)))), _LEAST_NOISE)
    jacobian = found.jac.copy()
    jacobian[n_rows:] *= noise / NOISE
    return found.x, np.linalg.pinv(jacobian.T @ jacobian) * noise**2


def scatter_of(errors: Floats) -> float:
    """Return the width of a normal distribution that covers 80 % of the relative errors in its 80 % band."""
    return float(np.quantile(_log_misses(errors), 0.8)) / Z80


def covered_rows(errors: Floats, fold_of: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return which rows lie in the 80 % band whose width comes from the other folds."""
    covered = np.zeros(len(errors), dtype=bool)
    for fold in np.unique(fold_of):
        out = fold_of == fold
        covered[out] = _log_misses(errors[out]) <= Z80 * scatter_of(errors[~out])
    return covered


def _log_misses(errors: Floats) -> Floats:
    return np.asarray(np.abs(np.log1p(np.maximum(errors, _LEAST_ERROR))), dtype=np.float64)
