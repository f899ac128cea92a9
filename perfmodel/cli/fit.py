"""`perfmodel fit`: a curve through measured data, with a ranking of rival laws and a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from perfmodel.cli.flags import Json

if TYPE_CHECKING:
    from perfmodel.fit.data import FitData

__all__ = ["CONTEXT", "fit"]

CONTEXT: Final = {"ignore_unknown_options": True, "allow_extra_args": True}
"""Flags of `memory` are taken as they come, so that they can be repeated in the advice."""


def fit(
    what: Annotated[
        str,
        typer.Argument(
            help="A CSV file, a table in the measurement format, or the name of a shipped one.", metavar="DATA"
        ),
    ],
    rest: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    x: Annotated[
        list[str] | None, typer.Option("--x", help="Column to fit against; repeat for laws of several.")
    ] = None,
    y: Annotated[
        str | None, typer.Option("--y", help="Column to fit; in a measurement table also an op, such as ipc.")
    ] = None,
    law: Annotated[
        str, typer.Option("--law", help="auto (all that suit the columns), or names parted by commas.")
    ] = "auto",
    stderr: Annotated[str | None, typer.Option("--stderr", help="Column with standard errors of y.")] = None,
    group: Annotated[str | None, typer.Option("--group", help="Column whose groups are left out in turn.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", help="column=word: only these rows of a measurement table.", metavar="COLUMN=WORD"),
    ] = None,
    residual: Annotated[str, typer.Option("--residual", help="absolute, relative or log.")] = "absolute",
    loss: Annotated[str, typer.Option("--loss", help="linear, or robust: soft_l1, huber, cauchy.")] = "linear",
    evaluate: Annotated[
        list[str] | None,
        typer.Option("--evaluate", help="law:name=value,...: judge a law with given parameters.", metavar="LAW:VALUES"),
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Picture: .png, .svg or .pdf.", metavar="FILE")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="YAML file for the fit.", metavar="FILE")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output file.")] = False,
    as_json: Json = False,
) -> None:
    """Fit laws to measured data: ranking, parameters with errors, verdict, picture and YAML.

    For "does the model fit in memory" use `perfmodel memory`. Exit code 1 when no law can be judged on the data.

    ```
    perfmodel fit article-ipc-decay --x n_instances --y ipc \\
        --evaluate contention_printed:base=3.27,alpha=0.82,beta=1.35 \\
        --plot ipc.png -o ipc.yaml
    perfmodel fit latency.csv --x bytes --y seconds --law alpha_beta --stderr sd
    ```
    """
    from perfmodel.errors import FitError, SpecError

    path = _file(what)
    if path is None:
        raise _no_file(what, rest or [])
    if rest:
        raise SpecError("an argument is not understood", got=" ".join(rest), cure="`perfmodel fit --help` shows all.")
    if not x or y is None:
        raise SpecError("a fit needs columns", expected="--x COLUMN --y COLUMN")
    from perfmodel.cli.tables import not_a_source

    not_a_source([output, plot], [path])
    if output is not None and output.exists() and not force:
        raise FitError(f"{output.name} exists already", cure="Choose another name, or --force to replace it.")
    from perfmodel.report.fit_command import FitRequest, fitted, saved_plot, shown_text
    from perfmodel.report.picture import checked_picture

    checked_picture(plot)
    request = FitRequest.of(law=law, residual=residual, loss=loss, evaluate=evaluate or ())
    data = _data(path, tuple(x), y, stderr, group, where or ())
    outcome = fitted(data, request)
    if plot is not None:
        _tell(f"wrote {saved_plot(outcome, plot)}")
    if output is not None:
        from perfmodel.fit.document import written

        _tell(f"wrote {written(outcome.document(), output, force=force)}")
    if as_json:
        from perfmodel.report.output import json_text

        print(json_text(outcome.document()))
    else:
        print(shown_text(outcome))
    if outcome.best is None:
        raise typer.Exit(1)


def _tell(text: str) -> None:
    import sys

    print(text, file=sys.stderr)


def _file(what: str) -> Path | None:
    """Return the file of that name, else the table that the catalogue holds under it; None where there is neither."""
    path = Path(what)
    if path.is_file():
        return path
    from perfmodel.specs.catalogue import Catalogue
    from perfmodel.validate.shipped import shipped_tables

    return next((table for table in shipped_tables(Catalogue.standard()) if table.stem == what), None)


def _no_file(what: str, rest: list[str]) -> Exception:
    """Return the error for something that is no file: a model was meant for `memory`, anything else does not exist."""
    from perfmodel.errors import PerfmodelError, SpecError
    from perfmodel.specs.catalogue import Catalogue

    try:
        name = Catalogue.standard().model(what).model.name
    except PerfmodelError:
        return SpecError(
            f"{what!r} cannot be fitted",
            got="no such file",
            expected="a CSV file, or the name of a shipped table such as article-ipc-decay",
            cure="For memory use `perfmodel memory MODEL HARDWARE`.",
        )
    asked = " ".join(["perfmodel memory", what, *(rest or ["HARDWARE"])])
    return SpecError(f"{name} is a model, and `fit` fits curves to measurements", cure=f"Did you mean `{asked}`?")


def _data(
    path: Path, x: tuple[str, ...], y: str, stderr: str | None, group: str | None, where: list[str] | tuple[()]
) -> FitData:
    """Return the columns of a measurement table, or of any other CSV file."""
    from perfmodel.errors import SpecError
    from perfmodel.fit.data import data_from_csv
    from perfmodel.validate.fit_columns import data_from_table, is_measurement_table

    if is_measurement_table(path):
        return data_from_table(path, x, y, stderr=stderr, group=group, where=_words(where))
    if where:
        raise SpecError(f"{path.name} is no measurement table", where="--where", expected="a table in the schema")
    return data_from_csv(path, x, y, stderr=stderr, group=group)


def _words(texts: Any) -> dict[str, str]:
    from perfmodel.errors import SpecError

    found: dict[str, str] = {}
    for text in texts:
        name, equals, word = text.partition("=")
        if not equals:
            raise SpecError("a flag cannot be used", where="--where", got=repr(text), expected="column=word")
        found[name.strip()] = word.strip()
    return found
