"""Replicas that serve one stream of requests together, in the order of what happens.

Whoever's next step starts first goes on, up to the moment at which something may happen that it does not know of yet:
a request, a cache that arrives, a failure, or an answer of another replica. So each step sees all that came before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from perfmodel.serving.arrivals import Trace
from perfmodel.serving.batch import Batch, Elsewhere
from perfmodel.serving.fleet_setup import Disaggregation, Failure, Sharing
from perfmodel.serving.inbox import Open
from perfmodel.serving.records import LOST, NEVER, Records
from perfmodel.serving.replica import Replica
from perfmodel.serving.routing import Router
from perfmodel.serving.sharing import SharedClock

__all__ = ["Fleet"]


class Fleet:
    """Replicas behind one inbox. With `apart` the first ones read prompts and the rest decode.

    `in_system_ns` is the time that requests spend between replicas, `sent_tokens` the KV cache that was sent.
    """

    def __init__(
        self,
        trace: Trace,
        front: Open,
        records: Records,
        *,
        routers: tuple[Router, Router],
        fresh_batch: Callable[[int], Batch],
        apart: Disaggregation | None = None,
        failures: Sequence[Failure] = (),
        sharing: Sharing | None = None,
        n_ranks: int = 1,
    ) -> None:
        self.in_system_ns = self.sent_tokens = self.n_retried = self.lost_tokens = 0
        """`lost_tokens`: those after the first that a replica had given when it failed."""
        self._front, self._records = front, records
        self._inputs, self._outputs = trace.input_tokens.tolist(), trace.output_tokens.tolist()
        self._routers, self._fresh_batch, self._apart, self._sharing = routers, fresh_batch, apart, sharing
        self._failures = sorted(failures, key=lambda one: (one.at_ns, one.replica))
        self._n_ranks = n_ranks
        self._answers: dict[int, int] = {}
        self._answers_matter = not trace.is_open
        self._replicas: list[Replica] = []
        self._link_free = [0] * (apart.n_prefill if apart else 0)
        self._again: list[tuple[int, int, bool]] = []
        """(when, request, has its KV cache) of requests on the way to a replica."""

    def done_by(self, index: int) -> Callable[[int, int], None]:
        """Return what is to be called with a request that a replica has done its part of."""
        if self._apart is not None and index < self._apart.n_prefill:
            return lambda request, at_ns: self._prompt_done(index, request, at_ns)
        return self._answered

    def _answered(self, request: int, at_ns: int) -> None:
        self._records.finished(request, at_ns)
        self._front.answered(request, at_ns)

    def _prompt_done(self, index: int, request: int, at_ns: int) -> None:
        """Send the KV cache of a request on its way, unless its first token was its last."""
        if self._outputs[request] == 1:
            self._answered(request, at_ns)
            return
        assert self._apart is not None
        link, n_tokens = self._apart.link, self._inputs[request]
        start_ns = max(at_ns, self._link_free[index])
        self._link_free[index] = start_ns + link.busy_ns(n_tokens)
        self.sent_tokens += n_tokens
        arrives_ns = self._link_free[index] + link.latency_ns
        self.in_system_ns += arrives_ns - at_ns
        heappush(self._again, (arrives_ns, request, True))

    def run(self, replicas: Sequence[Replica]) -> None:
        """Serve everything."""
        self._replicas = list(replicas)
        while True:
            event_ns = self._next_event_ns()
            first = min(self._replicas, key=lambda one: one.next_ns())
            start_ns = first.next_ns()
            if event_ns == start_ns == NEVER:
                return
            if event_ns <= start_ns:
                self._happens(event_ns)
            else:
                self._step(first, start_ns, event_ns)

    def _next_event_ns(self) -> int:
        again = self._again[0][0] if self._again else NEVER
        failure = self._failures[0].at_ns if self._failures else NEVER
        return min(self._front.next_ns(), again, failure)

    def _step(self, one: Replica, start_ns: int, event_ns: int) -> None:
        """Let a replica serve up to the next event, or up to the first answer of another one that may matter."""
        if self._n_ranks > 1:
            self._step_ranks(one.index // self._n_ranks, start_ns)
            return
        clock = one.clock
        if isinstance(clock, SharedClock) and self._sharing is not None:
            clock.factor = self._sharing.contention.slowdown(self._n_busy(one, start_ns))
            one.advance(min(event_ns, start_ns + 1), once=True)
            return
        if not (self._answers_matter or self._apart):
            one.advance(event_ns)
            return
        others = (self._answers_from_ns(other) for other in self._replicas if other is not one)
        one.advance(min(event_ns, *others, NEVER), once=True)
        self._answers.pop(one.index, None)

    def _answers_from_ns(self, one: Replica) -> int:
        """Return when a replica may answer at the earliest, remembered until it goes on or gets something."""
        found = self._answers.get(one.index)
        if found is None:
            found = self._answers[one.index] = one.answers_from_ns()
        return found

    def _step_ranks(self, group: int, start_ns: int) -> None:
        """Let the ranks of a group take one step together, as long as the longest of them."""
        ranks = self._replicas[group * self._n_ranks : (group + 1) * self._n_ranks]
        time_ns = max([rank.begin(start_ns) for rank in ranks])
        for rank in ranks:
            rank.end(time_ns)

    def _n_busy(self, one: Replica, start_ns: int) -> int:
        """Return how many instances of a replica's device run a step when its own starts, itself included."""
        assert self._sharing is not None
        device = one.index // self._sharing.n_instances
        others = [
            other
            for other in self._replicas
            if other is not one
            and other.index // self._sharing.n_instances == device
            and other.down_until_ns <= start_ns
        ]
        return 1 + sum(other.now_ns > start_ns or other.next_ns() == start_ns for other in others)

    def _happens(self, at_ns: int) -> None:
        """Let a failure happen, else send the request that is due."""
        if self._failures and self._failures[0].at_ns <= at_ns:
            self._fail(self._failures.pop(0))
        elif self._again and self._again[0][0] <= at_ns:
            _, request, has_cache = heappop(self._again)
            self._send(request, at_ns, has_cache=has_cache)
        else:
            self._send(self._front.take()[1], at_ns)

    def _send(self, request: int, at_ns: int, *, has_cache: bool = False) -> None:
        records, pool = self._records, self._replicas
        if records.sent_ns[request] < 0:
            records.sent_ns[request] = at_ns
        if not has_cache and (reason := self._refusal(request)) is not None:
            self._refused(request, at_ns, reason)
            return
        if self._apart is not None:
            n = self._apart.n_prefill
            pool = pool[n:] if has_cache else pool[:n]
        up = [one for one in pool if one.down_until_ns <= at_ns]
        if not up:
            self._wait(request, at_ns, min(one.down_until_ns for one in pool), has_cache=has_cache)
            return
        target = self._routers[has_cache].choose(request, up)
        if has_cache:
            target.batch.elsewhere[request] = Elsewhere(self._inputs[request], 1, 0)
        target.inbox.due.append((at_ns, request))
        self._answers.pop(target.index, None)

    def _refusal(self, request: int) -> str | None:
        """Return why no replica can serve a request: said at once, not when a replica comes to it."""
        one = self._replicas[0]
        whole, n_draft = one.policy.whole_prompts, one.batch.decoding.n_drafted
        return one.batch.limits.refusal(
            self._inputs[request], self._outputs[request], whole_prompts=whole, n_draft=n_draft
        )

    def _wait(self, request: int, at_ns: int, back_ns: int, *, has_cache: bool) -> None:
        """Hold a request until a replica is back; where none comes back it is lost."""
        if back_ns == NEVER:
            self._refused(request, at_ns, LOST)
            return
        self.in_system_ns += back_ns - at_ns
        heappush(self._again, (back_ns, request, has_cache))

    def _refused(self, request: int, at_ns: int, reason: str) -> None:
        records = self._records
        records.refused[request] = reason
        records.scheduled_ns[request] = records.first_token_ns[request] = -1
        self.in_system_ns -= at_ns - records.sent_ns[request]
        self._front.answered(request, at_ns)

    def _fail(self, failure: Failure) -> None:
        """Empty a replica; its requests go back to the front, or are lost."""
        one, records = self._replicas[failure.replica], self._records
        at_ns = max(failure.at_ns, one.now_ns)
        self._answers.pop(one.index, None)
        held = one.fail(self._fresh_batch(failure.replica), at_ns=at_ns, back_ns=failure.back_ns)
        for request, n_emitted in held.items():
            self.lost_tokens += max(0, n_emitted - 1)
            records.scheduled_ns[request] = records.first_token_ns[request] = -1
            if failure.then == "retry":
                self.n_retried += 1
                heappush(self._again, (at_ns, request, False))
            else:
                self._refused(request, at_ns, LOST)
