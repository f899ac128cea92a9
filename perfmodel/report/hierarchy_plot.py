"""Curves of a memory hierarchy: square matmuls by size and order, and streams by working set, cold and warm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from perfmodel.cost.hierarchy import Hierarchy
from perfmodel.report.style import BLUE, GREEN, GREY, INK, ORANGE, canvas, plain
from perfmodel.units import MIB, bandwidth_text, bytes_text
from perfmodel.work.kernel import Work
from perfmodel.work.traffic import MatmulShape

__all__ = ["curve_figure", "curve_rows"]

_SIZES: Final = np.unique(np.round(np.geomspace(256, 32768, 141) / 64) * 64)
_STREAMS: Final = np.geomspace(1, 4096, 145) * MIB
_COLOUR: Final = {"rows": ORANGE, "usual": BLUE, "cold": BLUE, "warm": GREEN}


def curve_rows(model: Hierarchy, *, dtype: str, kernel: str, element_bytes: float) -> list[dict[str, Any]]:
    """Return the points: square matmuls row after row and in the usual order (warm), streams cold and warm."""
    shape = MatmulShape(_SIZES, _SIZES, _SIZES, a_bytes=element_bytes, b_bytes=element_bytes)
    rows: list[dict[str, Any]] = []
    by_row = model.with_tiles(replace(model.tiles, axis="n", group_tiles=0, zigzag=False))
    for order, ordered in (("rows", by_row), ("usual", model)):
        found = ordered.matmul(shape, dtype=dtype, kernel=kernel, is_warm=True)
        columns = (_SIZES, found.hit_frac, found.dram_use_frac, found.time.value)
        rows += [
            {"kind": "matmul", "order": order, "n": n, "l2_hit_frac": hit, "dram_use_frac": use, "time_s": time}
            for n, hit, use, time in zip(*(np.asarray(column).tolist() for column in columns), strict=True)
        ]
    for state in ("cold", "warm"):
        work = Work("stream", "attention/decode", dtype, kv_bytes=_STREAMS)
        time_s = np.asarray(model.stream(work, is_warm=state == "warm").time.value)
        rows += [
            {"kind": "stream", "state": state, "bytes": size, "time_s": time, "bytes_per_s": size / time}
            for size, time in zip(_STREAMS.tolist(), time_s.tolist(), strict=True)
        ]
    return rows


def curve_figure(model: Hierarchy, rows: Sequence[dict[str, Any]]) -> Figure:
    """Return the picture: hit rate and use of main memory over the size, stream rate over the working set."""
    figure = canvas(12.5, 4.6)
    matmuls, streams = figure.subplots(1, 2)
    _draw_matmuls(matmuls, model, rows)
    _draw_streams(streams, model, rows)
    figure.suptitle(
        f"{model.prices.device.device.title}: {bytes_text(model.tiles.cache_bytes)} of the L2 count",
        fontsize=12, fontweight="bold", color=INK, x=0.01, ha="left",
    )  # fmt: skip
    return figure


def _draw_matmuls(axes: Axes, model: Hierarchy, rows: Sequence[dict[str, Any]]) -> None:
    usual = f"groups of {model.tiles.group_tiles}" if model.tiles.group_tiles else "usual order"
    words = {"rows": "row after row", "usual": usual}
    for order, label in words.items():
        own = [row for row in rows if row.get("order") == order]
        n = [row["n"] for row in own]
        axes.plot(n, [100 * row["l2_hit_frac"] for row in own], color=_COLOUR[order], lw=2.0, label=f"L2 hits, {label}")
        axes.plot(
            n, [100 * row["dram_use_frac"] for row in own], color=_COLOUR[order], lw=1.4, ls="--",
            label=f"main memory in use, {label}",
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, 104)
    axes.set_xlabel("n of a matmul of n x n x n, replayed", color=INK)
    axes.set_ylabel("per cent", color=INK)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    fits = (model.tiles.cache_bytes / 6.0) ** 0.5
    if fits > _SIZES[0]:
        axes.axvline(fits, color=GREY, lw=0.9, ls=":")
        axes.text(fits * 0.97, 62, "16-bit: L2 full", rotation=90, fontsize=8, color=GREY, va="bottom", ha="right")
    _finish(axes)


def _draw_streams(axes: Axes, model: Hierarchy, rows: Sequence[dict[str, Any]]) -> None:
    for state in ("cold", "warm"):
        own = [row for row in rows if row.get("state") == state]
        axes.plot(
            [row["bytes"] / MIB for row in own], [row["bytes_per_s"] for row in own], color=_COLOUR[state], lw=2.0,
            label=state if state == "cold" else "warm: read just before",
        )  # fmt: skip
    nominal = model.prices.device.device.dram_bytes_per_s
    axes.axhline(nominal, color=INK, lw=1.0, ls="--")
    axes.text(4096, nominal * 1.03, f"main memory {bandwidth_text(nominal)}", fontsize=8, color=INK, ha="right")
    if 0 < model.tiles.cache_bytes < _STREAMS[-1]:
        axes.axvline(model.tiles.cache_bytes / MIB, color=GREY, lw=0.9, ls=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("bytes read once, launch included, MiB", color=INK)
    axes.set_ylabel("rate", color=INK)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.yaxis.set_major_locator(LogLocator(10.0, subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: bandwidth_text(y)))
    _finish(axes)


def _finish(axes: Axes) -> None:
    plain(axes)
    axes.legend(frameon=False, fontsize=8.5, loc="best")
