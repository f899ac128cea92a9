"""`perfmodel estimate`: time, rate, memory and the limit that binds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from perfmodel.cli.flags import Csv, Json, Markdown
from perfmodel.cli.options import asking
from perfmodel.cli.values import number
from perfmodel.report.answer import answer_document, answer_tables, explanation, explanation_document
from perfmodel.report.output import csv_text, json_text, shown
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.quantization import Scheme
from perfmodel.step.answer import Answer, answer_to
from perfmodel.step.question import Question, case_of

__all__ = ["estimate", "remedy_schemes"]


def remedy_schemes(catalogue: Catalogue) -> Callable[[], list[Scheme]]:
    """Return a function that gives the weight schemes to propose where a model does not fit."""
    return lambda: [catalogue.scheme(name) for name in ("fp8", "w8a8", "awq-int4-g128")]


@asking
def estimate(
    *,
    question: Question,
    catalogue: Catalogue,
    explain: Annotated[bool, typer.Option("--explain", help="Print the tree with formulas and sources.")] = False,
    least_share: Annotated[
        str, typer.Option("--least-share", help="With --explain: fold parts below this share.", metavar="X")
    ] = "0.01",
    as_json: Json = False,
    as_csv: Csv = False,
    as_markdown: Markdown = False,
) -> None:
    """Predict TTFT, TPOT, throughput, MFU, MBU, energy and memory, each with its band, and name what limits them.

    ```
    perfmodel estimate llama-3.1-8b a100-80gb-sxm --batch 16 --isl 2048 \\
        --osl 256
    perfmodel estimate deepseek-v3 h200-sxm --devices 8 -tp 8 --batch 32 \\
        --isl 4096 --osl 512 --explain
    perfmodel estimate h100-sxm --isl 1000 --osl 200 \\
        --from "vllm serve Qwen/Qwen3-32B -tp 4 --max-model-len 32768"
    perfmodel estimate ./my-model/config.json 2xrtx-4090 -q awq-int4-g128 --json
    ```
    """
    least = number("--least-share", least_share, low=0.0, high=1.0)
    case = case_of(catalogue, question)
    answer = answer_to(case, ideal=catalogue.calibration("ideal"), schemes=remedy_schemes(catalogue))
    if as_json:
        document = answer_document(answer)
        if explain:
            document["explanation"] = {
                "ttft": explanation_document(answer.request.ttft),
                "tpot": explanation_document(answer.request.tpot),
                "memory_hierarchy": _levels(catalogue, answer, as_lines=False),
            }
        print(json_text(document))
    elif as_csv:
        flat = {k: v for k, v in answer_document(answer).items() if not isinstance(v, (dict, list))}
        print(csv_text([flat]), end="")
    elif as_markdown:
        from perfmodel.report.markdown import answer_markdown

        print(answer_markdown(answer))
    else:
        shown(*answer_tables(answer))
        if explain:
            shown(*explanation((answer.request.ttft, answer.request.tpot), least_share=least))
            shown(*_levels(catalogue, answer, as_lines=True))


def _levels(catalogue: Catalogue, answer: Answer, *, as_lines: bool) -> list[Any]:
    """Return the steps through the memory hierarchy, as lines or as a document; only asked for with --explain."""
    from perfmodel.report.levels import levels_document, levels_lines
    from perfmodel.step.levels import answer_levels

    steps = answer_levels(answer, catalogue.core_of(answer.case.setup.devices[0]))
    return levels_lines(steps) if as_lines else levels_document(steps)
