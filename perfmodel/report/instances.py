"""Instances that share devices: rows, a document and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from perfmodel.report.notes import note_parts, rate
from perfmodel.step.instances import InstanceRow
from perfmodel.units import time_text

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["instances_document", "instances_rows", "instances_tables"]


def instances_rows(rows: Sequence[InstanceRow]) -> list[dict[str, Any]]:
    """Return one flat row for each number of instances, in base units."""
    names = [field.name for field in fields(InstanceRow) if field.name != "tree"]
    return [{name: getattr(row, name) for name in names} for row in rows]


def instances_document(
    rows: Sequence[InstanceRow],
    best: InstanceRow | None,
    *,
    head: dict[str, Any],
    assumed: Sequence[str],
    warnings: Sequence[str],
) -> dict[str, Any]:
    """Return the rows with what was asked and the number to choose (null: none fits within the limit)."""
    return head | {
        "best_n_instances": None if best is None else best.n_instances,
        "rows": instances_rows(rows),
        "assumed": list(assumed),
        "warnings": list(warnings),
    }


def instances_tables(
    rows: Sequence[InstanceRow],
    best: InstanceRow | None,
    *,
    title: str,
    items: str,
    assumed: Sequence[str],
    warnings: Sequence[str],
) -> Iterator[RenderableType]:
    """Yield the table, the number to choose, and the notes."""
    from rich.table import Table
    from rich.text import Text

    yield Text(title, style="bold")
    has_tokens = rows[0].ttft_s is not None
    table = Table(box=None, pad_edge=False)
    columns = ["n", "on one", "cycle", "bounds", *(("TTFT", "TPOT") if has_tokens else ()), "speed"]
    columns += [f"{items}/s", *(("1 batch",) if has_tokens else ()), "limit", "fits"]
    for column in columns:
        table.add_column(column, justify="left" if column in ("limit", "fits") else "right", no_wrap=True)
    for row in rows:
        cells = [str(row.n_instances), str(row.n_per_device), time_text(row.cycle_s)]
        cells.append(f"{time_text(row.best_cycle_s)} .. {time_text(row.worst_cycle_s)}")
        if row.ttft_s is not None and row.tpot_s is not None:
            cells += [time_text(row.ttft_s), time_text(row.tpot_s)]
        cells += [f"{100 * row.speed_frac:.3g} %", rate(row.items_per_s)]
        if has_tokens:
            cells.append("-" if row.one_batch_items_per_s is None else rate(row.one_batch_items_per_s))
        cells += [row.limit, "yes" if row.fits else "no"]
        table.add_row(*cells, style="bold" if row is best else "" if row.fits else "dim")
    yield table
    if best is None:
        yield Text("No number of instances fits within the limit.")
    else:
        yield Text(
            f"Best: {best.n_instances} instance{'s' if best.n_instances > 1 else ''}, "
            f"{rate(best.items_per_s)} {items}/s, each at {100 * best.speed_frac:.3g} % of the speed of one alone"
        )
    if has_tokens:
        yield Text(
            "1 batch: tokens/s of one instance a device that takes all these sequences in its batch", style="dim"
        )
    short = next((row for row in rows if not row.fits), None)
    notes = list(warnings)
    if short is not None:
        notes.append(f"{short.n_instances} instances do not fit: {short.needs}")
    yield from note_parts(assumed, notes)
