"""A plain table for a terminal: a title, headers, rows of text; numbers stand at the right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["plain_grid"]


def plain_grid(headers: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "", n_left: int = 1) -> Table:
    """Return a table whose first `n_left` columns are words and the others numbers."""
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, title_style="bold")
    for i, header in enumerate(headers):
        table.add_column(header, justify="left" if i < n_left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
