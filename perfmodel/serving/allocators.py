"""Allocators of KV memory: who holds which bytes of the pool.

An owner is a sequence; `grow(owner, n_bytes)` makes room for `n_bytes` of its cache in all, and `release(owner)` gives
everything back. All are plain objects that count in whole bytes:

    FixedSlots        every sequence gets one slot of the longest length, for its whole life
    PagedBlocks       equal blocks, taken as the sequence grows
    WindowBlocks      blocks of the last `window_bytes` only; older ones are released while the sequence grows
    BestFitSegments   contiguous pieces from cached segments: rounding, best fit, splitting, coalescing

`live_bytes` is what owners asked for and still use, `held_bytes` what they hold, `reserved_bytes` what the allocator
has taken from the device, `capacity_bytes` what it may take: live <= held <= reserved <= capacity after every call.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import SpecError
from perfmodel.specs.allocator import CachingRules

__all__ = ["BestFitSegments", "FixedSlots", "KvAllocator", "PagedBlocks", "WindowBlocks"]

Blocks = NDArray[np.int64]


class KvAllocator(Protocol):
    """What an allocator of KV memory can do; sizes are whole bytes."""

    capacity_bytes: int
    live_bytes: int
    held_bytes: int
    reserved_bytes: int
    copied_bytes: int
    n_device_calls: int

    def grow(self, owner: int, n_bytes: int) -> bool:
        """Make room for `n_bytes` of this owner in all; False, and nothing changed, where there is none."""
        ...

    def release(self, owner: int) -> None:
        """Give back all that the owner holds."""
        ...

    def largest_bytes(self) -> int:
        """Return the largest request of a new owner that would be met now."""
        ...

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield (owner, start, stop) of every piece that is held, as places in the pool."""
        ...


def _checked(capacity_bytes: int, what: str, size_bytes: int) -> None:
    if size_bytes < 1 or capacity_bytes < size_bytes:
        raise SpecError(
            "the pool cannot be used",
            got=f"{capacity_bytes} bytes for {what} of {size_bytes} bytes",
            expected=f"room for at least one {what.rstrip('s')} of at least one byte",
        )


class FixedSlots:
    """A slot of `slot_bytes` for every sequence, whatever its length."""

    __slots__ = ("_live", "_n_fresh", "_slots", "_unused", "capacity_bytes", "copied_bytes", "held_bytes",
                 "live_bytes", "n_device_calls", "n_slots", "reserved_bytes", "slot_bytes")  # fmt: skip

    def __init__(self, capacity_bytes: int, *, slot_bytes: int) -> None:
        _checked(capacity_bytes, "slots", slot_bytes)
        self.capacity_bytes, self.slot_bytes, self.n_slots = capacity_bytes, slot_bytes, capacity_bytes // slot_bytes
        self.reserved_bytes = self.n_slots * slot_bytes
        self.live_bytes = self.held_bytes = self.copied_bytes = 0
        self.n_device_calls = 1
        self._n_fresh, self._unused = 0, list[int]()
        self._slots, self._live = dict[int, int](), dict[int, int]()

    def grow(self, owner: int, n_bytes: int) -> bool:
        """Take a slot, or use more of the one that is held; False where no slot is free or the slot is too small."""
        if n_bytes > self.slot_bytes:
            return False
        if owner not in self._slots:
            if self._unused:
                self._slots[owner] = heappop(self._unused)
            elif self._n_fresh < self.n_slots:
                self._slots[owner] = self._n_fresh
                self._n_fresh += 1
            else:
                return False
            self.held_bytes += self.slot_bytes
        self.live_bytes += n_bytes - self._live.get(owner, 0)
        self._live[owner] = n_bytes
        return True

    def release(self, owner: int) -> None:
        """Give the slot back."""
        heappush(self._unused, self._slots.pop(owner))
        self.live_bytes -= self._live.pop(owner)
        self.held_bytes -= self.slot_bytes

    def largest_bytes(self) -> int:
        """Return a slot, or 0 where all are taken."""
        return self.slot_bytes if len(self._slots) < self.n_slots else 0

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield (owner, start, stop) of every slot that is taken."""
        for owner, slot in self._slots.items():
            yield owner, slot * self.slot_bytes, (slot + 1) * self.slot_bytes


class PagedBlocks:
    """Blocks of `block_bytes`, taken one after the other as a sequence grows; any free block will do."""

    __slots__ = ("_free", "_live", "_n_free", "_owned", "block_bytes", "capacity_bytes", "copied_bytes", "held_bytes",
                 "live_bytes", "n_blocks", "n_device_calls", "reserved_bytes")  # fmt: skip

    def __init__(self, capacity_bytes: int, *, block_bytes: int) -> None:
        _checked(capacity_bytes, "blocks", block_bytes)
        self.capacity_bytes, self.block_bytes = capacity_bytes, block_bytes
        self.n_blocks = self._n_free = capacity_bytes // block_bytes
        self.reserved_bytes = self.n_blocks * block_bytes
        self.live_bytes = self.held_bytes = self.copied_bytes = 0
        self.n_device_calls = 1
        self._free: Blocks = np.arange(self.n_blocks - 1, -1, -1)
        self._owned, self._live = dict[int, list[Blocks]](), dict[int, int]()

    def grow(self, owner: int, n_bytes: int) -> bool:
        """Take the blocks that are lacking; False where there are too few."""
        before = self._live.get(owner, 0)
        if n_bytes < before:
            raise SpecError("a cache does not shrink", got=f"{n_bytes} bytes", expected=f"at least {before}")
        n_more = -(-n_bytes // self.block_bytes) - -(-before // self.block_bytes)
        if n_more > self._n_free:
            return False
        self._take(owner, n_more)
        self.live_bytes += n_bytes - before
        self._live[owner] = n_bytes
        return True

    def _take(self, owner: int, n_more: int) -> None:
        held = self._owned.setdefault(owner, [])
        if n_more:
            held.append(self._free[self._n_free - n_more : self._n_free].copy())
            self._n_free -= n_more
            self.held_bytes += n_more * self.block_bytes

    def _put(self, blocks: Blocks) -> None:
        n = len(blocks)
        self._free[self._n_free : self._n_free + n] = blocks
        self._n_free += n
        self.held_bytes -= n * self.block_bytes

    def release(self, owner: int) -> None:
        """Give all blocks back."""
        for blocks in self._owned.pop(owner):
            self._put(blocks)
        self.live_bytes -= self._live.pop(owner)

    def largest_bytes(self) -> int:
        """Return the bytes of all free blocks: they need not lie side by side."""
        return self._n_free * self.block_bytes

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield (owner, start, stop) of every block that is held."""
        for owner, held in self._owned.items():
            for blocks in held:
                for block in blocks.tolist():
                    yield owner, block * self.block_bytes, (block + 1) * self.block_bytes


class WindowBlocks(PagedBlocks):
    """Blocks of the last `window_bytes` of each sequence; blocks that fell out of the window are released."""

    __slots__ = ("_length", "_skip", "window_bytes")

    def __init__(self, capacity_bytes: int, *, block_bytes: int, window_bytes: int) -> None:
        super().__init__(capacity_bytes, block_bytes=block_bytes)
        _checked(capacity_bytes, "windows", window_bytes)
        self.window_bytes = window_bytes
        self._length, self._skip = dict[int, int](), dict[int, int]()

    def grow(self, owner: int, n_bytes: int) -> bool:
        """Let the window move to the end of `n_bytes`; blocks before it are released first."""
        before = self._length.get(owner, 0)
        if n_bytes < before:
            raise SpecError("a cache does not shrink", got=f"{n_bytes} bytes", expected=f"at least {before}")
        first_old = self._skip.get(owner, 0)
        stop_old, stop = max(-(-before // self.block_bytes), first_old), -(-n_bytes // self.block_bytes)
        first = max(n_bytes - self.window_bytes, 0) // self.block_bytes
        n_dropped = min(first, stop_old) - first_old
        n_more = stop - max(stop_old, first)
        if n_more > self._n_free + n_dropped:
            return False
        if n_dropped:
            held = np.concatenate(self._owned[owner])
            self._put(held[:n_dropped])
            self._owned[owner] = [held[n_dropped:]]
        self._take(owner, n_more)
        live = min(n_bytes, self.window_bytes)
        self.live_bytes += live - self._live.get(owner, 0)
        self._live[owner], self._length[owner], self._skip[owner] = live, n_bytes, first
        return True

    def release(self, owner: int) -> None:
        """Give all blocks of the window back."""
        super().release(owner)
        del self._length[owner], self._skip[owner]


class _Piece:
    """A piece of a segment: free or held, with its neighbours in the same segment."""

    __slots__ = ("after", "before", "is_free", "is_small", "size", "start")

    def __init__(self, start: int, size: int, *, is_small: bool) -> None:
        self.start, self.size, self.is_small, self.is_free = start, size, is_small, False
        self.before: _Piece | None = None
        self.after: _Piece | None = None


class BestFitSegments:
    """A caching allocator: segments from the device, the smallest free piece that fits, rest split off, free merged.

    Small requests and large ones have segments of their own. A segment goes back to the device only when a new one
    finds no room, and then all that are wholly free do. A sequence that outgrows its piece is copied to a new one.
    """

    __slots__ = ("_free", "_live", "_owned", "_pieces", "_top", "capacity_bytes", "copied_bytes", "held_bytes",
                 "large_limit", "large_round", "large_segment", "large_split", "live_bytes", "n_device_calls",
                 "n_segments", "reserved_bytes", "round_bytes", "small_limit", "small_segment",
                 "small_split")  # fmt: skip

    def __init__(self, capacity_bytes: int, rules: CachingRules) -> None:
        _checked(capacity_bytes, "segments", int(rules.small_segment.value))
        self.capacity_bytes = capacity_bytes
        self.round_bytes, self.large_round = int(rules.round.value), int(rules.large_round.value)
        self.small_limit, self.small_segment = int(rules.small_limit.value), int(rules.small_segment.value)
        self.large_limit, self.large_segment = int(rules.large_limit.value), int(rules.large_segment.value)
        self.small_split, self.large_split = int(rules.small_split.value), int(rules.large_split.value)
        self.live_bytes = self.held_bytes = self.reserved_bytes = self.copied_bytes = 0
        self.n_device_calls = self.n_segments = self._top = 0
        # By pool (large, small): (size, start) of the free pieces in order of size.
        self._free: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        self._pieces = dict[int, _Piece]()  # free pieces by start
        self._owned, self._live = dict[int, _Piece](), dict[int, int]()

    @property
    def n_free_pieces(self) -> int:
        """Free pieces; as many as segments where nothing is held and all neighbours have merged."""
        return len(self._free[0]) + len(self._free[1])

    def grow(self, owner: int, n_bytes: int) -> bool:
        """Find a piece for `n_bytes`; one that is held and large enough stays, else the cache moves to a new piece."""
        held = self._owned.get(owner)
        if held is not None and n_bytes <= held.size:
            self.live_bytes += n_bytes - self._live[owner]
            self._live[owner] = n_bytes
            return True
        piece = self._allocated(n_bytes)
        if piece is None:
            return False
        before = self._live.get(owner, 0)
        if held is not None:
            self.copied_bytes += before
            self._freed(held)
        self._owned[owner], self._live[owner] = piece, n_bytes
        self.live_bytes += n_bytes - before
        return True

    def release(self, owner: int) -> None:
        """Free the piece and merge it with free neighbours."""
        self._freed(self._owned.pop(owner))
        self.live_bytes -= self._live.pop(owner)

    def largest_bytes(self) -> int:
        """Return the largest request that a free piece, or a segment still to be taken, would meet."""
        large, small = (pieces[-1][0] if pieces else 0 for pieces in self._free)
        idle = sum(piece.size for piece in self._pieces.values() if _is_whole(piece))
        room = self.capacity_bytes - self.reserved_bytes + idle
        fresh = room // self.large_round * self.large_round
        if fresh < self.large_limit:
            fresh = self.large_limit - 1 if room >= self.large_segment else 0
            fresh = fresh or (self.small_limit if room >= self.small_segment else 0)
        return max(large, min(small, self.small_limit), fresh)

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield (owner, start, stop) of every piece that is held; segments lie side by side, each at new addresses."""
        for owner, piece in self._owned.items():
            yield owner, piece.start, piece.start + piece.size

    def _allocated(self, n_bytes: int) -> _Piece | None:
        size = max(-(-n_bytes // self.round_bytes), 1) * self.round_bytes
        is_small = size <= self.small_limit
        free = self._free[is_small]
        place = bisect_left(free, (size, -1))
        if place < len(free):
            piece = self._pieces.pop(free.pop(place)[1])
        else:
            found = self._segment(size, is_small=is_small)
            if found is None:
                return None
            piece = found
        piece.is_free = False
        rest = piece.size - size
        if rest >= self.small_split if is_small else rest > self.large_split:
            self._split(piece, size)
        self.held_bytes += piece.size
        return piece

    def _segment(self, size: int, *, is_small: bool) -> _Piece | None:
        """Return a segment from the device that holds the request, giving idle ones back where that is needed."""
        if is_small:
            wanted = self.small_segment
        elif size < self.large_limit:
            wanted = self.large_segment
        else:
            wanted = -(-size // self.large_round) * self.large_round
        if self.reserved_bytes + wanted > self.capacity_bytes:
            self._give_idle_back()
            if self.reserved_bytes + wanted > self.capacity_bytes:
                return None
        piece = _Piece(self._top, wanted, is_small=is_small)
        self._top += wanted
        self.reserved_bytes += wanted
        self.n_segments += 1
        self.n_device_calls += 1
        return piece

    def _give_idle_back(self) -> None:
        idle = [piece for piece in self._pieces.values() if _is_whole(piece)]
        for piece in idle:
            self._unlist(piece)
            self.reserved_bytes -= piece.size
            self.n_segments -= 1
            self.n_device_calls += 1

    def _split(self, piece: _Piece, size: int) -> None:
        rest = _Piece(piece.start + size, piece.size - size, is_small=piece.is_small)
        rest.before, rest.after = piece, piece.after
        if piece.after is not None:
            piece.after.before = rest
        piece.after, piece.size = rest, size
        self._list(rest)

    def _freed(self, piece: _Piece) -> None:
        self.held_bytes -= piece.size
        after, before = piece.after, piece.before
        if after is not None and after.is_free:
            self._unlist(after)
            piece.size += after.size
            piece.after = after.after
            if after.after is not None:
                after.after.before = piece
        if before is not None and before.is_free:
            self._unlist(before)
            before.size += piece.size
            before.after = piece.after
            if piece.after is not None:
                piece.after.before = before
            piece = before
        self._list(piece)

    def _list(self, piece: _Piece) -> None:
        piece.is_free = True
        self._pieces[piece.start] = piece
        insort(self._free[piece.is_small], (piece.size, piece.start))

    def _unlist(self, piece: _Piece) -> None:
        free = self._free[piece.is_small]
        del free[bisect_left(free, (piece.size, piece.start))]
        del self._pieces[piece.start]


def _is_whole(piece: _Piece) -> bool:
    return piece.before is None and piece.after is None
