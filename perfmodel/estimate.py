"""A number is a tree.

A leaf is one formula with its source. An inner node combines its parts by a rule that is homogeneous of degree one, so
with weights = d value / d part, `value = sum(weight * part)` holds at every node. The bottleneck, the explanation and
the first-order band all follow from the shares `weight * part / value`. Values are floats or float64 arrays; the same
lines run for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum, StrEnum
from functools import reduce
from math import ceil
from math import log2 as scalar_log2
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "TINY",
    "Z80",
    "Bound",
    "Coefficient",
    "Estimate",
    "Law",
    "Num",
    "Rule",
    "above",
    "band",
    "band_factor",
    "bound_shares",
    "ceiling",
    "combined_exposure",
    "exposure",
    "larger",
    "leaf",
    "leaf_shares",
    "log2",
    "overlapped",
    "quickest",
    "refolded",
    "relative_sd",
    "repeated",
    "shares",
    "slowest",
    "smaller",
    "soft_slowest",
    "spread",
    "total",
    "uncertain",
    "weights",
]

Num = float | NDArray[np.float64]

TINY: Final = 1e-300
"""Keeps 0/0 at 0 without a branch: smaller than any time, larger than nothing."""

Z80: Final = 1.2815515655446004
"""Standard normal quantile of a two-sided 80 % band."""


def larger(a: Num, b: Num) -> Num:
    """Return the elementwise maximum; two floats skip numpy, which is slow on single numbers.

    >>> larger(2.0, 3.0)
    3.0
    """
    if type(a) is float and type(b) is float:
        return max(a, b)
    return np.maximum(a, b)


def smaller(a: Num, b: Num) -> Num:
    """Return the elementwise minimum; two floats skip numpy."""
    if type(a) is float and type(b) is float:
        return min(a, b)
    return np.minimum(a, b)


def above(a: Num, limit: float) -> Num:
    """Return 1 where a is above the limit, else 0, elementwise."""
    return float(a > limit) if type(a) is float else np.multiply(a > limit, 1.0)


def ceiling(a: Num) -> Num:
    """Return the next whole number, elementwise."""
    return float(ceil(a)) if type(a) is float else np.ceil(a)


def log2(a: Num) -> Num:
    """Return the logarithm to base 2, elementwise."""
    return scalar_log2(a) if type(a) is float else np.log2(a)


class Bound(StrEnum):
    """What a piece of time is spent on, or what limits a deployment: the closed vocabulary of the program."""

    COMPUTE = "compute"
    WEIGHT_READ = "weight_read"
    KV_READ = "kv_read"
    ACTIVATION_IO = "activation_io"
    LAUNCH = "launch"
    HOST = "host"
    LINK = "link"
    ISSUE = "issue"
    KV_CAPACITY = "kv_capacity"
    MAX_NUM_SEQS = "max_num_seqs"
    TOKEN_BUDGET = "token_budget"
    ARRIVAL_RATE = "arrival_rate"


class Rule(Enum):
    """How a node combines its parts."""

    LEAF = "leaf"
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    NORM = "norm"
    REPEAT = "repeat"
    OVERLAP = "overlap"


class Coefficient(NamedTuple):
    """A calibrated number: value, relative standard deviation (an array where it differs by row), where it comes from.

    Two leaves that use the coefficient of one `key` err together; different keys err independently.
    """

    key: str
    value: float
    rel_sd: Num
    source: str = ""


class Law(NamedTuple):
    """A formula as text, with the reference it is taken from."""

    formula: str
    source: str = ""


_NO_LAW = Law("")


class Estimate(NamedTuple):
    """A node of the tree (a named tuple, since thousands are built a second).

    `value` is in seconds (or whatever unit its leaves share).
    `parameter` is the count of a repeat, the exponent of a norm, or the fraction of an overlap.
    `coefficients` of an inner node are errors common to all of it (`uncertain`), those of a leaf its ingredients.
    """

    name: str
    value: Num
    rule: Rule = Rule.LEAF
    parts: tuple[Estimate, ...] = ()
    parameter: Num = 1.0
    bound: Bound | None = None
    law: Law = _NO_LAW
    inputs: tuple[tuple[str, Num], ...] = ()
    coefficients: tuple[Coefficient, ...] = ()

    def find(self, name: str) -> Estimate:
        """Return the first node of that name, depth first; raises KeyError where there is none."""
        for node in self.nodes():
            if node.name == name:
                return node
        raise KeyError(name)

    def nodes(self) -> Iterator[Estimate]:
        """Yield this node and all below it, depth first."""
        yield self
        for part in self.parts:
            yield from part.nodes()


def leaf(
    name: str,
    value: Num,
    *,
    bound: Bound,
    law: Law = _NO_LAW,
    inputs: tuple[tuple[str, Num], ...] = (),
    coefficients: tuple[Coefficient, ...] = (),
) -> Estimate:
    """Return a leaf: a value that one formula gives."""
    return Estimate(name, value, Rule.LEAF, (), 1.0, bound, law, inputs, coefficients)


def total(name: str, parts: tuple[Estimate, ...]) -> Estimate:
    """Return the sum of parts that follow each other.

    >>> total("step", (leaf("a", 1.0, bound=Bound.HOST), leaf("b", 2.0, bound=Bound.LINK))).value
    3.0
    """
    value: Num = 0.0
    for part in parts:
        value = value + part.value
    return Estimate(name, value, Rule.SUM, parts)


def slowest(name: str, parts: tuple[Estimate, ...]) -> Estimate:
    """Return the maximum of parts that run side by side."""
    return Estimate(name, reduce(larger, (part.value for part in parts)), Rule.MAX, parts)


def quickest(name: str, parts: tuple[Estimate, ...]) -> Estimate:
    """Return the minimum of alternatives among which the software picks the best (all-reduce algorithms)."""
    return Estimate(name, reduce(smaller, (part.value for part in parts)), Rule.MIN, parts)


def soft_slowest(name: str, parts: tuple[Estimate, ...], exponent: float) -> Estimate:
    """Return the q-norm (sum of part^q)^(1/q): a maximum with a soft knee, never below the hard maximum.

    An exponent below 1 gives more than the sum: parts that hinder each other (start-up and transfer of a message).

    >>> soft_slowest("op", (leaf("c", 3.0, bound=Bound.COMPUTE), leaf("m", 4.0, bound=Bound.KV_READ)), 2.0).value
    5.0
    """
    powers: Num = 0.0
    for part in parts:
        powers = powers + part.value**exponent
    return Estimate(name, powers ** (1.0 / exponent), Rule.NORM, parts, exponent)


def repeated(name: str, part: Estimate, count: Num) -> Estimate:
    """Return `count` times the part; count may be a fraction (a token takes 1/acceptance of a speculative step)."""
    return Estimate(name, part.value * count, Rule.REPEAT, (part,), count)


def overlapped(name: str, first: Estimate, second: Estimate, fraction: Num) -> Estimate:
    """Return two parts of which `fraction` overlaps: 1 gives their maximum, 0 their sum."""
    longer, shorter = larger(first.value, second.value), smaller(first.value, second.value)
    return Estimate(name, longer + (1.0 - fraction) * shorter, Rule.OVERLAP, (first, second), fraction)


def uncertain(node: Estimate, coefficients: tuple[Coefficient, ...]) -> Estimate:
    """Return the node with errors common to all of it, beside those of its parts; its value stays.

    >>> whole = uncertain(leaf("a", 2.0, bound=Bound.HOST), (Coefficient("step.scatter", 1.0, 0.1),))
    >>> whole.value, relative_sd(whole)
    (2.0, 0.1)
    """
    return node._replace(coefficients=(*node.coefficients, *coefficients)) if coefficients else node


def weights(node: Estimate) -> tuple[Num, ...]:
    """Return d value / d part for each part; `value` is their scalar product with the part values."""
    values = tuple(part.value for part in node.parts)
    match node.rule:
        case Rule.LEAF:
            return ()
        case Rule.SUM:
            return (1.0,) * len(values)
        case Rule.REPEAT:
            return (node.parameter,)
        case Rule.NORM:
            return tuple(((value + TINY) / (node.value + TINY)) ** (node.parameter - 1.0) for value in values)
        case Rule.OVERLAP:
            hidden = 1.0 - node.parameter
            leads: Num = np.multiply(values[0] >= values[1], 1.0)
            lags: Num = 1.0 - leads
            return (leads + lags * hidden, lags + leads * hidden)
        case _:
            hits = tuple(np.multiply(value == node.value, 1.0) for value in values)
            count = sum(hits[1:], start=hits[0])
            return tuple(hit / count for hit in hits)


def shares(node: Estimate, of: Num = 1.0) -> tuple[Num, ...]:
    """Return the share of each part in the node's value: weight x part / value; they add up to `of`.

    `of` is the share that the node itself has in something larger.
    """
    if len(node.parts) == 1:
        return (of,)
    if node.rule is Rule.NORM and len(node.parts) == 2:
        first = smaller((node.parts[0].value / (node.value + TINY)) ** node.parameter, 1.0) * of
        return (first, of - first)
    scale = of / (node.value + TINY)
    if node.rule is Rule.SUM:
        return tuple(part.value * scale for part in node.parts)
    return tuple(w * part.value * scale for w, part in zip(weights(node), node.parts, strict=True))


def leaf_shares(root: Estimate, share: Num = 1.0) -> Iterator[tuple[Estimate, Num]]:
    """Yield every leaf with its share of the root's value."""
    if not root.parts:
        yield root, share
        return
    for part, part_share in zip(root.parts, shares(root, share), strict=True):
        yield from leaf_shares(part, part_share)


def bound_shares(root: Estimate) -> dict[Bound, Num]:
    """Return the share of the root's value that each bound accounts for; they add up to 1."""
    result: dict[Bound, Num] = {}
    for node, share in leaf_shares(root):
        if node.bound is not None:
            result[node.bound] = result.get(node.bound, 0.0) + share
    return result


def exposure(root: Estimate) -> dict[str, Num]:
    """Return coefficient key -> relative standard deviation of the root that this coefficient alone causes.

    Shares of all leaves that use one coefficient are added, since they err together. Leaves priced alike hold one
    tuple of coefficients, so that their shares are added before each coefficient is looked at.
    """
    alike: dict[int, tuple[tuple[Coefficient, ...], Num]] = {}
    stack: list[tuple[Estimate, Num]] = [(root, 1.0)]
    while stack:
        node, share = stack.pop()
        if node.parts:
            stack += zip(node.parts, shares(node, share), strict=True)
        if node.coefficients:
            _, before = alike.get(id(node.coefficients), (node.coefficients, 0.0))
            alike[id(node.coefficients)] = (node.coefficients, before + share)
    result: dict[str, Num] = {}
    for coefficients, share in alike.values():
        for key, _, rel_sd, _ in coefficients:
            if type(rel_sd) is not float or rel_sd > 0.0:
                result[key] = result.get(key, 0.0) + share * rel_sd
    return result


def combined_exposure(root: Estimate, known: Mapping[int, Mapping[str, Num]]) -> dict[str, Num]:
    """Return exposure(root), taking subtrees whose exposure is known (by id) as they are."""
    found = known.get(id(root))
    if found is not None:
        return dict(found)
    if not root.parts:
        return exposure(root)
    result: dict[str, Num] = {}
    for part, share in zip(root.parts, shares(root), strict=True):
        for key, amount in combined_exposure(part, known).items():
            result[key] = result.get(key, 0.0) + share * amount
    for key, _, rel_sd, _ in root.coefficients:
        if type(rel_sd) is not float or rel_sd > 0.0:
            result[key] = result.get(key, 0.0) + rel_sd
    return result


def spread(exposures: Mapping[str, Num]) -> Num:
    """Return the relative standard deviation: coefficients err independently, so variances add."""
    variance: Num = 0.0
    for amount in exposures.values():
        variance = variance + amount * amount
    return variance**0.5


def relative_sd(root: Estimate) -> Num:
    """Return the first-order relative standard deviation: sqrt of the sum over coefficients of (share x sigma)^2."""
    return spread(exposure(root))


def band_factor(rel_sd: Num, quantile: float = Z80) -> Num:
    """Return what a value is divided by and multiplied with at the ends of its log-normal band."""
    return np.exp(rel_sd * quantile)


def band(root: Estimate, quantile: float = Z80) -> tuple[Num, Num]:
    """Return (low, high) of the value: log-normal around it, 80 % wide unless another quantile is given."""
    factor = band_factor(relative_sd(root), quantile)
    return root.value / factor, root.value * factor


def refolded(root: Estimate, scale: Callable[[Estimate], float] = lambda _: 1.0) -> Num:
    """Return the value computed anew from the leaves, for checks and Monte Carlo.

    Each leaf is multiplied by scale(leaf), and so is each inner node that has errors of its own.
    """
    if not root.parts:
        return root.value * scale(root)
    values = [refolded(part, scale) for part in root.parts]
    return _folded(root, values) * (scale(root) if root.coefficients else 1.0)


def _folded(node: Estimate, values: list[Num]) -> Num:
    """Return what the rule of a node makes of the values of its parts."""
    match node.rule:
        case Rule.SUM:
            return sum(values[1:], start=values[0])
        case Rule.MAX:
            return reduce(larger, values)
        case Rule.MIN:
            return reduce(smaller, values)
        case Rule.NORM:
            powers = [value**node.parameter for value in values]
            result: Num = sum(powers[1:], start=powers[0]) ** (1.0 / node.parameter)
            return result
        case Rule.REPEAT:
            return values[0] * node.parameter
        case _:
            hidden = 1.0 - node.parameter
            return larger(values[0], values[1]) + hidden * smaller(values[0], values[1])
