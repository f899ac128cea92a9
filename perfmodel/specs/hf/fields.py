"""Typed look-ups in a config of unknown quality: every fault is collected, none is raised on the way."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Final

from perfmodel.errors import Fault

__all__ = ["LARGEST", "MOST_LAYERS", "Fields", "shown"]

LARGEST: Final = 2**40
MOST_LAYERS: Final = 4096
_STAND_IN: Final = 1


def shown(value: object) -> str:
    """Return a short text of any value, for messages."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = 60
    try:
        return short.repr(value)
    except Exception:
        return f"a {type(value).__name__} that cannot be printed"


def _whole(value: object) -> int | None:
    """Return a whole number, None for anything else (true and false are no numbers here)."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return int(value)
    return None


class Fields:
    """A config whose null values count as absent; `faults` fills as wrong values are met.

    A look-up that fails returns 1 (or a given default), so that reading goes on and finds the other faults too.
    """

    def __init__(self, config: Mapping[str, object], absent: Mapping[str, object]) -> None:
        self.config = config
        self.absent = absent
        self.faults: list[Fault] = []
        self.warnings: list[str] = []

    def found(self, *names: str) -> tuple[str, object] | None:
        """Return the first of the names that has a value, with its value: own keys first, then class defaults."""
        for source in (self.config, self.absent):
            for name in names:
                value = source.get(name)
                if value is not None:
                    return name, value
        return None

    def fault(self, where: str, got: object, expected: str, cure: str = "") -> None:
        """Note a fault; nothing is returned."""
        self.faults.append(Fault(where=where, got=shown(got), expected=expected, cure=cure))

    def missing(self, *names: str, cure: str = "") -> None:
        """Note that a needed value is absent; nothing is returned."""
        also = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
        self.faults.append(Fault(where=names[0] + also, got="nothing", expected="a whole number > 0", cure=cure))

    def _checked(self, where: str, value: object, least: int, most: int) -> int:
        number = _whole(value)
        if number is None or not least <= number <= most:
            bound = f"a whole number >= {least} and below 2^40" if most == LARGEST - 1 else f"{least} to {most}"
            self.fault(where, value, bound)
            return max(least, _STAND_IN)
        return number

    def size(self, *names: str, default: int | None = None, most: int = LARGEST - 1, cure: str = "") -> int:
        """Return a number > 0 by any of its names, or the default; without default absence is a fault."""
        found = self.found(*names)
        if found is None:
            if default is None:
                self.missing(*names, cure=cure)
                return _STAND_IN
            return default
        return self._checked(*found, 1, most)

    def maybe_size(self, *names: str) -> int | None:
        """Return a number > 0 by any of its names, None where all are absent."""
        found = self.found(*names)
        return None if found is None else self._checked(*found, 1, LARGEST - 1)

    def count(self, *names: str, default: int = 0) -> int:
        """Return a number >= 0 by any of its names, or the default."""
        found = self.found(*names)
        return default if found is None else self._checked(*found, 0, LARGEST - 1)

    def flag(self, *names: str) -> bool | None:
        """Return true or false by any of the names, None where all are absent."""
        found = self.found(*names)
        if found is None:
            return None
        if not isinstance(found[1], bool):
            self.fault(*found, "true or false")
            return None
        return found[1]

    def text(self, *names: str) -> str:
        """Return a text by any of its names, an empty one where all are absent."""
        found = self.found(*names)
        if found is None:
            return ""
        if not isinstance(found[1], str):
            self.fault(*found, "a text")
            return ""
        return found[1]

    def items(self, n_layers: int, *names: str, longer: bool = False) -> tuple[object, ...] | None:
        """Return a list with one entry per layer (`longer`: entries beyond the last layer are cut), None if absent."""
        found = self.found(*names)
        if found is None:
            return None
        name, value = found
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            self.fault(name, value, f"a list with an entry for each of the {n_layers} layers")
            return None
        if len(value) < n_layers or (len(value) > n_layers and not longer):
            self.fault(name, f"{len(value)} entries", f"{n_layers} (num_hidden_layers)")
            return None
        return tuple(value[:n_layers])

    def words(self, n_layers: int, *names: str) -> tuple[str, ...] | None:
        """Return a list of texts, one per layer, None if absent."""
        entries = self.items(n_layers, *names)
        if entries is None:
            return None
        if not all(isinstance(entry, str) for entry in entries):
            self.fault(names[0], entries, "a list of texts")
            return None
        return tuple(str(entry) for entry in entries)

    def sizes(self, n_layers: int, *names: str, default: int | None = None, cure: str = "") -> tuple[int, ...]:
        """Return a number > 0 for each layer from a number or a list, or the default."""
        found = self.found(*names)
        if found is not None and isinstance(found[1], list | tuple):
            entries = self.items(n_layers, found[0]) or ()
            checked = tuple(self._checked(f"{found[0]}[{i}]", v, 1, LARGEST - 1) for i, v in enumerate(entries))
            return checked or (_STAND_IN,) * n_layers
        return (self.size(*names, default=default, cure=cure),) * n_layers

    def mapping(self, *names: str) -> Mapping[str, object] | None:
        """Return a nested object by any of its names, None if absent."""
        found = self.found(*names)
        if found is None:
            return None
        if not isinstance(found[1], Mapping):
            self.fault(*found, "an object with keys")
            return None
        return found[1]
