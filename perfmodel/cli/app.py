"""The application: all commands, and one place where errors become messages and exit codes.

Only the module of the command that is asked for is imported, so that an answer starts fast.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from keyword import kwlist
from typing import Final

import typer

from perfmodel.errors import PerfmodelError

__all__ = ["app_with", "main"]

PANELS: Final[dict[str, tuple[str, ...]]] = {
    "Ask": ("estimate", "memory", "whatif", "sweep", "roofline"),
    "Serve": ("steady", "simulate", "sweep-rate", "campaign"),
    "Plan": ("plan", "scale", "sensitivity"),
    "Judge": ("diagnose", "compare-runs", "audit", "demo"),
    "Measure and fit": ("import", "calibrate", "fit", "predict", "validate", "profile"),
    "Look inside": (
        "fusion",
        "recompute",
        "dispatch",
        "streams",
        "allreduce",
        "instances",
        "fragmentation",
        "layout",
        "issue",
        "hierarchy",
        "precision",
    ),
    "Catalogue": ("hardware", "models"),
}
"""Every command under the heading of `--help` that a newcomer would look for it."""

GROUPS: Final = ("hardware", "models", "hierarchy", "precision")
"""Those that have commands of their own."""

COMMANDS: Final = tuple(name for names in PANELS.values() for name in names if name not in GROUPS)


def app_with(names: Sequence[str] = (*COMMANDS, *GROUPS)) -> typer.Typer:
    """Return the application with these commands."""
    app = typer.Typer(
        name="perfmodel",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode="markdown",
    )
    app.callback()(_root)
    panels = {name: panel for panel, members in PANELS.items() for name in members}
    for name in names:
        spelled = f"{name}_" if name in kwlist else name.replace("-", "_")
        module = import_module(f"perfmodel.cli.{spelled}")
        if name in GROUPS:
            app.add_typer(getattr(module, f"{name}_app"), name=name, rich_help_panel=panels[name])
        else:
            register = app.command(
                name, context_settings=getattr(module, "CONTEXT", None), rich_help_panel=panels[name]
            )
            register(getattr(module, spelled))
    return app


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"perfmodel {version('perfmodel')}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """How fast would this model run on that hardware, what limits it, and does it fit?

    ```
    perfmodel estimate llama-3.1-8b a100-80gb-sxm -b 16 --isl 2048 --osl 256
    perfmodel memory deepseek-v3 8xh200-sxm --max-model-len 32768
    perfmodel whatif qwen3-32b 2xrtx-4090 --vary quantization=fp8,w8a8
    perfmodel memory h100-sxm --from "vllm serve Qwen/Qwen3-32B -tp 4"
    perfmodel hardware list 910b
    ```

    Each command explains itself: `perfmodel estimate --help`. Results go to stdout, everything else to stderr. Exit
    code: 0 done, 1 the answer is no (does not fit), 2 the question is wrong.
    """  # noqa: D400


def _started(names: Sequence[str]) -> typer.Typer:
    """Return the application, imported with what only costs time switched off: pydantic plugins, garbage collection."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    gc.disable()
    try:
        return app_with(names)
    finally:
        gc.freeze()
        gc.enable()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 the answer is no, 2 the question is wrong."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    asked = words[0] if words else ""
    known = (*COMMANDS, *GROUPS)
    only = (asked,) if asked in known and "_PERFMODEL_COMPLETE" not in os.environ else known
    try:
        code = _started(only)(args=_canonical(words), standalone_mode=False, prog_name="perfmodel")
        if sys.stdout is not None:  # closed by the caller
            sys.stdout.flush()
    except PerfmodelError as error:
        print(f"perfmodel: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        print("perfmodel: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        _drop_stdout()
        sys.exit(0)
    except SystemExit as stop:
        if not isinstance(stop.__context__, BrokenPipeError):
            raise
        _drop_stdout()  # rich and typer leave with 1 where a reader has gone; 1 would be a no
        sys.exit(0)
    except OSError as error:
        if error.filename is None:
            _drop_stdout()  # what is left to write cannot be written either
        place = f"{error.filename}: " if error.filename else ""
        print(f"perfmodel: {place}{error.strerror or error}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        _tell_usage(error, asked if asked in known else "")
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


def _drop_stdout() -> None:
    """Send to nowhere what stdout still holds, so that the end of the process does not complain about it."""
    with suppress(OSError):  # where stdout is no file, as under another program, nothing is left to complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _canonical(words: Sequence[str]) -> list[str]:
    from perfmodel.cli.flags import canonical

    return canonical(words)


def _tell_usage(error: Exception, command: str) -> None:
    """Print what is wrong with the arguments. The class is click's, which newer versions of typer hold a copy of."""
    message = str(error.format_message()) if hasattr(error, "format_message") else str(error)
    if not message.strip():
        return  # no arguments at all: the help was printed
    print(f"perfmodel: {message}", file=sys.stderr)
    print(f"  `{' '.join(filter(None, ('perfmodel', command)))} --help` shows what there is.", file=sys.stderr)
