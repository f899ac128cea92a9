"""`perfmodel steady`: steady serving in closed form, for several numbers of users or rates at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from perfmodel.cli.estimate import remedy_schemes
from perfmodel.cli.flags import Csv, Json
from perfmodel.cli.options import asking
from perfmodel.cli.values import given, numbers
from perfmodel.errors import InfeasibleError, SpecError
from perfmodel.report.output import csv_text, json_text, shown
from perfmodel.report.picture import checked_picture
from perfmodel.report.steady import steady_document, steady_rows, steady_tables
from perfmodel.serving.steady_case import steady_case
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.question import Question, case_of

__all__ = ["steady"]

_MOST = 1e6


@asking
def steady(
    *,
    question: Question,
    catalogue: Catalogue,
    batch: Annotated[
        str | None,
        typer.Option("-b", "--batch", help="Users, e.g. 1,4,16. Also --max-concurrency.", metavar="N,N"),
    ] = None,
    request_rate: Annotated[
        str | None, typer.Option("--request-rate", help="Requests per second, e.g. 0.5,1,2.", metavar="X,X")
    ] = None,
    num_prompts: Annotated[
        str | None,
        typer.Option(
            "--num-prompts",
            help="Requests of a load generator that begins with all users at once: counts their burst.",
            metavar="N",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Picture of TTFT, TPOT and throughput over the load.", metavar="FILE")
    ] = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Predict steady serving in closed form: TTFT, TPOT and throughput under so many users, or so many requests/s.

    Prompts are read in the steps of those who decode (chunked prefill), so that both slow each other. Where the KV
    cache is the limit a note says so: `perfmodel simulate` counts preemption. A rate beyond what can be served is not
    stable: the growth of the queue is given, no latency. Exit code 1 where no load of the list is stable.

    ```
    perfmodel steady llama-3.1-8b h100-sxm --max-concurrency 1,4,16,64 \\
        --isl 1024 --osl 1024
    perfmodel steady llama-3.1-70b 4xh100-sxm -q fp8 --request-rate 0.5,1,2,4 \\
        --isl 2048 --osl 256 --plot load.png
    perfmodel steady qwen3-235b-a22b 8xh200-sxm -q fp8-block \\
        --max-concurrency 64 --num-prompts 640 --json
    ```
    """
    if (batch is None) == (request_rate is None):
        stated = question.deployment.max_concurrency
        if batch is None and stated is not None:
            batch = str(stated)
        else:
            raise SpecError(
                "a steady load is users or a rate", expected="one of --max-concurrency N,N and --request-rate X,X"
            )
    checked_picture(plot)
    is_open = request_rate is not None
    asked = ("--request-rate", request_rate, 1e-6) if is_open else ("--batch", batch, 1.0)
    load = np.array(numbers(*asked[:2], low=asked[2], high=_MOST))
    n_prompts = given("--num-prompts", num_prompts, low=1, high=1e9)
    burst = np.minimum(load / n_prompts, 1.0) if n_prompts is not None and not is_open else np.zeros_like(load)
    case = case_of(catalogue, replace(question, batch=1.0))
    found = steady_case(
        case,
        concurrency=None if is_open else load,
        requests_per_s=load if is_open else None,
        burst_frac=burst,
        schemes=remedy_schemes(catalogue),
    )
    if plot is not None:
        from perfmodel.report.steady_plot import save_steady

        save_steady(found, load, plot, is_open=is_open)
    if as_json:
        print(json_text(steady_document(found, load, is_open=is_open)))
    elif as_csv:
        print(csv_text(steady_rows(found, load, is_open=is_open)), end="")
    else:
        shown(*steady_tables(found, load, is_open=is_open))
    if not np.any(found.one.stable):
        raise InfeasibleError(
            "no load of the list is stable",
            got=f"{load.min():g} requests/s and more",
            expected=f"below {float(np.max(found.one.capacity_requests_per_s)) * case.n_replicas:.4g} requests/s",
            cure="Lower the rate, or use more devices or replicas.",
        )
