"""A profile: operator timings of one or several files, checked before anything is computed from them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, isfinite, prod, ulp
from pathlib import Path
from typing import Final

from perfmodel.errors import MeasurementError
from perfmodel.measure.importers.registry import import_file
from perfmodel.measure.profile import OperatorTiming
from perfmodel.measure.text import Faults

__all__ = ["Overlap", "Profile", "StreamName", "profile_of", "read_profile"]

StreamName = tuple[str, str]
"""Device and stream."""

_SYNCHRONISES: Final = re.compile(r"(event|notify)_?(wait|record|reset)|place_?holder", re.IGNORECASE)
"""Tasks that only order streams: their time is that of waiting."""
_LEAST_OVERLAP_S: Final = 5e-8
_MOST_ELEMENTS: Final = 2**50
_CLOCK_ULPS: Final = 4.0
"""Starts count from an epoch in most files: rounding of a double may make neighbours overlap by this many units."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two operators of one stream that run at once, which a stream cannot do."""

    stream: StreamName
    first: OperatorTiming
    second: OperatorTiming
    by_s: float

    def __str__(self) -> str:
        names = " and ".join(f"{o.name or o.type} ({o.place or 'no place'})" for o in (self.first, self.second))
        return f"stream {self.stream[1] or '(none)'}: {names} overlap by {self.by_s * 1e6:.3g} us"


@dataclass(frozen=True)
class Profile:
    """Operators in the order of their files; `links` are pairs by position of which the second waited for the first."""

    name: str
    formats: tuple[str, ...]
    operators: tuple[OperatorTiming, ...]
    links: tuple[tuple[int, int], ...] = ()
    warnings: tuple[str, ...] = ()

    @cached_property
    def total_s(self) -> float:
        """Time of all operators added up, whether or not they ran side by side."""
        return sum(o.duration_s * o.n_calls for o in self.operators)

    @cached_property
    def streams(self) -> dict[StreamName, tuple[int, ...]]:
        """Positions of the operators of each stream, by start where all of them have one."""
        found: dict[StreamName, list[int]] = {}
        for i, o in enumerate(self.operators):
            found.setdefault((o.device, o.stream), []).append(i)
        if self.has_times:
            for positions in found.values():
                positions.sort(key=self._start)
        return {stream: tuple(found[stream]) for stream in sorted(found, key=natural)}

    def _start(self, position: int) -> tuple[float, int]:
        return self.operators[position].start_s or 0.0, position

    @cached_property
    def has_times(self) -> bool:
        """Whether every operator is one run with a start."""
        return all(o.start_s is not None and o.n_calls == 1 for o in self.operators)

    @cached_property
    def overlaps(self) -> tuple[Overlap, ...]:
        """Neighbours in a stream of which the second starts before the first has ended, beyond rounding."""
        found = []
        for stream, positions in self.streams.items() if self.has_times else ():
            last: OperatorTiming | None = None
            for i in positions:
                own = self.operators[i]
                if last is not None:
                    by = _end(last) - (own.start_s or 0.0)
                    if by > max(_LEAST_OVERLAP_S, _CLOCK_ULPS * ulp(own.start_s or 0.0)):
                        found.append(Overlap(stream, last, own, by))
                if last is None or _end(own) > _end(last):
                    last = own
        return tuple(found)

    @cached_property
    def untestable(self) -> str:
        """Why nothing can be said about the order in time, "" where all of it can."""
        if not self.has_times:
            return (
                "operators have no start times"
                if all(o.start_s is None for o in self.operators)
                else ("some operators have no start time, or are means of several runs")
            )
        if self.overlaps:
            more = f", and {len(self.overlaps) - 1} more" if len(self.overlaps) > 1 else ""
            return f"operators of one stream overlap ({self.overlaps[0]}{more})"
        return ""


def natural(stream: StreamName) -> tuple[tuple[int, str], ...]:
    """Return the key that sorts streams as people do: 2 before 10.

    >>> sorted([("0", "10"), ("0", "2")], key=natural)
    [('0', '2'), ('0', '10')]
    """
    return tuple((int(word) if word.isdecimal() else -1, word) for word in stream)


def _end(operator: OperatorTiming) -> float:
    return (operator.start_s or 0.0) + operator.duration_s


def profile_of(
    operators: Sequence[OperatorTiming],
    *,
    name: str = "the profile",
    formats: Sequence[str] = (),
    links: Sequence[tuple[int, int]] = (),
    warnings: Sequence[str] = (),
) -> Profile:
    """Return a profile of timings.

    Raises MeasurementError where there are none, a duration or start is not finite, a duration is negative, or all take
    no time.
    """
    bad = Faults()
    for i, o in enumerate(operators, start=1):
        if not 0.0 <= o.duration_s < inf:
            bad.add(o.place or f"operator {i}", f"{o.duration_s:g} s", "a duration of at least 0")
        if o.start_s is not None and not isfinite(o.start_s):
            bad.add(o.place or f"operator {i}", f"start {o.start_s:g} s", "a finite start")
    if bad:
        raise bad.raised(f"{name} holds durations or starts that time cannot take")
    if not operators or sum(o.duration_s for o in operators) <= 0.0:
        raise MeasurementError(
            f"{name} holds no operator that took time", expected="operators with durations", cure="Profile a run."
        )
    return Profile(name, tuple(formats), tuple(_sound(o) for o in operators), tuple(links), tuple(warnings))


def _sound(operator: OperatorTiming) -> OperatorTiming:
    """Return the operator without shapes that no memory could hold: those of a damaged file."""
    every = (*operator.input_shapes, *operator.output_shapes)
    if all(0 <= prod(shape) <= _MOST_ELEMENTS for shape in every):
        return operator
    return replace(operator, input_shapes=(), output_shapes=())


def read_profile(paths: Sequence[Path | str], form: str | None = None) -> Profile:
    """Return the profile that files hold together; `form` names their format, recognised without it.

    Raises MeasurementError for a file that is empty, cut off, no profile, or that holds a negative duration (with the
    line or event). Waits and records of events count as no operators. Operators of several files count as of several
    devices, since the files may not tell them apart.
    """
    operators: list[OperatorTiming] = []
    links: list[tuple[int, int]] = []
    warnings: list[str] = []
    formats: list[str] = []
    for path in paths:
        found = import_file(path, form)
        label = Path(path).name
        if found.bad_durations:
            raise MeasurementError(f"{label} holds durations that time cannot take", faults=found.bad_durations)
        own = tuple(o for o in found.operators if not _SYNCHRONISES.search(f"{o.type} {o.name} {o.core}"))
        if not found.operators:
            raise MeasurementError(
                f"{label} holds no operator timings",
                got=f"a file that is read as {found.format}",
                expected="op_summary, kernel_details, op_statistic, an operator list or a trace",
            )
        place = {id(o): len(operators) + i for i, o in enumerate(own)}
        ends = [(id(found.operators[a]), id(found.operators[b])) for a, b in found.links]
        links += [(place[a], place[b]) for a, b in ends if a in place and b in place]
        if len(own) < len(found.operators):
            waits = len(found.operators) - len(own)
            warnings.append(
                f"{label}: {waits} waits and records of events are synchronisation and count as no operator"
            )
        if len(paths) > 1:
            own = tuple(replace(o, device=f"{label} {o.device}".strip(), place=f"{label} {o.place}") for o in own)
        operators += own
        warnings += [f"{label}: {text}" if len(paths) > 1 else text for text in found.warnings]
        formats.append(found.format)
    name = Path(paths[0]).name if len(paths) == 1 else f"{len(paths)} files"
    return profile_of(operators, name=name, formats=formats, links=links, warnings=warnings)
