"""Bands: as wide as theory says, and as often right as they claim."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import stdtrit  # type: ignore[import-untyped]

from perfmodel.errors import FitError
from perfmodel.fit.bands import BandKind, bootstrap_band, bootstrap_parameters, delta_band
from perfmodel.fit.data import data_from_arrays
from perfmodel.fit.fitter import fit
from perfmodel.fit.laws import LAWS
from perfmodel.fit.result import FitOptions, FitResult, Residual

HILL = LAWS["contention_hill_to_zero"]
TRUTH = (3.3, 8.0, 1.4)


def sample(seed: int, n: int = 20, kind: Residual = Residual.ABSOLUTE) -> FitResult:
    """Return a fit of noisy contention data."""
    rng = np.random.default_rng(seed)
    x = np.linspace(1.0, 24.0, n)
    curve = HILL.value((x,), TRUTH)
    y = curve + rng.normal(0, 0.08, n) if kind is Residual.ABSOLUTE else curve * np.exp(rng.normal(0, 0.05, n))
    return fit(HILL, data_from_arrays({"n_instances": x}, y), FitOptions(n_starts=1, residual=kind))


def test_line_band_equals_the_textbook() -> None:
    rng = np.random.default_rng(0)
    x = np.linspace(0.0, 10.0, 15)
    result = fit(LAWS["linear"], data_from_arrays({"x": x}, 1.0 + x + rng.normal(0, 0.4, 15)))
    at = np.array([-2.0, 5.0, 12.0])
    band = delta_band(result, (at,), level=0.9, kind=BandKind.CONFIDENCE)
    spread = result.sigma * np.sqrt(1 / 15 + (at - x.mean()) ** 2 / ((x - x.mean()) ** 2).sum())
    np.testing.assert_allclose(band.high - band.middle, float(stdtrit(13, 0.95)) * spread, rtol=1e-6)
    wider = delta_band(result, (at,), level=0.9)
    np.testing.assert_allclose(
        wider.high - wider.middle, float(stdtrit(13, 0.95)) * np.hypot(spread, result.sigma), rtol=1e-6
    )


@pytest.mark.parametrize("kind", [Residual.ABSOLUTE, Residual.LOG, Residual.RELATIVE])
def test_80_percent_bands_cover_80_percent(kind: Residual) -> None:
    at = np.linspace(2.0, 22.0, 9)
    truth = HILL.value((at,), TRUTH)
    rng = np.random.default_rng(99)
    inside = {BandKind.CONFIDENCE: 0.0, BandKind.PREDICTION: 0.0}
    rounds = 150
    for seed in range(rounds):
        result = sample(seed, kind=kind)
        noisy = truth + rng.normal(0, 0.08, 9) if kind is Residual.ABSOLUTE else truth * np.exp(rng.normal(0, 0.05, 9))
        for band_kind, values in ((BandKind.CONFIDENCE, truth), (BandKind.PREDICTION, noisy)):
            band = delta_band(result, (at,), kind=band_kind)
            inside[band_kind] += float(np.mean((values >= band.low) & (values <= band.high)))
    assert inside[BandKind.PREDICTION] / rounds == pytest.approx(0.8, abs=0.04)
    assert inside[BandKind.CONFIDENCE] / rounds == pytest.approx(0.8, abs=0.06)


def test_bootstrap_covers_and_agrees_with_delta() -> None:
    at = np.linspace(2.0, 22.0, 9)
    rng = np.random.default_rng(5)
    inside, rounds = 0.0, 20
    for seed in range(rounds):
        result = sample(seed)
        band = bootstrap_band(result, (at,), n_samples=60, seed=seed)
        noisy = HILL.value((at,), TRUTH) + rng.normal(0, 0.08, 9)
        inside += float(np.mean((noisy >= band.low) & (noisy <= band.high))) / rounds
    assert inside == pytest.approx(0.8, abs=0.1)
    result = sample(1, n=60)
    rows = bootstrap_parameters(result, n_samples=200)
    np.testing.assert_allclose(rows.std(axis=0), result.stderr, rtol=0.3)


@pytest.mark.parametrize("kind", [Residual.RELATIVE, Residual.LOG])
def test_bootstrap_of_relative_residuals_agrees_with_delta(kind: Residual) -> None:
    result = sample(1, n=60, kind=kind)
    rows = bootstrap_parameters(result, n_samples=200)
    np.testing.assert_allclose(rows.std(axis=0), result.stderr, rtol=0.3)
    at = np.linspace(2.0, 22.0, 5)
    first, second = delta_band(result, (at,)), bootstrap_band(result, (at,))
    np.testing.assert_allclose(first.high - first.low, second.high - second.low, rtol=0.3)


def test_bootstrap_is_repeatable_and_widens_with_level() -> None:
    result = sample(3)
    at = np.array([1.0, 10.0, 30.0])
    first, again = (bootstrap_band(result, (at,), n_samples=40, seed=4) for _ in range(2))
    np.testing.assert_array_equal(first.low, again.low)
    wide = bootstrap_band(result, (at,), n_samples=40, seed=4, level=0.95)
    assert (wide.high - wide.low > first.high - first.low).all()
    narrow = bootstrap_band(result, (at,), n_samples=40, seed=4, kind=BandKind.CONFIDENCE)
    assert (narrow.high - narrow.low < first.high - first.low).all()


def test_band_grows_outside_the_data() -> None:
    result = sample(2)
    band = delta_band(result, (np.array([12.0, 60.0]),), kind=BandKind.CONFIDENCE)
    width = (band.high - band.low) / band.middle
    assert width[1] > 2.0 * width[0]


def test_no_freedom_no_band() -> None:
    result = fit(LAWS["linear"], data_from_arrays({"x": [1, 2]}, [1, 3]))
    band = delta_band(result, (np.array([1.5]),))
    assert math.isinf(band.low[0])
    assert math.isinf(band.high[0])
    with pytest.raises(FitError, match="no residuals to resample"):
        bootstrap_parameters(result)
    with pytest.raises(FitError, match="level between 0 and 1"):
        delta_band(result, (np.array([1.5]),), level=80)
    with pytest.raises(FitError, match="too few bootstrap"):
        bootstrap_parameters(sample(0), n_samples=3)
