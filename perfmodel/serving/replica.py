"""One engine that serves what its inbox sends, step after step, with its own time.

Between two events (arrival, admission, end of a request, exhaustion of blocks) all steps are decode steps of the same
sequences: they pass in one go, and equal single steps to the nanosecond. Requests that arrive during a step are seen
when it ends.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from perfmodel.serving.batch import Batch
from perfmodel.serving.clock import Clock
from perfmodel.serving.inbox import Open
from perfmodel.serving.records import NEVER, Records, Segments
from perfmodel.serving.scheduler import Limit, Policy

__all__ = ["Replica"]


class Replica:
    """An engine: `batch` holds what it has, `policy` plans each step, `clock` says how long it takes.

    `done` is called with each request that has all of its `output_tokens`, and when.
    """

    def __init__(
        self,
        batch: Batch,
        policy: Policy,
        clock: Clock,
        inbox: Open,
        records: Records,
        *,
        lengths: tuple[Sequence[int], Sequence[int]],
        done: Callable[[int, int], None],
        index: int = 0,
        moved_block_ns: int = 0,
    ) -> None:
        self.batch, self.policy, self.clock, self.inbox, self.index = batch, policy, clock, inbox, index
        self.now_ns = 0
        self.n_in_system = 0
        self.in_system_ns = 0
        """Requests in the system, integrated over time: counted here as events pass, apart from the records."""
        self.n_moved_blocks = 0
        self.down_until_ns = 0
        self.log = array("q")
        self.late_gaps = array("q")
        self._records, self._done = records, done
        self._inputs, self._outputs = lengths
        self._moved_block_ns = moved_block_ns
        self._takes_part = False
        batch.sent_ns = records.sent_ns
        self._late: list[tuple[int, int]] = []
        """(time of their last token, how many) of decoding sequences that stood still since."""
        self._last_token_ns: dict[int, int] = {}
        """Of preempted requests that have tokens."""
        self._joined_ns: dict[int, int] = {}
        """Last tokens of sequences that joined since the last decode step; that of all others is its end."""
        self._decoded_ns = 0
        self._wakes_ns = 0
        """When those who wait are looked at again, where nothing runs and nobody else comes."""

    def next_ns(self) -> int:
        """Return when the next step starts at the earliest, `NEVER` where nothing is left to do."""
        if not (self.batch.n_running or self.batch.queue):
            return max(self.now_ns, self.inbox.next_ns())
        return max(self.now_ns, min(self._wakes_ns, self.inbox.next_ns())) if self._wakes_ns else self.now_ns

    @property
    def n_requests(self) -> int:
        """Requests that were sent here and are not done."""
        return self.n_in_system + len(self.inbox.due)

    def fail(self, batch: Batch, *, at_ns: int, back_ns: int) -> dict[int, int]:
        """Go on at `back_ns` with an empty batch; return the requests that were here, with the tokens they had."""
        if at_ns > self.now_ns:
            self._wait(at_ns)
        held = {request: self.batch.n_emitted(request) for request in self.batch.requests()}
        for sent_ns, request in self.inbox.due:
            held[request] = self.batch.n_emitted(request)
            self.in_system_ns += at_ns - sent_ns
        self.inbox.due.clear()
        self.batch = batch.after(self.batch)
        batch.sent_ns = self._records.sent_ns
        self.n_in_system = 0
        for notes in (self._late, self._last_token_ns, self._joined_ns):
            notes.clear()
        self.now_ns = self.down_until_ns = max(at_ns, back_ns)
        return held

    def _arrivals(self) -> None:
        """Take what has been sent by now."""
        inbox, records, batch = self.inbox, self._records, self.batch
        self._wakes_ns = 0
        whole, n_draft = self.policy.whole_prompts, batch.decoding.n_drafted
        while inbox.next_ns() <= self.now_ns:
            at_ns, request = inbox.take()
            if records.sent_ns[request] < 0:
                records.sent_ns[request] = at_ns
            records.replica[request] = self.index
            reason = batch.limits.refusal(
                self._inputs[request], self._outputs[request], whole_prompts=whole, n_draft=n_draft
            )
            if reason is not None:
                records.refused[request] = reason
                # It may have waited before, where a replica failed.
                self.in_system_ns -= at_ns - records.sent_ns[request]
                inbox.answered(request, at_ns)
                continue
            if request in batch.elsewhere:
                self._last_token_ns[request] = records.first_token_ns[request]
            batch.queue.add(request)
            self.n_in_system += 1
            self.in_system_ns += self.now_ns - at_ns

    def advance(self, until_ns: int, *, once: bool = False) -> None:
        """Serve every step that starts before `until_ns`, or only the next stretch of steps."""
        batch, inbox = self.batch, self.inbox
        while True:
            if inbox.next_ns() <= self.now_ns:
                self._arrivals()
            start_ns = self.next_ns()
            if start_ns >= until_ns:
                return
            if start_ns > self.now_ns:
                self._wait(start_ns)
                continue
            decodes, n_most = self._planned()
            if batch.chunks:
                self._pass_prompts(decodes, self._prompts_ns(decodes))
            elif not batch.decoding.n_seqs:
                self._wakes_ns = self.policy.wakes_ns
            else:
                self._pass_decodes(*self._decodes_ns(n_most, until_ns))
            if once:
                return

    def answers_from_ns(self) -> int:
        """Return when the next request can be done at the earliest, as long as nothing is sent here.

        Where all decode and blocks suffice that is known to the nanosecond; else one step may be enough.
        """
        batch, decoding = self.batch, self.batch.decoding
        n_seqs, starts_ns = decoding.n_seqs, self.next_ns()
        if not n_seqs or n_seqs < batch.n_running or batch.queue or self.inbox.due or not decoding.is_even:
            return starts_ns + 1 if starts_ns < NEVER else NEVER
        left = batch.pool.free - decoding.need(after=0, n_tokens=decoding.tokens_of(1))
        if left < 0:
            return starts_ns + 1
        n_most = decoding.steps_with(left, decoding.steps_to_event())
        _, time_ns = self.clock.decode_run(
            n_seqs, decoding.context + n_seqs, n_most=n_most, until_ns=NEVER, per_step=decoding.tokens_of(1)
        )
        return starts_ns + time_ns

    def begin(self, at_ns: int) -> int:
        """Plan the one step that starts at a time; return how long it takes alone, 0 where there is nothing to do."""
        self._wait(at_ns)
        if self.inbox.next_ns() <= at_ns:
            self._arrivals()
        if not self.batch.n_running and not self.batch.queue:
            return 0
        self._takes_part, _ = self._planned()
        return self._prompts_ns(self._takes_part) if self.batch.chunks else self._decodes_ns(1, NEVER)[1]

    def end(self, time_ns: int) -> None:
        """Let the step that was begun pass in a time, which may be longer than its own."""
        if self.batch.chunks:
            self._pass_prompts(self._takes_part, time_ns)
        elif self.batch.decoding.n_seqs:
            self._pass_decodes(1, time_ns)
        else:
            self._wait(self.now_ns + time_ns)

    def _planned(self) -> tuple[bool, int]:
        """Plan a step; return whether decoding sequences take part, and how many such steps may follow at most."""
        batch = self.batch
        batch.limit = Limit.ARRIVAL_RATE
        batch.now_ns = self.now_ns
        decodes, n_most = self.policy.plan(batch), NEVER
        if batch.preempted:
            self._remember_preempted()
            n_most = 1
        if batch.rejoined:
            self._remember_rejoined()
        return decodes, n_most

    def _decodes_ns(self, n_most: int, until_ns: int) -> tuple[int, int]:
        """Return (steps, time) of the decode steps that follow each other from now."""
        batch, decoding = self.batch, self.batch.decoding
        moved_ns = self._moved_ns() if batch.n_moved else 0
        if moved_ns or not decoding.is_even:
            n_most = 1
        if n_most > 1:
            n_most = batch.steps_to_event()
        policy = self.policy
        if policy.admits_beside_decodes and (not batch.queue or batch.queue.reorders or policy.wakes_ns < NEVER):
            until_ns = min(until_ns, self.inbox.next_ns(), policy.wakes_ns)
        n_steps, time_ns = self.clock.decode_run(
            decoding.n_seqs,
            decoding.context + decoding.n_seqs,
            n_most=n_most,
            until_ns=until_ns - self.now_ns,
            per_step=decoding.tokens_of(1),
        )
        return n_steps, time_ns + moved_ns

    def _pass_decodes(self, n_steps: int, time_ns: int) -> None:
        batch, decoding = self.batch, self.batch.decoding
        n_seqs, n_late = decoding.n_seqs, 0
        if self._late:
            first_ns = time_ns if n_steps == 1 else self.clock.decode_ns(n_seqs, decoding.context + n_seqs)
            n_late = self._late_steps(first_ns)
        if self._joined_ns:
            self._joined_ns.clear()
        n_running, n_tokens = batch.n_running, n_seqs * decoding.tokens_of(n_steps)
        done = batch.decoded(n_steps)
        self._passed(time_ns, n_steps, n_seqs, n_running, 0, n_late, n_tokens - batch.n_over)
        self._decoded_ns = now_ns = self.now_ns
        for request in done:
            self._finished(request, now_ns)

    def _prompts_ns(self, decodes: bool) -> int:
        """Return the time of the step that reads the planned pieces of prompts."""
        batch, decoding = self.batch, self.batch.decoding
        tokens = pairs = 0
        for _, n_cached, n_tokens, _ in batch.chunks:
            tokens += n_tokens
            pairs += n_tokens * n_cached + n_tokens * (n_tokens + 1) // 2
        n_seqs = decoding.n_seqs if decodes else 0
        time_ns = self.clock.mixed_ns(n_seqs, decoding.context + n_seqs, prompt_tokens=tokens, pairs=pairs)
        return time_ns + self._moved_ns() if batch.n_moved else time_ns

    def _pass_prompts(self, decodes: bool, time_ns: int) -> None:
        batch, decoding, records = self.batch, self.batch.decoding, self._records
        n_seqs, tokens = decoding.n_seqs if decodes else 0, sum(chunk.n_tokens for chunk in batch.chunks)
        n_late, start_ns = 0, self.now_ns
        if n_seqs:
            n_late = self._late_steps(time_ns) if self._late else 0
            self._joined_ns.clear()
        elif decoding.n_seqs:
            fresh = decoding.n_seqs - sum(n for _, n in self._late)
            if fresh:
                self._late.append((start_ns, fresh))
        n_running, n_given = batch.n_running, n_seqs * decoding.tokens_of(1)
        done = batch.decoded(1 if n_seqs else 0)
        chunks = batch.chunks
        self._passed(time_ns, 1, n_seqs, n_running, tokens, n_late, n_given - batch.n_over)
        now_ns = self.now_ns
        if n_seqs:
            self._decoded_ns = now_ns
        for request in done:
            self._finished(request, now_ns)
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
                self._finished(request, now_ns)
            else:
                self._joined_ns[request] = now_ns
        batch.chunks = []

    def _wait(self, until_ns: int) -> None:
        """Let time pass in which requests wait and nothing runs."""
        self.in_system_ns += self.n_in_system * (until_ns - self.now_ns)
        self.now_ns, self._wakes_ns = until_ns, 0

    def _passed(
        self, time_ns: int, n_steps: int, n_seqs: int, n_running: int, prompt_tokens: int, n_late: int, n_given: int
    ) -> None:
        """Let time pass, and write it down."""
        batch = self.batch
        row = (self.now_ns, time_ns, n_steps, n_seqs, n_running, prompt_tokens)
        self.log.extend((*row, len(batch.queue), batch.held_before_ends, batch.limit, n_late, n_given))
        self.now_ns += time_ns
        self.in_system_ns += self.n_in_system * time_ns

    def _moved_ns(self) -> int:
        """Return the time to move blocks to and from host memory before the step; it hides behind nothing."""
        n_moved, self.batch.n_moved = self.batch.n_moved, 0
        self.n_moved_blocks += n_moved
        return n_moved * self._moved_block_ns

    def _late_steps(self, step_ns: int) -> int:
        """Write down the gaps of sequences that stood still before this step, and return how many there are."""
        for last_ns, n in self._late:
            self.late_gaps.extend((self.now_ns - last_ns + step_ns, n))
        n_late = sum(n for _, n in self._late)
        self._late.clear()
        return n_late

    def _remember_preempted(self) -> None:
        """Keep the time of the last token of those that were just preempted."""
        batch, records = self.batch, self._records
        for request in batch.preempted:
            records.n_preemptions[request] = records.n_preemptions.get(request, 0) + 1
            has_tokens = request in batch.elsewhere or batch.n_emitted_before[request] > 0
            if not has_tokens or request in self._last_token_ns:
                continue
            last_ns = self._joined_ns.pop(request, self._decoded_ns)
            self._last_token_ns[request] = last_ns
            for i, (late_ns, n) in enumerate(self._late):
                if late_ns == last_ns:
                    self._late[i : i + 1] = [(late_ns, n - 1)] if n > 1 else []
                    break
        batch.preempted = []

    def _remember_rejoined(self) -> None:
        """Let the gap of those that decode again end with this step."""
        for request in self.batch.rejoined:
            last_ns = self._last_token_ns.pop(request)
            self._joined_ns[request] = last_ns
            self._late.append((last_ns, 1))
        self.batch.rejoined = []

    def _finished(self, request: int, at_ns: int) -> None:
        self.n_in_system -= 1
        self._done(request, at_ns)

    def segments(self) -> Segments:
        """Return what was served, stretch by stretch."""
        return Segments.of(self.log)
