"""Blocks of the KV pool: how many are held, how many are free, and what of a preempted request is still there.

Free blocks are reused oldest first, as vLLM's prefix cache does: a request that was preempted finds those of its blocks
again that nobody has taken since. Its last blocks are given back first, so that what stays longest is its beginning.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Protocol

from perfmodel.errors import SpecError

__all__ = ["BlockPool", "Pool"]


class Pool(Protocol):
    """Blocks that are held, free, or free with something in them that may be asked for again.

    `shares`: requests may find blocks that others have written; only then are `wrote` and `give_done` called.
    """

    n_blocks: int
    block_tokens: int
    free: int
    n_reused: int
    shares: bool

    @property
    def used(self) -> int:
        """Blocks that requests hold."""

    def take(self, n_blocks: int) -> None:
        """Take free blocks, oldest first; raises SpecError where there are not so many."""

    def give(self, n_blocks: int) -> None:
        """Give blocks back that nobody will ask for again."""

    def give_kept(self, request: int, n_blocks: int, *, n_whole: int) -> None:
        """Give back the blocks of a preempted request, of which `n_whole` full ones may be found again."""

    def give_done(self, request: int, n_blocks: int, *, n_whole: int) -> None:
        """Give back the blocks of a request that has ended, of which `n_whole` full ones may be found again."""

    def found(self, request: int, n_most: int) -> int:
        """Return how many of the first `n_most` blocks of a request are there, from the beginning."""

    def already_held(self, request: int, n_blocks: int) -> int:
        """Return how many of the first blocks of a request others hold now: they need no free ones."""

    def reclaim(self, request: int, n_blocks: int) -> None:
        """Take the first `n_blocks` blocks of a request as they are."""

    def wrote(self, request: int, n_whole: int) -> None:
        """Let others find the first `n_whole` full blocks of a prompt."""

    def unclaimed(self) -> int:
        """Return the free blocks counted anew: equal to `free` unless a count went wrong."""


class BlockPool:
    """A pool of `n_blocks` blocks; used + free = n_blocks after every call.

    The queue of free blocks is counted, not stored: `_head` is the place of the next block that is taken, `_tail` the
    place behind the last one given back, `_claimed` the places that were taken from the middle.
    """

    __slots__ = ("_claimed", "_head", "_kept", "_tail", "block_tokens", "free", "n_blocks", "n_reused", "shares")

    def __init__(self, n_blocks: int, *, block_tokens: int) -> None:
        if n_blocks < 1 or block_tokens < 1:
            raise SpecError(
                "the KV pool cannot be used",
                got=f"{n_blocks} blocks of {block_tokens} tokens",
                expected="at least one block of at least one token",
            )
        self.n_blocks, self.block_tokens, self.free = n_blocks, block_tokens, n_blocks
        self.n_reused = 0
        self.shares = False
        self._head, self._tail = 0, n_blocks
        self._claimed: list[tuple[int, int]] = []
        self._kept: dict[int, tuple[int, int]] = {}

    @property
    def used(self) -> int:
        """Blocks that requests hold."""
        return self.n_blocks - self.free

    def take(self, n_blocks: int) -> None:
        """Take free blocks, oldest first; raises SpecError where there are not so many."""
        if n_blocks > self.free:
            raise SpecError("the KV pool has run out", got=f"{self.free} free blocks", expected=f"{n_blocks}")
        self.free -= n_blocks
        self._head += n_blocks
        while self._claimed and self._claimed[0][0] < self._head:
            self._head += heappop(self._claimed)[1]

    def give(self, n_blocks: int) -> None:
        """Give blocks back that nobody will ask for again."""
        self.free += n_blocks
        self._tail += n_blocks

    def give_kept(self, request: int, n_blocks: int, *, n_whole: int) -> None:
        """Give back the blocks of a preempted request, remembering where the `n_whole` full ones lie."""
        self.give(n_blocks - n_whole)
        self._kept[request] = (self._tail, n_whole)
        self.give(n_whole)

    def give_done(self, request: int, n_blocks: int, *, n_whole: int) -> None:  # noqa: ARG002
        """Give back the blocks of a request that has ended: nobody shares them."""
        self.give(n_blocks)

    def already_held(self, request: int, n_blocks: int) -> int:  # noqa: ARG002
        """Return 0: nobody shares blocks."""
        return 0

    def wrote(self, request: int, n_whole: int) -> None:
        """Nobody shares blocks."""

    def found(self, request: int, n_most: int) -> int:
        """Return how many of the first blocks of a preempted request nobody has taken since."""
        if request not in self._kept:
            return 0
        place, n_blocks = self._kept[request]
        return min(n_blocks - min(max(self._head - place, 0), n_blocks), n_most)

    def reclaim(self, request: int, n_blocks: int) -> None:
        """Take the first `n_blocks` blocks of a preempted request as they are; the rest of it is forgotten."""
        place, held = self._kept.pop(request, (0, 0))
        if not n_blocks:
            return
        self.free -= n_blocks
        self.n_reused += n_blocks
        # The beginning of a request lies at the end of its stretch of places.
        start = place + held - n_blocks
        if start <= self._head:
            self._head += n_blocks
            while self._claimed and self._claimed[0][0] <= self._head:
                self._head += heappop(self._claimed)[1]
        else:
            heappush(self._claimed, (start, n_blocks))

    def unclaimed(self) -> int:
        """Return the free blocks as the places of the queue have them: equal to `free` unless a count went wrong."""
        return self._tail - self._head - sum(n for _, n in self._claimed)
