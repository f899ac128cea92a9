"""The block pool: nothing is lost, and a preempted request finds what nobody took."""

from __future__ import annotations

import random

import pytest

from perfmodel.errors import SpecError
from perfmodel.serving.kv_cache import BlockPool


class ListedPool:
    """The same pool with every block in a list: (owner, place in owner) or None, oldest first."""

    def __init__(self, n_blocks: int) -> None:
        self.free: list[tuple[int, int] | None] = [None] * n_blocks

    def take(self, n: int) -> None:
        del self.free[:n]

    def give_kept(self, request: int, n: int, n_whole: int) -> None:
        self.free += [None] * (n - n_whole) + [(request, i) for i in reversed(range(n_whole))]

    def found(self, request: int) -> int:
        return sum(1 for block in self.free if block is not None and block[0] == request)

    def reclaim(self, request: int, n: int) -> None:
        self.free = [b for b in self.free if b is None or b[0] != request or b[1] >= n]
        self.free = [None if b is not None and b[0] == request else b for b in self.free]


def test_counted_places_equal_listed_blocks() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        pool, listed = BlockPool(40, block_tokens=16), ListedPool(40)
        held: dict[int, int] = {}
        kept: list[int] = []
        for request in range(120):
            n = rng.randint(1, 12)
            if n <= pool.free:
                pool.take(n)
                listed.take(n)
                held[request] = n
            elif held:
                gone = rng.choice(list(held))
                n = held.pop(gone)
                if rng.random() < 0.6:
                    whole = n - rng.randint(0, 1)
                    pool.give_kept(gone, n, n_whole=whole)
                    listed.give_kept(gone, n, whole)
                    kept.append(gone)
                else:
                    pool.give(n)
                    listed.free += [None] * n
            if kept and rng.random() < 0.4:
                back = kept.pop(rng.randrange(len(kept)))
                assert pool.found(back, 99) == listed.found(back)
                n = rng.randint(0, pool.found(back, 99))
                pool.reclaim(back, n)
                listed.reclaim(back, n)
                if n:
                    held[1000 + request] = n
            assert pool.free == pool.unclaimed() == len(listed.free)
            assert pool.used + pool.free == pool.n_blocks
            for other in kept:
                assert pool.found(other, 99) == listed.found(other)


def test_a_pool_that_runs_out_says_so() -> None:
    pool = BlockPool(3, block_tokens=16)
    pool.take(2)
    with pytest.raises(SpecError, match="run out"):
        pool.take(2)
    with pytest.raises(SpecError, match="at least one block"):
        BlockPool(0, block_tokens=16)
