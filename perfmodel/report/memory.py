"""A memory plan as a document and as a waterfall."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import TYPE_CHECKING, Any

from perfmodel.units import GB, GIB
from perfmodel.work.memory import MemoryPlan, RankMemory

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["memory_document", "memory_tables"]


def memory_document(plan: MemoryPlan) -> dict[str, Any]:
    """Return the plan with stable keys; sizes in bytes."""
    return {
        "starts": plan.starts,
        "reason": plan.reason or None,
        "kv_tokens": plan.kv_tokens,
        "kv_blocks": plan.n_blocks,
        "block_tokens": plan.block_tokens,
        "kv_bytes_per_token_per_rank": plan.kv_bytes_per_token,
        "fixed_bytes_per_sequence": plan.fixed_bytes_per_sequence,
        "max_concurrency": plan.max_concurrency if isfinite(plan.max_concurrency) else None,
        "max_model_len": plan.limits.max_model_len,
        "max_num_seqs": plan.limits.max_num_seqs,
        "max_num_batched_tokens": plan.limits.max_num_batched_tokens,
        "chunked_prefill": plan.limits.chunked_prefill,
        "needs_bytes": plan.needs_bytes,
        "has_bytes": plan.has_bytes,
        "ranks": [_rank_document(rank) for rank in plan.ranks],
    }


def _rank_document(rank: RankMemory) -> dict[str, Any]:
    return {
        "stage": rank.stage,
        "n_ranks": rank.n_ranks,
        "device": rank.device,
        "total_bytes": rank.total_bytes,
        "utilization": rank.utilization,
        "budget_bytes": rank.budget_bytes,
        "waterfall_bytes": dict(rank.waterfall()),
        "graph_bytes": rank.graph_bytes,
        "available_bytes": rank.available_bytes,
        "kv_blocks": rank.n_blocks,
    }


def memory_tables(plan: MemoryPlan) -> Iterator[RenderableType]:
    """Yield the waterfall of each distinct rank and what fits."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for rank in plan.ranks:
        for unit in ("GiB", "GB"):
            table.add_column(f"stage {rank.stage} ({rank.n_ranks} ranks), {unit}", justify="right")
    names = list(dict.fromkeys(name for rank in plan.ranks for name, _ in rank.waterfall()))
    table.add_row("memory the engine sees", *_sizes([rank.total_bytes for rank in plan.ranks]))
    budget = " / ".join(dict.fromkeys(f"{rank.utilization:g}" for rank in plan.ranks))
    table.add_row(f"budget (x {budget})", *_sizes([rank.budget_bytes for rank in plan.ranks]))
    for name in names:
        own = [dict(rank.waterfall()).get(name, 0.0) for rank in plan.ranks]
        if name != "unused" or any(abs(size) > 1e6 for size in own):
            table.add_row(f"  - {name}" if name != "KV pool" else "  = KV pool", *_sizes(own))
    yield table
    yield Text(f"Starts: {'yes' if plan.starts else 'no'}" + (f" ({plan.reason})" if plan.reason else ""), style="bold")
    yield Text(
        f"KV cache: {plan.n_blocks} blocks of {plan.block_tokens} = {plan.kv_tokens} tokens"
        + (f" on each of {plan.n_pools} data-parallel ranks" if plan.n_pools > 1 else "")
        + f", {plan.kv_bytes_per_token:g} bytes a token and rank"
    )
    if plan.fixed_bytes_per_sequence:
        yield Text(f"Each sequence keeps {plan.fixed_bytes_per_sequence / 2**20:.4g} MiB of state or window besides")
    yield Text(f"Sequences of {plan.limits.max_model_len} tokens at once: {plan.max_concurrency:.2f}")


def _sizes(values: list[float]) -> list[str]:
    return [text for value in values for text in (f"{value / GIB:.3f}", f"{value / GB:.3f}")]
