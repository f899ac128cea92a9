"""`perfmodel sweep`: grids of questions to CSV or JSON, as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.flags import Scheduler, Workers
from perfmodel.cli.options import asking
from perfmodel.cli.values import whole
from perfmodel.errors import SpecError
from perfmodel.plan.runners import runner_at
from perfmodel.report.output import progress
from perfmodel.report.sweep import sweep_written
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.grid import Block, GridPiece, grid_of, grid_pieces, piece_block, swept
from perfmodel.step.question import Question
from perfmodel.step.variation import parsed_axes

__all__ = ["sweep"]

_PIECE_ROWS = 1_000_000
"""Rows that one worker computes at once: a second or two, and 100 MB of columns on the way back."""


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
    scheduler: Scheduler = None,
    workers: Workers = None,
) -> None:
    """Evaluate a grid: TTFT, TPOT, end to end and throughput with bands for every combination of the axes.

    Numbers (batch, isl, osl) run as arrays; names and layouts are grouped. Combinations that do not fit carry the
    reason in `error`.

    ```
    perfmodel sweep llama-3.1-8b a100-80gb-sxm --osl 256 -o grid.csv \\
        --vary batch=1:256:x2 --vary isl=512,2048,8192
    perfmodel sweep deepseek-v3 8xh200-sxm --json \\
        --vary batch=1:512 --vary osl=128:1024:128
    perfmodel sweep qwen3-32b 8xh100-sxm -o grid.parquet \\
        --scheduler tcp://10.0.0.5:8786 --vary tp=1,2,4,8 --vary batch=1:4096
    ```
    """
    if not vary:
        raise SpecError("nothing to sweep", expected="--vary name=value,value or name=from:to:step")
    grid = grid_of(question, parsed_axes(vary))
    with progress("sweep", grid.n_rows) as advance:
        wants_json = as_json or (not as_csv and output is not None and output.suffix == ".json")
        if scheduler is None and workers is None:
            sweep_written(swept(catalogue, grid, on_rows_done=advance), output, as_json=wants_json)
            return
        pieces = list(grid_pieces(grid, most_rows=_PIECE_ROWS))
        with runner_at(scheduler, n_workers=whole("--workers", workers, kind="count")) as runner:
            blocks = runner.results(partial(_block_of, catalogue.folders), pieces)
            sweep_written(_counted(blocks, pieces, advance), output, as_json=wants_json)


def _block_of(folders: Sequence[Path], piece: GridPiece) -> Block:
    return piece_block(Catalogue.standard(folders), piece)


def _counted(blocks: Iterator[Block], pieces: Sequence[GridPiece], advance: Callable[[int], None]) -> Iterator[Block]:
    for block, piece in zip(blocks, pieces, strict=True):
        advance(piece.n_rows)
        yield block
