"""Measured serving: the shipped profiles are what the shipped table gives; models left out are predicted so well."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from perfmodel.measure.csv_io import read_table
from perfmodel.measure.table import Table
from perfmodel.specs.catalogue import Catalogue, builtin_home
from perfmodel.specs.runtime import HostTime
from perfmodel.validate.predict import predictions
from perfmodel.validate.serve_fit import FIRST_TOKEN, SERVE_PROFILES, STEPS, StageFit, own_error, serve_fits
from perfmodel.validate.serve_sim import both_answers, runs_to_simulate

CATALOGUE = Catalogue((builtin_home(),))
REACHED = {"tpot_s": (0.12, 0.34), "ttft_s": (0.31, 0.62)}
"""Median and P90 of the error on models that a fit has not seen, with some room; docs/serving.md has the figures."""
OWN = {"tpot_s": (0.06, 0.22), "ttft_s": (0.14, 0.34)}
"""The same where only a concurrency was left out of rows of one model on one device."""


@cache
def table() -> Table:
    return read_table(builtin_home() / "hardware" / "measurements" / "serve-silicon.csv").where()


@cache
def fits() -> tuple[StageFit, ...]:
    return serve_fits(table(), CATALOGUE)


def left_out(metric: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    error = np.concatenate([one.left_out["model"] for one in fits() if one.metric == metric])
    found: np.ndarray[tuple[int], np.dtype[np.float64]] = np.abs(error[np.isfinite(error)])
    return found


@pytest.mark.parametrize("profile", SERVE_PROFILES)
def test_the_table_reproduces_the_profiles(profile: str) -> None:
    shipped = CATALOGUE.runtime(profile)
    found = {name: value for one in fits() if one.profile == profile for name, value in one.values.items()}
    stderr = {name: value for one in fits() if one.profile == profile for name, value in one.stderr.items()}
    assert set(found) == {*STEPS, *FIRST_TOKEN}
    for name, value in found.items():
        held = getattr(shipped, name)
        stated = held.value if isinstance(held, HostTime) else held
        assert abs(stated - value) <= max(0.02 * value, 0.1 * stderr[name]), name
    assert shipped.host_per_layer.value == 0.0


@pytest.mark.parametrize("metric", REACHED)
def test_models_left_out(metric: str) -> None:
    error = left_out(metric)
    assert len(error) > 1300
    assert np.median(error) <= REACHED[metric][0]
    assert np.percentile(error, 90) <= REACHED[metric][1]


@pytest.mark.parametrize("metric", OWN)
def test_a_concurrency_left_out(metric: str) -> None:
    rows = table()
    rows = rows.selected(np.isin(rows["model"], ("llama-3.1-70b", "gpt-oss-120b")))  # the whole table takes a minute
    error = np.abs(own_error(rows, CATALOGUE, metric))
    error = error[np.isfinite(error)]
    assert len(error) > 400
    assert np.median(error) <= OWN[metric][0]
    assert np.percentile(error, 90) <= OWN[metric][1]


def test_bands_cover_most_rows() -> None:
    found = predictions(table(), CATALOGUE)
    use = np.isfinite(found.error)
    assert 0.7 <= np.mean(found.covered[use]) <= 0.9


def test_the_simulation_is_better_where_the_cache_is_the_limit() -> None:
    both = both_answers(runs_to_simulate(table(), CATALOGUE, 16), CATALOGUE)
    closed, found = both.errors("ttft_s", kv_limited=True)
    assert len(found) >= 5
    assert np.median(found) <= np.median(closed)
    assert np.percentile(found, 90) <= np.percentile(closed, 90)
    closed, found = both.errors("tpot_s", kv_limited=True)
    assert np.median(found) <= np.median(closed) + 0.01


def test_rates_and_latencies_of_an_open_loop() -> None:
    """TensorRT-LLM 0.14 at stated request rates, which no fit has seen: median 20 %, P90 45 % for each metric."""
    rows = read_table(builtin_home() / "hardware" / "measurements" / "serve-trtllm-docs.csv").where()
    rows = rows.selected(np.isfinite(rows["request_rate_per_s"]))
    found = predictions(rows, CATALOGUE)
    for metric, median in (("itl_s", 0.1), ("output_tokens_per_s", 0.1), ("ttft_s", 0.25)):
        use = (rows["metric"] == metric) & np.isfinite(found.error)
        assert np.mean(use[rows["metric"] == metric]) > 0.8
        assert np.median(np.abs(found.error[use])) <= median, metric
        assert np.percentile(np.abs(found.error[use]), 90) <= 0.45, metric
