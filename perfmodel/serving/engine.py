"""The simulation: replicas that serve a trace, from event to event.

Events are arrivals, admissions, ends of requests and the exhaustion of blocks. Between two of them all steps are decode
steps of the same sequences: they pass in one go, and equal single steps to the nanosecond (`clock.Stepwise`). Requests
that arrive during a step are seen when it ends. Everything is deterministic: the trace holds all that was drawn.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import SpecError
from perfmodel.serving.arrivals import Trace
from perfmodel.serving.batch import Batch
from perfmodel.serving.clock import Clock
from perfmodel.serving.scheduler import ArrivalOrder, Limit, Policy, SchedulerLimits, ShortestFirst, policy_of

__all__ = ["NEVER", "Replica", "Run", "Segments", "ServingSetup", "simulated"]

NEVER: Final = 2**62
_TOLD_EVERY: Final = 512

Told = Callable[[int], object]
"""Called with the number of requests that were done since the last call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSetup:
    """How requests are served. `policy_of` makes the scheduler of a replica; by name see `scheduler.POLICIES`."""

    limits: SchedulerLimits
    policy: str = "mixed"
    order: str = "fcfs"
    n_replicas: int = 1
    routing: str = "round-robin"
    make_policy: Callable[[SchedulerLimits], Policy] | None = None

    def __post_init__(self) -> None:
        if self.order not in ("fcfs", "sjf"):
            raise SpecError(f"unknown order {self.order!r}", expected="fcfs or sjf")
        if self.routing not in ("round-robin", "least-loaded"):
            raise SpecError(f"unknown routing {self.routing!r}", expected="round-robin or least-loaded")
        if self.n_replicas < 1:
            raise SpecError("nothing serves", where="n_replicas", got=str(self.n_replicas), expected="at least 1")

    def new_policy(self) -> Policy:
        """Return a scheduler for one replica."""
        return self.make_policy(self.limits) if self.make_policy else policy_of(self.policy, self.limits)


class _Open:
    """Requests that are sent at their time."""

    def __init__(self, sent: Sequence[tuple[int, int]]) -> None:
        self.due: deque[tuple[int, int]] = deque(sent)

    def next_ns(self) -> int:
        return self.due[0][0] if self.due else NEVER

    def take(self) -> tuple[int, int]:
        return self.due.popleft()

    def answered(self, request: int, at_ns: int) -> None:
        """Nobody waits for the answer."""


class _Closed(_Open):
    """Requests that are sent once they are due and one of the users is free."""

    def __init__(self, sent: Sequence[tuple[int, int]], n_users: int, think_ns: Sequence[int] | None) -> None:
        super().__init__(sent)
        self._free_at = [0] * min(n_users, max(len(sent), 1))
        self._think_ns = think_ns

    def next_ns(self) -> int:
        return max(self.due[0][0], self._free_at[0]) if self.due and self._free_at else NEVER

    def take(self) -> tuple[int, int]:
        at_ns = self.next_ns()
        heappop(self._free_at)
        return at_ns, self.due.popleft()[1]

    def answered(self, request: int, at_ns: int) -> None:
        free = at_ns + (self._think_ns[request] if self._think_ns is not None else 0)
        heappush(self._free_at, free)


class Segments(NamedTuple):
    """Stretches of like steps, one row each, as they were served; times in nanoseconds."""

    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    n_steps: NDArray[np.int64]
    n_decoding: NDArray[np.int64]
    n_running: NDArray[np.int64]
    prompt_tokens: NDArray[np.int64]
    n_waiting: NDArray[np.int64]
    used_blocks: NDArray[np.int64]
    limit: NDArray[np.int64]
    n_late: NDArray[np.int64]
    """Tokens of the first step whose gap is longer than the step; they stand in `late_gaps` instead."""


@dataclass(eq=False, slots=True)
class _Records:
    """What is known of each request, filled in by the replicas; -1 where it did not happen."""

    sent_ns: array[int]
    scheduled_ns: array[int]
    first_token_ns: array[int]
    finish_ns: array[int]
    replica: array[int]
    n_preemptions: dict[int, int] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    n_done: int = 0

    @classmethod
    def empty(cls, n_requests: int) -> _Records:
        blank = array("q", [-1]) * n_requests
        return cls(blank[:], blank[:], blank[:], blank[:], blank)


class Replica:
    """One engine that serves what its inbox sends, with its own time."""

    def __init__(
        self,
        setup: ServingSetup,
        clock: Clock,
        inbox: _Open,
        records: _Records,
        *,
        lengths: tuple[Sequence[int], Sequence[int]],
        index: int = 0,
        told: Told | None = None,
    ) -> None:
        inputs, outputs = lengths
        queue = (
            ArrivalOrder() if setup.order == "fcfs" else ShortestFirst([i + o for i, o in zip(*lengths, strict=True)])
        )
        self.batch = Batch(setup.limits, queue, input_tokens=inputs, output_tokens=outputs)
        self.policy = setup.new_policy()
        self.clock, self.inbox, self.index = clock, inbox, index
        self.now_ns = 0
        self.n_in_system = 0
        self.in_system_ns = 0
        """Requests in the system, integrated over time: counted here as events pass, apart from the records."""
        self.log = array("q")
        self.late_gaps = array("q")
        self._records, self._inputs, self._outputs, self._told = records, inputs, outputs, told
        self._late: list[tuple[int, int]] = []
        """(time of their last token, how many) of sequences that stood still while prompts were read, oldest first."""
        self._last_token_ns: dict[int, int] = {}

    def _arrivals(self) -> None:
        """Take what has been sent by now."""
        inbox, records, batch = self.inbox, self._records, self.batch
        while inbox.next_ns() <= self.now_ns:
            at_ns, request = inbox.take()
            records.sent_ns[request] = at_ns
            records.replica[request] = self.index
            reason = batch.limits.refusal(
                self._inputs[request], self._outputs[request], whole_prompts=self.policy.whole_prompts
            )
            if reason is not None:
                records.refused[request] = reason
                inbox.answered(request, at_ns)
                continue
            batch.queue.add(request)
            self.n_in_system += 1
            self.in_system_ns += self.now_ns - at_ns

    def advance(self, until_ns: int) -> None:
        """Serve every step that starts before `until_ns`."""
        batch, inbox, plan, clock = self.batch, self.inbox, self.policy.plan, self.clock
        heeds = self.policy.admits_beside_decodes
        while True:
            if inbox.next_ns() <= self.now_ns:
                self._arrivals()
            if not batch.n_running and not batch.queue:
                coming_ns = inbox.next_ns()
                if coming_ns >= until_ns:
                    return
                self.now_ns = coming_ns
                continue
            if self.now_ns >= until_ns:
                return
            batch.limit = Limit.ARRIVAL_RATE
            decodes = plan(batch)
            if batch.preempted:
                self._remember_preempted()
                n_most = 1
            else:
                n_most = NEVER
            if batch.chunks:
                self._step_with_prompts(decodes)
                continue
            n_seqs = batch.n_seqs
            if n_most > 1:
                n_most = batch.steps_with_blocks(batch.steps_to_end())
            end_ns = until_ns
            if heeds and (not batch.queue or batch.queue.reorders):
                end_ns = min(end_ns, inbox.next_ns())
            n_steps, time_ns = clock.decode_run(
                n_seqs, batch.context + n_seqs, n_most=n_most, until_ns=end_ns - self.now_ns
            )
            n_late = self._late_tokens(n_seqs) if self._late else 0
            n_running = batch.n_running
            done = batch.decoded(n_steps)
            self._passed(time_ns, n_steps, n_seqs, n_running, 0, n_late)
            for request in done:
                self._finished(request)

    def _step_with_prompts(self, decodes: bool) -> None:
        batch = self.batch
        tokens = pairs = 0
        for _, n_cached, n_tokens, _ in batch.chunks:
            tokens += n_tokens
            pairs += n_tokens * n_cached + n_tokens * (n_tokens + 1) // 2
        n_seqs = batch.n_seqs if decodes else 0
        time_ns = self.clock.mixed_ns(n_seqs, batch.context + n_seqs, prompt_tokens=tokens, pairs=pairs)
        n_late, start_ns = 0, self.now_ns
        if self._late and n_seqs:
            n_late = self._late_tokens(n_seqs)
        elif not decodes and batch.n_seqs:
            fresh = batch.n_seqs - sum(n for _, n in self._late)
            if fresh:
                self._late.append((start_ns, fresh))
        n_running = batch.n_running
        done = batch.decoded(1 if n_seqs else 0)
        chunks, records = batch.chunks, self._records
        self._passed(time_ns, 1, n_seqs, n_running, tokens, n_late)
        now_ns = self.now_ns
        for request in done:
            self._finished(request)
        for chunk in chunks:
            request = chunk.request
            if records.scheduled_ns[request] < 0:
                records.scheduled_ns[request] = start_ns
            if not chunk.is_last:
                continue
            if records.first_token_ns[request] < 0:
                records.first_token_ns[request] = now_ns
            else:
                self.late_gaps.extend((now_ns - self._last_token_ns.pop(request), 1))
            if batch.prompt_read(chunk):
                self._finished(request)
        batch.chunks = []

    def _passed(self, time_ns: int, n_steps: int, n_seqs: int, n_running: int, prompt_tokens: int, n_late: int) -> None:
        """Let time pass, and write it down."""
        batch = self.batch
        row = (self.now_ns, time_ns, n_steps, n_seqs, n_running, prompt_tokens)
        self.log.extend((*row, len(batch.queue), batch.held_before_ends, batch.limit, n_late))
        self.now_ns += time_ns
        self.in_system_ns += self.n_in_system * time_ns

    def _late_tokens(self, n_seqs: int) -> int:
        """Write down the gaps of sequences that stood still before this step, and return how many there are."""
        first_ns = self.clock.decode_ns(n_seqs, self.batch.context + n_seqs)
        for last_ns, n in self._late:
            self.late_gaps.extend((self.now_ns - last_ns + first_ns, n))
        n_late = sum(n for _, n in self._late)
        self._late.clear()
        return n_late

    def _remember_preempted(self) -> None:
        """Keep the time of the last token of those that were just preempted: the newest, so the least late."""
        batch, records = self.batch, self._records
        n_before = batch.n_seqs + sum(1 for r in batch.preempted if batch.n_emitted_before[r])
        for request in batch.preempted:
            records.n_preemptions[request] = records.n_preemptions.get(request, 0) + 1
            if not batch.n_emitted_before[request] or request in self._last_token_ns:
                continue
            last_ns = self.now_ns
            if self._late and n_before <= sum(n for _, n in self._late):
                last_ns, n = self._late.pop()
                if n > 1:
                    self._late.append((last_ns, n - 1))
            self._last_token_ns[request] = last_ns
            n_before -= 1
        batch.preempted = []

    def _finished(self, request: int) -> None:
        records = self._records
        records.finish_ns[request] = self.now_ns
        self.n_in_system -= 1
        self.inbox.answered(request, self.now_ns)
        records.n_done += 1
        if self._told is not None and records.n_done % _TOLD_EVERY == 0:
            self._told(_TOLD_EVERY)

    def segments(self) -> Segments:
        """Return what was served, stretch by stretch."""
        rows = np.frombuffer(self.log, np.int64).reshape(-1, len(Segments._fields))
        return Segments(*rows.T)


@dataclass(frozen=True, eq=False, slots=True)
class Run:
    """A trace as it was served. Times in nanoseconds, -1 where it did not happen (a refused request has no times).

    `late_gaps` holds (gap, number of tokens) of tokens that came later than one step after the last one.
    `in_system_ns` is the number of requests in the system, integrated over time as events passed.
    """

    setup: ServingSetup
    trace: Trace
    sent_ns: NDArray[np.int64]
    scheduled_ns: NDArray[np.int64]
    first_token_ns: NDArray[np.int64]
    finish_ns: NDArray[np.int64]
    replica: NDArray[np.int64]
    n_preemptions: NDArray[np.int64]
    refused: dict[int, str]
    segments: tuple[Segments, ...]
    late_gaps: NDArray[np.int64]
    in_system_ns: int
    used_blocks_at_end: int
    n_reused_blocks: int


def simulated(trace: Trace, setup: ServingSetup, clock: Clock, *, told: Told | None = None) -> Run:
    """Return the trace as served by the setup; the same inputs give the same result.

    Raises SpecError where a closed loop is to be routed by load.
    """
    records = _Records.empty(len(trace))
    inputs, outputs = trace.input_tokens.tolist(), trace.output_tokens.tolist()
    think_ns = trace.think_ns.tolist() if trace.think_ns is not None else None
    sent = list(zip(trace.arrival_ns.tolist(), range(len(trace)), strict=True))
    n = setup.n_replicas

    def replica(index: int, inbox: _Open) -> Replica:
        return Replica(setup, clock, inbox, records, lengths=(inputs, outputs), index=index, told=told)

    if setup.routing == "least-loaded" and n > 1:
        if not trace.is_open:
            raise SpecError(
                "a closed loop is not routed by load", where="routing", got=setup.routing, expected="round-robin"
            )
        replicas = _by_load([replica(i, _Open(())) for i in range(n)], sent)
    else:
        users = [_share(trace.max_in_flight, i, n) for i in range(n)]
        inboxes = [_Open(sent[i::n]) if u is None else _Closed(sent[i::n], u, think_ns) for i, u in enumerate(users)]
        replicas = [replica(i, inbox) for i, inbox in enumerate(inboxes)]
        for one in replicas:
            one.advance(NEVER)
    preemptions = np.zeros(len(trace), np.int64)
    for request, count in records.n_preemptions.items():
        preemptions[request] = count
    gaps = [np.frombuffer(one.late_gaps, np.int64).reshape(-1, 2) for one in replicas]
    return Run(
        setup=setup,
        trace=trace,
        sent_ns=np.array(records.sent_ns),
        scheduled_ns=np.array(records.scheduled_ns),
        first_token_ns=np.array(records.first_token_ns),
        finish_ns=np.array(records.finish_ns),
        replica=np.array(records.replica),
        n_preemptions=preemptions,
        refused=records.refused,
        segments=tuple(one.segments() for one in replicas),
        late_gaps=np.concatenate(gaps),
        in_system_ns=sum(one.in_system_ns for one in replicas),
        used_blocks_at_end=sum(one.batch.pool.used for one in replicas),
        n_reused_blocks=sum(one.batch.pool.n_reused for one in replicas),
    )


def _share(n_users: int | None, index: int, n_replicas: int) -> int | None:
    """Return the users of one replica; round robin keeps each user at one."""
    if n_users is None:
        return None
    return max(1, n_users // n_replicas + (index < n_users % n_replicas))


def _by_load(replicas: list[Replica], sent: Sequence[tuple[int, int]]) -> list[Replica]:
    """Return the replicas after each request went to the one with the fewest requests when it was sent."""
    for at_ns, request in sent:
        for one in replicas:
            one.advance(at_ns)
        target = min(replicas, key=lambda one: one.n_in_system + len(one.inbox.due))
        target.inbox.due.append((at_ns, request))
    for one in replicas:
        one.advance(NEVER)
    return replicas
