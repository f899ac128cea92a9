"""`perfmodel sweep`: grids of questions to CSV or JSON, as arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.options import asking
from perfmodel.errors import SpecError
from perfmodel.report.output import progress
from perfmodel.report.sweep import sweep_written
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.grid import grid_of, swept
from perfmodel.step.question import Question
from perfmodel.step.variation import parsed_axes

__all__ = ["sweep"]


@asking
def sweep(
    *,
    question: Question,
    catalogue: Catalogue,
    vary: Annotated[
        list[str] | None,
        typer.Option("--vary", help="name=value,value or name=from:to:step (or :xfactor).", metavar="NAME=VALUES"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File for the result; stdout without it.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON instead of CSV (also chosen by a .json file name).")
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV (the default).")] = False,
) -> None:
    """Evaluate a grid: TTFT, TPOT, end to end and throughput with bands for every combination of the axes.

    Numbers (batch, isl, osl) run as arrays; names and layouts are grouped. Combinations that do not fit carry the
    reason in `error`.

    ```
    perfmodel sweep llama-3.1-8b a100-80gb-sxm --osl 256 -o grid.csv \\
        --vary batch=1:256:x2 --vary isl=512,2048,8192
    perfmodel sweep deepseek-v3 8xh200-sxm --json \\
        --vary batch=1:512 --vary osl=128:1024:128
    ```
    """
    if not vary:
        raise SpecError("nothing to sweep", expected="--vary name=value,value or name=from:to:step")
    grid = grid_of(question, parsed_axes(vary))
    with progress("sweep", grid.n_rows) as advance:
        result = swept(catalogue, grid, on_rows_done=advance)
        sweep_written(
            result, output, as_json=as_json or (not as_csv and output is not None and output.suffix == ".json")
        )
