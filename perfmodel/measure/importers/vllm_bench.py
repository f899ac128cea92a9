"""Results of `vllm bench serve | latency | throughput` as JSON.

Layouts after vllm/benchmarks/serve.py, latency.py and throughput.py. Hardware, parallel sizes and dtypes are not in
them unless given as --metadata, so that the caller has to state them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from perfmodel.errors import MeasurementError
from perfmodel.measure.importers.base import Context, Imported, named_rows
from perfmodel.measure.importers.reading import json_objects, number_of
from perfmodel.measure.importers.serving import imported_serving, model_and_scheme
from perfmodel.measure.importers.serving_json import run_from_record
from perfmodel.measure.row import Row

__all__ = ["parse_latency", "parse_serve", "parse_throughput"]


def parse_serve(text: str, *, context: Context) -> Imported:
    """Return the runs of `vllm bench serve --save-result` (one object) or `--append-result` (one a line)."""
    records = json_objects(text, context.name)
    return imported_serving([run_from_record(r, runtime="vllm") for r in records], context, "vllm-bench-serve")


def _needed(context: Context, what: str) -> None:
    names = ("model", "batch", "input_tokens", "output_tokens")
    missing = [name for name in names if getattr(context, name) in (None, "")]
    if missing:
        raise MeasurementError(
            f"{context.name} does not say what was run",
            got=f"no {', no '.join(missing)} in a {what} result",
            expected="model, batch, input_tokens and output_tokens",
            cure=f"State them: {', '.join(f'{name}=...' for name in missing)}.",
        )


def parse_latency(text: str, *, context: Context) -> Imported:
    """Return the end-to-end times of `vllm bench latency`: a static batch; its size and lengths must be stated."""
    _needed(context, "latency")
    rows = []
    for record in json_objects(text, context.name):
        mean = number_of(record.get("avg_latency"))
        if mean is None or not 0 < mean < math.inf:
            raise MeasurementError(
                f"{context.name} is no latency result",
                where="avg_latency",
                got=repr(record.get("avg_latency")),
                expected="seconds",
            )
        name, scheme = model_and_scheme(context.model)
        base = Row(kind="generate", **{**context.filled(runtime="vllm", quantization=scheme).cells(), "model": name})
        samples = record.get("latencies")
        n = len(samples) if isinstance(samples, list) else None
        rows.append(base.with_columns(metric="time_s", value=mean, n_repeats=n, stderr=_standard_error(record, n)))
        rows += _percentile_rows(base, record)
    return Imported(format="vllm-bench-latency", rows=named_rows(rows, context, "latency"))


def _standard_error(record: Mapping[str, Any], n: int | None) -> float | None:
    spread = number_of(record.get("std_latency"))
    return spread / math.sqrt(n) if spread and n else None


def _percentile_rows(base: Row, record: Mapping[str, Any]) -> list[Row]:
    percentiles = record.get("percentiles")
    found = percentiles.items() if isinstance(percentiles, dict) else ()
    values = [(str(p), number_of(v)) for p, v in found]
    return [base.with_columns(metric="time_s", value=v, op=f"p{p}") for p, v in values if v and 0 < v < math.inf]


def parse_throughput(text: str, *, context: Context) -> Imported:
    """Return the rate of `vllm bench throughput`: all requests at once."""
    rows, warnings = [], []
    for record in json_objects(text, context.name):
        elapsed, n = number_of(record.get("elapsed_time")), number_of(record.get("num_requests"))
        total, per_s = number_of(record.get("total_num_tokens")), number_of(record.get("requests_per_second"))
        if not elapsed or not n or elapsed <= 0:
            raise MeasurementError(
                f"{context.name} is no throughput result",
                got=f"elapsed_time {record.get('elapsed_time')!r}, num_requests {record.get('num_requests')!r}",
                expected="both above 0",
            )
        named = context.filled(runtime="vllm")
        cells = {name: value for name, value in named.cells().items() if name != "batch"}
        base = Row(kind="serve", request_rate_per_s=math.inf, **cells)
        rows.append(base.with_columns(metric="requests_per_s", value=per_s or n / elapsed))
        output = context.output_tokens
        if output is None and total is not None and context.input_tokens is not None:
            output = total / n - context.input_tokens
        if output and output > 0:
            rows.append(
                base.with_columns(metric="output_tokens_per_s", value=n * output / elapsed, output_tokens=output)
            )
        else:
            warnings.append("tokens are counted prompt and output together: state input_tokens or output_tokens")
    return Imported(
        format="vllm-bench-throughput", rows=named_rows(rows, context, "throughput"), warnings=tuple(warnings)
    )
