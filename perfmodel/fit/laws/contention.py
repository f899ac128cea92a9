"""Decay of a rate when n instances share something: the rate of each instance as a function of n.

`contention_printed` is a published formula exactly as it was printed. At n = 1 it gives base * (1 - alpha/2), so `base`
is not the rate of a single instance, and with a base equal to the measured single-instance rate it cannot pass through
that measurement. `contention_hill` counts the *other* instances and gives the decay a scale n0; it holds base at n = 1.
"""

from __future__ import annotations

import numpy as np

from perfmodel.fit.laws.base import Array, Columns, FitLaw, Input, Parameter, Values, positive, real
from perfmodel.fit.laws.guesses import half_way, line, order, positive_or

__all__ = ["CONTENTION_LAWS"]

_N = (Input("n_instances", "instances", low=1.0),)
_HINTS = ("n_instances", "instances")
_LIMITS = (
    (
        "The law assumes that all n instances share one resource. Where the data do not say how the instances were "
        "placed (sixteen on eight cards may stand two to a card and share little, or all on one card), the curve holds "
        "for that unstated placement only and is not to be read as n instances on one device."
    ),
)


def _printed(columns: Columns, values: Values) -> Array:
    base, alpha, beta = values
    return base * (1.0 - alpha * (1.0 - 1.0 / (1.0 + columns[0] ** beta)))


def _hill(columns: Columns, values: Values) -> Array:
    base, alpha, n0, beta = values
    others = np.maximum(columns[0] - 1.0, 0.0)
    return base * (1.0 - alpha * (1.0 - 1.0 / (1.0 + (others / n0) ** beta)))


def _hill_hyperbolic(columns: Columns, values: Values) -> Array:
    base, alpha, n0 = values
    return _hill(columns, (base, alpha, n0, np.ones(())))


def _hill_to_zero(columns: Columns, values: Values) -> Array:
    base, n0, beta = values
    return _hill(columns, (base, np.ones(()), n0, beta))


def _hyperbolic(columns: Columns, values: Values) -> Array:
    base, n0 = values
    return base / (1.0 + (columns[0] - 1.0) / n0)


def _usl(columns: Columns, values: Values) -> Array:
    base, sigma, kappa = values
    n = columns[0]
    return base / (1.0 + sigma * (n - 1.0) + kappa * n * (n - 1.0))


def _exponential(columns: Columns, values: Values) -> Array:
    base, n0 = values
    return base * np.exp(-(columns[0] - 1.0) / n0)


def _exponential_floor(columns: Columns, values: Values) -> Array:
    base, alpha, n0 = values
    return base * (1.0 - alpha * (1.0 - np.exp(-(columns[0] - 1.0) / n0)))


def _power(columns: Columns, values: Values) -> Array:
    base, beta = values
    return base * columns[0] ** -beta


def _linear(columns: Columns, values: Values) -> Array:
    base, loss = values
    return base * (1.0 - loss * (columns[0] - 1.0))


def _first(columns: Columns, y: Array) -> tuple[float, float, float]:
    """Return (rate at the least n, share lost at the greatest n, number of others at half of the loss)."""
    n, rate = order(columns[0], y)
    base = positive_or(float(rate[0]), float(np.abs(rate).max()))
    lost = float(np.clip(1.0 - rate[-1] / base, 0.05, 0.95))
    return base, lost, positive_or(half_way(n, rate) - 1.0, 0.5 * float(n[-1] - 1.0) + 0.5)


def _guess_printed(columns: Columns, y: Array) -> tuple[float, ...]:
    base, lost, _ = _first(columns, y)
    return base / (1.0 - lost / 2.0), lost, 1.0


def _guess_hill(columns: Columns, y: Array) -> tuple[float, ...]:
    base, lost, n0 = _first(columns, y)
    return base, min(1.0, 1.3 * lost), n0, 1.3


def _guess_hill_hyperbolic(columns: Columns, y: Array) -> tuple[float, ...]:
    return _guess_hill(columns, y)[:3]


def _guess_hill_to_zero(columns: Columns, y: Array) -> tuple[float, ...]:
    base, lost, n0 = _first(columns, y)
    return base, n0 / lost, 1.0


def _guess_hyperbolic(columns: Columns, y: Array) -> tuple[float, ...]:
    base, lost, n0 = _first(columns, y)
    return base, n0 / lost


def _guess_usl(columns: Columns, y: Array) -> tuple[float, ...]:
    base, _, _ = _first(columns, y)
    n = columns[0]
    use = (n > 1.0) & (y > 0.0)
    if use.sum() >= 2:
        sigma, kappa = line(n[use], (base / y[use] - 1.0) / (n[use] - 1.0))
        return base, max(sigma, 1e-3), max(kappa, 1e-5)
    return base, 0.1, 1e-3


def _guess_exponential(columns: Columns, y: Array) -> tuple[float, ...]:
    base, lost, _ = _first(columns, y)
    return base, positive_or(-float(columns[0].max() - 1.0) / float(np.log1p(-lost)), 1.0)


def _guess_exponential_floor(columns: Columns, y: Array) -> tuple[float, ...]:
    base, lost, n0 = _first(columns, y)
    return base, min(1.0, 1.1 * lost), n0 / 0.7


def _guess_power(columns: Columns, y: Array) -> tuple[float, ...]:
    base, lost, _ = _first(columns, y)
    return base, -float(np.log1p(-lost)) / max(float(np.log(columns[0].max())), 0.1)


def _guess_linear(columns: Columns, y: Array) -> tuple[float, ...]:
    base, lost, _ = _first(columns, y)
    return base, lost / max(float(columns[0].max()) - 1.0, 1.0)


def _base() -> Parameter:
    return positive("base", "y", "rate of one instance alone")


_ALPHA = real("alpha", "", "share of the rate that is lost far out", 0.0, 1.0)
_N0 = positive("n0", "instances", "other instances at which half of the loss has come", 1e-3, 1e6)
_HALF = positive("n0", "instances", "other instances at which the rate is halved", 1e-3, 1e6)
_SCALE = positive("n0", "instances", "other instances that lower the rate to 1/e of its way", 1e-3, 1e6)
_BETA = positive("beta", "", "steepness", 0.05, 20.0)

_GUNTHER = "N. Gunther: Guerrilla Capacity Planning, Springer 2007 (Universal Scalability Law, rate of one of n)"
_ARTICLE = "the article on 910B clusters, as printed there"


def _contention(
    name: str, title: str, formula: str, source: str, parameters: tuple[Parameter, ...], **parts: object
) -> FitLaw:
    return FitLaw(
        name,
        title,
        formula,
        source,
        _N,
        parameters,
        family="contention",
        hints=_HINTS,
        limits=_LIMITS,
        **parts,  # type: ignore[arg-type]
    )


CONTENTION_LAWS: tuple[FitLaw, ...] = (
    _contention(
        "contention_printed",
        "contention decay as printed in the article",
        "base * (1 - alpha * (1 - 1 / (1 + n**beta)))",
        _ARTICLE,
        (positive("base", "y", "twice-shared scale: the rate of one instance is base * (1 - alpha/2)"), _ALPHA, _BETA),
        function=_printed,
        guess=_guess_printed,
    ),
    _contention(
        "contention_hill",
        "contention decay with a half-loss scale (generalised Hill)",
        "base * (1 - alpha * (1 - 1 / (1 + ((n-1)/n0)**beta)))",
        f"{_ARTICLE}, with the scale n0 put back",
        (_base(), _ALPHA, _N0, _BETA),
        function=_hill,
        guess=_guess_hill,
    ),
    _contention(
        "contention_hill_hyperbolic",
        "contention decay with a half-loss scale, beta = 1",
        "base * (1 - alpha * (n-1) / (n-1+n0))",
        "contention_hill with beta = 1",
        (_base(), _ALPHA, _N0),
        function=_hill_hyperbolic,
        guess=_guess_hill_hyperbolic,
    ),
    _contention(
        "contention_hill_to_zero",
        "contention decay towards zero (Hill, alpha = 1)",
        "base / (1 + ((n-1)/n0)**beta)",
        "contention_hill with alpha = 1",
        (_base(), _HALF, _BETA),
        function=_hill_to_zero,
        guess=_guess_hill_to_zero,
    ),
    _contention(
        "contention_hyperbolic",
        "a shared queue (Amdahl form)",
        "base / (1 + (n-1)/n0)",
        "G. Amdahl: AFIPS 30, 1967; the Universal Scalability Law with kappa = 0",
        (_base(), _HALF),
        function=_hyperbolic,
        guess=_guess_hyperbolic,
    ),
    _contention(
        "contention_usl",
        "Universal Scalability Law, rate of one of n",
        "base / (1 + sigma * (n-1) + kappa * n * (n-1))",
        _GUNTHER,
        (
            _base(),
            real("sigma", "", "contention: share of the work that is serial", 0.0, 10.0),
            real("kappa", "", "coherence: cost of each pair of instances", 0.0, 10.0),
        ),
        function=_usl,
        guess=_guess_usl,
    ),
    _contention(
        "contention_exponential",
        "exponential decay",
        "base * exp(-(n-1)/n0)",
        "elementary",
        (_base(), _SCALE),
        function=_exponential,
        guess=_guess_exponential,
    ),
    _contention(
        "contention_exponential_floor",
        "exponential decay to a floor",
        "base * (1 - alpha * (1 - exp(-(n-1)/n0)))",
        "elementary",
        (_base(), _ALPHA, _SCALE),
        function=_exponential_floor,
        guess=_guess_exponential_floor,
    ),
    _contention(
        "contention_power",
        "power law",
        "base * n**-beta",
        "elementary",
        (_base(), real("beta", "", "exponent of the decay", 0.0, 10.0)),
        function=_power,
        guess=_guess_power,
    ),
    _contention(
        "contention_linear",
        "linear decay",
        "base * (1 - loss * (n-1))",
        "elementary",
        (_base(), real("loss", "1/instance", "share lost to each further instance", 0.0, 1.0)),
        function=_linear,
        guess=_guess_linear,
    ),
)
