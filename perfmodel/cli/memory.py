"""`perfmodel memory`: whether it starts, where the memory goes, the longest context."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from perfmodel.cli.estimate import remedy_schemes
from perfmodel.cli.options import asking
from perfmodel.report.memory import memory_document, memory_tables
from perfmodel.report.output import csv_text, json_text, shown
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.question import Question, case_of
from perfmodel.work.memory import memory_plan
from perfmodel.work.memory_search import (
    concurrency_at,
    does_not_fit,
    largest_context_tokens,
    smallest_utilization,
    utilization_for_tokens,
)

__all__ = ["memory"]

_EXAMPLES = """
**Examples**

    perfmodel memory deepseek-v3 h200-sxm --devices 8 -tp 8 --max-model-len 32768

    perfmodel memory llama-3.1-8b rtx-3090 --runtime vllm-0.6.3 --max-model-len 29000

    perfmodel memory qwen3-32b rtx-3090,rtx-4090 --pp-partition 30,34 --kv-cache-dtype fp8
"""


@asking
def memory(
    *,
    question: Question,
    catalogue: Catalogue,
    at_length: Annotated[
        float | None, typer.Option("--at", min=1, help="Also say how many sequences of this length fit.")
    ] = None,
    want_tokens: Annotated[
        int | None, typer.Option("--want-kv-tokens", min=1, help="Also say which utilisation gives this many.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys; sizes in bytes.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the waterfall as CSV.")] = False,
) -> None:
    """Show the memory waterfall of a rank, whether the engine starts, the longest context and the concurrency.

    Exit code 1 when it does not fit.
    """
    asked = replace(question, batch=1, input_tokens=1, output_tokens=1)
    case = case_of(catalogue, asked)
    plan = memory_plan(case.memory)
    document = memory_document(plan) | {
        "model": case.setup.model.name,
        "hardware": [device.name for device in case.setup.devices],
        "largest_context_tokens": largest_context_tokens(case.memory),
        "smallest_utilization": smallest_utilization(case.memory),
        "concurrency_at_length": concurrency_at(plan, at_length) if at_length else None,
        "utilization_for_tokens": utilization_for_tokens(case.memory, want_tokens) if want_tokens else None,
        "assumed": [*(a for a in case.assumed if a not in plan.assumed), *plan.assumed],
        "warnings": [*case.warnings, *plan.warnings],
    }
    if as_json:
        print(json_text(document))
    elif as_csv:
        print(csv_text(_rows(document)), end="")
    else:
        shown(*memory_tables(plan), *_lines(document, at_length, want_tokens))
    if not plan.starts:
        raise does_not_fit(case.memory, plan, schemes=remedy_schemes(catalogue))


def _rows(document: dict[str, object]) -> list[dict[str, object]]:
    ranks = document["ranks"]
    assert isinstance(ranks, list)
    return [
        {"stage": rank["stage"], "device": rank["device"], "part": part, "bytes": size}
        for rank in ranks
        for part, size in rank["waterfall_bytes"].items()
    ]


def _lines(document: dict[str, object], at_length: float | None, want_tokens: int | None) -> list[str]:
    lines = [f"Longest context that starts: {document['largest_context_tokens']} tokens"]
    needed = document["smallest_utilization"]
    lines.append(f"Smallest utilisation that starts: {needed:.4g}" if needed else "No utilisation makes it start")
    if at_length:
        lines.append(f"Sequences of {at_length:g} tokens at once: {document['concurrency_at_length']:.2f}")
    if want_tokens:
        found = document["utilization_for_tokens"]
        lines.append(
            f"Utilisation for {want_tokens} KV tokens: {found:.4g}"
            if found
            else f"No utilisation gives {want_tokens} KV tokens"
        )
    assumed, warnings = document["assumed"], document["warnings"]
    assert isinstance(assumed, list)
    assert isinstance(warnings, list)
    return [
        *lines,
        *(["[dim]Assumed: " + "; ".join(assumed) + "[/dim]"] if assumed else []),
        *(f"[yellow]Note: {w}[/yellow]" for w in warnings),
    ]


memory.__doc__ = f"{memory.__doc__}\n{_EXAMPLES}"
