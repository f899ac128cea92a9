"""Which measurements would tighten a device's calibration most: a greedy choice of shapes by what they tell.

With the law linear in the logarithms of its parameters around the present coefficients, a measurement of scatter s with
sensitivities j multiplies the volume of the parameters' uncertainty C by (1 + j C j / s^2)^(-1/2). Each step takes the
shape with the largest gain over all kernel classes and updates that class (D-optimal design with a prior).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perfmodel.fit.calibrate import base_of
from perfmodel.fit.kernel_fit import predicted_times, prior_of, with_parameters
from perfmodel.measure.operator_work import OperatorRows, operator_rows
from perfmodel.measure.row import Row
from perfmodel.measure.table import table_from_rows
from perfmodel.specs.calibration import Calibration, FitRecord
from perfmodel.specs.device import Device
from perfmodel.specs.rules import FittingRules

__all__ = ["Suggestion", "suggestions"]

Floats = NDArray[np.float64]

N_SUGGESTED: Final = 8
_MATRICES: Final = ((4096, 4096), (28672, 4096), (4096, 14336), (1280, 8192), (8192, 8192))
_ROWS: Final = (1, 16, 64, 256, 1024, 4096, 8192)
_CONTEXTS: Final = (512, 2048, 8192, 32768)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A shape to measure: its row (without value), the time expected, and how much it tells."""

    row: Row
    kernel: str
    expected_s: float
    sd_before: float
    """Relative standard deviation of the predicted time before this measurement, without scatter."""
    sd_after: float


def _candidates(device: Device) -> Iterator[Row]:
    base = Row(device=device.name, runtime="kernel", metric="time_s", value=1.0, source="to be measured")
    dtype = "bf16" if device.has_rate("bf16") else "fp16"
    wide = base.with_columns(compute_dtype=dtype)
    for n, k in _MATRICES:
        for m in _ROWS:
            yield wide.with_columns(kind="gemm", m=m, n=n, k=k)
            low = next((t for t in ("fp8", "int8") if device.has_rate(t)), None)
            if low is not None:
                scheme = {"fp8": "fp8", "int8": "w8a8"}[low]
                yield base.with_columns(kind="gemm", m=m, n=n, k=k, compute_dtype=low, quantization=scheme)
    heads = wide.with_columns(kind="attention", n_heads=32, n_kv_heads=8, head_dim=128)
    for context in _CONTEXTS:
        for batch in (1, 16, 128):
            if batch * context <= 2**20:
                yield heads.with_columns(batch=batch, query_tokens=1, context_tokens=context, op="decode")
        for batch in (1, 8):
            if context < 32768:
                yield heads.with_columns(batch=batch, query_tokens=context, context_tokens=0, op="prefill")
    for hidden, width, n_experts, top_k in ((2048, 768, 128, 8), (4096, 14336, 8, 2)):
        for tokens in (1, 16, 128, 1024, 8192):
            yield wide.with_columns(
                kind="moe_ffn", query_tokens=tokens, hidden=hidden, intermediate=width, n_experts=n_experts, top_k=top_k
            )


@dataclass(slots=True)
class _Class:
    """One kernel class while shapes are chosen: candidates, sensitivities and the present covariance."""

    rows: OperatorRows
    times: Floats
    jacobian: Floats
    covariance: Floats
    noise: float

    def gains(self) -> Floats:
        variance = np.einsum("ij,jk,ik->i", self.jacobian, self.covariance, self.jacobian)
        return np.asarray(0.5 * np.log1p(variance / self.noise**2), dtype=np.float64)

    def sd(self, i: int) -> float:
        j = self.jacobian[i]
        return float(np.sqrt(max(j @ self.covariance @ j, 0.0)))

    def update(self, i: int) -> None:
        j = self.jacobian[i]
        seen = self.covariance @ j
        self.covariance = self.covariance - np.outer(seen, seen) / (self.noise**2 + float(j @ seen))


def _class(
    device: Device, rows: OperatorRows, calibration: Calibration, rules: FittingRules, record: FitRecord | None
) -> _Class:
    prior = prior_of(base_of(calibration, rows.kernel, device), rows, rules)
    kept = [i for i, name in enumerate(prior.names) if name != "replay"]
    covariance = np.diag(prior.widths**2)
    if record is not None and record.log_covariance:
        known = np.array(record.log_covariance)
        for a, first in enumerate(record.parameters):
            for b, second in enumerate(record.parameters):
                if first in prior.names and second in prior.names:
                    covariance[prior.names.index(first), prior.names.index(second)] = known[a, b]

    def logs_of(shift: int = -1, by: float = 0.0) -> Floats:
        moved = prior.centres.copy()
        if shift >= 0:
            moved[shift] += by
        return np.log(predicted_times(device, rows.kernel, with_parameters(prior, moved), rows.work))

    slopes = [(logs_of(i, 1e-4) - logs_of(i, -1e-4)) / 2e-4 for i in kept]
    scatter = prior.base.scatter.value if prior.base.scatter else 0.1
    return _Class(rows, np.exp(logs_of()), np.stack(slopes, axis=1), covariance[np.ix_(kept, kept)], max(scatter, 0.03))


def suggestions(
    device: Device,
    calibration: Calibration,
    rules: FittingRules,
    *,
    records: Mapping[str, FitRecord] | None = None,
    n: int = N_SUGGESTED,
) -> list[Suggestion]:
    """Return the shapes that would tell most about a device, most telling first.

    `calibration` holds the present coefficients (a prior, or one with fits laid over it), `records` the covariance of
    the fits.
    """
    listed = [row.with_columns(id=f"suggest-{i}") for i, row in enumerate(_candidates(device), 1)]
    by_id = {row.id: row for row in listed}
    known = records or {}
    classes = [
        _class(device, rows, calibration, rules, known.get(rows.kernel))
        for rows in operator_rows(table_from_rows(listed))
    ]
    found: list[Suggestion] = []
    for _ in range(n):
        gains = [c.gains() for c in classes]
        best = int(np.argmax([g.max() for g in gains]))
        chosen, i = classes[best], int(np.argmax(gains[best]))
        before = chosen.sd(i)
        chosen.update(i)
        row = by_id[str(chosen.rows.ids[i])].with_columns(value=None)
        found.append(Suggestion(row, chosen.rows.kernel, float(chosen.times[i]), before, chosen.sd(i)))
    return found
