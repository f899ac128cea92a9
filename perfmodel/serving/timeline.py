"""A run over time: what runs, waits and is cached, as means over equal stretches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import SpecError
from perfmodel.serving.engine import Run
from perfmodel.units import NS_PER_S

__all__ = ["Timeline", "timeline"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class Timeline:
    """Means over equal stretches of time, summed over replicas; `time_s`: their middles, from the first request."""

    time_s: Array
    n_running: Array
    n_waiting: Array
    """Sent and not running: also those that were preempted."""
    kv_used_frac: Array
    prompt_tokens_per_s: Array
    output_tokens_per_s: Array
    """Tokens of decode steps; the first token of each request is not in it."""


def timeline(run: Run, *, n_points: int = 400, step_s: float | None = None) -> Timeline:
    """Return the run over time, in `n_points` stretches or in stretches of `step_s`.

    Raises SpecError where nothing was served.
    """
    served = run.finish_ns >= 0
    if not served.any():
        raise SpecError("nothing was served", expected="a run with completed requests")
    start, end = int(run.sent_ns[served].min()), int(run.finish_ns.max())
    n = n_points if step_s is None else max(1, int(np.ceil((end - start) / NS_PER_S / step_s)))
    width = max((end - start) / n if step_s is None else step_s * NS_PER_S, 1.0)
    edges: Array = start + width * np.arange(n + 1, dtype=np.float64)
    sums = {name: np.zeros(n) for name in ("running", "kv", "prompt", "output")}
    for s in run.segments:
        time_ns = s.duration_ns.astype(np.float64)
        amounts = {
            "running": s.n_running * time_ns,
            "kv": s.used_blocks * time_ns,
            "prompt": s.prompt_tokens.astype(np.float64),
            "output": s.output_tokens.astype(np.float64),
        }
        at = np.stack((s.start_ns, s.start_ns + s.duration_ns), axis=1).ravel().astype(np.float64)
        for name, amount in amounts.items():
            after = np.cumsum(amount)
            passed = np.stack((after - amount, after), axis=1).ravel()
            sums[name] += np.diff(np.interp(edges, at, passed))
    sums["waiting"] = np.maximum(_present_ns(run, served, edges) - sums["running"], 0.0)
    blocks = run.setup.limits.n_blocks * len(run.segments)
    return Timeline(
        time_s=(np.arange(n, dtype=np.float64) + 0.5) * (width / NS_PER_S),
        n_running=sums["running"] / width,
        n_waiting=sums["waiting"] / width,
        kv_used_frac=sums["kv"] / width / blocks,
        prompt_tokens_per_s=sums["prompt"] / width * NS_PER_S,
        output_tokens_per_s=sums["output"] / width * NS_PER_S,
    )


def _present_ns(run: Run, served: NDArray[np.bool_], edges: Array) -> Array:
    """Return the time that requests are in the system in each stretch: from being sent to their last token."""
    total = np.zeros(len(edges) - 1)
    for times, sign in ((run.sent_ns[served], 1.0), (run.finish_ns[served], -1.0)):
        ordered = np.sort(times).astype(np.float64)
        # Integral of the number of events so far: count x edge - sum of event times up to the edge.
        count = np.searchsorted(ordered, edges, side="right")
        so_far = count * edges - np.concatenate(((0.0,), np.cumsum(ordered)))[count]
        total += sign * np.diff(so_far)
    return total
