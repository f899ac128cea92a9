"""Laws of planning that hold whatever is asked: more choice never hurts, and fronts are fronts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from perfmodel.plan.demand import Demand, Targets
from perfmodel.plan.pareto import front
from perfmodel.plan.ranking import OBJECTIVES, ranked
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.catalogue_kept import KeptCatalogue
from tests.unit.plan.plan_parts import small_plan

FEW = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
DEMANDS = st.one_of(
    st.builds(
        Demand,
        input_tokens=st.sampled_from([64.0, 700.0, 3000.0]),
        output_tokens=st.sampled_from([2.0, 100.0, 900.0]),
        n_users=st.integers(1, 300).map(float),
    ),
    st.builds(
        Demand,
        input_tokens=st.sampled_from([64.0, 700.0]),
        output_tokens=st.sampled_from([2.0, 100.0]),
        requests_per_s=st.floats(0.1, 40.0),
    ),
)


def best(catalogue: Catalogue, demand: Demand, targets: Targets, objective: str, hardware: tuple[str, ...]) -> float:
    """Return the winner's score, infinite where nothing meets the targets."""
    ranking = ranked(small_plan(catalogue, demand, targets, hardware=hardware), objective)
    return float("inf") if ranking.winner is None else float(ranking.score[ranking.winner.row])


@FEW
@given(demand=DEMANDS, tpot_s=st.floats(0.005, 0.2), objective=st.sampled_from(sorted(OBJECTIVES)))
def test_more_hardware_is_never_worse(catalogue: Catalogue, demand: Demand, tpot_s: float, objective: str) -> None:
    kept = KeptCatalogue.of(catalogue)
    targets = Targets(tpot_s=tpot_s, max_devices=16)
    few = best(kept, demand, targets, objective, ("rtx-4090",))
    more = best(kept, demand, targets, objective, ("rtx-4090", "a100-80gb-sxm"))
    assert more <= few
    assert best(kept, demand, replace(targets, max_devices=24), objective, ("rtx-4090",)) <= few


@FEW
@given(demand=DEMANDS, tpot_s=st.floats(0.005, 0.1), factor=st.floats(1.0, 5.0))
def test_a_looser_target_never_costs_more(catalogue: Catalogue, demand: Demand, tpot_s: float, factor: float) -> None:
    kept = KeptCatalogue.of(catalogue)
    strict = Targets(ttft_s=10 * tpot_s, tpot_s=tpot_s, max_devices=16)
    loose = replace(strict, tpot_s=tpot_s * factor, ttft_s=10 * tpot_s * factor)
    hardware = ("rtx-4090", "a100-80gb-sxm")
    assert best(kept, demand, loose, "cost", hardware) <= best(kept, demand, strict, "cost", hardware)


POINTS = arrays(np.float64, st.tuples(st.integers(0, 60), st.just(2)), elements=st.sampled_from([1.0, 2, 3, 4, 5, 6]))


@given(points=POINTS)
def test_a_front_holds_what_nothing_dominates_and_the_rest_is_dominated(points: np.ndarray) -> None:
    x, y = points[:, 0], points[:, 1]
    kept = front(x, y)
    assert np.all(np.diff(x[kept]) > 0)
    assert np.all(np.diff(y[kept]) < 0)

    def dominated(i: int) -> bool:
        better = (x >= x[i]) & (y >= y[i]) & ((x > x[i]) | (y > y[i]))
        return bool(better.any())

    on_front = {(x[i], y[i]) for i in kept}
    for i in range(len(x)):
        assert dominated(i) != ((x[i], y[i]) in on_front)


def test_points_that_are_not_finite_are_left_out() -> None:
    x = np.array([1.0, np.nan, 2.0, np.inf])
    y = np.array([1.0, 9.0, np.nan, 1.0])
    assert front(x, y).tolist() == [0]
    assert front(np.array([]), np.array([])).tolist() == []
