"""Traffic through a cache: limits, laws on random shapes, a walk through an LRU cache, and gathers drawn at random."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.units import MIB
from perfmodel.work.traffic import MatmulShape, Tiles, gather_traffic, matmul_traffic, stream_traffic

SIZES = st.integers(1, 20000).map(float)
SHAPES = st.builds(MatmulShape, SIZES, SIZES, SIZES, b_bytes=st.sampled_from((0.5, 1.0, 2.0)))
TILES = st.builds(
    Tiles,
    st.sampled_from((64, 128)),
    st.sampled_from((64, 256)),
    st.sampled_from((1, 24, 108)),
    st.floats(0, 1e9),
    st.sampled_from(("m", "n")),
    st.sampled_from((0, 1, 5, 8, 64)),
    st.booleans(),
)
ASCEND = Tiles(128, 256, 24, 0.95 * 192 * MIB, "n", 0)


@given(shape=SHAPES, tiles=TILES, warm=st.booleans())
def test_memory_moves_at_least_everything_once_and_at_most_all_that_is_asked(
    shape: MatmulShape, tiles: Tiles, warm: bool
) -> None:
    traffic = matmul_traffic(shape, tiles, is_warm=warm)
    assert traffic.dram_read_bytes <= traffic.read_bytes * (1 + 1e-9)
    assert -1e-9 <= traffic.hit_frac <= 1
    assert traffic.write_bytes == traffic.dram_write_bytes == shape.output_bytes
    once = shape.input_bytes + shape.weight_bytes
    assert traffic.dram_read_bytes >= once * (1 - 1e-9) or (warm and traffic.dram_read_bytes == 0)


@given(shape=SHAPES, tiles=TILES, more=st.floats(1, 4))
def test_a_larger_cache_never_moves_more(shape: MatmulShape, tiles: Tiles, more: float) -> None:
    larger = replace(tiles, cache_bytes=tiles.cache_bytes * more)
    assert matmul_traffic(shape, larger).dram_bytes <= matmul_traffic(shape, tiles).dram_bytes * (1 + 1e-9)


@given(shape=SHAPES, tiles=TILES)
def test_no_cache_and_one_core_fetch_every_byte_that_is_asked_for(shape: MatmulShape, tiles: Tiles) -> None:
    traffic = matmul_traffic(shape, replace(tiles, cache_bytes=0.0, n_cores=1, zigzag=False))
    assert traffic.dram_bytes == pytest.approx(traffic.l2_bytes)
    assert traffic.hit_frac == pytest.approx(0.0, abs=1e-9)


@given(shape=SHAPES, tiles=TILES)
def test_a_cache_that_holds_all_fetches_once_and_nothing_when_warm(shape: MatmulShape, tiles: Tiles) -> None:
    roomy = replace(tiles, cache_bytes=2 * float(shape.footprint_bytes))
    assert matmul_traffic(shape, roomy).dram_read_bytes == pytest.approx(shape.input_bytes + shape.weight_bytes)
    assert matmul_traffic(shape, roomy, is_warm=True).dram_read_bytes == 0


@given(shape=SHAPES, tiles=TILES)
def test_zigzag_never_moves_more_where_neither_input_fits(shape: MatmulShape, tiles: Tiles) -> None:
    """Where one fits beside a group but not beside two, zigzag loses a little: the longest distance is longer."""
    least = min(float(shape.input_bytes), float(shape.weight_bytes))
    small = replace(tiles, cache_bytes=min(tiles.cache_bytes, 0.99 * least))
    there = matmul_traffic(shape, replace(small, zigzag=False)).dram_bytes
    assert matmul_traffic(shape, replace(small, zigzag=True)).dram_bytes <= there * (1 + 1e-9)


@given(tiles=TILES, n=st.integers(1, 40), factor=st.integers(2, 5))
def test_traffic_grows_with_the_contraction(tiles: Tiles, n: int, factor: int) -> None:
    small, large = (MatmulShape(512.0 * n, 512.0 * n, k) for k in (256.0, 256.0 * factor))
    assert matmul_traffic(large, tiles).dram_bytes >= matmul_traffic(small, tiles).dram_bytes * (1 - 1e-9)


@given(shape=SHAPES, tiles=TILES, factor=st.floats(1, 3))
def test_more_is_asked_of_the_cache_for_more_of_anything(shape: MatmulShape, tiles: Tiles, factor: float) -> None:
    asked = matmul_traffic(shape, tiles).l2_bytes
    for larger in (
        replace(shape, n_m=shape.n_m * factor),
        replace(shape, n_n=shape.n_n * factor),
        replace(shape, n_k=shape.n_k * factor),
        replace(shape, b_bytes=shape.b_bytes * factor),
    ):
        assert matmul_traffic(larger, tiles).l2_bytes >= asked * (1 - 1e-12)


@given(shape=SHAPES, tiles=TILES)
def test_rows_and_columns_may_be_swapped(shape: MatmulShape, tiles: Tiles) -> None:
    """The transposed product, with the order along the other axis, asks for the same bytes."""
    turned = MatmulShape(shape.n_n, shape.n_m, shape.n_k, shape.b_bytes, shape.a_bytes, shape.out_bytes)
    axis: Literal["m", "n"] = "m" if tiles.axis == "n" else "n"
    other = replace(tiles, tile_m=tiles.tile_n, tile_n=tiles.tile_m, axis=axis)
    here, there = matmul_traffic(shape, tiles), matmul_traffic(turned, other)
    assert here.l2_bytes == pytest.approx(there.l2_bytes)
    assert here.dram_bytes == pytest.approx(there.dram_bytes)


def test_arrays_give_what_scalars_give() -> None:
    sizes = np.array([64.0, 1000.0, 4096.0, 16384.0])
    many = matmul_traffic(MatmulShape(sizes, sizes, sizes), replace(ASCEND, group_tiles=5, zigzag=True))
    for i, n in enumerate(sizes):
        shape = MatmulShape(float(n), float(n), float(n))
        one = matmul_traffic(shape, replace(ASCEND, group_tiles=5, zigzag=True))
        assert np.asarray(many.dram_bytes)[i] == pytest.approx(one.dram_bytes, rel=1e-12)
        assert np.asarray(many.hit_frac)[i] == pytest.approx(one.hit_frac, rel=1e-12)


def order_of(tiles: Tiles, n_rows: int, n_columns: int) -> list[tuple[int, int]]:
    """Return (row, column) of every tile in the order in which it is worked on, groups along the columns."""
    group = tiles.group_tiles or n_columns
    order = []
    for i, first in enumerate(range(0, n_columns, group)):
        rows = range(n_rows)
        for row in reversed(rows) if tiles.zigzag and i % 2 else rows:
            order += [(row, column) for column in range(first, min(first + group, n_columns))]
    return order


def walked(shape: MatmulShape, tiles: Tiles) -> float:
    """Return bytes that memory reads when each wave asks an LRU cache for its panels, panel by panel."""
    n_rows, n_columns = -(-int(shape.n_m) // tiles.tile_m), -(-int(shape.n_n) // tiles.tile_n)
    order, cache, read = order_of(tiles, n_rows, n_columns), OrderedDict[tuple[str, int], float](), 0.0
    sizes = {"a": shape.input_bytes / n_rows, "b": shape.weight_bytes / n_columns}
    for start in range(0, len(order), tiles.n_cores):
        wave = order[start : start + tiles.n_cores]
        for panel in dict.fromkeys([("a", r) for r, _ in wave] + [("b", c) for _, c in wave]):
            if panel in cache:
                cache.move_to_end(panel)
                continue
            size = float(sizes[panel[0]])
            read, cache[panel] = read + size, size
            while sum(cache.values()) > tiles.cache_bytes:
                cache.popitem(last=False)
    return read


@pytest.mark.parametrize("n", [2048, 4096, 8192, 12288, 16384])
@pytest.mark.parametrize(("group", "zigzag"), [(0, False), (3, False), (4, True), (8, True), (24, False)])
def test_the_closed_form_is_near_a_walk_through_an_lru_cache(n: int, group: int, zigzag: bool) -> None:
    """Waves that straddle two rows or groups are not in the closed form: 10 % of bytes, 2 points of hits."""
    tiles = replace(ASCEND, group_tiles=group, zigzag=zigzag)
    shape = MatmulShape(float(n), float(n), float(n))
    asked = matmul_traffic(shape, tiles)
    assert asked.dram_read_bytes == pytest.approx(walked(shape, tiles), rel=0.1)
    assert asked.read_hit_frac == pytest.approx(1 - walked(shape, tiles) / float(asked.read_bytes), abs=0.02)


def test_a_4096_matmul_by_hand() -> None:
    """128 x 256 tiles: A is asked for 4096 / 256 = 16 times, B 32 times: 48 x 32 MiB; the output is 32 MiB.

    All fits into 192 MiB: cold, A, B and output miss: 96 of 1568 MiB, 93.9 % hits. Warm, only the output: 98.0 %.
    """
    shape = MatmulShape(4096.0, 4096.0, 4096.0)
    cold, warm = matmul_traffic(shape, ASCEND), matmul_traffic(shape, ASCEND, is_warm=True)
    assert cold.l2_bytes / MIB == 1568
    assert cold.dram_bytes / MIB == 96
    assert cold.hit_frac == pytest.approx(1 - 96 / 1568)
    assert warm.hit_frac == pytest.approx(1 - 32 / 1568)


def test_a_16384_matmul_row_after_row_by_hand() -> None:
    """24 tiles a wave in one row: one panel of A (4 MiB) and 24 of B (8 MiB): 196 of the 24 x 12 MiB asked for.

    Neither a wave (196 MiB) nor the row of B (512 MiB) stays in 182.4 MiB: hits are those inside of a wave, 31.9 %.
    """
    traffic = matmul_traffic(MatmulShape(16384.0, 16384.0, 16384.0), ASCEND)
    assert traffic.read_hit_frac == pytest.approx(1 - 196 / 288)


@given(n=st.floats(1, 1e12), cache=st.floats(0, 1e12), warm=st.booleans())
def test_a_stream_hits_only_what_stayed(n: float, cache: float, warm: bool) -> None:
    traffic = stream_traffic(n_bytes=n, cache_bytes=cache, is_warm=warm)
    assert traffic.dram_bytes == (0.0 if warm and n <= cache else n)


@given(
    n=st.integers(1, 10**7),
    asked=st.integers(1, 10**9),
    cache=st.floats(1, 1e9),
    skew=st.floats(0, 2),
    warm=st.booleans(),
)
def test_a_gather_stays_between_its_bounds(n: int, asked: int, cache: float, skew: float, warm: bool) -> None:
    traffic = gather_traffic(
        n_units=float(n), n_asked=float(asked), unit_bytes=128.0, cache_bytes=cache, skew=skew, is_warm=warm
    )
    assert -1e-9 <= traffic.hit_frac <= 1 + 1e-9
    larger = gather_traffic(
        n_units=float(n), n_asked=float(asked), unit_bytes=128.0, cache_bytes=2 * cache, skew=skew, is_warm=warm
    )
    assert larger.dram_bytes <= traffic.dram_bytes * (1 + 1e-9)


def test_gathers_at_their_limits() -> None:
    """All alike: hits are the share of the table that fits. All fits: nothing is read when warm, all once when cold."""
    for share in (0.1, 0.311, 0.9):
        traffic = gather_traffic(n_units=1e6, n_asked=1e7, unit_bytes=512.0, cache_bytes=share * 512e6, is_warm=True)
        assert traffic.hit_frac == pytest.approx(share, abs=1e-3)
    warm, cold = (
        gather_traffic(n_units=1e6, n_asked=1e9, unit_bytes=512.0, cache_bytes=1e9, is_warm=warm)
        for warm in (True, False)
    )
    assert warm.dram_bytes == 0
    assert cold.dram_bytes == pytest.approx(1e6 * 512)
    more = [
        float(gather_traffic(n_units=1e6, n_asked=1e8, unit_bytes=512.0, cache_bytes=5e7, skew=s).hit_frac)
        for s in (0, 0.5, 1, 1.5)
    ]
    assert more == sorted(more)


@pytest.mark.parametrize("skew", [0.0, 0.7, 1.1])
def test_a_gather_equals_draws_through_an_lru_cache(skew: float) -> None:
    """2,000 rows, room for 300, 60,000 draws: the characteristic time is known to be good to a per cent or so."""
    n_rows, room, n_asked = 2000, 300, 60000
    weight = np.arange(1, n_rows + 1) ** -skew
    drawn = np.random.default_rng(7).choice(n_rows, size=n_asked, p=weight / weight.sum())
    cache, misses = OrderedDict[int, None](), 0
    for row in drawn.tolist():
        if row in cache:
            cache.move_to_end(row)
        else:
            misses, cache[row] = misses + 1, None
            if len(cache) > room:
                cache.popitem(last=False)
    found = gather_traffic(
        n_units=float(n_rows), n_asked=float(n_asked), unit_bytes=1.0, cache_bytes=float(room), skew=skew
    )
    assert found.hit_frac == pytest.approx(1 - misses / n_asked, abs=0.015)
