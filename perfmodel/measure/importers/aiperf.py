"""Exports of genai-perf and of its successor aiperf: JSON with one object a metric, or CSV in two sections."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from perfmodel.errors import MeasurementError
from perfmodel.measure.importers.base import Context, Imported
from perfmodel.measure.importers.reading import csv_grid, json_objects, number_of
from perfmodel.measure.importers.serving import imported_serving
from perfmodel.measure.serving_run import ServingRun

__all__ = ["parse_csv", "parse_json"]

_TIMES: Final = {"time_to_first_token": "ttft", "inter_token_latency": "tpot", "request_latency": "e2e"}
_PER_S: Final = {"ms": 1e3, "s": 1.0, "sec": 1.0, "us": 1e6, "ns": 1e9}
_STATS: Final = {"avg": "mean", "p50": "p50", "p75": "p75", "p90": "p90", "p95": "p95", "p99": "p99", "std": "std"}
_NOTE: Final = "aiperf's inter-token latency is (request latency - TTFT) / (tokens - 1): it is read as TPOT"


def _run(metrics: Mapping[str, Mapping[str, Any]], config: Mapping[str, Any]) -> ServingRun:
    latency: dict[tuple[str, str], float] = {}
    for tag, name in _TIMES.items():
        metric = metrics.get(tag, {})
        per_s = _PER_S.get(str(metric.get("unit", "ms")).lower(), 1e3)
        for stat, word in _STATS.items():
            value = number_of(metric.get(stat))
            if value is not None:
                latency[name, word] = value / per_s

    def mean(tag: str) -> float | None:
        return number_of(metrics.get(tag, {}).get("avg"))

    duration = mean("benchmark_duration")
    unit = str(metrics.get("benchmark_duration", {}).get("unit", "sec")).lower()
    completed = mean("request_count") or number_of(metrics.get("request_latency", {}).get("count"))
    return ServingRun(
        model=_model(config),
        completed=completed,
        failed=mean("error_request_count"),
        duration_s=None if duration is None else duration / _PER_S.get(unit, 1.0),
        requested_input_tokens=mean("input_sequence_length"),
        requested_output_tokens=mean("output_sequence_length"),
        max_concurrency=_load(config, "concurrency"),
        request_rate_per_s=_load(config, "request_rate"),
        requests_per_s=mean("request_throughput"),
        output_tokens_per_s=mean("output_token_throughput"),
        latency_s=latency,
    )


def _model(config: Mapping[str, Any]) -> str:
    endpoint = config.get("endpoint")
    nested = endpoint.get("model_names") or endpoint.get("model_name") if isinstance(endpoint, dict) else None
    found = config.get("model_names") or config.get("model") or nested
    return str(found[0]) if isinstance(found, list) and found else str(found or "")


def _load(config: Mapping[str, Any], name: str) -> float | None:
    """Return a load figure from wherever the versions put it."""
    sections: list[Any] = [config, *(config.get(key) for key in ("loadgen", "perf_analyzer", "load"))]
    sections += [s.get("stimulus") for s in sections if isinstance(s, dict)]
    values = [number_of(section.get(name)) for section in sections if isinstance(section, dict)]
    return next((value for value in values if value), None)


def parse_json(text: str, *, context: Context) -> Imported:
    """Return the run of profile_export_aiperf.json or profile_export_genai_perf.json."""
    runs, cancelled = [], False
    for record in json_objects(text, context.name):
        metrics = {key: value for key, value in record.items() if isinstance(value, dict) and "avg" in value}
        if not metrics.keys() & _TIMES.keys():
            raise MeasurementError(
                f"{context.name} is no aiperf export",
                got=", ".join(record)[:100],
                expected="metrics such as time_to_first_token",
            )
        config = record.get("input_config")
        runs.append(_run(metrics, config if isinstance(config, dict) else {}))
        cancelled |= record.get("was_cancelled") is True
    found = imported_serving(runs, context, "aiperf-json").with_warnings(_NOTE)
    return found.with_warnings("the run was cancelled before its end") if cancelled else found


def parse_csv(text: str, *, context: Context) -> Imported:
    """Return the run of an exported CSV: a section of distributions, a blank line, a section of single values."""
    metrics: dict[str, dict[str, Any]] = {}
    sections = [
        part for part in re.split(r"\n\s*\n", text.removeprefix("\ufeff").replace("\r\n", "\n")) if part.strip()
    ]
    for section in sections:
        grid = csv_grid(section, context.name)
        if not grid.header or grid.header[0].lower() != "metric":
            continue
        for _, cells in grid.records():
            tag, unit = _tag(cells[grid.header[0]])
            values = {header.lower(): cell for header, cell in cells.items()}
            metrics[tag] = {**values, "unit": unit, "avg": values.get("avg") or values.get("value")}
    if not metrics.keys() & _TIMES.keys():
        raise MeasurementError(
            f"{context.name} is no aiperf export", expected="a section that starts with Metric,avg,min,max,..."
        )
    return imported_serving([_run(metrics, {})], context, "aiperf-csv").with_warnings(_NOTE)


def _tag(words: str) -> tuple[str, str]:
    """Return (metric tag, unit) of a printed name.

    >>> _tag("Time to First Token (ms)")
    ('time_to_first_token', 'ms')
    """
    unit = re.search(r"\(([^)]*)\)\s*$", words)
    plain = re.sub(r"\([^)]*\)\s*$", "", words).strip().lower()
    return re.sub(r"[^a-z0-9]+", "_", plain).strip("_"), unit[1].strip().lower() if unit else "ms"
