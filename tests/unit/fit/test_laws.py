"""Laws of nature of the registry: shapes, bounds, guesses, and that every law recovers what it was fed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import UnknownNameError
from perfmodel.fit.data import data_from_arrays
from perfmodel.fit.fitter import fit
from perfmodel.fit.laws import LAWS, Array, Columns, candidate_laws, law_by_name
from perfmodel.fit.laws.kernels import expected_experts
from perfmodel.fit.result import FitOptions, Residual

# name -> (true parameters, y reaches zero or below)
TRUTH: dict[str, tuple[float, ...]] = {
    "linear": (2.0, 0.5),
    "power": (3.0, 0.7),
    "offset_power": (1.0, 2.0, 0.6),
    "exponential": (2.0, 0.05),
    "decay_floor": (1.0, 4.0, 6.0),
    "saturating": (8.0, 5.0),
    "hill": (8.0, 7.0, 2.5),
    "drift_proportional": (0.004,),
    "drift_root": (0.01,),
    "drift_linear": (0.02, 0.003),
    "drift_power": (0.008, 0.65),
    "contention_printed": (5.0, 0.8, 0.9),
    "contention_hill": (3.3, 0.7, 5.0, 1.8),
    "contention_hill_hyperbolic": (3.3, 0.8, 4.0),
    "contention_hill_to_zero": (3.3, 8.0, 1.4),
    "contention_hyperbolic": (3.3, 10.0),
    "contention_usl": (3.3, 0.06, 0.002),
    "contention_exponential": (3.3, 15.0),
    "contention_exponential_floor": (3.3, 0.6, 5.0),
    "contention_power": (3.3, 0.3),
    "contention_linear": (3.3, 0.02),
    "roofline": (6e-6, 2.4e14, 1.5e12, 2.0),
    "roofline_efficiency": (5e-6, 0.75, 0.85, 1.8),
    "alpha_beta": (9.8e-6, 2.3e11),
    "segmented_transfer": (9.8e-6, 2.3e11, 4e5),
    "saturating_bandwidth": (1.6e12, 3e6),
    "tile_waves": (5e-6, 1.7e12, 0.7),
    "host_time": (4e-4, 9e-5, 1.2e12),
    "moe_touched": (2.5e-5, 1.3e12),
    "moe_touched_skewed": (2.5e-5, 1.3e12, 0.6),
}


def columns_for(name: str, n: int = 60) -> Columns:
    """Return columns on which the law can be told from its parameters."""
    rng = np.random.default_rng(5)
    law = LAWS[name]
    if law.family == "contention":
        return (np.tile(np.arange(1.0, 31.0), n // 30),)
    if law.family in ("transfer", "bandwidth"):
        return (np.geomspace(1e3, 1e10, n),)
    ranges = {
        "flop": (1e8, 1e13), "bytes": (1e5, 5e9), "peak_flop_per_s": (1e14, 1e15), "peak_bytes_per_s": (1e12, 4e12),
        "n_tiles": (10.0, 4e3), "n_cores": (20.0, 132.0), "flop_per_tile": (1e7, 1e9), "n_layers": (12.0, 96.0),
        "n_tokens": (1.0, 500.0), "n_experts": (16.0, 256.0), "top_k": (2.0, 8.0), "expert_bytes": (1e6, 1e8),
    }  # fmt: skip
    whole = ("n_tiles", "n_cores", "n_layers", "n_tokens", "n_experts", "top_k")
    columns = []
    for entry in law.inputs:
        low, high = ranges.get(entry.name, (1.0, 40.0))
        column: Array = np.exp(rng.uniform(math.log(low), math.log(high), 4 * n))
        columns.append(np.round(column) if entry.name in whole else column)
    return tuple(columns)


def test_every_law_is_tried_here() -> None:
    assert set(TRUTH) == set(LAWS)


@pytest.mark.parametrize("name", LAWS)
def test_law_is_described(name: str) -> None:
    law = LAWS[name]
    assert law.title
    assert law.formula
    assert law.source
    assert len(law.names) == len(set(law.names)) == len(TRUTH[name])
    for parameter in law.parameters:
        assert parameter.meaning
        assert parameter.low < parameter.high
        assert not parameter.log or parameter.low > 0.0


@pytest.mark.parametrize("name", LAWS)
def test_many_parameter_sets_equal_one_by_one(name: str) -> None:
    law, columns = LAWS[name], columns_for(name)
    rows = np.array([TRUTH[name], [1.01 * v for v in TRUTH[name]]])
    both = law.values(columns, rows)
    assert both.shape == (2, columns[0].size)
    for i in range(2):
        np.testing.assert_allclose(both[i], law.value(columns, list(rows[i])), rtol=1e-12)


@pytest.mark.parametrize("name", LAWS)
def test_guess_is_finite(name: str) -> None:
    law, columns = LAWS[name], columns_for(name)
    y = law.value(columns, TRUTH[name])
    for data in (y, y[::-1].copy(), np.ones_like(y)):
        guess = law.guess(columns, data)
        assert len(guess) == len(law.names)
        assert all(math.isfinite(v) for v in guess)


@pytest.mark.parametrize("name", LAWS)
def test_fit_recovers_what_it_was_fed(name: str) -> None:
    law, columns = LAWS[name], columns_for(name)
    y = law.value(columns, TRUTH[name])
    data = data_from_arrays({i.name: c for i, c in zip(law.inputs, columns, strict=True)}, y)
    result = fit(law, data, FitOptions(residual=Residual.LOG if (y > 0.0).all() else Residual.ABSOLUTE))
    np.testing.assert_allclose(result.values, TRUTH[name], rtol=1e-5)
    assert result.errors.r_squared == pytest.approx(1.0)


@pytest.mark.parametrize("name", LAWS)
def test_fit_covers_the_truth_in_noise(name: str) -> None:
    law, columns = LAWS[name], columns_for(name)
    rng = np.random.default_rng(11)
    y = law.value(columns, TRUTH[name]) * np.exp(rng.normal(0.0, 0.02, columns[0].size))
    data = data_from_arrays({i.name: c for i, c in zip(law.inputs, columns, strict=True)}, y)
    result = fit(law, data, FitOptions(residual=Residual.LOG))
    assert result.sigma == pytest.approx(0.02, rel=0.35)
    for i, truth in enumerate(TRUTH[name]):
        if law.names[i] in result.at_bound:
            continue
        assert abs(result.values[i] - truth) < 5.0 * result.stderr[i], law.names[i]


@settings(max_examples=25, deadline=None)
@given(
    base=st.floats(0.1, 100.0), alpha=st.floats(0.3, 0.95), n0=st.floats(1.5, 10.0), beta=st.floats(0.8, 3.0),
    unit=st.sampled_from([1e-6, 1.0, 1e9]),
)  # fmt: skip
def test_hill_is_recovered_whatever_the_unit(base: float, alpha: float, n0: float, beta: float, unit: float) -> None:
    n = np.arange(1.0, 41.0)
    law = LAWS["contention_hill"]
    y = law.value((n,), (base * unit, alpha, n0, beta))
    result = fit(law, data_from_arrays({"n_instances": n}, y))
    np.testing.assert_allclose(result.values, (base * unit, alpha, n0, beta), rtol=1e-4)


@settings(max_examples=25, deadline=None)
@given(t0=st.floats(1e-6, 1e-3), bandwidth=st.floats(1e9, 1e13))
def test_latency_and_bandwidth_are_recovered(t0: float, bandwidth: float) -> None:
    size = np.geomspace(1.0, 1e3, 30) * t0 * bandwidth / 30.0
    law = LAWS["alpha_beta"]
    result = fit(law, data_from_arrays({"bytes": size}, law.value((size,), (t0, bandwidth)), y_name="time_s"))
    np.testing.assert_allclose(result.values, (t0, bandwidth), rtol=1e-6)


def test_contention_starts_at_base_and_falls() -> None:
    n = np.arange(1.0, 65.0)
    for law in candidate_laws(("n_instances",)):
        curve = law.value((n,), TRUTH[law.name])
        if law.name != "contention_printed":
            assert curve[0] == pytest.approx(3.3)
        assert (np.diff(curve) < 0.0).all()


def test_roofline_lies_between_maximum_and_sum() -> None:
    flop, size = columns_for("roofline")
    law = LAWS["roofline"]
    compute, memory = flop / 2.4e14, size / 1.5e12
    curve = law.value((flop, size), (0.0, 2.4e14, 1.5e12, 2.0))
    assert (curve >= np.maximum(compute, memory) * (1.0 - 1e-12)).all()
    assert (curve <= (compute + memory) * (1.0 + 1e-12)).all()
    np.testing.assert_allclose(law.value((flop, size), (0.0, 2.4e14, 1.5e12, 1.0)), compute + memory, rtol=1e-12)


def test_experts_touched() -> None:
    tokens = np.arange(1.0, 400.0)
    even = expected_experts(tokens, np.array(64.0), np.array(6.0), np.array(0.0))
    np.testing.assert_allclose(even, 64.0 * (1.0 - (1.0 - 6.0 / 64.0) ** tokens), rtol=1e-9)
    skewed = expected_experts(tokens, np.array(64.0), np.array(6.0), np.array(0.8))
    assert (skewed <= even + 1e-9).all()
    assert (np.diff(skewed) >= 0.0).all()


def test_candidates_follow_the_names() -> None:
    assert {law.family for law in candidate_laws(("n_instances",), "ipc")} == {"contention"}
    assert {law.family for law in candidate_laws(("layer",))} == {"drift"}
    assert candidate_laws(("message_bytes",), "time_s")[0].name == "alpha_beta"
    assert candidate_laws(("message_bytes",), "busbw")[0].name == "saturating_bandwidth"
    assert {law.family for law in candidate_laws(("anything",))} == {"general"}
    assert [law.name for law in candidate_laws(("bytes", "flop"))] == ["roofline"]
    assert candidate_laws(("a", "b")) == ()


def test_unknown_law_offers_near_names() -> None:
    with pytest.raises(UnknownNameError, match="alpha_beta"):
        law_by_name("alfa_beta")
