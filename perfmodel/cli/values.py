"""Texts of flags as values. Every command answers a bad one alike: which flag, got, expected.

A flag of its own is read here by the command; the shared ones of `flags.py` are read together by `read_values`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perfmodel.errors import Fault, SpecError, UnitError
from perfmodel.units import quantity

if TYPE_CHECKING:
    from perfmodel.specs.launch.flags import Kind

__all__ = ["byte_count", "choice", "given", "number", "numbers", "seconds", "whole", "whole_number", "wholes", "words"]


def _unusable(spelling: str, text: str, expected: str) -> SpecError:
    return SpecError("a flag cannot be used", where=spelling, got=repr(text[:80]), expected=expected)


def words(text: str | None) -> tuple[str, ...]:
    """Return the different names of a list parted by commas, none where the flag was not given.

    >>> words("fp8, int8,fp8"), words(None)
    (('fp8', 'int8'), ())
    """
    return () if text is None else tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def choice(spelling: str, text: str, known: Collection[str]) -> str:
    """Return the text where it is one of the known words; raises SpecError."""
    if text not in known:
        expected = " or ".join(known) if len(known) < 3 else f"one of {', '.join(known)}"
        raise _unusable(spelling, text, expected)
    return text


def whole(spelling: str, text: str | None, *, kind: Kind = "tokens") -> int | None:
    """Return a whole number (32k where `kind` is tokens), None where it was not given; raises SpecError."""
    from perfmodel.specs.launch.values import read

    if text is None:
        return None
    value: Any = read("input_tokens", kind, text)
    if isinstance(value, Fault):
        raise SpecError("a flag cannot be used", faults=[replace(value, where=spelling)])
    return int(value)


def number(spelling: str, text: str, *, low: float, high: float) -> float:
    """Return a number from low to high; raises SpecError.

    >>> number("--swing", "0.5", low=0.0, high=1.0)
    0.5
    """
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise _unusable(spelling, text, f"a number from {low:g} to {high:g}")
    return value


def whole_number(spelling: str, text: str, *, low: int, high: int) -> int:
    """Return a whole number from low to high; raises SpecError, also for a fraction, which no cut would mend.

    >>> whole_number("--months", "12", low=1, high=60), whole_number("--accesses", "1e6", low=1, high=10**9)
    (12, 1000000)
    """
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not (low <= value <= high and value.is_integer()):
        raise _unusable(spelling, text, f"a whole number from {low} to {high}")
    return int(value)


def given(spelling: str, text: str | None, *, low: float, high: float) -> float | None:
    """Return a number from low to high, None where it was not given; raises SpecError."""
    return None if text is None else number(spelling, text, low=low, high=high)


def numbers(spelling: str, text: str | None, *, low: float, high: float) -> list[float]:
    """Return numbers parted by commas, none where the flag is not given or empty; raises SpecError."""
    return [number(spelling, part.strip(), low=low, high=high) for part in text.split(",")] if text else []


def wholes(spelling: str, text: str, *, high: int) -> tuple[int, ...]:
    """Return the different whole numbers from 1 to high of a list parted by commas; raises SpecError.

    >>> wholes("--batches", "1,8,8", high=64)
    (1, 8)
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= high for part in parts):
        raise _unusable(spelling, text, f"whole numbers from 1 to {high}, parted by commas")
    return tuple(dict.fromkeys(int(part) for part in parts))


def seconds(spelling: str, text: str | None) -> float | None:
    """Return a time with its unit (2s, 50ms), None where it was not given; raises SpecError."""
    if text is None:
        return None
    try:
        value = quantity(text, "seconds")
        is_bare = text.strip().replace(".", "").isdigit()
    except UnitError:
        value, is_bare = 0.0, True
    if is_bare or value <= 0:
        raise _unusable(spelling, text, "a time with its unit, such as 2s or 50ms")
    return value


def byte_count(spelling: str, text: str) -> float:
    """Return bytes (96MiB); raises SpecError."""
    try:
        return quantity(text, "bytes")
    except UnitError as error:
        raise _unusable(spelling, text, "bytes such as 96MiB") from error
