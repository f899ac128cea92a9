"""The figures of a run in one flat row: for tables, campaigns and data frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from perfmodel.serving.metrics import PERCENTILES, ServingResult

__all__ = ["RESULT_COLUMNS", "result_row"]

_TIMES: Final = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s")
RESULT_COLUMNS: Final[Mapping[str, type]] = {
    "n_requests": int,
    "n_completed": int,
    "requests_per_s": float,
    "output_tokens_per_s": float,
    **{f"{name}_{stat}": float for name in _TIMES for stat in ("mean", *(f"p{p}" for p in PERCENTILES))},
    "goodput_requests_per_s": float,
    "goodput_frac": float,
    "mean_decoding_seqs": float,
    "busy_frac": float,
    "kv_used_frac": float,
    "n_preemptions": int,
    "binding_limit": str,
    "is_stable": bool,
    "growth_requests_per_s": float,
}
"""Every column of a row with its type; a figure that a run does not have is None."""


def result_row(result: ServingResult) -> dict[str, Any]:
    """Return the figures with stable keys in base units; None where a run has none, as a goodput without objectives."""
    row: dict[str, Any] = {
        "n_requests": len(result.run.trace),
        "n_completed": result.n_completed,
        "requests_per_s": result.requests_per_s,
        "output_tokens_per_s": result.output_tokens_per_s,
    }
    for name in _TIMES:
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
