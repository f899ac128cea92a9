"""Coefficients of one kernel class, fitted to operator measurements with the law that the simulator uses.

Parameters are fitted as logarithms, residuals are log(predicted / measured) with a robust loss, so that a row counts by
its relative error. Errors are stated for shapes that the fit has not seen: whole groups are left out in turn. The
scatter is chosen so that an 80 % band covers 80 % of those left-out rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares  # type: ignore[import-untyped]

from perfmodel.cost.kernel import KernelPrices
from perfmodel.errors import FitError
from perfmodel.estimate import Z80
from perfmodel.measure.operator_work import OperatorRows
from perfmodel.specs.calibration import CalibratedDevice, Calibration, Coef, FitRecord, KernelFit
from perfmodel.specs.device import Device

__all__ = ["FittedKernel", "fitted_kernel", "predicted_times", "rows_sha256"]

Floats = NDArray[np.float64]

N_FOLDS: Final = 8
LEAST_ROWS: Final = 12
_START: Final[Mapping[str, float]] = {
    "launch_s": 5e-6, "chain_s": 1e-9, "compute_frac": 0.6, "memory_frac": 0.8, "knee": 1.0, "pad_tokens": 100.0,
}  # fmt: skip
"""Where the search begins: class-typical sizes. knee is fitted as q - 1, so that q stays above 1."""
_BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "launch_s": (1e-8, 1e-2), "chain_s": (1e-13, 1e-3), "compute_frac": (1e-3, 1.5), "memory_frac": (1e-3, 1.5),
    "knee": (1e-2, 8.0), "pad_tokens": (1e-2, 4096.0),
}  # fmt: skip
"""Fractions may exceed 1: clocks above the listed one, and caches that hold part of the traffic."""


@dataclass(frozen=True, slots=True)
class FittedKernel:
    """A fit, how it was made, and its errors on shapes left out."""

    kernel: str
    fit: KernelFit
    record: FitRecord
    left_out_errors: Floats
    """predicted / measured - 1 for each row, predicted without its shape."""


def rows_sha256(rows: OperatorRows) -> str:
    """Return the hash of the ids and times that a fit was made from, whatever their order."""
    lines = sorted(f"{row_id},{time:.9g}" for row_id, time in zip(rows.ids, rows.time_s, strict=True))
    return sha256("\n".join(lines).encode()).hexdigest()


def predicted_times(device: Device, kernel: str, fit: KernelFit, rows: OperatorRows) -> Floats:
    """Return the times that the cost law gives for all rows."""
    bare = Calibration(name="fit", status="fit")
    prices = KernelPrices(CalibratedDevice(device, bare, "fit", {kernel: fit}, {}))
    return np.asarray(prices.time(rows.work).value, dtype=np.float64)


def _parameters(rows: OperatorRows) -> tuple[str, ...]:
    """Return the coefficients that rows of this class can tell apart."""
    work = rows.work
    if rows.kernel == "elementwise":
        return ("launch_s", "memory_frac")
    names = ["launch_s", "compute_frac", "memory_frac"]
    if work.depth is not None:
        names.append("chain_s")
    if work.flop_per_pad is not None or work.bytes_per_pad is not None:
        names.append("pad_tokens")
    if work.bytes_per_pad is None:
        names.append("knee")
    return tuple(names)


def _with(
    base: KernelFit, names: Sequence[str], logs: Floats, rel_sds: Floats | None = None, source: str = ""
) -> KernelFit:
    values = np.exp(logs)
    coefs = {}
    for i, name in enumerate(names):
        value = float(values[i]) + (1.0 if name == "knee" else 0.0)
        rel_sd = 0.0 if rel_sds is None else float(min(rel_sds[i], 3.0))
        coefs[name] = Coef(value=value, rel_sd=rel_sd, source=source)
    return base.model_copy(update=coefs)


def _solved(
    device: Device, base: KernelFit, names: Sequence[str], rows: OperatorRows, start: Floats
) -> tuple[Floats, Floats]:
    """Return (log parameters, Jacobian of the log residuals there)."""
    low = np.log([_BOUNDS[name][0] for name in names])
    high = np.log([_BOUNDS[name][1] for name in names])

    def residuals(logs: Floats) -> Floats:
        return np.log(predicted_times(device, rows.kernel, _with(base, names, logs), rows) / rows.time_s)

    found = least_squares(
        residuals,
        np.clip(start, low + 1e-6, high - 1e-6),
        bounds=(low, high),
        loss="soft_l1",
        f_scale=0.1,
        max_nfev=300,
    )
    return found.x, found.jac


def _left_out(device: Device, base: KernelFit, names: Sequence[str], rows: OperatorRows, start: Floats) -> Floats:
    shapes = np.unique(rows.groups)
    order = np.random.default_rng(0).permutation(len(shapes))
    n_folds = min(N_FOLDS, len(shapes))
    if n_folds < 2:
        fold_of = np.arange(len(rows.time_s)) % 6
    else:
        fold_of = order[np.searchsorted(shapes, rows.groups)] % n_folds
    errors = np.zeros(len(rows.time_s))
    for fold in np.unique(fold_of):
        out = fold_of == fold
        logs, _ = _solved(device, base, names, rows.selected(~out), start)
        kept = rows.selected(out)
        errors[out] = predicted_times(device, rows.kernel, _with(base, names, logs), kept) / kept.time_s - 1.0
    return errors


def fitted_kernel(device: Device, rows: OperatorRows, base: KernelFit, *, source: str) -> FittedKernel:
    """Return the fitted coefficients of one kernel class; `base` gives those that the rows cannot tell.

    Raises FitError where there are too few rows.
    """
    n_rows = len(rows.time_s)
    if n_rows < LEAST_ROWS:
        raise FitError(
            f"{rows.kernel} on {rows.device}: too few rows to fit", got=str(n_rows), expected=f"at least {LEAST_ROWS}"
        )
    names = _parameters(rows)
    bare = base.model_copy(update=dict.fromkeys(("chain_s", "pad_tokens", "knee", "scatter")))
    start = np.log(
        [_START[name] * (1e3 if name == "chain_s" and "attention" in rows.kernel else 1.0) for name in names]
    )
    logs, jacobian = _solved(device, bare, names, rows, start)
    errors = _left_out(device, bare, names, rows, logs)
    residuals = np.log(predicted_times(device, rows.kernel, _with(bare, names, logs), rows) / rows.time_s)
    covariance = np.linalg.pinv(jacobian.T @ jacobian) * (np.sum(residuals**2) / max(1, n_rows - len(names)))
    rel_sds = np.nan_to_num(np.sqrt(np.maximum(np.diag(covariance), 0.0)), nan=3.0)
    scatter = float(np.quantile(np.abs(np.log1p(np.maximum(errors, -0.99))), 0.8)) / Z80
    fit = _with(bare, names, logs, rel_sds, source).model_copy(update={"scatter": Coef(value=scatter, source=source)})
    record = FitRecord(
        runtime=rows.runtime,
        n_rows=n_rows,
        n_groups=len(np.unique(rows.groups)),
        left_out_median_frac=float(np.median(np.abs(errors))),
        left_out_p90_frac=float(np.quantile(np.abs(errors), 0.9)),
        data_sha256=rows_sha256(rows),
        ranges=_ranges(rows),
        parameters=names,
        log_covariance=tuple(tuple(float(c) for c in line) for line in covariance),
        remarks=_remarks(names, logs, rel_sds),
    )
    return FittedKernel(rows.kernel, fit, record, errors)


def _ranges(rows: OperatorRows) -> dict[str, tuple[float, float]]:
    """Return the range of flop and bytes that was measured: beyond it a prediction is extrapolated."""
    counts = {"flop": rows.work.flop, "bytes": rows.work.n_bytes, "rows": rows.work.rows}
    return {
        name: (float(np.min(value)), float(np.max(value)))
        for name, value in counts.items()
        if isinstance(value, np.ndarray)
    }


def _remarks(names: Sequence[str], logs: Floats, rel_sds: Floats) -> tuple[str, ...]:
    remarks = []
    for name, log, sd in zip(names, logs, rel_sds, strict=True):
        low, high = np.log(_BOUNDS[name])
        if min(log - low, high - log) < 1e-3:
            remarks.append(f"{name} ended at its bound {np.exp(log):.3g}: these rows do not determine it")
        elif sd > 1:
            remarks.append(f"{name} is not determined: standard error {100 * sd:.0f} %")
    return tuple(remarks)
