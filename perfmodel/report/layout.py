"""How layouts use cache lines and banks, as rows and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.cost.layout import BlockRead
from perfmodel.units import bandwidth_text, bytes_text

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["layout_row", "layout_tables"]


def layout_row(
    name: str, block: BlockRead, *, bandwidth_bytes_per_s: float | None, passes: int | None
) -> dict[str, Any]:
    """Return one layout as a row in base units; `passes` are those of as many lanes as there are banks."""
    alone, shared = block.use_frac, block.shared_use_frac
    return {
        "read": name,
        "layout": f"[{','.join(block.layout)}]",
        "run_bytes": block.run_bytes,
        "n_runs": block.n_runs,
        "stride_bytes": block.stride_bytes,
        "useful_bytes": block.useful_bytes,
        "line_bytes": block.line_bytes,
        "n_lines": block.lines,
        "n_distinct_lines": block.distinct_lines,
        "line_use_frac": alone,
        "shared_line_use_frac": shared,
        "effective_bytes_per_s": None if bandwidth_bytes_per_s is None else alone * bandwidth_bytes_per_s,
        "shared_effective_bytes_per_s": None if bandwidth_bytes_per_s is None else shared * bandwidth_bytes_per_s,
        "bank_passes": passes,
    }


def layout_tables(rows: Sequence[Mapping[str, Any]], *, notes: Sequence[str]) -> Iterator[RenderableType]:
    """Yield a line for each layout and what is read of it, and how it was counted."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    has_rate = any(row["effective_bytes_per_s"] is not None for row in rows)
    has_banks = any(row["bank_passes"] is not None for row in rows)
    columns = ["read", "layout", "run", "runs", "stride", "line use", "kept"]
    columns += ["reaches"] * has_rate + ["passes"] * has_banks
    for column in columns:
        is_text = column in ("read", "layout")
        table.add_column(column, justify="left" if is_text else "right", no_wrap=column != "read")
    for row in rows:
        cells = [
            row["read"],
            row["layout"].replace("[", "\\["),
            bytes_text(row["run_bytes"]),
            f"{row['n_runs']:,}",
            bytes_text(row["stride_bytes"]),
            f"{100 * row['line_use_frac']:.1f} %",
            f"{100 * row['shared_line_use_frac']:.1f} %",
        ]
        if has_rate:
            cells.append(bandwidth_text(row["effective_bytes_per_s"]))
        if has_banks:
            cells.append(str(row["bank_passes"]))
        table.add_row(*cells)
    yield table
    for note in notes:
        yield Text(note, style="dim")
