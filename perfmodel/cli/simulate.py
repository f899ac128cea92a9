"""`perfmodel simulate`: a deployment under traffic, request by request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from perfmodel.cli.estimate import remedy_schemes
from perfmodel.cli.flags import Csv, Json, number, whole
from perfmodel.cli.options import asking
from perfmodel.errors import SpecError
from perfmodel.report.output import csv_text, json_text, progress, shown, written
from perfmodel.report.run_files import RunFiles
from perfmodel.report.serving import bench_document, request_rows, serving_document, serving_tables
from perfmodel.serving.arrivals import Trace
from perfmodel.serving.deployment import serving_case
from perfmodel.serving.engine import simulated
from perfmodel.serving.metrics import Slo, serving_result
from perfmodel.serving.traffic import Traffic
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.question import Question, case_of
from perfmodel.units import NS_PER_S

if TYPE_CHECKING:
    from perfmodel.measure.request_trace import RequestTrace

__all__ = ["objectives", "simulate"]

_USUAL_PROMPTS = 1000
_MOST_PROMPTS = 10**7
_MOST_RATE = 1e6
_MOST_S = 1e6


@asking
def simulate(
    *,
    question: Question,
    catalogue: Catalogue,
    request_rate: Annotated[
        str, typer.Option("--request-rate", help="Requests per second; inf: all at once.", metavar="X")
    ] = "inf",
    num_prompts: Annotated[
        str | None, typer.Option("--num-prompts", help="Requests in all: 1000, or all of a trace.", metavar="N")
    ] = None,
    trace_file: Annotated[
        Path | None,
        typer.Option("--trace", help="Arrivals and lengths of a recorded trace: Azure, BurstGPT, Mooncake, ..."),
    ] = None,
    burstiness: Annotated[
        str, typer.Option("--burstiness", help="1: Poisson; below 1 in bursts, above 1 evenly.", metavar="X")
    ] = "1",
    length_spread: Annotated[
        str,
        typer.Option("--length-spread", help="Lengths drawn evenly within this share of isl and osl.", metavar="X"),
    ] = "0",
    seed: Annotated[str, typer.Option("--seed", help="Seed of arrivals and lengths.", metavar="N")] = "0",
    policy: Annotated[
        str | None, typer.Option("--policy", help="mixed, prefill-first or static; as the engine does without it.")
    ] = None,
    order: Annotated[str, typer.Option("--order", help="fcfs, or sjf (shortest first, lengths known).")] = "fcfs",
    routing: Annotated[
        str, typer.Option("--routing", help="Among replicas: round-robin or least-loaded.")
    ] = "round-robin",
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
    ```
    """
    rate = None if request_rate == "inf" else number("--request-rate", request_rate, low=1e-6, high=_MOST_RATE)
    n = whole("--num-prompts", num_prompts)
    if n is not None and n > _MOST_PROMPTS:
        raise SpecError(
            "a flag cannot be used", where="--num-prompts", got=str(num_prompts), expected=f"at most {_MOST_PROMPTS}"
        )
    spread = number("--length-spread", length_spread, low=0.0, high=1.0)
    shape = number("--burstiness", burstiness, low=1e-3, high=1e6)
    seed_number = int(number("--seed", seed, low=0, high=2**53))
    files = RunFiles(
        requests=save_requests, series=save_series, schedule=perfetto, over_time=plot, latencies=plot_latency
    )
    slo = objectives(slo_ttft, slo_tpot)
    users = question.batch if question.batch is not None else question.deployment.max_concurrency
    question = replace(question, batch=1.0)
    if trace_file is not None:
        trace, notes = _recorded(trace_file, question, n=n, rate=rate)
        case = case_of(catalogue, replace(question, input_tokens=1.0, output_tokens=1.0))
        case = replace(case, warnings=(*case.warnings, *notes))
        lengths = f"lengths and arrivals of {trace_file.name}"
    else:
        case = case_of(catalogue, question)
        trace = Traffic(
            n_requests=n or _USUAL_PROMPTS,
            input_tokens=case.workload.input_tokens,
            output_tokens=case.workload.output_tokens,
            requests_per_s=rate,
            burstiness=shape,
            length_spread_frac=spread,
            seed=seed_number,
        ).trace()
        lengths = f"{case.workload.input_tokens:g} in, {case.workload.output_tokens:g} out"
    if users is not None:
        trace = trace.closed(int(users))
    serving = serving_case(case, trace, policy=policy, order=order, routing=routing, schemes=remedy_schemes(catalogue))
    with progress("simulate", len(trace)) as advance:
        run = simulated(trace, serving.setup, serving.clock, told=advance)
    result = serving_result(run, slo=slo)
    if save_result is not None:
        written(save_result, json_text(bench_document(serving, result, request_rate=rate, burstiness=shape)) + "\n")
    load = "all at once" if trace.span_ns == 0 else f"{len(trace) / (trace.span_ns / NS_PER_S):.4g} requests/s"
    load += f" drawn at {rate:g}" if rate is not None and trace_file is None else ""
    load += f", at most {users:g} in flight" if users is not None else ""
    what = f"{len(trace)} requests, {lengths}, {load}"
    files.write(result, title=f"{case.setup.model.name}, {case.setup.devices[0].name}: {what}", slo=slo)
    if as_json:
        print(json_text(serving_document(serving, result)))
    elif as_csv:
        print(csv_text(request_rows(result)), end="")
    else:
        shown(*serving_tables(serving, result, what=what))


def objectives(ttft_ms: str | None, tpot_ms: str | None) -> Slo | None:
    """Return the objectives behind two flags in milliseconds, None where neither is given; raises SpecError."""
    if ttft_ms is None and tpot_ms is None:
        return None
    ttft, tpot = (
        None if text is None else number(flag, text, low=1e-6, high=1e3 * _MOST_S) / 1e3
        for flag, text in (("--slo-ttft", ttft_ms), ("--slo-tpot", tpot_ms))
    )
    return Slo(ttft_s=ttft, tpot_s=tpot)


def _recorded(path: Path, question: Question, *, n: int | None, rate: float | None) -> tuple[Trace, tuple[str, ...]]:
    """Return the requests of a trace file, brought to a mean rate where one is stated, and what must be said of it."""
    from perfmodel.measure.importers.registry import import_file

    if question.input_tokens is not None or question.output_tokens is not None:
        raise SpecError("a trace has lengths of its own", where="--isl, --osl", expected="none beside --trace")
    found = import_file(path, "request-trace")
    recorded: RequestTrace = found.facts["trace"]
    arrival_ns, inputs, outputs = (
        np.rint(column).astype(np.int64)
        for column in (recorded.arrival_s * NS_PER_S, recorded.input_tokens, recorded.output_tokens)
    )
    trace = Trace(arrival_ns, inputs, outputs)
    if n is not None:
        trace = trace.cut(n)
    if rate is not None:
        if trace.requests_per_s is None:
            raise SpecError("all requests of the trace come at once", where="--request-rate", got=f"{rate:g}")
        trace = trace.scaled(rate / trace.requests_per_s)
    shared = recorded.shared_prefix_frac
    notes = (f"{100 * shared:.3g} % of prompt blocks repeat an earlier prefix: read again here",) if shared else ()
    return trace, (*found.warnings, *notes)
