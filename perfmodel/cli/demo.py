"""`perfmodel demo`: the main job on real set-ups, predicted beside stated."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perfmodel.cli.estimate import remedy_schemes
from perfmodel.errors import InfeasibleError
from perfmodel.report.output import csv_text, json_text, shown
from perfmodel.report.stated import Found, stated_rows, stated_tables
from perfmodel.specs.catalogue import Catalogue, builtin_home
from perfmodel.specs.deployment import Deployment
from perfmodel.specs.files import read_spec
from perfmodel.specs.stated import StatedDocument, StatedRun
from perfmodel.step.answer import Answer, answer_to
from perfmodel.step.question import Question, case_of

__all__ = ["demo"]

_RUNS = "hardware/measurements/article-end-to-end.yaml"


def demo(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Run an article's end-to-end set-ups and DeepSeek-V3 on four systems: predicted beside stated, and the limits."""
    catalogue = Catalogue.standard()
    document = read_spec(StatedDocument, builtin_home() / _RUNS)
    found = [Found(run, n, _answer(catalogue, document, run, n)) for run in document.runs for n in run.batches]
    if as_json:
        print(json_text({"runs": stated_rows(found)}))
    elif as_csv:
        print(csv_text(stated_rows(found)), end="")
    else:
        shown(*stated_tables(found, document))


def _answer(catalogue: Catalogue, document: StatedDocument, run: StatedRun, batch: int) -> Answer | InfeasibleError:
    stated: dict[str, Any] = dict(run.deployment)
    question = Question(
        model=run.model,
        hardware=run.hardware,
        runtime=run.runtime,
        deployment=Deployment(**stated),
        batch=float(batch),
        input_tokens=float(document.input_tokens),
        output_tokens=float(document.output_tokens),
    )
    try:
        return answer_to(case_of(catalogue, question), schemes=remedy_schemes(catalogue))
    except InfeasibleError as error:
        return error
