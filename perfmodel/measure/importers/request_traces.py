"""Request traces: Azure, BurstGPT, Mooncake, Qwen-Bailian, Vidur, splitwise, LLMServingSim, APEX, and our own runs.

They differ in column names and in the unit of the clock, which the column's name decides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

import numpy as np

from perfmodel.errors import MeasurementError
from perfmodel.measure.importers.base import Context, Imported
from perfmodel.measure.importers.reading import csv_grid, json_objects, number_of
from perfmodel.measure.request_trace import RequestTrace
from perfmodel.measure.text import Faults

__all__ = ["is_trace", "parse", "parse_with_faults"]

_ARRIVALS: Final[Mapping[str, float]] = {
    "arrival_s": 1.0, "arrived_at": 1.0, "arrival_timestamp": 1.0, "timestamp(s)": 1.0, "arrival_time_s": 1.0,
    "arrival_time_us": 1e6, "arrival_time_ns": 1e9, "starttimeoffset(ns)": 1e9, "timestamp": 1.0,
}  # fmt: skip
_INPUTS: Final = (
    "input_tokens",
    "contexttokens",
    "request tokens",
    "num_prefill_tokens",
    "prompt_size",
    "input_toks",
    "input_length",
)
_OUTPUTS: Final = (
    "output_tokens",
    "generatedtokens",
    "response tokens",
    "num_decode_tokens",
    "token_size",
    "output_toks",
    "output_length",
)
_SESSIONS: Final = ("session_id", "session id", "chat_id")
_BAILIAN_BLOCK_TOKENS: Final = 16
_MOONCAKE_BLOCK_TOKENS: Final = 512


@dataclass(frozen=True, slots=True)
class _Request:
    arrival_s: float
    input_tokens: float
    output_tokens: float
    session: str
    hashes: tuple[int, ...]


def is_trace(text: str) -> bool:
    """Return whether the beginning of text names an arrival, prompt tokens and generated tokens."""
    line = text.lstrip().split("\n", 1)[0].lower()
    is_json = line.startswith("{")
    words = set(re.findall(r'"([a-z_]+(?:\(s\))?)"', line)) if is_json else {w.strip() for w in line.split(",")}
    return bool(words & set(_ARRIVALS)) and bool(words & set(_INPUTS)) and bool(words & set(_OUTPUTS))


def _clock_s(word: object, unit_per_s: float) -> float | None:
    """Return a time in seconds from a number or a date with any number of decimals.

    >>> _clock_s("2023-11-16 18:17:04.5000000", 1.0) - _clock_s("2023-11-16 18:17:03.2500000", 1.0)
    1.25
    """
    number = number_of(word)
    if number is not None:
        return number / unit_per_s if math.isfinite(number) else None
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:?\d\d)?", str(word).strip())
    if match is None:
        return None
    try:
        whole = datetime.fromisoformat(match[1] + (match[3] or "Z"))
    except ValueError:
        return None
    return whole.timestamp() + float(match[2] or 0.0)


def _request(record: Mapping[str, Any], names: Mapping[str, str], per_s: float) -> _Request | None:
    arrival = _clock_s(record.get(names["arrival"]), per_s)
    sizes = [number_of(record.get(names[side])) for side in ("input", "output")]
    if arrival is None or any(size is None or not 0 <= size < 1e12 for size in sizes):
        return None
    hashes = record.get("hash_ids")
    ids = tuple(h for h in hashes if isinstance(h, int)) if isinstance(hashes, list) else ()
    session = str(record.get(names.get("session", ""), "") or "")
    return _Request(arrival, sizes[0] or 0.0, sizes[1] or 0.0, session, ids)


def _records(text: str, name: str) -> tuple[list[tuple[int, dict[str, Any]]], bool]:
    """Return (records with names in lower case, each with its line or number, whether they were JSON)."""
    if text.lstrip().startswith(("{", "[")):
        found = json_objects(text, name)
        flat = [{**r, **sub} for r in found for sub in _parts(r)]
        return [(i, {key.lower(): value for key, value in r.items()}) for i, r in enumerate(flat, start=1)], True
    grid = csv_grid(text, name)
    return [(line, {header.lower(): cell for header, cell in cells.items()}) for line, cells in grid.records()], False


def _parts(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    parts = record.get("sub_requests")
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else [{}]


def _names(records: Sequence[Mapping[str, Any]], name: str) -> dict[str, str]:
    """Return which column holds what; raises MeasurementError for a side that no column holds."""
    keys = {key for record in records[:50] for key in record}
    choices = {"arrival": tuple(_ARRIVALS), "input": _INPUTS, "output": _OUTPUTS, "session": _SESSIONS}
    found = {side: next((word for word in words if word in keys), "") for side, words in choices.items()}
    missing = [side for side in ("arrival", "input", "output") if not found[side]]
    if missing:
        raise MeasurementError(
            f"{name} is no request trace",
            got=f"no column of {' and '.join(missing)} in {', '.join(sorted(keys))[:90]}",
            expected="an arrival, prompt tokens and generated tokens for each request",
        )
    return {side: word for side, word in found.items() if word}


def parse(text: str, *, context: Context) -> Imported:
    """Return the requests of a trace; those without an answer are dropped and counted in a warning."""
    return parse_with_faults(text, context=context)[0]


def parse_with_faults(text: str, *, context: Context) -> tuple[Imported, Faults]:
    """Return the requests of a trace, and the lines that cannot be read, which its warnings name as well."""
    records, is_json = _records(text, context.name)
    if not records:
        raise MeasurementError(f"{context.name} holds no request", got="a header alone", expected="a line for each")
    names = _names([record for _, record in records], context.name)
    per_s = 1e3 if is_json and names["arrival"] == "timestamp" else _ARRIVALS[names["arrival"]]
    faults = Faults()
    requests = []
    for line, record in records:
        request = _request(record, names, per_s)
        if request is None:
            shown = ", ".join(str(record.get(word)) for word in names.values())
            faults.add(f"{'request' if is_json else 'line'} {line}", shown, "a time and two token counts")
        else:
            requests.append(request)
    answered = sorted((r for r in requests if r.output_tokens > 0), key=lambda r: r.arrival_s)
    if not answered:
        if faults:
            raise faults.raised(f"{context.name} holds no usable request")
        raise MeasurementError(f"{context.name} holds no answered request", expected="generated tokens above 0")
    dropped = len(requests) - len(answered)
    n_early = sum(later.arrival_s < earlier.arrival_s for earlier, later in pairwise(requests))
    warnings = [str(fault) for fault in faults]
    warnings += [f"{dropped} requests without an answer are left out"] if dropped else []
    warnings += [f"{n_early} requests come before the one above them: sorted by time"] if n_early else []
    warnings += ["sub-requests of a session start together"] if any("sub_requests" in r for _, r in records) else []
    trace = _trace(answered, _BAILIAN_BLOCK_TOKENS if "chat_id" in records[0][1] else _MOONCAKE_BLOCK_TOKENS)
    facts = {"trace": trace, "n_requests": len(trace), "requests_per_s": trace.requests_per_s}
    return Imported(format="request-trace", facts=facts, warnings=tuple(warnings)), faults


def _trace(requests: Sequence[_Request], block_tokens: int) -> RequestTrace:
    first = requests[0].arrival_s
    hashed = any(request.hashes for request in requests)
    return RequestTrace(
        arrival_s=np.array([request.arrival_s - first for request in requests]),
        input_tokens=np.array([request.input_tokens for request in requests]),
        output_tokens=np.array([request.output_tokens for request in requests]),
        sessions=tuple(r.session for r in requests) if any(r.session for r in requests) else (),
        block_hashes=tuple(request.hashes for request in requests) if hashed else (),
        block_tokens=block_tokens if hashed else None,
    )
