"""`perfmodel hierarchy`: matmuls, streams and gathers through main memory and L2, and how the model measures up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.cli.flags import Calibrated, CatalogFolders, Csv, Json, one_format
from perfmodel.cli.names import hardware_names
from perfmodel.cli.options import catalogue_of
from perfmodel.cli.values import byte_count, choice, number, whole_number

if TYPE_CHECKING:
    from perfmodel.cost.hierarchy import Hierarchy, Prediction

__all__ = ["hierarchy_app"]

hierarchy_app = typer.Typer(
    help="Matmuls, streams and gathers through main memory and L2: hit rate, bytes, time.", no_args_is_help=True
)

_Device = Annotated[str, typer.Argument(help="Device.", metavar="DEVICE", autocompletion=hardware_names)]
_Warm = Annotated[bool, typer.Option("--warm", help="The same ran just before: what fits into the L2 is there.")]
_ELEMENT_BYTES = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5, "int4": 0.5}
_KERNELS = {"fp8": "matmul/fp8", "int8": "matmul/int8", "fp4": "matmul/fp4", "int4": "matmul/int4"}


@hierarchy_app.command("show")
def hierarchy_show(device: _Device, catalog: CatalogFolders = None, as_json: Json = False, as_csv: Csv = False) -> None:
    """Show the levels of a device and, for each dtype, the intensity that each level asks for to reach the peak.

    ```
    perfmodel hierarchy show ascend-910b2
    ```
    """
    from perfmodel.report.hierarchy_levels import ridge_rows, ridge_tables
    from perfmodel.report.output import csv_text, json_text, shown

    one_format(as_json=as_json, as_csv=as_csv)
    catalogue = catalogue_of(catalog)
    spec = catalogue.hardware(device).device
    core = catalogue.core_of(spec)
    rows = ridge_rows(spec, core)
    if as_json:
        print(json_text({"device": spec.name, "core": core.name, "rows": rows}))
    elif as_csv:
        print(csv_text(rows), end="")
    else:
        shown(*ridge_tables(spec, core, rows))


@hierarchy_app.command("matmul")
def hierarchy_matmul(
    device: _Device,
    m: Annotated[str, typer.Argument(help="Rows of the activations.", metavar="M")],
    n: Annotated[str, typer.Argument(help="Columns of the weights.", metavar="N")],
    k: Annotated[str, typer.Argument(help="Contraction.", metavar="K")],
    dtype: Annotated[str, typer.Option("--dtype", help="fp16, bf16, fp8, int8, int4, ...")] = "fp16",
    warm: _Warm = False,
    order: Annotated[
        str | None,
        typer.Option("--order", help="rows, columns, or group-N[-zigzag]: N columns of tiles kept.", metavar="ORDER"),
    ] = None,
    tile: Annotated[str | None, typer.Option("--tile", help="Output tile of a core, e.g. 128x256.")] = None,
    l2: Annotated[
        str | None, typer.Option("--l2", help="Bytes of the L2 that count, e.g. 96MiB.", metavar="SIZE")
    ] = None,
    stated_use: Annotated[
        str | None, typer.Option("--stated-use", help="A stated use of main memory, 0.892: what it means.", metavar="X")
    ] = None,
    stated_hit: Annotated[
        str | None, typer.Option("--stated-hit", help="The stated L2 hit rate beside it.", metavar="X")
    ] = None,
    calibration: Calibrated = "auto",
    catalog: CatalogFolders = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Price a matmul: tiles and their order, L2 hit rate, bytes of main memory, time.

    ```
    perfmodel hierarchy matmul ascend-910b2 4096 4096 4096
    perfmodel hierarchy matmul ascend-910b2 16384 16384 16384 --order rows
    perfmodel hierarchy matmul ascend-910b2 4096 4096 4096 --stated-use 0.892 \\
        --stated-hit 0.427
    ```
    """
    from perfmodel.cost.hierarchy import stated_pair
    from perfmodel.errors import SpecError
    from perfmodel.report.hierarchy import order_text, pair_document, pair_text
    from perfmodel.work.traffic import MatmulShape

    one_format(as_json=as_json, as_csv=as_csv)
    if (stated_use is None) != (stated_hit is None):
        raise SpecError("a pair is asked for", got="one of --stated-use and --stated-hit", expected="both")
    element = _ELEMENT_BYTES[choice("--dtype", dtype, _ELEMENT_BYTES)]
    rows, columns, depth = (number(name, text, low=1, high=1e9) for name, text in (("M", m), ("N", n), ("K", k)))
    shape = MatmulShape(rows, columns, depth, a_bytes=element, b_bytes=element)
    model = _cut(_hierarchy(device, calibration, catalog), order, tile, l2)
    is_quantised = dtype in _KERNELS
    found = model.matmul(
        shape,
        dtype=dtype,
        kernel=_KERNELS.get(dtype, "matmul/16bit"),
        n_launches=2.0 if is_quantised else 1.0,
        is_warm=warm,
    )
    extra: dict[str, Any] = {}
    lines: list[str] = []
    if stated_use is not None and stated_hit is not None:
        pair = stated_pair(
            found,
            least_bytes=shape.footprint_bytes,
            dram_use_frac=number("--stated-use", stated_use, low=1e-6, high=1),
            hit_frac=number("--stated-hit", stated_hit, low=0, high=0.999999),
        )
        extra["stated"] = pair_document(pair, found)
        lines = pair_text(extra["stated"], fits=float(shape.footprint_bytes) <= model.tiles.cache_bytes)
    title = f"{rows:g} x {columns:g} x {depth:g} in {dtype} on {_title(model)}, {'warm' if warm else 'cold'}"
    assumed = ["assumed: activations are quantised on the fly, one launch more"] if is_quantised else []
    notes = [*lines, order_text(model.tiles), *_remarks(model, float(shape.footprint_bytes)), *assumed]
    _printed(found, title, notes, float(shape.footprint_bytes), extra, as_json=as_json, as_csv=as_csv)


@hierarchy_app.command("stream")
def hierarchy_stream(
    device: _Device,
    size: Annotated[str, typer.Argument(help="Bytes that are read once, e.g. 100MiB.", metavar="SIZE")],
    warm: _Warm = False,
    calibration: Calibrated = "auto",
    catalog: CatalogFolders = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Price reading bytes once, as decode attention reads its cache: out of the L2 where they stayed there.

    ```
    perfmodel hierarchy stream ascend-910b2 100MiB --warm
    ```
    """
    from perfmodel.work.kernel import Work

    one_format(as_json=as_json, as_csv=as_csv)
    n_bytes = byte_count("SIZE", size)
    model = _hierarchy(device, calibration, catalog)
    work = Work("stream", "attention/decode", "fp16", kv_bytes=n_bytes)
    found = model.stream(work, is_warm=warm)
    title = f"{size} on {_title(model)}, {'warm' if warm else 'cold'}"
    _printed(found, title, _remarks(model, n_bytes), n_bytes, {}, as_json=as_json, as_csv=as_csv)


@hierarchy_app.command("gather")
def hierarchy_gather(
    device: _Device,
    rows: Annotated[str, typer.Option("--rows", help="Rows of the table.", metavar="N")],
    row_bytes: Annotated[str, typer.Option("--row-bytes", help="Bytes of a row.", metavar="N")],
    accesses: Annotated[str, typer.Option("--accesses", help="Rows that are read.", metavar="N")],
    skew: Annotated[
        str, typer.Option("--skew", help="Locality: Zipf exponent of how often a row is read; 0: all alike.")
    ] = "0",
    cold: Annotated[bool, typer.Option("--cold", help="Nothing of the table has been read before.")] = False,
    calibration: Calibrated = "auto",
    catalog: CatalogFolders = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Price reading rows of a table at random: aggregation over a graph, embedding look-ups.

    ```
    perfmodel hierarchy gather ascend-910b2 --rows 2.4e6 --row-bytes 256 \\
        --accesses 6e7
    perfmodel hierarchy gather a100-80gb-sxm --rows 1e7 --row-bytes 200 \\
        --accesses 1e8 --skew 0.8
    ```
    """
    one_format(as_json=as_json, as_csv=as_csv)
    n_rows, width = number("--rows", rows, low=1, high=1e12), number("--row-bytes", row_bytes, low=1, high=1e9)
    n_accesses = number("--accesses", accesses, low=1, high=1e15)
    exponent = number("--skew", skew, low=0, high=10)
    model = _hierarchy(device, calibration, catalog)
    found = model.gather(n_rows=n_rows, row_bytes=width, n_accesses=n_accesses, skew=exponent, is_warm=not cold)
    title = f"{n_accesses:.4g} of {n_rows:.4g} rows of {width:g} bytes on {_title(model)}, skew {exponent:g}"
    _printed(found, title, _remarks(model, n_rows * width), n_accesses * width, {}, as_json=as_json, as_csv=as_csv)


@hierarchy_app.command("curve")
def hierarchy_curve(
    device: _Device,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Picture: .png, .svg or .pdf.")] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="Of the matmuls: fp16, bf16, fp8, int8, int4, ...")] = "fp16",
    calibration: Calibrated = "auto",
    catalog: CatalogFolders = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Draw hit rate and use of main memory of square matmuls by size and order, and stream rates by working set.

    ```
    perfmodel hierarchy curve ascend-910b2 -o l2.png
    perfmodel hierarchy curve h100-sxm --csv
    ```
    """
    from perfmodel.report.hierarchy_plot import curve_rows
    from perfmodel.report.output import csv_text, json_text
    from perfmodel.report.picture import checked_picture

    one_format(as_json=as_json, as_csv=as_csv)
    checked_picture(output)
    model, element = _hierarchy(device, calibration, catalog), _ELEMENT_BYTES[choice("--dtype", dtype, _ELEMENT_BYTES)]
    kernel = _KERNELS.get(dtype, "matmul/16bit")
    rows = curve_rows(model, dtype=dtype, kernel=kernel, element_bytes=element)
    if as_json:
        print(json_text({"rows": rows}))
    elif as_csv:
        print(csv_text(rows), end="")
    if output is not None or not (as_json or as_csv):
        from perfmodel.report.hierarchy_plot import curve_figure
        from perfmodel.report.picture import saved_picture

        name = model.prices.device.device.name
        path = saved_picture(curve_figure(model, rows), output or Path(f"hierarchy-{name}.png"))
        if not (as_json or as_csv):
            print(f"wrote {path}")


@hierarchy_app.command("validate")
def hierarchy_validate(
    tables: Annotated[
        list[Path] | None, typer.Argument(help="Measurement tables; the shipped ones where none is named.")
    ] = None,
    catalog: CatalogFolders = None,
    as_json: Json = False,
) -> None:
    """Compare with measurements: L2 hit rates, and times of matmuls and decode attention, cold and resident.

    A row is resident where its working set fits into the usable L2 and its table does not say that it is kept out.
    """
    from perfmodel.errors import MeasurementError
    from perfmodel.measure.csv_io import read_table
    from perfmodel.report.hierarchy import hit_rate_rows, state_rows, validation_tables
    from perfmodel.report.output import json_text, shown
    from perfmodel.validate.hierarchy import hit_rates, state_errors
    from perfmodel.validate.shipped import shipped_tables

    catalogue = catalogue_of(catalog)
    read = [read_table(path).where() for path in tables or shipped_tables(catalogue)]
    rates = [rate for table in read for rate in hit_rates(table, catalogue)]
    errors = state_errors(read, catalogue)
    if not rates and not errors:
        raise MeasurementError(
            "nothing to compare with", expected="rows of 16-bit matmuls, decode attention or hit rates"
        )
    if as_json:
        print(json_text({"hit_rates": hit_rate_rows(rates), "times": state_rows(errors)}))
    else:
        shown(*validation_tables(rates, errors))


def _hierarchy(name: str, calibration: str, folders: list[Path] | None) -> Hierarchy:
    from perfmodel.api import hierarchy

    return hierarchy(name, calibration=calibration, catalogue=catalogue_of(folders))


def _cut(model: Hierarchy, order: str | None, tile: str | None, l2: str | None) -> Hierarchy:
    """Return the hierarchy with the tiles that flags ask for."""
    from dataclasses import replace

    from perfmodel.errors import SpecError
    from perfmodel.validate.hierarchy import in_order

    tiles = model.tiles
    if order is not None:
        tiles = in_order(tiles, order)
    if tile is not None:
        parts = tile.lower().split("x")
        if len(parts) != 2:
            raise SpecError("a flag cannot be used", where="--tile", got=repr(tile), expected="rows x columns: 128x256")
        rows, columns = (whole_number("--tile", part, low=1, high=10**6) for part in parts)
        tiles = replace(tiles, tile_m=rows, tile_n=columns)
    return model.with_tiles(tiles if l2 is None else replace(tiles, cache_bytes=byte_count("--l2", l2)))


def _title(model: Hierarchy) -> str:
    return model.prices.device.device.title


def _remarks(model: Hierarchy, n_bytes: float) -> list[str]:
    """Return what is assumed: the class of cores, what is not known of the device, and room for all operands."""
    from perfmodel.units import bytes_text

    remarks = [f"tiles, order and L2 shares of {model.core.name} (hardware/cores/{model.core.name}.yaml)"]
    if model.l2_bytes_per_s == 0.0:
        remarks.append("assumed: the L2 is no faster than main memory, since its bandwidth is not stated")
    if model.tiles.cache_bytes == 0.0:
        remarks.append("assumed: nothing stays in a cache, since no L2 is stated")
    memory = model.prices.device.device.level("dram")
    if memory is not None and memory.capacity is not None and n_bytes > memory.capacity.value:
        room = bytes_text(memory.capacity.value)
        remarks.append(f"priced as if it fitted: {bytes_text(n_bytes)} do not fit into {room} of main memory")
    return remarks


def _printed(
    found: Prediction, title: str, notes: list[str], useful_bytes: float, extra: dict[str, Any], *, as_json: bool,
    as_csv: bool,
) -> None:  # fmt: skip
    from perfmodel.report.hierarchy import prediction_document, prediction_tables
    from perfmodel.report.output import csv_text, json_text, shown

    if as_json:
        print(json_text(prediction_document(found, useful_bytes=useful_bytes) | extra | {"notes": notes}))
    elif as_csv:
        document = prediction_document(found, useful_bytes=useful_bytes)
        print(csv_text([{name: v for name, v in document.items() if not isinstance(v, (dict, list))}]), end="")
    else:
        shown(*prediction_tables(found, title=title, notes=notes))
