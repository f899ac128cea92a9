"""`perfmodel profile`: what operator timings say, and what would help."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.flags import Calibrated, CatalogFolders, Csv, Json, one_format
from perfmodel.cli.names import hardware_names
from perfmodel.cli.values import number, whole_number

__all__ = ["profile"]


def profile(
    files: Annotated[
        list[Path], typer.Argument(help="op_summary, kernel_details, op_statistic, operator lists, traces.")
    ],
    device: Annotated[
        str | None,
        typer.Option("--device", help="Device by name, for the roofline.", autocompletion=hardware_names),
    ] = None,
    what_if: Annotated[
        list[str] | None, typer.Option("--if", help="How much faster operators would be.", metavar="TYPE=1.3x|30%")
    ] = None,
    handover: Annotated[
        str,
        typer.Option(
            "--handover", help="Microseconds within which a start counts as waiting for another stream; 0: never."
        ),
    ] = "20",
    plot: Annotated[Path | None, typer.Option("--plot", help="Heat map: .png, .svg or .pdf.")] = None,
    page: Annotated[
        Path | None, typer.Option("--html", help="Page with the tables and the heat map.", metavar="FILE")
    ] = None,
    form: Annotated[str | None, typer.Option("--format", help="Format of the files; recognised without it.")] = None,
    top: Annotated[str, typer.Option("--top", help="Lines of each table.", metavar="N")] = "20",
    runtime: Annotated[str, typer.Option("--runtime", help="Engine whose fits predict, e.g. vllm-0.11.")] = "",
    calibration: Calibrated = "auto",
    catalog: CatalogFolders = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Read a profile: shares by operator and stream, critical path, what-if, gaps to the roofline, suggestions.

    ```
    perfmodel profile op_summary_0.csv --device ascend-910b2 --plot heat.png
    perfmodel profile kernel_details.csv --if MatMul=1.3x --if Softmax=2x
    perfmodel profile trace_view.json --handover 0 --json
    ```
    """
    from perfmodel.cli.options import catalogue_of
    from perfmodel.measure.profiling.answer import gap_prices, profile_answer
    from perfmodel.measure.profiling.profile_file import read_profile
    from perfmodel.measure.profiling.timeline import factor_of
    from perfmodel.report.picture import checked_picture
    from perfmodel.report.profile import profile_document, profile_parts, share_rows

    one_format(as_json=as_json, as_csv=as_csv)
    checked_picture(plot)
    asked = [factor_of(text) for text in what_if or ()]
    handover_s = number("--handover", handover, low=0.0, high=1e6) / 1e6
    n_rows = whole_number("--top", top, low=1, high=10_000)
    prices = None
    if device is not None:
        prices = gap_prices(catalogue_of(catalog), device, calibration=calibration, runtime=runtime)
    found = read_profile(files, form)
    answer = profile_answer(found, prices=prices, what_ifs=asked, handover_s=handover_s or None)
    if plot is not None:
        from perfmodel.report.heat_map import save_heat_map

        print(f"wrote {save_heat_map(found, plot, title=found.name)}", file=sys.stderr)
    if page is not None:
        from perfmodel.report.output import written
        from perfmodel.report.profile_page import profile_html

        print(f"wrote {written(page, profile_html(answer, n_rows=n_rows))}", file=sys.stderr)
    from perfmodel.report.output import csv_text, json_text, shown

    if as_json:
        print(json_text(profile_document(answer)))
    elif as_csv:
        print(csv_text(share_rows(answer)), end="")
    else:
        shown(*profile_parts(answer, n_rows=n_rows))
