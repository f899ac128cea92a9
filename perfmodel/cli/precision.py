"""`perfmodel precision`: rounding of rotary embedding, drift with depth, and quality beside speed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.flags import CatalogFolders, Csv, Json, one_format
from perfmodel.cli.names import hardware_names
from perfmodel.cli.options import asking, catalogue_of
from perfmodel.cli.values import number, whole
from perfmodel.errors import SpecError
from perfmodel.report.output import csv_text, json_text, shown
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.question import Question, case_of

__all__ = ["precision_app"]

precision_app = typer.Typer(help="Rounding, drift with depth, and quality beside speed.", no_args_is_help=True)

_POSITIONS = (256.0, 2048.0, 4096.0, 32768.0, 131072.0)
_MOST_POSITION = 1e12
Plot = Annotated[Path | None, typer.Option("--plot", help="Picture: .png, .svg or .pdf.", metavar="FILE")]


@precision_app.command("rope")
def precision_rope(
    dtypes: Annotated[str, typer.Option("--dtype", help="Formats, parted by commas.")] = "fp32,fp16,bf16",
    positions: Annotated[
        str | None, typer.Option("--positions", help="Positions, parted by commas.", metavar="N,...")
    ] = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Show what a number format rounds in rotary embedding: rotation, angle, and how far positions count.

    ```
    perfmodel precision rope
    perfmodel precision rope --dtype fp16 --positions 2048,32k,160k
    ```
    """
    from perfmodel.report.precision import rounding_rows, rounding_tables

    one_format(as_json=as_json, as_csv=as_csv)
    formats = [word.strip() for word in dtypes.split(",")]
    asked = [whole("--positions", word.strip()) for word in positions.split(",")] if positions else list(_POSITIONS)
    places = [float(place) for place in asked if place is not None]
    if not all(1.0 <= place <= _MOST_POSITION for place in places):
        raise SpecError("a flag cannot be used", where="--positions", got=str(positions), expected="1 to 10^12")
    rows = rounding_rows(formats, places)
    if as_json:
        print(json_text({"rows": rows}))
    elif as_csv:
        print(csv_text(rows), end="")
    else:
        shown(*rounding_tables(formats, places))


@precision_app.command("drift")
@asking
def precision_drift(
    *,
    question: Question,
    catalogue: Catalogue,
    points: Annotated[
        str, typer.Option("--points", help="Measured errors as layer=error, parted by commas.", metavar="N=X,...")
    ],
    threshold: Annotated[str, typer.Option("--threshold", help="Error from which fp32 is wanted, in the same unit.")],
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Say at which layer an error that grows with depth reaches a threshold, and what fp32 costs from there on.

    ```
    perfmodel precision drift deepseek-v2-lite ascend-910b2 \\
        --points 5=0.087,12=0.132 --threshold 0.15
    perfmodel precision drift llama-3.1-8b a100-80gb-sxm --batch 16 --isl 2048 \\
        --points 4=0.01,8=0.016,16=0.03 --threshold 0.05 --plot drift.png
    ```
    """
    from perfmodel.fit.drift import crossings
    from perfmodel.report.picture import checked_picture, saved_picture
    from perfmodel.report.precision import drift_document, drift_tables
    from perfmodel.step.request import decode_pass, prefill_slice
    from perfmodel.step.rotary import rotary_fallback

    checked_picture(plot)
    layers, errors = _points(points)
    limit = number("--threshold", threshold, low=1e-12, high=1e12)
    found = crossings(layers, errors, limit)
    case = case_of(catalogue, question)
    engine, work = case.engine, case.workload
    deepest, n_layers = max(layers), engine.setup.model.n_layers
    if deepest > n_layers:
        raise SpecError(
            "a layer is not there", where="--points", got=f"layer {deepest:g}", expected=f"at most {n_layers} layers"
        )
    first = min(crossing.depth_layers for crossing in found)
    from_layer = int(min(max(first, 0.0), n_layers))
    prefill = (prefill_slice(work.batch, work.input_tokens, n_steps=1.0),)
    decode = (
        decode_pass(engine, batch=work.batch, input_tokens=work.input_tokens, output_tokens=work.output_tokens)[0],
    )
    costs = [
        (name, rotary_fallback(engine, slices, from_layer=from_layer), float(engine.step(name, slices).value))
        for name, slices in (("prefill step", prefill), ("decode step", decode))
    ]
    if plot is not None:
        from perfmodel.report.precision_plot import drift_figure

        print(f"wrote {saved_picture(drift_figure(found, limit), plot)}", file=sys.stderr)
    if as_json:
        print(json_text({**drift_document(found, limit, costs), "assumed": list(case.assumed)}))
    else:
        shown(*drift_tables(found, limit, costs))


@precision_app.command("quality")
def precision_quality(
    results: Annotated[list[Path], typer.Argument(help="results_*.json of lm-evaluation-harness.", metavar="FILE...")],
    on: Annotated[
        str,
        typer.Option("--on", help="Device or system to serve on.", metavar="HARDWARE", autocompletion=hardware_names),
    ],
    metric: Annotated[
        str | None, typer.Option("--metric", help="Score to compare by: task:metric, or a part of it.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Model in the catalogue, where the files name another.")
    ] = None,
    batch: Annotated[str, typer.Option("--batch", help="Requests in flight.")] = "16",
    isl: Annotated[str, typer.Option("--isl", help="Input tokens.")] = "1024",
    osl: Annotated[str, typer.Option("--osl", help="Output tokens.")] = "256",
    runtime: Annotated[str | None, typer.Option("--runtime", help="Engine and version, e.g. vllm-0.11.")] = None,
    plot: Plot = None,
    as_json: Json = False,
    as_csv: Csv = False,
    catalog: CatalogFolders = None,
) -> None:
    """Set scores of quantised models beside predicted speed and memory, and say which are worth having.

    Model and weight scheme are read from each file.

    ```
    perfmodel precision quality bf16.json awq.json gptq.json \\
        --on a100-80gb-sxm --plot pareto.png
    perfmodel precision quality *.json --on rtx-4090 --metric gsm8k --batch 4 \\
        --isl 2048
    ```
    """
    from perfmodel.report.picture import checked_picture, saved_picture
    from perfmodel.report.precision import quality_rows, quality_tables
    from perfmodel.validate.quality import quality_points

    one_format(as_json=as_json, as_csv=as_csv)
    checked_picture(plot)
    sizes = {
        flag: number(flag, text, low=1, high=1e9) for flag, text in (("--batch", batch), ("--isl", isl), ("--osl", osl))
    }
    question = Question(
        model=model,
        hardware=on,
        batch=sizes["--batch"],
        input_tokens=sizes["--isl"],
        output_tokens=sizes["--osl"],
        runtime=runtime,
    )
    points = quality_points(results, catalogue_of(catalog), question, metric=metric)
    if plot is not None:
        from perfmodel.report.precision_plot import quality_figure

        print(f"wrote {saved_picture(quality_figure(points), plot)}", file=sys.stderr)
    if as_json:
        print(json_text({"rows": quality_rows(points)}))
    elif as_csv:
        print(csv_text(quality_rows(points)), end="")
    else:
        shown(*quality_tables(points, load=f"{on}, batch {batch}, {isl} in, {osl} out"))


def _points(text: str) -> tuple[list[float], list[float]]:
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(mark for _, mark, _ in pairs):
        raise SpecError(
            "a flag cannot be used", where="--points", got=repr(text), expected="layer=error, as in 5=0.087"
        )
    layers = [number("--points", layer.strip(), low=0, high=1e6) for layer, _, _ in pairs]
    return layers, [number("--points", error.strip(), low=1e-12, high=1e12) for _, _, error in pairs]
