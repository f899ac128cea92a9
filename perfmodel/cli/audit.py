"""`perfmodel audit`: claims judged by the model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.flags import CatalogFolders, Csv, Json, one_format

__all__ = ["audit"]


def audit(
    claims: Annotated[
        Path | None, typer.Argument(help="A claims file; the founding article's without it.", metavar="CLAIMS.yaml")
    ] = None,
    template: Annotated[bool, typer.Option("--template", help="Print a documented claims file to fill in.")] = False,
    every_check: Annotated[
        bool, typer.Option("--all", help="A row for every check, not only the one that decides.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Claims whose id begins so, with the working; repeat.", metavar="ID"),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write the report with its working: .md or .html.", metavar="FILE")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Picture of stated over predicted: .png, .svg or .pdf.", metavar="FILE"),
    ] = None,
    as_json: Json = False,
    as_csv: Csv = False,
    catalog: CatalogFolders = None,
) -> None:
    """Judge claims: a vendor's table, a blog post, an article. Each gets a verdict with its reason.

    Verdicts: reproduced, plausible, contradicts itself, contradicts physics, contradicts a public specification, not
    testable. A claims file holds figures and what they are said to be; the rules are the same for everybody's.

    ```
    perfmodel audit
    perfmodel audit --report audit.html --plot audit.png
    perfmodel audit --only e2e-batch16 --only hw-910b
    perfmodel audit --template > claims.yaml
    perfmodel audit claims.yaml --all
    ```
    """
    import sys

    one_format(as_json=as_json, as_csv=as_csv)
    from perfmodel.validate.audit.run import audit as audit_of
    from perfmodel.validate.audit.run import read_claims, shipped_claims, template_text

    if template:
        print(template_text(), end="")
        return
    from perfmodel.cli.options import catalogue_of
    from perfmodel.errors import SpecError
    from perfmodel.report.audit import (
        audit_csv_rows,
        audit_document,
        audit_html,
        audit_markdown,
        audit_tables,
        working_parts,
    )
    from perfmodel.report.output import csv_text, json_text, shown, whole_file
    from perfmodel.report.picture import checked_picture

    if report is not None and report.suffix not in (".md", ".html"):
        raise SpecError("a report cannot be written so", got=report.name, expected="a name ending in .md or .html")
    checked_picture(plot)
    found = audit_of(read_claims(claims or shipped_claims()), catalogue_of(catalog), only=only or ())
    if report is not None:
        with whole_file(report) as file:
            file.write(audit_html(found) if report.suffix == ".html" else audit_markdown(found))
        print(f"wrote {report}", file=sys.stderr)
    if plot is not None:
        from perfmodel.report.audit_plot import save_audit_figure

        print(f"wrote {save_audit_figure(found, plot)}", file=sys.stderr)
    if as_json:
        print(json_text(audit_document(found)))
    elif as_csv:
        print(csv_text(audit_csv_rows(found)), end="")
    else:
        shown(*audit_tables(found, every_check=every_check or bool(only)))
        if only:
            shown(*working_parts(found))
