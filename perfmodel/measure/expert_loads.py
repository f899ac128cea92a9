"""What a benchmark with drawn routing asks of the most loaded rank: token-expert pairs and experts touched.

Public MoE tables route by a power law: loads of experts are drawn with density x^-alpha between 1 and 0.8 x tokens
(0.01 and 2 where there are fewer pairs than experts), scaled to the number of pairs and rounded; the rank that is timed
is the one with most pairs. The expectation is taken over draws with a fixed seed. Source: collector of aiconfigurator.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

__all__ = ["power_law_loads"]

N_DRAWS: Final = 32


@lru_cache(maxsize=4096)
def power_law_loads(n_tokens: int, n_experts: int, top_k: int, n_ranks: int, alpha: float) -> tuple[float, float]:
    """Return the mean (pairs, experts touched) of the most loaded of `n_ranks` ranks.

    >>> pairs, touched = power_law_loads(4, 64, 8, 1, 1.2)
    >>> pairs, touched < 64 * (1 - (1 - 8 / 64) ** 4)
    (32.0, True)
    """
    random = np.random.default_rng(n_tokens * 7919 + n_experts * 31 + top_k)
    n_pairs = n_tokens * top_k
    low, high = (1.0, n_tokens * 0.8) if n_pairs > n_experts else (0.01, 2.0)
    power = 1.0 - alpha
    uniform = random.random((N_DRAWS, n_experts))
    drawn = ((high**power - low**power) * uniform + low**power) ** (1.0 / power)
    wanted = drawn * (n_pairs / drawn.sum(axis=1, keepdims=True))
    loads = np.round(wanted)
    _spread(loads, n_pairs)
    groups = loads.reshape(N_DRAWS, n_ranks, -1)
    busiest = np.argmax(groups.sum(axis=2), axis=1)
    own = groups[np.arange(N_DRAWS), busiest]
    return float(np.mean(own.sum(axis=1))), float(np.mean(np.count_nonzero(own > 0, axis=1)))


def _spread(loads: np.ndarray[tuple[int, int], np.dtype[np.float64]], n_pairs: int) -> None:
    """Give what rounding took (or take what it gave) one by one, most loaded experts first."""
    for row in loads:
        missing = int(n_pairs - row.sum())
        order = np.argsort(-row, kind="stable")
        if missing < 0:
            order = order[row[order] > 0]
        step = 1 if missing > 0 else -1
        whole, rest = divmod(abs(missing), max(1, len(order)))
        row[order] += step * whole
        row[order[:rest]] += step
