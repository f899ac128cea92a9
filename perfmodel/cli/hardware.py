"""`perfmodel hardware`: list, show, check and add devices and systems."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.flags import CatalogFolders, Csv, Json, one_format
from perfmodel.cli.names import hardware_names
from perfmodel.cli.options import catalogue_of
from perfmodel.errors import SpecError
from perfmodel.report.hardware import device_tables, hardware_rows, hardware_tables, system_tables
from perfmodel.report.output import csv_text, json_text, shown
from perfmodel.specs.arithmetic import arithmetic_faults
from perfmodel.specs.catalogue import Catalogue, user_home
from perfmodel.specs.device import Device
from perfmodel.specs.files import read_data, read_spec
from perfmodel.specs.system import System

__all__ = ["hardware_app"]

hardware_app = typer.Typer(help="Devices and systems: list, show, check, add.", no_args_is_help=True)


@hardware_app.command("list")
def hardware_list(
    pattern: Annotated[str, typer.Argument(help="Only names that contain this.")] = "",
    catalog: CatalogFolders = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """List devices and systems with the figures that people compare first.

    ```
    perfmodel hardware list 910b
    perfmodel hardware show dgx-a100
    perfmodel hardware check mycard.yaml
    perfmodel hardware add mycard.yaml --catalog ./mine
    perfmodel estimate llama-3.1-8b mycard --catalog ./mine
    ```
    """
    one_format(as_json=as_json, as_csv=as_csv)
    rows = hardware_rows(catalogue_of(catalog), pattern.lower())
    if as_json:
        print(json_text(rows))
    elif as_csv:
        print(csv_text(rows), end="")
    else:
        shown(*hardware_tables(rows))
    if not rows:
        _nothing_named(pattern, "hardware")


@hardware_app.command("show")
def hardware_show(
    name: Annotated[str, typer.Argument(help="Device or system.", autocompletion=hardware_names)],
    catalog: CatalogFolders = None,
    as_json: Json = False,
) -> None:
    """Show every figure of a device or system with its source, its labels and its contradictions."""
    spec = _spec(catalogue_of(catalog), name)
    if as_json:
        print(json_text(spec.model_dump(mode="json")))
    else:
        shown(*(device_tables(spec) if isinstance(spec, Device) else system_tables(spec)))


@hardware_app.command("core")
def hardware_core(
    name: Annotated[str, typer.Argument(help="Device, or class of cores by name.", autocompletion=hardware_names)],
    catalog: CatalogFolders = None,
    as_json: Json = False,
) -> None:
    """Show the class of cores of a device: pipes, instructions, banks, tiles, each figure with its source.

    ```
    perfmodel hardware core ascend-910b2
    ```
    """
    from perfmodel.report.hierarchy_levels import core_tables

    catalogue = catalogue_of(catalog)
    known = catalogue.paths("core")
    core = catalogue.core(name) if name in known else catalogue.core_of(catalogue.hardware(name).device)
    if as_json:
        print(json_text(core.model_dump(mode="json")))
    else:
        shown(*core_tables(core))


@hardware_app.command("check")
def hardware_check(
    what: Annotated[
        str,
        typer.Argument(
            metavar="file or name", help="A YAML file, or a device or system by name.", autocompletion=hardware_names
        ),
    ],
    catalog: CatalogFolders = None,
) -> None:
    """Check a file: every fault with its line, and cores x flop per cycle x clock against each stated rate.

    ```
    perfmodel hardware check mycard.yaml
    perfmodel hardware check ascend-910b1
    ```
    """
    file = Path(what)
    if not (file.suffix in (".yaml", ".yml") or file.exists() or len(file.parts) > 1):
        file = catalogue_of(catalog).path("hardware", what)
    spec = _read(file)
    faults = arithmetic_faults(spec) if isinstance(spec, Device) else []
    if faults:
        raise SpecError(f"{file}: stated rates do not follow from cores and clock", faults=faults)
    print(f"{file}: {spec.title} is sound")


@hardware_app.command("add")
def hardware_add(
    file: Annotated[Path, typer.Argument(help="A YAML file of a device or system.")],
    home: Annotated[
        Path | None, typer.Option("--catalog", help="Folder to add it to; your user folder without it.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file of that name.")] = False,
) -> None:
    """Check a file and copy it to your catalogue."""
    spec = _read(file)
    target = (home or user_home()) / "hardware" / f"{spec.name}.yaml"
    if target.exists() and not force:
        raise SpecError(f"{target} exists", cure="Give --force to replace it.")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)
    print(f"added {spec.name}: {target}")


def _nothing_named(pattern: str, kind: str) -> None:
    print(f"perfmodel: no {kind} name holds {pattern!r}", file=sys.stderr)


def _spec(catalogue: Catalogue, name: str) -> Device | System:
    return _read(catalogue.path("hardware", name))


def _read(path: Path) -> Device | System:
    kind = read_data(path).get("kind", "device")
    if kind not in ("device", "system"):
        raise SpecError(f"{path} describes no hardware", where="kind", got=repr(kind), expected="device or system")
    return read_spec(System, path) if kind == "system" else read_spec(Device, path)
