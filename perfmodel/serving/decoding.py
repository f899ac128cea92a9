"""The sequences that decode: what they attend to, when they end, when they need another block.

Nothing here is done token by token. All sequences gain the same tokens in a step, so each is known by the tick at which
it joined (a tick is a token); block needs repeat with the block size, so that they are kept as one count for each
remainder. With speculation a step yields several tokens: after s steps every sequence has gained floor(s x mean), the
mean without its rounding, so that runs stay exact and the mean is met.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, NamedTuple

from perfmodel.errors import SpecError

__all__ = ["ONE_TOKEN", "BlockRule", "Decoding", "Pace"]


@dataclass(frozen=True, slots=True)
class Pace:
    """Tokens that a decode step yields, on average: `n_tokens` / `n_steps`, of `n_draft` drafted ones and one more."""

    n_tokens: int
    n_steps: int
    n_draft: int

    def __post_init__(self) -> None:
        if not self.n_steps <= self.n_tokens <= self.n_steps * (1 + self.n_draft):
            raise SpecError(
                "the speculation does not work",
                where="acceptance length",
                got=f"{self.n_tokens / self.n_steps:g} tokens a step",
                expected=f"from 1 to {1 + self.n_draft}, the drafted tokens and one more",
            )

    @classmethod
    def of(cls, acceptance_length: float, *, n_draft: int) -> Pace:
        """Return the pace of a mean acceptance length, kept to a thousandth of a token."""
        return cls(round(acceptance_length * 1000), 1000, n_draft)


ONE_TOKEN: Final = Pace(1, 1, 0)


@dataclass(frozen=True, slots=True)
class BlockRule:
    """How many blocks a sequence holds: one for `block_tokens` tokens in each of `n_full` groups of layers.

    In `n_window` further groups no more than `window_blocks`: those behind the window are released.
    `reserved_blocks`: every sequence holds so many from the start to the end.
    """

    block_tokens: int
    n_full: int = 1
    n_window: int = 0
    window_blocks: int = 0
    reserved_blocks: int = 0

    def blocks(self, n_tokens: int) -> int:
        """Return the blocks of a sequence of so many tokens."""
        if self.reserved_blocks:
            return self.reserved_blocks
        n = -(-n_tokens // self.block_tokens)
        return n if not self.n_window else self.n_full * n + self.n_window * min(n, self.window_blocks)


class _Sequence(NamedTuple):
    """A decoding sequence: `n_cached` tokens and `n_emitted` outputs when it joined at a tick, the tick of its end."""

    joined: int
    n_cached: int
    n_emitted: int
    end: int


class Decoding:
    """`n_seqs` sequences that hold `context` cached tokens together."""

    __slots__ = (
        "_counts",
        "_ends",
        "_growth",
        "_pace",
        "_steps",
        "_windows",
        "context",
        "n_seqs",
        "rule",
        "seqs",
        "tick",
    )

    def __init__(self, rule: BlockRule, pace: Pace = ONE_TOKEN) -> None:
        self.rule, self._pace = rule, pace
        self.n_seqs = self.context = self.tick = self._steps = 0
        self.seqs: dict[int, _Sequence] = {}
        self._counts = [0] * rule.block_tokens
        self._growth = 0
        """Blocks that all sequences together need each time they gain `block_tokens` tokens."""
        self._ends: list[tuple[int, int]] = []
        self._windows: list[tuple[int, int]] = []
        """(tick, request) at which a sequence fills its window and stops to grow there."""

    @property
    def n_drafted(self) -> int:
        """Tokens drafted for each sequence in a step: it holds room for so many more than it has."""
        return self._pace.n_draft

    @property
    def is_even(self) -> bool:
        """Whether every step yields the same number of tokens."""
        return self._pace.n_tokens % self._pace.n_steps == 0

    def tokens_of(self, n_steps: int) -> int:
        """Return how many tokens each sequence gains in the next steps."""
        return (self._steps + n_steps) * self._pace.n_tokens // self._pace.n_steps - self.tick

    def _steps_for(self, tick: int) -> int:
        """Return the fewest steps after which this tick is reached."""
        return -(-tick * self._pace.n_steps // self._pace.n_tokens) - self._steps

    def held(self, n_cached: int) -> int:
        """Return the blocks that a decoding sequence of so many cached tokens holds, drafts included."""
        return self.rule.blocks(n_cached + self._pace.n_draft)

    def join(self, request: int, *, n_cached: int, n_emitted: int, n_left: int) -> None:
        """Add a sequence that has so many tokens left; its blocks were taken."""
        tick, block = self.tick, self.rule.block_tokens
        self.seqs[request] = _Sequence(tick, n_cached, n_emitted, tick + n_left)
        n_room = n_cached + self._pace.n_draft
        self._grow((tick - n_room) % block, self._weight(n_room))
        if self.rule.n_window and n_room < self.rule.window_blocks * block:
            heappush(self._windows, (tick + self.rule.window_blocks * block - n_room, request))
        self.n_seqs += 1
        self.context += n_cached
        heappush(self._ends, (tick + n_left, request))

    def _weight(self, n_room: int) -> int:
        """Return the blocks that a sequence needs at each of its next boundaries."""
        rule = self.rule
        if rule.reserved_blocks:
            return 0
        grows = n_room < rule.window_blocks * rule.block_tokens
        return rule.n_full + (rule.n_window if grows else 0)

    def _grow(self, place: int, n_blocks: int) -> None:
        self._counts[place] += n_blocks
        self._growth += n_blocks

    def leave(self, request: int) -> int:
        """Take a sequence out and return its cached tokens."""
        found = self.seqs.pop(request)
        n_cached = found.n_cached + self.tick - found.joined
        n_draft = self._pace.n_draft
        place = (found.joined - found.n_cached - n_draft) % self.rule.block_tokens
        self._grow(place, -self._weight(n_cached + n_draft))
        self.n_seqs -= 1
        self.context -= n_cached
        return n_cached

    def n_emitted(self, request: int) -> int:
        """Return how many outputs a sequence has."""
        found = self.seqs[request]
        return found.n_emitted + self.tick - found.joined

    def need(self, *, after: int, n_tokens: int) -> int:
        """Return the blocks that all need for so many tokens, beginning `after` tokens from now."""
        block, counts = self.rule.block_tokens, self._counts
        if n_tokens == 1:
            return counts[(self.tick + after) % block]
        n_cycles, rest = divmod(n_tokens, block)
        start = (self.tick + after) % block
        over = start + rest - block
        return n_cycles * self._growth + sum(counts[start : start + rest]) + (sum(counts[:over]) if over > 0 else 0)

    def steps_to_event(self) -> int:
        """Return the steps until a sequence has all of its tokens, or fills its window."""
        ends, seqs = self._ends, self.seqs
        while True:
            end, request = ends[0]
            found = seqs.get(request)
            if found is not None and found.end == end:
                break
            heappop(ends)
        windows = self._windows
        while windows and windows[0][1] not in seqs:
            heappop(windows)
        if windows and windows[0][0] < end:
            end = windows[0][0]
        return max(1, self._steps_for(end))

    def steps_with(self, free: int, n_most: int) -> int:
        """Return how many steps, up to `n_most`, can follow each other with so many free blocks.

        The blocks of the first were taken already.
        """
        block, growth, first = self.rule.block_tokens, self._growth, self.tokens_of(1)
        n_tokens = self.tokens_of(n_most) - first
        if growth * (n_tokens // block + 1) <= free:
            return n_most
        n_cycles, left = divmod(free, growth)
        n = n_cycles * block
        while n < n_tokens and self._counts[(self.tick + first + n) % block] <= left:
            left -= self._counts[(self.tick + first + n) % block]
            n += 1
        pace = self._pace
        n_steps = ((self.tick + first + n + 1) * pace.n_steps - 1) // pace.n_tokens - self._steps
        return min(n_most, n_steps)

    def advance(self, n_steps: int) -> tuple[list[int], int]:
        """Let steps pass; return who is done, and the blocks of windows that were needed for nothing."""
        n_tokens = self.tokens_of(n_steps)
        self._steps += n_steps
        self.tick += n_tokens
        self.context += n_tokens * self.n_seqs
        done: list[int] = []
        ends, tick, seqs = self._ends, self.tick, self.seqs
        while ends and ends[0][0] <= tick:
            end, request = heappop(ends)
            found = seqs.get(request)
            # A request that was preempted and came back may stand there twice.
            if found is not None and found.end == end and done[-1:] != [request]:
                done.append(request)
        return done, self._filled_windows() if self._windows else 0

    def _filled_windows(self) -> int:
        """Let sequences that fill their window stop to grow there."""
        windows, rule, n_back = self._windows, self.rule, 0
        while windows and windows[0][0] <= self.tick:
            at, request = heappop(windows)
            if windows and windows[0] == (at, request):
                continue
            found = self.seqs.get(request)
            if (
                found is None
                or found.joined - found.n_cached - self._pace.n_draft + rule.window_blocks * rule.block_tokens != at
            ):
                continue
            self._grow(at % rule.block_tokens, -rule.n_window)
            # A speculative step may have passed boundaries behind the window.
            n_back += rule.n_window * -(-(self.tick - at) // rule.block_tokens)
        return n_back
