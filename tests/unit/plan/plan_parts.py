"""Small searches that the tests of planning share."""

from __future__ import annotations

from typing import Any

from perfmodel.plan.demand import Demand, Targets
from perfmodel.plan.search import Plan, searched
from perfmodel.plan.space import Space
from perfmodel.specs.catalogue import Catalogue

USERS = Demand(input_tokens=512, output_tokens=128, n_users=48)
RATE = Demand(input_tokens=512, output_tokens=128, requests_per_s=12.0)
PRICES = {"a100-80gb-sxm": 1.3, "rtx-4090": 0.4, "l40s": 0.9}


def small_plan(
    catalogue: Catalogue,
    demand: Demand = USERS,
    targets: Targets | None = None,
    *,
    hardware: tuple[str, ...] = ("a100-80gb-sxm", "rtx-4090"),
    prices: dict[str, float] | None = None,
    chunk_rows: int = 1000,
    **space: Any,
) -> Plan:
    """Return a search over one 8B model, tp 1 and 2, unquantised."""
    sizes: dict[str, Any] = {"tp": (1, 2), "pp": (1,), "quantizations": ("none",), "kv_cache_dtypes": ("auto",)}
    wanted = Space(models=("llama-3.1-8b",), hardware=hardware, **(sizes | space))
    known = PRICES if prices is None else prices
    return searched(catalogue, wanted, demand, targets or Targets(max_devices=16), prices=known, chunk_rows=chunk_rows)
