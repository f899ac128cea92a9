"""Who took the time: shares by type of operator and by stream, exposed time, and stated shares checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from perfmodel.errors import SpecError
from perfmodel.measure.profile import OperatorTiming
from perfmodel.measure.profiling.profile_file import Profile, StreamName

__all__ = ["OperatorShare", "StatedShare", "StreamShare", "common_total_s", "operator_shares", "stream_shares"]


class OperatorShare(NamedTuple):
    """All operators of one type. `share` is of the time of all operators added up: shares add up to 1.

    `exposed_s` is the time during which nothing but operators of this type ran; None where starts are not known.
    """

    type: str
    family: str
    n_calls: int
    total_s: float
    mean_s: float
    share: float
    exposed_s: float | None


class StreamShare(NamedTuple):
    """One stream: operators, their time, and the time from its first start to its last end (None: not known)."""

    device: str
    stream: str
    n_calls: int
    total_s: float
    share: float
    span_s: float | None


class StatedShare(NamedTuple):
    """A time and the share of a whole that somebody states for it, each with the step that it is rounded to."""

    time_s: float
    time_step_s: float
    share: float
    share_step: float


def type_of(operator: OperatorTiming) -> str:
    """Return what operators are counted by: the type, or the name where a tool gives no type."""
    return operator.type or operator.name


def operator_shares(profile: Profile) -> tuple[OperatorShare, ...]:
    """Return the types of operators, those that took longest first."""
    groups: dict[str, list[OperatorTiming]] = {}
    for o in profile.operators:
        groups.setdefault(type_of(o), []).append(o)
    exposed = _exposed(profile) if profile.has_times else None
    found = []
    for kind, group in groups.items():
        total, calls = sum(o.duration_s * o.n_calls for o in group), sum(o.n_calls for o in group)
        alone = None if exposed is None else exposed.get(kind, 0.0)
        found.append(OperatorShare(kind, group[0].family, calls, total, total / calls, total / profile.total_s, alone))
    return tuple(sorted(found, key=lambda one: (-one.total_s, one.type)))


def _exposed(profile: Profile) -> dict[str, float]:
    """Return the time during which operators of one type alone run."""
    edges = []
    for o in profile.operators:
        start = o.start_s or 0.0
        edges += [(start, 1, type_of(o)), (start + o.duration_s, -1, type_of(o))]
    edges.sort(key=lambda edge: edge[0])
    running: Counter[str] = Counter()
    found: dict[str, float] = {}
    last = 0.0
    for at, change, kind in edges:
        if len(running) == 1:
            only = next(iter(running))
            found[only] = found.get(only, 0.0) + at - last
        running[kind] += change
        if running[kind] == 0:
            del running[kind]
        last = at
    return found


def stream_shares(profile: Profile) -> tuple[StreamShare, ...]:
    """Return the streams in order of their names."""
    return tuple(_stream(profile, stream, positions) for stream, positions in profile.streams.items())


def _stream(profile: Profile, stream: StreamName, positions: Sequence[int]) -> StreamShare:
    own = [profile.operators[i] for i in positions]
    total = sum(o.duration_s * o.n_calls for o in own)
    span = None
    if profile.has_times:
        span = max((o.start_s or 0.0) + o.duration_s for o in own) - min(o.start_s or 0.0 for o in own)
    return StreamShare(*stream, sum(o.n_calls for o in own), total, total / profile.total_s, span)


def common_total_s(stated: Iterable[StatedShare]) -> tuple[float, float] | None:
    """Return the range of the whole that all stated shares agree on within their rounding, None where they do not.

    A share of 0 within its rounding bounds nothing from above. Raises SpecError where nothing is stated, or a time or
    share is below 0.

    >>> low, high = common_total_s([StatedShare(0.1274, 1e-4, 0.38, 0.01), StatedShare(0.0421, 1e-4, 0.13, 0.01)])
    >>> round(low, 4), round(high, 4)
    (0.3308, 0.3372)
    """
    low, high, n = 0.0, float("inf"), 0
    for time, time_step, share, share_step in stated:
        if min(time, time_step, share, share_step) < 0.0:
            raise SpecError("a stated share cannot be used", got=f"{time:g} s, {share:g}", expected="numbers >= 0")
        n += 1
        low = max(low, (time - time_step / 2) / (share + share_step / 2))
        least = share - share_step / 2
        high = min(high, (time + time_step / 2) / least if least > 0.0 else float("inf"))
    if not n:
        raise SpecError("no share is stated", expected="times with their shares")
    return (low, high) if low <= high else None
