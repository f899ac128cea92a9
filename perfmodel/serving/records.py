"""What a run leaves behind: the times of each request, the stretches of like steps, and the counts beside them."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["LOST", "NEVER", "Records", "Segments", "Told"]

NEVER: Final = 2**62
LOST: Final = "replica_failed"
"""Why a request has no answer whose replica failed."""
_TOLD_EVERY: Final = 512

Told = Callable[[int], object]
"""Called with the number of requests that were done since the last call."""


class Segments(NamedTuple):
    """Stretches of like steps, one row each, as they were served; times in nanoseconds."""

    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    n_steps: NDArray[np.int64]
    n_decoding: NDArray[np.int64]
    n_running: NDArray[np.int64]
    prompt_tokens: NDArray[np.int64]
    n_waiting: NDArray[np.int64]
    used_blocks: NDArray[np.int64]
    limit: NDArray[np.int64]
    n_late: NDArray[np.int64]
    """Steps of sequences whose gap is longer than the step; they stand in `late_gaps` instead."""
    output_tokens: NDArray[np.int64]
    """Tokens that decoding gave: one for each sequence and step without speculation."""

    @classmethod
    def of(cls, log: array[int]) -> Segments:
        """Return the stretches that were written one row after the other."""
        return cls(*np.frombuffer(log, np.int64).reshape(-1, len(cls._fields)).T)


@dataclass(eq=False, slots=True)
class Records:
    """What is known of each request, filled in by the replicas; -1 where it did not happen."""

    sent_ns: array[int]
    scheduled_ns: array[int]
    first_token_ns: array[int]
    finish_ns: array[int]
    replica: array[int]
    told: Told | None = None
    n_preemptions: dict[int, int] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    n_done: int = 0

    @classmethod
    def empty(cls, n_requests: int, *, told: Told | None = None) -> Records:
        """Return records of requests of which nothing is known."""
        blank = array("q", [-1]) * n_requests
        return cls(blank[:], blank[:], blank[:], blank[:], blank, told)

    def finished(self, request: int, at_ns: int) -> None:
        """Write down that a request has all of its tokens."""
        self.finish_ns[request] = at_ns
        self.n_done += 1
        if self.told is not None and self.n_done % _TOLD_EVERY == 0:
            self.told(_TOLD_EVERY)

    def preemptions(self) -> NDArray[np.int64]:
        """Return how often each request was preempted."""
        counts = np.zeros(len(self.sent_ns), np.int64)
        for request, n in self.n_preemptions.items():
            counts[request] = n
        return counts
