"""`perfmodel calibrate`: kernel and link coefficients of a device from tables of measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.flags import Json
from perfmodel.cli.names import hardware_names
from perfmodel.cli.options import catalogue_of
from perfmodel.cli.tables import checked_tables, not_a_source
from perfmodel.errors import SpecError
from perfmodel.specs.catalogue import Catalogue, user_home

__all__ = ["calibrate"]


def calibrate(
    device: Annotated[str, typer.Argument(help="Device that was measured.", autocompletion=hardware_names)],
    tables: Annotated[
        list[Path] | None, typer.Argument(help="Tables of measurements (CSV); without any, those that are shipped.")
    ] = None,
    engine: Annotated[str, typer.Option("--engine", help="Only rows of this engine: vllm, sglang, tensorrt-llm.")] = "",
    out: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="File; your catalogue folder without it, - for stdout."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    suggest: Annotated[bool, typer.Option("--suggest", help="List the measurements that would tell most.")] = False,
    catalog: Annotated[
        list[Path] | None, typer.Option("--catalog", help="Folder with your own hardware/ and models/.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit the kernels and links of a device to measurements, and write a calibration that predictions then use.

    ```
    perfmodel calibrate a100-80gb-sxm my_kernels.csv
    perfmodel calibrate h100-sxm --engine vllm -o h100-vllm.yaml
    perfmodel calibrate ascend-910b3 --suggest
    ```
    """
    catalogue = catalogue_of(catalog)
    spec = catalogue.hardware(device).device
    if suggest:
        _suggest(catalogue, spec.name, as_json=as_json)
        return
    from perfmodel.fit.calibrate import calibration_from, calibration_text, written_calibration
    from perfmodel.report.calibration import calibration_document, calibration_tables
    from perfmodel.report.output import json_text, progress, shown

    name = f"{spec.name}--{engine}" if engine else spec.name
    target = out or user_home() / "hardware" / "calibration" / f"{name}.yaml"
    to_stdout = str(target) == "-"
    if target.exists() and not force:
        raise SpecError(f"{target} exists", cure="Give --force to replace it, or -o for another file.")
    paths = tables or _shipped(catalogue)
    not_a_source([target], paths)
    read = checked_tables(paths, catalogue)
    with progress("fitting", 12) as advance:
        made = calibration_from(spec, read, catalogue=catalogue, engine=engine, advanced=lambda _: advance(1))
    if to_stdout:
        print(calibration_text(made.calibration), end="")
        return
    file = written_calibration(made.calibration, target, force=force)
    if as_json:
        print(json_text({**calibration_document(made), "file": str(file)}))
    else:
        shown(*calibration_tables(made))
        print(f"written to {file}")


def _shipped(catalogue: Catalogue) -> list[Path]:
    """Return the tables of measurements in all homes of the catalogue."""
    return [path for home in catalogue.homes for path in sorted((home / "hardware" / "measurements").glob("*.csv"))]


def _suggest(catalogue: Catalogue, name: str, *, as_json: bool) -> None:
    from perfmodel.fit.suggest import suggestions
    from perfmodel.report.calibration import suggestion_document, suggestion_table
    from perfmodel.report.output import json_text, shown

    device = catalogue.device(name)
    known = catalogue.paths("calibration")
    fits = catalogue.calibration(name).fits if name in known else {}
    present = catalogue.calibration_for("auto", [device], "")
    listed = suggestions(device, present, catalogue.fitting_rules(), records=fits)
    if as_json:
        print(json_text(suggestion_document(name, listed)))
    else:
        shown(suggestion_table(name, listed))
