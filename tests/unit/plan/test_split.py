"""Prefill and decode apart: the closed form by hand and against the simulation, and the choice among splits."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from perfmodel.plan.demand import Demand, Targets
from perfmodel.plan.finalists import contested
from perfmodel.plan.nearest import not_feasible
from perfmodel.plan.ranking import Ranked, ranked
from perfmodel.plan.split import Split, best_split, confirmed_split, simulated_split, splits_of
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.request import request_estimate
from tests.unit.plan.plan_parts import RATE, USERS, small_plan

TARGETS = Targets(ttft_s=1.0, tpot_s=0.03, max_devices=16)


def ranking_of(catalogue: Catalogue, demand: Demand, targets: Targets = TARGETS) -> Ranked:
    return ranked(small_plan(catalogue, demand, targets, hardware=("a100-80gb-sxm",)), "devices")


def splits(ranking: Ranked) -> tuple[Split, ...]:
    return splits_of(ranking, ranking.rivals[0].family)


@pytest.mark.parametrize("demand", [USERS, RATE], ids=["users", "rate"])
def test_replicas_carry_the_load_of_their_part(catalogue: Catalogue, demand: Demand) -> None:
    for s in splits(ranking_of(catalogue, demand)):
        alone = request_estimate(
            s.candidate.case.engine,
            batch=1.0,
            input_tokens=demand.input_tokens,
            output_tokens=1.0,
            token_budget=float(s.candidate.plan.limits.max_num_batched_tokens),
        )
        prompt_s = float(alone.ttft.value)
        assert s.served_per_s * prompt_s <= 0.95 * s.n_prefill * (1 + 1e-6)
        decoding_s = s.tpot_s * (demand.output_tokens - 1)
        assert s.served_per_s * decoding_s <= s.n_decode * s.in_flight * (1 + 1e-6)
        assert s.in_flight <= s.candidate.most_in_flight
        if demand.n_users is not None:
            # Little's law: everybody is somewhere.
            assert s.served_per_s * s.e2e_s == pytest.approx(demand.n_users, rel=0.02)


def test_one_prefill_replica_waits_as_one_server_with_even_service(catalogue: Catalogue) -> None:
    """Pollaczek-Khinchine: P (1 + busy / 2 (1 - busy))."""
    light = Demand(input_tokens=512, output_tokens=128, requests_per_s=8.0)
    one = next(s for s in splits(ranking_of(catalogue, light)) if s.n_prefill == 1)
    engine = one.candidate.case.engine
    prompt = request_estimate(engine, batch=1.0, input_tokens=512.0, output_tokens=1.0, token_budget=2048.0)
    prompt_s = float(prompt.ttft.value)
    busy = 8.0 * prompt_s
    assert one.ttft_s == pytest.approx(prompt_s * (1 + 0.5 * busy / (1 - busy)), rel=1e-9)


def test_further_prefill_replicas_shorten_the_wait(catalogue: Catalogue) -> None:
    found = splits(ranking_of(catalogue, RATE))
    same = [s for s in found if s.candidate is found[0].candidate and s.in_flight == found[0].in_flight]
    ordered = sorted(same, key=lambda s: s.n_prefill)
    assert len(ordered) > 2
    assert all(b.ttft_s < a.ttft_s for a, b in pairwise(ordered))


@pytest.mark.parametrize("demand", [USERS, RATE], ids=["users", "rate"])
def test_the_simulation_agrees(catalogue: Catalogue, demand: Demand) -> None:
    ranking = ranking_of(catalogue, demand)
    best = best_split(splits(ranking), TARGETS, 1.3)
    assert best is not None
    found = simulated_split(best, demand)
    assert found.percentiles["tpot_s"][50] == pytest.approx(best.tpot_s, rel=0.15)
    assert found.requests_per_s == pytest.approx(best.served_per_s, rel=0.2)


def test_a_confirmed_split_keeps_the_percentiles(catalogue: Catalogue) -> None:
    ranking = ranking_of(catalogue, RATE)
    found = confirmed_split(ranking, splits(ranking))
    assert found is not None
    assert found.simulated is not None
    assert found.simulated.misses(TARGETS) == ""
    assert found.n_devices == (found.n_prefill + found.n_decode) * found.candidate.cut.n_devices


def test_a_split_that_misses_gives_way_to_one_with_a_shorter_mean(catalogue: Catalogue) -> None:
    """A target between mean and percentile of the first choice: the confirmed split waits less than that one."""
    ranking = ranking_of(catalogue, USERS)
    every = splits(ranking)
    first = best_split(every, TARGETS, 1.3)
    assert first is not None
    p95 = simulated_split(first, USERS).percentiles["ttft_s"][95]
    assert p95 > first.ttft_s
    tight = replace(TARGETS, ttft_s=0.5 * (first.ttft_s + p95))
    narrow = replace(ranking, plan=replace(ranking.plan, targets=tight))
    found = confirmed_split(narrow, every)
    assert found is not None
    assert found.ttft_s < first.ttft_s
    assert found.simulated is not None
    assert found.simulated.percentiles["ttft_s"][95] <= 0.5 * (first.ttft_s + p95)


def test_the_best_keeps_every_target(catalogue: Catalogue) -> None:
    ranking = ranking_of(catalogue, RATE)
    every = splits(ranking)
    best = best_split(every, TARGETS, 1.3)
    assert best is not None
    kept = [s for s in every if s.ttft_s <= 1.0 and s.tpot_s <= 0.03 and s.n_devices <= 16]
    assert best.score == min(s.score for s in kept)
    assert best_split(every, replace(TARGETS, tpot_s=1e-4), 1.3) is None
    assert best_split(every, replace(TARGETS, max_devices=1), 1.3) is None
    paid = replace(TARGETS, budget_usd_per_hour=100.0)
    assert best_split(every, paid, None) is None
    assert best_split(every, paid, 1.3) is not None
    assert best_split(every, replace(TARGETS, budget_usd_per_hour=1.0), 1.3) is None


def test_where_only_a_split_will_do_it_is_named(catalogue: Catalogue) -> None:
    """Long prompts and a tight time per token: mixed steps miss it at any load that a replica is worth."""
    demand = Demand(input_tokens=4000, output_tokens=100, requests_per_s=10.0)
    targets = Targets(ttft_s=2.0, tpot_s=0.02, max_devices=32)
    wide = ranked(small_plan(catalogue, demand, targets, hardware=("a100-80gb-sxm",), tp=(1,)), "devices")
    apart = best_split(splits(wide), targets, 1.3)
    assert wide.winner is not None
    assert apart is not None
    mixed = wide.score[wide.winner.row]
    assert apart.n_devices < mixed
    narrow = replace(targets, max_devices=int(mixed) - 1)
    plan = small_plan(catalogue, demand, narrow, hardware=("a100-80gb-sxm",), tp=(1,))
    contest = contested(ranked(plan, "devices"), simulate=False)
    assert not contest.order
    assert "prefill and decode apart" in str(not_feasible(contest))
