"""The shared pool against one that keeps every block in a list: what is found, what is free, what is evicted."""

from __future__ import annotations

import random

import numpy as np
import pytest

from perfmodel.errors import SpecError
from perfmodel.serving.prefix_cache import Prefixes, PrefixPool

BLOCK = 4


class ListedBlocks:
    """The same pool block by block: free ones in order, oldest first, and who holds which."""

    def __init__(self, n_blocks: int, prefixes: Prefixes) -> None:
        self.prefixes = prefixes
        self.free: list[int | None] = [None] * n_blocks
        self.held: dict[int, list[int | None]] = {}

    def names(self, request: int, n: int) -> list[int]:
        return self.prefixes.names(request, n, block_tokens=BLOCK)

    def in_use(self) -> set[int]:
        return {name for blocks in self.held.values() for name in blocks if name is not None}

    def found(self, request: int, n_most: int) -> int:
        known = self.in_use() | {name for name in self.free if name is not None}
        names = self.names(request, n_most)
        return next((i for i, name in enumerate(names) if name not in known), len(names))

    def admit(self, request: int, n_found: int, n_blocks: int, n_whole: int) -> None:
        names = self.names(request, n_whole)
        for name in names[:n_found]:
            if name in self.free:
                self.free.remove(name)
        del self.free[: n_blocks - n_found]
        taken: list[int | None] = [*names[:n_found]]
        known = self.in_use() | {name for name in self.free if name is not None}
        is_new = True
        for name in names[n_found:]:
            is_new = is_new and name not in known
            taken.append(name if is_new else None)
        self.held[request] = taken + [None] * (n_blocks - len(taken))

    def release(self, request: int, n_whole: int) -> None:
        blocks = self.held.pop(request)
        n_named = next((i for i, name in enumerate(blocks) if name is None), len(blocks))
        kept: list[int | None] = [*blocks[:n_named]]
        others = self.in_use()
        known = others | {name for name in self.free if name is not None} | {n for n in kept if n is not None}
        written = [name for name in self.names(request, n_whole)[n_named:] if name not in known]
        self.free += [None] * (len(blocks) - n_named - len(written))
        self.free += reversed(written)
        self.free += [name for name in reversed(kept) if name not in others]


@pytest.mark.parametrize("is_hashed", [False, True])
def test_counted_blocks_equal_listed_blocks(is_hashed: bool) -> None:
    n_hits = n_evicted = 0
    for seed in range(40):
        rng, n = random.Random(seed), 150
        draw = np.random.default_rng(seed)
        hashes = [[int(h) for h in draw.integers(0, 3, 6)] for _ in range(n)] if is_hashed else ()
        prefixes = Prefixes(draw.integers(-1, 4, n), draw.integers(0, 30, n), draw.integers(-1, 9, n), hashes, 8)
        pool, listed = PrefixPool(40, block_tokens=BLOCK, prefixes=prefixes), ListedBlocks(40, prefixes)
        running: dict[int, tuple[int, int]] = {}
        for request in range(n):
            total = rng.randint(1, 60)
            n_most, n_blocks, n_whole = (total - 1) // BLOCK, -(-total // BLOCK), total // BLOCK
            assert pool.found(request, n_most) == listed.found(request, n_most)
            n_found = pool.found(request, n_most)
            if n_blocks - pool.already_held(request, n_found) <= pool.free:
                pool.reclaim(request, n_found)
                pool.take(n_blocks - n_found)
                pool.wrote(request, n_whole)
                listed.admit(request, n_found, n_blocks, n_whole)
                running[request] = (n_blocks, n_whole)
                n_hits += n_found
            while running and (rng.random() < 0.4 or pool.free < 5):
                gone = rng.choice(list(running))
                n_blocks, n_whole = running.pop(gone)
                pool.give_kept(gone, n_blocks, n_whole=n_whole)
                listed.release(gone, n_whole)
            assert pool.free == pool.unclaimed() == len(listed.free)
            assert pool.used == pool.n_blocks - len(listed.free)
            earlier = rng.randrange(request + 1)
            assert pool.found(earlier, 15) == listed.found(earlier, 15)
            n_evicted += pool.found(earlier, 15) == 0
        for gone, (n_blocks, n_whole) in running.items():
            pool.give_kept(gone, n_blocks, n_whole=n_whole)
        assert pool.free == pool.n_blocks
        assert pool.n_shared == 0
    assert n_hits > 1000
    assert n_evicted > 100


def test_names_stand_for_all_that_came_before() -> None:
    one = Prefixes(np.array([0, 0, 1, -1]), np.array([10, 10, 10, 0]), np.array([-1, -1, -1, -1]))
    names = [one.names(request, 4, block_tokens=BLOCK) for request in range(4)]
    # Ten shared tokens are two whole blocks; the third holds tokens of the request's own.
    assert names[0][:2] == names[1][:2]
    assert not set(names[0][2:]) & set(names[1])
    assert not set(names[0]) & set(names[2])
    assert len({name for request in names for name in request}) == 4 * 4 - 2
    signed = Prefixes.none(3)
    signed = Prefixes(signed.group, signed.group_tokens, signed.conversation, hashes=[(-4,), (4,), (3,)], hash_tokens=8)
    firsts = [signed.names(request, 1, block_tokens=8)[0] for request in range(3)]
    assert len(set(firsts)) == 3
    assert min(firsts) >= 0


def test_prefixes_of_some_of_the_requests() -> None:
    three = Prefixes(np.arange(3), np.full(3, 8), np.array([5, -1, 7]), hashes=[(1,), (2,), (3,)], hash_tokens=8)
    some = three.picked(np.array([2, 0]))
    assert (some.group.tolist(), some.conversation.tolist(), list(some.hashes)) == ([2, 0], [7, 5], [(3,), (1,)])
    assert three.goes_on(0)
    assert not three.goes_on(1)
    with pytest.raises(SpecError, match="hash_tokens"):
        Prefixes(np.arange(1), np.ones(1, np.int64), np.arange(1), hash_tokens=0)
    with pytest.raises(SpecError, match="one list for each"):
        Prefixes(np.arange(2), np.ones(2, np.int64), np.arange(2), hashes=[(1,)])
