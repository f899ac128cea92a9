"""Quantities: the only home of powers of 1000 and 1024.

Base units inside the program: bytes, seconds, hertz, flop per second, bytes per second, watt, US dollars per hour.
k, M, G, T, P are powers of 1000; Ki, Mi, Gi, Ti are powers of 1024. A marketed "80 GB" card holds about 80 GiB: the
file has to say which of the two it means.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Final

from pydantic import BeforeValidator

from perfmodel.errors import UnitError

__all__ = [
    "GB",
    "GIB",
    "KIB",
    "MIB",
    "NS_PER_S",
    "TERA",
    "Bytes",
    "BytesPerS",
    "FlopPerS",
    "Frac",
    "Hertz",
    "Seconds",
    "UsdPerHour",
    "Watts",
    "bandwidth_text",
    "bytes_text",
    "count_text",
    "quantity",
    "rate_text",
    "time_text",
]

KIB: Final = 2.0**10
MIB: Final = 2.0**20
GIB: Final = 2.0**30
KILO: Final = 1e3
MEGA: Final = 1e6
GB: Final = 1e9
NS_PER_S: Final = 1e9
TERA: Final = 1e12
MICRO: Final = 1e-6

_DECIMAL = {"": 1.0, "k": KILO, "K": KILO, "M": MEGA, "G": GB, "T": TERA, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": KIB, "Mi": MIB, "Gi": GIB, "Ti": 2.0**40}
_SMALL = {"": 1.0, "m": 1e-3, "u": MICRO, "µ": MICRO, "n": 1e-9}


def _units() -> dict[str, dict[str, float]]:
    sizes = {**_DECIMAL, **_BINARY}
    bits = {f"{p}{b}": f / 8 for p, f in sizes.items() for b in ("bit", "b")}
    byte = {f"{p}B": f for p, f in sizes.items()} | {"bytes": 1.0, "byte": 1.0}
    per_s = {f"{u}/s": f for u, f in {**byte, **bits}.items()} | {f"{p}bps": f / 8 for p, f in _DECIMAL.items()}
    flop = {
        f"{p}{name}": f
        for p, f in _DECIMAL.items()
        for name in ("flop/s", "FLOP/s", "FLOPS", "flops", "op/s", "OP/s", "OPS", "ops")
    }
    hertz = {f"{p}Hz": f for p, f in _DECIMAL.items()}
    seconds = {f"{p}s": f for p, f in _SMALL.items()} | {"min": 60.0, "h": 3600.0}
    return {
        "bytes": byte | bits,
        "bytes_per_s": per_s,
        "flop_per_s": flop,
        "hertz": hertz,
        "seconds": seconds,
        "watts": {"W": 1.0, "mW": 1e-3, "kW": KILO},
        "usd_per_hour": {"USD/h": 1.0, "$/h": 1.0, "USD/hour": 1.0},
        "frac": {"%": 0.01},
    }


_UNITS: Final = _units()
_USUAL: Final = {
    "bytes": "GiB, MiB, KiB, GB",
    "bytes_per_s": "GB/s, TB/s, GiB/s, Gbit/s",
    "flop_per_s": "TFLOP/s, TFLOPS, TOPS",
    "hertz": "MHz, GHz",
    "seconds": "us, ms, s",
    "watts": "W, kW",
    "usd_per_hour": "USD/h",
    "frac": "%",
}
_PATTERN: Final = re.compile(r"^\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s].*?)?\s*$")


def quantity(value: object, dimension: str) -> float:
    """Return `value` in the base unit of `dimension`: a bare number is taken to be in base units already.

    `dimension` is one of bytes, bytes_per_s, flop_per_s, hertz, seconds, watts, usd_per_hour, frac.
    Raises UnitError for text that is no number, a unit of another kind, NaN, infinity, or a value below zero.

    >>> quantity("1.6 TB/s", "bytes_per_s")
    1600000000000.0
    >>> quantity("64 GiB", "bytes")
    68719476736.0
    """
    table = _UNITS[dimension]
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise UnitError(f"{value!r} is no {dimension} quantity", expected="a number, or text such as '1.5 GiB'")
    if isinstance(value, str):
        match = _PATTERN.match(value)
        if match is None:
            raise UnitError(f"{value!r} is no quantity", expected=f"a number and a unit of {dimension}")
        number, unit = float(match[1].replace("_", "")), match[2]
        if unit is not None and unit not in table:
            what = dimension.replace("_per_", "/").replace("_", " ")
            raise UnitError(f"{value!r}: {unit!r} is no unit of {what}", expected=f"one such as {_USUAL[dimension]}")
        result = number * (table[unit] if unit is not None else 1.0)
    else:
        result = _float(value)
    if not math.isfinite(result) or result < 0:
        raise UnitError(f"{value!r} is no usable size", expected="a finite number >= 0")
    return result


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # a whole number beyond 1.8e308
        return math.inf


def _typed(dimension: str) -> BeforeValidator:
    def validate(value: object) -> float:
        try:
            return quantity(value, dimension)
        except UnitError as error:
            raise ValueError(str(error).replace("\n  ", "; ")) from error

    return BeforeValidator(validate)


Bytes = Annotated[float, _typed("bytes")]
BytesPerS = Annotated[float, _typed("bytes_per_s")]
FlopPerS = Annotated[float, _typed("flop_per_s")]
Hertz = Annotated[float, _typed("hertz")]
Seconds = Annotated[float, _typed("seconds")]
Watts = Annotated[float, _typed("watts")]
UsdPerHour = Annotated[float, _typed("usd_per_hour")]
Frac = Annotated[float, _typed("frac")]


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    for size, unit in steps:
        if abs(value) >= size:
            return f"{value / size:.4g} {unit}"
    size, unit = steps[-1]
    return f"{value / size:.4g} {unit}"


def time_text(seconds: float) -> str:
    """Return a time with its unit.

    >>> time_text(0.00123)
    '1.23 ms'
    """
    return _scaled(seconds, ((60.0, "min"), (1.0, "s"), (1e-3, "ms"), (MICRO, "us"), (1e-9, "ns")))


def bytes_text(size: float) -> str:
    """Return a size in binary units.

    >>> bytes_text(68719476736)
    '64 GiB'
    """
    return _scaled(size, ((2.0**40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1.0, "B")))


def bandwidth_text(bytes_per_s: float) -> str:
    """Return a transfer rate in decimal units, as datasheets do.

    >>> bandwidth_text(1.6e12)
    '1.6 TB/s'
    """
    return _scaled(bytes_per_s, ((TERA, "TB/s"), (GB, "GB/s"), (MEGA, "MB/s"), (1.0, "B/s")))


def rate_text(flop_per_s: float) -> str:
    """Return an arithmetic rate.

    >>> rate_text(312e12)
    '312 Tflop/s'
    """
    return _scaled(flop_per_s, ((1e15, "Pflop/s"), (TERA, "Tflop/s"), (GB, "Gflop/s"), (1.0, "flop/s")))


def count_text(count: float) -> str:
    """Return a plain count with a decimal prefix.

    >>> count_text(7.6e9)
    '7.6 G'
    """
    return _scaled(count, ((1e15, "P"), (TERA, "T"), (GB, "G"), (MEGA, "M"), (KILO, "k"), (1.0, ""))).strip()
