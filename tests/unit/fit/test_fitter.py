"""The fitter: standard errors, weights, robust loss, bounds, and the words it finds for bad fits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.errors import FitError, UnknownNameError
from perfmodel.fit.data import FitData, data_from_arrays
from perfmodel.fit.fitter import evaluation, fit, information_criterion
from perfmodel.fit.laws import LAWS, FitLaw, Input, positive, real
from perfmodel.fit.result import FitOptions, FitResult, Grade, Residual
from perfmodel.fit.verdict import verdict

LINE = LAWS["linear"]


def line_data(n: int = 40, sigma: float = 0.3, seed: int = 0) -> FitData:
    """Return a noisy line."""
    rng = np.random.default_rng(seed)
    x = np.linspace(0.0, 10.0, n)
    return data_from_arrays({"x": x}, 2.0 + 0.5 * x + rng.normal(0.0, sigma, n))


def codes(result: FitResult) -> set[str]:
    """Return the codes of the findings."""
    return {f.code for f in result.findings}


def test_line_equals_the_textbook() -> None:
    data = line_data()
    x, y = data.x[0], data.y
    result = fit(LINE, data)
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    squares = float(((y - y.mean() - slope * (x - x.mean())) ** 2).sum())
    sigma = math.sqrt(squares / (data.n - 2))
    assert result.values[1] == pytest.approx(slope, rel=1e-9)
    assert result.sigma == pytest.approx(sigma, rel=1e-9)
    assert result.stderr[1] == pytest.approx(sigma / math.sqrt(((x - x.mean()) ** 2).sum()), rel=1e-7)
    assert result.aicc == pytest.approx(40 * math.log(squares / 40) + 6 + 24 / 36, rel=1e-9)
    assert result.leverage.sum() == pytest.approx(2.0)
    assert result.grade is Grade.GOOD
    assert result.low[1] < slope < result.high[1]


def test_weights_from_stated_errors() -> None:
    rng = np.random.default_rng(3)
    x = np.linspace(0.0, 10.0, 60)
    stderr = np.where(x < 5.0, 0.05, 2.0)
    y = 2.0 + 0.5 * x + rng.normal(0.0, stderr)
    result = fit(LINE, data_from_arrays({"x": x}, y, stderr=stderr))
    assert result.sigma == pytest.approx(1.0, abs=0.3)
    assert result.values[1] == pytest.approx(0.5, abs=4 * result.stderr[1])
    assert result.stderr[1] < fit(LINE, data_from_arrays({"x": x}, y)).stderr[1]
    tight = fit(LINE, data_from_arrays({"x": x}, y, stderr=stderr / 5.0))
    assert "beyond-stated-errors" in codes(tight)
    np.testing.assert_allclose(tight.stderr, result.stderr, rtol=1e-6)


@pytest.mark.parametrize("loss", ["soft_l1", "huber", "cauchy", "arctan"])
def test_robust_loss_ignores_outliers(loss: str) -> None:
    data = line_data(60)
    y = data.y.copy()
    y[::12] += 30.0
    broken = data_from_arrays({"x": data.x[0]}, y)
    plain, robust = fit(LINE, broken), fit(LINE, broken, FitOptions(loss=loss))
    assert abs(robust.values[0] - 2.0) < 0.5 < abs(plain.values[0] - 2.0)
    assert 0.15 < robust.sigma < 1.5
    assert math.isnan(robust.aicc)
    assert set(robust.diagnostics.outlier_rows) == {1, 13, 25, 37, 49}
    assert "outliers" in codes(robust)


@pytest.mark.parametrize("kind", list(Residual))
def test_robust_standard_errors_are_near_the_plain_ones_on_clean_data(kind: Residual) -> None:
    data = line_data(400, 0.1)
    plain, robust = fit(LINE, data, FitOptions(residual=kind)), fit(LINE, data, FitOptions(residual=kind, loss="huber"))
    np.testing.assert_allclose(robust.stderr, plain.stderr, rtol=0.2)


def test_same_seed_same_fit_and_unit_does_not_matter() -> None:
    n = np.arange(1.0, 21.0)
    y = 3.3 / (1.0 + (n - 1.0) / 8.0) * np.exp(np.random.default_rng(1).normal(0.0, 0.02, 20))
    law = LAWS["contention_hill"]
    first = fit(law, data_from_arrays({"n_instances": n}, y))
    again = fit(law, data_from_arrays({"n_instances": n}, y))
    scaled = fit(law, data_from_arrays({"n_instances": n}, y * 1e-9))
    np.testing.assert_array_equal(first.values, again.values)
    np.testing.assert_allclose(scaled.values, first.values * [1e-9, 1, 1, 1], rtol=1e-4)


def test_fixed_parameters_stay_and_do_not_count() -> None:
    data = line_data()
    result = fit(LINE, data, FitOptions(fixed={"intercept": 2.0}))
    assert result.parameters["intercept"] == 2.0
    assert math.isnan(result.stderr[0])
    assert (result.k, result.dof) == (1, 39)
    everything = fit(LINE, data, FitOptions(fixed={"intercept": 2.0, "slope": 0.5}))
    assert everything.k == 0
    assert everything.sigma == pytest.approx(0.3, rel=0.3)
    with pytest.raises(UnknownNameError, match="slope"):
        fit(LINE, data, FitOptions(fixed={"slop": 1.0}))
    with pytest.raises(FitError, match="cannot be fixed there"):
        fit(LAWS["saturating"], data, FitOptions(fixed={"half": -1.0}))


def test_bad_requests_are_refused() -> None:
    data = line_data(5)
    with pytest.raises(FitError, match="fewer rows than parameters"):
        fit(LAWS["contention_hill"], data_from_arrays({"n_instances": [1, 2, 3]}, [3, 2, 1]))
    with pytest.raises(FitError, match="unknown loss"):
        fit(LINE, data, FitOptions(loss="square"))
    with pytest.raises(FitError, match="at least one start"):
        fit(LINE, data, FitOptions(n_starts=0))
    with pytest.raises(FitError, match="need y above zero"):
        fit(LINE, data_from_arrays({"x": [1, 2, 3]}, [1, -2, 3]), FitOptions(residual=Residual.LOG))
    with pytest.raises(FitError, match="to start from"):
        fit(LINE, data, FitOptions(start={"rise": 1.0}))


def test_as_many_points_as_parameters_says_nothing() -> None:
    result = fit(LINE, data_from_arrays({"x": [1, 2]}, [1.0, 3.0]))
    assert result.dof == 0
    assert result.grade is Grade.POOR
    assert "no-dof" in codes(result)
    assert math.isnan(result.sigma)
    assert np.isnan(result.stderr).all()


def test_parameter_at_its_bound_is_said() -> None:
    size = np.geomspace(1e3, 1e9, 30)
    y = size / 1e11 * (1.0 + 0.02 * np.random.default_rng(0).normal(size=30)) - 2e-9
    result = fit(LAWS["alpha_beta"], data_from_arrays({"bytes": size}, np.abs(y) + 1e-12))
    assert result.at_bound == ("t0_s",)
    assert result.parameters["t0_s"] == 0.0
    assert "at-bound" in codes(result)
    assert "stands at its bound" in verdict(result)
    assert math.isnan(result.stderr[0])
    assert math.isfinite(result.stderr[1])


def test_parameters_that_cannot_be_told_apart_are_said() -> None:
    twice = FitLaw(
        "twice", "twice the same", "(a + b) * x", "none", (Input("x", ""),), (real("a", "", "a"), real("b", "", "b")),
        lambda x, p: (p[0] + p[1]) * x[0], lambda x, y: (1.0, 2.0),
    )  # fmt: skip
    result = fit(twice, line_data())
    assert "singular" in codes(result)
    assert result.grade is Grade.POOR
    assert np.isinf(result.stderr).all()
    unused = FitLaw(
        "unused", "one for nothing", "a * x", "none", (Input("x", ""),), (real("a", "", "a"), positive("b", "", "b")),
        lambda x, p: p[0] * x[0] + 0.0 * p[1], lambda x, y: (1.0, 2.0),
    )  # fmt: skip
    lame = fit(unused, line_data())
    assert {"singular", "undetermined"} <= codes(lame)
    assert math.isfinite(lame.stderr[0])


def test_trade_off_is_said() -> None:
    x = np.linspace(100.0, 101.0, 30)
    result = fit(LINE, data_from_arrays({"x": x}, 1.0 + x + np.random.default_rng(0).normal(0, 0.05, 30)))
    assert "trade-off" in codes(result)


def test_bent_uneven_and_lacking_fits_are_said() -> None:
    x = np.repeat(np.linspace(1.0, 10.0, 20), 3)
    rng = np.random.default_rng(2)
    bent = fit(LINE, data_from_arrays({"x": x}, x**2 + rng.normal(0, 0.5, 60)))
    assert {"runs", "lack-of-fit"} <= codes(bent)
    uneven = fit(LINE, data_from_arrays({"x": x}, 2.0 * x * (1.0 + rng.normal(0, 0.1, 60))))
    assert "uneven-scatter" in codes(uneven)
    even = fit(
        LINE, data_from_arrays({"x": x}, 2.0 * x * np.exp(rng.normal(0, 0.1, 60))), FitOptions(residual=Residual.LOG)
    )
    assert not {"uneven-scatter", "runs"} & codes(even)


def test_noise_is_no_fit() -> None:
    rng = np.random.default_rng(4)
    result = fit(LINE, data_from_arrays({"x": np.arange(30.0)}, rng.normal(5.0, 1.0, 30)))
    assert "poor-fit" in codes(result)
    assert verdict(result).startswith("Do not use")


def test_clean_noise_raises_no_alarm() -> None:
    alarms = [codes(fit(LINE, line_data(40, seed=s), FitOptions(n_starts=1))) - {"undetermined"} for s in range(60)]
    assert sum(bool(a) for a in alarms) <= 6


def test_criterion_needs_points() -> None:
    assert math.isnan(information_criterion(1.0, 4, 2))
    assert math.isfinite(information_criterion(1.0, 4, 1))
    assert math.isfinite(information_criterion(1.0, 5, 2))


def test_given_parameters_are_held_against_data() -> None:
    data = line_data()
    good = evaluation(LINE, {"intercept": 2.0, "slope": 0.5}, data)
    assert good.errors.r_squared > 0.9
    assert "reproduces" in good.verdict
    bad = evaluation(LINE, {"intercept": 20.0, "slope": -0.5}, data)
    assert bad.errors.r_squared < 0.0
    assert "does not reproduce" in bad.verdict
    with pytest.raises(FitError, match="other parameters"):
        evaluation(LINE, {"slope": 0.5}, data)


def test_constant_y_gives_no_r_squared() -> None:
    result = fit(LINE, data_from_arrays({"x": np.arange(10.0)}, np.full(10, 3.0)))
    assert result.values[0] == pytest.approx(3.0)
    assert math.isnan(result.errors.r_squared)


def test_extrapolation_is_marked() -> None:
    result = fit(LINE, line_data())
    np.testing.assert_array_equal(result.extrapolated(np.array([-1.0, 5.0, 11.0])), [True, False, True])


def test_log_residuals_survive_a_start_below_zero() -> None:
    x = np.linspace(1.0, 50.0, 60)
    y = (3.0 + 2.0 * x**0.6) * np.exp(np.random.default_rng(0).normal(0, 0.02, 60))
    law = LAWS["offset_power"]
    start = {"offset": -50.0, "factor": 1.0, "exponent": 0.5}
    result = fit(law, data_from_arrays({"x": x}, y), FitOptions(residual=Residual.LOG, start=start))
    np.testing.assert_allclose(result.predicted, 3.0 + 2.0 * x**0.6, rtol=0.03)


def test_a_law_without_values_is_refused() -> None:
    nothing = FitLaw(
        "nothing", "no value", "nan", "none", (Input("x", ""),), (real("a", "", "a"),),
        lambda x, p: p[0] * x[0] * math.nan, lambda x, y: (1.0,),
    )  # fmt: skip
    with pytest.raises(FitError, match="cannot be evaluated"):
        fit(nothing, line_data())
