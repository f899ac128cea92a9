"""The all-reduce behind attention cut into groups: rows, a document, a table and a picture of the choice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.report.notes import note_parts
from perfmodel.step.head_groups import GroupingRow, best_grouping
from perfmodel.units import bandwidth_text, bytes_text, time_text

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["grouping_document", "grouping_rows_flat", "grouping_tables"]

_KEYS = (
    "n_groups",
    "message_bytes",
    "padded_bytes",
    "n_messages",
    "message_s",
    "compute_s",
    "layer_s",
    "exposed_s",
    "step_s",
    "exposed_frac",
    "bus_bytes_per_s",
)


def grouping_rows_flat(rows: Sequence[GroupingRow]) -> list[dict[str, Any]]:
    """Return one flat row for each number of groups, in base units."""
    return [{key: getattr(row, key) for key in _KEYS} for row in rows]


def grouping_document(
    rows: Sequence[GroupingRow], *, head: dict[str, Any], assumed: Sequence[str], warnings: Sequence[str]
) -> dict[str, Any]:
    """Return the rows with what was asked and the number of groups to choose."""
    return head | {
        "best_n_groups": best_grouping(rows).n_groups,
        "rows": grouping_rows_flat(rows),
        "assumed": list(assumed),
        "warnings": list(warnings),
    }


def grouping_tables(
    rows: Sequence[GroupingRow], *, title: str, assumed: Sequence[str], warnings: Sequence[str]
) -> Iterator[RenderableType]:
    """Yield the table, the choice, what the columns mean, and the notes."""
    from rich.table import Table
    from rich.text import Text

    best = best_grouping(rows)
    yield Text(title, style="bold")
    table = Table(box=None, pad_edge=False)
    for column in ("groups", "message", "padded", "messages", "each", "bus", "compute", "exposed", "step", "share"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row.n_groups),
            bytes_text(row.message_bytes),
            f"+{100 * (row.padded_bytes / row.message_bytes - 1):.2g} %",
            f"{row.n_messages:,}",
            time_text(row.message_s),
            bandwidth_text(row.bus_bytes_per_s),
            time_text(row.compute_s),
            time_text(row.exposed_s),
            time_text(row.step_s),
            f"{100 * row.exposed_frac:.3g} %",
            style="bold" if row is best else "",
        )
    yield table
    gain = rows[0].step_s / best.step_s - 1
    yield Text(
        f"Best: {best.n_groups} group{'s' if best.n_groups > 1 else ''}, a step of {time_text(best.step_s)}"
        + (f", {100 * gain:.2g} % faster than {rows[0].n_groups}" if best is not rows[0] else "")
    )
    yield Text(
        "messages: of a step. each, compute: one message, and the projection behind it. exposed: of the messages of a "
        "layer, what computing does not hide. share: of the step, what would go without any message.",
        style="dim",
    )
    yield from note_parts(assumed, warnings)
