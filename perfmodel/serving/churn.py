"""A pool that sequences pass through: what is useful, held and free over time, as a simulation of single events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from perfmodel.errors import SpecError
from perfmodel.serving.allocators import KvAllocator
from perfmodel.serving.arrivals import Tokens
from perfmodel.serving.fragmentation import checked_growth

__all__ = ["FragmentationRun", "simulated_fragmentation"]

_MOST_SAMPLES: Final = 2000


@dataclass(frozen=True, slots=True)
class FragmentationRun:
    """What a simulated pool went through. Means are over the time in which sequences were waiting for room.

    Shares of the pool add up: useful + internal + external = 1. `internal_frac` is held and not useful, `external_frac`
    not held while a sequence waits; of the latter, `stranded_frac` is the mean over refusals of what was free in
    sufficient sum but in pieces that are too small.
    """

    n_sequences: int
    n_allocations: int
    n_refused: int
    n_refused_stranded: int
    n_preempted: int
    mean_live_sequences: float
    useful_frac: float
    internal_frac: float
    external_frac: float
    waste_of_held_frac: float
    stranded_frac: float
    copied_bytes: int
    n_device_calls: int
    peak_reserved_bytes: int
    was_full: bool
    time_events: NDArray[np.int64]
    used_frac: NDArray[np.float64]
    held_frac: NDArray[np.float64]


def simulated_fragmentation(
    pool: KvAllocator,
    lengths: Tokens,
    *,
    bytes_per_token: int,
    rng: Generator,
    prompt_frac: float = 1.0,
    growth_tokens: int = 0,
    told: Callable[[int], None] | None = None,
) -> FragmentationRun:
    """Return what happens when sequences of these lengths pass through the pool, in order, as many at once as fit.

    At each event one live sequence, drawn evenly, goes a stage further: it grows, or it is done and leaves; then the
    next ones are let in until one finds no room. A sequence that cannot grow is thrown out and comes again at
    the end.
    Ends when nobody waits. Raises SpecError for a length that an empty pool cannot hold.
    """
    checked_growth(prompt_frac, growth_tokens)
    return _Churn(pool, lengths, bytes_per_token, prompt_frac, growth_tokens).run(rng, told)


class _Churn:
    """The simulation: who waits, who is in, and the sums over time."""

    def __init__(
        self, pool: KvAllocator, lengths: Tokens, bytes_per_token: int, prompt_frac: float, growth_tokens: int
    ) -> None:
        self.pool, self.bytes_per_token = pool, bytes_per_token
        self.waiting = lengths.tolist()
        self.waiting.reverse()
        self.n_sequences = len(self.waiting)
        self.prompt_frac, self.growth_tokens = prompt_frac, growth_tokens
        self.live: list[tuple[int, int, int]] = []  # owner, tokens now, tokens at the end
        self.again: list[int] = []
        self.n_allocations = self.n_refused = self.n_stranded = self.n_preempted = 0
        self.stranded = 0.0

    def run(self, rng: Generator, told: Callable[[int], None] | None) -> FragmentationRun:
        pool, live = self.pool, self.live
        self._admit()
        n_events = n_useful = n_held = n_live = peak = 0
        was_full = bool(self.waiting)
        draws: list[float] = []
        samples: list[tuple[int, int, int]] = []
        n_told = self.n_sequences
        stride = max(1, self.n_sequences // _MOST_SAMPLES)
        while self.waiting:
            n_useful += pool.live_bytes
            n_held += pool.held_bytes
            n_live += len(live)
            peak = max(peak, pool.reserved_bytes)
            if n_events % stride == 0:
                samples.append((n_events, pool.live_bytes, pool.held_bytes))
                if told is not None:
                    told(n_told - len(self.waiting))
                    n_told = len(self.waiting)
            n_events += 1
            if not draws:
                draws = rng.random(4096).tolist()
            self._step(int(draws.pop() * len(live)))
            if not self.waiting and self.again:
                self.waiting, self.again = self.again[::-1], []
        if not n_events:
            n_events, n_useful, n_held, n_live = 1, pool.live_bytes, pool.held_bytes, len(live)
            samples.append((0, pool.live_bytes, pool.held_bytes))
        peak = max(peak, pool.reserved_bytes)
        for owner, _, _ in live:
            pool.release(owner)
        whole = n_events * pool.capacity_bytes
        table = np.array(samples, np.int64)
        return FragmentationRun(
            n_sequences=self.n_sequences,
            n_allocations=self.n_allocations,
            n_refused=self.n_refused,
            n_refused_stranded=self.n_stranded,
            n_preempted=self.n_preempted,
            mean_live_sequences=n_live / n_events,
            useful_frac=n_useful / whole,
            internal_frac=(n_held - n_useful) / whole,
            external_frac=1.0 - n_held / whole,
            waste_of_held_frac=1.0 - n_useful / n_held if n_held else 0.0,
            stranded_frac=self.stranded / self.n_refused if self.n_refused else 0.0,
            copied_bytes=pool.copied_bytes,
            n_device_calls=pool.n_device_calls,
            peak_reserved_bytes=peak,
            was_full=was_full,
            time_events=table[:, 0],
            used_frac=table[:, 1] / pool.capacity_bytes,
            held_frac=table[:, 2] / pool.capacity_bytes,
        )

    def _step(self, place: int) -> None:
        """Take one live sequence a stage further, and let the next ones in."""
        live, pool = self.live, self.pool
        owner, now, end = live[place]
        if now < end:
            then = min(now + self.growth_tokens, end)
            if pool.grow(owner, then * self.bytes_per_token):
                self.n_allocations += 1
                live[place] = (owner, then, end)
                return
            if len(live) == 1:
                raise _too_large(pool, end, self.bytes_per_token)
            self.n_preempted += 1
            self.again.append(end)
        pool.release(owner)
        live[place] = live[-1]
        live.pop()
        if now == end:
            # Not after one was thrown out: the next would take its place, and nobody would ever grow.
            self._admit()

    def _admit(self) -> None:
        live, pool, waiting, size = self.live, self.pool, self.waiting, self.bytes_per_token
        while waiting:
            end = waiting[-1]
            start = end if not self.growth_tokens else max(1, round(self.prompt_frac * end))
            if not pool.grow(self.n_allocations, start * size):
                self._refused(start * size, end)
                return
            live.append((self.n_allocations, start, end))
            self.n_allocations += 1
            waiting.pop()

    def _refused(self, n_bytes: int, end: int) -> None:
        pool = self.pool
        if not self.live:
            raise _too_large(pool, end, self.bytes_per_token)
        self.n_refused += 1
        free = pool.capacity_bytes - pool.held_bytes
        if free >= n_bytes:
            self.n_stranded += 1
            self.stranded += free / pool.capacity_bytes


def _too_large(pool: KvAllocator, n_tokens: int, bytes_per_token: int) -> SpecError:
    return SpecError(
        "a sequence does not fit into the pool, though it is alone there",
        got=f"{n_tokens} tokens of {bytes_per_token} bytes",
        expected=f"at most {pool.largest_bytes()} bytes"
        + (", and room for both where a growing cache is copied" if pool.copied_bytes or pool.live_bytes else ""),
        cure="Make the pool larger, or the lengths shorter.",
    )
