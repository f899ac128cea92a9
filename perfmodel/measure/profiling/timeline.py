"""Order in time: what each operator waited for, the critical path, and the end of the run under other durations.

An operator depends on the one before it in its stream, on those that the file links it to, and, where asked, on one of
another stream of its device that ended just before it started while its own stream was idle (an inferred wait). What it
waited beyond the last of them is its lag: launch, host, synchronisation. Under other durations dependencies and lags
are kept, so that a factor of 1 gives the measured run exactly.
Source: longest path in a directed acyclic graph; Amdahl's law for what runs in one stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import inf, ulp
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import MeasurementError, SpecError
from perfmodel.measure.profile import OperatorTiming
from perfmodel.measure.profiling.profile_file import Profile
from perfmodel.measure.profiling.shares import type_of

__all__ = ["CriticalPath", "Timeline", "WhatIf", "amdahl_s", "factor_of", "timeline_of", "what_if"]

Floats = NDArray[np.float64]
_CLOCK_S: Final = 1e-6
"""Finest tick of the clocks that traces are written with."""
_LEAST_TICK_S: Final = 1e-9
_CLOCK_ULPS: Final = 4.0
"""Rounding of starts that count from an epoch."""


class CriticalPath(NamedTuple):
    """The longest chain of operators that had to follow each other, by position, and its time without lags."""

    positions: tuple[int, ...]
    length_s: float


class WhatIf(NamedTuple):
    """What a change of some operators' speed would do.

    `factor` is how many times as fast they run, `matched_s` their time now. `saved_s` is what the run would be shorter;
    on one stream it is Amdahl's law.
    """

    words: str
    factor: float
    n_matched: int
    matched_s: float
    before_s: float
    after_s: float

    @property
    def saved_s(self) -> float:
        """Time saved."""
        return self.before_s - self.after_s

    @property
    def speedup(self) -> float:
        """Time before over time after."""
        return self.before_s / self.after_s


@dataclass(frozen=True)
class Timeline:
    """Operators by start with their dependencies (positions in this order) and lags."""

    operators: tuple[OperatorTiming, ...]
    before: tuple[tuple[int, ...], ...]
    duration_s: Floats
    lag_s: Floats
    n_inferred: int

    @property
    def span_s(self) -> float:
        """Time from the first start to the last end."""
        return float(self.ends(np.ones(len(self.operators))).max())

    def ends(self, scale: Floats) -> Floats:
        """Return when each operator ends, from the first start, with durations times `scale`."""
        ends = np.zeros(len(self.operators))
        lags, durations = self.lag_s.tolist(), (self.duration_s * scale).tolist()
        for i, earlier in enumerate(self.before):
            ready = max((ends[j] for j in earlier), default=0.0)
            ends[i] = ready + lags[i] + durations[i]
        return ends

    @cached_property
    def critical_path(self) -> CriticalPath:
        """The longest chain: at least as long as the longest stream, at most as long as all operators together."""
        longest, via = np.zeros(len(self.operators)), [-1] * len(self.operators)
        for i, earlier in enumerate(self.before):
            via[i] = max(earlier, key=lambda j: longest[j], default=-1)
            longest[i] = self.duration_s[i] + (longest[via[i]] if via[i] >= 0 else 0.0)
        at, path = int(longest.argmax()), []
        while at >= 0:
            path.append(at)
            at = via[at]
        return CriticalPath(tuple(reversed(path)), float(longest.max()))


def timeline_of(profile: Profile, *, handover_s: float | None = None) -> Timeline:
    """Return the timeline of a profile; waits between streams are inferred within `handover_s`, None: none are.

    Raises MeasurementError where the profile says nothing about order (no starts, overlaps within a stream).
    """
    if profile.untestable:
        raise MeasurementError(f"the order in time is not testable: {profile.untestable}")
    order = sorted(range(len(profile.operators)), key=lambda i: (profile.operators[i].start_s or 0.0, i))
    place = {position: i for i, position in enumerate(order)}
    operators = tuple(profile.operators[i] for i in order)
    first = operators[0].start_s or 0.0
    starts = np.array([(o.start_s or 0.0) - first for o in operators])
    durations = np.array([o.duration_s for o in operators])
    before: list[set[int]] = [set() for _ in operators]
    for positions in profile.streams.values():
        for a, b in pairwise(positions):
            before[place[b]].add(place[a])
    for a, b in profile.links:
        i, j = place[a], place[b]
        if i < j and starts[i] + durations[i] <= starts[j] + _CLOCK_S:  # what ended later cannot have been waited for
            before[j].add(i)
    n_inferred = 0 if handover_s is None else _infer(operators, starts, durations, before, handover_s)
    ends = starts + durations
    lags = np.array(
        [starts[i] - max((ends[j] for j in earlier), default=0.0) for i, earlier in enumerate(before)], dtype=np.float64
    )
    # Rounding of a clock may put an end a hair behind the next start; such lags below zero are kept, so that the
    # measured run comes out exactly.
    return Timeline(operators, tuple(tuple(sorted(one)) for one in before), durations, lags, n_inferred)


def _infer(
    operators: Sequence[OperatorTiming], starts: Floats, durations: Floats, before: list[set[int]], handover_s: float
) -> int:
    """Add the waits that times suggest: the last end of another stream shortly before a start after idle time."""
    n_inferred = 0
    ends = starts + durations
    tick = _LEAST_TICK_S + _CLOCK_ULPS * ulp(operators[0].start_s or 0.0)
    by_end = np.argsort(ends, kind="stable")
    sorted_ends = ends[by_end]
    for i, own in enumerate(operators):
        idle_from = max((ends[j] for j in before[i]), default=0.0)
        if starts[i] - idle_from <= 0.0 or i == 0:
            continue
        at = int(np.searchsorted(sorted_ends, starts[i] + tick, side="right")) - 1
        while at >= 0 and sorted_ends[at] > idle_from and starts[i] - sorted_ends[at] <= handover_s:
            j = int(by_end[at])
            other = operators[j]
            if j < i and other.device == own.device and other.stream != own.stream:
                before[i].add(j)
                n_inferred += 1
                break
            at -= 1
    return n_inferred


def factor_of(text: str) -> tuple[str, float]:
    """Return (words, factor of speed) of "MatMul=1.3x" or "MatMul=30%"; raises SpecError.

    >>> factor_of("MatMul=1.3x"), factor_of("MatMul=30%")
    (('MatMul', 1.3), ('MatMul', 1.3))
    """
    words, equals, value = text.rpartition("=")
    plain = value.strip().lower()
    try:
        factor = 1.0 + float(plain[:-1]) / 100.0 if plain.endswith("%") else float(plain.removesuffix("x"))
    except ValueError:
        factor = 0.0
    if not equals or not words.strip() or not 0.0 < factor < float("inf"):
        raise SpecError(
            "a what-if cannot be read", got=repr(text), expected="TYPE=1.3x (or 30%): how much faster, above 0"
        )
    return words.strip(), factor


def matcher(words: str) -> Callable[[OperatorTiming], bool]:
    """Return a test of operators: type, family or name, or the beginning of the type, without case."""
    plain = words.lower()

    def matches(operator: OperatorTiming) -> bool:
        kind = type_of(operator).lower()
        return plain in (kind, operator.family, operator.name.lower()) or kind.startswith(plain)

    return matches


def amdahl_s(*, total_s: float, part_s: float, factor: float) -> float:
    """Return the time left where `part_s` of `total_s` runs `factor` times as fast.

    >>> round(amdahl_s(total_s=335.0, part_s=127.4, factor=1.3), 1)
    305.6
    """
    return total_s - part_s + part_s / factor


def what_if(profile: Profile, words: str, factor: float, *, timeline: Timeline | None) -> WhatIf:
    """Return what the run would take if operators that `words` match ran `factor` times as fast.

    With a timeline only what is exposed counts; without one operators are taken to run one after the other (Amdahl).
    Raises SpecError where nothing matches, or for a factor that is not above 0.
    """
    if not 0.0 < factor < inf:
        raise SpecError(
            "a what-if cannot be", where=words, got=f"{factor:g} times as fast", expected="a factor above 0"
        )
    test = matcher(words)
    matched = [o for o in profile.operators if test(o)]
    if not matched:
        known = ", ".join(dict.fromkeys(type_of(o) for o in profile.operators))
        raise SpecError("a what-if matches no operator", got=repr(words), expected=f"one of {known[:300]}")
    part = sum(o.duration_s * o.n_calls for o in matched)
    if timeline is None:
        after = amdahl_s(total_s=profile.total_s, part_s=part, factor=factor)
        return WhatIf(words, factor, len(matched), part, profile.total_s, after)
    scale = np.array([1.0 / factor if test(o) else 1.0 for o in timeline.operators])
    return WhatIf(words, factor, len(matched), part, timeline.span_s, float(timeline.ends(scale).max()))
