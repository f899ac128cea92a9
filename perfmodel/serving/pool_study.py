"""Allocators side by side on the same lengths: closed form, simulation, bandwidth and cost of moving, a row each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.serving.churn import FragmentationRun, simulated_fragmentation
from perfmodel.serving.fragmentation import bandwidth_frac, internal_waste_frac, reallocation_s
from perfmodel.serving.kv_policy import BestFit, KvPolicy, Paged, Window
from perfmodel.serving.lengths import LengthDistribution

__all__ = ["CacheShape", "PoolRow", "PoolStudy", "pool_rows"]


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What a cache is made of: bytes of a token on a rank, and of one token in one run of one layer.

    `line_bytes` is the least that memory moves, and `copy_bytes_per_s` its bandwidth; None where no device is named.
    """

    bytes_per_token: int
    row_bytes: float
    line_bytes: float | None = None
    copy_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class PoolStudy:
    """The pool and the traffic that every allocator gets alike."""

    lengths: LengthDistribution
    capacity_bytes: int
    n_sequences: int
    seed: int = 0
    prompt_frac: float = 1.0
    growth_tokens: int = 0


@dataclass(frozen=True, slots=True)
class PoolRow:
    """One allocator. `closed_frac` is the exact internal waste (the least where `is_exact` is false)."""

    policy: str
    closed_frac: float
    is_exact: bool
    padded_read_frac: float
    line_read_frac: float | None
    copied_bytes_per_sequence: float
    copy_s_per_sequence: float | None
    run: FragmentationRun


def pool_rows(
    study: PoolStudy,
    shape: CacheShape,
    policies: Sequence[KvPolicy],
    *,
    told: Callable[[int], None] | None = None,
) -> tuple[PoolRow, ...]:
    """Return a row for each policy; all see the same lengths in the same order."""
    return tuple(_row(study, shape, policy, told) for policy in policies)


def _row(study: PoolStudy, shape: CacheShape, policy: KvPolicy, told: Callable[[int], None] | None) -> PoolRow:
    rng = np.random.default_rng(study.seed)
    lengths = study.lengths.drawn(study.n_sequences, rng)
    run = simulated_fragmentation(
        policy.allocator(study.capacity_bytes, bytes_per_token=shape.bytes_per_token),
        lengths,
        bytes_per_token=shape.bytes_per_token,
        rng=rng,
        prompt_frac=study.prompt_frac,
        growth_tokens=study.growth_tokens,
        told=told,
    )
    closed = internal_waste_frac(
        policy, study.lengths, prompt_frac=study.prompt_frac, growth_tokens=study.growth_tokens
    )
    run_tokens = float(policy.block_tokens) if isinstance(policy, Paged | Window) else None
    by_line = None
    if shape.line_bytes is not None:
        by_line = bandwidth_frac(
            policy, study.lengths, row_bytes=shape.row_bytes, line_bytes=shape.line_bytes, run_tokens=run_tokens
        )
    copied = run.copied_bytes / run.n_sequences
    copy_s = None
    if shape.copy_bytes_per_s is not None:
        copy_s = float(reallocation_s(copied_bytes=copied, n_device_calls=0.0, bytes_per_s=shape.copy_bytes_per_s))
    padded = 1.0 - (run.waste_of_held_frac if isinstance(policy, BestFit) else closed)
    return PoolRow(policy.name, closed, policy.exact, padded, by_line, copied, copy_s, run)
