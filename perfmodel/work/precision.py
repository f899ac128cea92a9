"""Rounding of rotary position embedding: what a number format can hold, and how far a rotation may be off.

A rotation turns a pair (x, y) by position x frequency. Errors here are relative to the length of the pair. Two sources:
the angle, where position and product are rounded in the format, and the rotation itself, where sine, cosine, products
and sum are. Depth does not enter: every layer rotates anew from the position.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log, sqrt
from types import MappingProxyType
from typing import Final

from perfmodel.errors import SpecError
from perfmodel.estimate import Num, smaller

__all__ = [
    "FRACTION_BITS",
    "angle_error_rad",
    "exact_positions",
    "index_positions",
    "rotation_error_bound_frac",
    "rotation_error_rms_frac",
    "rounding_frac",
    "rounding_mean_frac",
]

FRACTION_BITS: Final[Mapping[str, int]] = MappingProxyType({"fp32": 23, "tf32": 10, "fp16": 10, "bf16": 7})
"""Stored bits of the significand (IEEE 754-2019; bf16 and tf32 as their vendors define them)."""
_LOG_UNIFORM_INVERSE: Final = 0.5 / log(2.0)
"""Mean of 1/m for a significand m spread evenly in its logarithm over 1 to 2."""
_LOG_UNIFORM_INVERSE_SQUARE: Final = 0.75 / (2.0 * log(2.0))
"""Mean of 1/m^2 likewise."""


def rounding_frac(dtype: str) -> float:
    """Return the largest relative error of one rounding to nearest: half a unit in the last place.

    Raises SpecError for a format without a significand of its own.

    >>> rounding_frac("fp16") == 2.0**-11
    True
    """
    if dtype not in FRACTION_BITS:
        raise SpecError(
            "rounding is not known for this format", got=dtype, expected=f"one of {', '.join(FRACTION_BITS)}"
        )
    return 2.0 ** -(FRACTION_BITS[dtype] + 1)


def rounding_mean_frac(dtype: str) -> float:
    """Return the mean relative error of one rounding, for values spread evenly in their logarithm.

    The error is even over half a unit in the last place: rounding_frac / 2 x mean(1/m), with mean(1/m) = 1 / (2 ln 2).

    >>> round(100 * rounding_mean_frac("fp16"), 4)
    0.0176
    """
    return 0.5 * rounding_frac(dtype) * _LOG_UNIFORM_INVERSE


def rotation_error_rms_frac(dtype: str) -> float:
    """Return the root mean square error of one rotation whose angle is exact.

    Sine and cosine are rounded, then the products, then the sum: 2 + 1 roundings of a variance s^2 each, so
    sqrt(3) s, with s = rounding_frac x sqrt(mean(1/m^2) / 3).

    >>> round(100 * rotation_error_rms_frac("fp16"), 4)
    0.0359
    """
    return rounding_frac(dtype) * sqrt(_LOG_UNIFORM_INVERSE_SQUARE)


def rotation_error_bound_frac(dtype: str) -> float:
    """Return the most that one rotation with an exact angle can be off: three roundings in each of two components.

    >>> round(100 * rotation_error_bound_frac("fp16"), 3)
    0.207
    """
    return 3.0 * sqrt(2.0) * rounding_frac(dtype)


def exact_positions(dtype: str) -> float:
    """Return up to which position whole numbers are exact in a format.

    >>> exact_positions("fp16"), exact_positions("bf16")
    (2048.0, 256.0)
    """
    return 1.0 / rounding_frac(dtype)


def angle_error_rad(position_tokens: Num, frequency: Num, dtype: str) -> Num:
    """Return the most that the angle position x frequency is off where position and product are held in a format.

    Each of the two roundings moves the angle by at most its own size x rounding_frac. The result is cut at a half turn,
    beyond which an angle means nothing. Values broadcast.

    >>> angle_error_rad(1024.0, 1.0, "fp16")
    1.0
    """
    half_turn = 3.141592653589793
    return smaller(2.0 * rounding_frac(dtype) * position_tokens * frequency, half_turn)


def index_positions(bits: int, *, signed: bool = False) -> float:
    """Return how many positions, counted from 0, a whole number of so many bits tells apart.

    >>> index_positions(16), index_positions(16, signed=True)
    (65536.0, 32768.0)
    """
    return float(2 ** (bits - signed))
