"""`perfmodel streams`: prefill and decode in one stream or in two."""

from __future__ import annotations

from typing import Annotated, get_args

import numpy as np
import typer

from perfmodel.cli.flags import Csv, Json, number
from perfmodel.cli.options import asking
from perfmodel.cli.scheduling import TileFlag, tile_of
from perfmodel.cost.streams import Policy, fifo_cycle_s
from perfmodel.report.output import csv_text, json_text, progress, shown
from perfmodel.serving.streams import arrival_times, stream_run
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.dispatch import tasks
from perfmodel.step.question import Question, case_of
from perfmodel.step.request import decode_slice, prefill_slice
from perfmodel.units import time_text

__all__ = ["streams"]

_MOST_RATE, _USUAL_LOAD = 1e6, 0.5


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
    seed: Annotated[int, typer.Option("--seed", help="Of the random arrivals.")] = 0,
    tile: TileFlag = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Compare one stream with two: a batch that decodes without end beside prompts of `--isl` tokens.

    One stream runs whole steps and whole prompts in order. Two share cores and memory: all alike, decode first
    (kernels that run are not interrupted), or with cores kept apart.

    ```
    perfmodel streams llama-2-7b ascend-910b2 --batch 8 --isl 1024 --prefill-rate 2
    perfmodel streams qwen3-8b a100-80gb-sxm --batch 32 --isl 2048 --decode-cores 0.3 --json
    ```
    """
    case = case_of(catalogue, question)
    engine, device, work = case.engine, case.setup.devices[0], case.workload
    family = catalogue.scheduling_of(device)
    cut = tile_of(tile, catalogue.core_of(device).tiling)
    step = decode_slice(work.batch, work.input_tokens, work.output_tokens)
    prompt = prefill_slice(1.0, work.input_tokens, n_steps=1.0)
    decode, prefill = tasks(engine, (step,), cut), tasks(engine, (prompt,), cut)
    decode_s, prefill_s = (sum(task.time_s for task in side) for side in (decode, prefill))
    whole = engine.stage_step(engine.stages[0], (step,))
    gap_s = max(0.0, float(whole.value) - decode_s)
    assumed = list(case.assumed)
    if prefill_rate is None:
        per_s = float(f"{_USUAL_LOAD / prefill_s:.3g}")
        assumed.append(f"{per_s:g} prompts a second, half of what one stream can read")
    else:
        per_s = number("--prefill-rate", prefill_rate, low=0.0, high=_MOST_RATE)
    seconds = number("--duration", duration, low=0.001, high=3600.0)
    share = number("--decode-cores", decode_cores, low=0.01, high=0.99)
    arrivals = arrival_times(np.random.default_rng(seed), arrivals_per_s=per_s, duration_s=seconds)
    from perfmodel.report.scheduling import stream_parts, stream_row

    rows = []
    policies = get_args(Policy)
    with progress("streams", len(policies)) as advance:
        for policy in policies:
            run = stream_run(
                decode, prefill, arrivals, policy, duration_s=seconds, host_gap_s=gap_s, decode_core_share=share
            )
            rows.append(stream_row(run, batch=work.batch, input_tokens=work.input_tokens))
            advance(1)
    load = per_s * prefill_s
    facts = {
        "model": case.setup.model.name,
        "device": device.name,
        "runtime": case.setup.runtime.name,
        "decode_step_s": decode_s + gap_s,
        "prefill_s": prefill_s,
        "prefills_per_s": per_s,
        "prefill_load_frac": load,
        "stream_priorities": family.stream_priorities.value,
        "duration_s": seconds,
        "seed": seed,
    }
    if as_json:
        print(json_text({**facts, "rows": rows, "assumed": assumed}))
    elif as_csv:
        print(csv_text(rows), end="")
    else:
        heading = (
            f"{facts['model']} on {device.title}, {facts['runtime']}: batch {work.batch:g} decoding "
            f"({time_text(decode_s + gap_s)} a step alone) beside {per_s:g} prompts/s of {work.input_tokens:,.0f} "
            f"tokens ({time_text(prefill_s)} each)"
        )
        remarks = []
        if load < 1.0:
            mean = fifo_cycle_s(decode_s=decode_s + gap_s, arrivals_per_s=per_s, prefill_s=prefill_s)
            remarks.append(f"One stream in closed form: a decode step every {time_text(float(mean))} on average.")
        else:
            remarks.append("One stream cannot keep up: prompts arrive faster than it reads them.")
        if family.stream_priorities.value <= 1:
            remarks.append(
                f"Streams of a {device.title} have no priorities ({family.sources[family.stream_priorities.source]}): "
                "`priority` is what they would bring, not what can be asked for."
            )
        shown(*stream_parts(rows, heading=heading, remarks=remarks, assumed=assumed))
