"""`perfmodel predict`: a whole table predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.flags import Calibrated, CatalogFolders, Json

__all__ = ["predict"]


def predict(
    table: Annotated[Path, typer.Argument(help="A table in the measurement format; `value` may be missing.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File for the result; stdout without it.")
    ] = None,
    calibration: Calibrated = "auto",
    as_json: Json = False,
    catalog: CatalogFolders = None,
) -> None:
    """Predict every row of a table: value, 80 % band, what binds it, and the error where it was measured.

    Adds the columns predicted, low, high, bound, calibration, error, reason and remark. A row that cannot be predicted
    says why in `reason`; the exit code is 1 where no row could be.

    ```
    perfmodel predict questions.csv -o answers.csv
    perfmodel predict measured.csv --calibration ideal --json
    ```
    """
    import sys

    from perfmodel.cli.options import catalogue_of
    from perfmodel.cli.tables import checked_tables, not_a_source
    from perfmodel.errors import InfeasibleError, MeasurementError
    from perfmodel.report.output import json_text, progress
    from perfmodel.report.prediction import prediction_csv, prediction_rows, prediction_summary, written_whole
    from perfmodel.validate.predict import predictions

    not_a_source([output], [table])
    catalogue = catalogue_of(catalog)
    (asked,) = checked_tables([table], catalogue, is_question=True)
    if not len(asked):
        raise MeasurementError(f"{table} has no rows", expected="a header and at least one row")
    with progress("predict", len(asked)) as advance:
        found = predictions(asked, catalogue, calibration, on_rows_done=advance)
    json_wanted = as_json or (output is not None and output.suffix == ".json")
    text = json_text(prediction_rows(found)) + "\n" if json_wanted else prediction_csv(found)
    if output is None:
        sys.stdout.write(text)
    else:
        print(f"wrote {written_whole(output, text)}", file=sys.stderr)
    print(prediction_summary(found), file=sys.stderr)
    if not (found.reason == "").any():
        raise InfeasibleError("no row could be predicted", cure="The column `reason` says why, row by row.")
