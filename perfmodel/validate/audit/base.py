"""What every kind of check is made of: references to figures, set-ups, and the desk that looks things up."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from perfmodel.errors import PerfmodelError, SpecError
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.deployment import Deployment
from perfmodel.specs.device import Device
from perfmodel.specs.figures import Spec
from perfmodel.step.answer import Answer, answer_to
from perfmodel.step.question import Case, Question, case_of
from perfmodel.validate.audit.facts import Facts
from perfmodel.validate.audit.figures import Printed
from perfmodel.validate.audit.verdict import Finding

__all__ = ["Check", "ClaimsError", "Desk", "MissingError", "Ref", "Setup", "first_line", "paired"]

Ref = Annotated[str, Field(pattern=r"^([A-Za-z0-9_.+-]+\.)?[A-Za-z_][A-Za-z0-9_]*$")]
"""`figure` of the same claim, or `claim-id.figure` of another."""


class ClaimsError(SpecError):
    """The claims file itself is wrong: it refers to what is not there."""


class MissingError(Exception):
    """A check cannot be made; the message says what is missing."""


class Setup(Spec):
    """What ran, as far as it is stated. `batch` requests are in flight; with `n_requests` it is a closed loop."""

    model: str | None = None
    hardware: str | None = None
    runtime: str | None = None
    deployment: dict[str, int | float | str | bool] = Field(default_factory=dict)
    batch: Annotated[int, Field(ge=1)] | None = None
    n_requests: Annotated[int, Field(ge=1, le=100_000)] | None = None
    input_tokens: Annotated[int, Field(ge=1)] | None = None
    output_tokens: Annotated[int, Field(ge=1)] | None = None
    note: str = ""


class _Key(NamedTuple):
    setup: str
    calibration: str
    changes: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Desk:
    """Where a check looks things up: figures of claims, set-ups, public facts, devices, answers of the model."""

    catalogue: Catalogue
    facts: Facts
    setups: Mapping[str, Setup]
    figures: Mapping[str, Mapping[str, Printed]]
    claim: str
    _answers: dict[_Key, Answer | PerfmodelError] = field(default_factory=dict, repr=False)
    kept: dict[str, Any] = field(default_factory=dict, repr=False)
    """What rules keep for each other by a key of their own: dear results of set-ups."""

    def at(self, claim: str, figures: Mapping[str, Mapping[str, Printed]]) -> Desk:
        """Return the desk for another claim, or for another reading of it; answers are kept."""
        return replace(self, claim=claim, figures=figures)

    def printed(self, ref: Ref) -> Printed:
        """Return the figure that a reference means; raises MissingError where it is not stated."""
        owner, _, name = ref.rpartition(".")
        owner = owner or self.claim
        if owner not in self.figures:
            raise ClaimsError(
                "a check refers to a claim that is not there", where=self.claim, got=ref, expected="claim-id.figure"
            )
        found = self.figures[owner].get(name)
        if found is None:
            raise MissingError(f"{owner} states no {name}")
        return found

    def value(self, ref: Ref) -> float:
        """Return the value of a figure in base units."""
        return self.printed(ref).value

    def count(self, ref: Ref, *, most: int) -> int:
        """Return a figure as a whole number from 1 to `most`; raises MissingError where it is none."""
        value = self.value(ref)
        if not 1 <= value <= most or value != int(value):
            raise MissingError(f"{ref} is {value:g}, and no whole number from 1 to {most:,}")
        return int(value)

    def given(self, source: Ref | float) -> float:
        """Return a plain number as it is, and the value of a figure by reference."""
        return self.value(source) if isinstance(source, str) else float(source)

    def inputs(self, sources: Mapping[str, Ref | float]) -> dict[str, Printed]:
        """Return inputs of a formula by name; plain numbers are exact."""
        return {
            name: self.printed(source) if isinstance(source, str) else Printed(float(source), 0.0)
            for name, source in sources.items()
        }

    def setup(self, name: str) -> Setup:
        """Return a set-up; raises MissingError that lists what it does not state."""
        found = self.setups.get(name)
        if found is None:
            raise ClaimsError(
                "a check names a set-up that is not there",
                where=self.claim,
                got=name,
                expected=f"one of {', '.join(self.setups) or 'none: there are no setups'}",
            )
        lacking = [
            word
            for word, value in (
                ("model", found.model),
                ("hardware", found.hardware),
                ("number of requests in flight", found.batch),
                ("prompt length", found.input_tokens),
                ("output length", found.output_tokens),
            )
            if value is None
        ]
        if lacking:
            raise MissingError(f"the set-up states no {', no '.join(lacking)}")
        return found

    def device(self, name: str) -> Device:
        """Return a device by name; raises UnknownNameError."""
        return self.catalogue.device(name)

    def case(self, name: str, *, calibration: str = "auto", **changes: Any) -> Case:
        """Return the case behind a set-up, with some of its numbers changed."""
        setup = self.setup(name).model_copy(update=changes)
        question = Question(
            model=setup.model,
            hardware=setup.hardware or "",
            runtime=setup.runtime,
            deployment=_deployment(setup.deployment),
            batch=float(setup.batch or 1),
            input_tokens=float(setup.input_tokens or 1),
            output_tokens=float(setup.output_tokens or 1),
            calibration=calibration,
        )
        return case_of(self.catalogue, question)

    def answer(self, name: str, *, calibration: str = "auto", **changes: Any) -> Answer:
        """Return the model's answer for a set-up, kept for later; raises PerfmodelError where there is none."""
        key = _Key(name, calibration, tuple(sorted(changes.items())))
        if key not in self._answers:
            try:
                self._answers[key] = answer_to(self.case(name, calibration=calibration, **changes))
            except PerfmodelError as error:
                self._answers[key] = error
        found = self._answers[key]
        if isinstance(found, PerfmodelError):
            raise found
        return found


def _deployment(stated: Mapping[str, Any]) -> Deployment:
    try:
        return Deployment(**stated)
    except TypeError as error:
        raise SpecError(
            "a set-up's deployment cannot be used", got=", ".join(stated), expected="fields of a deployment"
        ) from error


def paired(**columns: tuple[Ref | float, ...]) -> None:
    """Check that columns have a value for each other; raises ValueError."""
    if len({len(column) for column in columns.values()}) > 1:
        listed = ", ".join(f"{len(column)} {name}" for name, column in columns.items())
        raise ValueError(f"every point needs a value in each column: there are {listed}")


class Check(Spec):
    """One thing that a claim asserts, in terms of a general kind."""

    @abstractmethod
    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield what the check finds; raises MissingError where something it needs is not stated."""


def first_line(error: Exception) -> str:
    """Return an error in one line: what is wrong, got, expected."""
    lines = [line.strip() for line in str(error).splitlines()]
    return "; ".join(lines[:2])
