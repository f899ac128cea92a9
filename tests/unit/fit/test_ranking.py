"""Rankings: the true law wins where data suffice, and few points earn few words."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.errors import FitError
from perfmodel.fit.crossval import left_out_groups, left_out_rows
from perfmodel.fit.data import FitData, data_from_arrays
from perfmodel.fit.fitter import evaluation, fit
from perfmodel.fit.laws import LAWS, candidate_laws
from perfmodel.fit.ranking import Criterion, Standing, ranked_fits
from perfmodel.fit.result import FitOptions, Residual

CONTENTION = candidate_laws(("n_instances",), "ipc")


@pytest.fixture
def ipc() -> FitData:
    """Return IPC against the number of instances as the article tabulates it."""
    return data_from_arrays({"n_instances": [1, 4, 12, 16]}, [3.27, 2.61, 1.53, 1.42], y_name="ipc")


def test_printed_formula_does_not_reproduce_its_data(ipc: FitData) -> None:
    entry = evaluation(LAWS["contention_printed"], {"base": 3.27, "alpha": 0.82, "beta": 1.35}, ipc)
    np.testing.assert_allclose(entry.predicted, [1.93, 0.95, 0.68, 0.65], atol=0.005)
    assert entry.errors.r_squared < -1.0
    assert "does not reproduce" in entry.verdict


def test_four_points_earn_four_points_of_confidence(ipc: FitData) -> None:
    ranking = ranked_fits(CONTENTION, ipc)
    assert ranking.criterion is Criterion.LEFT_OUT
    for entry in ranking.entries:
        k = len(entry.law.parameters)
        assert entry.standing is (Standing.RANKED if k == 2 else Standing.NOT_IDENTIFIABLE), entry.law.name
        assert math.isnan(entry.aicc)
        assert math.isfinite(entry.left_out_error) == (k == 2)
    assert ranking.best is not None
    assert ranking.best.law.name == "contention_hyperbolic"
    assert ranking.best.result is not None
    assert ranking.best.result.errors.r_squared > 0.99
    assert "4 points' worth" in ranking.verdict
    assert "Not identifiable with 4 points" in ranking.verdict
    assert "sixteen on eight cards" in ranking.verdict
    assert "placement" in ranking.verdict


def test_one_free_parameter_on_four_points_has_an_aicc(ipc: FitData) -> None:
    fixed = {"base": 3.27, "alpha": 0.82, "beta": 1.35}
    ranking = ranked_fits([LAWS["contention_hill"]], ipc, FitOptions(fixed=fixed))
    assert ranking.criterion is Criterion.AICC
    assert ranking.best is not None
    assert ranking.best.result is not None
    assert ranking.best.result.parameters["n0"] == pytest.approx(7.36, abs=0.05)


@pytest.mark.parametrize(
    ("name", "truth"),
    [
        ("contention_exponential", (3.3, 12.0)),
        ("contention_hyperbolic", (3.3, 6.0)),
        ("contention_power", (3.3, 0.4)),
        ("contention_hill", (3.3, 0.7, 8.0, 3.0)),
        ("contention_linear", (3.3, 0.025)),
    ],
)
def test_the_true_law_wins(name: str, truth: tuple[float, ...]) -> None:
    n = np.tile(np.arange(1.0, 33.0), 2)
    rng = np.random.default_rng(7)
    y = LAWS[name].value((n,), truth) + rng.normal(0.0, 0.03, n.size)
    ranking = ranked_fits(CONTENTION, data_from_arrays({"n_instances": n}, y), FitOptions(n_starts=4))
    assert ranking.criterion is Criterion.AICC
    assert ranking.best is not None
    winners = {e.law.name for e in ranking.entries if e.close}
    assert name in winners
    assert sum(e.weight for e in ranking.entries if e.standing is Standing.RANKED) == pytest.approx(1.0)


def test_nothing_can_be_said_about_two_points() -> None:
    data = data_from_arrays({"layer": [5, 12]}, [0.023, 0.041])
    ranking = ranked_fits(candidate_laws(("layer",)), data)
    assert ranking.best is None
    assert ranking.criterion is Criterion.NONE
    assert "No law can be judged with 2 points" in ranking.verdict


def test_a_robust_ranking_goes_by_left_out_error() -> None:
    n = np.arange(1.0, 33.0)
    y = 3.3 * np.exp(-(n - 1.0) / 12.0)
    y[5] = 9.0
    laws = [LAWS["contention_exponential"], LAWS["contention_linear"]]
    ranking = ranked_fits(laws, data_from_arrays({"n_instances": n}, y), FitOptions(loss="cauchy", n_starts=2))
    assert ranking.criterion is Criterion.LEFT_OUT
    assert ranking.best is not None
    assert ranking.best.law.name == "contention_exponential"


def test_a_law_that_cannot_be_fitted_is_named() -> None:
    data = data_from_arrays({"x": np.arange(-5.0, 5.0)}, np.arange(10.0))
    ranking = ranked_fits([LAWS["linear"], LAWS["power"]], data)
    assert ranking.entries[-1].standing is Standing.FAILED
    assert "x is outside its range" in ranking.entries[-1].reason
    assert "Not fitted: power" in ranking.verdict
    with pytest.raises(FitError, match="no law to rank"):
        ranked_fits([], data)


def test_left_out_errors() -> None:
    rng = np.random.default_rng(0)
    x = np.linspace(1.0, 20.0, 40)
    group = [f"g{i // 10}" for i in range(40)]
    data = data_from_arrays({"x": x}, (1.0 + x) * np.exp(rng.normal(0, 0.05, 40)), group=group)
    result = fit(LAWS["linear"], data, FitOptions(residual=Residual.LOG))
    rows, groups = left_out_rows(result), left_out_groups(result)
    assert rows.error == pytest.approx(result.sigma, rel=0.3)
    assert groups.error >= rows.error * 0.95
    assert set(groups.by_group) == {"g0", "g1", "g2", "g3"}
    assert groups.n_failed == 0
    with pytest.raises(FitError, match="no group column"):
        left_out_groups(fit(LAWS["linear"], data_from_arrays({"x": x}, x)))
    with pytest.raises(FitError, match="one group"):
        left_out_groups(fit(LAWS["linear"], data_from_arrays({"x": x}, x, group=["a"] * 40)))
    with pytest.raises(FitError, match="do not allow a left-out error"):
        left_out_rows(fit(LAWS["linear"], data_from_arrays({"x": [1, 2, 3]}, [1, 2, 4])))


def test_left_out_row_equals_the_leverage_formula() -> None:
    rng = np.random.default_rng(1)
    x = np.arange(12.0)
    data = data_from_arrays({"x": x}, 1.0 + x + rng.normal(0, 0.5, 12))
    result = fit(LAWS["linear"], data)
    expected = result.residuals / (1.0 - result.leverage)
    np.testing.assert_allclose(left_out_rows(result).predicted - data.y, expected, rtol=1e-6, atol=1e-9)
