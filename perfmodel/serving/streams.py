"""Decode steps in one stream and prefills in another on one device, kernel by kernel.

Decode is closed: the next step is ready a host gap after the last one ended. Prefills come at given times and are read
one after the other. Kernels of a stream run in order; between two events every running kernel advances at the constant
rate that `cost.streams.rates` gives it, so that times are exact. A decode step that starts under `priority` first waits
until units of a prefill kernel that hold the cores have ended (they are not interrupted).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from perfmodel.cost.streams import Policy, Task, rates
from perfmodel.errors import SpecError

__all__ = ["StreamRun", "arrival_times", "stream_run"]

Floats = NDArray[np.float64]
_NOTHING_S = 1e-12


@dataclass(frozen=True, slots=True)
class StreamRun:
    """What a run gave: time of each decode step (from the end of the one before), time of each prefill from arrival.

    `core_frac` is the share of the cores' time in use over the run, `n_waiting` the prefills not read at its end.
    """

    policy: Policy
    duration_s: float
    decode_step_s: Floats
    prefill_s: Floats
    core_frac: float
    n_waiting: int

    @property
    def decode_steps_per_s(self) -> float:
        """Decode steps finished per second."""
        return len(self.decode_step_s) / self.duration_s

    @property
    def prefills_per_s(self) -> float:
        """Prefills finished per second."""
        return len(self.prefill_s) / self.duration_s


def arrival_times(rng: np.random.Generator, *, arrivals_per_s: float, duration_s: float) -> Floats:
    """Return Poisson arrivals over a duration; raises SpecError for a rate below 0 or a duration that is not above it.

    Both are finite.
    """
    if not (0.0 <= arrivals_per_s < inf and 0.0 < duration_s < inf):
        raise SpecError(
            "prompts cannot arrive like that",
            got=f"{arrivals_per_s:g} a second for {duration_s:g} s",
            expected="a finite rate of at least 0 and a finite duration above 0",
        )
    n = rng.poisson(arrivals_per_s * duration_s)
    return np.sort(rng.uniform(0.0, duration_s, n))


@dataclass(slots=True)
class _Lane:
    """A stream: the kernels of its job, where the job stands, and when it starts (never, without a job)."""

    tasks: Sequence[Task]
    start_s: float = inf
    at: int = 0
    left_s: float = 0.0
    is_held: bool = False

    @property
    def task(self) -> Task:
        return self.tasks[self.at]

    def begin(self, start_s: float) -> None:
        self.start_s, self.at, self.left_s, self.is_held = start_s, 0, self.tasks[0].time_s, False

    def has_ended(self, done_s: float) -> bool:
        """Advance by an amount of work; tell whether that was the last of the job."""
        self.left_s -= done_s
        while self.left_s <= _NOTHING_S:
            self.at += 1
            if self.at == len(self.tasks):
                return True
            self.left_s += self.task.time_s
        return False


def _unit_left_s(decode: _Lane, prefill: _Lane, now: float) -> float:
    """Return how long a starting decode step waits for units of the other stream that hold the cores it needs."""
    unit = prefill.task.unit_s if prefill.start_s <= now else 0.0
    if unit <= 0.0 or decode.task.core_frac + prefill.task.core_frac <= 1.0:
        return 0.0
    done = prefill.task.time_s - prefill.left_s
    return min(prefill.left_s, unit - done % unit)


def stream_run(
    decode: Sequence[Task],
    prefill: Sequence[Task],
    arrivals_s: Sequence[float] | Floats,
    policy: Policy,
    *,
    duration_s: float,
    host_gap_s: float = 0.0,
    decode_core_share: float = 0.5,
) -> StreamRun:
    """Return the run of decode steps beside prefills over `duration_s`.

    An empty `decode` leaves prefills alone, no arrivals leave decode alone. Raises SpecError where there is nothing to
    run, for a duration that is not above 0, or a share of cores that is not between 0 and 1.
    """
    if not (decode or len(arrivals_s)) or not prefill or duration_s <= 0 or not 0 < decode_core_share < 1:
        raise SpecError(
            "the streams cannot be run",
            got=f"{len(decode)} decode and {len(prefill)} prefill kernels, {duration_s:g} s, "
            f"share {decode_core_share:g}",
            expected="kernels, a duration above 0 and a share of cores between 0 and 1",
        )
    arrivals = [float(t) for t in arrivals_s if t < duration_s]
    if policy == "one stream":
        return _one_stream(decode, prefill, arrivals, duration_s=duration_s, host_gap_s=host_gap_s)
    shares = (decode_core_share, 1.0 - decode_core_share)
    return _two_streams(decode, prefill, arrivals, policy, shares=shares, duration_s=duration_s, host_gap_s=host_gap_s)


def _one_stream(
    decode: Sequence[Task], prefill: Sequence[Task], arrivals: Sequence[float], *, duration_s: float, host_gap_s: float
) -> StreamRun:
    """Return whole steps and whole prefills one after the other, in the order in which they became ready."""
    own, other = sum(t.time_s for t in decode), sum(t.time_s for t in prefill)
    filled = [sum(t.time_s * t.core_frac for t in tasks) for tasks in (decode, prefill)]
    waiting = deque(arrivals)
    now, ready, ends, read, busy = 0.0, 0.0 if decode else inf, [0.0], [], 0.0
    while True:
        arrival = waiting[0] if waiting else inf
        is_step = ready <= arrival
        now = max(now, min(ready, arrival)) + (own if is_step else other)
        if now > duration_s:
            break
        busy += filled[0 if is_step else 1]
        if is_step:
            ends.append(now)
            ready = now + host_gap_s
        else:
            read.append(now - waiting.popleft())
    steps = np.diff(np.array(ends, dtype=np.float64))
    return StreamRun("one stream", duration_s, steps, np.array(read), busy / duration_s, len(waiting))


def _two_streams(
    decode: Sequence[Task],
    prefill: Sequence[Task],
    arrivals: Sequence[float],
    policy: Policy,
    *,
    shares: tuple[float, float],
    duration_s: float,
    host_gap_s: float,
) -> StreamRun:
    """Return both streams side by side, event by event."""
    waiting = deque(arrivals)
    step, reading = _Lane(decode), _Lane(prefill)
    if decode:
        step.begin(0.0)
    if waiting:
        reading.begin(waiting[0])
    now, busy, ends, read = 0.0, 0.0, [0.0], []
    while now < duration_s:
        if policy == "priority" and not step.is_held and step.start_s <= now:
            step.is_held, step.start_s = True, now + _unit_left_s(step, reading, now)
        active = [lane for lane in (step, reading) if lane.start_s <= now]
        own = [share for lane, share in zip((step, reading), shares, strict=True) if lane.start_s <= now]
        speed = rates([lane.task for lane in active], policy, core_shares=own)
        starts = [lane.start_s - now for lane in (step, reading) if lane.start_s > now]
        finishes = [lane.left_s / rate for lane, rate in zip(active, speed, strict=True) if rate > 0.0]
        passed = min([*starts, *finishes, duration_s - now])
        busy += passed * sum(rate * lane.task.core_frac for lane, rate in zip(active, speed, strict=True))
        now += passed
        for lane, rate in zip(active, speed, strict=True):
            if not lane.has_ended(rate * passed):
                continue
            if lane is step:
                ends.append(now)
                step.begin(now + host_gap_s)
            else:
                read.append(now - waiting.popleft())
                reading.begin(max(now, waiting[0]) if waiting else inf)
    steps = np.diff(np.array(ends, dtype=np.float64))
    return StreamRun(policy, duration_s, steps, np.array(read), busy / duration_s, len(waiting))
