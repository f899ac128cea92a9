"""Calibrations as data: names fall back, overrides win in order, and broken files are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from perfmodel.errors import CalibrationError, PerfmodelError
from perfmodel.specs.calibration import Calibration, Coef, CollectiveFit, KernelFit, Override, When
from perfmodel.specs.catalogue import Catalogue


def kernel(compute: float) -> KernelFit:
    return KernelFit(launch_s=Coef(value=0.0), compute_frac=Coef(value=compute), memory_frac=Coef(value=0.5))


def calibration(**changes: object) -> Calibration:
    fields: dict[str, object] = {
        "name": "mine",
        "status": "fit",
        "kernels": {"matmul": kernel(0.1), "matmul/fp8": kernel(0.2)},
        "collectives": {"any": CollectiveFit(start_s=Coef(value=0.0), bandwidth_frac=Coef(value=0.7))},
    }
    return Calibration.model_validate(fields | changes)


def test_the_finest_kernel_class_wins(catalogue: Catalogue) -> None:
    found = calibration().for_device(catalogue.device("h100-sxm"))
    assert found.kernel("matmul/fp8").compute.value == 0.2
    assert found.kernel("matmul/int8").compute.value == 0.1
    assert found.kernel("matmul").compute.value == 0.1
    # The key says whose error is shared: fp8 has its own coefficient, int8 shares the coarser one.
    assert found.kernel("matmul/fp8").compute.key == "matmul/fp8.compute"
    assert found.kernel("matmul/int8").compute.key == "matmul.compute"
    with pytest.raises(CalibrationError, match="no coefficients for mla/decode"):
        found.kernel("mla/decode")


def test_links_fall_back_to_any(catalogue: Catalogue) -> None:
    device = catalogue.device("h100-sxm")
    assert calibration().for_device(device).collective("nvlink")[1].value == 0.7
    own = {"nvlink": CollectiveFit(start_s=Coef(value=0.0), bandwidth_frac=Coef(value=0.9))}
    found = calibration(collectives=own).for_device(device)
    assert found.collective("nvlink")[1].value == 0.9
    with pytest.raises(CalibrationError, match="no coefficients for roce"):
        found.collective("roce")


def test_later_overrides_win_where_they_hold(catalogue: Catalogue) -> None:
    overrides = (
        Override(when=When(vendor=("nvidia",)), kernels={"matmul": kernel(0.3)}),
        Override(when=When(family=("hopper",), market=("datacenter",)), kernels={"matmul": kernel(0.4)}),
        Override(when=When(device=("a100-80gb-sxm",)), kernels={"matmul": kernel(0.5)}),
    )
    made = calibration(overrides=overrides)
    rates = {
        name: made.for_device(catalogue.device(name)).kernel("matmul").compute.value
        for name in ("h100-sxm", "a100-80gb-sxm", "l4", "mi300x")
    }
    assert rates == {"h100-sxm": 0.4, "a100-80gb-sxm": 0.5, "l4": 0.3, "mi300x": 0.1}
    assert made.for_device(catalogue.device("mi300x")).origin == "any device"
    assert "hopper" in made.for_device(catalogue.device("h100-sxm")).origin


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "fast", None])
def test_coefficients_are_numbers(bad: object) -> None:
    with pytest.raises(ValidationError):
        Coef.model_validate({"value": bad})
    with pytest.raises(ValidationError):
        Coef.model_validate({"value": 1.0, "rel_sd": -0.1})


@pytest.mark.parametrize("text", ["", "kind: calibration", "[1, 2]", "\x00", "name: [", "kind: device\nname: x"])
def test_broken_files_are_refused(catalogue: Catalogue, tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(PerfmodelError):
        catalogue.calibration(str(file))


def test_shipped_calibrations(catalogue: Catalogue) -> None:
    """What is physics alone has every rate reached and no start; a prior has a band around each share."""
    for name in catalogue.paths("calibration"):
        found = catalogue.calibration(name)
        assert found.name == name
        kernels = list(found.kernels.values()) + [k for o in found.overrides for k in o.kernels.values()]
        links = list(found.collectives.values()) + [c for o in found.overrides for c in o.collectives.values()]
        fracs = [c for k in kernels for c in (k.compute_frac, k.memory_frac)] + [c.bandwidth_frac for c in links]
        starts = [k.launch_s for k in kernels] + [c.start_s for c in links]
        if found.is_physics_only:
            assert {c.value for c in fracs} == {1.0}
            assert {c.value for c in starts} == {0.0}
        elif found.status == "prior":
            assert all(0 < c.value <= 1.0 for c in fracs)
            assert all(0 <= c.value < 1e-3 for c in starts)
            assert all(c.rel_sd > 0 for c in fracs)
            assert {c.source for c in (*fracs, *starts) if c.source} <= set(found.sources)


@pytest.mark.parametrize("share", [0.0, -0.5])
def test_shares_are_above_zero(share: float) -> None:
    with pytest.raises(ValidationError):
        kernel(share)
