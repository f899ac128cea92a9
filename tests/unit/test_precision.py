"""Rounding of rotary embedding, drift to a threshold, cost of fp32, and the autoscaler's arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import FitError, SpecError
from perfmodel.fit.drift import crossings
from perfmodel.plan.autoscale import Autoscaler, desired_replicas, replica_capacity
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.answer import answer_to
from perfmodel.step.question import Question, case_of
from perfmodel.step.request import prefill_slice
from perfmodel.step.rotary import rotary_fallback
from perfmodel.step.step import Engine
from perfmodel.work.precision import (
    FRACTION_BITS,
    angle_error_rad,
    exact_positions,
    index_positions,
    rotation_error_bound_frac,
    rotation_error_rms_frac,
    rounding_frac,
    rounding_mean_frac,
)

RNG = np.random.default_rng(0)


def half(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16)


def test_rounding_is_that_of_the_hardware_format() -> None:
    """numpy's float16 is IEEE binary16: its largest and mean relative rounding errors are what the laws say."""
    values = np.exp(RNG.uniform(np.log(1e-2), np.log(1e2), 200_000))
    errors = np.abs(half(values).astype(np.float64) / values - 1.0)
    assert errors.max() <= rounding_frac("fp16")
    assert errors.max() == pytest.approx(rounding_frac("fp16"), rel=1e-2)
    assert errors.mean() == pytest.approx(rounding_mean_frac("fp16"), rel=1e-2)


def test_a_rotation_in_fp16_errs_as_the_law_says() -> None:
    """Each product and sum is rounded as fp16 hardware does; pairs of any size and angle."""
    n = 200_000
    angle = RNG.uniform(0.0, 2.0 * math.pi, n)
    x, y = (half(np.exp(RNG.uniform(-1.0, 1.0, n)) * RNG.choice([-1.0, 1.0], n)) for _ in range(2))
    c, s = half(np.cos(angle)), half(np.sin(angle))
    found = np.stack([x * c - y * s, x * s + y * c]).astype(np.float64)
    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    exact = np.stack([wide_x * np.cos(angle) - wide_y * np.sin(angle), wide_x * np.sin(angle) + wide_y * np.cos(angle)])
    error = np.hypot(*(found - exact)) / np.hypot(wide_x, wide_y)
    assert error.max() <= rotation_error_bound_frac("fp16")
    assert float(np.sqrt((error**2).mean())) == pytest.approx(rotation_error_rms_frac("fp16"), rel=0.05)


def test_positions_beyond_the_exact_ones_are_lost() -> None:
    assert float(np.float16(exact_positions("fp16"))) == 2048
    assert float(np.float16(2049)) != 2049
    assert index_positions(16) == 65536 == np.iinfo(np.uint16).max + 1
    assert index_positions(16, signed=True) == np.iinfo(np.int16).max + 1


@given(st.sampled_from(sorted(FRACTION_BITS)), st.floats(1.0, 1e6), st.floats(1e-6, 1.0))
def test_the_angle_grows_with_position_up_to_a_half_turn(dtype: str, position: float, frequency: float) -> None:
    error = angle_error_rad(position, frequency, dtype)
    assert 0.0 < error <= math.pi
    assert error <= angle_error_rad(2.0 * position, frequency, dtype)
    array = angle_error_rad(np.array([position]), np.array([frequency]), dtype)
    assert np.asarray(array).item() == pytest.approx(error, rel=1e-12)


def test_the_angle_of_fp16_multiplication_stays_inside_of_the_bound() -> None:
    positions = np.arange(1, 3000, 7, dtype=np.float64)
    for frequency in (1.0, 0.5, 0.0625):
        product = (half(positions) * np.float16(frequency)).astype(np.float64)
        bound = angle_error_rad(positions, frequency, "fp16")
        assert (np.abs(product - positions * frequency) <= np.asarray(bound)).all()


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(SpecError, match="fp7"):
        rounding_frac("fp7")


def test_drift_reaches_a_threshold_where_its_law_does() -> None:
    """0.01 x layer reaches 0.3 at 30; 0.02 sqrt(layer) reaches 0.2 at 100."""
    layers = [4.0, 9.0, 16.0]
    straight = crossings(layers, [0.01 * n for n in layers], 0.3)
    rooted = crossings(layers, [0.02 * math.sqrt(n) for n in layers], 0.2)
    by_law = {c.law.name: c.depth_layers for c in straight}
    assert by_law["drift_proportional"] == pytest.approx(30.0)
    assert by_law["drift_power"] == pytest.approx(30.0, rel=1e-4)
    assert {c.law.name: c.depth_layers for c in rooted}["drift_root"] == pytest.approx(100.0)


def test_drift_that_falls_never_reaches_a_threshold_and_a_lower_one_comes_sooner() -> None:
    falling = {c.law.name: c.depth_layers for c in crossings([1.0, 5.0, 9.0], [0.3, 0.2, 0.1], 0.5)}
    assert falling["drift_linear"] == math.inf
    points = ([5.0, 12.0], [0.087, 0.132])
    low, high = (crossings(*points, threshold) for threshold in (0.12, 0.15))
    assert all(a.depth_layers < b.depth_layers for a, b in zip(low, high, strict=True))


def test_bad_thresholds_and_too_few_points() -> None:
    with pytest.raises(FitError, match="threshold"):
        crossings([1.0, 2.0], [1.0, 2.0], 0.0)
    with pytest.raises(FitError):
        crossings([1.0], [1.0], 1.0)


def test_fp32_costs_more_from_an_earlier_layer_and_nothing_from_beyond_the_last(
    engine_of: Callable[..., Engine],
) -> None:
    engine = engine_of("llama-3.1-8b", "a100-80gb-sxm")
    slices = (prefill_slice(4.0, 1024.0, n_steps=1.0),)
    costs = [rotary_fallback(engine, slices, from_layer=n) for n in (32, 16, 0)]
    assert costs[0].fused_extra_s == pytest.approx(0.0, abs=1e-15)
    assert costs[0].n_layers == 0
    assert costs[1].fused_extra_s < costs[2].fused_extra_s
    for cost in costs:
        assert cost.fused_extra_s <= cost.apart_extra_s
    # all layers: twice the bytes of each rotation, so that the memory time doubles and nothing else changes
    narrow, fused = costs[2].narrow, costs[2].fused
    assert narrow.value < fused.value < 2.0 * narrow.value


def test_fallback_needs_a_layer_that_exists_and_a_model_that_rotates(engine_of: Callable[..., Engine]) -> None:
    slices = (prefill_slice(1.0, 128.0, n_steps=1.0),)
    with pytest.raises(SpecError, match="layer"):
        rotary_fallback(engine_of("llama-3.1-8b", "a100-80gb-sxm"), slices, from_layer=33)


@pytest.mark.parametrize(
    ("n", "metric", "target", "expected"),
    [
        (50.0, 90.0, 75.0, 60.0),  # the documentation's example: 50 x 90 / 75
        (4.0, 100.0, 200.0, 2.0),  # half the load, half the pods
        (4.0, 105.0, 100.0, 4.0),  # within 10 %
        (3.0, 111.0, 100.0, 4.0),  # 3.33, rounded up
    ],
)
def test_desired_replicas(n: float, metric: float, target: float, expected: float) -> None:
    assert desired_replicas(n, metric=metric, target=target) == expected
    array = desired_replicas(np.array([n, n]), metric=np.array([metric, metric]), target=target)
    assert np.asarray(array).tolist() == [expected, expected]


@given(st.integers(1, 5), st.integers(0, 20), st.floats(1.0, 100.0), st.floats(0.0, 1e4))
def test_where_the_count_settles(least: int, more: int, target: float, load: float) -> None:
    """Between its limits, never below what the target asks for by more than the tolerance, and a fixed point."""
    hpa = Autoscaler(min_replicas=least, max_replicas=least + more, target_requests_per_s=target)
    n = hpa.settled(load)
    assert least <= n <= least + more
    assert n == least + more or load / n <= target * (1.0 + hpa.tolerance_frac) * (1.0 + 1e-9)
    assert hpa.step(n, load) == n


def test_a_target_above_the_capacity_never_scales() -> None:
    """Replicas of 11 requests/s with a target of 250: the metric shows 11 at most, so that two stay and serve 22."""
    hpa = Autoscaler(min_replicas=2, max_replicas=12, target_requests_per_s=250.0)
    assert hpa.settled(1e6, capacity_requests_per_s=11.0) == 2.0
    assert hpa.carried(capacity_requests_per_s=11.0) == 22.0
    assert hpa.carried(capacity_requests_per_s=300.0) == 3600.0


def test_capacity_of_a_replica_is_that_of_its_best_batch(catalogue: Catalogue) -> None:
    case = case_of(
        catalogue, Question(model="llama-3.1-8b", hardware="a100-80gb-sxm", input_tokens=512.0, output_tokens=64.0)
    )
    found = replica_capacity(case, most_batch=64)
    singles = [
        answer_to(replace(case, workload=replace(case.workload, batch=batch))).figures["requests_per_s"].value
        for batch in (1.0, 8.0, 64.0)
    ]
    assert found.requests_per_s.value >= max(singles) * (1 - 1e-9)
    assert found.batch <= found.most_batch <= 64
    assert found.requests_per_s.value == pytest.approx(found.batch / found.e2e_s.value, rel=1e-9)
    assert replica_capacity(case, most_batch=8).requests_per_s.value <= found.requests_per_s.value


@pytest.mark.parametrize(
    "change",
    [{"min_replicas": 0}, {"max_replicas": 1}, {"target_requests_per_s": 0.0}, {"tolerance_frac": 1.0}],
)
def test_an_autoscaler_that_cannot_be(change: dict[str, float]) -> None:
    sound = {"min_replicas": 2, "max_replicas": 12, "target_requests_per_s": 250.0}
    with pytest.raises(SpecError):
        Autoscaler(**{**sound, **change})  # type: ignore[arg-type]
