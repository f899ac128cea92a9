"""The tree of an estimate, whatever it holds: nodes fold to their value, shares fill it, exposures agree.

Trees are drawn as a structure with three columns of leaf values, with zeros and ties on purpose, and built once with
arrays and three times with floats.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from perfmodel.estimate import (
    Bound,
    Coefficient,
    Estimate,
    Num,
    Rule,
    band,
    bound_shares,
    combined_exposure,
    exposure,
    leaf,
    leaf_shares,
    overlapped,
    quickest,
    refolded,
    relative_sd,
    repeated,
    shares,
    slowest,
    soft_slowest,
    spread,
    total,
    weights,
)

N_COLUMNS = 3
Structure = tuple[Any, ...]

VALUES = st.one_of(st.sampled_from([0.0, 1.0, 1.0, 2.0]), st.floats(1e-9, 1e3))
COLUMNS = st.lists(VALUES, min_size=N_COLUMNS, max_size=N_COLUMNS).map(tuple)
COEFFICIENTS = st.lists(
    st.builds(Coefficient, st.sampled_from("abc"), st.just(1.0), st.sampled_from([0.0, 0.1, 0.5])), max_size=3
).map(tuple)
LEAVES = st.tuples(st.just("leaf"), COLUMNS, st.sampled_from(list(Bound)), COEFFICIENTS)


def _inner(children: st.SearchStrategy[Structure]) -> st.SearchStrategy[Structure]:
    several = st.lists(children, min_size=1, max_size=4).map(tuple)
    return st.one_of(
        st.tuples(st.sampled_from(["sum", "max", "min"]), several),
        st.tuples(st.just("norm"), several, st.sampled_from([0.6, 1.0, 1.2, 2.0, 3.0])),
        st.tuples(st.just("repeat"), children, st.sampled_from([0.0, 0.4, 1.0, 61.0])),
        st.tuples(st.just("overlap"), children, children, st.sampled_from([0.0, 0.3, 1.0])),
    )


TREES = st.recursive(LEAVES, _inner, max_leaves=12)


def built(structure: Structure, pick: Callable[[tuple[float, ...]], Num]) -> Estimate:
    """Return the tree with the leaf values that `pick` takes from their columns."""
    match structure:
        case ("leaf", column, bound, coefficients):
            return leaf("leaf", pick(column), bound=bound, coefficients=coefficients)
        case ("norm", parts, exponent):
            return soft_slowest("norm", tuple(built(p, pick) for p in parts), exponent)
        case ("repeat", part, count):
            return repeated("repeat", built(part, pick), count)
        case ("overlap", first, second, fraction):
            return overlapped("overlap", built(first, pick), built(second, pick), fraction)
        case (rule, parts):
            made = tuple(built(p, pick) for p in parts)
            return {"sum": total, "max": slowest, "min": quickest}[rule](rule, made)
    raise AssertionError(structure)


def as_array(structure: Structure) -> Estimate:
    return built(structure, lambda column: np.array(column))


def as_float(structure: Structure, row: int) -> Estimate:
    return built(structure, lambda column: column[row])


def close(a: Num, b: Num) -> bool:
    return bool(np.allclose(a, b, rtol=1e-12, atol=1e-15))


def both(structure: Structure) -> list[Estimate]:
    return [as_array(structure), *(as_float(structure, row) for row in range(N_COLUMNS))]


@given(TREES)
@settings(max_examples=60, deadline=None)
def test_every_node_is_the_sum_of_weight_times_part(structure: Structure) -> None:
    for root in both(structure):
        for node in root.nodes():
            if node.parts:
                folded = sum(np.asarray(w * p.value) for w, p in zip(weights(node), node.parts, strict=True))
                assert close(folded, node.value), node.rule


@given(TREES)
@settings(max_examples=60, deadline=None)
def test_shares_of_every_node_fill_it(structure: Structure) -> None:
    for root in both(structure):
        for node in root.nodes():
            if not node.parts:
                continue
            own = [np.broadcast_to(s, np.shape(node.value)) for s in shares(node)]
            positive = np.asarray(node.value) > 0
            assert np.all(np.where(positive, sum(own), 1.0) == pytest.approx(1.0, abs=1e-12)), node.rule
            assert all(np.all(s >= -1e-14) for s in own)
            for share, weight, part in zip(own, weights(node), node.parts, strict=True):
                error = np.abs(share * node.value - weight * part.value)
                assert np.all(np.where(positive, error, 0.0) <= 1e-12 * np.asarray(node.value))


@given(TREES)
@settings(max_examples=60, deadline=None)
def test_leaves_refold_to_the_value_and_scale_with_it(structure: Structure) -> None:
    for root in both(structure):
        assert close(refolded(root), root.value)
        assert close(refolded(root, lambda _: 3.0), np.asarray(root.value) * 3.0)


@given(TREES)
@settings(max_examples=60, deadline=None)
def test_shares_of_leaves_and_of_bounds_add_up_to_one(structure: Structure) -> None:
    for root in both(structure):
        positive = np.asarray(root.value) > 0
        by_leaf = sum(np.asarray(share) for _, share in leaf_shares(root))
        by_bound = sum(np.asarray(share) for share in bound_shares(root).values())
        assert np.all(np.where(positive, by_leaf, 1.0) == pytest.approx(1.0, abs=1e-12))
        assert np.all(np.where(positive, by_bound, 1.0) == pytest.approx(1.0, abs=1e-12))


@given(TREES)
@settings(max_examples=60, deadline=None)
def test_floats_and_arrays_agree(structure: Structure) -> None:
    columns = as_array(structure)
    for row in range(N_COLUMNS):
        single = as_float(structure, row)
        for one, many in zip(single.nodes(), columns.nodes(), strict=True):
            assert close(one.value, np.broadcast_to(many.value, N_COLUMNS)[row])
        of_many = exposure(columns)
        for key, amount in exposure(single).items():
            assert close(amount, np.broadcast_to(of_many[key], N_COLUMNS)[row])


@given(TREES)
@settings(max_examples=60, deadline=None)
def test_exposure_from_known_subtrees_is_the_exposure(structure: Structure) -> None:
    for root in both(structure):
        known = {id(part): exposure(part) for part in root.parts}
        direct, combined = exposure(root), combined_exposure(root, known)
        assert direct.keys() == combined.keys()
        assert all(close(direct[key], combined[key]) for key in direct)
        assert close(relative_sd(root), spread(direct))


@given(TREES, st.sampled_from("abc"))
@settings(max_examples=60, deadline=None)
def test_exposure_is_the_derivative(structure: Structure, key: str) -> None:
    """d ln value for a change of one sigma in one coefficient, by differences, where no maximum has a tie."""
    root = as_float(structure, 0)
    assume(float(root.value) > 0)
    for node in root.nodes():
        if node.rule in (Rule.MAX, Rule.MIN, Rule.OVERLAP):
            ordered = sorted(float(p.value) for p in node.parts)
            assume(all(b > a * 1.001 for a, b in pairwise(ordered)))
    step = 1e-6

    def moved(node: Estimate) -> float:
        return 1.0 + step * sum(float(c.rel_sd) for c in node.coefficients if c.key == key)

    slope = (float(refolded(root, moved)) / float(root.value) - 1.0) / step
    assert slope == pytest.approx(exposure(root).get(key, 0.0), rel=1e-3, abs=1e-5)


@given(TREES)
@settings(max_examples=40, deadline=None)
def test_a_band_holds_its_value(structure: Structure) -> None:
    for root in both(structure):
        low, high = band(root)
        assert np.all(low <= np.asarray(root.value) * (1 + 1e-15))
        assert np.all(high >= np.asarray(root.value) * (1 - 1e-15))


@given(
    st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=5),
    st.floats(1.0, 8.0),
    st.floats(0.0, 1.0),
    st.floats(0.0, 9.0),
)
@settings(max_examples=50, deadline=None)
def test_rules_keep_their_order(values: list[float], exponent: float, fraction: float, count: float) -> None:
    parts = tuple(leaf("x", value, bound=Bound.HOST) for value in values)
    fastest, hard, soft, whole = (
        float(quickest("", parts).value),
        float(slowest("", parts).value),
        float(soft_slowest("", parts, exponent).value),
        float(total("", parts).value),
    )
    slack = 1 + 1e-12
    assert fastest <= hard <= soft * slack <= whole * slack * slack
    pair = overlapped("", parts[0], parts[-1], fraction).value
    assert max(values[0], values[-1]) <= pair * slack
    assert pair <= (values[0] + values[-1]) * slack
    assert repeated("", parts[0], count).value == values[0] * count
