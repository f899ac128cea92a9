"""Ways out: a table for people, JSON or CSV for programs. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from os import W_OK, access
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from perfmodel.errors import SpecError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

__all__ = ["console", "csv_text", "json_text", "placed", "plain_value", "progress", "shown", "whole_file", "written"]


def plain_value(text: str) -> str | int | float:
    """Return text as the number that it spells, or itself: values of an axis in a row.

    >>> plain_value("8"), plain_value("0.9"), plain_value("fp8"), plain_value("nan")
    (8, 0.9, 'fp8', 'nan')
    """
    try:
        number = float(text)
    except ValueError:
        return text
    if not isfinite(number):
        return text
    return int(number) if number.is_integer() and text.strip("+-").isdigit() else number


def json_text(document: Mapping[str, Any] | Sequence[Any]) -> str:
    """Return a document as JSON; numbers are finite and in base units."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)


def csv_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV with a header; the columns are those of all rows, in order of first use."""
    import csv
    from io import StringIO

    listed = list(rows)
    columns = list(dict.fromkeys(key for row in listed for key in row))
    out = StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(listed)
    return out.getvalue()


def console(*, stderr: bool = False) -> Console:
    """Return a rich console that stays readable in a pipe."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else 118, highlight=False, soft_wrap=False)


def shown(*parts: RenderableType) -> None:
    """Print renderables to stdout."""
    out = console()
    for part in parts:
        out.print(part)


def placed(path: Path) -> Path:
    """Return the path as it is; raises SpecError where no file can stand there: asked before long work, not after."""
    got = None
    if path.is_dir():
        got = "a folder"
    elif not path.parent.is_dir():
        got = "no such folder"
    elif not access(path.parent, W_OK):
        got = "a folder that cannot be written to"
    if got is not None:
        raise SpecError(f"{path} cannot be written", got=got, expected="a file in a folder that can be written to")
    return path


@contextmanager
def whole_file(path: Path) -> Iterator[IO[str]]:
    """Give a file to write, moved to its place at the end, so that a reader never sees half; raises SpecError."""
    placed(path)
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("w", encoding="utf-8", newline="") as file:
            yield file
        partial.replace(path)
    except OSError as error:
        raise SpecError(
            f"{path} cannot be written", got=error.strerror or str(error), expected="a writable place"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def written(path: Path, text: str) -> Path:
    """Write text to a file and return its path; raises SpecError where that cannot be done."""
    with whole_file(path) as file:
        file.write(text)
    return path


@contextmanager
def progress(label: str, n_total: int) -> Iterator[Any]:
    """Give a function that advances a progress bar on stderr; silent where stderr is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task(label, total=n_total)
        yield lambda n_done: bar.advance(task, n_done)
