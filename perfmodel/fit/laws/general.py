"""Laws of one column that belong to no device: line, power, exponential, saturation, and drift with depth."""

from __future__ import annotations

import numpy as np

from perfmodel.fit.laws.base import Array, Columns, FitLaw, Input, Values, positive, real
from perfmodel.fit.laws.guesses import half_way, line, log_line, order, positive_or

__all__ = ["DRIFT_LAWS", "GENERAL_LAWS"]

_X = (Input("x", ""),)
_X_NOT_NEGATIVE = (Input("x", "", low=0.0),)
_LAYER = (Input("layer", "layers", low=0.0),)
_DEPTH_LIMIT = "The law describes drift with depth in one model; other models and other inputs need data of their own."


def _linear(columns: Columns, values: Values) -> Array:
    return values[0] + values[1] * columns[0]


def _proportional(columns: Columns, values: Values) -> Array:
    return values[0] * columns[0]


def _root(columns: Columns, values: Values) -> Array:
    return values[0] * np.sqrt(columns[0])


def _power(columns: Columns, values: Values) -> Array:
    return values[0] * columns[0] ** values[1]


def _offset_power(columns: Columns, values: Values) -> Array:
    return values[0] + values[1] * columns[0] ** values[2]


def _exponential(columns: Columns, values: Values) -> Array:
    return values[0] * np.exp(values[1] * columns[0])


def _decay(columns: Columns, values: Values) -> Array:
    return values[0] + values[1] * np.exp(-columns[0] / values[2])


def _saturating(columns: Columns, values: Values) -> Array:
    return values[0] * columns[0] / (columns[0] + values[1])


def _hill(columns: Columns, values: Values) -> Array:
    ratio = (columns[0] / values[1]) ** values[2]
    return values[0] * ratio / (1.0 + ratio)


def _guess_linear(columns: Columns, y: Array) -> tuple[float, ...]:
    return line(columns[0], y)


def _guess_proportional(columns: Columns, y: Array) -> tuple[float, ...]:
    return (float(columns[0] @ y) / max(float(columns[0] @ columns[0]), 1e-300),)


def _guess_root(columns: Columns, y: Array) -> tuple[float, ...]:
    return _guess_proportional((np.sqrt(columns[0]),), y)


def _guess_power(columns: Columns, y: Array) -> tuple[float, ...]:
    if float(np.median(y)) < 0.0:
        factor, exponent = log_line(columns[0], -y)
        return -factor, exponent
    return log_line(columns[0], y)


def _guess_offset_power(columns: Columns, y: Array) -> tuple[float, ...]:
    xs, ys = order(columns[0], y)
    rise = ys[-1] - ys[0]
    offset = float(ys[0] - 0.1 * rise)
    factor, exponent = log_line(xs, np.abs(ys - offset))
    return offset, float(np.copysign(factor, rise)), exponent if exponent != 0.0 else 1.0


def _guess_exponential(columns: Columns, y: Array) -> tuple[float, ...]:
    sign = -1.0 if float(np.median(y)) < 0.0 else 1.0
    use = sign * y > 0.0
    if use.sum() < 2:
        return float(y.mean()), 0.0
    intercept, slope = line(columns[0][use], np.log(sign * y[use]))
    return sign * float(np.exp(np.clip(intercept, -60.0, 60.0))), slope


def _guess_decay(columns: Columns, y: Array) -> tuple[float, ...]:
    xs, ys = order(columns[0], y)
    floor = float(ys[-1])
    scale = positive_or((half_way(xs, ys) - float(xs[0])) / 0.7, float(xs[-1] - xs[0]) / 2.0)
    return floor, float(ys[0] - floor) * float(np.exp(np.clip(xs[0] / scale, -30.0, 30.0))), scale


def _guess_saturating(columns: Columns, y: Array) -> tuple[float, ...]:
    x = columns[0]
    use = (x > 0.0) & (y != 0.0)
    if use.sum() >= 2:
        inverse_top, slope = line(1.0 / x[use], 1.0 / y[use])
        if inverse_top * slope > 0.0:
            return 1.0 / inverse_top, slope / inverse_top
    return 1.2 * float(y[np.argmax(np.abs(y))]), positive_or(half_way(x, y), float(x.mean()))


def _guess_hill(columns: Columns, y: Array) -> tuple[float, ...]:
    top = 1.1 * float(y[np.argmax(np.abs(y))])
    return top, positive_or(half_way(columns[0], y), float(columns[0].mean())), 1.5


_EXPONENT = real("exponent", "", "exponent of x", -10.0, 10.0)

GENERAL_LAWS: tuple[FitLaw, ...] = (
    FitLaw(
        "linear",
        "straight line",
        "intercept + slope * x",
        "elementary",
        _X,
        (real("intercept", "y", "value at x = 0"), real("slope", "y/x", "increase for each unit of x")),
        _linear,
        _guess_linear,
    ),
    FitLaw(
        "power",
        "power law",
        "factor * x**exponent",
        "elementary",
        _X_NOT_NEGATIVE,
        (real("factor", "y", "value at x = 1"), _EXPONENT),
        _power,
        _guess_power,
    ),
    FitLaw(
        "offset_power",
        "power law on an offset",
        "offset + factor * x**exponent",
        "elementary",
        _X_NOT_NEGATIVE,
        (real("offset", "y", "value at x = 0"), real("factor", "y", "rise at x = 1"), _EXPONENT),
        _offset_power,
        _guess_offset_power,
    ),
    FitLaw(
        "exponential",
        "exponential",
        "factor * exp(rate * x)",
        "elementary",
        _X,
        (real("factor", "y", "value at x = 0"), real("rate", "1/x", "relative increase for each unit of x")),
        _exponential,
        _guess_exponential,
    ),
    FitLaw(
        "decay_floor",
        "exponential decay to a floor",
        "floor + height * exp(-x / scale)",
        "elementary",
        _X,
        (
            real("floor", "y", "value far out"),
            real("height", "y", "value at x = 0, above the floor"),
            positive("scale", "x", "x over which the height falls to 1/e"),
        ),
        _decay,
        _guess_decay,
    ),
    FitLaw(
        "saturating",
        "saturation (Michaelis-Menten)",
        "top * x / (x + half)",
        "L. Michaelis, M. Menten: Biochemische Zeitschrift 49, 1913",
        _X_NOT_NEGATIVE,
        (real("top", "y", "value far out"), positive("half", "x", "x at half of the top")),
        _saturating,
        _guess_saturating,
    ),
    FitLaw(
        "hill",
        "saturation (Hill)",
        "top * (x/half)**exponent / (1 + (x/half)**exponent)",
        "A. Hill: Journal of Physiology 40, 1910",
        _X_NOT_NEGATIVE,
        (
            real("top", "y", "value far out"),
            positive("half", "x", "x at half of the top"),
            positive("exponent", "", "steepness", 0.05, 20.0),
        ),
        _hill,
        _guess_hill,
    ),
)

_DRIFT_HINTS = ("layer", "layers", "depth", "layer_index")

DRIFT_LAWS: tuple[FitLaw, ...] = (
    FitLaw(
        "drift_proportional",
        "drift that adds up layer by layer",
        "per_layer * layer",
        "errors of one sign add",
        _LAYER,
        (real("per_layer", "y/layer", "error that each layer adds"),),
        _proportional,
        _guess_proportional,
        family="drift",
        hints=_DRIFT_HINTS,
        limits=(_DEPTH_LIMIT,),
    ),
    FitLaw(
        "drift_root",
        "drift as a random walk",
        "per_root_layer * sqrt(layer)",
        "independent errors add in squares",
        _LAYER,
        (real("per_root_layer", "y/sqrt(layer)", "error of one layer"),),
        _root,
        _guess_root,
        family="drift",
        hints=_DRIFT_HINTS,
        limits=(_DEPTH_LIMIT,),
    ),
    FitLaw(
        "drift_linear",
        "drift, linear in depth",
        "first + per_layer * layer",
        "errors of one sign add to what the input carries",
        _LAYER,
        (
            real("first", "y", "error before the first layer"),
            real("per_layer", "y/layer", "error that each layer adds"),
        ),
        _linear,
        _guess_linear,
        family="drift",
        hints=_DRIFT_HINTS,
        limits=(_DEPTH_LIMIT,),
    ),
    FitLaw(
        "drift_power",
        "drift, a power of depth",
        "factor * layer**exponent",
        "0.5 is a random walk, 1 is a bias, above 1 errors amplify each other",
        _LAYER,
        (positive("factor", "y", "error after one layer"), _EXPONENT),
        _power,
        _guess_power,
        family="drift",
        hints=_DRIFT_HINTS,
        limits=(_DEPTH_LIMIT,),
    ),
)
