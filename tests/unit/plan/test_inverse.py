"""Roots, crossings, figures that are needed, and where a choice pays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import SpecError
from perfmodel.plan.breakeven import break_even_instance, break_even_quantization, break_even_tp
from perfmodel.plan.inverse import bisected, crossings, needed_for
from perfmodel.plan.knobs import Scene, knobs_of
from perfmodel.plan.sensitivity import outputs, steady_of
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.deployment import Deployment
from perfmodel.step.question import Question, case_of

QUESTION = Question(
    model="llama-3.1-8b", hardware="a100-80gb-sxm", deployment=Deployment(tp=2), input_tokens=500, output_tokens=200
)


@given(root=st.floats(1e-3, 1e3), power=st.floats(0.2, 5.0))
def test_a_monotone_root_is_found(root: float, power: float) -> None:
    found = bisected(lambda x: x**power - root**power, root / 7.0, root * 11.0)
    assert found == pytest.approx(root, rel=1e-8)


def test_without_a_change_of_sign_there_is_none() -> None:
    assert bisected(lambda x: x + 1.0, 1.0, 2.0) is None
    assert bisected(lambda x: float("nan"), 1.0, 2.0) is None
    assert bisected(lambda x: x - 1.0, 1.0, 2.0) == 1.0
    with pytest.raises(SpecError, match="interval"):
        bisected(lambda x: x, 2.0, 1.0)


def test_all_crossings_are_found() -> None:
    """sin(x) = 0 at pi and 2 pi within 1 to 7."""
    x = np.linspace(1.0, 7.0, 40)
    found = crossings(x, np.sin(x), np.zeros_like(x), np.sin)
    np.testing.assert_allclose(found, [np.pi, 2 * np.pi], rtol=1e-8)
    gap = np.where(np.arange(40) == 20, np.nan, 1.0)
    assert crossings(x, gap, np.zeros_like(x), lambda _: 1.0) == ()


def scene(catalogue: Catalogue, hardware: str = "a100-80gb-sxm") -> Scene:
    case = case_of(catalogue, replace(QUESTION, hardware=hardware))
    return Scene(case=case, concurrency=8.0, input_tokens=500.0, output_tokens=200.0)


def test_the_needed_figure_reaches_the_target(catalogue: Catalogue) -> None:
    """What memory bandwidth gives an L20 the time per token of an A100?"""
    mine = scene(catalogue, "l20")
    target = float(outputs(scene(catalogue))["tpot_s"])
    base = float(outputs(mine)["tpot_s"])
    assert base > target
    knob = next(k for k in knobs_of(mine, (steady_of(mine).one.e2e,)) if k.name == "device.memory[dram].bandwidth")
    needed = needed_for(mine, knob, "tpot_s", 0.5 * (base + target))
    assert needed.factor is not None
    assert needed.factor > 1
    reached = float(outputs(knob.turned(mine, needed.factor))["tpot_s"])
    assert reached == pytest.approx(0.5 * (base + target), rel=1e-6)
    assert needed.value == pytest.approx(mine.case.setup.devices[0].dram_bytes_per_s * needed.factor)


def test_what_no_value_of_the_figure_reaches_is_none(catalogue: Catalogue) -> None:
    mine = scene(catalogue)
    knob = next(k for k in knobs_of(mine, (steady_of(mine).one.e2e,)) if k.name == "runtime.host_per_step")
    assert needed_for(mine, knob, "tpot_s", 1e-6).factor is None
    here = float(outputs(mine)["tpot_s"])
    assert needed_for(mine, knob, "tpot_s", here).factor == 1.0


def test_break_even_points_are_equal_on_both_sides(catalogue: Catalogue) -> None:
    question = replace(QUESTION, deployment=Deployment(tp=4))
    for found in (
        *break_even_tp(catalogue, question),
        *break_even_quantization(catalogue, question, "awq-int4-g128"),
    ):
        for x in found.at:
            i = int(np.searchsorted(found.users, x))
            low, high = found.of_first[i - 1] - found.of_second[i - 1], found.of_first[i] - found.of_second[i]
            assert low * high <= 0
        if len(found.at) == 1:
            assert found.better(0) != found.better(len(found.users) - 1)
            assert f"{found.at[0]:.3g}" in found.text()
        if not found.at:
            assert "throughout" in found.text()


def test_lighter_weights_pay_with_few_users_only_where_kernels_expand_them(catalogue: Catalogue) -> None:
    found = break_even_quantization(catalogue, replace(QUESTION, deployment=Deployment(tp=1)), "awq-int4-g128")[0]
    assert found.better(0) == "awq-int4-g128 weights"


def test_one_instance_breaks_the_target_where_it_says(catalogue: Catalogue) -> None:
    question = replace(QUESTION, deployment=Deployment(tp=1))
    found = break_even_instance(catalogue, question, most_tpot_s=0.02)
    target, used = found
    assert len(target.at) == 1
    case = case_of(catalogue, replace(question, batch=1.0))
    at = Scene(case=case, concurrency=target.at[0], input_tokens=500.0, output_tokens=200.0)
    assert float(outputs(at)["tpot_s"]) == pytest.approx(0.02, rel=1e-6)
    # With few users a second instance adds next to nothing, with many it doubles what one gives.
    assert used.of_second[0] < 1.5 < used.of_second[-1]


def test_what_cannot_be_compared_is_refused(catalogue: Catalogue) -> None:
    with pytest.raises(SpecError, match="tensor parallelism"):
        break_even_tp(catalogue, replace(QUESTION, deployment=Deployment(tp=1)))
    with pytest.raises(SpecError, match="one"):
        break_even_quantization(catalogue, QUESTION, "none")
