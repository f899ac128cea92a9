"""What a run amounts to: latencies, rates, use of batch and cache, what limits, and whether the books balance.

Definitions stand in `DEFINITIONS` and are shown with every result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import SpecError
from perfmodel.serving.engine import Run
from perfmodel.serving.scheduler import Limit
from perfmodel.units import NS_PER_S

__all__ = ["DEFINITIONS", "PERCENTILES", "Checks", "ServingResult", "Slo", "Spread", "Usage", "serving_result"]

Array = NDArray[np.float64]

PERCENTILES: Final = (50, 90, 95, 99)

DEFINITIONS: Final[Mapping[str, str]] = {
    "ttft_s": "from when a request is sent to its first token: waiting, the step that gives it, the way in and out",
    "tpot_s": "(last token - first token) / (output tokens - 1) of each request; requests of one token have none",
    "itl_s": "time between two tokens of one request, over all tokens, those of a warm-up too; steps between two "
    "events count as their mean, the tokens of one speculative step as one",
    "e2e_s": "from when a request is sent to its last token, the way in and out included",
    "queue_s": "from when a request is sent to the start of the first step that reads of its prompt",
    "percentiles": "linear between the two nearest requests; of ITL: the least gap that so many tokens do not exceed",
    "requests_per_s": "completed requests over the time from the first request sent to the last token",
    "goodput_requests_per_s": "completed requests that meet every objective, over the same time",
    "busy_frac": "share of that time in which a step runs, mean over replicas",
    "kv_used_frac": "blocks held over blocks of the pool, mean over that time and over replicas",
    "limit_shares": "share of that time in which requests wait for KV blocks, a sequence slot, the token budget, the "
    "end of a static batch or a batching window; arrival_rate: none waits at the start of the step, or nothing runs",
}
_NOISE_SIGMAS: Final = 2.0
_GROWTH_FRAC: Final = 0.02
"""Share of the arrivals in the second half of a trace that must pile up for it to count as unstable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Service objectives for each request, in seconds; None: any will do."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s", "e2e_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise SpecError("the objective cannot be used", where=name, got=str(value), expected="above 0 seconds")


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean, standard deviation and percentiles of a time; `n` samples. All None without samples."""

    n: int
    mean: float | None
    std: float | None
    percentiles: Mapping[int, float | None]

    @classmethod
    def of(cls, values: Array) -> Spread:
        """Return the spread of equally weighted values."""
        if not len(values):
            return cls(0, None, None, dict.fromkeys(PERCENTILES))
        points = np.percentile(values, PERCENTILES)
        return cls(
            len(values), float(values.mean()), float(values.std()), dict(zip(PERCENTILES, points.tolist(), strict=True))
        )

    @classmethod
    def weighted(cls, values: Array, weights: NDArray[np.int64]) -> Spread:
        """Return the spread of values that each stand for `weights` samples."""
        n = int(weights.sum())
        if not n:
            return cls(0, None, None, dict.fromkeys(PERCENTILES))
        mean = float(values @ weights) / n
        std = sqrt(max(float((values - mean) ** 2 @ weights) / n, 0.0))
        order = np.argsort(values, kind="stable")
        reached = np.cumsum(weights[order])
        places = [int(np.searchsorted(reached, p / 100 * n)) for p in PERCENTILES]
        points = [float(values[order[min(place, len(order) - 1)]]) for place in places]
        return cls(n, mean, std, dict(zip(PERCENTILES, points, strict=True)))


@dataclass(frozen=True, slots=True)
class Checks:
    """Laws that hold whatever the model: Little's law, nothing lost, no block kept."""

    mean_in_system: float
    """Requests in the system, counted as events passed, averaged over time."""
    rate_times_e2e: float
    """Completed requests per second times mean end-to-end time."""
    little_error_frac: float
    requests_conserved: bool
    blocks_conserved: bool
    tokens_conserved: bool
    """Gaps between tokens + first tokens = output tokens of completed requests."""

    @property
    def hold(self) -> bool:
        """Whether all of them hold."""
        books = self.requests_conserved and self.blocks_conserved and self.tokens_conserved
        return books and abs(self.little_error_frac) < 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How much of time, batch and cache was used, and what made requests wait."""

    busy_frac: float
    mean_decoding: float
    """Sequences in a decode step, mean over decode steps of all replicas."""
    kv_used_frac: float
    kv_used_most_frac: float
    prompt_tokens_read: int
    """Prompt tokens that steps read, those read again after preemption included."""
    limit_shares: Mapping[str, float]


@dataclass(frozen=True, eq=False, slots=True)
class ServingResult:
    """The figures of a run in base units, with the columns of each request."""

    run: Run
    columns: Mapping[str, Array]
    """ttft_s, tpot_s, e2e_s, queue_s of each request, NaN where it has none."""
    duration_s: float
    n_completed: int
    n_refused: Mapping[str, int]
    input_tokens: int
    output_tokens: int
    spreads: Mapping[str, Spread]
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    goodput_requests_per_s: float | None
    goodput_frac: float | None
    usage: Usage
    n_preemptions: int
    n_preempted_requests: int
    growth_requests_per_s: float | None
    """What waits grows by so many requests per second: arrivals are beyond saturation. None: it does not grow."""
    checks: Checks
    n_warmup: int = 0
    """Requests that were served and are not counted."""

    @property
    def is_stable(self) -> bool:
        """Whether latencies belong to the load, and not to the length of the trace."""
        return self.growth_requests_per_s is None

    @property
    def prefix_hit_frac(self) -> float | None:
        """Share of prompt tokens that were found in the prefix cache, None where nobody looked."""
        return self.run.found_tokens / self.run.asked_tokens if self.run.asked_tokens else None

    @property
    def binding_limit(self) -> str:
        """What makes requests wait for the largest share of time, or arrival_rate."""
        shares = self.usage.limit_shares
        return max(shares, key=lambda name: shares[name])


def _seconds(after: NDArray[np.int64], before: NDArray[np.int64], served: NDArray[np.bool_]) -> Array:
    return np.where(served, (after - before) / NS_PER_S, np.nan)


def serving_result(run: Run, *, slo: Slo | None = None, warmup_s: float = 0.0) -> ServingResult:
    """Return the figures of a run; with objectives also the goodput.

    Requests that were sent up to `warmup_s` seconds after the first count in checks, use, preemptions and the time
    between tokens only.
    """
    all_served = run.finish_ns >= 0
    served = all_served
    if warmup_s > 0 and all_served.any():
        served = all_served & (run.sent_ns - run.sent_ns[all_served].min() > warmup_s * NS_PER_S)
        if not served.any():
            raise SpecError("nothing is left to count", where="warmup", got=f"{warmup_s:g} s", expected="a shorter one")
    outputs, inputs = run.trace.output_tokens, run.trace.input_tokens
    outside_s = run.setup.outside_ns / NS_PER_S
    decode_ns = (run.finish_ns - run.first_token_ns) / np.maximum(outputs - 1, 1)
    columns = {
        "ttft_s": _seconds(run.first_token_ns, run.sent_ns, served) + outside_s,
        "tpot_s": np.where(served & (outputs > 1), decode_ns / NS_PER_S, np.nan),
        "e2e_s": _seconds(run.finish_ns, run.sent_ns, served) + outside_s,
        "queue_s": _seconds(run.scheduled_ns, run.sent_ns, served),
    }
    n_completed = int(served.sum())
    duration_s = _duration_ns(run, served) / NS_PER_S
    in_tokens, out_tokens = int(inputs[served].sum()), int(outputs[served].sum())
    spreads = {name: Spread.of(column[np.isfinite(column)]) for name, column in columns.items()}
    spreads["itl_s"] = _itl(run)
    per_s = 1.0 / duration_s if duration_s > 0 else 0.0
    good = None if slo is None else _meets(slo, columns, served)
    return ServingResult(
        run=run,
        columns=columns,
        duration_s=duration_s,
        n_completed=n_completed,
        n_refused=dict(Counter(run.refused.values())),
        input_tokens=in_tokens,
        output_tokens=out_tokens,
        spreads=spreads,
        requests_per_s=n_completed * per_s,
        output_tokens_per_s=out_tokens * per_s,
        total_tokens_per_s=(in_tokens + out_tokens) * per_s,
        goodput_requests_per_s=None if good is None else good * per_s,
        goodput_frac=None if good is None else good / max(n_completed + len(run.refused), 1),
        n_preemptions=int(run.n_preemptions.sum()),
        n_preempted_requests=int((run.n_preemptions > 0).sum()),
        growth_requests_per_s=_growth(run, all_served),
        n_warmup=int(all_served.sum()) - n_completed,
        checks=_checks(run, all_served),
        usage=_usage(run, _active_ns(run, all_served)),
    )


def _duration_ns(run: Run, served: NDArray[np.bool_]) -> int:
    """Return the time from the first of these requests to the last token."""
    return int(run.finish_ns.max()) - int(run.sent_ns[served].min()) if served.any() else 0


def _active_ns(run: Run, served: NDArray[np.bool_]) -> int:
    """Return the time from the first request or step to the last token or step: a failure may take its requests."""
    begins = [int(s.start_ns[0]) for s in run.segments if len(s.start_ns)]
    ends = [int(s.start_ns[-1] + s.duration_ns[-1]) for s in run.segments if len(s.start_ns)]
    if served.any():
        begins.append(int(run.sent_ns[served].min()))
        ends.append(int(run.finish_ns.max()))
    return max(ends) - min(begins) if ends else 0


def _meets(slo: Slo, columns: Mapping[str, Array], served: NDArray[np.bool_]) -> int:
    good = served.copy()
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        most = getattr(slo, name)
        if most is not None:
            good &= ~(columns[name] > most)  # a request without the figure meets the objective
    return int(good.sum())


def _itl(run: Run) -> Spread:
    gaps = [s.duration_ns / s.n_steps for s in run.segments]
    weights = [s.n_decoding * s.n_steps - s.n_late for s in run.segments]
    late = run.late_gaps
    return Spread.weighted(
        np.concatenate([*gaps, late[:, 0].astype(np.float64)]) / NS_PER_S, np.concatenate([*weights, late[:, 1]])
    )


def _usage(run: Run, duration_ns: int) -> Usage:
    limits, total_ns = run.setup.limits, max(duration_ns * len(run.segments), 1)
    waiting_ns: Counter[int] = Counter()
    busy_ns = n_seq_steps = n_steps = prompts = most = 0
    kv_ns = 0.0
    for s in run.segments:
        busy_ns += int(s.duration_ns.sum())
        kv_ns += float(s.used_blocks @ s.duration_ns.astype(np.float64))
        n_seq_steps += int((s.n_decoding * s.n_steps).sum())
        n_steps += int(s.n_steps[s.n_decoding > 0].sum())
        prompts += int(s.prompt_tokens.sum())
        most = max(most, int(s.used_blocks.max(initial=0)))
        for limit in Limit:
            waiting_ns[limit] += int(s.duration_ns[s.limit == limit].sum())
    waiting_ns[Limit.ARRIVAL_RATE] += total_ns - busy_ns
    return Usage(
        busy_frac=busy_ns / total_ns,
        mean_decoding=n_seq_steps / n_steps if n_steps else 0.0,
        kv_used_frac=kv_ns / total_ns / limits.n_blocks,
        kv_used_most_frac=most / limits.n_blocks,
        prompt_tokens_read=prompts,
        limit_shares={limit.name.lower(): waiting_ns[limit] / total_ns for limit in Limit},
    )


def _growth(run: Run, served: NDArray[np.bool_]) -> float | None:
    """Return by how many requests per second the queue grew in the second half of the arrivals, None if it did not.

    Growth within the noise of a Poisson process does not count.
    """
    if run.trace.requests_per_s is None or not served.any():
        return None
    sent, scheduled = np.sort(run.sent_ns[served]), np.sort(run.scheduled_ns[served])
    middle, end = (sent[0] + sent[-1]) // 2, sent[-1]
    n_sent, n_scheduled = (np.searchsorted(times, (middle, end), side="right") for times in (sent, scheduled))
    waiting = n_sent - n_scheduled
    came, grown = int(n_sent[1] - n_sent[0]), int(waiting[1] - waiting[0])
    if grown <= max(_GROWTH_FRAC * came, _NOISE_SIGMAS * sqrt(came)):
        return None
    return grown * NS_PER_S / int(end - middle)


def _checks(run: Run, served: NDArray[np.bool_]) -> Checks:
    n, duration_ns = int(served.sum()), _duration_ns(run, served)
    output_tokens = int(run.trace.output_tokens[served].sum())
    e2e_ns = int((run.finish_ns - run.sent_ns)[served].sum())
    gaps = sum(int((s.output_tokens - s.n_late).sum()) for s in run.segments) + int(run.late_gaps[:, 1].sum())
    return Checks(
        mean_in_system=run.in_system_ns / duration_ns if duration_ns else 0.0,
        rate_times_e2e=e2e_ns / duration_ns if duration_ns else 0.0,
        little_error_frac=run.in_system_ns / e2e_ns - 1 if e2e_ns else 0.0,
        requests_conserved=n + len(run.refused) == len(run.trace),
        blocks_conserved=run.used_blocks_at_end == 0,
        tokens_conserved=gaps + n == output_tokens + run.lost_tokens,
    )
