"""A deployment in the making: what has been stated so far and where, and every fault met on the way."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from perfmodel.errors import Fault, SpecError
from perfmodel.specs.deployment import Deployment
from perfmodel.specs.launch.flags import Kind
from perfmodel.specs.launch.values import NOT_STATED, read

__all__ = ["Reading"]

_SECRET: Final = re.compile(r"(?:^|_)(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)


@dataclass(slots=True)
class Reading:
    """What a text states, field by field; `where` names the flag or key and its line."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    fallback: dict[str, Any] = field(default_factory=dict)
    """What a field is if nothing states it better."""
    faults: list[Fault] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, value: object, where: str) -> None:
        """State one field; a second statement must say the same."""
        if isinstance(value, Fault):
            self.faults.append(replace(value, where=where))
        elif name in self.values and self.values[name] != value:
            self.faults.append(
                Fault(
                    where,
                    f"{value!r}, while {self.places[name]} says {self.values[name]!r}",
                    "one value",
                    "Paste one launch line, and each flag once.",
                )
            )
        else:
            self.values[name] = value
            self.places.setdefault(name, where)

    def put_text(self, name: str, kind: Kind, text: str, where: str) -> None:
        """State one field by the text of its value; `None` and an empty value say nothing."""
        if text.strip().lower() not in NOT_STATED:
            self.put(name, read(name, kind, text), where)

    def put_environment(self, pairs: Iterable[tuple[str, str]]) -> None:
        """State environment variables; the value of a secret is not kept."""
        self.environment.update((name, "***" if _SECRET.search(name) else value) for name, value in pairs)

    def deployment(self, title: str) -> Deployment:
        """Return the deployment; raise SpecError with all faults if there are any."""
        if self.faults:
            raise SpecError(title, faults=dict.fromkeys(self.faults))
        return Deployment(
            **(self.fallback | self.values),
            ignored=tuple(dict.fromkeys(self.ignored)),
            unknown=tuple(dict.fromkeys(self.unknown)),
            notes=tuple(dict.fromkeys(self.notes)),
            environment=self.environment,
        )
