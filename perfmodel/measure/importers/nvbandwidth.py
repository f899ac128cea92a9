"""Text output of nvbandwidth: matrices of copy bandwidth between host and devices."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from perfmodel.errors import MeasurementError
from perfmodel.measure.importers.base import Context, Imported, named_rows
from perfmodel.measure.importers.reading import number_of
from perfmodel.measure.row import Row
from perfmodel.units import GB

__all__ = ["parse"]

_TEST: Final = re.compile(r"^Running (?:benchmark )?(\w+)\.?\s*$")
_TITLE: Final = re.compile(r"^(.*?)\s*(bandwidth \(GB/s\)|latency \(ns\)|latency \(us\))?\s*$")
_ROW: Final = re.compile(r"^\s*(\d+)((?:\s+(?:N/A|\d+(?:\.\d+)?))+)\s*$")
_NAMED: Final = re.compile(r"^(?:memcpy|SM|.*\(row\)).*bandwidth \(GB/s\)", re.IGNORECASE)


def _op(test: str) -> str:
    """Return the table's word for a test: a copy from host to device, back, between devices, or within one."""
    if "local" in test:
        return "hbm_copy"
    for word in ("host_to_device", "device_to_host", "device_to_device"):
        if test.startswith(word):
            both = "_bidirectional" if "bidirectional" in test else ""
            return {"device_to_device": "p2p"}.get(word, word) + both
    return test


def parse(text: str, *, context: Context) -> Imported:
    """Return the mean of every test as a bandwidth row, and the whole matrices under `facts`."""
    matrices: dict[str, list[list[float]]] = {}
    test, is_bandwidth = "", False
    for line in text.splitlines():
        named = _TEST.match(line.strip())
        if named:
            test, is_bandwidth = named[1], False
        elif "bandwidth (GB/s)" in line or "latency (" in line:
            is_bandwidth = "bandwidth (GB/s)" in line
            test = test or re.sub(r"\W+", "_", line.split("bandwidth")[0]).strip("_").lower()
        elif is_bandwidth and (row := _ROW.match(line)) and "." in row[2]:
            values = [number_of(word) for word in row[2].split()]
            matrices.setdefault(test, []).append([math.nan if v is None else v * GB for v in values])
    if not matrices:
        raise MeasurementError(
            f"{context.name} is no nvbandwidth output",
            expected="a line 'memcpy ... bandwidth (GB/s)' with a matrix below",
        )
    base = Row(kind="bandwidth", metric="bytes_per_s", **context.filled(runtime="nvbandwidth").cells())
    rows = []
    for name, matrix in matrices.items():
        rates = [rate for line_rates in matrix for rate in line_rates if 0 < rate < math.inf]
        if rates:
            mean = sum(rates) / len(rates)
            spread = f"{min(rates) / GB:.2f} to {max(rates) / GB:.2f} GB/s over {len(rates)} pairs"
            rows.append(base.with_columns(op=_op(name), variant=name, value=mean, n_repeats=len(rates), note=spread))
    facts: dict[str, Any] = {"matrices_bytes_per_s": {name: tuple(map(tuple, m)) for name, m in matrices.items()}}
    return Imported(format="nvbandwidth", rows=named_rows(rows, context, "nvbandwidth"), facts=facts)
