"""Requests as they arrived: what a serving simulation replays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["RequestTrace"]


@dataclass(frozen=True, eq=False)
class RequestTrace:
    """Arrival times in seconds from the first request, and token counts, in order of arrival.

    `block_hashes` name the prompt's blocks of `block_tokens` tokens where a trace has them: requests that begin with
    equal hashes share that prefix. `sessions` tells which requests belong to one conversation ("" = not known).
    """

    arrival_s: NDArray[np.float64]
    input_tokens: NDArray[np.float64]
    output_tokens: NDArray[np.float64]
    sessions: tuple[str, ...] = ()
    block_hashes: tuple[tuple[int, ...], ...] = ()
    block_tokens: int | None = None

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def duration_s(self) -> float:
        """Time from the first to the last arrival."""
        return float(self.arrival_s[-1]) if len(self) else 0.0

    @property
    def requests_per_s(self) -> float | None:
        """Mean rate of arrival, None for a trace that arrives all at once."""
        return (len(self) - 1) / self.duration_s if self.duration_s > 0 else None

    @property
    def shared_prefix_frac(self) -> float | None:
        """Share of prompt blocks that an earlier request had in the same place; None without hashes."""
        if not self.block_hashes:
            return None
        seen: set[tuple[int, int]] = set()
        total = shared = 0
        for hashes in self.block_hashes:
            hits = [(place, value) in seen for place, value in enumerate(hashes)]
            shared += next((i for i, hit in enumerate(hits) if not hit), len(hits))
            total += len(hits)
            seen.update(enumerate(hashes))
        return shared / total if total else 0.0
