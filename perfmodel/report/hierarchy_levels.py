"""The levels of a device with their ridges by dtype, and the facts of its class of cores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.cost.hierarchy import tiles_of
from perfmodel.report.hierarchy import order_text
from perfmodel.specs.core import CoreClass
from perfmodel.specs.device import Device
from perfmodel.step.ceilings import ceilings_of, memories_of
from perfmodel.units import bandwidth_text, rate_text

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["core_tables", "ridge_rows", "ridge_tables"]


def ridge_rows(device: Device, core: CoreClass) -> list[dict[str, Any]]:
    """Return one row for each dtype of the matrix engine and level: peak, bandwidth, ridge, and what a tile reaches.

    `tile_flop_per_byte` is the intensity of a matmul's inner tiles at that level: operands of the dtype, asked of the
    L2 once a tile and of on-chip memory once for each reading of operands; main memory depends on the size.
    """
    tiling = core.tiling
    edges = {
        "l2": (tiling.tile_m.value, tiling.tile_n.value),
        "on_chip": (tiling.operand_m.value, tiling.operand_n.value),
    }
    rows = []
    for ceiling in ceilings_of(device, set()):
        element = _BITS.get(ceiling.dtype)
        for memory in memories_of(device):
            edge = edges.get(memory.level)
            reached = 16.0 * edge[0] * edge[1] / (element * (edge[0] + edge[1])) if edge and element else None
            rows.append(
                {
                    "dtype": ceiling.dtype,
                    "level": memory.level,
                    "memory": memory.name,
                    "flop_per_s": ceiling.flop_per_s,
                    "bytes_per_s": memory.bytes_per_s,
                    "ridge_flop_per_byte": ceiling.flop_per_s / memory.bytes_per_s,
                    "tile_flop_per_byte": reached,
                }
            )
    return rows


_BITS = {"fp64": 64, "fp32": 32, "tf32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "fp6": 6, "fp4": 4, "int4": 4}


def ridge_tables(device: Device, core: CoreClass, rows: Sequence[dict[str, Any]]) -> Iterator[RenderableType]:
    """Yield a line for each dtype with its ridge at each level, then tiles and order."""
    from rich.table import Table
    from rich.text import Text

    yield Text(f"{device.title}: intensity (flop/B) that each level asks for to reach the peak", style="bold")
    levels = list(dict.fromkeys((row["memory"], row["bytes_per_s"], row["level"]) for row in rows))
    table = Table(box=None, pad_edge=False)
    table.add_column("dtype", no_wrap=True)
    table.add_column("peak", justify="right", no_wrap=True)
    for name, rate, _ in levels:
        table.add_column(f"{name}\n{bandwidth_text(rate)}", justify="right", no_wrap=True)
    table.add_column("a tile reaches\nat the L2", justify="right", no_wrap=True)
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        own = [row for row in rows if row["dtype"] == dtype]
        at_l2 = next((row["tile_flop_per_byte"] for row in own if row["level"] == "l2"), None)
        ridges = (f"{row['ridge_flop_per_byte']:.4g}" for row in own)
        table.add_row(dtype, rate_text(own[0]["flop_per_s"]), *ridges, f"{at_l2:.4g}" if at_l2 else "-")
    yield table
    yield Text(f"{order_text(tiles_of(device, core))} ({core.name})", style="dim")
    yield Text(
        "A level's bandwidth is that of bytes: a narrower dtype raises the peak, never the bandwidth.", style="dim"
    )


def core_tables(core: CoreClass) -> Iterator[RenderableType]:
    """Yield every figure of a class of cores with its source."""
    from rich.table import Table
    from rich.text import Text

    families = ", ".join(core.families) or "none: used where no class is known"
    yield Text(f"{core.title} ({core.name}); families: {families}", style="bold")
    table = Table(box=None, pad_edge=False)
    for column in ("figure", "value", "source", "note"):
        table.add_column(column, overflow="fold")
    for name, value, source, note in _figures(core):
        table.add_row(name, value, core.sources.get(source, source), note)
    yield table
    for remark in core.notes:
        yield Text(f"Note: {remark}")


def _figures(core: CoreClass) -> Iterator[tuple[str, str, str, str]]:
    if core.issue_width is not None:
        width = core.issue_width
        yield "issue width", f"{width.value:g} a cycle", width.source, width.note
    for one in core.instructions:
        name = f"{one.op} {one.dtype}".strip()
        yield (
            f"{name}: latency",
            f"{one.latency_cycles.value:g} cycles",
            one.latency_cycles.source,
            one.latency_cycles.note,
        )
        if one.cycles_per_element is not None:
            rate = one.cycles_per_element
            yield f"{name}: an element", f"{rate.value:g} cycles", rate.source, rate.note
    if core.banks is not None:
        banks = core.banks
        text = f"{banks.n_banks.value:g} of {banks.bank_bytes.value:g} bytes"
        yield "banks", text, banks.n_banks.source, banks.what
    tiling = core.tiling
    counts = (
        ("tile, rows", tiling.tile_m), ("tile, columns", tiling.tile_n), ("operands, rows", tiling.operand_m),
        ("operands, columns", tiling.operand_n), ("query rows of attention", tiling.attention_rows),
    )  # fmt: skip
    for name, figure in counts:
        yield name, f"{figure.value:g}", figure.source, figure.note
    order = tiling.order
    way = f"{order.group_tiles or 'all'} {'columns' if order.axis == 'n' else 'rows'} kept"
    yield "order of tiles", way + (", zigzag" if order.zigzag else ""), order.source, order.note
    shares = (
        ("usable share of the L2", tiling.usable_l2_frac), ("L2 bandwidth of tiled kernels", tiling.tiled_l2_frac),
        ("L2 bandwidth of streams", tiling.stream_l2_frac),
    )  # fmt: skip
    for name, share in shares:
        yield name, f"{100 * share.value:g} %", share.source, share.note
