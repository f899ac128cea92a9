"""`perfmodel sweep-rate`: latency over request rate, the knee, and the largest rate within the objectives."""

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
from perfmodel.cli.simulate import objectives
from perfmodel.cli.values import number, numbers, whole, whole_number
from perfmodel.errors import InfeasibleError, SpecError
from perfmodel.report.output import csv_text, json_text, progress, shown
from perfmodel.report.picture import checked_picture
from perfmodel.report.rate_sweep import rate_sweep_document, rate_sweep_rows, rate_sweep_tables
from perfmodel.serving.deployment import serving_case
from perfmodel.serving.options import ServingOptions
from perfmodel.serving.rate_sweep import rate_sweep
from perfmodel.serving.traffic import Traffic
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.question import Question, case_of

__all__ = ["sweep_rate"]

_MOST_PROMPTS = 10**6
_MOST_POINTS = 200
_MOST_RATE = 1e6


@asking
@taking(serving=SERVING)
def sweep_rate(
    *,
    question: Question,
    catalogue: Catalogue,
    serving: ServingOptions,
    rates: Annotated[
        str | None,
        typer.Option(
            "--rates", help="Requests per second, e.g. 1,2,4,8; up to beyond capacity without.", metavar="X,.."
        ),
    ] = None,
    points: Annotated[str, typer.Option("--points", help="How many rates where none are stated.", metavar="N")] = "20",
    num_prompts: Annotated[str, typer.Option("--num-prompts", help="Requests at each rate.", metavar="N")] = "1000",
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
    slo_ttft: Annotated[str | None, typer.Option("--slo-ttft", help="Objective for TTFT in ms.", metavar="MS")] = None,
    slo_tpot: Annotated[str | None, typer.Option("--slo-tpot", help="Objective for TPOT in ms.", metavar="MS")] = None,
    slo_share: Annotated[
        str, typer.Option("--slo-share", help="Share of requests that has to meet them.", metavar="X")
    ] = "0.95",
    plot: Annotated[Path | None, typer.Option("--plot", help="Picture of latency and throughput over rate.")] = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Simulate traffic at many rates: where latency takes off, and which rate the objectives allow.

    All rates serve the same requests, drawn once and sent faster and faster. Exit code 1 where no rate is within the
    objectives.

    ```
    perfmodel sweep-rate llama-3.1-8b a100-80gb-sxm --isl 512 --osl 256 \\
        --slo-ttft 500 --slo-tpot 50 --plot knee.png
    perfmodel sweep-rate qwen3-32b 2xh100-sxm -tp 2 --isl 2000 --osl 300 \\
        --rates 1,2,4,8
    ```
    """
    n = whole("--num-prompts", num_prompts) or 0
    if not 2 <= n <= _MOST_PROMPTS:
        raise SpecError(
            "a flag cannot be used", where="--num-prompts", got=num_prompts, expected=f"2 to {_MOST_PROMPTS}"
        )
    n_points = whole_number("--points", points, low=2, high=_MOST_POINTS)
    stated = numbers("--rates", rates, low=1e-6, high=_MOST_RATE)
    spread = number("--length-spread", length_spread, low=0.0, high=1.0)
    shape = number("--burstiness", burstiness, low=1e-3, high=1e6)
    share = number("--slo-share", slo_share, low=1e-3, high=1.0)
    drawn_from = whole_number("--seed", seed, low=0, high=2**53)
    checked_picture(plot)
    slo = objectives(slo_ttft, slo_tpot)
    if question.batch is not None or question.deployment.max_concurrency is not None:
        raise SpecError("a closed loop has no rate to sweep", where="--max-concurrency", expected="none")
    case = case_of(catalogue, replace(question, batch=1.0))
    work = case.workload
    trace = Traffic(
        n_requests=n,
        input_tokens=work.input_tokens,
        output_tokens=work.output_tokens,
        requests_per_s=1.0,
        burstiness=shape,
        length_spread_frac=spread,
        seed=drawn_from,
    ).trace()
    ready = serving_case(case, trace, policy=policy, options=serving, schemes=remedy_schemes(catalogue))
    with progress("simulate", n * (len(stated) or n_points)) as advance:
        sweep = rate_sweep(
            trace,
            ready.setup,
            ready.clock,
            rates_per_s=stated,
            n_points=n_points,
            slo=slo,
            slo_frac=share,
            told=advance,
        )
    what = f"{n} requests of {work.input_tokens:g} in, {work.output_tokens:g} out at each rate"
    if plot is not None:
        from perfmodel.report.latency_plot import save_rate_sweep

        save_rate_sweep(sweep, plot, title=f"{case.setup.model.name}, {case.setup.devices[0].name}: {what}")
    if as_json:
        print(json_text(rate_sweep_document(ready, sweep)))
    elif as_csv:
        print(csv_text(rate_sweep_rows(sweep)), end="")
    else:
        shown(*rate_sweep_tables(ready, sweep, what=what))
    if slo is not None and sweep.best_requests_per_s is None:
        raise InfeasibleError(
            "no rate is within the objectives",
            got=f"{sweep.points[0].requests_per_s:g} requests/s and more",
            expected=f"{100 * share:g} % of the requests within them",
            cure="Relax them, sweep lower --rates, or use more devices or replicas.",
        )
