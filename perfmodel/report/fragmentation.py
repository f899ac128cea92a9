"""Allocators side by side: rows, a document and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.report.notes import note_parts
from perfmodel.serving.pool_study import PoolRow
from perfmodel.units import bytes_text, time_text

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["pool_document", "pool_rows_flat", "pool_tables"]

_RUN = (
    "n_sequences",
    "n_allocations",
    "n_refused",
    "n_refused_stranded",
    "n_preempted",
    "mean_live_sequences",
    "useful_frac",
    "internal_frac",
    "external_frac",
    "waste_of_held_frac",
    "stranded_frac",
    "copied_bytes",
    "n_device_calls",
    "peak_reserved_bytes",
    "was_full",
)


def pool_rows_flat(rows: Sequence[PoolRow]) -> list[dict[str, Any]]:
    """Return one flat row for each allocator, in base units and shares."""
    return [
        {
            "allocator": row.policy,
            "closed_internal_frac": row.closed_frac,
            "closed_is_exact": row.is_exact,
            "padded_read_frac": row.padded_read_frac,
            "line_read_frac": row.line_read_frac,
            "copied_bytes_per_sequence": row.copied_bytes_per_sequence,
            "copy_s_per_sequence": row.copy_s_per_sequence,
        }
        | {key: getattr(row.run, key) for key in _RUN}
        for row in rows
    ]


def pool_document(rows: Sequence[PoolRow], *, head: dict[str, Any], assumed: Sequence[str]) -> dict[str, Any]:
    """Return the rows with what was asked."""
    return head | {"rows": pool_rows_flat(rows), "assumed": list(assumed)}


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.4g} %" if share >= 0.0001 else f"{100 * share:.1g} %"


def pool_tables(rows: Sequence[PoolRow], *, title: str, assumed: Sequence[str]) -> Iterator[RenderableType]:
    """Yield the table, what its columns mean, and the notes."""
    from rich.table import Table
    from rich.text import Text

    yield Text(title, style="bold")
    table = Table(box=None, pad_edge=False)
    for column in ("allocator", "waste", "simulated", "useful", "inside", "outside", "live", "stranded", "lines"):
        table.add_column(column, justify="left" if column == "allocator" else "right", no_wrap=True)
    table.add_column("padded", justify="right", no_wrap=True)
    table.add_column("copied", justify="right", no_wrap=True)
    for row in rows:
        run = row.run
        copied = bytes_text(row.copied_bytes_per_sequence) if row.copied_bytes_per_sequence else "-"
        if row.copy_s_per_sequence:
            copied = time_text(row.copy_s_per_sequence)
        table.add_row(
            row.policy,
            ("" if row.is_exact else ">= ") + _percent(row.closed_frac),
            _percent(run.waste_of_held_frac),
            _percent(run.useful_frac),
            _percent(run.internal_frac),
            _percent(run.external_frac),
            f"{run.mean_live_sequences:.4g}",
            _percent(run.n_refused_stranded / run.n_refused if run.n_refused else 0.0),
            _percent(row.line_read_frac),
            _percent(row.padded_read_frac),
            copied,
        )
    yield table
    yield Text(
        "waste: of what sequences hold, in closed form, and simulated. useful + inside + outside: shares of the pool "
        "while sequences wait. live: sequences in it. stranded: refusals though enough was free in sum. lines, padded: "
        "useful share of what a read moves, by lengths or over all that is held. copied: a sequence, while it grows.",
        style="dim",
    )
    notes = [] if all(row.run.was_full for row in rows) else ["the pool never filled: nothing waited"]
    yield from note_parts(assumed, notes)
