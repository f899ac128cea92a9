"""Tables of serving results that people paste: evalscope, issues, spreadsheets; headers in English or Chinese."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final

from perfmodel.errors import MeasurementError
from perfmodel.measure.importers.base import Context, Imported
from perfmodel.measure.importers.reading import csv_grid, number_in, quantity_s
from perfmodel.measure.importers.serving import imported_serving
from perfmodel.measure.importers.slots import slot_limit
from perfmodel.measure.serving_run import ServingRun

__all__ = ["column_meaning", "parse"]

_MEANINGS: Final = (
    ("failed", r"失败请求|失败数|failed"),
    ("success", r"成功率|success ?rate"),
    ("completed", r"成功请求|成功数|succeed|successful|success requests"),
    ("request_rate_per_s", r"请求速率|到达率|request rate|^rate$|^qps\(?target"),
    ("requests_per_s", r"请求吞吐|每秒请求|^rps|^qps|request throughput|requests? ?/ ?s|req/s"),
    ("concurrency", r"并发|concurrency|^conc\.?$|^parallel|^users?$|batch ?size|^bs$"),
    ("n_prompts", r"请求总?数|总请求|total requests|num prompts|number of requests|^requests?$|^number$"),
    ("ttft", r"首 ?token|首字|首包|首个 ?token|ttft|time to first token|first ?token|预填充时延"),
    ("tpot", r"tpot|time per output token|非首 ?token|每 ?token|单 ?token|增量|解码时延|decode ?time|per token lat"),
    ("itl", r"\bitl|inter.?token|token间"),
    ("total_tokens_per_s", r"总吞吐|total (token )?throughput|总 ?token ?吞吐|total tok"),
    ("input_tokens_per_s", r"输入吞吐|prefill.*吞吐|input token throughput|prompt throughput|prefill token throughput"),
    ("output_tokens_per_s", r"输出吞吐|输出 ?token ?吞吐|生成速度|生成吞吐|解码吞吐|gen\.? ?tok"),
    ("output_tokens_per_s", r"output (token )?throughput|out(put)? tok(en)?s?[/ ]?(per )?s|output rate"),
    ("output_tokens_per_s", r"generate ?speed|^吞吐|^throughput"),
    ("input_tokens", r"输入长度|输入 ?token|input (len|tok)|\bisl\b|prompt (len|tok)|input tokens|输入"),
    ("output_tokens", r"输出长度|输出 ?token|output (len|tok)|\bosl\b|output tokens|生成长度|输出"),
    ("duration", r"耗时|总时间|time taken|duration|测试时长|total time"),
    ("e2e", r"端到端|e2e|总时延|总延迟|平均时延|平均延迟|latency|\blat\.?"),
)  # fmt: skip
_COMPILED: Final = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _MEANINGS)
_STATS: Final = (
    ("p50", r"p50|中位|median"), ("p75", r"p75"), ("p90", r"p90"), ("p95", r"p95"), ("p99", r"p99"),
    ("max", r"\bmax|最大(?!并发)"), ("min", r"\bmin\b|最小"), ("std", r"\bstd|标准差"),
)  # fmt: skip
_TIMES: Final = ("ttft", "tpot", "itl", "e2e")
_UNIT: Final = re.compile(r"[(\[]\s*(ms|s|us|μs|µs|毫秒|秒)\s*[)\]]|[_ /](ms|us|s)$", re.IGNORECASE)


def column_meaning(header: str) -> tuple[str, str, str]:
    """Return (quantity, statistic, unit of a time or "") that a header means; an unknown one is ("", "", "").

    >>> column_meaning("首token时延(ms)"), column_meaning("P99 TTFT (s)"), column_meaning("输出吞吐(tok/s)")
    (('ttft', 'mean', 'ms'), ('ttft', 'p99', 's'), ('output_tokens_per_s', 'mean', ''))
    """
    plain = unicodedata.normalize("NFKC", header).strip().lower().replace("_", " ")
    name = next((name for name, pattern in _COMPILED if pattern.search(plain)), "")
    if not name:
        return "", "", ""
    stat = next((stat for stat, pattern in _STATS if re.search(pattern, plain)), "mean")
    unit = _UNIT.search(unicodedata.normalize("NFKC", header).strip())
    found = (unit[1] or unit[2]).lower() if unit else ""
    return name, stat, {"毫秒": "ms", "秒": "s"}.get(found, found) if name in (*_TIMES, "duration") else ""


def _run(cells: Mapping[str, str], meanings: Mapping[str, tuple[str, str, str]]) -> ServingRun | None:
    fields: dict[str, Any] = {}
    latency: dict[tuple[str, str], float] = {}
    for header, cell in cells.items():
        name, stat, unit = meanings[header]
        if name in _TIMES:
            seconds = quantity_s(cell, unit or "ms")
            if seconds is not None:
                latency[name, stat] = seconds
        elif name == "duration":
            fields["duration_s"] = quantity_s(cell, unit or "s")
        elif name and stat in ("mean", "p50"):
            fields[name] = number_in(cell)
    fields = {name: value for name, value in fields.items() if value is not None and 0 <= value < inf}
    if not latency and not fields.keys() & {"output_tokens_per_s", "requests_per_s"}:
        return None
    return _from_fields(fields, latency)


def _from_fields(fields: Mapping[str, float], latency: Mapping[tuple[str, str], float]) -> ServingRun:
    n_prompts, completed, success = fields.get("n_prompts"), fields.get("completed"), fields.get("success")
    return ServingRun(
        n_prompts=n_prompts,
        stated_success_frac=None if success is None else min(1.0, success / 100 if success > 1 else success),
        completed=completed if completed is not None else n_prompts,
        failed=fields.get("failed"),
        duration_s=fields.get("duration_s"),
        requested_input_tokens=fields.get("input_tokens"),
        requested_output_tokens=fields.get("output_tokens"),
        max_concurrency=fields.get("concurrency"),
        request_rate_per_s=fields.get("request_rate_per_s"),
        requests_per_s=fields.get("requests_per_s"),
        output_tokens_per_s=fields.get("output_tokens_per_s"),
        latency_s=latency,
    )


def parse(text: str, *, context: Context) -> Imported:
    """Return the rows of a pasted table as runs; a table of two columns is one run, name and value a line."""
    grid = csv_grid(text, context.name)
    if len(grid.header) == 2 and sum(1 for h in grid.header if column_meaning(h)[0]) < 2:
        pairs = [grid.header, *(row for _, row in grid.rows)]
        records: list[dict[str, str]] = [{name: value for name, value in pairs}]  # noqa: C416  (typed)
    else:
        records = [cells for _, cells in grid.records()]
    headers: Sequence[str] = tuple(records[0]) if records else grid.header
    meanings = {header: column_meaning(header) for header in headers}
    runs = [run for record in records if (run := _run(record, meanings)) is not None]
    if not runs:
        raise MeasurementError(
            f"{context.name} is no table of serving results",
            got=", ".join(headers)[:120],
            expected="columns such as concurrency, TTFT (ms), output throughput; or 并发, 首token时延(ms), 输出吞吐",
        )
    found = imported_serving(runs, context, "pasted-table")
    known = tuple(_column_name(*meanings[header]) for header in headers)
    empty = sum(1 for record in records for header, cell in record.items() if not cell and meanings[header][0])
    unknown = [header for header in headers if not meanings[header][0]]
    limit = slot_limit(runs, context.output_tokens)
    more: tuple[str, ...] = (limit.sentence,) if limit is not None else ()
    more += (f"columns that are not understood: {', '.join(unknown)}",) if unknown and len(records) > 1 else ()
    facts = {**found.facts, "columns": known, "n_missing": empty}
    if limit is not None:
        facts |= {"limit": "max_num_seqs", "n_slots": limit.n_slots, "service_s": limit.service_s}
    return Imported(
        format=found.format,
        rows=found.rows,
        facts=facts,
        warnings=(*found.warnings, *more),
        usable_for_fit=found.usable_for_fit,
    )


def _column_name(name: str, stat: str, unit: str) -> str:
    plain = f"{name}_{unit or 'ms'}" if name in _TIMES else name
    return plain if stat in ("", "mean") else f"{stat}_{plain}"
