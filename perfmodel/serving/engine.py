"""The simulation: replicas that serve a trace, from event to event.

Events are arrivals, admissions, ends of requests and the exhaustion of blocks. Between two of them all steps are decode
steps of the same sequences: they pass in one go, and equal single steps to the nanosecond (`clock.Stepwise`). Requests
that arrive during a step are seen when it ends. Everything is deterministic: the trace holds all that was drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import SpecError
from perfmodel.serving.arrivals import Trace
from perfmodel.serving.batch import Batch
from perfmodel.serving.clock import Clock
from perfmodel.serving.decoding import ONE_TOKEN, Pace
from perfmodel.serving.fleet import Fleet
from perfmodel.serving.fleet_setup import Disaggregation, Failure, Sharing
from perfmodel.serving.inbox import Closed, Open, Routed, Turns
from perfmodel.serving.kv_cache import BlockPool, Pool
from perfmodel.serving.prefix_cache import PrefixPool
from perfmodel.serving.queues import ORDERS, queue_of, victims_of
from perfmodel.serving.records import NEVER, Records, Segments, Told
from perfmodel.serving.replica import Replica
from perfmodel.serving.routing import ROUTINGS, router_of
from perfmodel.serving.scheduler import BatchWindow, Policy, SchedulerLimits, Windowed, policy_of
from perfmodel.serving.sharing import RankClock, SharedClock

__all__ = ["ReplicaMaker", "Run", "ServingSetup", "Swap", "simulated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Preemption by swap: blocks go to host memory of `host_blocks` blocks, each in `block_ns` nanoseconds one way.

    Where the host has no room a request is read again, as without swap.
    """

    host_blocks: int
    block_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSetup:
    """How requests are served. `make_policy` makes the scheduler of a replica; by name see `scheduler.POLICIES`.

    `prefix_cache`: requests find the blocks of others that begin alike. `pace`: tokens of a speculative step. `apart`:
    the first replicas read prompts, the others decode. `n_ranks`: so many replicas after each other are data-parallel
    ranks, each with its own blocks, that take their steps together. `make_pool` makes another kind of pool.
    `outside_ns`: what a request spends outside of the engine, on its way in and out: users wait so much longer for it.
    """

    limits: SchedulerLimits
    policy: str = "mixed"
    order: str = "fcfs"
    n_replicas: int = 1
    routing: str = "round-robin"
    make_policy: Callable[[SchedulerLimits], Policy] | None = None
    prefix_cache: bool = False
    pace: Pace = ONE_TOKEN
    swap: Swap | None = None
    window: BatchWindow | None = None
    apart: Disaggregation | None = None
    failures: tuple[Failure, ...] = ()
    sharing: Sharing | None = None
    n_ranks: int = 1
    outside_ns: int = 0
    make_pool: Callable[[SchedulerLimits], Pool] | None = None

    def __post_init__(self) -> None:
        for what, name, names in (("order", self.order, ORDERS), ("routing", self.routing, tuple(ROUTINGS))):
            if name not in names:
                raise SpecError(f"unknown {what} {name!r}", expected=", ".join(names))
        if self.prefix_cache and (self.limits.n_window_groups or self.limits.preallocated_tokens):
            got = "windows that release blocks" if self.limits.n_window_groups else "room reserved for each sequence"
            raise SpecError("prefixes cannot be cached", got=got, expected="blocks that are kept and taken one by one")
        if self.n_replicas < 1:
            raise SpecError("nothing serves", where="n_replicas", got=str(self.n_replicas), expected="at least 1")

        if self.apart is not None and self.apart.n_prefill + self.apart.n_decode != self.n_replicas:
            got = f"{self.apart.n_prefill} for prefill, {self.apart.n_decode} for decode, {self.n_replicas} replicas"
            raise SpecError("prefill and decode cannot be apart", got=got, expected="as many replicas as both have")
        if self.n_ranks < 1 or self.n_replicas % self.n_ranks:
            got = f"{self.n_replicas} replicas in groups of {self.n_ranks}"
            raise SpecError("ranks cannot share steps", got=got, expected="whole groups")
        if self.n_ranks > 1 and (self.apart or self.failures or self.sharing or self.window):
            got = "ranks beside prefill apart, failures, shared devices or batching windows"
            raise SpecError("ranks cannot share steps", got=got, expected="none of these")
        for failure in self.failures:
            if failure.replica >= self.n_replicas:
                got = f"replica {failure.replica} of {self.n_replicas}"
                raise SpecError("the failure cannot happen", got=got, expected="a replica, counted from 0")

    def new_policy(self) -> Policy:
        """Return a scheduler for one replica."""
        policy = self.make_policy(self.limits) if self.make_policy else policy_of(self.policy, self.limits)
        return policy if self.window is None else Windowed(policy, self.window)


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
    n_moved_blocks: int = 0
    """Blocks swapped out and in."""
    asked_tokens: int = 0
    found_tokens: int = 0
    """Prompt tokens looked up in the prefix cache, and those of them that were there."""
    sent_tokens: int = 0
    """Tokens whose KV cache went from prefill to decode replicas."""
    n_retried: int = 0
    lost_tokens: int = 0
    """Requests that failed replicas had to leave to others, and the tokens after the first that were given in vain."""


class ReplicaMaker:
    """Makes the replicas that serve a trace, and the batches they begin with."""

    def __init__(self, trace: Trace, setup: ServingSetup, clock: Clock, records: Records) -> None:
        self._trace, self._setup, self._clock, self._records = trace, setup, clock, records
        self._inputs, self._outputs = trace.input_tokens.tolist(), trace.output_tokens.tolist()
        self._priority = trace.priorities

    def __call__(self, index: int, inbox: Open, done: Callable[[int, int], None]) -> Replica:
        """Return a replica that serves what an inbox sends and says what is done."""
        setup = self._setup
        return Replica(
            self.batch(index),
            setup.new_policy(),
            self._own_clock(),
            inbox,
            self._records,
            lengths=(self._inputs, self._outputs_of(index)),
            done=done,
            index=index,
            moved_block_ns=setup.swap.block_ns if setup.swap else 0,
        )

    def _own_clock(self) -> Clock:
        setup = self._setup
        if setup.sharing is not None:
            return SharedClock(self._clock)
        return self._clock if setup.n_ranks == 1 else RankClock(self._clock, setup.n_ranks)

    def _outputs_of(self, index: int) -> list[int]:
        """Return how many tokens a replica has to give: prefill replicas give the first."""
        apart = self._setup.apart
        return [1] * len(self._outputs) if apart is not None and index < apart.n_prefill else self._outputs

    def batch(self, index: int) -> Batch:
        """Return an empty batch of a replica."""
        setup, limits = self._setup, self._setup.limits
        tokens = [i + o for i, o in zip(self._inputs, self._outputs, strict=True)] if setup.order == "sjf" else []
        return Batch(
            limits,
            queue_of(setup.order, tokens=tokens, priority=self._priority),
            self._pool(),
            victims_of(setup.order, priority=self._priority),
            input_tokens=self._inputs,
            output_tokens=self._outputs_of(index),
            pace=setup.pace,
            host_blocks=setup.swap.host_blocks if setup.swap else 0,
        )

    def _pool(self) -> Pool:
        limits, prefixes = self._setup.limits, self._trace.prefixes
        if self._setup.make_pool is not None:
            return self._setup.make_pool(limits)
        if self._setup.prefix_cache and prefixes is not None:
            return PrefixPool(limits.n_blocks, block_tokens=limits.block_tokens, prefixes=prefixes)
        return BlockPool(limits.n_blocks, block_tokens=limits.block_tokens)


def simulated(trace: Trace, setup: ServingSetup, clock: Clock, *, told: Told | None = None) -> Run:
    """Return the trace as served by the setup; the same inputs give the same result."""
    records = Records.empty(len(trace), told=told)
    new = ReplicaMaker(trace, setup, clock, records)
    sent = list(zip(trace.arrival_ns.tolist(), range(len(trace)), strict=True))
    if _stand_alone(trace, setup):
        fleet, replicas = None, _alone(trace, setup, records, new, sent)
    else:
        fleet, replicas = _together(trace, setup, records, new, sent)
    gaps = [np.frombuffer(one.late_gaps, np.int64).reshape(-1, 2) for one in replicas]
    batches = [one.batch for one in replicas]
    return Run(
        setup=setup,
        trace=trace,
        sent_ns=np.array(records.sent_ns),
        scheduled_ns=np.array(records.scheduled_ns),
        first_token_ns=np.array(records.first_token_ns),
        finish_ns=np.array(records.finish_ns),
        replica=np.array(records.replica),
        n_preemptions=records.preemptions(),
        refused=records.refused,
        segments=tuple(one.segments() for one in replicas),
        late_gaps=np.concatenate(gaps),
        in_system_ns=sum(one.in_system_ns for one in replicas) + (fleet.in_system_ns if fleet else 0),
        used_blocks_at_end=sum(batch.pool.used for batch in batches),
        n_reused_blocks=sum(batch.pool.n_reused for batch in batches),
        n_moved_blocks=sum(one.n_moved_blocks for one in replicas),
        asked_tokens=sum(batch.asked_tokens for batch in batches),
        found_tokens=sum(batch.found_tokens for batch in batches),
        sent_tokens=fleet.sent_tokens if fleet else 0,
        n_retried=fleet.n_retried if fleet else 0,
        lost_tokens=fleet.lost_tokens if fleet else 0,
    )


def _stand_alone(trace: Trace, setup: ServingSetup) -> bool:
    """Return whether each replica can be simulated to the end without the others."""
    if setup.apart or setup.failures or setup.sharing or setup.n_ranks > 1:
        return False
    if trace.max_in_flight is not None and trace.max_in_flight < setup.n_replicas:
        return setup.n_replicas == 1  # fewer users than replicas go from one to the next
    return setup.n_replicas == 1 or (setup.routing == "round-robin" and trace.after is None)


def _inbox(trace: Trace, outside_ns: int, sent: Sequence[tuple[int, int]], n_users: int | None) -> Open:
    think = trace.think_ns if trace.think_ns is not None else np.zeros(len(trace), np.int64)
    think_ns = (think + outside_ns).tolist()
    if trace.after is not None:
        return Turns(sent, trace.after.tolist(), think_ns)
    return Open(sent) if n_users is None else Closed(sent, n_users, think_ns)


def _alone(
    trace: Trace, setup: ServingSetup, records: Records, new: ReplicaMaker, sent: Sequence[tuple[int, int]]
) -> list[Replica]:
    """Return the replicas after each served its share of the requests, one replica after the other."""
    n, replicas = setup.n_replicas, []
    for i in range(n):
        inbox = _inbox(trace, setup.outside_ns, sent[i::n], _share(trace.max_in_flight, i, n))

        def done(request: int, at_ns: int, inbox: Open = inbox) -> None:
            records.finished(request, at_ns)
            inbox.answered(request, at_ns)

        replicas.append(new(i, inbox, done))
        replicas[-1].advance(NEVER)
    return replicas


def _share(n_users: int | None, index: int, n_replicas: int) -> int | None:
    """Return the users of one replica; round robin keeps each user at one."""
    if n_users is None:
        return None
    return n_users // n_replicas + (index < n_users % n_replicas)


def _together(
    trace: Trace, setup: ServingSetup, records: Records, new: ReplicaMaker, sent: Sequence[tuple[int, int]]
) -> tuple[Fleet, list[Replica]]:
    """Return the replicas after they served all requests together."""
    front = _inbox(trace, setup.outside_ns, sent, trace.max_in_flight)
    fleet = Fleet(
        trace,
        front,
        records,
        routers=(router_of(setup.routing, trace), router_of("least-loaded", trace)),
        fresh_batch=new.batch,
        apart=setup.apart,
        failures=setup.failures,
        sharing=setup.sharing,
        n_ranks=setup.n_ranks,
    )
    replicas = [new(i, Routed(front), fleet.done_by(i)) for i in range(setup.n_replicas)]
    fleet.run(replicas)
    return fleet, replicas
