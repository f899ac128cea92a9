"""`perfmodel import`: files that people already hold, as measurement tables and system files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.cli.flags import Json

if TYPE_CHECKING:
    from perfmodel.measure.importers.base import Imported

__all__ = ["import_"]


def _stated(name: str, text: str) -> Any:
    return typer.Option(f"--{name.replace('_', '-')}", help=text, rich_help_panel="What the file does not say")


def import_(
    file: Annotated[Path | None, typer.Argument(help="Log, JSON, CSV or trace to read.", metavar="FILE")] = None,
    form: Annotated[str | None, typer.Option("--format", help="Its format; recognised without it.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="CSV for a table, YAML for a system.", metavar="FILE")
    ] = None,
    list_formats: Annotated[bool, typer.Option("--list-formats", help="List the formats that are known.")] = False,
    device: Annotated[str | None, _stated("device", "Device by its catalogue name.")] = None,
    model: Annotated[str | None, _stated("model", "Model by its catalogue name.")] = None,
    runtime: Annotated[str | None, _stated("runtime", "Software and version, e.g. vllm-0.10.2.")] = None,
    compute_dtype: Annotated[str | None, _stated("compute_dtype", "bf16, fp16, fp8, ...")] = None,
    quantization: Annotated[str | None, _stated("quantization", "none, awq-int4-g128, ...")] = None,
    kv_dtype: Annotated[str | None, _stated("kv_dtype", "Element type of the KV cache.")] = None,
    link: Annotated[str | None, _stated("link", "Fabric between devices: nvswitch, pcie, hccs, ...")] = None,
    op: Annotated[str | None, _stated("op", "Which collective a test ran, e.g. all_reduce.")] = None,
    variant: Annotated[str | None, _stated("variant", "What no other column says.")] = None,
    source: Annotated[str | None, _stated("source", "Where the file comes from.")] = None,
    n_devices: Annotated[int | None, _stated("n_devices", "Devices that took part.")] = None,
    tp: Annotated[int | None, _stated("tp", "Tensor parallel size.")] = None,
    pp: Annotated[int | None, _stated("pp", "Pipeline stages.")] = None,
    ep: Annotated[int | None, _stated("ep", "Expert parallel size.")] = None,
    dp: Annotated[int | None, _stated("dp", "Data parallel size.")] = None,
    batch: Annotated[float | None, _stated("batch", "Sequences at once.")] = None,
    input_tokens: Annotated[float | None, _stated("input_tokens", "Input tokens.")] = None,
    output_tokens: Annotated[float | None, _stated("output_tokens", "Output tokens.")] = None,
    context_tokens: Annotated[float | None, _stated("context_tokens", "Tokens in the cache.")] = None,
    as_json: Json = False,
) -> None:
    """Read a benchmark's output, a log, a profile or a topology, and write it in the format of this program.

    Stated values win over what the file says of itself. A topology becomes a system file for `hardware/`.

    ```
    perfmodel import --list-formats
    perfmodel import bench.json --device h100-sxm --model qwen3-32b \\
        --runtime vllm-0.10 -o mine.csv
    perfmodel import topo.txt --device a100-80gb-sxm -o my-box.yaml
    ```
    """
    from perfmodel.errors import SpecError
    from perfmodel.measure.importers.registry import FORMATS, import_file

    if list_formats:
        width = max(map(len, FORMATS))
        print("\n".join(f"{name:<{width}}  {entry.title}" for name, entry in FORMATS.items()))
        return
    if file is None:
        raise SpecError("no file is named", expected="a file to read", cure="--list-formats shows what can be read.")
    from perfmodel.cli.tables import not_a_source

    not_a_source([output], [file])
    stated = {
        "device": device, "model": model, "runtime": runtime, "compute_dtype": compute_dtype,
        "quantization": quantization, "kv_dtype": kv_dtype, "link": link, "op": op, "variant": variant,
        "source": source, "n_devices": n_devices, "tp": tp, "pp": pp, "ep": ep, "dp": dp, "batch": batch,
        "input_tokens": input_tokens, "output_tokens": output_tokens, "context_tokens": context_tokens,
    }  # fmt: skip
    found = import_file(file, form, **{name: value for name, value in stated.items() if value is not None})
    _told(found, file)
    from perfmodel.report.imported import imported_document, imported_text

    text = imported_text(found, as_yaml=output is not None and output.suffix in (".yaml", ".yml"))
    if output is not None:
        from perfmodel.report.prediction import written_whole

        _say(f"wrote {written_whole(output, text)}")
    if as_json:
        from perfmodel.report.output import json_text

        print(json_text(imported_document(found)))
    elif output is None:
        print(text, end="")


def _say(text: str) -> None:
    import sys

    print(text, file=sys.stderr)


def _told(found: Imported, file: Path) -> None:
    n = {"rows": len(found.rows), "operators": len(found.operators), "facts": len(found.facts)}
    held = ", ".join(f"{number} {name}" for name, number in n.items() if number) or "nothing"
    _say(f"{file.name} is read as {found.format}: {held}{', a system' if found.system else ''}")
    for warning in found.warnings:
        _say(f"note: {warning}")
    if found.rows and not found.missing:
        from perfmodel.measure.physics import physics_notes, physics_report
        from perfmodel.specs.catalogue import Catalogue

        table, catalogue = found.table(), Catalogue.standard()
        for note in physics_notes(table, physics_report(table, catalogue), catalogue):
            _say(f"note: {note}")
    if not found.usable_for_fit:
        _say("note: these figures mislead a fit, see above")
