"""`perfmodel simulate`: a deployment under traffic, request by request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.estimate import remedy_schemes
from perfmodel.cli.flags import Csv, Json
from perfmodel.cli.groups import taking
from perfmodel.cli.options import asking
from perfmodel.cli.serving_flags import SERVING
from perfmodel.cli.traffic_flags import TRAFFIC, TrafficFlags
from perfmodel.cli.values import number
from perfmodel.errors import SpecError
from perfmodel.report.output import csv_text, json_text, progress, shown
from perfmodel.report.run_files import RunFiles
from perfmodel.report.serving import bench_document, request_rows, serving_document, serving_tables
from perfmodel.serving.deployment import serving_case
from perfmodel.serving.engine import simulated
from perfmodel.serving.metrics import Slo, serving_result
from perfmodel.serving.options import ServingOptions
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.question import Question, case_of
from perfmodel.units import NS_PER_S

__all__ = ["objectives", "simulate"]

_MOST_S = 1e6


@asking
@taking(traffic=TRAFFIC, serving=SERVING)
def simulate(
    *,
    question: Question,
    catalogue: Catalogue,
    traffic: TrafficFlags,
    serving: ServingOptions,
    policy: Annotated[
        str | None, typer.Option("--policy", help="mixed, prefill-first or static; as the engine does without it.")
    ] = None,
    slo_ttft: Annotated[
        str | None, typer.Option("--slo-ttft", help="Objective for TTFT in ms, for the goodput.", metavar="MS")
    ] = None,
    slo_tpot: Annotated[
        str | None, typer.Option("--slo-tpot", help="Objective for TPOT in ms, for the goodput.", metavar="MS")
    ] = None,
    save_result: Annotated[
        Path | None,
        typer.Option("--save-result", help="File for the result in the field names of `vllm bench serve`."),
    ] = None,
    save_requests: Annotated[
        Path | None, typer.Option("--save-requests", help="Table of the requests, .csv or .parquet.")
    ] = None,
    save_series: Annotated[
        Path | None, typer.Option("--save-series", help="Table of batch, queue and KV cache over time.")
    ] = None,
    perfetto: Annotated[
        Path | None, typer.Option("--perfetto", help="Schedule as trace events, for ui.perfetto.dev (.json).")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Picture of batch, queue and KV cache over time.")] = None,
    plot_latency: Annotated[
        Path | None, typer.Option("--plot-latency", help="Picture of the shares of requests by TTFT, TPOT, end to end.")
    ] = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Simulate traffic: TTFT, TPOT, ITL and end to end with queues, batching and the KV cache, request by request.

    Flags are spelled as in `vllm bench serve`: --max-concurrency limits what is in flight. With --csv a row for each
    request. All the same under one --seed.

    ```
    perfmodel simulate llama-3.1-8b a100-80gb-sxm --isl 512 --osl 256 \\
        --request-rate 4 --num-prompts 1000
    perfmodel simulate qwen3-32b 2xrtx-4090 -q awq-int4-g128 \\
        --max-concurrency 16 --num-prompts 160 --length-spread 0.2
    perfmodel simulate h100-sxm --from "vllm serve Qwen/Qwen3-32B" \\
        --request-rate 2 --slo-ttft 500 --slo-tpot 50 --plot load.png
    perfmodel simulate llama-3.1-8b a100-80gb-sxm --trace azure.csv
    perfmodel simulate llama-3.1-8b h100-sxm --lengths sharegpt \\
        --request-rate 20 --prefix-groups 8 --prefix-len 1000 --turns 4 \\
        --think-time 5
    perfmodel simulate llama-3.1-8b h100-sxm --request-rate 20 --isl 4000 \\
        --osl 200 --prefill-replicas 3 --decode-replicas 1
    perfmodel simulate llama-3.1-8b a100-80gb-sxm -n 4 -dp 4 --request-rate 20 \\
        --routing least-loaded --fail 0@10+20
    ```
    """
    files = RunFiles(
        result=save_result,
        requests=save_requests,
        series=save_series,
        schedule=perfetto,
        over_time=plot,
        latencies=plot_latency,
    )
    slo = objectives(slo_ttft, slo_tpot)
    asked = question.batch if question.batch is not None else question.deployment.max_concurrency
    n_users = None if asked is None else int(asked)
    question = replace(question, batch=1.0)
    if traffic.has_lengths:
        if question.input_tokens is not None or question.output_tokens is not None:
            expected = "none beside --trace, or a set or file of --lengths"
            raise SpecError("the requests have lengths of their own", where="--isl, --osl", expected=expected)
        question = replace(question, input_tokens=1.0, output_tokens=1.0)
    case = case_of(catalogue, question)
    trace, lengths, notes = traffic.requests(case.workload, catalogue, n_users=n_users)
    caches = question.deployment.prefix_caching
    if serving.prefix_cache is None and caches is not None:
        serving = replace(serving, prefix_cache=caches)
    case = replace(case, warnings=(*case.warnings, *notes))
    ready = serving_case(case, trace, policy=policy, options=serving, schemes=remedy_schemes(catalogue))
    with progress("simulate", len(trace)) as advance:
        run = simulated(trace, ready.setup, ready.clock, told=advance)
    result = serving_result(run, slo=slo, warmup_s=traffic.warmup_s)
    load = "all at once" if trace.span_ns == 0 else f"{(len(trace) - 1) / (trace.span_ns / NS_PER_S):.4g} requests/s"
    load += f" drawn at {traffic.rate:g}" if traffic.rate is not None and traffic.file is None else ""
    load += f", at most {n_users} in flight" if n_users is not None else ""
    what = f"{len(trace)} requests, {lengths}, {load}"
    drawn_at = None if traffic.file is not None else traffic.rate
    document = bench_document(ready, result, request_rate=drawn_at, burstiness=traffic.burstiness)
    files.write(
        result, document=document, title=f"{case.setup.model.name}, {case.setup.devices[0].name}: {what}", slo=slo
    )
    if as_json:
        print(json_text(serving_document(ready, result)))
    elif as_csv:
        print(csv_text(request_rows(result)), end="")
    else:
        shown(*serving_tables(ready, result, what=what))


def objectives(ttft_ms: str | None, tpot_ms: str | None) -> Slo | None:
    """Return the objectives behind two flags in milliseconds, None where neither is given; raises SpecError."""
    if ttft_ms is None and tpot_ms is None:
        return None
    ttft, tpot = (
        None if text is None else number(flag, text, low=1e-6, high=1e3 * _MOST_S) / 1e3
        for flag, text in (("--slo-ttft", ttft_ms), ("--slo-tpot", tpot_ms))
    )
    return Slo(ttft_s=ttft, tpot_s=tpot)
