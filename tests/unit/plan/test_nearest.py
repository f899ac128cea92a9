"""Where nothing will do: the nearest miss is named, and what is proposed helps."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from perfmodel.plan.demand import Targets
from perfmodel.plan.finalists import contested
from perfmodel.plan.nearest import not_feasible
from perfmodel.plan.ranking import ranked
from perfmodel.plan.search import Plan
from perfmodel.specs.catalogue import Catalogue
from tests.unit.plan.plan_parts import USERS, small_plan


def message(plan: Plan) -> str:
    contest = contested(ranked(plan), simulate=False)
    assert not contest.order
    error = not_feasible(contest)
    assert error.exit_code == 1
    return str(error)


def test_a_looser_target_as_proposed_would_do(catalogue: Catalogue) -> None:
    targets = Targets(ttft_s=1.0, tpot_s=0.004, max_devices=16)
    plan = small_plan(catalogue, targets=targets)
    text = message(plan)
    assert "nearest:" in text
    found = re.search(r"would do: --tpot ([\d.]+)ms", text)
    assert found is not None
    enough = replace(plan, targets=replace(targets, tpot_s=float(found[1]) / 1e3))
    assert ranked(enough).winner is not None
    short = replace(plan, targets=replace(targets, tpot_s=float(found[1]) / 1e3 * 0.99))
    assert ranked(short).winner is None


def test_more_devices_as_proposed_would_do(catalogue: Catalogue) -> None:
    targets = Targets(tpot_s=0.0125, max_devices=2)
    found = re.search(
        r"would do: --max-devices (\d+)", message(small_plan(catalogue, targets=targets, in_flight=(8, 16)))
    )
    assert found is not None
    n = int(found[1])
    for most, is_enough in ((n, True), (n - 1, False)):
        plan = small_plan(catalogue, targets=replace(targets, max_devices=most), in_flight=(8, 16))
        assert (ranked(plan).winner is not None) == is_enough


def test_what_physics_forbids_is_said(catalogue: Catalogue) -> None:
    text = message(small_plan(catalogue, targets=Targets(tpot_s=0.0005, max_devices=16)))
    assert "below what physics allows" in text


def test_targets_that_exclude_each_other_are_named(catalogue: Catalogue) -> None:
    """48 users on one device keep 10 USD/h but not the TPOT; enough devices for that cost more than the budget."""
    plan = small_plan(catalogue, USERS, Targets(tpot_s=0.0125, budget_usd_per_hour=1.0, max_devices=16))
    table = plan.table
    assert (table.tpot_s <= 0.0125).any()
    assert (table.usd_per_hour <= 1.0).any()
    assert "--tpot and --budget exclude each other" in message(plan)


def test_memory_that_lacks_is_counted_with_what_would_fit(catalogue: Catalogue) -> None:
    text = message(small_plan(catalogue, hardware=("rtx-4060",), tp=(1,)))
    assert "too little memory" in text
    assert "would fit:" in text


def test_a_budget_without_prices_is_said(catalogue: Catalogue) -> None:
    plan = small_plan(catalogue, targets=Targets(budget_usd_per_hour=5.0), hardware=("rtx-4090",), prices={})
    assert "give --price" in message(plan)


def test_layouts_that_cannot_be_cut_are_listed(catalogue: Catalogue) -> None:
    assert "divisor" in message(small_plan(catalogue, tp=(3,)))


@pytest.mark.parametrize("percentile", [99])
def test_a_percentile_that_misses_is_said(catalogue: Catalogue, percentile: int) -> None:
    plan = small_plan(catalogue, hardware=("rtx-4090",), tp=(1,), in_flight=(24,))
    row = 0
    between = float(plan.table.ttft_s[row]) * 1.01
    targets = Targets(ttft_s=between, percentile=percentile, max_devices=16)
    contest = contested(ranked(replace(plan, targets=targets)))
    assert not contest.order
    assert "p99 of time to first token" in str(not_feasible(contest))
