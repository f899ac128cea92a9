"""Public facts that no device or model file holds: parts of hosts, needs of software, what tools measure.

They live beside the claims they may judge, each with its source, and never come out of the claims themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from perfmodel.errors import UnknownNameError
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.figures import Spec
from perfmodel.specs.files import read_spec

__all__ = ["Fact", "Facts", "Needs", "Published", "Sourced", "Where", "facts_of", "version_holds"]

_FOLDER = Path("hardware") / "claims"
_CONDITION = re.compile(r"^(==|>=|<=|<|>)\s*([0-9][0-9a-z.+]*)$")


class Sourced(Spec):
    """A number in base units with its source."""

    value: float
    source: Annotated[str, Field(min_length=1)]


class Needs(Spec):
    """A condition on the version of another package: ==2.4.0, >=4.45.0."""

    version: Annotated[str, Field(pattern=_CONDITION.pattern)]
    source: Annotated[str, Field(min_length=1)]


class Where(Spec):
    """Families or vendors of devices that something runs on."""

    families: tuple[str, ...] = ()
    vendors: tuple[str, ...] = ()
    source: Annotated[str, Field(min_length=1)]


class Measures(Spec):
    """What a tool reports."""

    quantities: tuple[str, ...] = Field(min_length=1)
    source: Annotated[str, Field(min_length=1)]


class Published(Spec):
    """A published pair: a quantity of a model without and with a change, such as perplexity and a weight scheme."""

    model: str
    baseline: Annotated[float, Field(gt=0)]
    value: Annotated[float, Field(gt=0)]
    source: Annotated[str, Field(min_length=1)]


class Fact(Spec):
    """What is publicly known of one thing. Only what applies is stated."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._+-]*$")]
    title: str
    quantities: dict[str, Sourced | tuple[Sourced, ...]] = Field(default_factory=dict)
    """A figure, or several that all exist: sizes of a family."""
    needs: dict[str, Needs] = Field(default_factory=dict)
    runs_on: Where | None = None
    measures: Measures | None = None
    perplexity: tuple[Published, ...] = ()

    def figures(self, quantity: str) -> tuple[Sourced, ...]:
        """Return the public figures of a quantity; none where it is not known."""
        found = self.quantities.get(quantity, ())
        return found if isinstance(found, tuple) else (found,)


class FactsDocument(Spec):
    """A file of facts."""

    kind: Literal["facts"]
    title: str
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts by name."""

    by_name: Mapping[str, Fact]

    def find(self, name: str) -> Fact | None:
        """Return the fact of that name, None where there is none."""
        return self.by_name.get(name)

    def get(self, name: str) -> Fact:
        """Return the fact of that name; raises UnknownNameError."""
        found = self.find(name)
        if found is None:
            raise UnknownNameError.of("public fact", name, list(self.by_name))
        return found


def facts_of(catalogue: Catalogue) -> Facts:
    """Return all facts of the catalogue's homes; earlier homes hide later ones."""
    return Facts({fact.name: fact for home in reversed(catalogue.homes) for fact in _facts_in(home / _FOLDER)})


def _facts_in(folder: Path) -> Iterator[Fact]:
    for path in sorted(folder.glob("*facts.yaml")):
        yield from read_spec(FactsDocument, path).facts


def version_holds(version: str, condition: str) -> bool:
    """Tell whether a version meets a condition, comparing its numbers.

    >>> version_holds("4.44.0", ">=4.45.0"), version_holds("2.4", "==2.4.0")
    (False, True)
    """
    match = _CONDITION.match(condition)
    assert match is not None  # held by the pattern of Needs.version
    mine, theirs = _numbers(version), _numbers(match[2])
    width = max(len(mine), len(theirs))
    mine, theirs = (numbers + (0,) * (width - len(numbers)) for numbers in (mine, theirs))
    return {
        "==": mine == theirs,
        ">=": mine >= theirs,
        "<=": mine <= theirs,
        "<": mine < theirs,
        ">": mine > theirs,
    }[match[1]]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))
