"""`perfmodel campaign`: many simulated runs, on this machine or on a cluster, into one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.flags import Scheduler, Workers
from perfmodel.cli.options import asking
from perfmodel.cli.simulate import objectives
from perfmodel.cli.values import number, whole, whole_number
from perfmodel.errors import SpecError
from perfmodel.plan.campaign import LOAD_AXES, campaign_columns, campaign_tasks, task_rows
from perfmodel.plan.runners import runner_at
from perfmodel.report.output import console, progress
from perfmodel.report.table_file import checked_table_file, row_file
from perfmodel.serving.traffic import Traffic
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.question import Question
from perfmodel.step.variation import parsed_axes

__all__ = ["campaign"]

_MOST_PROMPTS = 10**6
_MOST_RATE = 1e6
_USUAL_INPUT, _USUAL_OUTPUT = 1024, 256


@asking
def campaign(
    *,
    question: Question,
    catalogue: Catalogue,
    output: Annotated[Path, typer.Option("--output", "-o", help="Table to write: .csv or .parquet.")],
    vary: Annotated[
        list[str] | None,
        typer.Option("--vary", help="name=value,value or name=from:to:step (or :xfactor).", metavar="NAME=VALUES"),
    ] = None,
    request_rate: Annotated[
        str, typer.Option("--request-rate", help="Requests per second; inf: all at once.", metavar="X")
    ] = "inf",
    num_prompts: Annotated[str, typer.Option("--num-prompts", help="Requests of each run.", metavar="N")] = "1000",
    burstiness: Annotated[
        str, typer.Option("--burstiness", help="1: Poisson; below 1 in bursts, above 1 evenly.", metavar="X")
    ] = "1",
    length_spread: Annotated[
        str,
        typer.Option("--length-spread", help="Lengths drawn evenly within this share of isl and osl.", metavar="X"),
    ] = "0",
    seed: Annotated[str, typer.Option("--seed", help="Seed of arrivals and lengths.", metavar="N")] = "0",
    slo_ttft: Annotated[str | None, typer.Option("--slo-ttft", help="Objective for TTFT in ms.", metavar="MS")] = None,
    slo_tpot: Annotated[str | None, typer.Option("--slo-tpot", help="Objective for TPOT in ms.", metavar="MS")] = None,
    scheduler: Scheduler = None,
    workers: Workers = None,
) -> None:
    """Simulate every combination of the axes and write a row for each: deployments, loads, seeds.

    Rows are the same wherever they are computed (all cores without --scheduler), and in the order of the axes. A worker
    that dies loses nothing. A
    combination that cannot run carries the reason in `error`. Axes: those of `whatif`, and request_rate,
    max_concurrency, seed, isl, osl.

    ```
    perfmodel campaign llama-3.1-8b a100-80gb-sxm --isl 512 --osl 256 \\
        -o runs.parquet --vary request_rate=1,2,4,8 --vary seed=1:20
    perfmodel campaign qwen3-32b 4xh100-sxm --isl 2000 --osl 300 -o runs.csv \\
        --vary tp=1,2,4 --vary request_rate=2,4 --scheduler tcp://10.0.0.5:8786
    ```
    """
    if not vary:
        raise SpecError(
            "nothing to vary", expected="--vary name=value,value", cure="For one run use `perfmodel simulate`."
        )
    checked_table_file(output)
    n = whole("--num-prompts", num_prompts) or 0
    if n > _MOST_PROMPTS:
        raise SpecError(
            "a flag cannot be used", where="--num-prompts", got=num_prompts, expected=f"at most {_MOST_PROMPTS}"
        )
    rate = None if request_rate == "inf" else number("--request-rate", request_rate, low=1e-6, high=_MOST_RATE)
    users = question.batch if question.batch is not None else question.deployment.max_concurrency
    traffic = Traffic(
        n_requests=n,
        input_tokens=question.input_tokens or _USUAL_INPUT,
        output_tokens=question.output_tokens or _USUAL_OUTPUT,
        requests_per_s=rate,
        burstiness=number("--burstiness", burstiness, low=1e-3, high=1e6),
        length_spread_frac=number("--length-spread", length_spread, low=0.0, high=1.0),
        max_in_flight=None if users is None else int(users),
        seed=whole_number("--seed", seed, low=0, high=2**53),
    )
    axes = parsed_axes(vary, further=LOAD_AXES)
    if "batch" in axes:  # concurrency is its other name
        axes["max_concurrency"] = axes.pop("batch")
    tasks = campaign_tasks(question, axes, traffic, folders=catalogue.folders, slo=objectives(slo_ttft, slo_tpot))
    n_workers = whole("--workers", workers, kind="count")
    n_runs = n_errors = 0
    with (
        runner_at(scheduler, n_workers=n_workers) as runner,
        row_file(output, campaign_columns(axes)) as write,
        progress("campaign", sum(task.n_runs for task in tasks)) as advance,
    ):
        for rows in runner.results(task_rows, tasks):
            write(rows)
            advance(len(rows))
            n_runs += len(rows)
            n_errors += sum(bool(row["error"]) for row in rows)
    note = f", {n_errors} of them without result: see `error`" if n_errors else ""
    console(stderr=True).print(f"{n_runs} runs written to {output}{note}")
