"""How many cores a kernel keeps busy, and what memory it needs besides its inputs and outputs.

A kernel is cut into units that each run on one core: output tiles of a matmul, tiles of query rows of prefill
attention, runs of cached tokens of decode attention, rows of an elementwise kernel. Units run in waves: the last one
may leave cores idle. Where there are fewer tiles than cores, a matmul cuts its contraction instead (split-K), and keeps
its partial sums in a workspace, as decode attention does with partial outputs.
Sources: wave quantisation as in NVIDIA's matrix multiplication guide; split-KV decoding as in FlashAttention.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from perfmodel.estimate import TINY, Num, ceiling, larger, smaller
from perfmodel.work.attention import PAD_ELEMENTS
from perfmodel.work.kernel import Work

__all__ = ["Cut", "Tile", "cut_of"]

_FP32_BYTES: Final = 4.0
_MOST_SPLITS: Final = 128.0
"""Partial results that one merge takes at most (FlashAttention's limit)."""


class Tile(NamedTuple):
    """What one core works on at a time: output rows and columns of a matmul, query rows of prefill attention."""

    n_rows: float
    n_columns: float
    n_attention_rows: float


class Cut(NamedTuple):
    """A kernel on `n_cores` cores: its units, the waves they take, the share of core time that they fill, workspace.

    A unit that is split over cores counts as its parts.
    """

    n_units: Num
    n_waves: Num
    core_frac: Num
    workspace_bytes: Num


def cut_of(work: Work, tile: Tile, n_cores: float, *, n_rows: Num) -> Cut:
    """Return how a kernel is cut; `n_rows` are the new tokens of the step, the rows of its elementwise kernels."""
    if work.engine == "vector":
        return _filled(n_rows, n_cores, 0.0)
    if work.unit_flop_per_row is not None:
        longest = work.unit_flop_per_row * (tile.n_attention_rows * n_cores)
        share = smaller(work.flop / (longest + TINY), 1.0)
        return Cut(share * n_cores, ceiling(work.flop / (longest + TINY)), share, 0.0)
    if work.bytes_per_pad is not None and work.depth is not None:
        return _decode_attention(work, n_cores, n_rows)
    if work.rows is not None and work.depth is not None:
        return _matmul(work, tile, n_cores)
    return _filled(n_cores, n_cores, 0.0)  # grouped experts and the like: taken to be spread evenly


def _filled(n_units: Num, n_cores: float, workspace_bytes: Num) -> Cut:
    n_units = larger(n_units, 1.0)
    n_waves = ceiling(n_units / n_cores)
    return Cut(n_units, n_waves, n_units / (n_waves * n_cores), workspace_bytes)


def _matmul(work: Work, tile: Tile, n_cores: float) -> Cut:
    assert work.rows is not None  # asked by the caller
    assert work.depth is not None
    columns = work.flop / (2.0 * work.rows * work.depth + TINY)
    tiles = larger(ceiling(work.rows / tile.n_rows) * ceiling(columns / tile.n_columns), 1.0)
    splits = larger(smaller(_floor(n_cores / tiles), ceiling(work.depth / tile.n_columns)), 1.0)
    partial = work.rows * columns * _FP32_BYTES * splits
    return _filled(tiles * splits, n_cores, partial * _is_above_one(splits))


def _decode_attention(work: Work, n_cores: float, n_rows: Num) -> Cut:
    """Return sequences and KV heads, each cut over runs of 128 tokens until the cores are full.

    A latent serves all heads of a sequence at once. Keys and values are taken to be equally wide: half of what queries
    and outputs move is output.
    """
    assert work.bytes_per_pad is not None  # asked by the caller
    assert work.depth is not None
    element = 2.0
    whole = n_rows if work.kernel.startswith("mla") else work.bytes_per_pad / (PAD_ELEMENTS * element)
    pairs = larger(whole, 1.0)
    runs = ceiling(2.0**work.depth - 1.0)
    splits = larger(smaller(smaller(_floor(n_cores / pairs), runs), _MOST_SPLITS), 1.0)
    output: Num = 0.0 if work.io_bytes is None else work.io_bytes * 0.5
    return _filled(pairs * splits, n_cores, output * (_FP32_BYTES / element) * splits * _is_above_one(splits))


def _floor(value: Num) -> Num:
    return -ceiling(-value)


def _is_above_one(splits: Num) -> Num:
    """Return 1 where something is split (splits are whole), else 0."""
    return smaller(splits - 1.0, 1.0)
