"""`perfmodel models`: list, show and add models."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.flags import CatalogFolders, Csv, Json, one_format
from perfmodel.cli.names import model_names
from perfmodel.cli.options import catalogue_of
from perfmodel.errors import SpecError
from perfmodel.report.models import model_document, model_rows, model_table, model_tables
from perfmodel.report.output import csv_text, json_text, shown, written
from perfmodel.specs.catalogue import user_home
from perfmodel.specs.catalogue_model import catalogue_entry, catalogue_name
from perfmodel.specs.files import yaml_text
from perfmodel.specs.hf.files import config_from_path

__all__ = ["models_app"]

models_app = typer.Typer(help="Models: list, show, add a config.json.", no_args_is_help=True)


@models_app.command("list")
def models_list(
    pattern: Annotated[str, typer.Argument(help="Only names that contain this.")] = "",
    catalog: CatalogFolders = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """List models with total and active parameters and KV bytes a token.

    ```
    perfmodel models list qwen3
    perfmodel models show deepseek-v3
    perfmodel models show ./My-Model/config.json
    ```
    """
    one_format(as_json=as_json, as_csv=as_csv)
    rows = model_rows(catalogue_of(catalog), pattern.lower())
    if as_json:
        print(json_text(rows))
    elif as_csv:
        print(csv_text(rows), end="")
    else:
        shown(*([model_table(rows)] if rows else []))
    if not rows:
        print(f"perfmodel: no model name holds {pattern!r}", file=sys.stderr)


@models_app.command("show")
def models_show(
    name: Annotated[str, typer.Argument(help="Model name, or a config.json.", autocompletion=model_names)],
    catalog: CatalogFolders = None,
    as_json: Json = False,
) -> None:
    """Show what a model is made of: layers, parameters by part, active parameters by convention, KV cache, sources."""
    catalogue = catalogue_of(catalog)
    document = model_document(catalogue, name)
    if as_json:
        print(json_text(document))
    else:
        shown(*model_tables(document))


@models_app.command("add")
def models_add(
    config: Annotated[Path, typer.Argument(help="A Hugging Face config.json, or the folder that holds it.")],
    name: Annotated[str | None, typer.Option("--name", help="Name in the catalogue.")] = None,
    source: Annotated[str, typer.Option("--source", help="Where the config is from.")] = "config.json of the user",
    home: Annotated[
        Path | None, typer.Option("--catalog", help="Folder to add it to; your user folder without it.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file of that name.")] = False,
) -> None:
    """Read a config.json, check that it makes a model, and write a catalogue file.

    ```
    perfmodel models add ./My-Model --name my-model --catalog ./mine
    perfmodel estimate my-model a100-80gb-sxm --catalog ./mine
    ```
    """
    data = config_from_path(config)
    own = name or catalogue_name(
        str(data.get("_name_or_path") or (config if config.is_dir() else config.resolve().parent).name)
    )
    if not re.fullmatch(r"[a-z0-9][a-z0-9.+_-]*", own):
        raise SpecError(
            "this is no catalogue name", where="--name", got=repr(own), expected="small letters, digits, . + - _"
        )
    entry = catalogue_entry(data, own, source)
    target = (home or user_home()) / "models" / f"{own}.yaml"
    if target.exists() and not force:
        raise SpecError(f"{target} exists", cure="Give --force to replace it.")
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"added {own}: {written(target, yaml_text(entry))}")
