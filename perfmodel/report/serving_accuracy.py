"""Closed form and simulation of measured serving, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.validate.serve_sim import BothAnswers

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["simulation_documents", "simulation_table"]


def simulation_documents(both: BothAnswers) -> list[dict[str, Any]]:
    """Return a document for each metric and state of the KV cache: rows, median and P90 of both relative errors."""
    found = []
    for metric in ("tpot_s", "ttft_s"):
        for kv_limited in (False, True):
            closed, simulated = both.errors(metric, kv_limited=kv_limited)
            if len(closed):
                found.append(
                    {
                        "metric": metric,
                        "kv_limited": kv_limited,
                        "n": len(closed),
                        "closed_median_frac": float(np.median(closed)),
                        "closed_p90_frac": float(np.percentile(closed, 90)),
                        "simulated_median_frac": float(np.median(simulated)),
                        "simulated_p90_frac": float(np.percentile(simulated, 90)),
                    }
                )
    return found


def simulation_table(both: BothAnswers) -> RenderableType:
    """Return the documents as a table for people."""
    from rich.table import Table

    table = Table(
        title="Serving: closed form and simulation",
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    for name in ("metric", "KV cache", "n", "closed median", "P90", "simulated median", "P90"):
        table.add_column(name, justify="left" if name in ("metric", "KV cache") else "right", no_wrap=True)
    for row in simulation_documents(both):
        errors = (
            f"{100 * row[f'{way}_{name}_frac']:.1f} %" for way in ("closed", "simulated") for name in ("median", "p90")
        )
        table.add_row(row["metric"], "is the limit" if row["kv_limited"] else "has room", str(row["n"]), *errors)
    return table
