"""Findings on a fit, and the verdict, in plain words."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from perfmodel.fit.data import FitData
from perfmodel.fit.laws.base import FitLaw
from perfmodel.fit.result import Errors, Finding, FitResult, Grade

__all__ = ["evaluation_verdict", "findings", "percent", "r_squared_text", "verdict"]

_TRADE_OFF: Final = 0.99
_ALPHA: Final = 0.01
_SINGULAR_CONDITION: Final = 1e8
_FEW_ROWS: Final = 8


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def percent(share: float) -> str:
    """Return a share as a percentage with two significant digits.

    >>> percent(0.0321)
    '3.2 %'
    """
    if not math.isfinite(share):
        return "n/a"
    return f"{100 * share:.2g} %" if abs(share) < 0.995 else f"{100 * share:.0f} %"


def findings(result: FitResult) -> tuple[Finding, ...]:
    """Return everything that is to be said about a fit, gravest first."""
    found = [
        *_freedom(result),
        *_agreement(result),
        *_parameters(result),
        *_search(result),
        *_residuals(result),
        *(Finding("data", Grade.CARE, note) for note in result.data.notes),
        *(Finding("limit", Grade.GOOD, limit) for limit in result.law.limits),
    ]
    rank = {Grade.POOR: 0, Grade.CARE: 1, Grade.GOOD: 2}
    return tuple(sorted(found, key=lambda finding: rank[finding.grade]))


def _freedom(result: FitResult) -> list[Finding]:
    n, k = result.n, result.k
    if result.dof <= 0:
        text = (
            f"{n} points for {k} parameter{_s(k)}: the curve passes through the points whatever the truth is, "
            "and no errors can be stated."
        )
        return [Finding("no-dof", Grade.POOR, text)]
    if result.dof < 3 or n < _FEW_ROWS:
        text = (
            f"{n} points for {k} parameter{_s(k)} leave {result.dof} degree{_s(result.dof)} of freedom: "
            "standard errors are rough, residuals cannot be tested, and agreement is little evidence for the law."
        )
        return [Finding("few-points", Grade.CARE, text)]
    return []


def _agreement(result: FitResult) -> list[Finding]:
    r_squared = result.errors.r_squared
    if math.isnan(r_squared):
        return []
    if r_squared < 0.0:
        return [
            Finding(
                "worse-than-mean",
                Grade.POOR,
                f"R2 = {r_squared:.3g}: the mean of y describes the data better than this law.",
            )
        ]
    if r_squared < 0.5:
        return [
            Finding("poor-fit", Grade.POOR, f"R2 = {r_squared:.2f}: the law leaves most of the variation unexplained.")
        ]
    return []


def _parameters(result: FitResult) -> list[Finding]:
    found = []
    for name in result.at_bound:
        value = result.parameters[name]
        text = f"parameter {name} stands at its bound ({value:g}): the data ask for more, or do not need it."
        found.append(Finding("at-bound", Grade.CARE, text))
    if result.dof <= 0:
        return found
    if result.condition > _SINGULAR_CONDITION:
        found.append(
            Finding(
                "singular",
                Grade.POOR,
                "the parameters cannot be told apart: some combination of them does not move the curve.",
            )
        )
    for i in result.free:
        value, error = float(result.values[i]), float(result.stderr[i])
        if math.isinf(error) or (error > abs(value) and error > 0.0):
            size = "unbounded" if math.isinf(error) else f"{error:.3g}"
            name = result.law.names[i]
            text = f"parameter {name} = {value:.4g} is not determined: its standard error ({size}) exceeds it."
            found.append(Finding("undetermined", Grade.CARE, text))
    correlation = result.correlation
    for a in range(len(result.law.names)):
        for b in range(a):
            if abs(correlation[a, b]) > _TRADE_OFF:
                text = (
                    f"parameters {result.law.names[b]} and {result.law.names[a]} trade off against each other "
                    f"(correlation {correlation[a, b]:.3f}): neither is to be read on its own."
                )
                found.append(Finding("trade-off", Grade.CARE, text))
    return found


def _search(result: FitResult) -> list[Finding]:
    found = []
    if not result.converged:
        found.append(Finding("not-converged", Grade.POOR, "the search did not settle; the values are not a minimum."))
    if result.n_rival:
        text = f"{result.n_rival} of {result.n_starts} starts found other parameters that fit as well: not unique."
        found.append(Finding("not-unique", Grade.CARE, text))
    return found


def _residuals(result: FitResult) -> list[Finding]:
    tests, found = result.diagnostics, []
    if tests.runs_p < _ALPHA:
        text = (
            f"residuals keep their sign over stretches of x (runs test p = {tests.runs_p:.1g}): "
            "the law bends otherwise than the data."
        )
        found.append(Finding("runs", Grade.CARE, text))
    if tests.lack_of_fit_p < _ALPHA:
        text = f"the law misses the means of repeats by more than they scatter (p = {tests.lack_of_fit_p:.1g})."
        found.append(Finding("lack-of-fit", Grade.CARE, text))
    if tests.spread_p < _ALPHA and abs(tests.spread_trend) > 0.25:
        way = "grow" if tests.spread_trend > 0 else "shrink"
        text = (
            f"residuals {way} with the fitted value (p = {tests.spread_p:.1g}): "
            "another kind of residual (relative, log) or weights would suit."
        )
        found.append(Finding("uneven-scatter", Grade.CARE, text))
    if tests.chi_squared_p < _ALPHA:
        text = f"residuals are {result.sigma:.2g} times the stated errors: those are too small or the law is wrong."
        found.append(Finding("beyond-stated-errors", Grade.CARE, text))
    if tests.outlier_rows:
        rows = ", ".join(map(str, tests.outlier_rows[:6])) + (", ..." if len(tests.outlier_rows) > 6 else "")
        count = len(tests.outlier_rows)
        text = f"{count} outlying row{_s(count)} ({rows}): look at them; a robust loss lowers their weight."
        found.append(Finding("outliers", Grade.CARE, text))
    return found


def r_squared_text(value: float, form: str = ".4f") -> str:
    """Return R2 in words; there is none where y does not vary.

    >>> r_squared_text(0.98765), r_squared_text(float("nan"))
    ('0.9877', 'not defined')
    """
    return f"{value:{form}}" if math.isfinite(value) else "not defined"


def verdict(result: FitResult) -> str:
    """Return the verdict on a fit as a paragraph: grade, how close, and every finding."""
    error = result.errors
    ranges = ", ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in result.x_range.items())
    head = (
        f"{result.grade.capitalize()}: {result.law.title}, {result.n} points, {result.k} parameter{_s(result.k)} "
        f"fitted: R2 = {r_squared_text(error.r_squared)}, error median {percent(error.median_rel_frac)}, "
        f"worst {percent(error.max_rel_frac)}. "
        f"Fitted on {ranges}; outside is extrapolation."
    )
    return " ".join([head, *(f.text[0].upper() + f.text[1:] for f in result.findings)])


def evaluation_verdict(law: FitLaw, found: Errors, data: FitData) -> str:
    """Return the verdict on a law with given parameters: whether it reproduces the data."""
    sizes = f"error median {percent(found.median_rel_frac)}, worst {percent(found.max_rel_frac)}"
    numbers = f"R2 = {r_squared_text(found.r_squared, '.3g')}, {sizes}"
    if not np.isfinite(found.rmse):
        return f"The law {law.name} with the given parameters has no finite value on this data."
    if found.r_squared < 0.0:
        return (
            f"The law {law.name} with the given parameters does not reproduce the {data.n} points: {numbers}. "
            "R2 is below zero: the mean of the data would describe them better."
        )
    word = "reproduces" if found.r_squared > 0.9 else "hardly describes"
    return f"The law {law.name} with the given parameters {word} the {data.n} points: {numbers}."
