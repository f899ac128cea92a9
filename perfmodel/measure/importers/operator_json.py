"""Operator lists in JSON as MindStudio and scripts around it export them: objects with a name and a duration.

There is no one layout. Keys are matched without case, blanks and underlines; a duration without a unit in its key is
taken to be microseconds, as everywhere in the tool chain, and the import says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from perfmodel.errors import MeasurementError
from perfmodel.measure.importers.base import Context, Imported
from perfmodel.measure.importers.operators import operator_rows
from perfmodel.measure.importers.reading import json_documents, number_of
from perfmodel.measure.profile import OperatorTiming, Shape, dtype_name, nested_shapes, shapes_from_text
from perfmodel.measure.text import Faults

__all__ = ["parse"]

_NAMES: Final = ("opname", "name", "operatorname", "kernelname")
_TYPES: Final = ("optype", "type", "operatortype", "kerneltype")
_DURATIONS: Final = (
    "taskduration",
    "duration",
    "avgtime",
    "averageduration",
    "avgduration",
    "time",
    "totaltime",
    "elapsedtime",
    "dur",
)
_STARTS: Final = ("taskstarttime", "starttime", "start", "timestamp", "ts")
_CORES: Final = ("tasktype", "acceleratorcore", "coretype")
_UNITS: Final = {"us": 1e6, "ms": 1e3, "ns": 1e9, "s": 1.0}
_DEPTH: Final = 6


def _plain(key: str) -> tuple[str, str]:
    """Return (key without case and marks, unit of time in it).

    >>> _plain("Task Duration(us)"), _plain("duration_ms")
    (('taskduration', 'us'), ('duration', 'ms'))
    """
    unit = re.search(r"(?:\(|_|\[)\s*(us|ms|ns|s)\s*[\])]?$", key.strip(), re.IGNORECASE)
    stem = key.strip()[: unit.start()] if unit else key
    return re.sub(r"[^a-z0-9]", "", stem.lower()), unit[1].lower() if unit else ""


def _objects(node: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Yield every object in a document that names an operator and a duration."""
    if depth > _DEPTH:
        return
    if isinstance(node, list):
        for item in node:
            yield from _objects(item, depth + 1)
    elif isinstance(node, dict):
        keys = {_plain(str(key))[0] for key in node}
        if keys & set(_NAMES + _TYPES) and keys & set(_DURATIONS):
            yield node
            return
        for item in node.values():
            if isinstance(item, (list, dict)):
                yield from _objects(item, depth + 1)


def _found(cells: Mapping[str, tuple[Any, str]], names: tuple[str, ...]) -> tuple[Any, str]:
    return next((cells[name] for name in names if name in cells), (None, ""))


def _seconds(cells: Mapping[str, tuple[Any, str]], names: tuple[str, ...]) -> float | None:
    value, unit = _found(cells, names)
    number = number_of(value)
    return None if number is None else number / _UNITS[unit or "us"]


def _shapes(value: Any) -> tuple[Shape, ...]:
    if isinstance(value, str):
        try:
            return shapes_from_text(value)
        except ValueError:
            return ()
    return nested_shapes(value)


def _timing(node: Mapping[str, Any], number: int, faults: Faults, bad: Faults) -> OperatorTiming | None:
    cells = {plain: (value, unit) for key, value in node.items() for plain, unit in (_plain(str(key)),)}
    duration = _seconds(cells, _DURATIONS)
    if duration is None or not 0 <= duration < math.inf:
        (faults if duration is None else bad).add(
            f"operator {number}", repr(_found(cells, _DURATIONS)[0]), "a duration"
        )
        return None
    dtypes = _found(cells, ("inputdatatypes", "inputdtypes", "dtype", "inputtypes"))[0]
    words = dtypes if isinstance(dtypes, list) else str(dtypes or "").split(";")
    blocks = number_of(_found(cells, ("blocknum", "blockdim"))[0])
    calls = number_of(_found(cells, ("count", "calls", "callcount"))[0])
    return OperatorTiming(
        name=str(_found(cells, _NAMES)[0] or ""),
        type=str(_found(cells, _TYPES)[0] or ""),
        duration_s=duration,
        start_s=_seconds(cells, _STARTS),
        n_calls=int(calls) if calls and 1 <= calls < 1e12 else 1,
        core=str(_found(cells, _CORES)[0] or ""),
        stream=str(_found(cells, ("streamid", "stream"))[0] or ""),
        device=str(_found(cells, ("deviceid", "device"))[0] or ""),
        n_blocks=blocks,
        place=f"operator {number}",
        input_shapes=_shapes(_found(cells, ("inputshapes", "inputshape", "shapes"))[0]),
        output_shapes=_shapes(_found(cells, ("outputshapes", "outputshape"))[0]),
        input_dtypes=tuple(dtype_name(str(word)) or str(word) for word in words if str(word)),
    )


def parse(text: str, *, context: Context) -> Imported:
    """Return the operators that a JSON document lists, at whatever depth."""
    nodes = [node for document in json_documents(text, context.name) for node in _objects(document)]
    faults, bad = Faults(), Faults()
    timings = [t for i, node in enumerate(nodes, start=1) if (t := _timing(node, i, faults, bad)) is not None]
    if not timings:
        if faults or bad:
            raise (faults or bad).raised(f"{context.name} holds no usable operator")
        raise MeasurementError(
            f"{context.name} lists no operators",
            expected="objects with a name and a duration, such as op_name and duration_us",
        )
    warnings = [str(fault) for fault in (*faults, *bad)]
    if not any(_plain(str(key))[1] for key in nodes[0]):
        warnings.append("durations carry no unit: they are read as microseconds")
    rows = operator_rows(timings, context, "operators", "cann")
    return Imported(
        format="operator-json",
        rows=rows,
        operators=tuple(timings),
        warnings=tuple(warnings),
        bad_durations=tuple(bad),
    )
