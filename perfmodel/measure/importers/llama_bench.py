"""Tables of llama-bench: markdown, CSV, JSON or JSON lines.

pp512 reads a prompt of 512 tokens, tg128 generates 128 tokens one by one from an empty cache, pp512+tg128 does both,
and "@ d4096" says how many tokens were in the cache before.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

from perfmodel.errors import MeasurementError
from perfmodel.measure.importers.base import Context, Imported, named_rows
from perfmodel.measure.importers.reading import csv_grid, first_of, json_objects, number_in, number_of
from perfmodel.measure.importers.serving import model_and_scheme
from perfmodel.measure.row import Row
from perfmodel.measure.text import Faults

__all__ = ["parse"]

_TEST: Final = re.compile(r"(?:pp(\d+))?\+?(?:tg(\d+))?(?:\s*@\s*d(\d+))?")
_QUANT: Final = re.compile(r"\b(I?Q\d+_(?:[0KS01](?:_[SMLX]+)?)|F16|BF16|F32|MXFP4)\b", re.IGNORECASE)
_NAME: Final = re.compile(r"^([a-z0-9.]+)\s+([\d.]+x)?([\d.]+)B\b", re.IGNORECASE)


def _test(record: Mapping[str, Any]) -> tuple[float, float, float] | None:
    """Return (prompt, generated, cached) tokens of a test."""
    if "n_prompt" in record or "n_gen" in record:
        values = [number_of(record.get(name)) or 0.0 for name in ("n_prompt", "n_gen", "n_depth")]
        return values[0], values[1], values[2]
    match = _TEST.fullmatch(str(record.get("test", "")).strip())
    if match is None or not (match[1] or match[2]):
        return None
    return float(match[1] or 0), float(match[2] or 0), float(match[3] or 0)


def _rate(record: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return (tokens per second, its spread)."""
    if "avg_ts" in record:
        return number_of(record["avg_ts"]), number_of(record.get("stddev_ts"))
    cell = str(first_of(record, "t/s", "tokens/s") or "")
    mean, _, spread = cell.partition("±")
    return number_in(mean), number_in(spread) if spread else None


def _model(record: Mapping[str, Any]) -> tuple[str, str]:
    """Return (model, scheme) from the file's name or from a type such as "llama 8B Q4_K - Medium"."""
    words = str(first_of(record, "model_type", "model") or "")
    file = PurePath(str(record.get("model_filename") or "")).stem
    named = re.sub(r"[-_.]?(I?Q\d\w*|F16|BF16|F32)$", "", file, flags=re.IGNORECASE)
    found = _QUANT.search(file) or _QUANT.search(words.replace(" - Medium", "_M").replace(" - Small", "_S"))
    scheme = found[1].lower() if found else ""
    scheme = {"f16": "none", "bf16": "none", "f32": "fp32"}.get(scheme, scheme)
    if named:
        return model_and_scheme(named)[0], scheme
    match = _NAME.match(words)
    return (f"{match[1]}-{match[2] or ''}{match[3]}b".lower() if match else words.lower()), scheme


def _records(text: str, context: Context) -> list[Mapping[str, Any]]:
    if text.lstrip().startswith(("[", "{")):
        return list(json_objects(text, context.name))
    return [
        {header.lower(): cell for header, cell in cells.items()} for _, cells in csv_grid(text, context.name).records()
    ]


def _row(record: Mapping[str, Any], context: Context) -> Row | None:
    test = _test(record)
    rate, spread = _rate(record)
    if test is None or rate is None or not 0 < rate < math.inf:
        return None
    prompt, generated, cached = test
    name, scheme = _model(record)
    commit = record.get("build_commit")
    named = context.filled(model=name, quantization=scheme, runtime=f"llama.cpp-{commit}" if commit else "llama.cpp")
    skip = ("batch", "input_tokens", "output_tokens", "context_tokens")
    base = Row(batch=1, **{k: v for k, v in named.cells().items() if k not in skip})
    n = number_of(record.get("repetitions")) or len(record.get("samples_ns") or ()) or None
    error = spread / rate / math.sqrt(n) if spread and n else None
    if prompt and generated:
        return base.with_columns(
            kind="generate",
            metric="time_s",
            input_tokens=prompt,
            output_tokens=generated,
            value=(prompt + generated) / rate,
        )
    if prompt:
        time_s = prompt / rate
        return base.with_columns(
            kind="prefill_step", metric="time_s", input_tokens=prompt, context_tokens=cached or None, value=time_s,
            stderr=error * time_s if error else None,
        )  # fmt: skip
    time_s = 1.0 / rate
    return base.with_columns(
        kind="decode_step",
        metric="time_s",
        context_tokens=cached + generated / 2,
        output_tokens=generated,
        value=time_s,
        stderr=error * time_s if error else None,
        note="mean over the generated tokens",
    )


def parse(text: str, *, context: Context) -> Imported:
    """Return prefill and decode times: a rate is turned into the time of a step."""
    faults = Faults()
    rows = []
    for i, record in enumerate(_records(text, context), start=1):
        row = _row(record, context)
        if row is None:
            faults.add(
                f"result {i}", str(record.get("test", ""))[:40], "a test such as pp512 or tg128, and tokens per second"
            )
        else:
            rows.append(row)
    if not rows:
        if faults:
            raise faults.raised(f"{context.name} is no llama-bench result")
        raise MeasurementError(f"{context.name} is empty", expected="results of llama-bench")
    return Imported(
        format="llama-bench",
        rows=named_rows(rows, context, "llama-bench"),
        warnings=tuple(str(fault) for fault in faults),
    )
