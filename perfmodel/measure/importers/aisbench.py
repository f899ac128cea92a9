"""AISBench results (rows are metrics, cells carry units) and MindIE Benchmark results (columns are metrics)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from perfmodel.errors import MeasurementError
from perfmodel.measure.importers.base import Context, Imported
from perfmodel.measure.importers.reading import csv_grid, json_documents, number_in, quantity_s
from perfmodel.measure.importers.serving import imported_serving
from perfmodel.measure.serving_run import ServingRun

__all__ = ["parse_csv", "parse_json", "parse_mindie", "parse_pair"]

_TIMES: Final = {
    "e2el": "e2e", "ttft": "ttft", "tpot": "tpot", "itl": "itl",
    "generatetime": "e2e", "firsttokentime": "ttft", "decodetime": "itl",
    "first_token_latency": "ttft", "subsequent_token_latency": "itl", "total_time": "e2e",
}  # fmt: skip
_STATS: Final = {
    "average": "mean",
    "avg": "mean",
    "median": "p50",
    "p50": "p50",
    "p75": "p75",
    "p90": "p90",
    "p99": "p99",
    "max": "max",
    "min": "min",
}
_LENGTHS: Final = {
    "inputtokens": "requested_input_tokens", "input_token_num": "requested_input_tokens",
    "outputtokens": "requested_output_tokens", "generatedtokens": "requested_output_tokens",
    "generated_token_num": "requested_output_tokens",
}  # fmt: skip
_COMMON: Final = {
    "total requests": "n_prompts", "failed requests": "failed", "success requests": "completed",
    "max concurrency": "max_concurrency", "request throughput": "requests_per_s",
    "total input tokens": "total_input_tokens", "total generated tokens": "total_output_tokens",
    "output token throughput": "output_tokens_per_s",
}  # fmt: skip
_KNOWN_NOT_USED: Final = ("max", "min")


def _metric(word: str) -> str:
    return word.split("(")[0].strip().lower().replace(" ", "")


def _unit(word: str) -> str:
    return "ms" if "(ms)" in word else ""


def _noted(metric: str, stat: str, cell: str, latency: dict[tuple[str, str], float], fields: dict[str, Any]) -> None:
    """Put one cell where it belongs."""
    name = _metric(metric)
    if stat in _KNOWN_NOT_USED or not stat:
        return
    if name in _TIMES:
        seconds = quantity_s(cell, _unit(metric) or "ms")
        if seconds is not None:
            latency[_TIMES[name], stat] = seconds
    elif name in _LENGTHS and stat == "mean":
        fields[_LENGTHS[name]] = number_in(cell)


def _table_run(text: str, context: Context) -> ServingRun:
    grid = csv_grid(text, context.name)
    latency: dict[tuple[str, str], float] = {}
    fields: dict[str, Any] = {}
    for _, cells in grid.records():
        metric = cells[grid.header[0]]
        for header, cell in cells.items():
            _noted(metric, _STATS.get(header.strip().lower(), ""), cell, latency, fields)
    if not latency:
        raise MeasurementError(
            f"{context.name} is no AISBench table",
            got=", ".join(grid.header)[:120],
            expected="rows such as TTFT, TPOT, E2EL",
        )
    counts = [
        number_in(cells["N"]) for _, cells in grid.records() if "N" in grid.header and "ITL" not in cells.values()
    ]
    completed = max((count for count in counts if count), default=None)
    return ServingRun(latency_s=latency, completed=completed, **_stated(fields))


def parse_csv(text: str, *, context: Context) -> Imported:
    """Return what `performances/<model>/<dataset>.csv` of AISBench holds (or request_summary.csv of MindIE's profiler).

    Load and totals stand in the .json of the same name: see `parse_pair`, or state batch=...
    """
    return imported_serving([_table_run(text, context)], context, "aisbench-csv")


def _stated(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _totals(text: str, name: str) -> ServingRun:
    """Return duration, load and rates of the .json beside a table."""
    found = json_documents(text, name)[0]
    if not isinstance(found, dict):
        raise MeasurementError(f"{name} is no AISBench result", got=json.dumps(found)[:80], expected="an object")
    values = {
        key.strip().lower(): str(v.get("total", "")) if isinstance(v, dict) else str(v) for key, v in found.items()
    }
    fields = {name: number_in(values[key]) for key, name in _COMMON.items() if key in values}
    duration = quantity_s(values.get("benchmark duration", ""), "ms")
    extra = {"concurrency": number_in(values["concurrency"])} if "concurrency" in values else {}
    return ServingRun(duration_s=duration, extra=_stated(extra), **_stated(fields))


def parse_pair(table: str, totals: str, *, context: Context) -> Imported:
    """Return one run from both files that AISBench writes: times from the table, load and rates from the totals."""
    times = _table_run(table, context)
    run = replace(
        _totals(totals, f"{context.name}, totals"),
        latency_s=times.latency_s,
        requested_input_tokens=times.requested_input_tokens,
        requested_output_tokens=times.requested_output_tokens,
    )
    return imported_serving([run], context, "aisbench")


def parse_json(text: str, *, context: Context) -> Imported:
    """Return what the .json beside an AISBench table holds: duration, totals, throughput."""
    return imported_serving([_totals(text, context.name)], context, "aisbench-json")


def parse_mindie(text: str, *, context: Context) -> Imported:
    """Return what MindIE Benchmark's result_perf_*.csv or result_common_*.csv holds; "/" stands for nothing."""
    grid = csv_grid(text, context.name)
    headers = {header.strip().lower(): header for header in grid.header}
    if "timeelapsed" in headers or "throughput" in headers:
        runs = [_common_run(cells) for _, cells in grid.records()]
    else:
        latency: dict[tuple[str, str], float] = {}
        fields: dict[str, Any] = {}
        for _, cells in grid.records():
            stat = _STATS.get(cells[grid.header[0]].strip().lower(), "")
            for header, cell in cells.items():
                _noted(header, stat, cell, latency, fields)
        runs = [ServingRun(latency_s=latency, runtime="mindie", **_stated(fields))]
    found = imported_serving(runs, context, "mindie-benchmark")
    waits = "mean times of MindIE Benchmark include waiting in its queue"
    return found.with_warnings(waits)


def _common_run(cells: Mapping[str, str]) -> ServingRun:
    values = {header.strip().lower(): cell for header, cell in cells.items()}
    failed, total = number_in(values.get("failed", "")), number_in(values.get("total", ""))
    completed = number_in(values.get("returned", "").split("(")[0])
    speed = values.get("outputgeneratespeed") or values.get("generatespeed") or ""
    return ServingRun(
        model=values.get("modelname", "") if values.get("modelname") != "/" else "",
        runtime="mindie",
        n_prompts=total,
        completed=completed,
        failed=failed,
        duration_s=quantity_s(values.get("timeelapsed", ""), "s"),
        max_concurrency=number_in(values.get("concurrency", "")),
        requests_per_s=number_in(values.get("throughput", "")),
        output_tokens_per_s=number_in(speed),
    )
