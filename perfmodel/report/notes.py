"""Assumptions and warnings as lines: what was taken from one source stands together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["assumption_lines", "count", "note_parts", "rate"]

_GROUPS = (
    (re.compile(r"(.*) \(default of (.+)\)"), "defaults of {1}"),
    (re.compile(r"(.*[^:]) from the profile of (.+)"), "from the profile of {1}"),
    (re.compile(r"(.*) \((not stated)\)"), "not stated"),
)


def count(number: float) -> str:
    """Return a whole number with its thousands parted, so that token counts can be read.

    >>> count(623200)
    '623,200'
    """
    return f"{number:,.0f}" if number == int(number) else f"{number:,.2f}"


def rate(number: float) -> str:
    """Return a rate with four digits, and never in powers of ten.

    >>> rate(15907.2), rate(85.244)
    ('15,907', '85.24')
    """
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"


def assumption_lines(assumed: Sequence[str]) -> list[str]:
    """Return the assumptions with those of one kind on one line. Lines made by this function stay as they are.

    >>> assumption_lines(["a 1 (default of e)", "runtime e", "b 2 (default of e)"])
    ['defaults of e: a 1, b 2', 'runtime e']
    >>> assumption_lines(["l4: from the profile of e: activation peak"])
    ['l4: from the profile of e: activation peak']
    """
    lines: dict[str, list[str]] = {}
    for text in assumed:
        for pattern, title in _GROUPS:
            if match := pattern.fullmatch(text):
                lines.setdefault(title.replace("{1}", match[2]), []).append(match[1])
                break
        else:
            lines.setdefault(text, [])
    return [f"{title}: {', '.join(parts)}" if parts else title for title, parts in lines.items()]


def note_parts(assumed: Sequence[str], warnings: Sequence[str]) -> Iterator[RenderableType]:
    """Yield the assumptions as a list, then the warnings."""
    from rich.padding import Padding
    from rich.text import Text

    if assumed:
        yield Text("Assumed", style="dim")
    for line in assumption_lines(assumed):
        yield Padding(Text(f"- {line}", style="dim"), (0, 0, 0, 2), expand=False)
    for warning in warnings:
        yield Text(f"Note: {warning}", style="yellow")
