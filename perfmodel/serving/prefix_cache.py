"""A pool in which requests find the blocks that others have written: hashed blocks, the least recently used go first.

A block is known by a name that stands for all tokens up to its end, as the hash of vLLM and the node of SGLang's radix
tree do. Held blocks count their holders; free ones keep their content until they are taken, oldest first. A request
gives its last block back first, so that beginnings stay longest. Blocks that decoding fills get their names when the
request ends or is preempted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import Fault, SpecError

__all__ = ["PrefixPool", "Prefixes"]

_PLACES: Final = 1 << 24
"""Blocks of one text that names tell apart."""
_NONE: Final = -1


@dataclass(frozen=True, eq=False, slots=True)
class Prefixes:
    """What the prompts of a trace have in common; -1: nothing.

    Requests of one `group` begin with the same `group_tokens` tokens. Requests of one `conversation` go on in one text:
    the prompt of a turn holds the prompts and answers before it. `hashes` name the blocks of `hash_tokens` tokens of
    each prompt, each name for everything up to there (Mooncake traces); what follows the last one is the request's own.
    """

    group: NDArray[np.int64]
    group_tokens: NDArray[np.int64]
    conversation: NDArray[np.int64]
    hashes: Sequence[Sequence[int]] = ()
    hash_tokens: int = 512

    def __post_init__(self) -> None:
        n = len(self.group)
        shapes = {self.group.shape, self.group_tokens.shape, self.conversation.shape}
        faults = [] if shapes == {(n,)} else [Fault("prefixes", "columns of different lengths", f"{n} of each")]
        if self.hashes and len(self.hashes) != n:
            faults.append(Fault("hashes", f"{len(self.hashes)}", f"one list for each of {n} requests"))
        if self.hash_tokens < 1:
            faults.append(Fault("hash_tokens", str(self.hash_tokens), "at least 1"))
        if faults:
            raise SpecError("the shared prefixes cannot be used", faults=faults)

    @classmethod
    def none(cls, n_requests: int) -> Prefixes:
        """Return prefixes of requests that have nothing in common."""
        nobody = np.full(n_requests, _NONE, np.int64)
        return cls(nobody, np.zeros(n_requests, np.int64), nobody)

    def picked(self, which: slice | NDArray[np.int64]) -> Prefixes:
        """Return the prefixes of some of the requests."""
        hashes = self.hashes
        if hashes:
            places = np.arange(len(hashes))[which].tolist()
            hashes = [hashes[i] for i in places]
        columns = (self.group[which], self.group_tokens[which], self.conversation[which])
        return replace(self, group=columns[0], group_tokens=columns[1], conversation=columns[2], hashes=hashes)

    def names(self, request: int, n_blocks: int, *, block_tokens: int) -> list[int]:
        """Return the names of the first blocks of a request's text."""
        names: list[int] = []
        if self.hashes:
            ids, per = self.hashes[request], self.hash_tokens
            n = min(n_blocks, len(ids) * per // block_tokens)
            # Names are not negative, whatever numbers a trace has: negative keys of a pool have no name.
            whole = [2 * h if h >= 0 else -2 * h - 1 for h in ids]
            names = [3 * (whole[((i + 1) * block_tokens - 1) // per] * _PLACES + i) for i in range(n)]
        elif self.group[request] >= 0:
            n = min(n_blocks, int(self.group_tokens[request]) // block_tokens)
            start = 3 * int(self.group[request]) * _PLACES + 1
            names = list(range(start, start + 3 * n, 3))
        text = int(self.conversation[request])
        own = 2 * text if text >= 0 else 2 * request + 1
        start = 3 * own * _PLACES + 2
        names.extend(range(start + 3 * len(names), start + 3 * n_blocks, 3))
        return names

    def goes_on(self, request: int) -> bool:
        """Return whether somebody may ask for the answer of a request."""
        return bool(self.conversation[request] >= 0)


class PrefixPool:
    """A pool of `n_blocks` blocks that requests share; used + free = n_blocks after every call."""

    __slots__ = (
        "_answer",
        "_asked",
        "_blank",
        "_free",
        "_held",
        "_holders",
        "_n_changes",
        "_prefixes",
        "block_tokens",
        "free",
        "n_blocks",
        "n_reused",
        "shares",
    )

    def __init__(self, n_blocks: int, *, block_tokens: int, prefixes: Prefixes) -> None:
        self.n_blocks, self.block_tokens, self.free = n_blocks, block_tokens, n_blocks
        self.n_reused = 0
        self.shares = True
        self._prefixes = prefixes
        self._blank = count(-1, -1)
        # Free blocks, oldest first: a name stands for one block, a negative key for a stretch without names.
        self._free: OrderedDict[int, int] = OrderedDict({next(self._blank): n_blocks})
        self._holders: dict[int, int] = {}
        self._held: dict[int, list[int]] = {}
        """The names that each request holds, from the beginning of its text."""
        self._n_changes = 0
        self._asked, self._answer = (_NONE, 0, 0), (0, 0)

    @property
    def used(self) -> int:
        """Blocks that requests hold, each counted once."""
        return self.n_blocks - self.free

    @property
    def n_shared(self) -> int:
        """Blocks that would be needed more if nobody shared."""
        return sum(self._holders.values()) - len(self._holders)

    def take(self, n_blocks: int) -> None:
        """Take free blocks, oldest first; raises SpecError where there are not so many."""
        if n_blocks > self.free:
            raise SpecError("the KV pool has run out", got=f"{self.free} free blocks", expected=f"{n_blocks}")
        self.free -= n_blocks
        self._n_changes += 1
        free = self._free
        while n_blocks:
            key, n = free.popitem(last=False)
            if n > n_blocks:
                free[key] = n - n_blocks
                free.move_to_end(key, last=False)
                return
            n_blocks -= n

    def give(self, n_blocks: int) -> None:
        """Give blocks back that nobody will ask for again."""
        if n_blocks:
            self._free[next(self._blank)] = n_blocks
            self.free += n_blocks

    def give_kept(self, request: int, n_blocks: int, *, n_whole: int) -> None:
        """Give back the blocks of a preempted request: its full blocks may be found again."""
        names = self._held.pop(request, [])
        fresh = self._prefixes.names(request, n_whole, block_tokens=self.block_tokens)[len(names) :]
        self._n_changes += 1
        free, holders = self._free, self._holders
        named = [name for name in fresh if name not in free and name not in holders]
        self.give(n_blocks - len(names) - len(named))
        for name in reversed(named):
            free[name] = 1
        self.free += len(named)
        for name in reversed(names):
            if holders[name] > 1:
                holders[name] -= 1
            else:
                del holders[name]
                free[name] = 1
                self.free += 1

    def give_done(self, request: int, n_blocks: int, *, n_whole: int) -> None:
        """Give back the blocks of a request that has ended; of its answer only where a conversation goes on."""
        whole = n_whole if self._prefixes.goes_on(request) else 0
        self.give_kept(request, n_blocks, n_whole=whole)

    def found(self, request: int, n_most: int) -> int:
        """Return how many blocks from the beginning of a request's text are cached."""
        return self._looked_up(request, n_most)[0]

    def already_held(self, request: int, n_blocks: int) -> int:
        """Return how many of the first blocks of a request others hold now: they need no free ones."""
        return self._looked_up(request, n_blocks)[1]

    def _looked_up(self, request: int, n_most: int) -> tuple[int, int]:
        """Return (blocks found, those of them that are held), remembered until the pool changes."""
        key = (request, n_most, self._n_changes)
        if key == self._asked:
            return self._answer
        free, holders = self._free, self._holders
        n = n_held = 0
        for name in self._prefixes.names(request, n_most, block_tokens=self.block_tokens):
            if name in holders:
                n_held += 1
            elif name not in free:
                break
            n += 1
        self._asked, self._answer = key, (n, n_held)
        return self._answer

    def reclaim(self, request: int, n_blocks: int) -> None:
        """Take the first blocks of a request as they are."""
        if not n_blocks:
            return
        self.n_reused += n_blocks
        self._n_changes += 1
        names = self._prefixes.names(request, n_blocks, block_tokens=self.block_tokens)
        for name in names:
            if name in self._holders:
                self._holders[name] += 1
            else:
                del self._free[name]
                self.free -= 1
                self._holders[name] = 1
        self._held[request] = names

    def wrote(self, request: int, n_whole: int) -> None:
        """Let others find the first full blocks of a prompt, up to the first that another request wrote as well."""
        held = self._held.setdefault(request, [])
        names = self._prefixes.names(request, n_whole, block_tokens=self.block_tokens)
        for name in islice(names, len(held), None):
            if name in self._holders or name in self._free:
                break
            self._holders[name] = 1
            held.append(name)
        self._n_changes += 1

    def unclaimed(self) -> int:
        """Return the free blocks counted anew: equal to `free` unless a count went wrong."""
        return sum(self._free.values())
