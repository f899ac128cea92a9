"""The audit: every claim judged, under each way to read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from perfmodel.errors import PerfmodelError, UnknownNameError
from perfmodel.specs.catalogue import Catalogue, builtin_home
from perfmodel.specs.files import read_spec
from perfmodel.validate.audit.base import Check, ClaimsError, Desk, MissingError, first_line
from perfmodel.validate.audit.claims import Claim, ClaimsDocument, Reading
from perfmodel.validate.audit.facts import facts_of
from perfmodel.validate.audit.verdict import Finding, Judgement, Verdict, gravest, kindest, not_testable
from perfmodel.validate.parts import HeldCatalogue

__all__ = ["Audit", "audit", "read_claims", "shipped_claims", "template_text"]

_FOLDER = Path("hardware") / "claims"


@dataclass(frozen=True, slots=True)
class Audit:
    """All judgements on a claims file."""

    document: ClaimsDocument
    judgements: tuple[Judgement, ...]

    @property
    def counts(self) -> Mapping[Verdict, int]:
        """Return how many claims have each verdict, all verdicts named."""
        found = Counter(judgement.verdict for judgement in self.judgements)
        return {verdict: found[verdict] for verdict in Verdict}

    def on(self, claim: str) -> Judgement:
        """Return the judgement on a claim; raises KeyError where there is none."""
        for judgement in self.judgements:
            if judgement.id == claim:
                return judgement
        raise KeyError(claim)


def shipped_claims() -> Path:
    """Return the path of the claims that perfmodel ships: the founding article's."""
    return builtin_home() / _FOLDER / "article-910b.yaml"


def template_text() -> str:
    """Return a documented claims file to fill in."""
    return (builtin_home() / _FOLDER / "template.yaml").read_text(encoding="utf-8")


def read_claims(path: Path) -> ClaimsDocument:
    """Return the claims of a file; raises SpecError with every fault."""
    return read_spec(ClaimsDocument, path)


def audit(document: ClaimsDocument, catalogue: Catalogue, *, only: Sequence[str] = ()) -> Audit:
    """Return the judgement on every claim, or on those whose id begins with one of `only`.

    Raises SpecError where a check refers to what is not in the file, or no id begins so.
    """
    asked = [claim for claim in document.claims if not only or claim.id.startswith(tuple(only))]
    if not asked:
        known = [claim.id for claim in document.claims]
        raise UnknownNameError.of("claim", ", ".join(only), known, f"The claims are {', '.join(known)}.")
    figures = {claim.id: claim.values() for claim in document.claims}
    held = HeldCatalogue(catalogue.homes)
    desk = Desk(held, facts_of(held), document.setups, figures, "")
    return Audit(document, tuple(_judgement(desk, claim) for claim in asked))


def _judgement(desk: Desk, claim: Claim) -> Judgement:
    ways: list[Reading | None] = [None, *claim.readings]
    found = [_findings(desk, claim, way) for way in ways]
    verdicts = [gravest(finding.verdict for finding in findings) for findings in found]
    best = verdicts.index(kindest(verdicts))
    names = [claim.reading, *(reading.text for reading in claim.readings)]
    return Judgement(
        id=claim.id,
        section=claim.section,
        text=claim.text,
        kind=claim.kind,
        reading=names[best],
        verdict=verdicts[best],
        findings=found[best],
        other_readings=tuple((names[i], verdicts[i]) for i in range(len(ways)) if i != best),
    )


def _findings(desk: Desk, claim: Claim, reading: Reading | None) -> tuple[Finding, ...]:
    own = desk.at(claim.id, {**desk.figures, claim.id: claim.values(reading)})
    if not claim.checks:
        return (not_testable("none", "nothing ties the statement to a figure or a model: it has no checks"),)
    return tuple(finding for check in claim.checks for finding in _checked(own, check))


def _checked(desk: Desk, check: Check) -> Sequence[Finding]:
    kind = str(getattr(check, "kind", ""))
    try:
        with np.errstate(divide="raise", invalid="raise", over="raise"):
            return tuple(check.findings(desk))
    except ClaimsError:
        raise
    except MissingError as missing:
        return (not_testable(kind, str(missing)),)
    except ArithmeticError:
        return (
            not_testable(kind, "its figures give no number: something is divided by zero or grows beyond all limits"),
        )
    except PerfmodelError as error:
        return (not_testable(kind, f"the model cannot answer: {first_line(error)}"),)
