"""Which requests the next step serves: policies behind one protocol.

A policy looks at a `Batch`, admits from its queue, preempts where blocks run out, and leaves in `batch.chunks` the
prompt pieces of the next step. It returns whether the decoding sequences take part. Sources: vLLM V1 Scheduler.schedule
(decode first, chunked prefill in one token budget, newest preempted), vLLM V0 Scheduler (prompts before decodes,
watermark), Orca and FasterTransformer (iteration-level and static batching).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Literal, Protocol

from perfmodel.errors import Fault, SpecError
from perfmodel.serving.decoding import BlockRule
from perfmodel.serving.queues import ArrivalOrder
from perfmodel.serving.records import NEVER

if TYPE_CHECKING:
    from perfmodel.serving.batch import Batch

__all__ = [
    "POLICIES",
    "BatchWindow",
    "Limit",
    "MixedBatching",
    "Policy",
    "PolicyName",
    "PrefillFirst",
    "SchedulerLimits",
    "StaticBatching",
    "Windowed",
    "policy_of",
]

PolicyName = Literal["mixed", "prefill-first", "static"]


class Limit(IntEnum):
    """Why requests wait in a step, or `ARRIVAL_RATE` where none does."""

    ARRIVAL_RATE = 0
    KV_CAPACITY = 1
    MAX_NUM_SEQS = 2
    TOKEN_BUDGET = 3
    BATCH_CLOSED = 4
    BATCH_WINDOW = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """What the engine's flags allow.

    `watermark_frac`: share of blocks that admission leaves free (0.01 in vLLM V0, none in V1). `chunked`: prompts may
    be cut over steps. `preallocated_tokens`: each sequence reserves room for so many tokens at once, as engines without
    paging do; None: blocks are taken as they are needed. `keeps_prefix`: a preempted request finds its blocks again
    where nobody has taken them. `reserves_prompt`: a cut prompt is admitted only where all of it has room.
    `n_window_groups` groups of layers attend to the last `window_tokens` tokens only and release the blocks behind
    them; `n_full_groups` keep all. Where there are such groups nothing is kept of a preempted request.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    n_blocks: int
    block_tokens: int = 16
    chunked: bool = True
    watermark_frac: float = 0.0
    preallocated_tokens: int | None = None
    keeps_prefix: bool = True
    reserves_prompt: bool = False
    n_full_groups: int = 1
    n_window_groups: int = 0
    window_tokens: int | None = None

    def __post_init__(self) -> None:
        counts = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "n_blocks", "block_tokens")
        faults = [
            Fault(f.name, str(getattr(self, f.name)), "at least 1")
            for f in fields(self)
            if f.name in counts and getattr(self, f.name) < 1
        ]
        if not 0 <= self.watermark_frac < 1:
            faults.append(Fault("watermark_frac", str(self.watermark_frac), "from 0 to below 1"))
        if self.preallocated_tokens is not None and self.preallocated_tokens < self.max_model_len:
            got = f"{self.preallocated_tokens} of {self.max_model_len} tokens"
            faults.append(Fault("preallocated_tokens", got, "at least the context limit"))
        if (self.window_tokens is None) == (self.n_window_groups > 0) or (self.window_tokens or 1) < 1:
            got = f"{self.n_window_groups} groups of layers with a window of {self.window_tokens} tokens"
            faults.append(Fault("window_tokens", got, "a window of at least 1 token, where there are such groups"))
        if self.preallocated_tokens is not None and self.n_window_groups:
            faults.append(Fault("preallocated_tokens", "beside windows that release blocks", "one of the two"))
        if min(self.n_full_groups, self.n_window_groups) < 0 or self.n_full_groups + self.n_window_groups < 1:
            got = f"{self.n_full_groups} full and {self.n_window_groups} windowed groups"
            faults.append(Fault("n_full_groups", got, "at least one group of layers"))
        if faults:
            raise SpecError("the scheduler cannot work", faults=faults)

    @property
    def watermark_blocks(self) -> int:
        """Blocks that admission leaves free."""
        return int(self.watermark_frac * self.n_blocks)

    @property
    def finds_again(self) -> bool:
        """Whether a preempted request may find its blocks."""
        return self.keeps_prefix and not self.n_window_groups

    @property
    def block_rule(self) -> BlockRule:
        """How many blocks a sequence holds. A window never lies on more than its own blocks and the one that fills."""
        block = self.block_tokens
        reserved = -(-self.preallocated_tokens // block) if self.preallocated_tokens else 0
        window = -(-(self.window_tokens - 1) // block) + 1 if self.window_tokens else 0
        return BlockRule(block, self.n_full_groups, self.n_window_groups, window, reserved)

    def refusal(self, input_tokens: int, output_tokens: int, *, whole_prompts: bool, n_draft: int = 0) -> str | None:
        """Return why a request can never be served, None where it can."""
        if input_tokens + output_tokens > self.max_model_len:
            return "context_limit"
        # A speculative step may draft, and yield, so many tokens beyond the end.
        held = self.block_rule.blocks(input_tokens + output_tokens - 1 + 2 * n_draft)
        if held + self.watermark_blocks > self.n_blocks:
            return "kv_capacity"
        if whole_prompts and input_tokens > self.max_num_batched_tokens:
            return "token_budget"
        return None


class Policy(Protocol):
    """A scheduler. `admits_beside_decodes`: an arrival may change the step after the next, also while all decode.

    `wakes_ns`: when it wants to plan anew though nothing happens; it may then leave nothing to do.
    """

    whole_prompts: bool
    admits_beside_decodes: bool
    wakes_ns: int

    def plan(self, batch: Batch) -> bool:
        """Put the prompt pieces of the next step in `batch.chunks`; return whether decoding sequences take part."""


class MixedBatching:
    """Decodes first, then prompts in what is left of the token budget; the newest is preempted when blocks run out."""

    admits_beside_decodes = True
    wakes_ns = NEVER

    def __init__(self, limits: SchedulerLimits) -> None:
        self.whole_prompts = not limits.chunked

    def plan(self, batch: Batch) -> bool:
        """Plan a step: every decoding sequence, the prompt that was cut, then new ones."""
        preempted = batch.blocks_for_decode()
        limits = batch.limits
        budget = limits.max_num_batched_tokens - batch.decoding.n_seqs * (1 + batch.decoding.n_drafted)
        if batch.cut_request >= 0 and budget > 0:
            n_continued = batch.cut_prompt_continued(budget)
            budget -= n_continued
            preempted = preempted or bool(batch.preempted)
        if preempted:
            return True
        while batch.queue:
            if batch.n_running >= limits.max_num_seqs:
                batch.limit = Limit.MAX_NUM_SEQS
                break
            beside = batch.n_running > 0
            if budget <= 0 or (self.whole_prompts and beside and batch.head_tokens() > budget):
                batch.limit = Limit.TOKEN_BUDGET
                break
            n_tokens = batch.admitted(budget if limits.chunked else None)
            if n_tokens is None:
                batch.limit = Limit.KV_CAPACITY
                break
            budget -= n_tokens
        return True


class PrefillFirst:
    """Prompts before decodes: while a whole prompt can be admitted, steps only read prompts (vLLM V0, MindIE)."""

    whole_prompts = True
    admits_beside_decodes = True
    wakes_ns = NEVER

    def __init__(self, limits: SchedulerLimits) -> None:
        self._limits = limits

    def plan(self, batch: Batch) -> bool:
        """Plan a step of prompts, or one of decodes."""
        _admit_whole(batch, self._limits.max_num_seqs)
        if batch.chunks:
            return False
        batch.blocks_for_decode()
        return True


class StaticBatching:
    """A batch is closed when it starts; the next one starts when all of it is done. Who is done early leaves early."""

    whole_prompts = True
    admits_beside_decodes = False
    wakes_ns = NEVER

    def __init__(self, limits: SchedulerLimits) -> None:
        self._most = limits.max_num_seqs
        self._n_seats = 0

    def plan(self, batch: Batch) -> bool:
        """Plan a step of prompts while the batch forms, else one of decodes."""
        if not batch.n_running:
            self._n_seats = min(self._most, len(batch.queue))
        n_before = batch.n_running
        if self._n_seats:
            _admit_whole(batch, min(self._most, n_before + self._n_seats))
            self._n_seats -= batch.n_running - n_before
            if batch.chunks:
                return False
            self._n_seats = 0
        if batch.queue:
            batch.limit = Limit.BATCH_CLOSED
        batch.blocks_for_decode()
        return True


def _admit_whole(batch: Batch, max_num_seqs: int) -> None:
    """Admit whole prompts within the token budget; one that is beyond it (resumed after preemption) goes alone."""
    budget = batch.limits.max_num_batched_tokens
    while batch.queue:
        if batch.n_running >= max_num_seqs:
            batch.limit = Limit.MAX_NUM_SEQS
            break
        if batch.chunks and batch.head_tokens() > budget:
            batch.limit = Limit.TOKEN_BUDGET
            break
        n_tokens = batch.admitted(None)
        if n_tokens is None:
            batch.limit = Limit.KV_CAPACITY
            break
        budget -= n_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWindow:
    """Requests wait until `preferred` of them are there, or the first has waited `delay_ns` (Triton, MindIE)."""

    delay_ns: int
    preferred: int

    def __post_init__(self) -> None:
        if self.delay_ns < 0 or self.preferred < 1:
            got = f"{self.delay_ns} ns, {self.preferred} requests"
            raise SpecError("the batching window cannot be used", got=got, expected="0 ns or more, at least 1 request")


class Windowed:
    """A policy that admits nothing while the window is open; with static batching this is dynamic batching."""

    def __init__(self, inner: Policy, window: BatchWindow) -> None:
        self._inner, self._window, self._nobody = inner, window, ArrivalOrder()
        self.whole_prompts, self.admits_beside_decodes = inner.whole_prompts, inner.admits_beside_decodes
        self.wakes_ns = NEVER

    def plan(self, batch: Batch) -> bool:
        """Plan as the inner policy does, or as it would if nobody waited."""
        queue, self.wakes_ns = batch.queue, NEVER
        if not queue or len(queue) >= self._window.preferred:
            return self._inner.plan(batch)
        ends_ns = batch.sent_ns[queue.head()] + self._window.delay_ns
        if ends_ns <= batch.now_ns:
            return self._inner.plan(batch)
        self.wakes_ns = ends_ns
        batch.limit = Limit.BATCH_WINDOW
        if not batch.n_running:
            return False
        batch.queue = self._nobody
        decodes = self._inner.plan(batch)
        preempted = [self._nobody.pop() for _ in range(len(self._nobody))]
        for request in reversed(preempted):
            queue.put_back(request)
        batch.queue = queue
        return decodes


POLICIES: Final[dict[PolicyName, type[MixedBatching | PrefillFirst | StaticBatching]]] = {
    "mixed": MixedBatching,
    "prefill-first": PrefillFirst,
    "static": StaticBatching,
}


def policy_of(name: str, limits: SchedulerLimits) -> Policy:
    """Return a fresh policy by name; raises SpecError for a name that is none."""
    if name not in POLICIES:
        raise SpecError(f"unknown scheduling policy {name!r}", expected=", ".join(POLICIES))
    return POLICIES[name](limits)
