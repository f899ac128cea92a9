"""Host times of a runtime from measured steps: least squares in a few numbers of its profile, nothing else.

A predicted time is linear in them, so that predictions without and with a unit of each say all there is:
`host_per_layer`, `host_per_sequence`, `host_per_message`, `gqa_reread_frac` (linear while the cache is the limit of
the attention kernel), and `memory:CLASS`, the excess of a kernel class's memory time over the best stream's
(1 / memory_frac - 1 / 0.92), which whole steps tell better than isolated kernels for one engine version. Errors are
relative; none is below zero. Kernels keep the coefficients of the calibration: what these few cannot explain stays
visible as error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import FitError, UnknownNameError
from perfmodel.measure.table import Table
from perfmodel.specs.calibration import Calibration, KernelFit
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.runtime import Runtime
from perfmodel.validate.parts import Floats, HeldCatalogue
from perfmodel.validate.predict import predictions

__all__ = ["HOST_PARAMETERS", "PRIOR_ROW_ERROR", "HostFit", "Slopes", "host_fit", "solved"]

HOST_PARAMETERS: Final[Mapping[str, float]] = MappingProxyType(
    {"host_per_layer": 50e-6, "host_per_sequence": 50e-6, "host_per_message": 10e-6, "gqa_reread_frac": 0.2}
)
"""What can be fitted, with the amount that slopes are taken over (seconds, or a fraction)."""
_MEMORY: Final = "memory:"
_MEMORY_UNIT: Final = 0.25
_BEST_STREAM: Final = 0.92
"""No kernel streams more than this share of the nominal bandwidth: copies of large buffers reach it and no more."""
_ROUNDS: Final = 20
PRIOR_ROW_ERROR: Final = 0.15
"""Relative error of one group of measured rows: what a prior is weighed against."""


@dataclass(frozen=True, slots=True)
class HostFit:
    """Fitted numbers of a runtime profile with standard errors, and how the rows agree.

    `error` is predicted / measured - 1 of each row, `left_out` the same by a fit without the row's group (model).
    """

    runtime: str
    values: Mapping[str, float]
    stderr: Mapping[str, float]
    error: Floats
    left_out: Floats
    n_groups: int
    ids: NDArray[np.str_]
    """Ids of the rows."""

    @property
    def left_out_by_id(self) -> dict[str, float]:
        """Errors on groups left out, by the id of the row; NaN where there is but one group."""
        return dict(zip(self.ids.tolist(), self.left_out.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Slopes:
    """Times of rows over what was measured: without host time, and for a unit of each number."""

    base: Floats
    slopes: NDArray[np.float64]

    def rows(self, mask: NDArray[np.bool_]) -> Slopes:
        """Return the rows of a mask."""
        return Slopes(self.base[mask], self.slopes[mask])


def _with_host(catalogue: Catalogue, runtime: Runtime, values: Mapping[str, float]) -> Catalogue:
    """Return the catalogue with a runtime in which every fittable number is as given, or zero."""
    times = {name: values.get(name, 0.0) for name in HOST_PARAMETERS if name != "gqa_reread_frac"}
    changed = runtime.model_copy(
        update={
            **{
                name: (getattr(runtime, name) or runtime.host_per_layer).model_copy(update={"value": value})
                for name, value in times.items()
            },
            "gqa_reread_frac": values.get("gqa_reread_frac", 0.0),
        }
    )
    excess = {name.removeprefix(_MEMORY): value for name, value in values.items() if name.startswith(_MEMORY)}
    return HeldCatalogue.over(catalogue, {runtime.name: changed}, lambda found: _with_memory(found, excess))


def _with_memory(calibration: Calibration, excess: Mapping[str, float]) -> Calibration:
    """Return the calibration in which kernel classes read memory 1 + excess times as long as the datasheet says."""

    def changed(kernels: Mapping[str, KernelFit]) -> dict[str, KernelFit]:
        return {
            name: fit.model_copy(
                update={
                    "memory_frac": fit.memory_frac.model_copy(
                        update={"value": 1.0 / (1.0 / _BEST_STREAM + excess[name])}
                    )
                }
            )
            if name in excess
            else fit
            for name, fit in kernels.items()
        }

    overrides = tuple(o.model_copy(update={"kernels": changed(o.kernels)}) for o in calibration.overrides)
    return calibration.model_copy(update={"kernels": changed(calibration.kernels), "overrides": overrides})


def _times(table: Table, catalogue: Catalogue, calibration: str) -> Floats:
    """Return predicted times over measured ones; a measured rate counts as its inverse."""
    found = predictions(table, catalogue, calibration)
    is_rate = table["metric"] == "output_tokens_per_s"
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = found.predicted / found.measured
        return np.where(is_rate, 1.0 / ratio, ratio)


def solved(
    part: Slopes, *, weight: Floats | None = None, prior: tuple[Floats, Floats] | None = None
) -> NDArray[np.float64]:
    """Return the numbers (in units) of least relative error, none below zero; rows far off count less (Huber).

    `weight` of a row is that of its error. `prior` holds a value and a standard deviation for each number, in units:
    one more row for each, as sure as a row of which the error is `PRIOR_ROW_ERROR`.
    """
    own = np.ones(len(part.base)) if weight is None else weight
    n = part.slopes.shape[1]
    rows, wanted = np.zeros((0, n)), np.zeros(0)
    if prior is not None:
        value, sd = prior
        rows, wanted = np.diag(PRIOR_ROW_ERROR / sd), PRIOR_ROW_ERROR * value / sd
    used = own
    result = np.zeros(n)
    for _ in range(_ROUNDS):
        result = np.zeros(n)
        active = [i for i in range(n) if np.any(part.slopes[:, i] > 0)]
        while active:
            columns = np.vstack([part.slopes[:, active] * used[:, None], rows[:, active]])
            target = np.concatenate([(1.0 - part.base) * used, wanted])
            found = np.linalg.lstsq(columns, target, rcond=None)[0]
            if (found >= 0).all():
                result[active] = found
                break
            active.pop(int(np.argmin(found)))
        residual = np.abs(part.base + part.slopes @ result - 1.0)
        scale = 1.345 * max(float(np.median(residual)) / 0.6745, 0.005)
        used = own * np.sqrt(np.minimum(1.0, scale / np.maximum(residual, 1e-12)))
    return result


def host_fit(
    table: Table,
    catalogue: Catalogue,
    runtime: str,
    *,
    parameters: Sequence[str] = ("host_per_layer", "host_per_sequence"),
    calibration: str = "auto",
    group: str = "model",
) -> HostFit:
    """Return numbers of a runtime profile fitted to the rows of a table that it prices; the others count as zero.

    Raises UnknownNameError for another parameter, FitError for fewer than three rows more than parameters.
    """
    for name in parameters:
        if name not in HOST_PARAMETERS and not name.startswith(_MEMORY):
            raise UnknownNameError.of("host parameter", name, [*HOST_PARAMETERS, f"{_MEMORY}CLASS"])
    profile = catalogue.runtime(runtime)
    zero = {name: 0.0 for name in parameters if name.startswith(_MEMORY)}
    base = _times(table, _with_host(catalogue, profile, zero), calibration)
    units = np.array([HOST_PARAMETERS.get(name, _MEMORY_UNIT) for name in parameters])
    slopes = [
        _times(table, _with_host(catalogue, profile, {**zero, name: unit}), calibration) - base
        for name, unit in zip(parameters, units, strict=True)
    ]
    use = np.isfinite(base)
    n = int(np.count_nonzero(use))
    if n < len(units) + 3:
        raise FitError(
            f"too few rows for the host times of {runtime}", got=str(n), expected=f"{len(units) + 3} or more"
        )
    whole = Slopes(base[use], np.stack(slopes, axis=1)[use])
    found = solved(whole)
    error = whole.base + whole.slopes @ found - 1.0
    covariance = np.linalg.pinv(whole.slopes.T @ whole.slopes) * float(np.var(error))
    groups = table[group][use].astype(str)
    left_out = np.full(n, np.nan)
    for name in np.unique(groups):
        out = groups == name
        if not out.all():
            left_out[out] = whole.base[out] + whole.slopes[out] @ solved(whole.rows(~out)) - 1.0
    values = dict(zip(parameters, (found * units).tolist(), strict=True))
    stderr = dict(zip(parameters, (np.sqrt(np.diag(covariance)) * units).tolist(), strict=True))
    return HostFit(runtime, values, stderr, error, left_out, len(np.unique(groups)), table["id"][use].astype(str))
