"""A device of which only the datasheet is known: errors and coverage, with everything found on it left out."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.specs.catalogue import Catalogue, builtin_home
from perfmodel.validate.datasheet_only import LeftOutDevice, left_out_devices, measured_devices, without_device
from perfmodel.validate.shipped import read_all, shipped_tables

CATALOGUE = Catalogue((builtin_home(),))


@pytest.fixture(scope="module")
def found() -> tuple[LeftOutDevice, ...]:
    return tuple(left_out_devices(read_all(shipped_tables(CATALOGUE)), CATALOGUE))


def test_every_measured_device_is_left_out_once(found: tuple[LeftOutDevice, ...]) -> None:
    names = [one.device for one in found]
    assert names == [device.name for device in measured_devices(CATALOGUE)]
    assert {"a100-80gb-sxm", "h100-sxm", "rtx-4090", "ascend-910b2"} <= set(names)


@pytest.mark.parametrize("name", ["rtx-4090", "h100-sxm", "ascend-910b2"])
def test_nothing_of_the_device_is_left(name: str) -> None:
    """Fits go; a class of the prior goes where the device alone stands for it, and stays where others do."""
    device = CATALOGUE.device(name)
    whole = CATALOGUE.calibration_for("auto", (device,), "vllm")
    others = tuple(other for other in measured_devices(CATALOGUE) if other.name != name)
    left = without_device(whole, device, others)
    assert any(name in override.when.device for override in whole.overrides)
    assert not any(override.when.holds_for(device) for override in left.overrides)
    assert left.kernels == whole.kernels
    rival = CATALOGUE.device("rtx-3090")
    kept = without_device(whole, device, (*others, rival))
    assert any(o.when.holds_for(rival) for o in kept.overrides) == any(o.when.holds_for(rival) for o in whole.overrides)


def test_errors_of_an_unmeasured_device(found: tuple[LeftOutDevice, ...]) -> None:
    """Bounds with room beside what docs/accuracy.md states; steps are asked for within 20 % and 45 %."""
    kernels = np.abs(np.concatenate([one.kernel_error for one in found]))
    steps = np.abs(np.concatenate([one.step_error for one in found]))
    assert np.median(kernels) <= 0.25
    assert np.percentile(kernels, 90) <= 0.80
    assert np.median(steps) <= 0.10
    assert np.percentile(steps, 90) <= 0.35


def test_bands_of_an_unmeasured_device(found: tuple[LeftOutDevice, ...]) -> None:
    for name in ("kernel_covered", "step_covered"):
        assert 0.7 <= np.mean(np.concatenate([getattr(one, name) for one in found])) <= 0.9
