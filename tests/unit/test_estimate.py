"""Numbers that are trees: rules worked by hand, and the first-order band against Monte Carlo on a real estimate."""

from __future__ import annotations

from collections.abc import Callable
from math import exp, sqrt

import numpy as np
import pytest

from perfmodel.estimate import (
    Z80,
    Bound,
    Coefficient,
    Estimate,
    Rule,
    band,
    bound_shares,
    ceiling,
    exposure,
    larger,
    leaf,
    leaf_shares,
    overlapped,
    quickest,
    refolded,
    relative_sd,
    repeated,
    shares,
    slowest,
    smaller,
    soft_slowest,
    total,
    weights,
)
from perfmodel.specs.layout import Layout
from perfmodel.step.request import request_estimate
from perfmodel.step.step import Engine


def part(value: float, bound: Bound = Bound.COMPUTE, *coefficients: Coefficient) -> Estimate:
    return leaf("part", value, bound=bound, coefficients=coefficients)


def test_weights_by_hand() -> None:
    a, b = part(3.0), part(4.0)
    assert weights(a) == ()
    assert weights(total("", (a, b))) == (1.0, 1.0)
    assert weights(repeated("", a, 7.0)) == (7.0,)
    # d/da sqrt(a^2 + b^2) = a / 5
    assert weights(soft_slowest("", (a, b), 2.0)) == pytest.approx((0.6, 0.8), rel=1e-15)
    assert weights(slowest("", (a, b))) == (0.0, 1.0)
    assert weights(quickest("", (a, b))) == (1.0, 0.0)
    # 4 + (1 - 0.75) x 3
    assert overlapped("", a, b, 0.75).value == 4.75
    assert weights(overlapped("", a, b, 0.75)) == (0.25, 1.0)


def test_ties_share_the_weight() -> None:
    tied = slowest("", (part(2.0), part(2.0), part(1.0)))
    assert weights(tied) == (0.5, 0.5, 0.0)
    assert shares(tied) == (0.5, 0.5, 0.0)
    assert weights(overlapped("", part(2.0), part(2.0), 1.0)) == (1.0, 0.0)


def test_nothing_has_no_share() -> None:
    nothing = total("", (part(0.0), part(0.0)))
    assert shares(nothing) == (0.0, 0.0)
    assert refolded(nothing) == 0.0
    assert relative_sd(nothing) == 0.0
    assert float(soft_slowest("", (part(0.0), part(0.0)), 2.0).value) == 0.0


def test_bounds_of_a_step() -> None:
    step = total("step", (repeated("layers", total("layer", (part(1.0), part(2.0, Bound.LINK))), 3.0), part(1.0)))
    assert step.value == 10.0
    assert bound_shares(step) == pytest.approx({Bound.COMPUTE: 0.4, Bound.LINK: 0.6})
    assert [share for _, share in leaf_shares(step)] == pytest.approx([0.3, 0.6, 0.1])
    assert step.find("layer").value == 3.0
    with pytest.raises(KeyError):
        step.find("absent")


def test_errors_of_one_key_add_and_of_two_keys_do_not() -> None:
    same = total("", (part(1.0, Bound.HOST, Coefficient("k", 1, 0.3)), part(1.0, Bound.HOST, Coefficient("k", 1, 0.3))))
    other = total(
        "", (part(1.0, Bound.HOST, Coefficient("k", 1, 0.3)), part(1.0, Bound.HOST, Coefficient("l", 1, 0.3)))
    )
    assert relative_sd(same) == pytest.approx(0.3)
    assert relative_sd(other) == pytest.approx(0.3 / sqrt(2))
    # Two coefficients in one formula: variances add within the leaf.
    assert relative_sd(part(5.0, Bound.HOST, Coefficient("k", 1, 0.3), Coefficient("l", 1, 0.4))) == pytest.approx(0.5)
    assert exposure(part(5.0, Bound.HOST, Coefficient("exact", 1, 0.0))) == {}


def test_band_is_log_normal_and_80_percent_wide() -> None:
    low, high = band(part(2.0, Bound.HOST, Coefficient("k", 1, 0.1)))
    assert (low, high) == pytest.approx((2 / exp(0.1 * Z80), 2 * exp(0.1 * Z80)))
    draws = np.exp(0.1 * np.random.default_rng(0).standard_normal(200_000)) * 2
    assert np.mean((draws > low) & (draws < high)) == pytest.approx(0.8, abs=0.005)


def test_helpers_keep_floats_and_broadcast() -> None:
    assert type(larger(1.0, 2.0)) is float
    assert type(smaller(1.0, 2.0)) is float
    assert type(ceiling(1.2)) is float
    assert (larger(1.0, 2.0), smaller(1.0, 2.0), ceiling(1.2)) == (2.0, 1.0, 2.0)
    rows = np.array([0.5, 2.5])
    assert np.array_equal(larger(rows, 1.0), [1.0, 2.5])
    assert np.array_equal(smaller(rows, 1.0), [0.5, 1.0])
    assert np.array_equal(ceiling(rows), [1.0, 3.0])


@pytest.mark.parametrize(("layout", "batch"), [(Layout(), 1.0), (Layout(tp=2), 64.0), (Layout(pp=2), 8.0)])
def test_first_order_band_is_that_of_monte_carlo(
    engine_of: Callable[..., Engine], layout: Layout, batch: float
) -> None:
    """Each coefficient errs log-normally by its own sigma, together wherever it is used; the tree is folded anew.

    First order is exact for small errors. At full size maxima between near ties widen the band somewhat.
    """
    engine = engine_of("llama-3.1-8b", "a100-80gb-sxm", layout=layout)
    request = request_estimate(engine, batch=batch, input_tokens=1024.0, output_tokens=128.0, token_budget=8192.0)
    rng = np.random.default_rng(0)
    for tree in (request.ttft, request.tpot, request.e2e):
        keys = sorted(exposure(tree))
        assert len(keys) > 5
        for size, tolerance in ((0.1, 0.1), (1.0, 0.25)):  # 400 draws know a standard deviation to 3.5 %
            logs = []
            for _ in range(400):
                error = dict(zip(keys, size * rng.standard_normal(len(keys)), strict=True))

                def moved(node: Estimate, error: dict[str, float] = error) -> float:
                    return exp(sum(error[c.key] * c.rel_sd for c in node.coefficients if c.rel_sd > 0))

                logs.append(np.log(refolded(tree, moved) / tree.value))
            assert np.std(logs) / size == pytest.approx(float(relative_sd(tree)), rel=tolerance)


def test_a_real_tree_folds(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of("deepseek-v3", "h200-sxm", layout=Layout(tp=8))
    rows = np.array([1.0, 7.0, 300.0])
    request = request_estimate(engine, batch=rows, input_tokens=900.0, output_tokens=100.0, token_budget=8192.0)
    for node in request.e2e.nodes():
        if node.rule is not Rule.LEAF:
            folded = sum(np.asarray(w * p.value) for w, p in zip(weights(node), node.parts, strict=True))
            assert np.allclose(folded, node.value, rtol=1e-12, atol=0.0)
    assert np.allclose(np.asarray(refolded(request.e2e)), request.e2e.value, rtol=1e-12)
    assert sum(np.asarray(s) for s in bound_shares(request.e2e).values()) == pytest.approx(1.0, abs=1e-12)
