"""Verdicts, and what leads to them: one finding a check, one judgement a claim."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["Finding", "Judgement", "Verdict", "graded", "gravest", "kindest", "not_testable"]


class Verdict(StrEnum):
    """What may come out, in the words of the report."""

    REPRODUCED = "reproduced"
    PLAUSIBLE = "plausible"
    CONTRADICTS_ITSELF = "contradicts itself"
    CONTRADICTS_PHYSICS = "contradicts physics"
    CONTRADICTS_SPECIFICATION = "contradicts a public specification"
    NOT_TESTABLE = "not testable"


_KINDNESS: Final = (
    Verdict.REPRODUCED,
    Verdict.PLAUSIBLE,
    Verdict.NOT_TESTABLE,
    Verdict.CONTRADICTS_SPECIFICATION,
    Verdict.CONTRADICTS_ITSELF,
    Verdict.CONTRADICTS_PHYSICS,
)
"""Kindest first. What cannot be tested speaks for a claim less than what was found possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found. Numbers are NaN where there is none; `working` are lines of the calculation."""

    check: str
    verdict: Verdict
    reason: str
    name: str = ""
    """Figure that was judged; its end says the unit."""
    stated: float = math.nan
    model: float = math.nan
    low: float = math.nan
    high: float = math.nan
    working: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdict on one claim: that of its gravest finding under its kindest reading."""

    id: str
    section: str
    text: str
    kind: str
    reading: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    other_readings: tuple[tuple[str, Verdict], ...] = ()

    @property
    def deciding(self) -> Finding:
        """The finding that the verdict is of."""
        return next(finding for finding in self.findings if finding.verdict is self.verdict)


def gravest(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on several checks: the gravest of those that could be made.

    >>> gravest([Verdict.REPRODUCED, Verdict.NOT_TESTABLE]).value
    'reproduced'
    """
    found = list(verdicts)
    tested = [v for v in found if v is not Verdict.NOT_TESTABLE]
    return max(tested, key=_KINDNESS.index) if tested else Verdict.NOT_TESTABLE


def kindest(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of the reading that speaks most for the author."""
    return min(verdicts, key=_KINDNESS.index)


def not_testable(check: str, missing: str, *, name: str = "", working: tuple[str, ...] = ()) -> Finding:
    """Return the finding that something is missing."""
    return Finding(check=check, verdict=Verdict.NOT_TESTABLE, reason=missing, name=name, working=working)


def graded(
    check: str,
    name: str,
    *,
    stated: float,
    model: float,
    low: float,
    high: float,
    inside: str,
    cause: str,
    least: float = -math.inf,
    most: float = math.inf,
    bound: str = "",
    unstated: str = "",
    working: tuple[str, ...] = (),
) -> Finding:
    """Return a finding by place: beyond a hard bound, inside the band, or between the two.

    `inside` is the reason where the band holds, `cause` the likely cause where only physics does, `bound` names the
    limit that nothing may beat. With `unstated`, what the claim does not say and the model took as usual, a figure
    inside of the band is plausible and no more.
    """
    if stated < least or stated > most:
        verdict, reason = Verdict.CONTRADICTS_PHYSICS, bound
    elif low <= stated <= high:
        verdict = Verdict.PLAUSIBLE if unstated else Verdict.REPRODUCED
        reason = f"{inside}; not stated: {unstated}" if unstated else inside
    else:
        verdict, reason = Verdict.PLAUSIBLE, cause
    return Finding(
        check=check,
        verdict=verdict,
        reason=reason,
        name=name,
        stated=stated,
        model=model,
        low=low,
        high=high,
        working=working,
    )
