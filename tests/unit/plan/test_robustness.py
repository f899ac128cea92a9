"""Probabilities of meeting targets: limits, independence, full correlation, and random draws."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.plan.robustness import likelihood, normal_cdf


def test_alone_they_are_normal_in_the_logarithm() -> None:
    """ln(1.1 / 1.0) / 0.1 = 0.953 standard deviations."""
    found = likelihood(
        ttft_s=1.0, tpot_s=0.01, ttft_exposure={"a": 0.1}, tpot_exposure={}, most_ttft_s=1.1, most_tpot_s=0.02
    )
    assert found.ttft == pytest.approx(normal_cdf(np.log(1.1) / 0.1))
    assert found.tpot == 1.0
    assert found.both == found.ttft


@pytest.mark.parametrize(("a", "b"), [({"x": 0.2}, {"y": 0.1}), ({"x": 0.2}, {"x": 0.1})], ids=["apart", "together"])
def test_independent_errors_multiply_and_shared_ones_do_not(a: dict[str, float], b: dict[str, float]) -> None:
    found = likelihood(ttft_s=1.0, tpot_s=1.0, ttft_exposure=a, tpot_exposure=b, most_ttft_s=1.1, most_tpot_s=1.05)
    alone = found.ttft, found.tpot
    expected = min(alone) if a.keys() & b.keys() else alone[0] * alone[1]
    assert found.both == pytest.approx(expected, abs=6e-3 if a.keys() & b.keys() else 1e-9)


def test_agrees_with_draws() -> None:
    rng = np.random.default_rng(1)
    z = rng.standard_normal((3, 400_000))
    ttft = np.exp(0.2 * z[0] + 0.1 * z[1])
    tpot = np.exp(0.05 * z[1] + 0.1 * z[2])
    found = likelihood(
        ttft_s=1.0,
        tpot_s=1.0,
        ttft_exposure={"a": 0.2, "b": 0.1},
        tpot_exposure={"b": 0.05, "c": 0.1},
        most_ttft_s=1.2,
        most_tpot_s=1.05,
    )
    drawn = np.mean((ttft <= 1.2) & (tpot <= 1.05))
    assert found.both == pytest.approx(float(drawn), abs=4 * 0.5 / np.sqrt(400_000))


def test_without_targets_or_errors_it_is_certain() -> None:
    nothing: dict[str, float] = {}
    assert likelihood(
        ttft_s=9.0, tpot_s=9.0, ttft_exposure={"a": 1.0}, tpot_exposure=nothing, most_ttft_s=None, most_tpot_s=None
    ) == (1.0, 1.0, 1.0)
    assert likelihood(
        ttft_s=2.0, tpot_s=1.0, ttft_exposure=nothing, tpot_exposure=nothing, most_ttft_s=1.0, most_tpot_s=1.0
    ) == (0.0, 1.0, 0.0)
