"""`perfmodel layout`: how much of each cache line a block of a tensor uses, layout by layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.flags import CatalogFolders, Csv, Json, one_format
from perfmodel.cli.names import hardware_names, model_names
from perfmodel.cli.options import catalogue_of
from perfmodel.cli.values import number, whole_number

if TYPE_CHECKING:
    from perfmodel.specs.catalogue import Catalogue
    from perfmodel.work.layouts import LayoutRead

__all__ = ["layout"]


def layout(
    layouts: Annotated[
        list[str] | None,
        typer.Argument(help='Axes, outermost first: "[B,L,H,D]"; several to compare.', metavar="LAYOUT..."),
    ] = None,
    size: Annotated[
        str, typer.Option("--size", help="Sizes of all axes: B=1,L=4096,H=128,D=192.", metavar="AXIS=N,...")
    ] = "",
    read: Annotated[
        str, typer.Option("--read", help="What is read at once, axes not named whole: H=1.", metavar="AXIS=N,...")
    ] = "",
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Queries and cache of this model's attention instead.",
            metavar="MODEL",
            autocompletion=model_names,
        ),
    ] = None,
    tokens: Annotated[str, typer.Option("--tokens", help="With --model: tokens of a sequence.")] = "4096",
    element: Annotated[str, typer.Option("--element-bytes", help="2 for fp16, 1 for int8, 0.5 for int4.")] = "2",
    device: Annotated[
        str | None,
        typer.Option(
            "--on", help="Device: its line, bandwidth and banks.", metavar="DEVICE", autocompletion=hardware_names
        ),
    ] = None,
    line: Annotated[str | None, typer.Option("--line", help="Bytes that travel together.", metavar="N")] = None,
    alignment: Annotated[
        str | None, typer.Option("--alignment", help="Bytes that the tensor is aligned to; the line without it.")
    ] = None,
    catalog: CatalogFolders = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Count the cache lines that reading a block of a tensor fetches, and what that leaves of the bandwidth.

    "line use" counts a line for each run of contiguous bytes that needs it, "kept" once where the next needs it too.
    Both are exact means over every place that the block may have. "passes": how often the lanes of a buffer take turns
    if the block lies in it at this stride.

    ```
    perfmodel layout "[B,L,H,D]" "[B,H,L,D]" --size B=1,L=4096,H=128,D=192 \\
        --read B=1,H=1 --on ascend-910b2
    perfmodel layout "[K,D]" --size K=4096,D=576 --read K=1 --line 128 \\
        --alignment 32
    perfmodel layout --model deepseek-v2 --on ascend-910b2
    ```
    """
    from perfmodel.cost.layout import bank_passes, block_read
    from perfmodel.errors import SpecError
    from perfmodel.report.layout import layout_row, layout_tables
    from perfmodel.report.output import csv_text, json_text, shown

    one_format(as_json=as_json, as_csv=as_csv)
    if (model is None) == (not layouts):
        raise SpecError("nothing is asked for, or two things", expected="LAYOUT with --size, or --model")
    if device is None and line is None:
        raise SpecError("no cache line is known", expected="--on DEVICE or --line BYTES")
    catalogue = catalogue_of(catalog)
    spec = catalogue.hardware(device).device if device is not None else None
    banks = catalogue.core_of(spec).banks if spec is not None else None
    cache = spec.level("l2") if spec is not None else None
    stated = cache.line_bytes.value if cache is not None and cache.line_bytes is not None else None
    if line is None and stated is None:
        raise SpecError("the line of this device is not known", where=device or "", cure="Give --line BYTES.")
    line_bytes = int(whole_number("--line", line, low=1, high=1 << 20) if line is not None else stated or 0)
    aligned = None if alignment is None else whole_number("--alignment", alignment, low=1, high=line_bytes)
    bandwidth = spec.dram_bytes_per_s if spec is not None else None
    width = number("--element-bytes", element, low=1e-3, high=64)
    rows = []
    for asked in _reads(
        catalogue, layouts or [], size, read, model, whole_number("--tokens", tokens, low=1, high=10**9)
    ):
        block = block_read(
            asked.layout, sizes=asked.sizes, read=asked.read, element_bytes=width, line_bytes=line_bytes,
            alignment_bytes=aligned,
        )  # fmt: skip
        passes = None
        if banks is not None:
            n, word = int(banks.n_banks.value), int(banks.bank_bytes.value)
            stride = block.stride_bytes if block.levels else word
            passes = bank_passes(n_lanes=n, stride_bytes=stride, n_banks=n, bank_bytes=word)
        rows.append(layout_row(asked.name, block, bandwidth_bytes_per_s=bandwidth, passes=passes))
    if as_json:
        print(json_text({"rows": rows}))
        return
    if as_csv:
        print(csv_text(rows), end="")
        return
    notes = [f"lines of {line_bytes} bytes, tensor aligned to {aligned or line_bytes}"]
    if spec is not None:
        notes.append(f"reaches: line use x {spec.dram_bytes_per_s / 1e9:.4g} GB/s of {spec.title}")
    if banks is not None:
        notes.append(f"passes: {banks.what}, as many lanes as banks, one run apart")
    shown(*layout_tables(rows, notes=notes))


def _reads(
    catalogue: Catalogue, layouts: list[str], size: str, read: str, model: str | None, n_tokens: int
) -> Sequence[LayoutRead]:
    """Return the reads that were asked for: layouts as typed, or those of a model."""
    from perfmodel.errors import SpecError
    from perfmodel.work.layouts import LayoutRead, layout_reads

    if model is not None:
        return layout_reads(catalogue.model(model).model, n_seqs=1, n_tokens=n_tokens)
    sizes, wanted = _numbers("--size", size), _numbers("--read", read)
    taken = ", ".join(f"{n} of {axis}" for axis, n in wanted.items()) or "all"
    named = dict.fromkeys(axis.strip() for layout in layouts for axis in layout.strip(" []").split(","))
    unused = [axis for axis in sizes if axis not in named]
    if unused:
        raise SpecError(
            "an axis stands in no layout", where="--size", got=", ".join(unused), expected=f"some of {', '.join(named)}"
        )
    return [LayoutRead(taken, layout, sizes, wanted) for layout in layouts]


def _numbers(flag: str, text: str) -> dict[str, int]:
    """Return axis -> number of `B=1,L=4096`; raises SpecError."""
    found = {}
    for part in filter(None, (word.strip() for word in text.split(","))):
        axis, _, value = part.partition("=")
        found[axis.strip()] = whole_number(flag, value.strip(), low=1, high=1 << 40)
    return found
