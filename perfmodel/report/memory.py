"""A memory plan as a document and as a waterfall."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from perfmodel.report.notes import count
from perfmodel.units import GB, GIB, MIB, bytes_text
from perfmodel.work.memory_types import MemoryPlan, RankMemory

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = [
    "Part",
    "host_text",
    "memory_document",
    "memory_facts",
    "memory_tables",
    "pool_text",
    "waterfall_rows",
]

_MOST_COLUMNS = 4
"""Distinct ranks that a terminal has room for, each with GiB and GB."""


def memory_document(plan: MemoryPlan) -> dict[str, Any]:
    """Return the plan with stable keys; sizes in bytes."""
    return {
        "starts": plan.starts,
        "reason": plan.reason or None,
        "kv_tokens": plan.kv_tokens,
        "kv_blocks": plan.n_blocks,
        "block_tokens": plan.block_tokens,
        "n_pools": plan.n_pools,
        "kv_bytes_per_token_per_rank": plan.kv_bytes_per_token,
        "fixed_bytes_per_sequence": plan.fixed_bytes_per_sequence,
        "max_concurrency": plan.max_concurrency if isfinite(plan.max_concurrency) else None,
        "max_model_len": plan.limits.max_model_len,
        "max_num_seqs": plan.limits.max_num_seqs,
        "max_num_batched_tokens": plan.limits.max_num_batched_tokens,
        "chunked_prefill": plan.limits.chunked_prefill,
        "needs_bytes": plan.needs_bytes,
        "has_bytes": plan.has_bytes,
        "swap_blocks": plan.n_host_blocks,
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
        "weights_on_device_bytes": rank.weights_on_device_bytes,
        "offloaded_bytes": rank.offloaded_bytes,
        "graph_bytes": rank.graph_bytes,
        "available_bytes": rank.available_bytes,
        "kv_blocks": rank.n_blocks,
    }


class Part(NamedTuple):
    """One line of the waterfall: its name, the bytes on each distinct rank, and what it is made of."""

    name: str
    sizes: tuple[float, ...]
    detail: str = ""


def waterfall_rows(plan: MemoryPlan) -> tuple[list[str], list[Part]]:
    """Return the labels of the distinct ranks, and the parts of their memory from the whole device to the KV pool."""
    groups = _distinct(plan)
    ranks = [ranks[0] for ranks in groups]
    labels = [_label(group, alone=len(groups) == 1) for group in groups]
    shares = " / ".join(dict.fromkeys(f"{rank.utilization:g}" for rank in ranks))
    parts = [
        Part("memory the engine sees", tuple(rank.total_bytes for rank in ranks)),
        Part("budget", tuple(rank.budget_bytes for rank in ranks), f"utilisation {shares}"),
        Part(
            "- weights",
            tuple(rank.weights_on_device_bytes for rank in ranks),
            _weights(ranks[0]) if len(ranks) == 1 else "",
        ),
    ]
    cascades = [dict(rank.waterfall()) for rank in ranks]
    names = list(dict.fromkeys(name for cascade in cascades for name in cascade if not name.startswith("weights")))
    for name in names:
        sizes = tuple(cascade.get(name, 0.0) for cascade in cascades)
        if name == "unused":
            parts += _rest(sizes)
        else:
            parts.append(Part(f"= {name}" if name == "KV pool" else f"- {name}", sizes, _HINTS.get(name, "")))
    beside = tuple(rank.outside_bytes for rank in ranks)
    if any(beside):
        inside = all(rank.activation_in_budget for rank in ranks)
        parts.append(Part("beside the budget", beside, "captured graphs" if inside else "captured graphs, activations"))
    return labels, parts


_HINTS: Mapping[str, str] = {
    "activation peak": "of the largest step",
    "outside of the allocator": "context, communication buffers",
    "withheld by the engine": "what the utilisation leaves out",
}


def _rest(sizes: tuple[float, ...]) -> list[Part]:
    rows = []
    if any(size < -1e6 for size in sizes):
        rows.append(Part("! short by", tuple(max(0.0, -size) for size in sizes)))
    if any(size > 1e6 for size in sizes):
        rows.append(Part("  left over", tuple(max(0.0, size) for size in sizes)))
    return rows


def _distinct(plan: MemoryPlan) -> list[list[RankMemory]]:
    """Return runs of ranks whose figures are the same."""
    groups: list[list[RankMemory]] = []
    for rank in plan.ranks:
        if groups and _figures(groups[-1][0]) == _figures(rank):
            groups[-1].append(rank)
        else:
            groups.append([rank])
    return groups


def _figures(rank: RankMemory) -> tuple[object, ...]:
    return (rank.device, rank.total_bytes, rank.n_ranks, rank.waterfall(), rank.outside_bytes)


def _label(ranks: list[RankMemory], *, alone: bool) -> str:
    n = sum(rank.n_ranks for rank in ranks)
    words = "the device" if n == 1 else f"each of {n} ranks"
    if alone:
        return words
    first, last = ranks[0].stage, ranks[-1].stage
    stages = f"stage {first}" if first == last else f"stages {first}-{last}"
    return f"{stages}, {n} x {ranks[0].device}"


def _weights(rank: RankMemory) -> str:
    """Return what the weights are made of, largest first, in GiB."""
    largest = sorted(rank.weight_bytes.items(), key=lambda item: -item[1])
    texts = [f"{name} {size / GIB:.2f}" for name, size in largest if size >= 0.005 * GIB]
    host = f"; {rank.offloaded_bytes / GIB:.2f} GiB of it with the host" if rank.offloaded_bytes else ""
    return ", ".join(texts) + (" GiB" if texts else "") + host


def pool_text(plan: MemoryPlan) -> str:
    """Return the division of the tightest rank's memory in one line."""
    rank = plan.tightest
    return (
        f"{bytes_text(rank.total_bytes)}: weights {bytes_text(rank.weights_on_device_bytes)}, KV pool "
        f"{bytes_text(rank.pool_bytes)} = {count(plan.kv_tokens)} tokens"
    )


def host_text(plan: MemoryPlan) -> str:
    """Return what lies in host memory: offloaded weights, swap space; empty where nothing does."""
    rank = max(plan.ranks, key=lambda rank: rank.offloaded_bytes)
    parts = []
    if rank.offloaded_bytes:
        parts.append(f"{bytes_text(rank.offloaded_bytes)} of weights a rank, read over the host link in every step")
    if plan.n_host_blocks:
        tokens = plan.n_host_blocks * plan.block_tokens
        parts.append(f"swap space for {count(plan.n_host_blocks)} KV blocks = {count(tokens)} tokens")
    return "; ".join(parts)


def memory_facts(plan: MemoryPlan) -> dict[str, str]:
    """Return what the division means: whether it starts, tokens, concurrency, as label -> text."""
    each = f" on each of {plan.n_pools} data-parallel ranks" if plan.n_pools > 1 else ""
    facts = {
        "Starts": "yes" if plan.starts else f"no: {plan.reason}",
        "KV cache": f"{count(plan.kv_tokens)} tokens in {count(plan.n_blocks)} blocks of {plan.block_tokens}{each}",
        "KV of a token": f"{plan.kv_bytes_per_token:,g} bytes ({bytes_text(plan.kv_bytes_per_token)}) on a rank",
    }
    if plan.fixed_bytes_per_sequence:
        facts["Of a sequence besides"] = f"{plan.fixed_bytes_per_sequence / MIB:.4g} MiB of state or window"
    if isfinite(plan.max_concurrency):
        facts["Concurrency"] = f"{plan.max_concurrency:.2f} sequences of {count(plan.limits.max_model_len)} tokens"
    if beside := host_text(plan):
        facts["Host memory"] = beside
    return facts


def memory_tables(plan: MemoryPlan, facts: Mapping[str, str]) -> Iterator[RenderableType]:
    """Yield the waterfall of each distinct rank, the weights of each stage where there are several, and the facts."""
    from rich.table import Table
    from rich.text import Text

    labels, parts = waterfall_rows(plan)
    both = len(labels) <= _MOST_COLUMNS
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for label in labels:
        for unit in ("GiB", "GB") if both else ("GiB",):
            title = "\n".join(label.split(", ")) if unit == "GiB" else " "
            table.add_column(f"{title}\n{unit}", justify="right", no_wrap=True)
    detailed = len(labels) <= 2
    if detailed:
        table.add_column("")
    for part in parts:
        cells = [f"{s / size:.3f}" for s in part.sizes for size in ((GIB, GB) if both else (GIB,))]
        table.add_row(part.name, *cells, *([part.detail] if detailed else []))
    yield table
    if len(labels) > 1:
        for label, ranks in zip(labels, _distinct(plan), strict=True):
            yield Text(f"Weights of {label}: {_weights(ranks[0])}", style="dim")
    rows = Table(box=None, pad_edge=False, show_header=False)
    rows.add_column(no_wrap=True)
    rows.add_column()
    for name, text in facts.items():
        rows.add_row(name, Text(text, style="bold" if name == "Starts" else ""))
    yield rows
