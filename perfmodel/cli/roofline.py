"""`perfmodel roofline`: a picture of ceilings and operators."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.options import asking
from perfmodel.report.output import csv_text, json_text
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.question import Question, case_of
from perfmodel.step.roofline import roofline as roofline_of
from perfmodel.work.memory import memory_plan

__all__ = ["roofline"]


@asking
def roofline(
    *,
    question: Question,
    catalogue: Catalogue,
    hierarchical: Annotated[
        bool, typer.Option("--hierarchical", help="Each operator under main memory, L2 and on-chip memory.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Picture: .png, .svg or .pdf.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print ceilings and operators as JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print operators as CSV.")] = False,
) -> None:
    """Draw the roofline: ceilings per dtype and memory level, and the operators of prefill and decode as points.

    ```
    perfmodel roofline deepseek-v2-lite ascend-910b2 -o r.png
    perfmodel roofline llama-3.1-8b a100-80gb-sxm --batch 32 --isl 2048 \\
        --osl 256 -o r.svg
    perfmodel roofline deepseek-v2-lite ascend-910b2 --hierarchical -o h.png
    ```
    """
    case = case_of(catalogue, question)
    work = case.workload
    budget = float(memory_plan(case.memory).limits.max_num_batched_tokens)
    data = roofline_of(
        case.engine,
        catalogue.core_of(case.setup.devices[0]) if hierarchical else None,
        batch=work.batch,
        input_tokens=work.input_tokens,
        output_tokens=work.output_tokens,
        token_budget=budget,
    )
    if as_json:
        print(json_text({"rows": data.as_rows()}))
    elif as_csv:
        print(csv_text(data.as_rows()), end="")
    if output is not None or not (as_json or as_csv):
        from perfmodel.report.roofline import save_roofline

        path = save_roofline(
            data, output or Path(f"{_name(hierarchical)}-{case.setup.model.name}-{case.setup.devices[0].name}.png")
        )
        if not (as_json or as_csv):
            print(f"wrote {path}")
            for text in case.assumed:
                print(f"assumed {text}", file=sys.stderr)


def _name(hierarchical: bool) -> str:
    return "roofline-hierarchical" if hierarchical else "roofline"
