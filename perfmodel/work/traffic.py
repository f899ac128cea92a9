"""Bytes through a cache: what a tiled matmul, a stream or a gather asks of it, and what main memory has to give.

A tiled matmul. Each core makes one output tile at a time from a panel of rows of A and a panel of columns of B. The
cores of a wave run in step, so that each panel comes to the cache once a wave. Columns are kept in groups while the
tiles advance over the rows (or the other way round); with g panels kept, c of them in a wave, r the panels that
advance in a wave, and "stays" where the bytes used in between fit the cache (LRU stack distance, Mattson 1970):

    a panel that advances is fetched  1 + (groups - 1) (1 - kept over a turn) + groups (g / c - 1) [wave lost] times
    a panel that is kept is fetched   1 + (waves down the rows - 1) [group lost] times
    the cache is asked for            A once a column of tiles, B once a row of tiles, the output once

In zigzag order the rows used last come first in the next group: the share of them that fits beside two groups is kept.
The output is new: it misses and is written to memory. One core and no cache: every byte that is asked for is fetched.
Bytes of memory grow with the contraction; with rows or columns they may fall by a step where a wave gets another shape.

A gather asks for units at random, unit i with probability q_i. An LRU cache of C units keeps what was asked for within
its characteristic time T, the accesses in which C different ones are asked for: sum of 1 - exp(-q_i T) = C (Che 2002).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.estimate import TINY, Num, above, ceiling, larger, smaller

__all__ = ["MatmulShape", "Tiles", "Traffic", "gather_traffic", "matmul_traffic", "stream_traffic"]

_N_CLASSES: Final = 256
"""Classes of equally popular units; the hit rate changes by less than 1e-3 with twice as many."""
_N_HALVINGS: Final = 100


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes asked of the cache, and bytes that main memory reads and writes for them."""

    read_bytes: Num
    write_bytes: Num
    dram_read_bytes: Num
    dram_write_bytes: Num

    @property
    def l2_bytes(self) -> Num:
        """All bytes asked of the cache."""
        return self.read_bytes + self.write_bytes

    @property
    def dram_bytes(self) -> Num:
        """All bytes that main memory moves."""
        return self.dram_read_bytes + self.dram_write_bytes

    @property
    def hit_frac(self) -> Num:
        """Share of the bytes asked of the cache, reads and writes, that it has."""
        return 1.0 - self.dram_bytes / (self.l2_bytes + TINY)

    @property
    def read_hit_frac(self) -> Num:
        """Share of the bytes read that the cache has."""
        return 1.0 - self.dram_read_bytes / (self.read_bytes + TINY)


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a device cuts a matmul: tile of a core, order of tiles, cores, and the bytes of cache that it may fill."""

    tile_m: int
    tile_n: int
    n_cores: int
    cache_bytes: float
    axis: Literal["m", "n"] = "n"
    group_tiles: int = 0
    zigzag: bool = False


@dataclass(frozen=True, slots=True)
class MatmulShape:
    """[n_m, n_k] x [n_k, n_n] with the bytes of an element of A (activations), B (weights) and the output."""

    n_m: Num
    n_n: Num
    n_k: Num
    a_bytes: Num = 2.0
    b_bytes: Num = 2.0
    out_bytes: Num = 2.0

    @property
    def flop(self) -> Num:
        """Two for each multiply-add."""
        return 2.0 * self.n_m * self.n_n * self.n_k

    @property
    def input_bytes(self) -> Num:
        """A, all of it."""
        return self.n_m * self.n_k * self.a_bytes

    @property
    def weight_bytes(self) -> Num:
        """B, all of it."""
        return self.n_k * self.n_n * self.b_bytes

    @property
    def output_bytes(self) -> Num:
        """The output, all of it."""
        return self.n_m * self.n_n * self.out_bytes

    @property
    def footprint_bytes(self) -> Num:
        """All three: the working set."""
        return self.input_bytes + self.weight_bytes + self.output_bytes


def _stays(distance_bytes: Num, cache_bytes: Num) -> Num:
    """Return 1 where bytes are still there after that many others were used, else 0."""
    return 1.0 - above(distance_bytes - cache_bytes, 0.0)


def matmul_traffic(shape: MatmulShape, tiles: Tiles, *, is_warm: bool = False) -> Traffic:
    """Return the traffic of a tiled matmul; `is_warm`: the same matmul ran just before, its inputs stay if all fits."""
    n_rows, n_columns = ceiling(shape.n_m / tiles.tile_m), ceiling(shape.n_n / tiles.tile_n)
    a, b = shape.input_bytes, shape.weight_bytes
    of_a = _Side(a, n_rows, smaller(shape.n_m, float(tiles.tile_m)) * shape.n_k * shape.a_bytes)
    of_b = _Side(b, n_columns, smaller(shape.n_n, float(tiles.tile_n)) * shape.n_k * shape.b_bytes)
    if tiles.axis == "n":
        b_times, a_times = _fetches(of_b, of_a, tiles)
    else:
        a_times, b_times = _fetches(of_a, of_b, tiles)
    fetched = a * a_times + b * b_times
    if is_warm:
        fetched = fetched * (1.0 - _stays(shape.footprint_bytes, tiles.cache_bytes))
    out = shape.output_bytes
    return Traffic(a * n_columns + b * n_rows, out, fetched, out)


class _Side(NamedTuple):
    """One operand: all of it, its panels, and the bytes of a whole panel (the last one may be narrower)."""

    n_bytes: Num
    n_panels: Num
    panel_bytes: Num


def _fetches(kept: _Side, moving: _Side, tiles: Tiles) -> tuple[Num, Num]:
    """Return how often (kept, moving) bytes are fetched from memory.

    The last group may hold fewer panels than the others: it is counted by itself.
    """
    group = smaller(float(tiles.group_tiles), kept.n_panels) if tiles.group_tiles else kept.n_panels
    n_whole = np.floor(kept.n_panels / group) * 1.0
    n_left = kept.n_panels - n_whole * group
    has_rest = above(n_left * 1.0, 0.0)
    kept_times, passes = _group_fetches(group, kept, moving, tiles)
    rest_times, rest_passes = _group_fetches(larger(n_left * 1.0, 1.0), kept, moving, tiles)
    again = _stays(moving.n_bytes + group * kept.panel_bytes, tiles.cache_bytes)
    if tiles.zigzag:
        beside = larger(tiles.cache_bytes - 2.0 * group * kept.panel_bytes, 0.0)
        again = smaller(beside / moving.n_bytes, 1.0)
    turns = (n_whole + has_rest - 1.0) * (1.0 - again)
    moving_times = 1.0 + turns + n_whole * (passes - 1.0) + has_rest * (rest_passes - 1.0)
    return (n_whole * group * kept_times + n_left * rest_times) / kept.n_panels, moving_times


def _group_fetches(group: Num, kept: _Side, moving: _Side, tiles: Tiles) -> tuple[Num, Num]:
    """Return how often each panel of a group, and each panel that advances past it, is fetched within the group."""
    cores, cache = float(tiles.n_cores), tiles.cache_bytes
    in_wave = smaller(group, cores)
    advance = smaller(larger(cores / group, 1.0), moving.n_panels)
    beside = advance * moving.panel_bytes
    kept_times = 1.0 + (moving.n_panels / advance - 1.0) * (1.0 - _stays(group * kept.panel_bytes + beside, cache))
    lost = 1.0 - _stays(in_wave * kept.panel_bytes + beside, cache)
    return kept_times, 1.0 + (group / in_wave - 1.0) * lost


def stream_traffic(*, n_bytes: Num, cache_bytes: Num, written_bytes: Num = 0.0, is_warm: bool = False) -> Traffic:
    """Return the traffic of a kernel that uses each byte once; `is_warm`: it did so just before, all stays if it fits.

    >>> stream_traffic(n_bytes=100.0, cache_bytes=192.0, is_warm=True).hit_frac
    1.0
    """
    missed = 1.0 - (_stays(n_bytes + written_bytes, cache_bytes) if is_warm else 0.0)
    return Traffic(n_bytes, written_bytes, n_bytes * missed, written_bytes)


def gather_traffic(
    *,
    n_units: Num,
    n_asked: Num,
    unit_bytes: Num,
    cache_bytes: Num,
    skew: Num = 0.0,
    is_warm: bool = False,
) -> Traffic:
    """Return the traffic of asking at random for `n_asked` of the units that a table is made of (rows, or lines).

    `skew` is the locality: the unit of rank r is asked for in proportion to r^-skew (Zipf); 0 asks for all alike. Cold,
    each unit misses when it is first asked for; `is_warm`: the accesses go on from others like them.
    """
    popularity, count = _classes(n_units, skew)
    asked = popularity * np.expand_dims(np.asarray(n_asked, dtype=np.float64), -1)
    room = np.expand_dims(np.asarray(cache_bytes / unit_bytes, dtype=np.float64), -1)
    lost = np.exp(-popularity * _characteristic_accesses(popularity, count, room))
    first = -np.expm1(-asked)
    misses = asked * lost if is_warm else first + (asked - first) * lost
    n_misses: Num = np.multiply(np.sum(count * misses, axis=-1), 1.0)
    none = n_asked * 0.0
    return Traffic(n_asked * unit_bytes, none, n_misses * unit_bytes, none)


def _classes(n_units: Num, skew: Num) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (probability of one unit, units) of classes of neighbouring ranks, on a last axis of their own."""
    units = np.expand_dims(np.asarray(n_units, dtype=np.float64), -1)
    exponent = np.expand_dims(np.asarray(skew, dtype=np.float64), -1)
    edges = 0.5 * (2.0 * units + 1.0) ** np.linspace(0.0, 1.0, _N_CLASSES + 1)
    count = np.diff(edges, axis=-1)
    middle = np.sqrt(edges[..., 1:] * edges[..., :-1])
    weight = middle**-exponent
    return weight / np.sum(weight * count, axis=-1, keepdims=True), count


def _characteristic_accesses(
    popularity: NDArray[np.float64], count: NDArray[np.float64], room: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return in how many accesses as many different units are asked for as there is room; without end where all fit."""
    never_full = room >= np.sum(count, axis=-1, keepdims=True)
    low, high = room * 0.0, room + 1.0
    for _ in range(_N_HALVINGS):
        high = np.where(_seen(popularity, count, high) < room, high + high, high)
    for _ in range(_N_HALVINGS):
        middle = 0.5 * (low + high)
        is_low = _seen(popularity, count, middle) < room
        low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
    return np.where(never_full, np.inf, high)


def _seen(popularity: NDArray[np.float64], count: NDArray[np.float64], n: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how many different units n accesses ask for."""
    seen: NDArray[np.float64] = np.sum(count * -np.expm1(-popularity * n), axis=-1, keepdims=True)
    return seen
