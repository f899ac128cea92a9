"""Laws of every KV allocator under random requests: bytes are conserved, pieces never overlap, free memory merges."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.serving.allocators import BestFitSegments, FixedSlots, KvAllocator, PagedBlocks, WindowBlocks
from perfmodel.specs.catalogue import Catalogue, builtin_home

MIB = 2**20
POOL = 96 * MIB
RULES = Catalogue((builtin_home(),)).allocator("pytorch")
MAKERS: dict[str, Callable[[], KvAllocator]] = {
    "fixed": lambda: FixedSlots(POOL, slot_bytes=11 * MIB + 3),
    "paged": lambda: PagedBlocks(POOL, block_bytes=300_007),
    "window": lambda: WindowBlocks(POOL, block_bytes=300_007, window_bytes=5 * MIB + 1),
    "best-fit": lambda: BestFitSegments(POOL, RULES),
}
SIZES = st.one_of(st.integers(1, 4096), st.integers(1, 3 * MIB), st.integers(1, 30 * MIB))
EVENTS = st.lists(st.tuples(st.integers(0, 7), st.one_of(st.none(), SIZES)), max_size=60)
QUICK = settings(max_examples=60, deadline=None, derandomize=True)


def state(pool: KvAllocator) -> tuple[int, int, list[tuple[int, int, int]]]:
    return pool.live_bytes, pool.held_bytes, sorted(pool.spans())


def checked(pool: KvAllocator) -> None:
    assert 0 <= pool.live_bytes <= pool.held_bytes <= pool.reserved_bytes <= pool.capacity_bytes
    spans = sorted((start, stop) for _, start, stop in pool.spans())
    assert sum(stop - start for start, stop in spans) == pool.held_bytes
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@QUICK
@given(events=EVENTS)
def test_bytes_are_conserved_and_pieces_do_not_overlap(
    make: Callable[[], KvAllocator], events: list[tuple[int, int | None]]
) -> None:
    """A refused request changes nothing but idle segments; at the end all is free again."""
    pool, sizes = make(), dict[int, int]()
    for owner, size in events:
        if size is None:
            if owner in sizes:
                pool.release(owner)
                del sizes[owner]
        else:
            before, wanted = state(pool), max(size, sizes.get(owner, 0))
            if pool.grow(owner, wanted):
                sizes[owner] = wanted
            else:
                assert state(pool) == before
        checked(pool)
        if not isinstance(pool, WindowBlocks):
            assert pool.live_bytes == sum(sizes.values())
    for owner in sizes:
        pool.release(owner)
    assert state(pool) == (0, 0, [])


@QUICK
@given(events=EVENTS)
def test_free_neighbours_merge_into_whole_segments(events: list[tuple[int, int | None]]) -> None:
    """When nothing is held, each segment is one free piece, and together they are what the device gave."""
    pool, owners = BestFitSegments(POOL, RULES), set[int]()
    for owner, size in events:
        if size is None and owner in owners:
            pool.release(owner)
            owners.remove(owner)
        elif size is not None and owner not in owners and pool.grow(owner, size):
            owners.add(owner)
    for owner in owners:
        pool.release(owner)
    assert pool.n_free_pieces == pool.n_segments
    assert pool.reserved_bytes % (2 * MIB) == 0


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@QUICK
@given(events=EVENTS)
def test_the_largest_request_is_met_and_a_larger_one_is_not(
    make: Callable[[], KvAllocator], events: list[tuple[int, int | None]]
) -> None:
    pool, sizes = make(), dict[int, int]()
    for owner, size in events:
        wanted = max(size or 1, sizes.get(owner, 0))
        if pool.grow(owner, wanted):
            sizes[owner] = wanted
    largest = pool.largest_bytes()
    if isinstance(pool, WindowBlocks):
        largest = min(largest, pool.window_bytes)  # longer sequences need no more than the window
    if largest:
        assert pool.grow(99, largest)
        pool.release(99)
    if not isinstance(pool, WindowBlocks):
        assert not pool.grow(99, largest + 1)


@QUICK
@given(lengths=st.lists(st.integers(1, 12 * MIB), min_size=2, max_size=12))
def test_a_window_never_holds_more_than_its_blocks(lengths: list[int]) -> None:
    """The window spans at most ceil(w / b) + 1 blocks, and holds every byte that is still needed."""
    pool = WindowBlocks(POOL, block_bytes=300_007, window_bytes=5 * MIB + 1)
    for length in sorted(lengths):
        assert pool.grow(1, length)
        assert pool.live_bytes == min(length, pool.window_bytes)
        assert pool.held_bytes <= (-(-pool.window_bytes // pool.block_bytes) + 1) * pool.block_bytes
