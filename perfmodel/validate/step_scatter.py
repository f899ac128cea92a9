"""Scatter of whole steps from measured ones: what their errors are beyond what the coefficients of the tree explain.

A row needs a scatter s with |log error| = z sqrt(sd^2 + s^2), where sd is what its tree already carries; a runtime's
scatter is the 80 % quantile of what its rows need. So an 80 % band holds 80 % of the rows, and a runtime whose
coefficients explain its errors gets none. Errors of runtimes whose host times were fitted are those of models left
out. A runtime with few measured rows, or with one model, takes the scatter of all the others, each device under each
runtime counting alike. Coverage is stated for models (else runtimes) that the scatter was not found on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from perfmodel.estimate import Z80
from perfmodel.measure.table import Table
from perfmodel.specs.calibration import Calibration
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.runtime import Runtime
from perfmodel.specs.step_scatter import StepScatter
from perfmodel.validate.host_cases import HOST_CASES
from perfmodel.validate.host_fit import host_fit
from perfmodel.validate.parts import Floats, HeldCatalogue, Parts
from perfmodel.validate.predict import predictions
from perfmodel.validate.steps import STEP_KINDS

__all__ = ["OTHERS", "FittedScatter", "StepErrors", "fitted_scatters", "step_errors"]

Phase = Literal["prefill", "decode"]

OTHERS: Final = ""
"""The name under which the scatter of runtimes that were not measured is returned."""
_COVERED: Final = 0.8
LEAST_ROWS: Final = 8
LEAST_MODELS: Final = 2


@dataclass(frozen=True, slots=True)
class StepErrors:
    """Measured steps, row by row: log(predicted / measured), the sd that coefficients give it, and whose it is."""

    kind: NDArray[np.object_]
    profile: NDArray[np.object_]
    device: NDArray[np.object_]
    model: NDArray[np.object_]
    log_error: Floats
    rel_sd: Floats

    @property
    def is_prefill(self) -> NDArray[np.bool_]:
        """Whether a row is a step that reads prompts; the others write tokens."""
        return np.asarray(self.kind == "prefill_step")

    @property
    def needed(self) -> Floats:
        """The scatter that puts each measurement on the edge of its band; 0 where it lies within already."""
        return np.sqrt(np.maximum((self.log_error / Z80) ** 2 - self.rel_sd**2, 0.0))


@dataclass(frozen=True, slots=True)
class FittedScatter:
    """Scatter of one phase under one runtime (`OTHERS`: those not measured) and the coverage of rows left out."""

    runtime: str
    phase: Phase
    value: float
    n_rows: int
    n_models: int
    is_own: bool
    """Whether it comes from the runtime's own rows."""
    covered_before_frac: float
    """Share of rows within their band without a scatter of steps."""
    left_out: NDArray[np.intp]
    """Positions of the rows, and beside them whether the band made without their model (or runtime) holds them."""
    left_out_covered: NDArray[np.bool_]


def step_errors(table: Table, catalogue: Catalogue) -> StepErrors:
    """Return the errors of the measured steps of a table, with models left out where host times were fitted."""
    bare = HeldCatalogue(catalogue.homes, _bare_runtimes(catalogue), _without_scatter)
    rows = table.where(kind=STEP_KINDS)
    found = predictions(rows, bare)
    error = found.error.copy()
    position = {row_id: i for i, row_id in enumerate(rows["id"].astype(str))}
    for case in HOST_CASES:
        if case.single_device and case.profile in {c.profile for c in HOST_CASES if not c.single_device}:
            continue
        own = case.rows(rows)
        if not len(own):
            continue
        left_out = host_fit(own, bare, case.profile, parameters=case.parameters).left_out_by_id
        for row_id, value in left_out.items():
            if np.isfinite(value):
                error[position[row_id]] = value
    use = np.isfinite(error) & (error > -1.0)
    parts = Parts(bare)
    profile = np.array([parts.runtime(name).name for name in rows["runtime"]], dtype=object)
    with np.errstate(invalid="ignore", divide="ignore"):
        rel_sd = np.log(found.high / found.low) / (2.0 * Z80)
    return StepErrors(
        rows["kind"][use], profile[use], rows["device"][use], rows["model"][use], np.log1p(error[use]), rel_sd[use]
    )


def _bare_runtimes(catalogue: Catalogue) -> dict[str, Runtime]:
    return {
        name: catalogue.runtime(name).model_copy(update={"step_scatter": StepScatter()})
        for name in catalogue.paths("runtime")
    }


def _without_scatter(calibration: Calibration) -> Calibration:
    return calibration.model_copy(update={"step_scatter": StepScatter()})


def _quantile(needed: Floats, weight: Floats) -> float:
    """Return the least scatter that suffices for 80 % of the weight; 0 without rows."""
    if not len(needed):
        return 0.0
    order = np.argsort(needed, kind="stable")
    reached = np.cumsum(weight[order]) / np.sum(weight)
    return float(needed[order][min(int(np.searchsorted(reached, _COVERED)), len(order) - 1)])


def _of_others(errors: StepErrors, rows: NDArray[np.intp]) -> float:
    """Return the scatter over rows in which each device under each runtime counts alike."""
    labels = np.array([f"{errors.profile[i]} {errors.device[i]}" for i in rows])
    _, inverse, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return _quantile(errors.needed[rows], 1.0 / counts[inverse])


def fitted_scatters(errors: StepErrors) -> Iterator[FittedScatter]:
    """Yield the scatter of each measured runtime and phase, and last in each phase that of runtimes not measured."""
    needed = errors.needed
    phases: tuple[Phase, ...] = ("prefill", "decode")
    for phase in phases:
        of_phase = np.flatnonzero(errors.is_prefill == (phase == "prefill"))
        if not len(of_phase):
            continue
        covered_by_others = np.zeros(len(needed), dtype=bool)
        for profile in sorted(set(errors.profile[of_phase])):
            rows = of_phase[errors.profile[of_phase] == profile]
            models = errors.model[rows]
            without = _of_others(errors, np.setdiff1d(of_phase, rows))
            covered_by_others[rows] = needed[rows] <= without
            is_own = len(rows) >= LEAST_ROWS and len(set(models)) >= LEAST_MODELS
            covered = needed[rows] <= without
            value = _of_others(errors, of_phase)
            if is_own:
                value = _quantile(needed[rows], np.ones(len(rows)))
                for model in set(models):
                    out = models == model
                    covered[out] = needed[rows[out]] <= _quantile(needed[rows[~out]], np.ones(int(np.sum(~out))))
            before = float(np.mean(needed[rows] <= 0.0))
            yield FittedScatter(profile, phase, value, len(rows), len(set(models)), is_own, before, rows, covered)
        yield FittedScatter(
            OTHERS,
            phase,
            _of_others(errors, of_phase),
            len(of_phase),
            len(set(errors.model[of_phase])),
            True,
            float(np.mean(needed[of_phase] <= 0.0)),
            of_phase,
            covered_by_others[of_phase],
        )
