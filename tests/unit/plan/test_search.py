"""The search: rows are what the single answer is, chunks do not matter, and nothing is beyond memory."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.errors import UnknownNameError
from perfmodel.plan.demand import Demand, Targets
from perfmodel.plan.search import open_loop_at, point_at
from perfmodel.plan.space import Cut, Space, cuts
from perfmodel.specs.catalogue import Catalogue
from tests.unit.plan.plan_parts import RATE, USERS, small_plan


@pytest.mark.parametrize("demand", [USERS, RATE], ids=["users", "rate"])
def test_a_row_is_the_scalar_answer(catalogue: Catalogue, demand: Demand) -> None:
    plan = small_plan(catalogue, demand)
    table = plan.table
    assert len(table) > 20
    for row in range(0, len(table), 7):
        one = plan.candidates[table.candidate[row]]
        point = point_at(one, demand, float(table.in_flight[row]))
        found = (point.ttft.value, point.tpot.value, point.e2e.value, point.requests_per_s)
        assert all(isinstance(value, float) for value in found)
        columns = (table.ttft_s, table.tpot_s, table.e2e_s, table.requests_per_s)
        np.testing.assert_allclose([float(v) for v in found], [column[row] for column in columns], rtol=1e-12)


def test_chunks_do_not_change_the_answer(catalogue: Catalogue) -> None:
    one, many = (small_plan(catalogue, RATE, chunk_rows=rows).table for rows in (5, 10_000))
    for name in ("candidate", "in_flight", "ttft_s", "tpot_s", "e2e_s", "n_replicas", "n_devices", "usd_per_hour"):
        np.testing.assert_allclose(getattr(one, name), getattr(many, name), rtol=1e-12)


def test_no_row_holds_more_than_memory_does(catalogue: Catalogue) -> None:
    plan = small_plan(catalogue, USERS)
    most = np.array([one.most_in_flight for one in plan.candidates])[plan.table.candidate]
    assert np.all(plan.table.in_flight <= most)
    assert np.all(plan.table.n_replicas * plan.table.in_flight >= 48)


def test_an_open_loop_keeps_room_for_its_swings(catalogue: Catalogue) -> None:
    plan = small_plan(catalogue, RATE)
    n = plan.table.in_flight
    most = np.array([one.most_in_flight for one in plan.candidates])[plan.table.candidate]
    assert np.all(n + 2 * np.sqrt(n) <= most * (1 + 1e-12))
    # A replica that gets no more than the row's rate is stable in the open loop.
    row = len(n) - 1
    one = plan.candidates[plan.table.candidate[row]]
    assert RATE.requests_per_s is not None
    share = RATE.requests_per_s / plan.table.n_replicas[row]
    assert float(open_loop_at(one, RATE, float(share)).stable) == 1.0


def test_headroom_leaves_fewer_in_flight(catalogue: Catalogue) -> None:
    """4090: 8B in bf16 leaves a few GiB, so that the cache binds; half of it kept free halves what fits."""
    full, half = (
        small_plan(catalogue, hardware=("rtx-4090",), tp=(1,), headroom_frac=frac).candidates[0].most_in_flight
        for frac in (0.0, 0.5)
    )
    assert 0.4 * full <= half <= 0.5 * full


def test_what_cannot_be_is_refused_with_its_reason(catalogue: Catalogue) -> None:
    plan = small_plan(catalogue, hardware=("rtx-4060",), tp=(1, 3))
    kinds = {(r.cut.tp, r.kind) for r in plan.refused}
    assert kinds == {(1, "memory"), (3, "layout")}
    assert not len(plan.table)
    assert all(r.reason for r in plan.refused)


def test_unknown_names_are_errors(catalogue: Catalogue) -> None:
    with pytest.raises(UnknownNameError, match="did you mean"):
        small_plan(catalogue, hardware=("a100-80gb-smx",))
    with pytest.raises(UnknownNameError):
        small_plan(catalogue, runtimes=("vllm-99",))


def test_layouts_of_experts_and_of_dense_models(catalogue: Catalogue) -> None:
    space = Space(models=("m",), hardware=("h",))
    dense = set(cuts(catalogue.model("llama-3.1-8b").model, space, 4))
    assert dense == {Cut(1), Cut(2), Cut(4), Cut(1, 2), Cut(2, 2), Cut(1, 4)}
    experts = set(cuts(catalogue.model("deepseek-v3").model, space, 8))
    assert {Cut(8), Cut(8, ep=8), Cut(1, 1, 8, 8), Cut(2, 1, 4, 8)} <= experts
    assert all(cut.n_devices <= 8 for cut in experts)


def test_availability_bounds_the_layouts(catalogue: Catalogue) -> None:
    targets = Targets(max_devices=16, available={"rtx-4090": 1})
    plan = small_plan(catalogue, targets=targets)
    widest = {one.family.hardware: one.cut.n_devices for one in plan.candidates}
    assert widest == {"a100-80gb-sxm": 2, "rtx-4090": 1}
