"""The requests that run: who decodes, what they attend to, which blocks they hold, who is preempted.

Nothing here is done token by token. All decoding sequences advance together, so each is known by the tick (decode step)
at which it joined; block needs repeat with the block size, so that they are kept as one count for each remainder.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from perfmodel.serving.kv_cache import BlockPool
from perfmodel.serving.scheduler import Limit, Queue, SchedulerLimits

__all__ = ["Batch", "Chunk"]

_STALE_AT_MOST: Final = 1000
"""Finished requests that the list of the newest may still hold beside four for each running one."""


class Chunk(NamedTuple):
    """A piece of a prompt that the next step reads: `n_tokens` after `n_cached`; `is_last` piece or not."""

    request: int
    n_cached: int
    n_tokens: int
    is_last: bool


class _Decoding(NamedTuple):
    """A decoding sequence: `n_cached` tokens and `n_emitted` outputs when it joined at a tick, the tick of its end."""

    joined: int
    n_cached: int
    n_emitted: int
    end: int


class Batch:
    """What runs on one replica, with its queue and its KV pool.

    `n_seqs` decode and hold `context` cached tokens together. `cut_request` is the one prompt that was cut (-1: none);
    it is always the newest, since it was cut for want of budget.
    """

    __slots__ = (
        "_counts",
        "_cut_done",
        "_cut_total",
        "_decoding",
        "_ends",
        "_inputs",
        "_newest",
        "_outputs",
        "_reserved_blocks",
        "chunks",
        "context",
        "cut_request",
        "held_before_ends",
        "limit",
        "limits",
        "n_emitted_before",
        "n_running",
        "n_seqs",
        "pool",
        "preempted",
        "queue",
        "tick",
    )

    def __init__(
        self, limits: SchedulerLimits, queue: Queue, *, input_tokens: Sequence[int], output_tokens: Sequence[int]
    ) -> None:
        self.limits, self.queue = limits, queue
        self.pool = BlockPool(limits.n_blocks, block_tokens=limits.block_tokens)
        self.chunks: list[Chunk] = []
        self.limit = Limit.ARRIVAL_RATE
        self.held_before_ends = 0
        """Blocks held at the end of the last steps, before those that were done gave theirs back."""
        self.preempted: list[int] = []
        self.n_emitted_before: dict[int, int] = {}
        self.n_seqs = self.n_running = self.context = self.tick = 0
        self.cut_request = -1
        self._cut_done = self._cut_total = 0
        self._counts = [0] * limits.block_tokens
        self._decoding: dict[int, _Decoding] = {}
        self._ends: list[tuple[int, int]] = []
        self._newest: list[int] = []
        self._inputs, self._outputs = input_tokens, output_tokens
        reserved = limits.preallocated_tokens
        self._reserved_blocks = -(-reserved // limits.block_tokens) if reserved else 0

    def _blocks(self, n_tokens: int) -> int:
        return self._reserved_blocks or -(-n_tokens // self.pool.block_tokens)

    # Prompts.

    def head_tokens(self) -> int:
        """Return how many tokens the next request of the queue has to read."""
        request = self.queue.head()
        return self._inputs[request] + self.n_emitted_before.get(request, 0) - self._found(request)

    def _found(self, request: int) -> int:
        """Return the tokens of a preempted request that are still cached, in whole blocks, all but the last token."""
        if request not in self.n_emitted_before or not self.limits.keeps_prefix:
            return 0
        block = self.pool.block_tokens
        total = self._inputs[request] + self.n_emitted_before[request]
        return min(self.pool.found(request), (total - 1) // block) * block

    def admitted(self, budget: int | None) -> int:
        """Admit the next request and return how many tokens of it the step reads; 0 where it has no room.

        Without a budget the whole prompt is read.
        """
        request = self.queue.head()
        total, cached = self._inputs[request], 0
        if request in self.n_emitted_before:
            total, cached = total + self.n_emitted_before[request], self._found(request)
        n_tokens = total - cached
        if budget is not None and n_tokens > budget:
            n_tokens = budget
        blocks = self._blocks(cached + n_tokens)
        wanted = self._blocks(total) if self.limits.reserves_prompt else blocks
        if wanted + self.limits.watermark_blocks > self.pool.free:
            return 0
        self.queue.pop()
        found = cached // self.pool.block_tokens
        self.pool.reclaim(request, found)
        self.pool.take(blocks - found)
        self.n_running += 1
        self._newest.append(request)
        is_last = cached + n_tokens == total
        self.chunks.append(Chunk(request, cached, n_tokens, is_last))
        if not is_last:
            self.cut_request, self._cut_done, self._cut_total = request, cached + n_tokens, total
        return n_tokens

    def cut_prompt_continued(self, budget: int) -> int:
        """Read on in the prompt that was cut; return how many tokens, 0 where it was preempted for want of blocks."""
        request, done = self.cut_request, self._cut_done
        n_tokens = min(self._cut_total - done, budget)
        blocks = self._blocks(done + n_tokens) - self._blocks(done)
        if blocks > self.pool.free:
            self._preempt_newest()
            return 0
        self.pool.take(blocks)
        self._cut_done = done + n_tokens
        is_last = self._cut_done == self._cut_total
        self.chunks.append(Chunk(request, done, n_tokens, is_last))
        if is_last:
            self.cut_request = -1
        return n_tokens

    def prompt_read(self, chunk: Chunk) -> bool:
        """Emit the token that follows a prompt; return whether it was the request's last one."""
        request, total = chunk.request, chunk.n_cached + chunk.n_tokens
        n_emitted = self.n_emitted_before.pop(request, 0) + 1
        n_left = self._outputs[request] - n_emitted
        if n_left == 0:
            self.pool.give(self._blocks(total))
            self.n_running -= 1
            return True
        self._decoding[request] = _Decoding(self.tick, total, n_emitted, self.tick + n_left)
        self._counts[(self.tick - total) % self.pool.block_tokens] += 1
        self.n_seqs += 1
        self.context += total
        heappush(self._ends, (self.tick + n_left, request))
        return False

    # Decoding.

    def blocks_for_decode(self) -> bool:
        """Take the blocks that the next decode step needs; return whether requests were preempted for it."""
        if self._reserved_blocks:
            return False
        place = self.tick % self.pool.block_tokens
        counts = self._counts
        any_preempted = False
        while counts[place] > self.pool.free:
            self._preempt_newest()
            any_preempted = True
        self.pool.take(counts[place])
        return any_preempted

    def steps_to_end(self) -> int:
        """Return the decode steps until the next sequence has all of its tokens."""
        ends, decoding = self._ends, self._decoding
        while True:
            end, request = ends[0]
            found = decoding.get(request)
            if found is not None and found.end == end:
                return end - self.tick
            heappop(ends)

    def steps_with_blocks(self, n_most: int) -> int:
        """Return how many decode steps, up to `n_most`, can follow each other before blocks run out.

        The blocks of the first were taken already.
        """
        block, n, free = self.pool.block_tokens, self.n_seqs, self.pool.free
        if self._reserved_blocks or n * ((n_most - 1) // block + 1) <= free:
            return n_most
        n_cycles, left = divmod(free, n)
        n_steps = n_cycles * block
        while n_steps < n_most and self._counts[(self.tick + n_steps + 1) % block] <= left:
            n_steps += 1
            left -= self._counts[(self.tick + n_steps) % block]
        return min(n_most, n_steps + 1)

    def decoded(self, n_steps: int) -> list[int]:
        """Advance all decoding sequences, taking blocks for every step but the first; return those that are done.

        No steps: only prompts are read.
        """
        if n_steps > 1 and not self._reserved_blocks:
            block, counts = self.pool.block_tokens, self._counts
            n_cycles, rest = divmod(n_steps - 1, block)
            start = (self.tick + 1) % block
            over = start + rest - block
            n_blocks = sum(counts[start : start + rest]) + (sum(counts[:over]) if over > 0 else 0)
            self.pool.take(n_cycles * self.n_seqs + n_blocks)
        self.tick += n_steps
        self.context += n_steps * self.n_seqs
        self.held_before_ends = self.pool.used
        done: list[int] = []
        ends, tick = self._ends, self.tick
        while ends and ends[0][0] <= tick:
            end, request = heappop(ends)
            found = self._decoding.get(request)
            if found is not None and found.end == end:
                self.pool.give(self._blocks(self._removed(request)))
                done.append(request)
        if done and not self.chunks and len(self._newest) > 4 * self.n_running + _STALE_AT_MOST:
            self._newest = [r for r in self._newest if r in self._decoding]
        return done

    def _removed(self, request: int) -> int:
        """Take a sequence out of decoding and return its cached tokens."""
        found = self._decoding.pop(request)
        n_cached = found.n_cached + self.tick - found.joined
        self._counts[(found.joined - found.n_cached) % self.pool.block_tokens] -= 1
        self.n_seqs -= 1
        self.n_running -= 1
        self.context -= n_cached
        return n_cached

    def _preempt_newest(self) -> None:
        """Give back the blocks of the newest request and put it before the queue: it reads all of its tokens again."""
        if self.cut_request >= 0:
            request, n_cached = self.cut_request, self._cut_done
            self.cut_request = -1
            self._newest.pop()
            self.n_running -= 1
            self.n_emitted_before.setdefault(request, 0)
        else:
            request = self._newest.pop()
            while request not in self._decoding:
                request = self._newest.pop()
            found = self._decoding[request]
            self.n_emitted_before[request] = found.n_emitted + self.tick - found.joined
            n_cached = self._removed(request)
        self.pool.give_kept(request, self._blocks(n_cached), n_whole=n_cached // self.pool.block_tokens)
        self.queue.put_back(request)
        self.preempted.append(request)
        self.limit = Limit.KV_CAPACITY

    def held_blocks(self) -> int:
        """Return the blocks of all running requests, counted one by one: equal to `pool.used` between steps."""
        held = [self._blocks(d.n_cached + self.tick - d.joined) for d in self._decoding.values()]
        return sum(held) + (self._blocks(self._cut_done) if self.cut_request >= 0 else 0)
