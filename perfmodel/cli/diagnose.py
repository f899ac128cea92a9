"""`perfmodel diagnose`: what limits a measured run, whether it is normal, and which flag would change it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from perfmodel.cli.flags import Json
from perfmodel.cli.names import hardware_names, model_names
from perfmodel.cli.options import asking
from perfmodel.errors import SpecError
from perfmodel.report.diagnosis import diagnosis_document, diagnosis_tables
from perfmodel.report.output import json_text, progress, shown
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.question import Question

__all__ = ["diagnose"]

_CHANGES = 24
"""Simulations that one run takes at most, for the progress bar."""


@asking
def diagnose(
    files: Annotated[
        list[Path], typer.Argument(help="Results of a serving benchmark, of any tool.", metavar="BENCH...")
    ],
    *,
    question: Question,
    catalogue: Catalogue,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Model; as the result says without it.", autocompletion=model_names, metavar="X"),
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option("--hardware", help="Device or system.", autocompletion=hardware_names, metavar="X"),
    ] = None,
    log: Annotated[
        Path | None, typer.Option("--log", help="Start-up log of the engine: its KV blocks and limits count.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Diagnose a measured run: the limit that binds, the expected band, whether it is normal, and what would help.

    The run is repeated in simulation with the flags that are given, as in `perfmodel simulate`. A run outside of the
    band is compared with settings that were not stated; if none explains it, that is said.

    ```
    perfmodel diagnose bench.json --model qwen3-4b --hardware rtx-4090 -q fp8 \\
        --max-num-seqs 4
    perfmodel diagnose c1.json c8.json c64.json --hardware 2xh100-sxm \\
        --from "vllm serve Qwen/Qwen3-32B -tp 2" --log startup.log
    ```
    """
    del model, hardware  # they are part of the question
    from perfmodel.measure.importers.registry import import_file
    from perfmodel.report.run_comparison import named_runs
    from perfmodel.validate.diagnosis.startup import with_startup_log
    from perfmodel.validate.diagnosis.verdict import diagnosis

    imported = [(path.name, import_file(path)) for path in files]
    runs = named_runs(imported)
    started = None
    if log is not None:
        question, started = with_startup_log(question, import_file(log, "startup-log"))
    documents: list[dict[str, Any]] = []
    parts: list[Any] = []
    warnings = [f"{name}: {text}" for name, one in imported for text in one.warnings]
    with progress("diagnose", _CHANGES * len(runs)) as advance:
        for name, run in runs.items():
            found = diagnosis(catalogue, _asked(question, run.model), run, told=lambda: advance(1))
            documents.append({"run": name, **diagnosis_document(found)})
            if parts:
                parts.append("")
            parts += diagnosis_tables(found, name=name, started=started)
    if as_json:
        print(json_text({"runs": documents, "warnings": warnings}))
        return
    from rich.text import Text

    shown(*parts, *(Text(f"Note: {line}", style="yellow") for line in warnings))


def _asked(question: Question, model: str) -> Question:
    """Return the question with the model that the result names, where nobody named another."""
    if question.model is not None or question.deployment.model is not None:
        return question
    if not model:
        raise SpecError("no model is named", got="a result without a model", expected="--model NAME")
    from perfmodel.measure.importers.serving import model_and_scheme

    name, scheme = model_and_scheme(model)
    deployment = question.deployment
    if scheme and deployment.quantization is None:
        deployment = replace(deployment, quantization=scheme)
    return replace(question, model=name, deployment=deployment)
