"""One serving benchmark in normal form, whatever tool ran it, with what follows from its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ServingRun", "share_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRun:
    """What a client saw. `latency_s` maps (ttft | tpot | itl | e2e, mean | std | p50 | p99 | ...) to seconds.

    Requested lengths are what the client asked for; what it got stands in the totals. `request_rate_per_s` may be
    infinite: all requests at once, held back only by `max_concurrency`.
    """

    model: str = ""
    runtime: str = ""
    n_prompts: float | None = None
    completed: float | None = None
    failed: float | None = None
    stated_success_frac: float | None = None
    duration_s: float | None = None
    total_input_tokens: float | None = None
    total_output_tokens: float | None = None
    retokenized_output_tokens: float | None = None
    requested_input_tokens: float | None = None
    requested_output_tokens: float | None = None
    max_concurrency: float | None = None
    request_rate_per_s: float | None = None
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    peak_concurrency: float | None = None
    latency_s: Mapping[tuple[str, str], float] = field(default_factory=dict)
    acceptance_frac: float | None = None
    acceptance_length: float | None = None
    n_drafts: float | None = None
    n_draft_tokens: float | None = None
    n_accepted_tokens: float | None = None
    stated: Mapping[str, Any] = field(default_factory=dict)
    """Columns that the file states beside the run: tp, device, quantization, ..."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_asked(self) -> float | None:
        """Requests sent, as far as the file tells."""
        if self.n_prompts is not None:
            return self.n_prompts
        return None if self.completed is None or self.failed is None else self.completed + self.failed

    @property
    def success_frac(self) -> float | None:
        """Share of requests that succeeded; None where the file does not tell."""
        asked = self.n_asked
        if self.stated_success_frac is not None:
            return self.stated_success_frac
        return None if not asked or self.completed is None else min(1.0, self.completed / asked)

    @property
    def mean_input_tokens(self) -> float | None:
        """Prompt tokens of a finished request: from the totals, else as requested."""
        return share_of(self.total_input_tokens, self.completed) or self.requested_input_tokens

    @property
    def mean_output_tokens(self) -> float | None:
        """Generated tokens of a finished request: from the totals, else as requested."""
        return share_of(self.total_output_tokens, self.completed) or self.requested_output_tokens

    @property
    def finished_per_s(self) -> float | None:
        """Requests finished per second."""
        return share_of(self.completed, self.duration_s) or self.requests_per_s

    @property
    def mean_e2e_s(self) -> float | None:
        """Mean time of a request: as stated, else TTFT and the other tokens at TPOT."""
        stated = self.latency_s.get(("e2e", "mean"))
        ttft, tpot = self.latency_s.get(("ttft", "mean")), self.latency_s.get(("tpot", "mean"))
        if stated or ttft is None or tpot is None or not self.mean_output_tokens:
            return stated
        return ttft + (self.mean_output_tokens - 1.0) * tpot

    @property
    def little_concurrency(self) -> float | None:
        """Mean number of requests in flight by Little's law: finished per second x mean time of one."""
        if self.finished_per_s is None or self.mean_e2e_s is None:
            return None
        return self.finished_per_s * self.mean_e2e_s

    @property
    def implied_prefill_tokens_per_s(self) -> float | None:
        """Prompt tokens per second of the run: prefill was at least this fast if every prompt was read."""
        return share_of(self.total_input_tokens, self.duration_s)

    @property
    def speculates(self) -> bool:
        """Whether the run reports accepted draft tokens."""
        return bool(self.n_drafts or (self.acceptance_length and self.acceptance_length > 1))


def share_of(part: float | None, whole: float | None) -> float | None:
    """Return part over whole; None where either is not stated or the whole is zero or infinite."""
    return None if part is None or not whole or not math.isfinite(whole) else part / whole
