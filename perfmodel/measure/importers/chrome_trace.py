"""Chrome traces of profilers (PyTorch, torch_npu, msprof): events with a start and a duration in microseconds."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Final

from perfmodel.errors import MeasurementError
from perfmodel.measure.importers.base import Context, Imported
from perfmodel.measure.importers.operators import operator_rows
from perfmodel.measure.importers.reading import json_documents, number_of
from perfmodel.measure.profile import OperatorTiming, dtype_name, nested_shapes
from perfmodel.measure.text import Faults

__all__ = ["parse"]

_DEVICE_CATEGORIES: Final = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_op")
_DEVICE_PROCESSES: Final = ("ascend hardware", "hccl", "communication", "npu", "gpu", "stream")
_HOST_CATEGORIES: Final = (
    "cpu_op",
    "user_annotation",
    "cuda_runtime",
    "cuda_driver",
    "python_function",
    "ac2g",
    "overhead",
)


def _events(text: str, name: str) -> Sequence[Any]:
    documents = json_documents(text, name)
    first = documents[0] if len(documents) == 1 else documents
    events = first.get("traceEvents") if isinstance(first, dict) else first
    if not isinstance(events, list):
        raise MeasurementError(
            f"{name} is no trace", got=f"a {type(first).__name__}", expected="a list under traceEvents"
        )
    return events


def _process_names(events: Sequence[Any]) -> dict[str, str]:
    names: dict[str, str] = {}
    for event in events:
        if (
            isinstance(event, dict)
            and event.get("ph") == "M"
            and event.get("name") in ("process_name", "process_labels")
        ):
            args = event.get("args")
            label = args.get("name") or args.get("labels") if isinstance(args, dict) else ""
            names[str(event.get("pid"))] = f"{names.get(str(event.get('pid')), '')} {label}".strip()
    return names


def _is_device(event: Mapping[str, Any], process: str) -> bool:
    category = str(event.get("cat", "")).lower()
    if category in _DEVICE_CATEGORIES:
        return True
    if category in _HOST_CATEGORIES:
        return False
    plain = process.lower()
    return any(word in plain for word in _DEVICE_PROCESSES) and "overlap" not in plain and "python" not in plain


def _launchers(events: Sequence[Any]) -> dict[str, Mapping[str, Any]]:
    """Return the host operators by the id that the kernels they launch carry."""
    found: dict[str, Mapping[str, Any]] = {}
    for event in events:
        if isinstance(event, dict) and str(event.get("cat", "")).lower() == "cpu_op":
            args = event.get("args")
            if isinstance(args, dict) and "External id" in args:
                found[str(args["External id"])] = {**args, "name": event.get("name", "")}
    return found


def _timing(
    event: Mapping[str, Any],
    number: int,
    process: str,
    start_us: float,
    launchers: Mapping[str, Mapping[str, Any]],
    bad: Faults,
) -> OperatorTiming | None:
    duration, start = number_of(event.get("dur")), number_of(event.get("ts"))
    if duration is None or start is None or not math.isfinite(start):
        return None
    if not 0 <= duration < math.inf:
        bad.add(f"event {number} ({event.get('name', '')})", f"dur {duration:g}", "microseconds")
        return None
    found = event.get("args")
    args = found if isinstance(found, dict) else {}
    launcher = launchers.get(str(args.get("External id")), {})
    dims, types = args.get("Input Dims", launcher.get("Input Dims")), args.get("Input type", launcher.get("Input type"))
    words = types if isinstance(types, list) else []
    return OperatorTiming(
        name=str(event.get("name", "")),
        type=str(args.get("Task Type") or args.get("OP Type") or launcher.get("name") or event.get("cat") or ""),
        start_s=(start - start_us) / 1e6,
        duration_s=duration / 1e6,
        device=str(args.get("device", process)),
        stream=str(args.get("stream") or args.get("Physic Stream Id") or event.get("tid", "")),
        core=str(args.get("Task Type") or event.get("cat") or ""),
        place=f"event {number}",
        input_shapes=nested_shapes(dims),
        input_dtypes=tuple(name for word in words if (name := dtype_name(str(word)))),
    )


def parse(text: str, *, context: Context) -> Imported:
    """Return the events that ran on a device; where a trace has none, its host operators, with a warning."""
    events = _events(text, context.name)
    names = _process_names(events)
    spans = [(i, e) for i, e in enumerate(events, start=1) if isinstance(e, dict) and e.get("ph") == "X"]
    device = [(i, e) for i, e in spans if _is_device(e, names.get(str(e.get("pid")), ""))]
    chosen = device or [(i, e) for i, e in spans if str(e.get("cat", "")).lower() in ("", "cpu_op", "operator")]
    starts = [start for _, e in chosen if (start := number_of(e.get("ts"))) is not None and math.isfinite(start)]
    first = min(starts, default=0.0)
    launchers, bad = _launchers(events), Faults()
    read = [(e, _timing(e, i, names.get(str(e.get("pid")), ""), first, launchers, bad)) for i, e in chosen]
    kept = [(e, timing) for e, timing in read if timing is not None]
    timings = [timing for _, timing in kept]
    if not timings and bad:
        raise bad.raised(f"{context.name} holds no usable event")
    if not timings:
        raise MeasurementError(
            f"{context.name} holds no timed event",
            expected="events with ph X, ts and dur",
            cure="Record a run on a device.",
        )
    warnings = [] if device else ["no event ran on a device: times are those of the host"]
    warnings += [str(fault) for fault in bad]
    span_s = max(t.end_s or 0.0 for t in timings)
    facts = {"span_s": span_s, "busy_s": _busy_s(timings), "n_operators": len(timings)}
    rows = operator_rows(timings, context, "trace", "pytorch") if device else ()
    return Imported(
        format="chrome-trace",
        rows=rows,
        operators=tuple(timings),
        facts=facts,
        warnings=tuple(warnings),
        bad_durations=tuple(bad),
        links=_links(events, [e for e, _ in kept]),
    )


def _links(events: Sequence[Any], chosen: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, int], ...]:
    """Return pairs of device events that a flow joins; a flow's ends lie within an event of the same row."""
    rows: dict[tuple[str, str], list[tuple[float, float, int]]] = {}
    for position, event in enumerate(chosen):
        start, duration = number_of(event.get("ts")) or 0.0, number_of(event.get("dur")) or 0.0
        rows.setdefault((str(event.get("pid")), str(event.get("tid"))), []).append((start, start + duration, position))
    for spans in rows.values():
        spans.sort()
    ends: dict[tuple[str, str], dict[str, int]] = {}
    for event in events:
        phase = event.get("ph") if isinstance(event, dict) else ""
        if phase not in ("s", "f"):
            continue
        row = rows.get((str(event.get("pid")), str(event.get("tid"))), ())
        found = _event_at(row, number_of(event.get("ts")), is_start=phase == "s")
        if found is not None:
            ends.setdefault((str(event.get("cat", "")), str(event.get("id"))), {})[str(phase)] = found
    return tuple((pair["s"], pair["f"]) for pair in ends.values() if len(pair) == 2 and pair["s"] != pair["f"])


def _event_at(spans: Sequence[tuple[float, float, int]], at: float | None, *, is_start: bool) -> int | None:
    """Return the event of a row during which a moment falls, None where there is none.

    Where one event ends as the next begins, a flow starts at the first and ends at the second.
    """
    if at is None:
        return None
    i = bisect_right(spans, (at, math.inf, 0)) - 1
    if is_start and i > 0 and spans[i][0] == at <= spans[i - 1][1]:
        i -= 1
    return spans[i][2] if i >= 0 and spans[i][0] <= at <= spans[i][1] else None


def _busy_s(timings: Sequence[OperatorTiming]) -> float:
    """Return the time during which at least one event ran."""
    busy, reached = 0.0, -math.inf
    for start, end in sorted((t.start_s or 0.0, t.end_s or 0.0) for t in timings):
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return busy
