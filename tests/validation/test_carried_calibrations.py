"""Calibrations that were carried over, from a device to its kin or from kernels to a version of an engine, agree."""

from __future__ import annotations

import re

import pytest

from perfmodel.fit.calibrate import transferred
from perfmodel.specs.calibration import Calibration, Coef
from perfmodel.specs.catalogue import Catalogue, builtin_home

CATALOGUE = Catalogue((builtin_home(),))
SHIPPED = {name: CATALOGUE.calibration(name) for name in CATALOGUE.paths("calibration")}
CARRIED = {
    name: found
    for name, calibration in SHIPPED.items()
    if (found := re.search(r"transferred from (\S+): (.*)", calibration.title))
}
OF_STEPS = [name for name, calibration in SHIPPED.items() if calibration.device and "steps" in calibration.sources]
ENGINES = ("vllm", "tensorrt-llm", "sglang")


@pytest.mark.parametrize("name", CARRIED)
def test_a_transfer_is_that_of_the_fit_it_names(name: str) -> None:
    origin, why = CARRIED[name].groups()
    rule = CATALOGUE.fitting_rules().transfer
    assert transferred(SHIPPED[origin], CATALOGUE.device(name), rule, why=why).kernels == SHIPPED[name].kernels


def test_every_fit_is_refitted_carried_or_of_steps() -> None:
    """No calibration of a device is without a test that makes it anew or compares it with its origin."""
    refitted = {name for name, calibration in SHIPPED.items() if calibration.fits}
    own = {name for name, calibration in SHIPPED.items() if calibration.device}
    assert own == refitted | set(CARRIED) | set(OF_STEPS)
    assert len(CARRIED) >= 9


def coefficients(calibration: Calibration, kernel: str) -> dict[str, Coef]:
    fit = calibration.kernels.get(kernel)
    named = {} if fit is None else {name: getattr(fit, name) for name in type(fit).model_fields}
    return {name: coef for name, coef in named.items() if isinstance(coef, Coef)}


@pytest.mark.parametrize("name", OF_STEPS)
def test_what_steps_did_not_change_is_that_of_the_kernels(name: str) -> None:
    """Coefficients said to come unchanged from a kernel fit or the prior stand there with that value."""
    own = SHIPPED[name]
    device = own.device
    family = next((e for e in ENGINES if own.runtime.startswith(e)), "")
    origins = [SHIPPED[o] for o in (f"{device}--{family}", device, "prior") if o in SHIPPED]
    for kernel in own.kernels:
        for parameter, coef in coefficients(own, kernel).items():
            if coef.source == "kernels":
                values = [c[parameter].value for o in origins if parameter in (c := coefficients(o, kernel))]
                values += [
                    c.value
                    for override in SHIPPED["prior"].overrides
                    if override.when.holds_for(CATALOGUE.device(device)) and kernel in override.kernels
                    if isinstance(c := getattr(override.kernels[kernel], parameter), Coef)
                ]
                assert any(coef.value == pytest.approx(v, rel=1e-6) for v in values), (
                    kernel,
                    parameter,
                    coef.value,
                    values,
                )
