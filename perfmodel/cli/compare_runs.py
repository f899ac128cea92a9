"""`perfmodel compare-runs`: results of serving benchmarks side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.flags import Csv, Json, one_format
from perfmodel.errors import SpecError
from perfmodel.report.output import csv_text, json_text, shown
from perfmodel.report.run_comparison import (
    named_runs,
    run_comparison_document,
    run_comparison_rows,
    run_comparison_tables,
)

__all__ = ["compare_runs"]


def compare_runs(
    files: Annotated[
        list[Path],
        typer.Argument(help="Two or more results: measured or simulated, of any benchmark tool.", metavar="FILE..."),
    ],
    *,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Compare serving runs figure by figure, and say where their loads differ. The first is the base of all changes.

    A simulated run is saved in the same form by `perfmodel simulate --save-result`.

    ```
    perfmodel compare-runs measured.json simulated.json
    perfmodel compare-runs before.json after.json again.json --csv
    ```
    """
    one_format(as_json=as_json, as_csv=as_csv)
    from perfmodel.measure.importers.registry import import_file

    runs = named_runs([(path.name, import_file(path)) for path in files])
    if len(runs) < 2:
        raise SpecError("nothing to compare", got="one run", expected="two runs or more, in one file or several")
    if as_json:
        print(json_text(run_comparison_document(runs)))
    elif as_csv:
        print(csv_text(run_comparison_rows(runs)), end="")
    else:
        shown(*run_comparison_tables(runs))
