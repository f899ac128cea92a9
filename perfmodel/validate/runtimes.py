"""Which runtime profile a table's software name stands for.

Tables name software as `engine-version`. A name that the catalogue knows is taken as it is; otherwise the profile of
the same engine with the nearest version stands in, and a remark says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from perfmodel.specs.catalogue import Catalogue

__all__ = ["RuntimeMatch", "runtime_match"]

_VERSION = re.compile(r"\d+(?:\.\d+)*")
_FIRST_YEAR: Final = 2000
"""A version from here on is a date: dates are compared with dates only."""


@dataclass(frozen=True, slots=True)
class RuntimeMatch:
    """The profile that stands for a name ("" where none does), and what the reader should know about it."""

    name: str
    remark: str = ""


def _parted(name: str) -> tuple[str, tuple[int, ...]]:
    """Return the engine's word and the version behind it.

    >>> _parted("sglang-0.5.10.post1"), _parted("gpt-fast")
    (('sglang', (0, 5, 10)), ('gpt-fast', ()))
    """
    match = _VERSION.search(name)
    if match is None:
        return name, ()
    return name[: match.start()].rstrip("-_ ~v."), tuple(int(part) for part in match[0].split("."))


def _distance(asked: tuple[int, ...], known: tuple[int, ...]) -> tuple[float, ...]:
    width = max(len(asked), len(known))
    pairs = zip(asked + (0,) * (width - len(asked)), known + (0,) * (width - len(known)), strict=True)
    return tuple(abs(a - b) for a, b in pairs)


def runtime_match(catalogue: Catalogue, name: str) -> RuntimeMatch:
    """Return the profile for a table's runtime name: by name, else of the same engine with the nearest version.

    >>> runtime_match(Catalogue.standard(), "vllm-0.6.3")
    RuntimeMatch(name='vllm-0.6.3', remark='')
    >>> runtime_match(Catalogue.standard(), "trtllm-0.13").name
    'tensorrt-llm-0.14'
    """
    spellings = catalogue.spellings("runtime")
    plain = re.sub(r"[\s_]+", "-", name.strip().lower())
    if plain in spellings:
        return RuntimeMatch(spellings[plain])
    word, version = _parted(plain)
    rivals: list[tuple[tuple[float, ...], str]] = []
    for spelling, canonical in spellings.items():
        other, known = _parted(spelling)
        same_clock = known and version and (known[0] < _FIRST_YEAR) == (version[0] < _FIRST_YEAR)
        if other == word and same_clock:
            rivals.append((_distance(version, known), canonical))
    if rivals:
        nearest = min(rivals)[1]
        return RuntimeMatch(nearest, f"{name} is priced as {nearest}, the nearest version with a profile")
    while word:
        if word in spellings:
            return RuntimeMatch(spellings[word], f"{name} is priced as {spellings[word]}")
        word = word.rpartition("-")[0]
    return RuntimeMatch("", f"no runtime profile stands for {name!r}")
