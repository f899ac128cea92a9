"""Flags that could change a run, and what is not stated but could explain it: questions that differ in one thing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from perfmodel.estimate import Bound
from perfmodel.step.question import Question
from perfmodel.validate.diagnosis.expected import Expected
from perfmodel.validate.diagnosis.load import Load

__all__ = ["Change", "levers", "suspicions"]

_FULL_UTILIZATION: Final = 0.95
"""Share of memory beyond which engines run out of memory on transients."""
_SMALL_SLOTS: Final = (1, 2, 4, 8, 16, 32, 64, 128)
_KV_LEFT: Final = (0.5, 0.25)
_HIT_FRACS: Final = (0.5, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that is different: in words, as a question and load; `bound` is the limit that it moves."""

    text: str
    question: Question
    load: Load
    bound: Bound | None = None


def _with(question: Question, **fields: Any) -> Question:
    return replace(question, deployment=replace(question.deployment, **fields))


def levers(question: Question, load: Load, expected: Expected) -> Iterator[Change]:
    """Yield what could be changed: engine flags that bear on what waits, the layout, number formats, the client."""
    setup, limits = expected.serving.case.setup, expected.serving.setup.limits
    n_pools = max(expected.serving.plan.n_pools, 1)
    waits = expected.result.usage.limit_shares
    slots, budget = limits.max_num_seqs // n_pools, limits.max_num_batched_tokens // n_pools

    def change(text: str, bound: Bound | None = None, **fields: Any) -> Change:
        return Change(text=text, question=_with(question, **fields), load=load, bound=bound)

    if waits["max_num_seqs"] > 0:
        more = 2 * slots
        yield change(f"--max-num-seqs {more}", Bound.MAX_NUM_SEQS, max_num_seqs=more)
    if waits["kv_capacity"] > 0 or expected.result.n_preemptions:
        if question.deployment.num_gpu_blocks_override is None:
            share = f"--gpu-memory-utilization {_FULL_UTILIZATION}"
            yield change(share, Bound.KV_CAPACITY, gpu_memory_utilization=_FULL_UTILIZATION)
        if setup.kv_dtype not in ("fp8", "int8"):
            yield change("--kv-cache-dtype fp8", Bound.KV_CAPACITY, kv_cache_dtype="fp8")
    for tokens in (2 * budget, budget // 2):
        if tokens >= max(slots, 1):
            yield change(f"--max-num-batched-tokens {tokens}", Bound.TOKEN_BUDGET, max_num_batched_tokens=tokens)
    if question.deployment.enforce_eager:
        yield change("without --enforce-eager", Bound.LAUNCH, enforce_eager=None)
    if setup.scheme.name == "none":
        for scheme in ("fp8-channel", "awq-int4-g128"):
            yield change(f"--quantization {scheme}", Bound.WEIGHT_READ, quantization=scheme)
    tp = 2 * setup.layout.tp
    yield Change(
        text=f"-tp {tp} on twice the devices",
        question=replace(_with(question, tp=tp), n_devices=2 * expected.serving.case.n_devices),
        load=load,
    )
    if load.max_in_flight is not None:
        users = 2 * load.max_in_flight
        more_load = replace(load, max_in_flight=users, n_requests=2 * load.n_requests)
        text = f"--max-concurrency {users} at the client"
        yield Change(text=text, question=question, load=more_load, bound=Bound.ARRIVAL_RATE)
    elif load.requests_per_s is not None:
        faster = replace(load, requests_per_s=2 * load.requests_per_s)
        text = f"--request-rate {faster.requests_per_s:g} at the client"
        yield Change(text=text, question=question, load=faster, bound=Bound.ARRIVAL_RATE)


def suspicions(question: Question, load: Load, expected: Expected, *, slower: bool) -> Iterator[Change]:
    """Yield settings that the question does not state and that could explain a run slower or faster than expected."""
    limits, stated = expected.serving.setup.limits, question.deployment

    def change(text: str, **fields: Any) -> Change:
        return Change(text=text, question=_with(question, **fields), load=load)

    if not slower:
        for hit in _HIT_FRACS:
            read = max(1, round(load.input_tokens * (1 - hit)))
            text = f"prefix cache hits for {100 * hit:.0f} % of the prompt tokens"
            yield Change(text=text, question=question, load=replace(load, input_tokens=read))
        if stated.quantization is None and expected.serving.case.setup.scheme.name == "none":
            for scheme in ("fp8-channel", "awq-int4-g128"):
                yield change(f"weights quantised to {scheme}", quantization=scheme)
        return
    if stated.max_num_seqs is None:
        for slots in _SMALL_SLOTS:
            if slots < min(limits.max_num_seqs, load.max_in_flight or load.n_requests):
                yield change(f"--max-num-seqs {slots}", max_num_seqs=slots)
    if not stated.enforce_eager:
        yield change("--enforce-eager (no captured graphs)", enforce_eager=True)
    if stated.num_gpu_blocks_override is None:
        for left in _KV_LEFT:
            blocks = max(1, int(limits.n_blocks * left / max(expected.serving.plan.n_pools, 1)))
            text = f"a KV pool of {blocks} blocks, {100 * left:g} % of what should be there"
            yield change(text, num_gpu_blocks_override=blocks)
    if stated.chunked_prefill is None and limits.chunked:
        yield change("--no-enable-chunked-prefill", chunked_prefill=False)
