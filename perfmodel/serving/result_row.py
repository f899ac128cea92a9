"""The figures of a run in one flat row: for tables, campaigns and data frames."""

from __future__ import annotations

from typing import Any

from perfmodel.serving.metrics import ServingResult

__all__ = ["result_row"]


def result_row(result: ServingResult) -> dict[str, Any]:
    """Return the figures with stable keys in base units; None where a run has none, as a goodput without objectives."""
    row: dict[str, Any] = {
        "n_requests": len(result.run.trace),
        "n_completed": result.n_completed,
        "requests_per_s": result.requests_per_s,
        "output_tokens_per_s": result.output_tokens_per_s,
    }
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s"):
        spread = result.spreads[name]
        row[f"{name}_mean"] = spread.mean
        row |= {f"{name}_p{p}": value for p, value in spread.percentiles.items()}
    return row | {
        "goodput_requests_per_s": result.goodput_requests_per_s,
        "goodput_frac": result.goodput_frac,
        "mean_decoding_seqs": result.usage.mean_decoding,
        "busy_frac": result.usage.busy_frac,
        "kv_used_frac": result.usage.kv_used_frac,
        "n_preemptions": result.n_preemptions,
        "binding_limit": result.binding_limit,
        "is_stable": result.is_stable,
        "growth_requests_per_s": result.growth_requests_per_s,
    }
