"""Kernels through the memory hierarchy, and the model against measured hit rates and times, as rows and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.cost.hierarchy import Prediction, StatedPair
from perfmodel.estimate import bound_shares
from perfmodel.units import bandwidth_text, bytes_text, rate_text, time_text
from perfmodel.validate.hierarchy import HitRate, StateError
from perfmodel.work.traffic import Tiles

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = [
    "hit_rate_rows",
    "order_text",
    "pair_document",
    "pair_text",
    "prediction_document",
    "prediction_tables",
    "state_rows",
    "validation_tables",
]

_LEVELS = {"dram": "main memory", "l2": "L2"}


def prediction_document(found: Prediction, *, useful_bytes: float | None = None) -> dict[str, Any]:
    """Return a prediction with stable keys in base units."""
    traffic = found.traffic
    shares = {bound.value: float(share) for bound, share in bound_shares(found.time).items() if float(share) > 0}
    return {
        "kernel": found.name,
        "time_s": float(found.time.value),
        "flop": float(found.flop),
        "flop_per_s": float(found.flop / found.time.value),
        "l2_hit_frac": float(found.hit_frac),
        "l2_read_hit_frac": float(traffic.read_hit_frac),
        "dram_use_frac": float(found.dram_use_frac),
        "dram_read_bytes": float(traffic.dram_read_bytes),
        "dram_write_bytes": float(traffic.dram_write_bytes),
        "l2_read_bytes": float(traffic.read_bytes),
        "l2_write_bytes": float(traffic.write_bytes),
        "useful_bytes": useful_bytes,
        "bound": max(shares, key=lambda name: shares[name]),
        "bound_shares": shares,
        "levels": [
            {
                "level": level.level,
                "bytes": float(level.n_bytes),
                "intensity_flop_per_byte": float(level.intensity_flop_per_byte),
                "bytes_per_s": level.bytes_per_s,
                "use_frac": float(level.use_frac),
            }
            for level in found.levels
        ],
    }


def order_text(tiles: Tiles) -> str:
    """Return how tiles are ordered, in words."""
    size = f"tiles of {tiles.tile_m} x {tiles.tile_n} on {tiles.n_cores} cores"
    if not tiles.group_tiles:
        way = "row after row" if tiles.axis == "n" else "column after column"
    else:
        way = f"groups of {tiles.group_tiles} {'columns' if tiles.axis == 'n' else 'rows'}"
    return f"{size}, {way}{', zigzag' if tiles.zigzag else ''}; {bytes_text(tiles.cache_bytes)} of the L2 count"


def prediction_tables(found: Prediction, *, title: str, notes: Sequence[str]) -> Iterator[RenderableType]:
    """Yield what was priced, its time, hit rate and use of main memory, then a line for each level."""
    from rich.table import Table
    from rich.text import Text

    yield Text(title, style="bold")
    document = prediction_document(found)
    rate = f", {rate_text(document['flop_per_s'])}" if document["flop"] > 0 else ""
    yield Text(f"{time_text(document['time_s'])}{rate}; most of it {document['bound']}")
    yield Text(
        f"L2 hit rate {100 * document['l2_hit_frac']:.1f} %, main memory {100 * document['dram_use_frac']:.1f} % in use"
    )
    table = Table(box=None, pad_edge=False)
    for column in ("level", "bytes", "intensity", "nominal", "in use"):
        table.add_column(column, justify="left" if column == "level" else "right", no_wrap=True)
    for level in document["levels"]:
        table.add_row(
            _LEVELS[level["level"]],
            bytes_text(level["bytes"]),
            f"{level['intensity_flop_per_byte']:.4g} flop/B" if document["flop"] > 0 else "-",
            bandwidth_text(level["bytes_per_s"]),
            f"{100 * level['use_frac']:.1f} %",
        )
    yield table
    for note in notes:
        yield Text(note, style="dim")


def pair_document(pair: StatedPair, found: Prediction) -> dict[str, float]:
    """Return what a stated pair of use and hit rate means, beside what is predicted."""
    return {
        "implied_dram_bytes": float(pair.dram_bytes),
        "implied_time_s": float(pair.time_s),
        "implied_flop_per_s": float(pair.flop_per_s),
        "implied_n_moves": float(pair.n_moves),
        "least_use_frac": float(pair.least_use_frac),
        "predicted_dram_use_frac": float(found.dram_use_frac),
        "predicted_l2_hit_frac": float(found.hit_frac),
    }


def pair_text(document: dict[str, float], *, fits: bool) -> list[str]:
    """Return the same as lines."""
    room = "the working set fits into the L2" if fits else "the working set does not fit into the L2"
    moved, time, rate = (document[f"implied_{name}"] for name in ("dram_bytes", "time_s", "flop_per_s"))
    implied = f"{bytes_text(moved)} from main memory in {time_text(time)}, {rate_text(rate)}"
    often = f"each byte that has to move would move {document['implied_n_moves']:.3g} times, while {room}"
    least = f"{100 * document['least_use_frac']:.1f} %"
    return [
        f"Stated together they mean {implied}: {often}.",
        f"Moved once in the predicted time, they would use {least} of main memory.",
    ]


def hit_rate_rows(rates: Sequence[HitRate]) -> list[dict[str, Any]]:
    """Return measured and predicted hit rates as rows."""
    return [
        {
            "id": rate.row_id,
            "device": rate.device,
            "shape": rate.shape,
            "order": rate.order,
            "measured_frac": rate.measured_frac,
            "predicted_frac": rate.predicted_frac,
            "difference_frac": rate.difference_frac,
        }
        for rate in rates
    ]


def state_rows(errors: Sequence[StateError]) -> list[dict[str, Any]]:
    """Return errors by device, kernel class and state as rows."""
    return [
        {
            "device": one.device,
            "kernel": one.kernel,
            "state": one.state,
            "n_rows": one.n_rows,
            "median_error_frac": one.median_error_frac,
            "p90_error_frac": one.p90_error_frac,
            "bias_frac": one.bias_frac,
            "median_without_l2_frac": one.median_without_l2_frac,
            "p90_without_l2_frac": one.p90_without_l2_frac,
        }
        for one in errors
    ]


def validation_tables(rates: Sequence[HitRate], errors: Sequence[StateError]) -> Iterator[RenderableType]:
    """Yield the hit rates, then the errors of times of cold and resident operands."""
    from rich.table import Table
    from rich.text import Text

    if rates:
        yield Text("L2 hit rates of matmuls", style="bold")
        table = Table(box=None, pad_edge=False)
        for column in ("device", "shape", "order", "measured", "predicted"):
            table.add_column(column, justify="right" if column in ("measured", "predicted") else "left", no_wrap=True)
        for rate in rates:
            shares = (f"{100 * share:.1f} %" for share in (rate.measured_frac, rate.predicted_frac))
            table.add_row(rate.device, rate.shape, rate.order, *shares)
        yield table
    if errors:
        yield Text("Times: |predicted / measured - 1|", style="bold")
        table = Table(box=None, pad_edge=False)
        columns = ("device", "kernel", "operands", "rows", "median", "p90", "bias", "without L2", "p90 without")
        for column in columns:
            table.add_column(
                column, justify="left" if column in ("device", "kernel", "operands") else "right", no_wrap=True
            )
        for one in errors:
            table.add_row(
                one.device,
                one.kernel,
                one.state,
                str(one.n_rows),
                f"{100 * one.median_error_frac:.1f} %",
                f"{100 * one.p90_error_frac:.1f} %",
                f"{100 * one.bias_frac:+.1f} %",
                f"{100 * one.median_without_l2_frac:.1f} %",
                f"{100 * one.p90_without_l2_frac:.1f} %",
            )
        yield table
        yield Text("without L2: the calibrated law for which every byte comes from main memory", style="dim")
