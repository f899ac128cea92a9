"""The block that vLLM's and SGLang's serving benchmarks print, as people paste it."""

from __future__ import annotations

import re
from typing import Any, Final

from perfmodel.errors import MeasurementError
from perfmodel.measure.importers.base import Context, Imported
from perfmodel.measure.importers.reading import number_in
from perfmodel.measure.importers.serving import imported_serving
from perfmodel.measure.serving_run import ServingRun

__all__ = ["block_values", "parse"]

_LINE: Final = re.compile(r"^[\s>|`*#│·]*([A-Za-z][A-Za-z0-9 _./%()&-]*?)\s*[:：]\s*(.+?)\s*$")
_LATENCY: Final = re.compile(r"^(mean|median|std|p\d+(?:\.\d+)?) (ttft|tpot|itl|e2el|e2e latency)$")
_TITLE: Final = re.compile(r"serving benchmark result", re.IGNORECASE)
_FIELDS: Final = {
    "successful requests": "completed",
    "failed requests": "failed",
    "maximum request concurrency": "max_concurrency",
    "max request concurrency": "max_concurrency",
    "request rate configured": "request_rate_per_s",
    "traffic request rate": "request_rate_per_s",
    "benchmark duration": "duration_s",
    "total input tokens": "total_input_tokens",
    "total input text tokens": "",
    "total generated tokens": "total_output_tokens",
    "total generated tokens retokenized": "retokenized_output_tokens",
    "request throughput": "requests_per_s",
    "output token throughput": "output_tokens_per_s",
    "peak concurrent requests": "peak_concurrency",
    "concurrency": "",
    "accept length": "acceptance_length",
    "acceptance length": "acceptance_length",
    "acceptance rate": "acceptance_frac",
    "drafts": "n_drafts",
    "draft tokens": "n_draft_tokens",
    "accepted tokens": "n_accepted_tokens",
    "total token throughput": "",
    "total throughput": "",
    "input token throughput": "",
    "peak output token throughput": "",
}


def _label(words: str) -> tuple[str, str]:
    """Return (label in lower case without its unit, unit)."""
    retokenized = " retokenized" if "(retokenized)" in words.lower() else ""
    unit = re.search(r"\(([^)]*)\)\s*$", words)
    plain = re.sub(r"\([^)]*\)", " ", words).lower() + retokenized
    return re.sub(r"\s+", " ", plain).strip(), (unit[1].strip().lower() if unit else "")


def block_values(text: str) -> list[tuple[str, str, float]]:
    """Return (label, unit, number) of every line of a block that this importer knows.

    >>> block_values("Total Token throughput (tok/s):         5864.22\\nMean TTFT (ms):   13395.44  ·")
    [('total token throughput', 'tok/s', 5864.22), ('mean ttft', 'ms', 13395.44)]
    """
    found = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        label, unit = _label(match[1])
        value = number_in(match[2])
        if value is not None and (label in _FIELDS or _LATENCY.match(label)):
            found.append((label, unit, value))
    return found


def _run(block: str) -> ServingRun | None:
    fields: dict[str, Any] = {}
    latency: dict[tuple[str, str], float] = {}
    for label, unit, value in block_values(block):
        match = _LATENCY.match(label)
        if match:
            metric = "e2e" if match[2].startswith("e2e") else match[2]
            per_s = {"s": 1.0, "us": 1e6}.get(unit, 1e3)
            latency.setdefault((metric, {"median": "p50"}.get(match[1], match[1])), value / per_s)
        elif _FIELDS[label]:
            fields.setdefault(_FIELDS[label], value / 100 if label == "acceptance rate" and unit == "%" else value)
    if not fields and not latency:
        return None
    return ServingRun(latency_s=latency, runtime=_engine(block), **fields)


def _engine(block: str) -> str:
    match = re.search(r"^[\s>|]*Backend:\s*(\S+)", block, re.MULTILINE)
    return match[1].lower() if match else ""


def parse(text: str, *, context: Context) -> Imported:
    """Return the runs of one or more printed blocks; labels may be spelled and spaced in several ways."""
    starts = [match.start() for match in _TITLE.finditer(text)]
    heads = [0, *starts[1:]] if starts else [0]
    blocks = [text[a:b] for a, b in zip(heads, [*heads[1:], len(text)], strict=True)]
    runs = [run for block in blocks if (run := _run(block)) is not None]
    if not runs:
        raise MeasurementError(
            f"{context.name} holds no benchmark block",
            expected="lines such as 'Mean TTFT (ms): 41.0'",
            cure="Paste the whole block, from 'Serving Benchmark Result' to the last line of '='.",
        )
    return imported_serving(runs, context, "serving-benchmark-block")
