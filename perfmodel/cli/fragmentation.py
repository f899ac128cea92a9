"""`perfmodel fragmentation`: how much KV memory allocators waste."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.flags import CatalogFolders, Csv, Json, one_format
from perfmodel.cli.names import hardware_names, model_names
from perfmodel.cli.options import catalogue_of
from perfmodel.cli.values import number, whole, whole_number
from perfmodel.errors import SpecError
from perfmodel.report.fragmentation import pool_document, pool_rows_flat, pool_tables
from perfmodel.report.output import csv_text, json_text, progress, shown
from perfmodel.report.picture import checked_picture
from perfmodel.serving.kv_policy import BestFit, Fixed, KvPolicy, Paged, Window
from perfmodel.serving.lengths import LengthDistribution, fixed, lognormal, observed, uniform
from perfmodel.serving.pool_study import CacheShape, PoolStudy, pool_rows
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.files import read_text
from perfmodel.specs.model import Model, SoftmaxAttention
from perfmodel.units import bytes_text
from perfmodel.work.kv import kv_bytes_per_token, kv_footprint

__all__ = ["fragmentation"]

_MOST_SEQUENCES = 10**7
_LENGTHS = "uniform:20000:32000, lognormal:MEAN:SIGMA[:MOST], fixed:N, or a file of numbers"
_ALLOCATORS = "fixed:TOKENS, paged:BLOCK, window:TOKENS:BLOCK, best-fit[:RULES]"


def fragmentation(
    model: Annotated[
        str, typer.Argument(help="Model, for the bytes of a token.", autocompletion=model_names, metavar="MODEL")
    ],
    hardware: Annotated[
        str | None,
        typer.Argument(help="Device, for lines and copies.", autocompletion=hardware_names, metavar="HARDWARE"),
    ] = None,
    lengths: Annotated[str, typer.Option("--lengths", help=_LENGTHS, metavar="TEXT")] = "uniform:20000:32000",
    allocator: Annotated[
        list[str] | None, typer.Option("--allocator", "-a", help=f"{_ALLOCATORS}; may be repeated.", metavar="TEXT")
    ] = None,
    pool: Annotated[str | None, typer.Option("--pool", help="KV pool of a rank, e.g. 40GiB.", metavar="SIZE")] = None,
    count: Annotated[str, typer.Option("--count", help="Sequences that pass through the pool.", metavar="N")] = "20000",
    prompt_share: Annotated[
        str,
        typer.Option(
            "--prompt-share", help="Share of its length that a sequence starts with, under --growth.", metavar="X"
        ),
    ] = "0.5",
    growth: Annotated[
        str | None,
        typer.Option(
            "--growth", help="Tokens that a sequence grows by at a time; whole at once without it.", metavar="N"
        ),
    ] = None,
    tp: Annotated[str, typer.Option("--tp", "-tp", help="Tensor parallel size.", metavar="N")] = "1",
    kv_bytes: Annotated[
        str, typer.Option("--kv-bytes", help="Bytes of an element of the cache: 2, 1 for FP8.", metavar="X")
    ] = "2",
    seed: Annotated[str, typer.Option("--seed", help="Seed of lengths and order.", metavar="N")] = "0",
    plot: Annotated[Path | None, typer.Option("--plot", help="Picture of shares and of occupancy over time.")] = None,
    catalog: CatalogFolders = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Compare KV allocators: waste in closed form and simulated, free memory that no request can use, useful bandwidth.

    Without --allocator: a slot of the longest length, blocks of 16 and 128 tokens, and best fit.

    ```
    perfmodel fragmentation llama-3.1-8b --lengths uniform:20000:32000
    perfmodel fragmentation llama-3.1-8b a100-80gb-sxm \\
        --lengths lognormal:8000:0.8:32000 -a fixed:32000 -a paged:16 \\
        -a window:4096:128 -a best-fit --plot waste.png
    perfmodel fragmentation deepseek-v2-lite ascend-910b2 \\
        --lengths lengths.txt --growth 256 --prompt-share 0.7
    ```
    """
    one_format(as_json=as_json, as_csv=as_csv)
    picture, catalogue = checked_picture(plot), catalogue_of(catalog)
    chosen = catalogue.model(model).model
    shape, notes = _shape(catalogue, chosen, hardware, tp=tp, kv_bytes=kv_bytes)
    distribution = _lengths(lengths)
    capacity = whole("--pool", pool, kind="bytes")
    if capacity is None:
        capacity = 40 * 2**30
        notes.append("a pool of 40 GiB (not stated)")
    n = whole_number("--count", count, low=1, high=_MOST_SEQUENCES)
    grown = whole("--growth", growth) or 0
    share = number("--prompt-share", prompt_share, low=0.0, high=1.0) if grown else 1.0
    start = whole_number("--seed", seed, low=0, high=2**53)
    study = PoolStudy(distribution, capacity, n, start, share, grown)
    policies = [_policy(catalogue, text, shape.bytes_per_token) for text in allocator or _usual(distribution)]
    with progress("fragmentation", n * len(policies)) as advance:
        rows = pool_rows(study, shape, policies, told=advance)
    title = (
        f"{chosen.name}, {bytes_text(shape.bytes_per_token)} a token; {n:,} sequences of {distribution.name} "
        f"(mean {distribution.mean_tokens:,.0f}) in {bytes_text(capacity)}"
    )
    notes.append(
        f"sequences start with {100 * share:g} % of their length and grow by {grown} tokens; any live one goes on next"
        if grown
        else "sequences hold their whole length from the start and leave in random order"
    )
    if picture is not None:
        from perfmodel.report.fragmentation_plot import save_pool

        save_pool(rows, picture, title=title)
    if as_json:
        head = {
            "model": chosen.name,
            "bytes_per_token": shape.bytes_per_token,
            "row_bytes": shape.row_bytes,
            "line_bytes": shape.line_bytes,
            "lengths": distribution.name,
            "mean_tokens": distribution.mean_tokens,
            "capacity_bytes": capacity,
            "prompt_frac": share,
            "growth_tokens": grown,
            "seed": start,
        }
        print(json_text(pool_document(rows, head=head, assumed=notes)))
    elif as_csv:
        print(csv_text(pool_rows_flat(rows)), end="")
    else:
        shown(*pool_tables(rows, title=title, assumed=notes))
        if picture is not None:
            print(f"wrote {picture}", file=sys.stderr)


def _usual(lengths: LengthDistribution) -> tuple[str, ...]:
    return (f"fixed:{lengths.most_tokens}", "paged:16", "paged:128", "best-fit")


def _shape(
    catalogue: Catalogue, model: Model, hardware: str | None, *, tp: str, kv_bytes: str
) -> tuple[CacheShape, list[str]]:
    """Return the bytes of a token, in all and in one run of one layer, and lines and bandwidth of the device."""
    ranks = whole_number("--tp", tp, low=1, high=4096)
    element = number("--kv-bytes", kv_bytes, low=0.25, high=8)
    footprint = kv_footprint(model, kv_bytes_per_element=element, tp=ranks)
    per_token = round(kv_bytes_per_token(model, kv_bytes_per_element=element, tp=ranks))
    if per_token < 1:
        raise SpecError(f"{model.name} keeps nothing that grows with its tokens", where="MODEL", expected="a KV cache")
    notes = ["every layer keeps all tokens: what sliding layers give back is not counted"] if footprint.windows else []
    both = 2 if any(isinstance(layer.attention, SoftmaxAttention) for layer in model.layers) else 1
    row = per_token / (model.n_layers * both)
    if hardware is None:
        return CacheShape(per_token, row), notes
    device = catalogue.hardware(hardware).device
    level = device.level("l2")
    line = level.line_bytes.value if level is not None and level.line_bytes is not None else None
    notes.append("copies run at the nominal memory bandwidth")
    return CacheShape(per_token, row, line, device.dram_bytes_per_s), notes


def _numbers(flag: str, text: str, parts: list[str], expected: str) -> list[float]:
    try:
        return [float(part) for part in parts]
    except ValueError as error:
        raise SpecError("a flag cannot be used", where=flag, got=repr(text), expected=expected) from error


def _lengths(text: str) -> LengthDistribution:
    kind, *parts = text.split(":")
    made = {"uniform": (2, 2), "lognormal": (2, 3), "fixed": (1, 1)}.get(kind)
    if made is None:
        return _from_file(text)
    values = _numbers("--lengths", text, parts, _LENGTHS)
    whole_ones = values if kind != "lognormal" else values[2:]
    if not made[0] <= len(values) <= made[1] or not all(1 <= v <= 1e9 and v == int(v) for v in whole_ones):
        raise SpecError("a flag cannot be used", where="--lengths", got=repr(text), expected=_LENGTHS)
    if kind == "uniform":
        return uniform(int(values[0]), int(values[1]))
    if kind == "fixed":
        return fixed(int(values[0]))
    return lognormal(values[0], values[1], int(values[2]) if len(values) > 2 else None)


def _from_file(text: str) -> LengthDistribution:
    path = Path(text)
    if not path.exists():
        raise SpecError("a flag cannot be used", where="--lengths", got=repr(text[:80]), expected=_LENGTHS)
    words = read_text(path).replace(",", " ").split()
    if not words or not all(word.isdecimal() and len(word) < 10 for word in words):
        odd = next((word for word in words if not word.isdecimal() or len(word) >= 10), "nothing")
        raise SpecError(
            f"{path} holds no lengths", got=repr(odd[:40]), expected="whole numbers of tokens and nothing else"
        )
    return observed([int(word) for word in words], f"lengths of {path.name}")


def _policy(catalogue: Catalogue, text: str, bytes_per_token: int) -> KvPolicy:
    kind, *parts = text.split(":")
    if kind == "best-fit" and len(parts) <= 1:
        return BestFit(catalogue.allocator(parts[0] if parts else "pytorch"), bytes_per_token)
    values = _numbers("--allocator", text, parts, _ALLOCATORS)
    if not all(1 <= v <= 1e12 and v == int(v) for v in values):
        raise SpecError(
            "a flag cannot be used", where="--allocator", got=repr(text), expected="whole numbers of tokens"
        )
    match kind, [int(v) for v in values]:
        case "fixed", [reserved]:
            return Fixed(reserved)
        case "paged", [block]:
            return Paged(block)
        case "window", [window, block]:
            return Window(window, block)
        case _:
            raise SpecError("a flag cannot be used", where="--allocator", got=repr(text), expected=_ALLOCATORS)
