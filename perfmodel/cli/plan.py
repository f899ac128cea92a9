"""`perfmodel plan`: which hardware, how many, which layout, at what cost, how sure."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from perfmodel.cli.flags import Calibrated, CatalogFolders, Csv, Json, one_format
from perfmodel.cli.names import hardware_names, model_names
from perfmodel.cli.options import catalogue_of
from perfmodel.cli.target_flags import LongestE2e, LongestTpot, LongestTtft, Percentile, SpreadOfLengths
from perfmodel.cli.values import given, number, seconds, whole, whole_number, words
from perfmodel.errors import SpecError
from perfmodel.plan.demand import Demand, Targets
from perfmodel.plan.finalists import contested
from perfmodel.plan.nearest import not_feasible
from perfmodel.plan.prices import prices_from, usd_per_hour
from perfmodel.plan.ranking import OBJECTIVES, ranked
from perfmodel.plan.search import searched
from perfmodel.plan.space import Space
from perfmodel.report.output import csv_text, json_text, progress, shown
from perfmodel.report.page import checked_page, saved_page
from perfmodel.report.plan import plan_document, plan_rows, plan_tables
from perfmodel.report.plan_view import PlanView
from perfmodel.report.workbook import checked_workbook, saved_workbook
from perfmodel.specs.catalogue import Catalogue

__all__ = ["plan"]

_USUAL_HARDWARE = "a100-80gb-sxm,h100-sxm,h200-sxm,h20,ascend-910b3,rtx-4090,l40s"
_MOST = 1e12


def _numbers(spelling: str, text: str | None, *, kind: Literal["count", "tokens"] = "count") -> tuple[int, ...]:
    values = [whole(spelling, part, kind=kind) for part in words(text)]
    return tuple(value for value in values if value is not None)


def _available(catalogue: Catalogue, texts: list[str] | None) -> dict[str, int]:
    found: dict[str, int] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        count = whole("--available", value) if equals and value.strip() != "0" else 0
        if not equals or count is None:
            raise SpecError("a flag cannot be used", where="--available", got=repr(text), expected="device=count")
        device = catalogue.hardware(name.strip()).device.name
        if device in found:
            raise SpecError(f"how many {device} there are is said twice", where="--available")
        found[device] = count
    return found


def _check_searched(catalogue: Catalogue, hardware: Sequence[str], flag: str, devices: Collection[str]) -> None:
    """Raise SpecError for devices of a flag that are not searched: it would change nothing."""
    searched_devices = {catalogue.hardware(name).device.name for name in hardware}
    if others := [name for name in devices if name not in searched_devices]:
        got, expected = ", ".join(others), f"one of those of --hardware: {', '.join(sorted(searched_devices))}"
        raise SpecError("a device is not searched", where=flag, got=got, expected=expected)


def _hardware(catalogue: Catalogue, text: str, available: dict[str, int]) -> tuple[str, ...]:
    """Return canonical names; a counted one (8xh100-sxm) says how many of the device are to be had."""
    names = []
    for name in words(text):
        found = catalogue.hardware(name)
        if found.n_devices is not None and (found.system is None or found.n_devices != found.system.n_devices):
            available.setdefault(found.device.name, found.n_devices)
        names.append(found.device.name if found.system is None else found.system.name)
    return tuple(dict.fromkeys(names))


def plan(
    model: Annotated[
        str,
        typer.Argument(
            help="Model names or config.json, parted by commas.", autocompletion=model_names, metavar="MODEL"
        ),
    ],
    *,
    isl: Annotated[str, typer.Option("--isl", "--input-len", help="Input tokens.", metavar="N")],
    osl: Annotated[str, typer.Option("--osl", "--output-len", help="Output tokens.", metavar="N")],
    request_rate: Annotated[
        str | None, typer.Option("--request-rate", help="Requests per second, open loop.", metavar="X")
    ] = None,
    concurrent_users: Annotated[
        str | None, typer.Option("--concurrent-users", help="Users, each with one request at a time.", metavar="N")
    ] = None,
    think: Annotated[
        str | None, typer.Option("--think", help="Time a user takes between requests, e.g. 10s.", metavar="TIME")
    ] = None,
    length_spread: SpreadOfLengths = "0.2",
    ttft: LongestTtft = None,
    tpot: LongestTpot = None,
    e2e: LongestE2e = None,
    percentile: Percentile = "95",
    confidence: Annotated[
        str, typer.Option("--confidence", help="Least probability that they are met, e.g. 0.9.", metavar="X")
    ] = "0",
    hardware: Annotated[
        str,
        typer.Option(
            "--hardware",
            help="Devices or systems, parted by commas; seven that are usual without it.",
            autocompletion=hardware_names,
            metavar="A,B",
            show_default=False,
        ),
    ] = _USUAL_HARDWARE,
    max_devices: Annotated[str, typer.Option("--max-devices", help="Most devices in all.", metavar="N")] = "64",
    available: Annotated[
        list[str] | None, typer.Option("--available", help="Devices to be had, e.g. h20=16.", metavar="NAME=N")
    ] = None,
    price: Annotated[
        list[str] | None, typer.Option("--price", help="Price of a device, e.g. h20=1.2/h.", metavar="NAME=USD/h")
    ] = None,
    budget: Annotated[str | None, typer.Option("--budget", help="Most US dollars an hour, e.g. 20/h.")] = None,
    objective: Annotated[
        str, typer.Option("--objective", help=f"auto, {', '.join(OBJECTIVES)}; auto: cost where all prices are known.")
    ] = "auto",
    quantization: Annotated[
        str | None, typer.Option("-q", "--quantization", help="Weight schemes to search, e.g. none,fp8.")
    ] = None,
    kv_cache_dtype: Annotated[
        str | None, typer.Option("--kv-cache-dtype", help="KV cache dtypes to search, e.g. auto,fp8.")
    ] = None,
    runtime: Annotated[str | None, typer.Option("--runtime", help="Runtimes to search, e.g. vllm-0.11.")] = None,
    tp: Annotated[str | None, typer.Option("-tp", "--tp", help="Tensor parallel sizes, e.g. 1,2,4.")] = None,
    pp: Annotated[str | None, typer.Option("-pp", "--pp", help="Pipeline stages, e.g. 1.")] = None,
    dp: Annotated[str | None, typer.Option("-dp", "--dp", help="Data-parallel sizes of a mixture of experts.")] = None,
    max_num_batched_tokens: Annotated[
        str | None, typer.Option("--max-num-batched-tokens", help="Token budgets to search; the engine's without.")
    ] = None,
    max_num_seqs: Annotated[
        str | None, typer.Option("--max-num-seqs", help="Sequences of a step.", metavar="N")
    ] = None,
    max_model_len: Annotated[
        str | None, typer.Option("--max-model-len", help="Context limit; the longest request without.", metavar="N")
    ] = None,
    gpu_memory_utilization: Annotated[
        str | None, typer.Option("--gpu-memory-utilization", help="Share of device memory, 0 to 1.", metavar="X")
    ] = None,
    headroom: Annotated[str, typer.Option("--headroom", help="Share of the KV cache kept free.", metavar="X")] = "0",
    no_simulation: Annotated[
        bool, typer.Option("--no-simulation", help="Means of the steady state only: no percentiles.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option("--report", help="One page to show to others: .html, works offline.", metavar="FILE")
    ] = None,
    xlsx: Annotated[Path | None, typer.Option("--xlsx", help="Workbook of all tables.", metavar="FILE")] = None,
    seed: Annotated[str, typer.Option("--seed", help="Seed of the simulated traffic.", metavar="N")] = "0",
    calibration: Calibrated = "auto",
    catalog: CatalogFolders = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Find what serves a demand within targets: hardware, count, layout, weights, cost, how sure, and how to start it.

    All operating points of all layouts are compared in steady state; the best are simulated request by request. Exit
    code 1 where nothing meets the targets, with the nearest miss and what would help.

    ```
    perfmodel plan deepseek-r1-distill-qwen-32b --isl 2000 --osl 500 \\
        --concurrent-users 200 --ttft 2s --tpot 50ms \\
        --hardware a100-80gb-sxm,ascend-910b3,rtx-4090,h20
    perfmodel plan llama-3.1-8b --isl 1024 --osl 256 --request-rate 20 \\
        --ttft 500ms --tpot 30ms --hardware l40s,rtx-4090 \\
        --price l40s=0.8/h --price rtx-4090=0.35/h
    ```
    """
    one_format(as_json=as_json, as_csv=as_csv)
    checked_workbook(xlsx)
    checked_page(report)
    catalogue = catalogue_of(catalog)
    demand = _demand(isl, osl, request_rate, concurrent_users, think, length_spread)
    to_be_had = _available(catalogue, available)
    prices = prices_from(catalogue, price or ())
    names = _hardware(catalogue, hardware, to_be_had)
    _check_searched(catalogue, names, "--available", to_be_had)
    _check_searched(catalogue, names, "--price", prices)
    targets = Targets(
        ttft_s=seconds("--ttft", ttft),
        tpot_s=seconds("--tpot", tpot),
        e2e_s=seconds("--e2e", e2e),
        percentile=whole_number("--percentile", percentile, low=1, high=99),
        max_devices=whole_number("--max-devices", max_devices, low=1, high=10**6),
        budget_usd_per_hour=None if budget is None else usd_per_hour(budget, where="--budget"),
        available=to_be_had,
        confidence_frac=number("--confidence", confidence, low=0.0, high=0.999),
    )
    space = Space(
        models=words(model),
        hardware=names,
        runtimes=words(runtime),
        quantizations=words(quantization),
        kv_cache_dtypes=words(kv_cache_dtype),
        tp=_numbers("--tp", tp),
        pp=_numbers("--pp", pp),
        dp=_numbers("--dp", dp),
        token_budgets=_numbers("--max-num-batched-tokens", max_num_batched_tokens, kind="tokens"),
        max_num_seqs=whole("--max-num-seqs", max_num_seqs),
        max_model_len=whole("--max-model-len", max_model_len),
        gpu_memory_utilization=given("--gpu-memory-utilization", gpu_memory_utilization, low=0.01, high=1.0),
        headroom_frac=number("--headroom", headroom, low=0.0, high=0.99),
        calibration=calibration,
    )
    found = searched(catalogue, space, demand, targets, prices=prices)
    ranking = ranked(found, objective)
    with progress("simulate", 10) as advance:
        seeded = whole_number("--seed", seed, low=0, high=2**53)
        contest = contested(ranking, simulate=not no_simulation, seed=seeded, told=advance)
    if not contest.order:
        raise not_feasible(contest)
    view = PlanView(contest)
    if report is not None:
        from perfmodel.report.plan_page import plan_page

        print(f"wrote {saved_page(report, plan_page(view))}", file=sys.stderr)
    if xlsx is not None:
        from perfmodel.report.plan_page import plan_sheets

        print(f"wrote {saved_workbook(xlsx, plan_sheets(view))}", file=sys.stderr)
    _printed(view, as_json=as_json, as_csv=as_csv)


def _printed(view: PlanView, *, as_json: bool, as_csv: bool) -> None:
    if as_json:
        print(json_text(plan_document(view)))
    elif as_csv:
        print(csv_text(plan_rows(view)), end="")
    else:
        shown(*plan_tables(view))


def _demand(isl: str, osl: str, rate: str | None, users: str | None, think: str | None, spread: str) -> Demand:
    values: dict[str, Any] = {
        "input_tokens": float(whole("--isl", isl) or 0),
        "output_tokens": float(whole("--osl", osl) or 0),
        "spread_frac": number("--length-spread", spread, low=0.0, high=1.0),
    }
    if rate is not None:
        values["requests_per_s"] = number("--request-rate", rate, low=1e-6, high=_MOST)
    if users is not None:
        values["n_users"] = float(whole("--concurrent-users", users) or 0)
    if think is not None and think.strip() not in ("0", "0s"):
        values["think_s"] = seconds("--think", think)
    return Demand(**values)
