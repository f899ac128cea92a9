"""The requests that run on one replica: who is admitted, which blocks are held, who is preempted, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perfmodel.serving.decoding import ONE_TOKEN, BlockRule, Decoding, Pace
from perfmodel.serving.kv_cache import Pool
from perfmodel.serving.queues import Queue, Victims
from perfmodel.serving.scheduler import Limit, SchedulerLimits

__all__ = ["Batch", "Chunk", "Elsewhere", "HostPool"]


class Chunk(NamedTuple):
    """A piece of a prompt that the next step reads: `n_tokens` after `n_cached`; `is_last` piece or not."""

    request: int
    n_cached: int
    n_tokens: int
    is_last: bool


class Elsewhere(NamedTuple):
    """A waiting request whose KV cache is not lost: in host memory (so many blocks), or sent by a prefill replica."""

    n_cached: int
    n_emitted: int
    host_blocks: int


@dataclass(slots=True)
class HostPool:
    """Room in host memory for the blocks of preempted requests."""

    n_blocks: int
    used: int = 0

    def took(self, n_blocks: int) -> bool:
        """Take room for so many blocks; return whether there was."""
        if self.used + n_blocks > self.n_blocks:
            return False
        self.used += n_blocks
        return True


class Batch:
    """What runs on one replica, with its queue and its KV pool.

    `cut_request` is the one prompt that was cut for want of budget (-1: none). `n_moved` are the blocks that go to or
    come from host memory before the next step.
    """

    __slots__ = (
        "_cut_done",
        "_cut_total",
        "_inputs",
        "_is_fed",
        "_outputs",
        "_victims",
        "asked_tokens",
        "chunks",
        "cut_request",
        "decoding",
        "elsewhere",
        "found_tokens",
        "held_before_ends",
        "host",
        "limit",
        "limits",
        "n_emitted_before",
        "n_moved",
        "n_over",
        "n_running",
        "now_ns",
        "pool",
        "preempted",
        "queue",
        "rejoined",
        "rule",
        "sent_ns",
    )

    def __init__(
        self,
        limits: SchedulerLimits,
        queue: Queue,
        pool: Pool,
        victims: Victims,
        *,
        input_tokens: Sequence[int],
        output_tokens: Sequence[int],
        pace: Pace = ONE_TOKEN,
        host_blocks: int = 0,
    ) -> None:
        self.limits, self.queue, self.pool, self._victims = limits, queue, pool, victims
        self.rule: BlockRule = limits.block_rule
        self.decoding = Decoding(self.rule, pace)
        self.host = HostPool(host_blocks)
        self.chunks: list[Chunk] = []
        self.limit = Limit.ARRIVAL_RATE
        self.held_before_ends = 0
        """Blocks held at the end of the last steps, before those that were done gave theirs back."""
        self.n_over = 0
        """Tokens of the last steps beyond the end of those that were done."""
        self.preempted: list[int] = []
        self.rejoined: list[int] = []
        """Requests that decode again since the last step without reading anything."""
        self.n_emitted_before: dict[int, int] = {}
        self.elsewhere: dict[int, Elsewhere] = {}
        self.n_running = self.n_moved = 0
        self.asked_tokens = self.found_tokens = 0
        """Prompt tokens of first admissions, and those of them that were cached."""
        self.cut_request = -1
        self._cut_done = self._cut_total = 0
        self._is_fed = False
        self.now_ns = 0
        self.sent_ns: Sequence[int] = ()
        """When each request was sent."""
        self._inputs, self._outputs = input_tokens, output_tokens

    # Prompts.

    def head_tokens(self) -> int:
        """Return how many tokens the next request of the queue has to read."""
        request = self.queue.head()
        if request in self.elsewhere:
            return 1 + self.decoding.n_drafted
        total = self._inputs[request] + self.n_emitted_before.get(request, 0)
        return total - self._found(request, total)

    def _found(self, request: int, total: int) -> int:
        """Return the tokens of a request that are cached, in whole blocks, all but the last token."""
        if not (self.pool.shares or (request in self.n_emitted_before and self.limits.finds_again)):
            return 0
        block = self.pool.block_tokens
        return self.pool.found(request, (total - 1) // block) * block

    def admitted(self, budget: int | None) -> int | None:
        """Admit the next request and return how many tokens of it the step takes; None where it has no room.

        Without a budget the whole prompt is read.
        """
        request, pool = self.queue.head(), self.pool
        if request in self.elsewhere:
            return self._rejoined(request)
        total, cached = self._inputs[request], 0
        is_first = request not in self.n_emitted_before
        if pool.shares or not is_first:
            total += self.n_emitted_before.get(request, 0)
            cached = self._found(request, total)
        n_tokens = total - cached
        if budget is not None and n_tokens > budget:
            n_tokens = budget
        is_last = cached + n_tokens == total
        blocks = self.decoding.held(total) if is_last else self.rule.blocks(cached + n_tokens)
        wanted = self.decoding.held(total) if self.limits.reserves_prompt else blocks
        found = cached // pool.block_tokens
        if wanted - pool.already_held(request, found) + self.limits.watermark_blocks > pool.free:
            return None
        self.queue.pop()
        pool.reclaim(request, found)
        pool.take(blocks - found)
        if pool.shares:
            pool.wrote(request, (cached + n_tokens) // pool.block_tokens)
            if is_first:
                self.asked_tokens += total
                self.found_tokens += cached
        self.n_running += 1
        self._victims.add(request)
        self.chunks.append(Chunk(request, cached, n_tokens, is_last))
        if not is_last:
            self.cut_request, self._cut_done, self._cut_total = request, cached + n_tokens, total
        return n_tokens

    def _rejoined(self, request: int) -> int | None:
        """Let a request decode on whose KV cache lies elsewhere; return its tokens of the step, None without room."""
        kept, decoding = self.elsewhere[request], self.decoding
        n_first = decoding.tokens_of(1)
        room = decoding.held(kept.n_cached + n_first)
        others = 0 if self._is_fed else decoding.need(after=0, n_tokens=n_first)
        if room + others + self.limits.watermark_blocks > self.pool.free:
            return None
        self.queue.pop()
        del self.elsewhere[request]
        self.host.used -= kept.host_blocks
        self.n_moved += kept.host_blocks
        self.pool.take(room if self._is_fed else decoding.held(kept.n_cached))
        n_left = self._outputs[request] - kept.n_emitted
        decoding.join(request, n_cached=kept.n_cached, n_emitted=kept.n_emitted, n_left=n_left)
        self.n_running += 1
        self._victims.add(request)
        self.rejoined.append(request)
        return 1 + decoding.n_drafted

    def cut_prompt_continued(self, budget: int) -> int:
        """Read on in the prompt that was cut; return how many tokens, 0 where it was preempted for want of blocks."""
        request, done = self.cut_request, self._cut_done
        n_tokens = min(self._cut_total - done, budget)
        is_last = done + n_tokens == self._cut_total
        after = self.decoding.held(self._cut_total) if is_last else self.rule.blocks(done + n_tokens)
        blocks = after - self.rule.blocks(done)
        while blocks > self.pool.free:
            self._preempt_one()
            if self.cut_request < 0:
                return 0
        self.pool.take(blocks)
        self._cut_done = done + n_tokens
        if self.pool.shares:
            self.pool.wrote(request, self._cut_done // self.pool.block_tokens)
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
            self._ended(request, total)
            return True
        self.decoding.join(request, n_cached=total, n_emitted=n_emitted, n_left=n_left)
        return False

    def _ended(self, request: int, n_cached: int) -> None:
        blocks = self.decoding.held(n_cached)
        if self.pool.shares:
            self.pool.give_done(request, blocks, n_whole=n_cached // self.pool.block_tokens)
        else:
            self.pool.give(blocks)
        self._victims.remove(request)
        self.n_running -= 1

    # Decoding.

    def blocks_for_decode(self) -> bool:
        """Take the blocks that the next decode step needs; return whether requests were preempted for it."""
        decoding, pool = self.decoding, self.pool
        n_tokens = decoding.tokens_of(1)
        any_preempted = False
        while (blocks := decoding.need(after=0, n_tokens=n_tokens)) > pool.free:
            self._preempt_one()
            any_preempted = True
        pool.take(blocks)
        self._is_fed = True
        return any_preempted

    def steps_to_event(self) -> int:
        """Return how many decode steps can follow each other before one ends or blocks run out.

        The blocks of the first were taken already.
        """
        return self.decoding.steps_with(self.pool.free, self.decoding.steps_to_event())

    def decoded(self, n_steps: int) -> list[int]:
        """Advance all decoding sequences, taking blocks for every step but the first; return those that are done.

        No steps: only prompts are read.
        """
        decoding = self.decoding
        self._is_fed = False
        if not n_steps:
            self.held_before_ends = self.pool.used
            self.n_over = 0
            return []
        if n_steps > 1:
            first = decoding.tokens_of(1)
            self.pool.take(decoding.need(after=first, n_tokens=decoding.tokens_of(n_steps) - first))
        done, n_back = decoding.advance(n_steps)
        if n_back:
            self.pool.give(n_back)
        self.held_before_ends = self.pool.used
        self.n_over = 0
        for request in done:
            self.n_over += decoding.n_emitted(request) - self._outputs[request]
            self._ended(request, decoding.leave(request))
        return done

    def _preempt_one(self) -> None:
        """Take the blocks of the request that gives way, and put it back: to be read again, or to be fetched."""
        request = self._victims.pop()
        self.n_running -= 1
        if request == self.cut_request:
            n_cached = self._cut_done
            blocks, self.cut_request = self.rule.blocks(n_cached), -1
            self.n_emitted_before.setdefault(request, 0)
        else:
            n_emitted = self.decoding.n_emitted(request)
            n_cached = self.decoding.leave(request)
            filled = self.decoding.held(n_cached)
            # For a cut prompt a sequence may have to go that was given room for the next step.
            blocks = self.decoding.held(n_cached + self.decoding.tokens_of(1)) if self._is_fed else filled
            if self.host.took(filled):
                self.n_moved += filled
                self.elsewhere[request] = Elsewhere(n_cached, n_emitted, filled)
            else:
                self.n_emitted_before[request] = n_emitted
        if self.limits.finds_again or self.pool.shares:
            self.pool.give_kept(request, blocks, n_whole=n_cached // self.pool.block_tokens)
        else:
            self.pool.give(blocks)
        if request in self.rejoined:
            self.rejoined.remove(request)
        self.queue.put_back(request)
        self.preempted.append(request)
        self.limit = Limit.KV_CAPACITY

    def requests(self) -> list[int]:
        """Take all requests that run or wait, and return them."""
        found = [*self.decoding.seqs, *([self.cut_request] if self.cut_request >= 0 else [])]
        while self.queue:
            found.append(self.queue.pop())
        return found

    def n_emitted(self, request: int) -> int:
        """Return how many outputs a request has that runs or waits."""
        if request in self.decoding.seqs:
            return self.decoding.n_emitted(request)
        kept = self.elsewhere.get(request)
        return kept.n_emitted if kept is not None else self.n_emitted_before.get(request, 0)

    def after(self, other: Batch) -> Batch:
        """Return this batch with the counts of one that came before it."""
        self.asked_tokens += other.asked_tokens
        self.found_tokens += other.found_tokens
        self.pool.n_reused += other.pool.n_reused
        return self

    def held_blocks(self) -> int:
        """Return the blocks of all running requests, counted one by one: `pool.used` if none is shared."""
        decoding = self.decoding
        held = [decoding.held(d.n_cached + decoding.tick - d.joined) for d in decoding.seqs.values()]
        return sum(held) + (self.rule.blocks(self._cut_done) if self.cut_request >= 0 else 0)
