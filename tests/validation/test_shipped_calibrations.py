"""The calibrations that are shipped are what the shipped tables give, and their bands cover what was left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np
import pytest

from perfmodel.fit.calibrate import PRIOR_STAYS, Calibrated, base_of, calibration_from
from perfmodel.measure.csv_io import read_table
from perfmodel.measure.table import Table
from perfmodel.specs.calibration import Coef, CollectiveFit, FitRecord, KernelFit
from perfmodel.specs.catalogue import Catalogue, builtin_home

CATALOGUE = Catalogue((builtin_home(),))
OPERATORS = {"gemm", "attention", "mla_attention", "moe_ffn", "elementwise", "collective"}
ENGINES = ("vllm", "sglang", "tensorrt-llm")
DEVICES = ("a100-80gb-sxm", "a100-80gb-pcie", "h100-sxm", "h200-sxm", "b200-sxm", "rtx-4090", "ascend-910b2")
MAY_DEVIATE = 1e-6
"""Relative difference that a fit on another machine may have, or 0.01 of a standard error."""


@cache
def tables() -> tuple[Table, ...]:
    folder = builtin_home() / "hardware" / "measurements"
    read = (read_table(path) for path in sorted(folder.glob("*.csv")))
    return tuple(table for table in read if OPERATORS & set(table["kind"]))


def fitted_names() -> Iterator[tuple[str, str]]:
    known = CATALOGUE.paths("calibration")
    for device in DEVICES:
        yield from (
            (device, engine) for engine in ("", *ENGINES) if (f"{device}--{engine}" if engine else device) in known
        )


@cache
def refitted(device: str, engine: str, leave_out: bool) -> Calibrated:
    spec = CATALOGUE.device(device)
    return calibration_from(spec, tables(), catalogue=CATALOGUE, engine=engine, leave_out=leave_out)


def coefficients(fits: Mapping[str, KernelFit | CollectiveFit], records: Mapping[str, FitRecord]) -> dict[str, Coef]:
    return {
        f"{name}.{parameter}": coef
        for name, fit in fits.items()
        for parameter in records[name].parameters
        if isinstance(coef := getattr(fit, parameter, None), Coef)
    }


@pytest.mark.parametrize(("device", "engine"), list(fitted_names()))
def test_tables_reproduce_the_file(device: str, engine: str) -> None:
    shipped = CATALOGUE.calibration(f"{device}--{engine}" if engine else device)
    anew_made = refitted(device, engine, False)
    made = anew_made.calibration
    assert {k: r.data_sha256 for k, r in made.fits.items()} == {k: r.data_sha256 for k, r in shipped.fits.items()}
    fits: dict[str, KernelFit | CollectiveFit] = {k.kernel: k.fit for k in anew_made.kernels}
    fits |= {link.kind: link.fit for link in anew_made.collectives}
    anew = coefficients(fits, made.fits)
    used = {name: record for name, record in shipped.fits.items() if PRIOR_STAYS not in record.remarks}
    whole: dict[str, KernelFit | CollectiveFit] = {**shipped.kernels, **shipped.collectives}
    fitted = {name: fit for name, fit in whole.items() if name in used}
    for name, coef in coefficients(fitted, used).items():
        allowed = max(MAY_DEVIATE, 0.01 * coef.rel_sd)
        assert abs(anew[name].value / coef.value - 1.0) <= allowed, name
        assert anew[name].rel_sd == pytest.approx(coef.rel_sd, rel=0.01), name


@pytest.mark.parametrize("device", ["a100-80gb-sxm", "rtx-4090", "ascend-910b2"])
def test_left_out_errors_are_those_of_the_file(device: str) -> None:
    shipped, made = CATALOGUE.calibration(device), refitted(device, "", True)
    for name, record in made.calibration.fits.items():
        stated = shipped.fits[name]
        assert record.left_out_median_frac == pytest.approx(stated.left_out_median_frac, rel=0.02, abs=1e-3), name
        assert record.left_out_p90_frac == pytest.approx(stated.left_out_p90_frac, rel=0.02, abs=1e-3), name


def test_bands_cover_what_was_left_out() -> None:
    """Per kind of kernel, over devices: 70 to 90 % of left-out rows lie in an 80 % band made without them."""
    covered: dict[str, list[np.ndarray[tuple[int], np.dtype[np.bool_]]]] = {}
    for device in ("a100-80gb-sxm", "rtx-4090", "ascend-910b2"):
        made = refitted(device, "", True)
        for fit in made.kernels:
            covered.setdefault(fit.kernel, []).append(fit.left_out_covered)
        for link in made.collectives:
            covered.setdefault(link.kind, []).append(link.left_out_covered)
    for kind, parts in covered.items():
        share = float(np.concatenate(parts).mean())
        assert 0.7 <= share <= 0.9, (kind, share)


def test_the_prior_stays_only_where_it_is_nearer() -> None:
    """A fit that misses rows left out by more than the prior does is not used; the record says which it was."""
    for device, engine in fitted_names():
        shipped = CATALOGUE.calibration(f"{device}--{engine}" if engine else device)
        prior = CATALOGUE.calibration("prior")
        for name, record in shipped.fits.items():
            stays = PRIOR_STAYS in record.remarks
            if name in shipped.kernels:
                kept = shipped.kernels[name].launch_s == base_of(prior, name, CATALOGUE.device(device)).launch_s
                assert kept == stays, (shipped.name, name)
            else:
                assert not stays
                assert name in shipped.collectives
    used = [
        record
        for device, engine in fitted_names()
        for record in CATALOGUE.calibration(f"{device}--{engine}" if engine else device).fits.values()
        if PRIOR_STAYS not in record.remarks
    ]
    assert len(used) > 100


def test_measurements_stay_small_and_name_their_source() -> None:
    folder = builtin_home() / "hardware" / "measurements"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 3_000_000
    for table in tables():
        assert table.sidecar.source or all(table["source"])
        assert table.sidecar.licence
        assert table.sidecar.known_faults
