"""`perfmodel validate`: predictions set against measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.flags import Calibrated, CatalogFolders, Json
from perfmodel.cli.values import whole

if TYPE_CHECKING:
    from perfmodel.measure.table import Table

__all__ = ["validate"]


def validate(
    tables: Annotated[
        list[Path] | None, typer.Argument(help="Measurement tables; the shipped ones where none is named.")
    ] = None,
    by: Annotated[
        str, typer.Option("--by", help="Columns to group by: kind, device, runtime, model, op, phase, ...")
    ] = "kind,device",
    bound: Annotated[
        list[str] | None,
        typer.Option(
            "--bound", help="kind=median,p90 such as gemm=4%,12%: exit code 1 when exceeded.", metavar="BOUND"
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Parity and residual plots: .png, .svg or .pdf.", metavar="FILE")
    ] = None,
    write: Annotated[
        Path | None, typer.Option("--write", help="Write the whole report as Markdown.", metavar="FILE")
    ] = None,
    simulate: Annotated[
        str | None,
        typer.Option(
            "--simulate",
            help="Also simulate so many serving runs, those at the limit of the KV cache first.",
            metavar="N",
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all-rows", help="Also rows marked suspect, invalid or synthetic.")] = False,
    calibration: Calibrated = "auto",
    as_json: Json = False,
    catalog: CatalogFolders = None,
) -> None:
    """Compare predictions with measurements: error table, coverage of the bands, plots.

    Errors are |predicted / measured - 1| in percent; bias is the median of predicted / measured - 1. Rows of status ok
    and inferred count. Exit code 1 when a stated bound is exceeded.

    ```
    perfmodel validate
    perfmodel validate mine.csv --by kind,device,runtime --plot parity.png
    perfmodel validate --bound gemm=6%,18% --bound decode_step=8%,20% --json
    perfmodel validate --write docs/accuracy.md
    perfmodel validate hardware/measurements/serve-silicon.csv --simulate 60
    ```
    """
    import sys

    from perfmodel.cli.options import catalogue_of
    from perfmodel.cli.tables import checked_tables, not_a_source
    from perfmodel.errors import InfeasibleError, MeasurementError
    from perfmodel.report.output import json_text, progress, shown
    from perfmodel.report.picture import checked_picture
    from perfmodel.report.serving_accuracy import simulation_documents, simulation_table
    from perfmodel.report.validation import accuracy_documents, accuracy_table, saved_figure
    from perfmodel.validate.accuracy import error_bounds, error_table, exceeded, parsed_groups
    from perfmodel.validate.predict import predictions
    from perfmodel.validate.shipped import one_table, shipped_tables

    checked_picture(plot)
    groups, bounds = parsed_groups(by), error_bounds(bound or ())
    catalogue = catalogue_of(catalog)
    paths = tuple(tables or shipped_tables(catalogue))
    not_a_source([write, plot], paths)
    measured: Table = one_table(checked_tables(paths, catalogue), usable_only=not every)
    if not len(measured):
        raise MeasurementError("there are no rows to validate against", expected="rows of status ok or inferred")
    with progress("validate", len(measured)) as advance:
        found = predictions(measured, catalogue, calibration, on_rows_done=advance)
    errors = error_table(found, groups)
    failures = exceeded(found, bounds)
    if plot is not None:
        print(f"wrote {saved_figure(found, plot, groups[0] if groups else 'kind')}", file=sys.stderr)
    if write is not None:
        from perfmodel.report.accuracy_page import accuracy_page
        from perfmodel.report.prediction import written_whole

        print(f"wrote {written_whole(write, accuracy_page(found, catalogue))}", file=sys.stderr)
    both = runs = None
    n_simulated = whole("--simulate", simulate, kind="count")
    if n_simulated is not None:
        from perfmodel.validate.serve_sim import both_answers, runs_to_simulate

        runs = runs_to_simulate(measured, catalogue, n_simulated)
        if not len(runs):
            print("note: the tables hold no serving run that can be simulated", file=sys.stderr)
        with progress("simulate", len(runs)) as advance:
            both = both_answers(runs, catalogue, on_rows_done=advance)
    if as_json:
        document: dict[str, object] = {"rows": accuracy_documents(errors), "bounds_exceeded": list(failures)}
        if both is not None:
            document["simulated"] = simulation_documents(both)
        print(json_text(document))
    elif write is None:
        shown(accuracy_table(errors))
        if both is not None and runs is not None and len(runs):
            shown(simulation_table(both))
    if not (found.reason == "").any():
        reasons = "; ".join(sorted({str(reason) for reason in found.reason})[:3])
        raise InfeasibleError("no row could be predicted", got=reasons, expected="rows of known devices and models")
    if failures:
        raise InfeasibleError("the predictions are worse than stated bounds allow", cure="; ".join(failures))
