"""How much of the KV memory is wasted, in closed form, and what that costs in bandwidth and in moving.

Waste inside of what is held is internal, and has a closed form over a length distribution wherever the policy alone
decides what is held (kv_policy.py):

    internal waste = 1 - E[useful tokens] / E[held tokens]          fixed: 1 - mean / reserved
                                                                    paged: about (block - 1) / 2 tokens a sequence

Sequences that grow are averaged over their life, from the prompt to the last token. Waste outside of what is held
(free memory that no request can use) depends on the order of events: it is simulated (churn.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import SpecError
from perfmodel.estimate import Num
from perfmodel.serving.arrivals import Tokens
from perfmodel.serving.kv_policy import KvPolicy
from perfmodel.serving.lengths import LengthDistribution

__all__ = ["bandwidth_frac", "checked_growth", "internal_waste_frac", "reallocation_s", "snapshot_waste_frac"]


def _sum_over_life(
    of_tokens: Callable[[NDArray[np.float64]], Num], lengths: LengthDistribution, prompt_frac: float, growth_tokens: int
) -> float:
    """Return the mean over lengths of the sum over the stages of a life: prompt, prompt + growth, ..., the length.

    Sums over every growth-th length are tabulated once, so that the time does not depend on the number of stages.
    """
    n_rows = -(-(lengths.most_tokens + 1) // growth_tokens)
    table = np.asarray(of_tokens(np.arange(n_rows * growth_tokens, dtype=np.float64)))
    sums = np.concatenate((np.zeros(growth_tokens), np.cumsum(table.reshape(n_rows, growth_tokens), axis=0).ravel()))
    last = lengths.tokens
    first = np.maximum(1, np.rint(prompt_frac * last).astype(np.int64))
    before = first + -(-(last - first) // growth_tokens) * growth_tokens  # the first stage that is not below the end
    return float((sums[before] - sums[first] + table[last]) @ lengths.share)


def internal_waste_frac(
    policy: KvPolicy, lengths: LengthDistribution, *, prompt_frac: float = 1.0, growth_tokens: int = 0
) -> float:
    """Return the share of held memory that holds nothing useful: 1 - E[useful] / E[held], exact for the distribution.

    With `growth_tokens` a sequence starts with `prompt_frac` of its length and grows by so many tokens at a time; all
    times of its life count alike, so that longer sequences count for longer. For `BestFit` it is the least.

    >>> from perfmodel.serving.kv_policy import Fixed
    >>> from perfmodel.serving.lengths import uniform
    >>> round(internal_waste_frac(Fixed(32_000), uniform(20_000, 32_000)), 12)
    0.1875
    """
    checked_growth(prompt_frac, growth_tokens)
    if growth_tokens < 1:
        n = lengths.tokens.astype(np.float64)
        return float(1.0 - policy.useful_tokens(n) @ lengths.share / (policy.held_tokens(n) @ lengths.share))
    useful = _sum_over_life(policy.useful_tokens, lengths, prompt_frac, growth_tokens)
    return 1.0 - useful / _sum_over_life(policy.held_tokens, lengths, prompt_frac, growth_tokens)


def checked_growth(prompt_frac: float, growth_tokens: int) -> None:
    """Raise SpecError where a sequence cannot grow so."""
    if not 0 <= prompt_frac <= 1 or growth_tokens < 0:
        raise SpecError(
            "the growth cannot be used",
            got=f"prompt share {prompt_frac:g}, {growth_tokens} tokens at a time",
            expected="a share from 0 to 1, and 0 (no growth) or more tokens",
        )


def snapshot_waste_frac(policy: KvPolicy, lengths: Sequence[int] | Tokens, *, bytes_per_token: int = 1) -> float:
    """Return 1 - live / held of an allocator that holds a sequence of each length at once.

    Equal to `internal_waste_frac` of the enumerated lengths where the policy is exact: tested.
    """
    listed = [int(n) for n in lengths]
    room = sum(int(policy.held_tokens(float(n))) + 1 for n in listed) * bytes_per_token
    pool = policy.allocator(room * 2 + 2**26, bytes_per_token=bytes_per_token)
    for owner, n in enumerate(listed):
        if not pool.grow(owner, n * bytes_per_token):
            raise SpecError("a length does not fit", got=f"{n} tokens", expected=f"at most what {policy.name} holds")
    return 1.0 - pool.live_bytes / pool.held_bytes


def bandwidth_frac(
    policy: KvPolicy,
    lengths: LengthDistribution,
    *,
    row_bytes: float,
    line_bytes: float,
    run_tokens: float | None = None,
    reads_all_held: bool = False,
) -> float:
    """Return the share of moved bytes that are useful when the cache is read.

    `row_bytes`: what one token leaves in one contiguous run of one layer; `line_bytes`: the least that memory moves.
    `run_tokens`: tokens that lie side by side (a block; without it the whole cache does). A kernel that knows the
    lengths moves the lines that hold useful tokens; one that works on the padded tensor (`reads_all_held`) moves all
    that is held.
    """
    n = lengths.tokens.astype(np.float64)
    useful, held = np.asarray(policy.useful_tokens(n)), np.asarray(policy.held_tokens(n))
    read = held if reads_all_held else useful
    run = read if run_tokens is None else np.minimum(read, run_tokens)
    n_whole = np.floor(read / run)
    rest = read - n_whole * run
    lines = n_whole * np.ceil(run * row_bytes / line_bytes) + np.ceil(rest * row_bytes / line_bytes)
    return float(useful @ lengths.share * row_bytes / (lines @ lengths.share * line_bytes))


def reallocation_s(
    *, copied_bytes: Num, n_device_calls: Num, bytes_per_s: Num, memory_frac: Num = 1.0, call_s: Num = 0.0
) -> Num:
    """Return the seconds that moving caches and asking the device for memory take.

    Every copied byte is read and written: 2 x copied_bytes / (memory_frac x bytes_per_s) + n_device_calls x call_s.

    >>> reallocation_s(copied_bytes=1e9, n_device_calls=0.0, bytes_per_s=2e12)
    0.001
    """
    return 2.0 * copied_bytes / (memory_frac * bytes_per_s) + n_device_calls * call_s
