"""The order of rivals: what meets the targets first, by the objective, and a reason for everyone else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.errors import SpecError
from perfmodel.plan.demand import Targets
from perfmodel.plan.ranking import OBJECTIVES, excesses, ranked, row_energy_j
from perfmodel.specs.catalogue import Catalogue
from tests.unit.plan.plan_parts import RATE, small_plan

TARGETS = Targets(ttft_s=0.5, tpot_s=0.04, max_devices=16)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_winner_has_the_best_score_of_all_that_meet(catalogue: Catalogue, objective: str) -> None:
    ranking = ranked(small_plan(catalogue, targets=TARGETS), objective)
    winner = ranking.winner
    assert winner is not None
    assert ranking.meets[winner.row]
    assert ranking.score[winner.row] == np.min(ranking.score[ranking.meets])


def test_every_rival_is_there_once_and_those_that_miss_say_why(catalogue: Catalogue) -> None:
    plan = small_plan(catalogue, targets=TARGETS, hardware=("a100-80gb-sxm", "rtx-4090", "rtx-4060"), tp=(1,))
    ranking = ranked(plan)
    assert sorted(r.family.hardware for r in ranking.rivals) == ["a100-80gb-sxm", "rtx-4060", "rtx-4090"]
    for rival in ranking.rivals:
        assert rival.is_feasible == (rival.misses == "")
    assert "GiB" in ranking.rivals[-1].misses


def test_rows_of_a_rival_meet_every_target_and_grow_in_score(catalogue: Catalogue) -> None:
    ranking = ranked(small_plan(catalogue, RATE, targets=TARGETS), "cost")
    table = ranking.plan.table
    for rival in ranking.rivals:
        rows = rival.rows
        assert np.all(np.diff(ranking.score[rows]) >= 0)
        assert np.all((table.ttft_s[rows] <= 0.5) & (table.tpot_s[rows] <= 0.04) & (table.n_devices[rows] <= 16))


def test_prices_that_are_not_known_are_said_and_ranked_without(catalogue: Catalogue) -> None:
    plan = small_plan(catalogue, targets=TARGETS, prices={})
    ranking = ranked(plan)
    assert ranking.objective == "devices"
    assert "rtx-4090" in ranking.remarks[0]
    by_cost = ranked(plan, "cost")
    assert by_cost.winner is not None
    assert by_cost.winner.family.hardware == "a100-80gb-sxm"
    assert ranked(small_plan(catalogue, targets=TARGETS)).objective == "cost"


def test_a_budget_without_a_price_is_not_met(catalogue: Catalogue) -> None:
    plan = small_plan(catalogue, targets=replace(TARGETS, budget_usd_per_hour=100.0), prices={})
    over = excesses(plan)["budget"]
    names = np.array([one.family.hardware for one in plan.candidates])[plan.table.candidate]
    assert np.all(np.isinf(over[names == "rtx-4090"]))
    assert np.all(np.isfinite(over[names == "a100-80gb-sxm"]))


def test_cost_of_a_million_tokens_by_hand(catalogue: Catalogue) -> None:
    """2 devices at 1.3 USD/h that make t tokens/s: 2.6 / (3600 t) a token."""
    plan = small_plan(catalogue, hardware=("a100-80gb-sxm",), tp=(2,))
    table = plan.table
    row = int(np.flatnonzero(table.n_replicas == 1)[0])
    tokens_per_s = 48 / table.e2e_s[row] * 128
    assert table.usd_per_million_tokens[row] == pytest.approx(2.6 / 3600 / tokens_per_s * 1e6, rel=1e-12)


def test_energy_lies_between_idle_and_board_power(catalogue: Catalogue) -> None:
    plan = small_plan(catalogue, hardware=("a100-80gb-sxm",))
    energy, table = row_energy_j(plan), plan.table
    n = np.array([one.cut.n_devices for one in plan.candidates])[table.candidate]
    watts = energy * table.requests_per_s * table.output_tokens / n
    assert np.all((watts > 30.0) & (watts <= 400.0))
    assert np.argmin(energy) != np.argmin(table.in_flight)  # a fuller replica wastes less


def test_an_unknown_objective_is_refused(catalogue: Catalogue) -> None:
    with pytest.raises(SpecError, match="objective"):
        ranked(small_plan(catalogue, tp=(1,)), "beauty")
