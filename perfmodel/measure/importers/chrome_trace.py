"""Chrome traces of profilers (PyTorch, torch_npu, msprof): events with a start and a duration in microseconds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from perfmodel.errors import MeasurementError
from perfmodel.measure.importers.base import Context, Imported
from perfmodel.measure.importers.operators import operator_rows
from perfmodel.measure.importers.reading import json_documents, number_of
from perfmodel.measure.profile import OperatorTiming, dtype_name, nested_shapes

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
    event: Mapping[str, Any], process: str, start_us: float, launchers: Mapping[str, Mapping[str, Any]]
) -> OperatorTiming | None:
    duration, start = number_of(event.get("dur")), number_of(event.get("ts"))
    if duration is None or start is None or not 0 <= duration < math.inf or not math.isfinite(start):
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
        input_shapes=nested_shapes(dims),
        input_dtypes=tuple(name for word in words if (name := dtype_name(str(word)))),
    )


def parse(text: str, *, context: Context) -> Imported:
    """Return the events that ran on a device; where a trace has none, its host operators, with a warning."""
    events = _events(text, context.name)
    names = _process_names(events)
    spans = [e for e in events if isinstance(e, dict) and e.get("ph") == "X"]
    device = [e for e in spans if _is_device(e, names.get(str(e.get("pid")), ""))]
    chosen = device or [e for e in spans if str(e.get("cat", "")).lower() in ("", "cpu_op", "operator")]
    starts = [start for e in chosen if (start := number_of(e.get("ts"))) is not None and math.isfinite(start)]
    first = min(starts, default=0.0)
    launchers = _launchers(events)
    timings = [t for e in chosen if (t := _timing(e, names.get(str(e.get("pid")), ""), first, launchers)) is not None]
    if not timings:
        raise MeasurementError(
            f"{context.name} holds no timed event",
            expected="events with ph X, ts and dur",
            cure="Record a run on a device.",
        )
    warnings = [] if device else ["no event ran on a device: times are those of the host"]
    span_s = max(t.end_s or 0.0 for t in timings)
    facts = {"span_s": span_s, "busy_s": _busy_s(timings), "n_operators": len(timings)}
    rows = operator_rows(timings, context, "trace", "pytorch") if device else ()
    return Imported(format="chrome-trace", rows=rows, operators=tuple(timings), facts=facts, warnings=tuple(warnings))


def _busy_s(timings: Sequence[OperatorTiming]) -> float:
    """Return the time during which at least one event ran."""
    busy, reached = 0.0, -math.inf
    for start, end in sorted((t.start_s or 0.0, t.end_s or 0.0) for t in timings):
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return busy
