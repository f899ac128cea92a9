"""What single requests take from each allocator, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.errors import SpecError
from perfmodel.serving.allocators import BestFitSegments, FixedSlots, PagedBlocks, WindowBlocks
from perfmodel.specs.allocator import CachingRules
from perfmodel.specs.catalogue import Catalogue, builtin_home
from perfmodel.specs.files import checked

KIB, MIB = 2**10, 2**20
RULES = Catalogue((builtin_home(),)).allocator("torch")


def test_a_slot_is_held_whole() -> None:
    """Pool of 100 bytes, slots of 30: three slots."""
    pool = FixedSlots(100, slot_bytes=30)
    assert [pool.grow(i, 10) for i in range(4)] == [True, True, True, False]
    assert (pool.live_bytes, pool.held_bytes, pool.reserved_bytes) == (30, 90, 90)
    assert pool.grow(0, 30)
    assert not pool.grow(0, 31)
    pool.release(1)
    assert pool.grow(9, 1)
    assert list(pool.spans())[-1] == (9, 30, 60)


def test_blocks_are_taken_as_a_sequence_grows() -> None:
    """Blocks of 16: 17 bytes hold 32, 33 hold 48."""
    pool = PagedBlocks(64, block_bytes=16)
    assert pool.grow(1, 17)
    assert pool.held_bytes == 32
    assert pool.grow(1, 32)
    assert pool.held_bytes == 32
    assert pool.grow(1, 33)
    assert pool.held_bytes == 48
    assert not pool.grow(2, 17)
    assert pool.grow(2, 16)
    with pytest.raises(SpecError, match="does not shrink"):
        pool.grow(1, 5)


def test_blocks_before_the_window_are_released() -> None:
    """Window 40, blocks of 16. At 100 bytes the window begins at 60, in block 3; blocks 3 to 6 are held: 64 bytes."""
    pool = WindowBlocks(80, block_bytes=16, window_bytes=40)
    for n in range(1, 101):
        assert pool.grow(1, n)
    assert (pool.live_bytes, pool.held_bytes) == (40, 64)
    jumped = WindowBlocks(80, block_bytes=16, window_bytes=40)
    assert jumped.grow(1, 100)
    assert jumped.held_bytes == 64
    assert jumped.grow(1, 1000)  # from block 62 (992) back to 960 = block 60: 60, 61, 62
    assert (jumped.live_bytes, jumped.held_bytes) == (40, 48)
    with pytest.raises(SpecError, match="does not shrink"):
        jumped.grow(1, 5)


@pytest.mark.parametrize(
    ("n_bytes", "held", "segment"),
    [
        (1, 512, 2 * MIB),  # rounded to 512 bytes, in a segment of 2 MiB
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),  # beyond 1 MiB: segments of 20 MiB, the rest is split off
        (10 * MIB, 10 * MIB, 10 * MIB),  # from 10 MiB on a segment of its own, rounded up to 2 MiB
        (11 * MIB, 12 * MIB, 12 * MIB),  # the rest of 1 MiB is not more than 1 MiB: it stays with the piece
        (13 * MIB - 512, 13 * MIB - 512, 14 * MIB),  # a rest above 1 MiB is split off
    ],
)
def test_requests_are_rounded_as_the_rules_say(n_bytes: int, held: int, segment: int) -> None:
    pool = BestFitSegments(64 * MIB, RULES)
    assert pool.grow(1, n_bytes)
    assert (pool.held_bytes, pool.reserved_bytes) == (held, segment)


def test_the_smallest_piece_that_fits_is_taken() -> None:
    """Free pieces of 14 and 16 MiB: a request of 13.5 MiB takes the 14; one of 15 MiB the other."""
    pool = BestFitSegments(64 * MIB, RULES)
    for owner, size in ((1, 16), (2, 14), (3, 12)):
        assert pool.grow(owner, size * MIB)
    starts = {owner: start for owner, start, _ in pool.spans()}
    pool.release(1)
    pool.release(2)
    assert pool.grow(4, 13 * MIB + 512 * KIB)
    assert pool.grow(5, 15 * MIB)
    assert {owner: start for owner, start, _ in pool.spans() if owner > 3} == {4: starts[2], 5: starts[1]}
    assert pool.n_device_calls == 3


def test_free_memory_in_pieces_is_of_no_use_to_a_large_request() -> None:
    """A 20 MiB segment holds 4 x 5 MiB; with the 1st and 3rd free, 10 MiB are free and 6 MiB do not fit."""
    pool = BestFitSegments(20 * MIB, RULES)
    for owner in range(4):
        assert pool.grow(owner, 5 * MIB)
    pool.release(0)
    pool.release(2)
    assert pool.capacity_bytes - pool.held_bytes == 10 * MIB
    assert pool.largest_bytes() == 5 * MIB
    assert not pool.grow(9, 6 * MIB)
    pool.release(1)
    assert pool.grow(9, 15 * MIB)


def test_idle_segments_go_back_when_a_new_one_finds_no_room() -> None:
    """30 MiB: a segment of 20 is idle, and one of 24 is wanted: back and forth are 3 calls."""
    pool = BestFitSegments(30 * MIB, RULES)
    assert pool.grow(1, 5 * MIB)
    pool.release(1)
    assert (pool.n_segments, pool.reserved_bytes, pool.n_device_calls) == (1, 20 * MIB, 1)
    assert pool.largest_bytes() == 30 * MIB
    assert pool.grow(2, 23 * MIB)
    assert (pool.n_segments, pool.reserved_bytes, pool.n_device_calls) == (1, 24 * MIB, 3)


def test_a_sequence_that_outgrows_its_piece_is_copied() -> None:
    pool = BestFitSegments(64 * MIB, RULES)
    assert pool.grow(1, 12 * MIB)
    assert pool.grow(1, 13 * MIB)
    assert pool.copied_bytes == 12 * MIB
    assert pool.live_bytes == 13 * MIB


@pytest.mark.parametrize("make", [
    lambda: FixedSlots(10, slot_bytes=11),
    lambda: PagedBlocks(10, block_bytes=0),
    lambda: WindowBlocks(10, block_bytes=1, window_bytes=0),
    lambda: BestFitSegments(10, RULES),
])  # fmt: skip
def test_a_pool_without_room_for_one_is_refused(make: Any) -> None:
    with pytest.raises(SpecError, match="pool cannot be used"):
        make()


@pytest.mark.parametrize(("key", "value", "words"), [
    ("small_limit", "4 MiB", "small_segment"),
    ("large_limit", "30 MiB", "large_segment"),
    ("round", "0 bytes", "at least 1"),
])  # fmt: skip
def test_rules_that_contradict_each_other_are_refused(key: str, value: str, words: str) -> None:
    data = RULES.model_dump() | {key: {"value": value, "source": "c10"}}
    with pytest.raises(SpecError, match=words):
        checked(CachingRules, data, "rules")


def test_every_source_of_the_rules_is_listed() -> None:
    with pytest.raises(SpecError, match="not listed"):
        checked(CachingRules, RULES.model_dump() | {"sources": {"other": "x"}}, "rules")
