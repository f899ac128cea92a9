"""How sure a plan is: the probability that the true figures meet the targets, given the bands of the predictions.

Errors are log-normal around the prediction and come from the coefficients, each of which moves both times. Figures
that share coefficients err together, so that two targets are met with a probability that their product understates.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import erfc, inf, log, sqrt
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.estimate import Num

__all__ = ["Likelihood", "likelihood", "normal_cdf"]

_NODES: Final = 96
"""Points of the Gauss-Legendre rule: the integral is exact to 1e-9 for correlations up to 0.99."""
_FAR: Final = 8.0
"""Standard deviations beyond which a normal distribution has no weight that matters (6e-16)."""
_MOST_CORRELATED: Final = 0.999


class Likelihood(NamedTuple):
    """Probabilities that each target alone and both together are met."""

    ttft: float
    tpot: float
    both: float


def normal_cdf(z: float) -> float:
    """Return the standard normal distribution function.

    >>> normal_cdf(0.0), round(normal_cdf(1.2815515655446004), 12)
    (0.5, 0.9)
    """
    return 0.5 * erfc(-z / sqrt(2.0))


@cache
def _rule() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return nodes, weights


def _both(a: float, b: float, correlation: float) -> float:
    """Return P(X < a and Y < b) of standard normals: the integral of phi(x) Phi((b - r x) / sqrt(1 - r^2)) to a."""
    r = max(-_MOST_CORRELATED, min(_MOST_CORRELATED, correlation))
    top = min(a, _FAR)
    if top <= -_FAR:
        return 0.0
    nodes, weights = _rule()
    x = 0.5 * (top + _FAR) * nodes + 0.5 * (top - _FAR)
    inner = np.array([normal_cdf((b - r * v) / sqrt(1.0 - r * r)) if b < inf else 1.0 for v in x.tolist()])
    density = np.exp(-0.5 * x * x) / sqrt(2.0 * np.pi)
    return float(0.5 * (top + _FAR) * np.sum(weights * density * inner))


def likelihood(
    *,
    ttft_s: float,
    tpot_s: float,
    ttft_exposure: Mapping[str, Num],
    tpot_exposure: Mapping[str, Num],
    most_ttft_s: float | None,
    most_tpot_s: float | None,
) -> Likelihood:
    """Return how likely the targets are met; `_exposure`: relative sd by coefficient, as `estimate.exposure` gives.

    Without a target, or without an exposure, the answer is certain.
    """
    of_ttft = {k: float(v) for k, v in ttft_exposure.items()}
    of_tpot = {k: float(v) for k, v in tpot_exposure.items()}
    sd_ttft, sd_tpot = (sqrt(sum(v * v for v in e.values())) for e in (of_ttft, of_tpot))
    shared = sum(of_ttft[k] * of_tpot[k] for k in of_ttft.keys() & of_tpot.keys())
    correlation = shared / (sd_ttft * sd_tpot) if sd_ttft > 0 and sd_tpot > 0 else 0.0
    a, b = _distance(ttft_s, most_ttft_s, sd_ttft), _distance(tpot_s, most_tpot_s, sd_tpot)
    alone = normal_cdf(a), normal_cdf(b)
    both = min(alone) if inf in (a, b) else min(_both(a, b, correlation), *alone)
    return Likelihood(*alone, both)


def _distance(value: float, most: float | None, sd: float) -> float:
    """Return by how many standard deviations of the logarithm the value is below the target."""
    if most is None or value <= 0:
        return inf
    if sd <= 0:
        return inf if value <= most else -inf
    return log(most / value) / sd
