"""`perfmodel memory`: whether it starts, where the memory goes, the longest context."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from perfmodel.cli.estimate import remedy_schemes
from perfmodel.cli.flags import Csv, Json, Markdown
from perfmodel.cli.options import asking
from perfmodel.cli.values import whole
from perfmodel.errors import InfeasibleError
from perfmodel.report.answer import setup_document, setup_text
from perfmodel.report.memory import memory_document, memory_facts, memory_tables
from perfmodel.report.notes import count, note_parts
from perfmodel.report.output import csv_text, json_text, shown
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.runtime import Runtime
from perfmodel.step.question import Case, Question, case_of
from perfmodel.work.memory import memory_plan
from perfmodel.work.memory_search import (
    concurrency_at,
    does_not_fit,
    largest_context_tokens,
    smallest_utilization,
    utilization_for_tokens,
)
from perfmodel.work.memory_types import MemoryPlan

__all__ = ["memory"]


@asking
def memory(
    *,
    question: Question,
    catalogue: Catalogue,
    at: Annotated[
        str | None, typer.Option("--at", help="Also say how many sequences of this length fit.", metavar="TOKENS")
    ] = None,
    want_tokens: Annotated[
        str | None,
        typer.Option("--want-kv-tokens", help="Also say which utilisation gives this many.", metavar="TOKENS"),
    ] = None,
    as_json: Json = False,
    as_csv: Csv = False,
    as_markdown: Markdown = False,
) -> None:
    """Show the memory waterfall of a rank, whether the engine starts, the longest context and the concurrency.

    Exit code 1 when it does not fit, with what would.

    ```
    perfmodel memory deepseek-v3 h200-sxm --devices 8 -tp 8 \\
        --max-model-len 32768
    perfmodel memory llama-3.1-8b rtx-3090 --runtime vllm-0.6.3 \\
        --max-model-len 29000
    perfmodel memory qwen3-32b-awq rtx-3090,rtx-4090 --pp-partition 30,34
    perfmodel memory 4xrtx-4090 --from serve.sh --at 4096 --want-kv-tokens 100k
    ```
    """
    length, wanted = whole("--at", at), whole("--want-kv-tokens", want_tokens)
    case = case_of(catalogue, replace(question, batch=1, input_tokens=1, output_tokens=1))
    plan = memory_plan(case.memory)
    asked = {
        "largest_context_tokens": largest_context_tokens(case.memory),
        "smallest_utilization": smallest_utilization(case.memory),
        "concurrency_at_length": concurrency_at(plan, length) if length else None,
        "utilization_for_tokens": utilization_for_tokens(case.memory, wanted) if wanted else None,
    }
    assumed = [*(a for a in case.assumed if a not in plan.assumed), *plan.assumed]
    cut = _cut_prompts(plan, asked["largest_context_tokens"], case.setup.runtime)
    warnings = [*case.warnings, *plan.warnings, *cut]
    error = None if plan.starts else does_not_fit(case.memory, plan, schemes=remedy_schemes(catalogue)())
    facts = memory_facts(plan) | _answers(asked, length, wanted)
    if as_json:
        print(json_text(_document(case, plan, error) | asked | {"assumed": assumed, "warnings": warnings}))
    elif as_csv:
        print(csv_text(_rows(plan)), end="")
    elif as_markdown:
        from perfmodel.report.markdown import memory_markdown

        print(memory_markdown(case, plan, facts, assumed, warnings))
    else:
        shown(setup_text(case), *memory_tables(plan, facts), *note_parts(assumed, warnings))
    if error is not None:
        raise InfeasibleError(
            error.problem, faults=[fault for fault in error.faults if not fault.where.startswith("assumed")]
        )


def _document(case: Case, plan: MemoryPlan, error: InfeasibleError | None) -> dict[str, Any]:
    found = [fault.where for fault in error.faults] if error is not None else []
    remedies = [text.removeprefix("would fit: ") for text in found if text.startswith("would fit: ")]
    return setup_document(case) | memory_document(plan) | {"would_fit": remedies}


def _rows(plan: MemoryPlan) -> list[dict[str, object]]:
    return [
        {"stage": rank.stage, "n_ranks": rank.n_ranks, "device": rank.device, "part": part, "bytes": size}
        for rank in plan.ranks
        for part, size in (
            ("memory the engine sees", rank.total_bytes),
            ("budget", rank.budget_bytes),
            *rank.waterfall(),
        )
    ]


def _cut_prompts(plan: MemoryPlan, longest: float | None, runtime: Runtime) -> tuple[str, ...]:
    """Return why a longer context starts where a shorter one does not; nothing where that is not so."""
    above = runtime.scheduler.chunked_prefill_above_tokens
    if plan.starts or not longest or above is None or not longest > above >= plan.limits.max_model_len:
        return ()
    note = (
        f"above {above} tokens of context {runtime.name} cuts prompts over steps, so that a longer limit needs less "
        "memory; --enable-chunked-prefill does that for shorter ones"
    )
    return (note,)


def _answers(asked: dict[str, Any], length: int | None, wanted: int | None) -> dict[str, str]:
    """Return the answers to questions asked backwards, as label -> text."""
    least, for_tokens = asked["smallest_utilization"], asked["utilization_for_tokens"]
    longest = asked["largest_context_tokens"]
    facts = {
        "Longest context": f"{count(longest)} tokens" if longest else "none: it does not start with any",
        "Least utilisation": f"{least:.4g}" if least else "none: not even all of the device is enough",
    }
    if length:
        facts["At that length"] = f"{asked['concurrency_at_length']:.2f} sequences of {count(length)} tokens at once"
    if wanted:
        facts[f"For {count(wanted)} KV tokens"] = (
            f"utilisation {for_tokens:.4g}" if for_tokens else "no utilisation is enough"
        )
    return facts
