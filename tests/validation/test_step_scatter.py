"""The scatter of whole steps that is shipped is what the shipped tables give, and its bands hold rows left out."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.specs.catalogue import Catalogue, builtin_home
from perfmodel.specs.step_scatter import StepScatter
from perfmodel.validate.shipped import read_all, shipped_tables
from perfmodel.validate.step_scatter import OTHERS, FittedScatter, StepErrors, fitted_scatters, step_errors

CATALOGUE = Catalogue((builtin_home(),))


@pytest.fixture(scope="module")
def errors() -> StepErrors:
    return step_errors(read_all(shipped_tables(CATALOGUE)), CATALOGUE)


@pytest.fixture(scope="module")
def fits(errors: StepErrors) -> tuple[FittedScatter, ...]:
    return tuple(fitted_scatters(errors))


def stated(runtime: str) -> StepScatter:
    held = CATALOGUE.runtime(runtime) if runtime else CATALOGUE.calibration("prior")
    return held.step_scatter


def test_files_hold_what_the_tables_give(fits: tuple[FittedScatter, ...]) -> None:
    for fit in fits:
        scatter = getattr(stated(fit.runtime), fit.phase)
        if not fit.is_own:
            assert scatter is None, fit.runtime
            continue
        assert scatter is not None, (fit.runtime, fit.phase)
        assert scatter.value == pytest.approx(fit.value, rel=0.02, abs=0.003), (fit.runtime, fit.phase)
        assert (scatter.n_rows, scatter.n_groups) == (fit.n_rows, fit.n_models)


def test_no_other_runtime_claims_a_scatter(fits: tuple[FittedScatter, ...]) -> None:
    measured = {fit.runtime for fit in fits}
    for name in CATALOGUE.paths("runtime"):
        assert name in measured or CATALOGUE.runtime(name).step_scatter == StepScatter(), name


@pytest.mark.parametrize("kind", ["prefill_step", "decode_step", "generate"])
def test_bands_hold_70_to_90_percent_of_rows_left_out(
    errors: StepErrors, fits: tuple[FittedScatter, ...], kind: str
) -> None:
    held = np.zeros(len(errors.kind), dtype=bool)
    for fit in fits:
        if fit.runtime != OTHERS:
            held[fit.left_out] = fit.left_out_covered
    assert 0.7 <= np.mean(held[errors.kind == kind]) <= 0.9
