"""The application: all commands, and one place where errors become messages and exit codes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

import click
import typer

from perfmodel.cli.estimate import estimate
from perfmodel.cli.fit import fit
from perfmodel.cli.hardware import hardware_app
from perfmodel.cli.memory import memory
from perfmodel.cli.models import models_app
from perfmodel.cli.roofline import roofline
from perfmodel.cli.sweep import sweep
from perfmodel.cli.whatif import whatif
from perfmodel.errors import PerfmodelError

__all__ = ["app", "main"]

app = typer.Typer(
    name="perfmodel",
    help="How fast would this model run on that hardware, what limits it, and does it fit?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="markdown",
)
app.command()(estimate)
app.command()(memory)
app.command()(whatif)
app.command()(sweep)
app.command()(roofline)
app.command()(fit)
app.add_typer(hardware_app, name="hardware")
app.add_typer(models_app, name="models")

_GLUED = re.compile(r"^-(tp|pp|dp|ep|dcp)=?(\d+)$")


def _split_glued(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `-tp8` and `-tp=8` parted as `-tp 8`.

    >>> _split_glued(["estimate", "-tp8"])
    ['estimate', '-tp', '8']
    """
    words: list[str] = []
    for word in arguments:
        match = _GLUED.match(word)
        words += [f"-{match[1]}", match[2]] if match else [word]
    return words


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 the answer is no, 2 the question is wrong."""
    words = _split_glued(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(args=words, standalone_mode=False, prog_name="perfmodel")
    except PerfmodelError as error:
        print(f"perfmodel: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        print("perfmodel: interrupted", file=sys.stderr)
        sys.exit(130)
    except click.ClickException as error:
        error.show(sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)
