"""A file of requests to replay: a recorded trace with its broken lines told apart, or the result of a bench run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from perfmodel.errors import Fault, MeasurementError
from perfmodel.measure.importers.base import context_from
from perfmodel.measure.importers.request_traces import parse_with_faults
from perfmodel.measure.request_trace import RequestTrace
from perfmodel.measure.text import Faults, file_text

__all__ = ["TraceFile", "read_trace"]

_LENGTHS: Final = ("input_lens", "output_lens")


@dataclass(frozen=True, eq=False, slots=True)
class TraceFile:
    """The requests of a file, what must be said of them, and the lines that cannot be read (the first twenty)."""

    trace: RequestTrace
    warnings: tuple[str, ...]
    faults: tuple[Fault, ...]
    n_bad: int


def read_trace(path: Path, *, rng: Generator) -> TraceFile:
    """Return the requests of a trace, or of a bench result of vLLM or SGLang (--save-result, --save-detailed).

    A bench result without start times is sent again as the run was: all at once, or drawn at its rate.
    """
    text = file_text(path)
    result = _bench_result(text)
    if result is not None:
        return _bench_requests(result, path.name, rng)
    broken = Faults()
    text = _whole_lines(text, broken) if text.lstrip().startswith(("{", "[")) else _whole_rows(text, broken)
    found, faults = parse_with_faults(text, context=context_from(file=path.name))
    listed = (*broken, *faults)
    n_bad = broken.count + faults.count
    said = {str(fault) for fault in faults}
    warnings = [w for w in found.warnings if w not in said]
    if n_bad:
        warnings.append(f"{n_bad} lines that cannot be read are left out, the first at {listed[0].where}")
    return TraceFile(found.facts["trace"], tuple(warnings), listed, n_bad)


def _whole_lines(text: str, broken: Faults) -> str:
    """Return the lines that are JSON, or the whole text where it is one document over many lines."""
    try:
        json.loads(text)
    except json.JSONDecodeError:
        kept = []
        for i, line in enumerate(text.splitlines(), start=1):
            try:
                json.loads(line or "{}")
            except json.JSONDecodeError as error:
                broken.add(f"line {i}", line, f"JSON ({error.msg})")
                kept.append("")
            else:
                kept.append(line)
        return "\n".join(kept)
    return text


def _whole_rows(text: str, broken: Faults) -> str:
    """Return CSV without the lines that have another number of cells than the header; lines keep their numbers."""
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.strip()), 0)
    n_commas = lines[first].count(",") if lines else 0
    for i, line in enumerate(lines[first + 1 :], start=first + 1):
        if line.strip() and '"' not in line and line.count(",") != n_commas:
            broken.add(f"line {i + 1}", line, f"{n_commas + 1} cells, as in the header")
            lines[i] = ""
    return "\n".join(lines)


def _bench_result(text: str) -> Mapping[str, Any] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) and all(isinstance(found.get(name), list) for name in _LENGTHS) else None


def _bench_requests(result: Mapping[str, Any], name: str, rng: Generator) -> TraceFile:
    faults, columns = Faults(), [result[key] for key in _LENGTHS]
    starts = result.get("start_times")
    if not columns[0] or len(columns[0]) != len(columns[1]):
        got = f"{len(columns[0])} inputs, {len(columns[1])} outputs"
        raise MeasurementError(f"{name} cannot be replayed", got=got, expected="as many of both, at least 1")
    has_starts = isinstance(starts, list) and len(starts) == len(columns[0])
    rows = []
    for i, pair in enumerate(zip(*columns, strict=True)):
        at = starts[i] if has_starts and starts is not None else 0.0
        if not all(isinstance(value, int | float) and np.isfinite(value) for value in (*pair, at)) or pair[0] < 1:
            faults.add(f"request {i}", f"{pair[0]}, {pair[1]}", "two token counts")
        elif pair[1] >= 1:
            rows.append((float(at), float(pair[0]), float(pair[1])))
    if not rows:
        raise MeasurementError(f"{name} holds no answered request", expected="generated tokens above 0")
    n_failed = len(columns[0]) - len(rows) - faults.count
    warnings = [f"{n_failed} requests without an answer are left out"] if n_failed else []
    table = np.array(sorted(rows) if has_starts else rows)
    arrival_s = table[:, 0] - table[0, 0]
    if not has_starts:
        arrival_s, text = _resent(result, len(rows), rng)
        warnings.append(text)
    trace = RequestTrace(arrival_s=arrival_s, input_tokens=table[:, 1], output_tokens=table[:, 2])
    return TraceFile(trace, tuple(warnings), tuple(faults), faults.count)


def _resent(result: Mapping[str, Any], n: int, rng: Generator) -> tuple[NDArray[np.float64], str]:
    rate, shape = result.get("request_rate"), result.get("burstiness", 1.0)
    if not isinstance(rate, int | float) or not np.isfinite(rate) or rate <= 0:
        return np.zeros(n), "no start times in the bench result: all requests at once, as it states no rate"
    shape = float(shape) if isinstance(shape, int | float) and np.isfinite(shape) and shape > 0 else 1.0
    gaps = rng.gamma(shape, 1.0 / (rate * shape), n)
    return np.cumsum(gaps) - gaps[0], f"no start times in the bench result: arrivals drawn at its {rate:g} requests/s"
