"""A simulated run as tables, documents, a row for each request, and in the field names of `vllm bench serve`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from perfmodel.report.answer import setup_document, setup_text
from perfmodel.report.memory import pool_text
from perfmodel.report.notes import count, note_parts, rate
from perfmodel.serving.deployment import ServingCase
from perfmodel.serving.metrics import DEFINITIONS, PERCENTILES, ServingResult, Spread
from perfmodel.serving.records import LOST
from perfmodel.units import NS_PER_S, time_text

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["LIMIT_WORDS", "bench_document", "request_rows", "serving_document", "serving_tables", "serving_warnings"]

_LATENCIES: Final[Mapping[str, tuple[str, str]]] = {
    "ttft_s": ("Time to first token", "ttft"),
    "tpot_s": ("Time per output token", "tpot"),
    "itl_s": ("Time between tokens", "itl"),
    "e2e_s": ("End to end", "e2el"),
    "queue_s": ("Waiting before the first step", ""),
}
LIMIT_WORDS: Final = {
    "arrival_rate": "nothing",
    "kv_capacity": "KV blocks",
    "max_num_seqs": "max_num_seqs",
    "token_budget": "token budget",
    "batch_closed": "end of the static batch",
    "batch_window": "batching window",
}
"""What requests wait for, in words; an arrival is no limit of the server."""


def serving_warnings(serving: ServingCase, result: ServingResult) -> list[str]:
    """Return what must be said beside the figures."""
    lines = list(serving.warnings)
    if result.growth_requests_per_s is not None:
        arriving = result.run.trace.requests_per_s or 0.0
        lines.append(
            f"unstable: {rate(arriving)} requests/s arrive, the queue grows by {rate(result.growth_requests_per_s)} "
            "requests/s; the latencies are those of this trace only and grow with its length"
        )
    for reason, n in result.n_refused.items():
        lines.append(f"{n} requests refused: {reason.replace('_', ' ')}")
    if not result.checks.hold:
        lines.append("the books of the simulation do not balance: do not use these figures")
    return lines


def serving_document(serving: ServingCase, result: ServingResult) -> dict[str, Any]:
    """Return the run with stable keys in base units."""
    run, limits, checks, usage = result.run, serving.setup.limits, result.checks, result.usage
    document = setup_document(serving.case) | {
        "calibration": serving.case.calibration.name,
        "policy": serving.setup.policy,
        "order": serving.setup.order,
        "routing": serving.setup.routing,
        "prefix_cache": serving.setup.prefix_cache,
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "max_model_len": limits.max_model_len,
        "n_blocks": limits.n_blocks,
        "block_tokens": limits.block_tokens,
        "n_requests": len(run.trace),
        "n_completed": result.n_completed,
        "n_refused": dict(result.n_refused),
        "request_rate_per_s": run.trace.requests_per_s,
        "max_concurrency": run.trace.max_in_flight,
        "duration_s": result.duration_s,
        "input_tokens": result.input_tokens,
        "output_tokens": result.output_tokens,
        "requests_per_s": result.requests_per_s,
        "output_tokens_per_s": result.output_tokens_per_s,
        "total_tokens_per_s": result.total_tokens_per_s,
        "goodput_requests_per_s": result.goodput_requests_per_s,
        "goodput_frac": result.goodput_frac,
    }
    for name in _LATENCIES:
        document[name] = _spread_document(result.spreads[name])
    return document | {
        "busy_frac": usage.busy_frac,
        "mean_decoding_seqs": usage.mean_decoding,
        "kv_used_frac": usage.kv_used_frac,
        "kv_used_most_frac": usage.kv_used_most_frac,
        "n_preemptions": result.n_preemptions,
        "n_preempted_requests": result.n_preempted_requests,
        "prompt_tokens_read": usage.prompt_tokens_read,
        "prefix_asked_tokens": run.asked_tokens,
        "prefix_found_tokens": run.found_tokens,
        "prefix_hit_frac": result.prefix_hit_frac,
        "n_moved_blocks": run.n_moved_blocks,
        "sent_kv_tokens": run.sent_tokens,
        "n_retried": run.n_retried,
        "n_warmup": result.n_warmup,
        "binding_limit": result.binding_limit,
        "limit_shares": dict(usage.limit_shares),
        "is_stable": result.is_stable,
        "growth_requests_per_s": result.growth_requests_per_s,
        "checks": {
            "hold": checks.hold,
            "mean_in_system": checks.mean_in_system,
            "rate_times_e2e": checks.rate_times_e2e,
            "little_error_frac": checks.little_error_frac,
            "requests_conserved": checks.requests_conserved,
            "blocks_conserved": checks.blocks_conserved,
            "tokens_conserved": checks.tokens_conserved,
        },
        "clock_max_error_frac": serving.clock.table.max_error_frac,
        "definitions": dict(DEFINITIONS),
        "assumed": list(serving.assumed),
        "warnings": serving_warnings(serving, result),
    }


def _spread_document(spread: Spread) -> dict[str, Any]:
    percentiles = {f"p{p}": spread.percentiles[p] for p in PERCENTILES}
    return {"n": spread.n, "mean": spread.mean, "std": spread.std, **percentiles}


def request_rows(result: ServingResult) -> Iterator[dict[str, Any]]:
    """Yield a row for each request, in order of arrival; figures that a request does not have are empty."""
    run = result.run
    start_ns = int(run.sent_ns.min())
    columns = {name: column.tolist() for name, column in result.columns.items()}
    priorities = run.trace.priorities
    for i in range(len(run.trace)):
        times = {name: None if math.isnan(column[i]) else column[i] for name, column in columns.items()}
        yield {
            "request": i,
            "arrival_s": (int(run.sent_ns[i]) - start_ns) / NS_PER_S,
            "input_tokens": int(run.trace.input_tokens[i]),
            "output_tokens": int(run.trace.output_tokens[i]),
            "replica": int(run.replica[i]),
            "priority": priorities[i],
            **times,
            "n_preemptions": int(run.n_preemptions[i]),
            "refused": run.refused.get(i, ""),
        }


def bench_document(
    serving: ServingCase, result: ServingResult, *, request_rate: float | None, burstiness: float
) -> dict[str, Any]:
    """Return the run in the field names of `vllm bench serve --save-result`, so that the same scripts read both.

    Latencies there are in milliseconds. Lengths, TTFT and start times (in seconds, as --save-detailed lists them) are
    those of the completed requests, so that the file can be replayed. Without a stated rate it is that of the trace.
    """
    run = result.run
    if request_rate is None:
        request_rate = run.trace.requests_per_s
    served = (run.finish_ns >= 0).nonzero()[0].tolist()
    ttft = result.columns["ttft_s"]
    document: dict[str, Any] = {
        "backend": serving.case.setup.runtime.engine,
        "model_id": serving.case.setup.model.name,
        "label": "simulated by perfmodel",
        "num_prompts": len(run.trace),
        "request_rate": "inf" if request_rate is None else request_rate,
        "burstiness": burstiness,
        "max_concurrency": run.trace.max_in_flight,
        "duration": result.duration_s,
        "completed": result.n_completed,
        "failed": len(run.refused),
        "total_input_tokens": result.input_tokens,
        "total_output_tokens": result.output_tokens,
        "request_throughput": result.requests_per_s,
        "request_goodput": result.goodput_requests_per_s,
        "output_throughput": result.output_tokens_per_s,
        "total_token_throughput": result.total_tokens_per_s,
        "input_lens": run.trace.input_tokens[served].tolist(),
        "output_lens": run.trace.output_tokens[served].tolist(),
        "ttfts": ttft[served].tolist(),
        "start_times": (run.sent_ns[served] / NS_PER_S).tolist(),
    }
    for name, (_, short) in _LATENCIES.items():
        spread = result.spreads[name]
        if not short or spread.mean is None or spread.std is None:
            continue
        document[f"mean_{short}_ms"], document[f"std_{short}_ms"] = spread.mean * 1e3, spread.std * 1e3
        for p in PERCENTILES:
            value = spread.percentiles[p]
            document[f"{'median' if p == 50 else f'p{p}'}_{short}_ms"] = None if value is None else value * 1e3
    return document


def serving_tables(serving: ServingCase, result: ServingResult, *, what: str) -> Iterator[RenderableType]:
    """Yield what `simulate` prints: heading, latencies, rates, what limits, checks, definitions, notes."""
    from rich.table import Table
    from rich.text import Text

    usage, checks = result.usage, result.checks
    yield Text(f"{setup_text(serving.case)}; {what}; calibration {serving.case.calibration.name}", style="bold")
    table = Table(box=None, pad_edge=False)
    for column in ("of this trace only" if not result.is_stable else "", "mean", *(f"p{p}" for p in PERCENTILES)):
        table.add_column(
            column, justify="right" if column == "mean" or column.startswith("p") else "left", no_wrap=True
        )
    for name, (label, _) in _LATENCIES.items():
        spread = result.spreads[name]
        times = (spread.mean, *(spread.percentiles[p] for p in PERCENTILES))
        table.add_row(label, *("-" if t is None else time_text(t) for t in times))
    yield table
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_column(no_wrap=True)
    facts.add_column()
    done = f"{count(result.n_completed)} of {count(len(result.run.trace))} requests in {time_text(result.duration_s)}"
    facts.add_row("Served", f"{done}: {rate(result.requests_per_s)} requests/s")
    tokens = f"{rate(result.output_tokens_per_s)} output tokens/s, {rate(result.total_tokens_per_s)} with prompts"
    facts.add_row("Throughput", tokens)
    if result.goodput_requests_per_s is not None and result.goodput_frac is not None:
        share = f"{100 * result.goodput_frac:.3g} % of requests meet the objectives"
        facts.add_row("Goodput", f"{rate(result.goodput_requests_per_s)} requests/s: {share}")
    facts.add_row("Requests wait for", _limits_text(usage.limit_shares))
    use = f"busy {100 * usage.busy_frac:.3g} % of the time, {usage.mean_decoding:.4g} sequences in a decode step"
    facts.add_row("Use", use)
    pool = f"{100 * usage.kv_used_frac:.3g} % held on average, {100 * usage.kv_used_most_frac:.3g} % at most"
    facts.add_row("KV cache", f"{pool}; {result.n_preemptions} preemptions of {result.n_preempted_requests} requests")
    for label, text in _feature_rows(result):
        facts.add_row(label, text)
    facts.add_row("Memory of a rank", pool_text(serving.plan))
    little = f"Little's law {checks.mean_in_system:.5g} = {checks.rate_times_e2e:.5g} requests in the system"
    books = "requests, tokens and blocks conserved" if checks.hold else "books do not balance"
    facts.add_row("Checks", f"{little}; {books}; clock within {100 * serving.clock.table.max_error_frac:.2g} %")
    yield facts
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
        yield Text(f"{name[:-2].upper()}: {DEFINITIONS[name]}", style="dim")
    yield from note_parts(serving.assumed, serving_warnings(serving, result))


def _feature_rows(result: ServingResult) -> Iterator[tuple[str, str]]:
    """Yield what is said only where it happened: prefix hits, swapped blocks, sent caches, failures, warm-up."""
    run = result.run
    if result.prefix_hit_frac is not None:
        share = f"{100 * result.prefix_hit_frac:.3g} % of prompt tokens found"
        yield "Prefix cache", f"{share} ({count(run.found_tokens)} of {count(run.asked_tokens)})"
    if run.n_moved_blocks:
        yield "Swap", f"{count(run.n_moved_blocks)} blocks moved to host memory and back"
    if run.sent_tokens:
        yield "KV caches sent", f"{count(run.sent_tokens)} tokens from prefill to decode replicas"
    if run.setup.failures:
        n_lost = sum(reason == LOST for reason in run.refused.values())
        yield "Failures", f"{run.n_retried} requests sent again, {n_lost} lost"
    if result.n_warmup:
        yield "Warm-up", f"{count(result.n_warmup)} requests served and not counted"


def _limits_text(shares: Mapping[str, float]) -> str:
    ranked = sorted(shares.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{LIMIT_WORDS[name]} {100 * share:.3g} %" for name, share in ranked if share >= 0.0005)
