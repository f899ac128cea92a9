"""Finalists: what the simulation says against the closed form, and who gives way to whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.plan.assurance import likelihood_with, sure_replicas
from perfmodel.plan.demand import Demand, Targets
from perfmodel.plan.finalists import contested, finalist_of, simulated_replica
from perfmodel.plan.ranking import ranked
from perfmodel.specs.catalogue import Catalogue
from tests.unit.plan.plan_parts import RATE, USERS, small_plan

TARGETS = Targets(ttft_s=1.0, tpot_s=0.04, max_devices=16)


@pytest.mark.parametrize("demand", [USERS, RATE], ids=["users", "rate"])
def test_the_simulation_confirms_the_steady_state(catalogue: Catalogue, demand: Demand) -> None:
    """Mean and median are not the same figure, but they lie within a fifth of each other here."""
    contest = contested(ranked(small_plan(catalogue, demand, TARGETS), "cost"))
    winner = contest.winner
    assert winner is not None
    assert winner.simulated is not None
    assert winner.simulated.misses(TARGETS) == ""
    for name in ("tpot_s", "e2e_s"):
        mean = winner.band(name)[0]
        assert winner.simulated.percentiles[name][50] == pytest.approx(mean, rel=0.2)
    # The replica serves its share of what the row promises; an empty start and end cost some of it.
    share = contest.ranked.plan.table.served_per_s[winner.row] / winner.n_replicas
    assert winner.simulated.requests_per_s == pytest.approx(share, rel=0.15)


def test_percentiles_grow_and_the_same_seed_gives_the_same(catalogue: Catalogue) -> None:
    plan = small_plan(catalogue, RATE, TARGETS, hardware=("a100-80gb-sxm",), tp=(1,))
    one, _ = simulated_replica(plan.candidates[0], RATE, n_replicas=1, e2e_s=2.0)
    two, _ = simulated_replica(plan.candidates[0], RATE, n_replicas=1, e2e_s=2.0)
    assert one == two
    for found in one.percentiles.values():
        assert list(found.values()) == sorted(found.values())


def test_an_overloaded_replica_is_not_stable(catalogue: Catalogue) -> None:
    flood = Demand(input_tokens=512, output_tokens=128, requests_per_s=400.0)
    plan = small_plan(catalogue, RATE, TARGETS, hardware=("rtx-4090",), tp=(1,))
    found, _ = simulated_replica(plan.candidates[0], flood, n_replicas=1, e2e_s=5.0)
    assert "queue grows" in found.misses(TARGETS)


def test_a_row_that_misses_the_percentile_gives_way(catalogue: Catalogue) -> None:
    """A target between mean and percentile of the cheapest row: the plan takes more replicas than the mean needs."""
    plan = small_plan(catalogue, USERS, replace(TARGETS, ttft_s=None), hardware=("rtx-4090",), tp=(1,))
    first = contested(ranked(plan, "cost"), simulate=False).winner
    assert first is not None
    found, _ = simulated_replica(
        first.candidate, USERS, n_replicas=first.n_replicas, e2e_s=float(plan.table.e2e_s[first.row])
    )
    between = 0.5 * (first.band("tpot_s")[0] + found.percentiles["tpot_s"][95])
    assert first.band("tpot_s")[0] < between < found.percentiles["tpot_s"][95]
    tight = replace(plan, targets=replace(plan.targets, tpot_s=between))
    by_mean = contested(ranked(tight, "cost"), simulate=False).winner
    by_percentile = contested(ranked(tight, "cost")).winner
    assert by_mean is not None
    assert by_percentile is not None
    assert by_percentile.n_replicas > by_mean.n_replicas
    assert by_percentile.simulated is not None
    assert by_percentile.simulated.percentiles["tpot_s"][95] <= between


def test_shares_of_the_bounds_add_up_and_bands_hold_the_value(catalogue: Catalogue) -> None:
    plan = small_plan(catalogue, USERS, TARGETS)
    one = finalist_of(plan, 0)
    assert sum(share for _, share in one.bounds) == pytest.approx(1.0)
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        value, low, high = one.band(name)
        assert low < value < high


def test_more_replicas_make_it_surer(catalogue: Catalogue) -> None:
    plan = small_plan(catalogue, USERS, replace(TARGETS, tpot_s=0.03))
    winner = contested(ranked(plan, "cost"), simulate=False).winner
    assert winner is not None
    chances = [likelihood_with(winner, USERS, plan.targets, n).both for n in range(winner.n_replicas, 12)]
    assert chances == sorted(chances)
    sure = sure_replicas(plan, winner, 0.9)
    assert sure is not None
    assert likelihood_with(winner, USERS, plan.targets, sure).both >= 0.9
    if sure > winner.n_replicas:
        assert likelihood_with(winner, USERS, plan.targets, sure - 1).both < 0.9


def test_where_no_number_of_replicas_is_sure_it_is_said(catalogue: Catalogue) -> None:
    plan = small_plan(catalogue, USERS, TARGETS, hardware=("rtx-4090",), tp=(1,))
    winner = contested(ranked(plan, "cost"), simulate=False).winner
    assert winner is not None
    hopeless = replace(plan, targets=replace(TARGETS, tpot_s=0.005))
    assert sure_replicas(hopeless, winner, 0.9) is None


def test_a_confidence_takes_more_devices_and_is_kept(catalogue: Catalogue) -> None:
    plan = small_plan(catalogue, USERS, replace(TARGETS, tpot_s=0.03))
    easy = contested(ranked(plan, "devices"))
    wanted = replace(plan, targets=replace(plan.targets, confidence_frac=0.95))
    sure = contested(ranked(wanted, "devices"))
    assert easy.winner is not None
    assert sure.winner is not None
    assert easy.winner.likelihood.both < 0.95 <= sure.winner.likelihood.both
    assert sure.winner.n_devices > easy.winner.n_devices
    assert all(sure.finalists[i].likelihood.both >= 0.95 for i in sure.order)
    tight = float(plan.table.tpot_s.min()) * 1.001
    hopeless = contested(
        ranked(replace(plan, targets=replace(plan.targets, tpot_s=tight, confidence_frac=0.99)), "devices")
    )
    assert not hopeless.order
    assert any("less than 99 %" in text for text in hopeless.lost.values())
