"""Where a condition turns from true to false, found by halving: the one home of questions asked backwards."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

__all__ = ["first_true", "last_true", "turn"]


def last_true(holds: Callable[[int], bool], low: int, high: int) -> int | None:
    """Return the largest whole number in [low, high] for which `holds` is true; None where it fails at `low`.

    `holds` must be true up to some number and false beyond.

    >>> last_true(lambda n: n * n <= 50, 0, 100)
    7
    """
    if low > high or not holds(low):
        return None
    if holds(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def first_true(holds: Callable[[int], bool], low: int, high: int) -> int | None:
    """Return the smallest whole number in [low, high] for which `holds` is true; None where it fails at `high`.

    >>> first_true(lambda n: n * n > 50, 0, 100)
    8
    """
    last_false = last_true(lambda n: not holds(n), low, high)
    if last_false is None:
        return low if low <= high else None
    return last_false + 1 if last_false < high else None


def turn(
    holds: Callable[[float], bool], low: float, high: float, *, rel_width: float, in_log: bool = False
) -> tuple[float, float]:
    """Return (last, first): numbers that close around the place in [low, high] where `holds` turns false.

    `holds` is taken to be true at `low` and false at `high`, which are not asked; both are above zero. The two returned
    differ by at most `rel_width` of the larger. `in_log` halves the ratio, for ends that are powers apart.

    >>> last, first = turn(lambda x: x * x < 2.0, 1.0, 100.0, rel_width=1e-9)
    >>> round(last, 6), round(first, 6)
    (1.414214, 1.414214)
    """
    while high - low > rel_width * high:
        middle = sqrt(low * high) if in_log else 0.5 * (low + high)
        if not low < middle < high:  # neighbours among floating-point numbers
            break
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high
