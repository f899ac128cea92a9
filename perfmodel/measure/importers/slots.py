"""A plateau explained: requests that wait for a free slot of the engine, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from perfmodel.measure.serving_run import ServingRun

__all__ = ["SlotLimit", "slot_limit", "slot_wait_s"]

_SAME_RATE_FRAC: Final = 0.03
_SAME_WAIT_FRAC: Final = 0.15


@dataclass(frozen=True, slots=True)
class SlotLimit:
    """An engine that serves `n_slots` sequences at a time: `max_num_seqs` binds, not the device."""

    n_slots: float
    service_s: float

    @property
    def sentence(self) -> str:
        """What to tell the reader."""
        return (
            f"max_num_seqs binds: throughput stays flat beyond {self.n_slots:g} parallel requests and time to first "
            f"token grows by whole waves of {self.service_s:.2f} s; raise --max-num-seqs before blaming the device"
        )


def slot_wait_s(n_parallel: float, n_slots: float, service_s: float) -> float:
    """Return the mean wait when `n_parallel` equal requests arrive at once and are served in waves of `n_slots`.

    >>> round(slot_wait_s(16, 4, 7.88), 2)
    11.82
    """
    return max(0.0, n_parallel / n_slots - 1.0) / 2.0 * service_s


def slot_limit(runs: Sequence[ServingRun], output_tokens: float | None) -> SlotLimit | None:
    """Return the limit that explains a sweep over concurrency, None where waits or rates do not fit one.

    Needs two runs of equal throughput, the larger one with a time to first token; `output_tokens` where runs lack it.
    """
    loaded = [(run.max_concurrency, run) for run in runs if run.max_concurrency and run.output_tokens_per_s]
    found = sorted(loaded, key=lambda pair: pair[0])
    if len(found) < 2:
        return None
    best = max(run.output_tokens_per_s or 0.0 for _, run in found)
    flat = [(n, run) for n, run in found if (run.output_tokens_per_s or 0.0) > best * (1 - _SAME_RATE_FRAC)]
    n_slots, first = flat[0]
    tokens = first.mean_output_tokens or output_tokens
    if len(flat) < 2 or tokens is None or not first.output_tokens_per_s:
        return None
    service_s = tokens * n_slots / first.output_tokens_per_s
    waits = [(n, run.latency_s.get(("ttft", "mean"))) for n, run in flat[1:]]
    known = [(slot_wait_s(n, n_slots, service_s), seen) for n, seen in waits if seen is not None]
    fits = known and all(abs(seen - wait) <= _SAME_WAIT_FRAC * wait for wait, seen in known)
    return SlotLimit(n_slots, service_s) if fits else None
