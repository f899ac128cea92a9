"""Bands beyond what was measured: kernels fitted to middling sizes, judged on the smallest and largest of a table."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.estimate import Z80
from perfmodel.fit.calibrate import base_of, chosen_rows
from perfmodel.fit.kernel_fit import LEAST_ROWS, fitted_kernel, predicted_times
from perfmodel.measure.csv_io import read_table
from perfmodel.specs.catalogue import Catalogue, builtin_home

CATALOGUE = Catalogue((builtin_home(),))
TABLES = ("aiconfigurator-a100.csv", "llmservingsim-rtx4090.csv", "ascend-910b2-kernels.csv", "vidur-kernels.csv")


@pytest.fixture(scope="module")
def beyond() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """|log error|, scatter and doublings beyond the middle 70 % of bytes, for rows that the fit has not seen."""
    folder, prior = builtin_home() / "hardware" / "measurements", CATALOGUE.calibration("prior")
    tables, rules = [read_table(folder / name) for name in TABLES], CATALOGUE.fitting_rules()
    misses, scatters, doublings = [], [], []
    for name in ("a100-80gb-sxm", "a100-80gb-pcie", "rtx-4090", "ascend-910b2"):
        device = CATALOGUE.device(name)
        for kernel, rows in chosen_rows(tables, device).items():
            n_bytes = np.asarray(rows.work.n_bytes, dtype=np.float64)
            low, high = np.quantile(n_bytes, [0.15, 0.85])
            within = (n_bytes >= low) & (n_bytes <= high)
            if np.sum(within) < LEAST_ROWS or kernel.startswith("mla"):  # one law does not hold both A100 kernels
                continue
            base = base_of(prior, kernel, device)
            made = fitted_kernel(device, rows.selected(within), base, rules, source="made")
            out = rows.selected(~within)
            times = predicted_times(device, kernel, made.fit, out.work)
            assert made.fit.scatter is not None
            misses.append(np.abs(np.log(times / out.time_s)))
            scatters.append(np.full(len(out.time_s), made.fit.scatter.value))
            outside = n_bytes[~within]
            doublings.append(np.maximum(np.log2(outside / high), 0.0) + np.maximum(np.log2(low / outside), 0.0))
    return np.concatenate(misses), np.concatenate(scatters), np.concatenate(doublings)


def test_bands_hold_rows_beyond_the_range(beyond: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    misses, scatters, doublings = beyond
    assert len(misses) > 500
    rule = CATALOGUE.calibration("prior").extrapolation
    assert rule is not None
    widened = np.sqrt(scatters**2 + (rule.value * doublings) ** 2)
    covered, without = np.mean(misses <= Z80 * widened), np.mean(misses <= Z80 * scatters)
    assert without < covered
    assert 0.7 <= covered <= 0.9


def test_shipped_fits_carry_their_range() -> None:
    for name in ("rtx-4090", "h100-sxm"):
        device = CATALOGUE.device(name)
        found = CATALOGUE.calibration_for("auto", (device,), "vllm").for_device(device)
        measured = found.kernel("matmul/16bit").measured_bytes
        assert measured is not None
        assert 0 < measured[0] < measured[1]
    bare = CATALOGUE.device("l4")
    assert CATALOGUE.calibration_for("auto", (bare,), "vllm").for_device(bare).kernel("matmul").measured_bytes is None
