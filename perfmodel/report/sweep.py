"""Blocks of a sweep as CSV, row by row, so that a large grid is never one text in memory; as JSON or Parquet."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import IO, Any

from perfmodel.errors import InfeasibleError, PerfmodelError, SpecError
from perfmodel.report.output import json_text, plain_value, whole_file
from perfmodel.report.table_file import parquet_file
from perfmodel.step.grid import Block

__all__ = ["sweep_written"]


def sweep_written(blocks: Iterator[Block], output: Path | None, *, as_json: bool) -> None:
    """Write all blocks to a file or stdout; a file appears only once it is whole.

    Raises the error of the first block, and writes nothing, where there is no block without one.
    """
    held = []
    for block in blocks:
        held.append(block)
        if not block.error:
            break
    else:
        if held:
            infeasible = next((block for block in held if block.exit_code == 1), None)
            kind: type[PerfmodelError] = InfeasibleError if infeasible else SpecError
            raise kind(f"no combination works: {(infeasible or held[0]).error}")
    every = chain(held, blocks)
    if output is not None and output.suffix.lower() == ".parquet":
        _write_parquet(every, output, columns=next(block for block in held if not block.error).columns)
        print(f"wrote {output}", file=sys.stderr)
        return
    if output is None:
        _write(every, sys.stdout, as_json=as_json)
        return
    with whole_file(output) as file:
        _write(every, file, as_json=as_json)
    print(f"wrote {output}", file=sys.stderr)


def _rows(block: Block) -> Iterator[dict[str, Any]]:
    shared = {name: plain_value(text) for name, text in block.names.items()}
    if block.error:
        yield {**shared, "error": block.error}
        return
    names = list(block.columns)
    for values in zip(*(block.columns[name].tolist() for name in names), strict=True):
        yield {**shared, **dict(zip(names, values, strict=True)), "error": ""}


def _write(blocks: Iterator[Block], file: IO[str], *, as_json: bool) -> None:
    if as_json:
        file.write(json_text({"rows": [row for block in blocks for row in _rows(block)]}) + "\n")
        return
    held = list(blocks)
    columns = list(dict.fromkeys(key for block in held for key in (*block.names, *block.columns, "error")))
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    for block in held:
        writer.writerows(_rows(block))


def _write_parquet(blocks: Iterator[Block], output: Path, *, columns: Mapping[str, Any]) -> None:
    """Write blocks as they come; names of axes are text, since one axis may mix numbers and words."""
    first = next(blocks)
    kinds: dict[str, type] = {**dict.fromkeys(first.names, str), **dict.fromkeys(columns, float), "error": str}
    with parquet_file(output, kinds) as write:
        for block in chain((first,), blocks):
            n = len(next(iter(block.columns.values()), (0.0,)))
            absent = [None] * n
            named = {name: [text] * n for name, text in block.names.items()}
            write({**named, **{name: block.columns.get(name, absent) for name in columns}, "error": [block.error] * n})
