"""A stated figure: number with unit as printed, in base units, with the resolution that the printing allows."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from perfmodel.errors import UnitError
from perfmodel.units import bandwidth_text, bytes_text, quantity, rate_text, time_text

__all__ = ["Printed", "dimension_of", "figure_label", "figure_text", "printed"]

_DIMENSIONS: Final = (
    ("_bytes_per_s", "bytes_per_s"),
    ("_tokens_per_s", ""),
    ("_requests_per_s", ""),
    ("_flop_per_s", "flop_per_s"),
    ("_bytes", "bytes"),
    ("_hz", "hertz"),
    ("_frac", "frac"),
    ("_s", "seconds"),
)
_NUMBER: Final = re.compile(r"^\s*([+-]?)(\d[\d_]*)(?:\.(\d*))?(?:[eE]([+-]?\d+))?\s*(.*)$")


class Printed(NamedTuple):
    """A figure in base units; `resolution` is one unit of its last printed digit."""

    value: float
    resolution: float


def dimension_of(name: str) -> str:
    """Return the dimension that the end of a figure's name stands for; "" is a plain number.

    >>> dimension_of("ttft_s"), dimension_of("output_tokens_per_s"), dimension_of("memory_bytes")
    ('seconds', '', 'bytes')
    """
    return next((dimension for end, dimension in _DIMENSIONS if f"_{name}".endswith(end)), "")


def printed(name: str, raw: float | str) -> Printed:
    """Return a figure as its name and printing say; raises UnitError where the two disagree.

    A change may be below zero: its name ends in `_change_frac`. A whole number whose name starts with `n_` is a count,
    and exact.

    >>> printed("ttft_s", "127 ms")
    Printed(value=0.127, resolution=0.001)
    >>> printed("gain_frac", 0.57)
    Printed(value=0.57, resolution=0.01)
    """
    match = _NUMBER.match(str(raw)) if not isinstance(raw, bool) else None
    if match is None:
        raise UnitError(f"{name}: {raw!r} is no number", expected="a number, or a number with its unit")
    sign, whole, decimals, exponent, unit = match.groups()
    dimension = dimension_of(name)
    if sign == "-" and not name.endswith("_change_frac"):
        raise UnitError(f"{name}: {raw!r} is below zero", expected="a number >= 0, or a name that ends in _change_frac")
    digits = f"{whole}.{decimals or '0'}e{exponent or 0}"
    last = f"1e{int(exponent or 0) - len(decimals or '')}"
    if not dimension:
        if unit:
            raise UnitError(f"{name}: {unit!r} is a unit, and the name allows none", expected="a plain number")
        is_count = name.startswith("n_") and not decimals and not exponent
        size, step = quantity(float(digits), "frac"), 0.0 if is_count else float(last)
    else:
        try:
            size, step = (quantity(f"{text} {unit}" if unit else text, dimension) for text in (digits, last))
        except UnitError as error:
            usual = error.faults[0].expected if error.faults else dimension
            raise UnitError(f"{name}: {raw!r} is no figure in {dimension.replace('_', ' ')}", expected=usual) from error
    return Printed(-size if sign == "-" else size, step)


def figure_text(name: str, value: float) -> str:
    """Return a figure as a reader wants it.

    >>> figure_text("ttft_s", 0.127), figure_text("gain_frac", 0.57), figure_text("memory_bytes", 12.3e9)
    ('127 ms', '57 %', '12.3 GB')
    """
    match dimension_of(name):
        case "seconds":
            return time_text(value)
        case "bytes":
            return f"{value / 1e9:.4g} GB" if value >= 1e9 else bytes_text(value)
        case "bytes_per_s":
            return bandwidth_text(value)
        case "flop_per_s":
            return rate_text(value)
        case "frac":
            return f"{100 * value:.4g} %"
        case "hertz":
            return f"{value / 1e9:.4g} GHz"
        case _:
            return f"{value:,.0f}" if 1e3 <= abs(value) < 1e9 else f"{value:.4g}"


def figure_label(name: str) -> str:
    """Return the name of a figure without its unit, as words.

    >>> figure_label("theory_bytes_per_s"), figure_label("output_tokens_per_s"), figure_label("n_heads")
    ('theory', 'output tokens/s', 'heads')
    """
    end = next((end for end, dimension in _DIMENSIONS if dimension and f"_{name}".endswith(end)), "")
    if dimension_of(name) and f"_{name}" != end:
        name = name.removesuffix(end)
    return name.removeprefix("n_").replace("_per_s", "/s").replace("_", " ")
