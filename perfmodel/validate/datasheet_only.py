"""Errors on a device that nobody has measured: its own fits, and classes of the prior made from it alone, left out.

What remains for a device is its datasheet, the prior of its class from other devices, and host times that were fitted
without it where a runtime was measured on several devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import FitError
from perfmodel.measure.table import Table
from perfmodel.specs.calibration import Calibration, Override
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.device import Device
from perfmodel.validate.host_cases import HOST_CASES
from perfmodel.validate.host_fit import host_fit
from perfmodel.validate.operators import OPERATOR_KINDS
from perfmodel.validate.parts import Floats, HeldCatalogue
from perfmodel.validate.predict import predictions
from perfmodel.validate.steps import STEP_KINDS

__all__ = ["LeftOutDevice", "left_out_devices", "without_device"]

_KERNEL_KINDS = (*OPERATOR_KINDS, "collective")


@dataclass(frozen=True, slots=True)
class LeftOutDevice:
    """Errors (predicted / measured - 1) of the rows of a device, and whether their bands hold them."""

    device: str
    kernel_error: Floats
    kernel_covered: NDArray[np.bool_]
    step_error: Floats
    step_covered: NDArray[np.bool_]


def measured_devices(catalogue: Catalogue) -> tuple[Device, ...]:
    """Return the devices with kernel fits of their own."""
    names = (catalogue.calibration(name) for name in catalogue.paths("calibration") if "--" not in name)
    return tuple(catalogue.device(found.device) for found in names if found.fits)


def without_device(calibration: Calibration, device: Device, others: tuple[Device, ...]) -> Calibration:
    """Return the calibration without what was found on a device: its fits, and classes with no other measured one."""

    def is_known_elsewhere(override: Override) -> bool:
        if device.name in override.when.device:
            return False
        is_own = override.when.holds_for(device) and not override.when.device
        return not is_own or any(override.when.holds_for(other) for other in others)

    return calibration.model_copy(update={"overrides": tuple(filter(is_known_elsewhere, calibration.overrides))})


def left_out_devices(table: Table, catalogue: Catalogue) -> Iterator[LeftOutDevice]:
    """Yield the errors of every measured device of a table, each predicted as if nobody had measured it."""
    measured = measured_devices(catalogue)
    for device in measured:
        others = tuple(other for other in measured if other.name != device.name)
        unknown = HeldCatalogue.over(catalogue, {}, lambda found, d=device, o=others: without_device(found, d, o))  # type: ignore[misc]
        own = table.where(device=device.name)
        kernels = predictions(own.where(kind=_KERNEL_KINDS), unknown)
        steps = predictions(own.where(kind=STEP_KINDS), unknown)
        error = steps.error.copy()
        _leave_out_of_host_times(error, steps.table, table, unknown, device.name)
        use, timed = np.isfinite(kernels.error), np.isfinite(error)
        scale = (1.0 + error) / (1.0 + steps.error)  # a band moves with its prediction
        with np.errstate(invalid="ignore"):
            held = (steps.low * scale <= steps.measured) & (steps.measured <= steps.high * scale)
        yield LeftOutDevice(device.name, kernels.error[use], kernels.covered[use], error[timed], held[timed])


def _leave_out_of_host_times(error: Floats, own: Table, table: Table, catalogue: Catalogue, device: str) -> None:
    """Replace errors of rows whose runtime was fitted on several devices by those of a fit without this one."""
    position = {row_id: i for i, row_id in enumerate(own["id"].astype(str))}
    for case in HOST_CASES:
        if case.single_device or len(case.devices) < 2 or device not in case.devices:
            continue
        rows = case.rows(table)
        try:
            fit = host_fit(rows, catalogue, case.profile, parameters=case.parameters, group="device")
        except FitError:
            continue
        rates = dict(zip(rows["id"].astype(str), rows["metric"] == "output_tokens_per_s", strict=True))
        for row_id, value in fit.left_out_by_id.items():
            if row_id in position and np.isfinite(value):
                error[position[row_id]] = 1.0 / (1.0 + value) - 1.0 if rates[row_id] else value
