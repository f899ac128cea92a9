"""`perfmodel scale`: replicas over the day, what an autoscaler makes of it, failures and growth."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from perfmodel.cli.flags import Csv, Json
from perfmodel.cli.options import asking
from perfmodel.cli.target_flags import LongestE2e, LongestTpot, LongestTtft, Percentile, SpreadOfLengths
from perfmodel.cli.values import number, seconds, whole_number
from perfmodel.errors import SpecError
from perfmodel.plan.autoscale import DEFAULT_TOLERANCE_FRAC
from perfmodel.plan.capacity import grown, policy_for, scaled
from perfmodel.plan.demand import Demand, Targets
from perfmodel.plan.load_curve import LoadCurve, counted, diurnal, sampled
from perfmodel.plan.manifest import hpa_manifest
from perfmodel.plan.prices import price_of, usd_per_hour
from perfmodel.plan.rating import rating_of
from perfmodel.plan.space import candidate_of
from perfmodel.report.answer import setup_text
from perfmodel.report.output import csv_text, json_text, shown, written
from perfmodel.report.picture import checked_picture
from perfmodel.report.scale import ScaleView, scale_document, scale_rows, scale_sheets, scale_tables
from perfmodel.report.workbook import checked_workbook, saved_workbook
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.files import yaml_text
from perfmodel.step.question import Question, case_of

__all__ = ["scale"]

_MOST = 1e9
_SWING, _PERIOD = "0.7", "24h"


@asking
def scale(
    *,
    question: Question,
    catalogue: Catalogue,
    peak_rate: Annotated[
        str | None, typer.Option("--peak-rate", help="Requests per second at the busiest time of a day.", metavar="X")
    ] = None,
    swing: Annotated[
        str, typer.Option("--swing", help="How deep the day falls: mean x (1 +- X).", metavar="X")
    ] = _SWING,
    period: Annotated[str, typer.Option("--period", help="Length of the rhythm.", metavar="TIME")] = _PERIOD,
    trace_file: Annotated[
        Path | None, typer.Option("--trace", help="Arrivals of a recorded trace instead of a day.", metavar="FILE")
    ] = None,
    load_file: Annotated[
        Path | None, typer.Option("--load", help="CSV with time_s and requests_per_s instead.", metavar="FILE")
    ] = None,
    step: Annotated[str, typer.Option("--step", help="Round of the autoscaler.", metavar="TIME")] = "15s",
    ttft: LongestTtft = None,
    tpot: LongestTpot = None,
    e2e: LongestE2e = None,
    percentile: Percentile = "95",
    length_spread: SpreadOfLengths = "0.2",
    spare: Annotated[str, typer.Option("--spare", help="Replicas that may fail at the peak (N + X).")] = "0",
    min_replicas: Annotated[str, typer.Option("--min-replicas", help="Fewest replicas.", metavar="N")] = "1",
    max_replicas: Annotated[str, typer.Option("--max-replicas", help="Most replicas.", metavar="N")] = "64",
    start: Annotated[
        str, typer.Option("--start", help="From asking for a replica to its first answer.", metavar="TIME")
    ] = "120s",
    down_window: Annotated[
        str, typer.Option("--down-window", help="Stabilisation before scaling down.", metavar="TIME")
    ] = "300s",
    up_window: Annotated[
        str, typer.Option("--up-window", help="Stabilisation before scaling up.", metavar="TIME")
    ] = "0s",
    tolerance: Annotated[
        str, typer.Option("--tolerance", help="Deviation that the autoscaler lets pass.", metavar="X")
    ] = f"{DEFAULT_TOLERANCE_FRAC:g}",
    metric: Annotated[
        str, typer.Option("--metric", help="What the autoscaler sees: arriving or served requests.")
    ] = "arriving",
    growth: Annotated[
        str | None, typer.Option("--growth", help="Growth of the load a month, e.g. 0.05.", metavar="X")
    ] = None,
    months: Annotated[str, typer.Option("--months", help="Months of growth.", metavar="N")] = "12",
    price: Annotated[
        str | None, typer.Option("--price", help="Price of a device, e.g. 2.5/h; of its file without.")
    ] = None,
    hpa: Annotated[
        Path | None, typer.Option("--hpa", help="HorizontalPodAutoscaler (autoscaling/v2) as YAML.", metavar="FILE")
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the Kubernetes Deployment.")] = "llm",
    metric_name: Annotated[
        str, typer.Option("--metric-name", help="Name of the pods' metric in the manifest.")
    ] = "requests_per_second",
    plot: Annotated[Path | None, typer.Option("--plot", help="Picture: .png, .svg or .pdf.", metavar="FILE")] = None,
    xlsx: Annotated[Path | None, typer.Option("--xlsx", help="Workbook of all tables.", metavar="FILE")] = None,
    no_simulation: Annotated[bool, typer.Option("--no-simulation", help="Rate replicas by means only.")] = False,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Plan capacity over time: a day, a trace or a table of load on replicas that an autoscaler starts and stops.

    One replica is rated first: how many requests per second it takes while the targets hold. With --csv a row for each
    step.

    ```
    perfmodel scale llama-3.1-8b a100-80gb-sxm --isl 1024 --osl 256 \\
        --peak-rate 60 --ttft 500ms --tpot 30ms --spare 1 --growth 0.08 \\
        --hpa hpa.yaml --plot day.png
    perfmodel scale qwen3-32b 4xascend-910b3 --trace azure.csv --tpot 50ms
    ```
    """
    checked_picture(plot)
    checked_workbook(xlsx)
    targets = Targets(
        ttft_s=seconds("--ttft", ttft),
        tpot_s=seconds("--tpot", tpot),
        e2e_s=seconds("--e2e", e2e),
        percentile=whole_number("--percentile", percentile, low=1, high=99),
    )
    step_s = seconds("--step", step) or 0.0
    if sum(source is not None for source in (peak_rate, trace_file, load_file)) != 1:
        raise SpecError("what the load is has to be said once", expected="one of --peak-rate, --trace and --load")
    if peak_rate is None and (swing, period) != (_SWING, _PERIOD):
        raise SpecError("a flag would change nothing", where="--swing, --period", expected="--peak-rate")
    if trace_file is not None:
        load, question = _traced(trace_file, question, step_s)
    elif load_file is not None:
        load = _tabled(load_file, step_s)
    else:
        load = diurnal(
            peak_requests_per_s=number("--peak-rate", peak_rate or "", low=1e-6, high=_MOST),
            swing_frac=number("--swing", swing, low=0.0, high=1.0),
            period_s=seconds("--period", period) or 0.0,
            step_s=step_s,
        )
    case = case_of(catalogue, replace(question, batch=1.0))
    demand = Demand(
        input_tokens=case.workload.input_tokens,
        output_tokens=case.workload.output_tokens,
        requests_per_s=load.peak_requests_per_s,
        spread_frac=number("--length-spread", length_spread, low=0.0, high=1.0),
    )
    candidate = candidate_of(case, demand)
    rating = rating_of(candidate, demand, targets, simulate=not no_simulation)
    n_spare = whole_number("--spare", spare, low=0, high=1000)
    most = whole_number("--max-replicas", max_replicas, low=1, high=10**6)
    policy = policy_for(
        load,
        rating,
        spare=n_spare,
        min_replicas=whole_number("--min-replicas", min_replicas, low=1, high=10**6),
        max_replicas=most,
        tolerance_frac=number("--tolerance", tolerance, low=0.0, high=0.99),
        start_s=_span("--start", start),
        down_window_s=_span("--down-window", down_window),
        up_window_s=_span("--up-window", up_window),
        metric=metric,
    )
    monthly = None
    if growth is not None:
        frac = number("--growth", growth, low=-0.99, high=10.0)
        n_months = whole_number("--months", months, low=1, high=60)
        monthly = grown(load, rating, growth_per_month_frac=frac, max_replicas=most, spare=n_spare, months=n_months)
    own = price_of(candidate.device, {}).value_usd_per_hour
    cost = own if price is None else usd_per_hour(price, where="--price")
    view = ScaleView(
        candidate.case, demand, targets, rating, load, policy, n_spare, scaled(load, rating, policy), monthly, cost
    )
    if hpa is not None:
        text = yaml_text(hpa_manifest(policy, name=name, metric=metric_name))
        print(f"wrote {written(hpa, text)}", file=sys.stderr)
    if plot is not None:
        from perfmodel.report.scale_plot import save_scale

        print(f"wrote {save_scale(view, plot, title=setup_text(candidate.case))}", file=sys.stderr)
    if xlsx is not None:
        print(f"wrote {saved_workbook(xlsx, scale_sheets(view))}", file=sys.stderr)
    if as_json:
        print(json_text(scale_document(view)))
    elif as_csv:
        print(csv_text(scale_rows(view)), end="")
    else:
        shown(*scale_tables(view))


def _span(spelling: str, text: str) -> float:
    """Return a time that may be 0."""
    return 0.0 if text.strip() in ("0", "0s") else seconds(spelling, text) or 0.0


def _traced(path: Path, question: Question, step_s: float) -> tuple[LoadCurve, Question]:
    """Return the rate of a recorded trace, and the question with its mean lengths where none are stated."""
    from perfmodel.measure.importers.registry import import_file

    trace = import_file(path, "request-trace").facts["trace"]
    load = counted(np.asarray(trace.arrival_s, dtype=np.float64), step_s=step_s)
    lengths = {
        "input_tokens": question.input_tokens or float(max(1, round(float(np.mean(trace.input_tokens))))),
        "output_tokens": question.output_tokens or float(max(1, round(float(np.mean(trace.output_tokens))))),
    }
    return load, replace(question, **lengths)  # type: ignore[arg-type]


def _tabled(path: Path, step_s: float) -> LoadCurve:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
        columns = [np.array([float(row[name]) for row in rows]) for name in ("time_s", "requests_per_s")]
    except OSError as error:
        raise SpecError(f"{path} cannot be read", got=error.strerror or str(error), expected="a CSV file") from error
    except (KeyError, TypeError, ValueError, UnicodeDecodeError) as error:
        raise SpecError(
            f"{path} holds no load over time", got=str(error), expected="numbers in columns time_s and requests_per_s"
        ) from error
    return sampled(columns[0], columns[1], step_s=step_s)
