"""Coefficients of one kernel class, fitted to operator measurements with the law that the simulator uses.

How the rows and the prior are weighed is said in `damped`. Errors are stated for shapes that the fit has not seen:
whole groups are left out in turn. The scatter is chosen so that an 80 % band covers 80 % of those left-out rows.

A micro-benchmark replays one buffer, so operands below the size of L2 come from there; in a real step they do not. The
fit lets the traffic of such rows shrink by a factor of its own (`replay`), which is recorded and never used in a
prediction.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perfmodel.cost.kernel import KernelPrices, cached_share
from perfmodel.errors import FitError
from perfmodel.fit.damped import Floats, Search, covered_rows, scatter_of, solved
from perfmodel.measure.operator_work import OperatorRows
from perfmodel.specs.calibration import LARGEST_SD, CalibratedDevice, Calibration, Coef, FitRecord, KernelFit
from perfmodel.specs.device import Device
from perfmodel.specs.rules import FittingRules, SearchRule
from perfmodel.work.kernel import Work

__all__ = [
    "LEAST_ROWS",
    "FittedKernel",
    "Prior",
    "fitted_kernel",
    "predicted_times",
    "prior_of",
    "rows_sha256",
    "with_parameters",
]

N_FOLDS: Final = 8
LEAST_ROWS: Final = 12

_REPLAYED: Final = ("attention/decode", "mla/decode")
"""Classes whose benchmark operands may stay in L2 between repeats."""
_OTHER_UNIT: Final = 300.0
"""Rows that take so many times what the prior gives were hardly written in seconds."""
_CONTRADICTS: Final = 2.0
"""Repeats of one shape that differ by such a factor cannot both be described."""
_KNEED: Final = ("matmul", "moe", "attention/prefill", "mla")


@dataclass(frozen=True, slots=True)
class Prior:
    """What is known before: for each parameter centre, width and limits of its logarithm; knee is searched as q - 1."""

    base: KernelFit
    names: tuple[str, ...]
    centres: Floats
    widths: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, slots=True)
class FittedKernel:
    """A fit, how it was made, and its errors on shapes left out."""

    kernel: str
    fit: KernelFit
    record: FitRecord
    left_out_errors: Floats
    """predicted / measured - 1 for each row, predicted without its shape."""
    left_out_covered: NDArray[np.bool_]
    """Whether the 80 % band of the fit made without a row's shape holds the measured time."""
    prior_errors: Floats
    """The same with the prior's coefficients, which have seen none of the rows."""


def rows_sha256(rows: OperatorRows) -> str:
    """Return the hash of the ids and times that a fit was made from, whatever their order."""
    lines = sorted(f"{row_id},{time:.9g}" for row_id, time in zip(rows.ids, rows.time_s, strict=True))
    return sha256("\n".join(lines).encode()).hexdigest()


def predicted_times(device: Device, kernel: str, fit: KernelFit, work: Work) -> Floats:
    """Return the times that the cost law gives for all rows of `work`."""
    bare = Calibration.model_construct(name="fit", status="fit", sources={})
    prices = KernelPrices(CalibratedDevice(device, bare, "fit", {kernel: fit}, {}))
    return np.asarray(prices.time(work).value, dtype=np.float64)


def prior_of(base: KernelFit, rows: OperatorRows, rules: FittingRules) -> Prior:
    """Return the prior for the parameters that rows of this class can tell; `base` holds the others."""
    work, names = rows.work, ["launch_s", "compute_frac", "memory_frac"]
    if rows.kernel.startswith("elementwise"):
        names.append("cache_speedup")
        if work.unit_flop_per_row is None:
            names.remove("compute_frac")
    if work.depth is not None:
        names.append("chain_s")
    if work.quantise_bytes is not None:
        names.append("quantise_frac")
    if work.grouped_share is not None and base.grouped_start_s is not None:
        names.append("grouped_start_s")
    if work.flop_per_pad is not None or work.bytes_per_pad is not None:
        names.append("pad_tokens")
    if rows.kernel.startswith(_KNEED):
        names.append("knee")
    if rows.kernel.startswith(_REPLAYED):
        names.append("replay")
    found = [_known(base, rules.of_kernel(rows.kernel, name), name) for name in names]
    centres, widths, low, high = np.array(found).T
    if "cache_speedup" in names:  # the memory alone, told apart from the cache, is no faster than its datasheet
        high[names.index("memory_frac")] = 1.0
    return Prior(base, tuple(names), np.log(centres), widths, np.log(low), np.log(high))


def _known(base: KernelFit, rule: SearchRule, name: str) -> tuple[float, float, float, float]:
    """Return centre, width of the logarithm, and limits of one parameter, those of the knee less 1."""
    coef: Coef | None = getattr(base, name, None)
    least = rule.least_log_sd or rule.log_sd
    if coef is not None:
        centre, width = coef.value, max(coef.rel_sd, least)
    elif rule.centre is not None:
        centre, width = rule.centre, rule.log_sd
    else:
        raise FitError(f"nothing is known of {name} before the fit", expected="a value in the prior, or a centre")
    return centre - 1.0 if name == "knee" else centre, width, rule.low, rule.high


def with_parameters(prior: Prior, logs: Floats, rel_sds: Floats | None = None, source: str = "") -> KernelFit:
    """Return the coefficients for the logarithms of the parameters."""
    coefs: dict[str, Coef] = {}
    for i, name in enumerate(prior.names):
        if name == "replay":
            continue
        value = float(np.exp(logs[i])) + (1.0 if name == "knee" else 0.0)
        rel_sd = 0.0 if rel_sds is None else float(min(rel_sds[i], LARGEST_SD))
        coefs[name] = Coef.model_construct(value=value, rel_sd=rel_sd, source=source, note="")
    return prior.base.model_copy(update=coefs)


def _replayed(device: Device, work: Work, ratio: float) -> Work:
    """Return the work with the traffic of what stays in L2 divided by `ratio`; it fades out around its capacity."""
    if not device.l2_bytes:
        return work
    share = cached_share(work.n_bytes, device.l2_bytes) * (1.0 - 1.0 / ratio)
    names = ("weight_bytes", "kv_bytes", "io_bytes", "bytes_per_pad")
    left = {name: getattr(work, name) * (1.0 - share) for name in names if getattr(work, name) is not None}
    return work._replace(**left)


def replayed_times(device: Device, prior: Prior, logs: Floats, rows: OperatorRows) -> Floats:
    """Return what the benchmark would measure: the law, with operands in L2 where a replay finds them there."""
    work = rows.work
    if "replay" in prior.names:
        work = _replayed(device, work, float(np.exp(logs[prior.names.index("replay")])))
    return predicted_times(device, rows.kernel, with_parameters(prior, logs), work)


def _solved(device: Device, prior: Prior, rows: OperatorRows, start: Floats) -> tuple[Floats, Floats]:
    """Return (log parameters, their covariance)."""
    search = Search(prior.centres, prior.widths, prior.low, prior.high, margin=1e-6, x_scale=prior.widths)
    return solved(lambda logs: replayed_times(device, prior, logs, rows), rows.time_s, start, search)


def _same_work(rows: OperatorRows) -> NDArray[np.intp]:
    """Return for each row the number of its work: rows with equal counts do the same."""
    n_rows = len(rows.time_s)
    counts = [np.broadcast_to(c, n_rows) for c in rows.work._asdict().values() if isinstance(c, np.ndarray)]
    of_row = np.unique(np.stack(counts, axis=1), axis=0, return_inverse=True)[1]
    return np.asarray(of_row, dtype=np.intp).reshape(-1)


def _folds(rows: OperatorRows) -> NDArray[np.intp]:
    """Return the fold of each row: whole shapes together, rows of equal work where all have one shape."""
    shapes, of_row = np.unique(rows.groups, return_inverse=True)
    if len(shapes) == 1:
        shapes, of_row = np.unique(_same_work(rows), return_inverse=True)
    order = np.random.default_rng(0).permutation(len(shapes))
    return order[of_row] % max(2, min(N_FOLDS, len(shapes)))


def _left_out(device: Device, prior: Prior, rows: OperatorRows, start: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    fold_of = _folds(rows)
    errors = np.zeros(len(rows.time_s))
    for fold in np.unique(fold_of):
        out = fold_of == fold
        logs, _ = _solved(device, prior, rows.selected(~out), start)
        kept = rows.selected(out)
        errors[out] = replayed_times(device, prior, logs, kept) / kept.time_s - 1.0
    return errors, covered_rows(errors, fold_of)


def fitted_kernel(
    device: Device, rows: OperatorRows, base: KernelFit, rules: FittingRules, *, source: str, leave_out: bool = True
) -> FittedKernel:
    """Return the fitted coefficients of one kernel class; `base` gives the prior and those that rows cannot tell.

    `rules` say what is known of parameters that `base` does not state, and where a search must stay.

    Without `leave_out` the errors are those of the rows fitted: quicker, and too good. Raises FitError where there are
    too few rows.
    """
    n_rows = len(rows.time_s)
    if n_rows < LEAST_ROWS:
        raise FitError(
            f"{rows.kernel} on {rows.device}: too few rows to fit", got=str(n_rows), expected=f"at least {LEAST_ROWS}"
        )
    if len(np.unique(_same_work(rows))) == 1:
        raise FitError(
            f"{rows.kernel} on {rows.device}: all rows measure the same work",
            got=f"{n_rows} repeats of {rows.groups[0]}",
            expected="at least two shapes",
            cure="Measure other sizes: one size tells one time, not what it consists of.",
        )
    prior = prior_of(base, rows, rules)
    logs, covariance = _solved(device, prior, rows, prior.centres)
    if leave_out:
        errors, covered = _left_out(device, prior, rows, logs)
    else:
        errors = replayed_times(device, prior, logs, rows) / rows.time_s - 1.0
        covered = np.ones(n_rows, dtype=bool)
    rel_sds = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    scatter = Coef(value=scatter_of(errors), source=source)
    fit = with_parameters(prior, logs, rel_sds, source).model_copy(update={"scatter": scatter})
    prior_errors = predicted_times(device, rows.kernel, base, rows.work) / rows.time_s - 1.0
    record = FitRecord(
        runtime=rows.runtime,
        n_rows=n_rows,
        n_groups=len(np.unique(rows.groups)),
        left_out_median_frac=float(np.median(np.abs(errors))),
        left_out_p90_frac=float(np.quantile(np.abs(errors), 0.9)),
        left_out_covered_frac=float(np.mean(covered)),
        data_sha256=rows_sha256(rows),
        ranges=_ranges(rows),
        parameters=prior.names,
        log_covariance=tuple(tuple(float(c) for c in line) for line in covariance),
        remarks=(*_odd_rows(rows, prior_errors), *_remarks(prior, logs, rel_sds)),
    )
    return FittedKernel(rows.kernel, fit, record, errors, covered, prior_errors)


def _ranges(rows: OperatorRows) -> dict[str, tuple[float, float]]:
    """Return the range of flop and bytes that was measured: beyond it a prediction is extrapolated."""
    counts = {"flop": rows.work.flop, "bytes": rows.work.n_bytes, "rows": rows.work.rows}
    return {
        name: (float(np.min(value)), float(np.max(value)))
        for name, value in counts.items()
        if isinstance(value, np.ndarray)
    }


def _odd_rows(rows: OperatorRows, prior_errors: Floats) -> tuple[str, ...]:
    """Return what is odd about the rows themselves: other units, contradictions, one shape alone."""
    remarks, n_rows = [], len(rows.time_s)
    slow = prior_errors < 1.0 / _OTHER_UNIT - 1.0
    if slow.any():
        remarks.append(
            f"{int(slow.sum())} of {n_rows} rows take more than {_OTHER_UNIT:.0f} times what the prior gives "
            f"(first: {rows.ids[np.argmax(slow)]}): are all values in seconds?"
        )
    of_row = _same_work(rows)
    low, high = np.full(of_row.max() + 1, np.inf), np.zeros(of_row.max() + 1)
    np.minimum.at(low, of_row, rows.time_s)
    np.maximum.at(high, of_row, rows.time_s)
    split = high > _CONTRADICTS * low
    if split.any():
        worst = np.flatnonzero(of_row == np.argmax(high / low))
        remarks.append(
            f"contradictory rows: repeats of {int(split.sum())} shapes differ by more than a factor of "
            f"{_CONTRADICTS:.0f} (worst: {', '.join(rows.ids[worst][:4])})"
        )
    if len(np.unique(rows.groups)) == 1:
        remarks.append("rows of one shape only: errors are on sizes left out, not on shapes left out")
    return tuple(remarks)


def _remarks(prior: Prior, logs: Floats, rel_sds: Floats) -> tuple[str, ...]:
    remarks = []
    limits = zip(prior.low, prior.high, strict=True)
    for name, log, sd, width, (low, high) in zip(prior.names, logs, rel_sds, prior.widths, limits, strict=True):
        if min(log - low, high - log) < 1e-3:
            remarks.append(f"{name} ended at its limit {np.exp(log):.3g}")
        elif sd > 0.8 * width:
            remarks.append(f"{name} stays near the prior: these rows do not tell it")
        elif name == "replay":
            remarks.append(f"rows within L2 ran at {np.exp(log):.2g} times the bandwidth; left out of predictions")
    return tuple(remarks)
