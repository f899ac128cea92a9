"""`perfmodel streams`: prefill and decode in one stream or in two."""

from __future__ import annotations

from typing import Annotated, get_args

import typer

from perfmodel.cli.flags import Csv, Json
from perfmodel.cli.options import asking
from perfmodel.cli.scheduling import TileFlag, tile_of
from perfmodel.cli.values import number, whole_number
from perfmodel.cost.streams import Policy
from perfmodel.report.output import csv_text, json_text, progress, shown
from perfmodel.serving.stream_case import stream_case
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.question import Question, case_of
from perfmodel.units import time_text

__all__ = ["streams"]

_MOST_RATE = 1e6


@asking
def streams(
    *,
    question: Question,
    catalogue: Catalogue,
    prefill_rate: Annotated[
        str | None,
        typer.Option("--prefill-rate", help="Prompts a second; half of what one stream can read without it."),
    ] = None,
    duration: Annotated[str, typer.Option("--duration", help="Seconds to simulate.")] = "10",
    decode_cores: Annotated[
        str, typer.Option("--decode-cores", help="Share of the cores for decode in a partition.")
    ] = "0.5",
    seed: Annotated[str, typer.Option("--seed", help="Seed of the random arrivals.", metavar="N")] = "0",
    tile: TileFlag = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Compare one stream with two: a batch that decodes without end beside prompts of `--isl` tokens.

    One stream runs whole steps and whole prompts in order. Two share cores and memory: all alike, decode first
    (kernels that run are not interrupted), or with cores kept apart.

    ```
    perfmodel streams llama-2-7b ascend-910b2 --batch 8 --isl 1024 \\
        --prefill-rate 2
    perfmodel streams qwen3-8b a100-80gb-sxm --batch 32 --isl 2048 \\
        --decode-cores 0.3 --json
    ```
    """
    case = case_of(catalogue, question)
    device = case.setup.devices[0]
    family = catalogue.scheduling_of(device)
    per_s = None if prefill_rate is None else number("--prefill-rate", prefill_rate, low=0.0, high=_MOST_RATE)
    seconds = number("--duration", duration, low=0.001, high=3600.0)
    share = number("--decode-cores", decode_cores, low=0.01, high=0.99)
    drawn_from = whole_number("--seed", seed, low=0, high=2**53)
    with progress("streams", len(get_args(Policy))) as advance:
        found = stream_case(
            case,
            tile_of(tile, catalogue.core_of(device).tiling),
            prefills_per_s=per_s,
            duration_s=seconds,
            decode_core_share=share,
            seed=drawn_from,
            on_policy_done=advance,
        )
    from perfmodel.report.scheduling import stream_parts, stream_row

    rows = [stream_row(run, batch=found.batch, input_tokens=found.input_tokens) for run in found.runs]
    facts = {
        "model": case.setup.model.name,
        "device": device.name,
        "runtime": case.setup.runtime.name,
        "decode_step_s": found.decode_step_s,
        "prefill_s": found.prefill_s,
        "prefills_per_s": found.prefills_per_s,
        "prefill_load_frac": found.load_frac,
        "one_stream_step_s": found.one_stream_step_s,
        "stream_priorities": family.stream_priorities.value,
        "duration_s": seconds,
        "seed": drawn_from,
    }
    assumed = [*case.assumed, *found.assumed]
    if as_json:
        print(json_text({**facts, "rows": rows, "assumed": assumed}))
    elif as_csv:
        print(csv_text(rows), end="")
    else:
        heading = (
            f"{facts['model']} on {device.title}, {facts['runtime']}: batch {found.batch:g} decoding "
            f"({time_text(found.decode_step_s)} a step alone) beside {found.prefills_per_s:g} prompts/s of "
            f"{found.input_tokens:,.0f} tokens ({time_text(found.prefill_s)} each)"
        )
        mean = found.one_stream_step_s
        remarks = [
            "One stream cannot keep up: prompts arrive faster than it reads them."
            if mean is None
            else f"One stream in closed form: a decode step every {time_text(mean)} on average."
        ]
        if family.stream_priorities.value <= 1:
            remarks.append(
                f"Streams of a {device.title} have no priorities ({family.sources[family.stream_priorities.source]}): "
                "`priority` is what they would bring, not what can be asked for."
            )
        shown(*stream_parts(rows, heading=heading, remarks=remarks, assumed=assumed))
