"""The shipped tables against the shipped calibrations: errors may not grow unnoticed.

Bounds are what was reached when they were written, with room for a few percent; docs/accuracy.md has the figures. They
show agreement with rows that fits have seen; the last test leaves models out.
"""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.measure.schema import USABLE
from perfmodel.measure.table import Table
from perfmodel.specs.catalogue import Catalogue
from perfmodel.validate.host_cases import HOST_CASES, HostCase
from perfmodel.validate.host_fit import host_fit
from perfmodel.validate.predict import Predictions, predictions
from perfmodel.validate.shipped import read_all, shipped_tables
from perfmodel.validate.stories import read_stories

BOUNDS: dict[tuple[str, str, str], tuple[float, float]] = {
    ("decode_step", "a100-80gb-sxm", "gpt-fast"): (0.03, 0.08),
    ("decode_step", "rtx-4090", "tinychat-2.0"): (0.09, 0.13),
    ("generate", "a100-40gb-sxm", "trtllm-2024"): (0.07, 0.17),
    ("generate", "a100-40gb-sxm", "vllm-2024"): (0.08, 0.18),
    ("generate", "h100-sxm", "trtllm-2024"): (0.07, 0.15),
    ("generate", "h100-sxm", "vllm-2024"): (0.07, 0.15),
    ("generate", "gh200", "vllm-2024"): (0.10, 0.16),
    ("generate", "a100-80gb-sxm", "vllm-0.6.3"): (0.06, 0.14),
    ("generate", "mi250", "vllm-2024-rocm"): (0.05, 0.14),
    ("generate", "a100-80gb-sxm", "transformers-4.46"): (0.08, 0.32),
    ("prefill_step", "h100-sxm", "trtllm-0.9"): (0.10, 0.22),
    ("prefill_step", "h200-sxm", "trtllm-0.9"): (0.10, 0.18),
    ("prefill_step", "a100-80gb-sxm", "trtllm-0.8"): (0.12, 0.20),
    ("memory", "a100-80gb-sxm", "transformers-4.46"): (0.03, 0.13),
    ("gemm", "a100-80gb-pcie", "kernel"): (0.07, 0.18),
    ("gemm", "rtx-4090", "vllm-0.19-kernels"): (0.05, 0.11),
    ("elementwise", "rtx-4090", "vllm-0.19-kernels"): (0.13, 0.32),
    ("elementwise", "a100-80gb-pcie", "kernel"): (0.12, 0.45),
    ("collective", "a100-80gb-sxm", "nccl-2.27.3"): (0.08, 0.16),
    ("collective", "h100-sxm", "nccl-2.29.2"): (0.10, 0.25),
    ("collective", "b200-sxm", "nccl-2.29.2"): (0.11, 0.28),
}


@pytest.fixture(scope="module")
def shipped(catalogue: Catalogue) -> Predictions:
    return predictions(read_all(shipped_tables(catalogue)), catalogue)


def test_every_shipped_row_of_a_step_is_predicted_or_says_why(shipped: Predictions) -> None:
    kinds = ("prefill_step", "decode_step", "generate", "memory")
    steps = shipped.selected(np.isin(shipped.table["kind"], kinds))
    assert np.mean(steps.reason == "") > 0.97
    assert not np.any((steps.reason == "") & ~np.isfinite(steps.predicted))
    assert np.isin(shipped.table["status"], USABLE).all()


@pytest.mark.parametrize("group", BOUNDS, ids=" ".join)
def test_errors_stay_within_what_was_reached(shipped: Predictions, group: tuple[str, str, str]) -> None:
    median, p90 = BOUNDS[group]
    mask = np.ones(len(shipped.table), dtype=bool)
    for name, word in zip(("kind", "device", "runtime"), group, strict=True):
        mask &= shipped.table[name] == word
    error = np.abs(shipped.error[mask & (shipped.reason == "")])
    assert len(error) >= 5
    assert np.median(error) <= median
    assert np.percentile(error, 90) <= p90


@pytest.mark.parametrize("kind", ["prefill_step", "decode_step", "generate"])
def test_bands_of_steps_cover_most_rows(shipped: Predictions, kind: str) -> None:
    use = (shipped.table["kind"] == kind) & np.isfinite(shipped.error)
    assert 0.7 <= np.mean(shipped.covered[use]) <= 0.92


@pytest.mark.parametrize("kind", ["gemm", "attention", "mla_attention", "moe_ffn", "elementwise", "collective"])
def test_bands_of_kernels_cover_most_rows(shipped: Predictions, kind: str) -> None:
    """Most rows were seen by a fit, so that more than 80 % of them lie in bands made for rows left out."""
    use = (shipped.table["kind"] == kind) & np.isfinite(shipped.error)
    assert 0.75 <= np.mean(shipped.covered[use]) <= 0.95


@pytest.mark.parametrize("case", [c for c in HOST_CASES if c.profile != "gpt-fast"], ids=lambda c: c.profile)
def test_host_times_predict_models_that_they_were_not_fitted_on(
    catalogue: Catalogue, shipped: Predictions, case: HostCase
) -> None:
    rows: Table = case.rows(shipped.table)
    fit = host_fit(rows, catalogue, case.profile, parameters=case.parameters)
    assert np.nanmedian(np.abs(fit.error)) <= 0.08
    assert np.nanmedian(np.abs(fit.left_out)) <= 0.12
    profile = catalogue.runtime(case.profile)
    assert profile.host_per_layer.value == pytest.approx(fit.values["host_per_layer"], abs=35e-6)


def test_stories_are_about_groups_that_exist(catalogue: Catalogue, shipped: Predictions) -> None:
    table = shipped.table
    groups = {*zip(table["kind"], table["device"], table["runtime"], strict=True)}
    for story in read_stories(catalogue).stories:
        words = [dict(zip(("kind", "device", "runtime"), group, strict=True)) for group in groups]
        assert any(story.is_about(entry) for entry in words), story.text
