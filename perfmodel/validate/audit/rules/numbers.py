"""Checks of a claim against its own numbers: no model is needed, only arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from perfmodel.measure.profiling.shares import StatedShare, common_total_s
from perfmodel.specs.figures import Spec
from perfmodel.validate.audit.base import Check, Desk, Ref
from perfmodel.validate.audit.figures import figure_text
from perfmodel.validate.audit.formula import Formula, formula_names, formula_range
from perfmodel.validate.audit.verdict import Finding, Verdict, not_testable

__all__ = ["Arithmetic", "Inputs", "Limit", "Same", "Shares", "given_names"]


class Arithmetic(Check):
    """A figure that must follow from others: `figure` = `formula` of `inputs`, within what the printed digits allow."""

    kind: Literal["arithmetic"]
    figure: Ref
    formula: Formula
    inputs: dict[str, Ref | float]
    means: str = ""

    @model_validator(mode="after")
    def _inputs_are_given(self) -> Arithmetic:
        given_names(self.formula, self.inputs)
        return self

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield whether the figure lies within the rounding of its inputs, and one unit of its own last digit."""
        stated = desk.printed(self.figure)
        value, low, high = formula_range(self.formula, desk.inputs(self.inputs))
        name = self.figure.rpartition(".")[2]
        if not math.isfinite(value):
            yield not_testable(self.kind, f"{self.formula} has no value for the figures stated", name=name)
            return
        low, high = low - stated.resolution, high + stated.resolution
        agrees = low <= stated.value <= high
        found = figure_text(name, value)
        yield Finding(
            check=self.kind,
            verdict=Verdict.REPRODUCED if agrees else Verdict.CONTRADICTS_ITSELF,
            reason=(f"follows from the claim's own figures: {found}" if agrees else f"its own figures give {found}")
            + (f" ({self.means})" if self.means else ""),
            name=name,
            stated=stated.value,
            model=value,
            low=low,
            high=high,
            working=(_worked(self.formula, self.inputs, desk, found),),
        )


class Limit(Check):
    """A figure that another of the same source bounds: `at_most` or `at_least` a formula of `inputs`."""

    kind: Literal["limit"]
    figure: Ref
    at_most: Formula | None = None
    at_least: Formula | None = None
    inputs: dict[str, Ref | float] = Field(default_factory=dict)
    means: str = ""

    @model_validator(mode="after")
    def _one_limit(self) -> Limit:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("a limit needs one of at_most and at_least")
        given_names(self.at_most or self.at_least or "0", self.inputs)
        return self

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield whether the figure keeps the limit that its own source states."""
        stated = desk.printed(self.figure)
        text = self.at_most or self.at_least or ""
        name = self.figure.rpartition(".")[2]
        value, low, high = formula_range(text, desk.inputs(self.inputs))
        if not math.isfinite(value):
            yield not_testable(self.kind, f"{text} has no value for the figures stated", name=name)
            return
        slack = 0.5 * stated.resolution
        keeps = stated.value - slack <= high if self.at_most else stated.value + slack >= low
        side = "most" if self.at_most else "least"
        bound = figure_text(name, value)
        yield Finding(
            check=self.kind,
            verdict=Verdict.REPRODUCED if keeps else Verdict.CONTRADICTS_ITSELF,
            reason=f"{'keeps' if keeps else 'breaks'} its own limit: at {side} {bound}"
            + (f" ({self.means})" if self.means else ""),
            name=name,
            stated=stated.value,
            model=value,
            low=low if not self.at_most else -math.inf,
            high=high if self.at_most else math.inf,
            working=(_worked(text, self.inputs, desk, bound),),
        )


class Same(Check):
    """Figures that mean the same thing and must agree."""

    kind: Literal["same"]
    values: Annotated[tuple[Ref, ...], Field(min_length=2)]
    means: str
    conditions: str = ""
    """What else differs between them, if anything: it may explain a difference, and then nothing contradicts."""

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield whether the first figure equals each other one within the coarser of their last digits."""
        first, *others = (desk.printed(ref) for ref in self.values)
        name = self.values[0].rpartition(".")[2]
        agree = all(abs(o.value - first.value) <= max(o.resolution, first.resolution) for o in others)
        apart = Verdict.PLAUSIBLE if self.conditions else Verdict.CONTRADICTS_ITSELF
        listed = ", ".join(f"{ref} = {figure_text(name, desk.value(ref))}" for ref in self.values)
        yield Finding(
            check=self.kind,
            verdict=Verdict.REPRODUCED if agree else apart,
            reason=f"{'one figure' if agree else 'different figures'} for {self.means}"
            + (f"; what else differs may explain it: {self.conditions}" if self.conditions and not agree else ""),
            name=name,
            stated=first.value,
            model=others[0].value,
            working=(listed,),
        )


class Share(Spec):
    """A part: its size, and the share of the whole that it is said to be."""

    value: Ref
    share: Ref


class Shares(Check):
    """Parts of one whole with their shares: every pair must mean the same whole, and shares may not exceed it."""

    kind: Literal["shares"]
    parts: Annotated[tuple[Share, ...], Field(min_length=1)]

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield whether one whole fits all parts, and whether the parts fit into it."""
        name = self.parts[0].value.rpartition(".")[2]
        pairs = [(desk.printed(part.value), desk.printed(part.share)) for part in self.parts]
        total = sum(share.value for _, share in pairs)
        whole = common_total_s(StatedShare(*size, *share) for size, share in pairs)
        fits = whole is not None and total <= 1.0 + 1e-9
        low, high = whole or (math.nan, math.nan)
        yield Finding(
            check=self.kind,
            verdict=Verdict.REPRODUCED if fits else Verdict.CONTRADICTS_ITSELF,
            reason=f"one whole of {figure_text(name, low)} to {figure_text(name, high)} fits all shares"
            if fits
            else f"the shares add up to {100 * total:.3g} %"
            if whole
            else "no one whole fits all shares",
            name=name,
            model=0.5 * (low + high),
            low=low,
            high=high,
            working=tuple(
                f"{figure_text(name, size)} / {100 * share:g} % = {figure_text(name, size / share)}"
                for (size, _), (share, _) in pairs
                if share > 0.0
            ),
        )


class Inputs(Check):
    """What any model of this claim would have to know; null where it is not stated."""

    kind: Literal["inputs"]
    of: str
    known: dict[str, Ref | float | str | None] = Field(min_length=1)

    def findings(self, desk: Desk) -> Iterator[Finding]:  # noqa: ARG002
        """Yield that the claim cannot be computed, with what is missing."""
        missing = [name.replace("_", " ") for name, value in self.known.items() if value is None]
        stated = [name.replace("_", " ") for name, value in self.known.items() if value is not None]
        reason = (
            f"to compute {self.of} one has to know the {', the '.join(missing)}"
            if missing
            else (f"everything that {self.of} depends on is stated, and no law of this program covers it")
        )
        yield not_testable(self.kind, reason, working=(f"stated: {', '.join(stated) or 'nothing'}",))


def given_names(formula: str, inputs: Iterable[str]) -> None:
    """Check that a formula uses no name that is not given; raises ValueError."""
    missing = sorted(set(formula_names(formula)) - set(inputs))
    if missing:
        raise ValueError(f"the formula {formula!r} uses {', '.join(missing)}, which no input is called")


def _worked(formula: str, inputs: dict[str, Ref | float], desk: Desk, result: str) -> str:
    given = ", ".join(f"{name} = {desk.given(ref):g}" for name, ref in inputs.items())
    return f"{formula}{f' with {given}' if given else ''}: {result}"
