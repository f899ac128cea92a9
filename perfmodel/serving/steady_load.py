"""A load on a deployment in steady state: so many users (closed loop), or so many requests a second (open loop).

An open loop is a fixed point: by Little's law the concurrency is rate x end-to-end time, which grows with concurrency.
It is found by bisection in the logarithm with secant steps, on arrays at once. Where even a full engine serves less
than the rate there is none: what waits grows, and no latency is given. Waiting for a slot follows Sakasegawa's formula
for many servers with even service times; the prompts' wait for the token budget is inside of the law (`steady`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from perfmodel.errors import Fault, SpecError
from perfmodel.estimate import Num, larger, repeated, smaller, total
from perfmodel.serving.steady import Policy, SteadyLimits, SteadyServing, served_by
from perfmodel.step.step import Engine
from perfmodel.work.kv import KvFootprint
from perfmodel.work.memory_types import MemoryPlan

__all__ = ["steady_limits", "steady_serving"]

_MOST_RUNNING: Final = 2.0**16
"""Sequences of a full engine where nothing limits them: far beyond what any scheduler takes."""
_LEAST_RUNNING: Final = 1e-6
_ROUNDS: Final = 80
_TOLERANCE: Final = 1e-10
_NUDGE: Final = 1e-3
_EVEN_SERVICE: Final = 0.5
"""(1 + squared coefficient of variation of the service time) / 2 of Sakasegawa's formula, for requests alike."""


def steady_limits(
    plan: MemoryPlan,
    *,
    input_tokens: Num,
    output_tokens: Num,
    policy: Policy = "mixed",
    token_budget: Num | None = None,
) -> SteadyLimits:
    """Return what one replica with this memory plan may hold of such requests; arrays broadcast.

    `token_budget` is that of one data-parallel rank, the plan's where None.
    """
    n_pools = float(plan.n_pools)
    budget: Num = float(plan.limits.max_num_batched_tokens) if token_budget is None else token_budget
    return SteadyLimits(
        token_budget=budget * n_pools,
        max_num_seqs=plan.limits.max_num_seqs * n_pools,
        kv_seqs=_kv_seqs(plan, input_tokens + 0.5 * output_tokens) * n_pools,
        kv_full_seqs=_kv_seqs(plan, input_tokens + output_tokens) * n_pools,
        policy=policy,
    )


def _kv_seqs(plan: MemoryPlan, n_tokens: Num) -> Num:
    """Return how many sequences of such a length one pool holds, each with half a block unused at its end."""
    held_tokens = n_tokens + 0.5 * plan.block_tokens
    if plan.window_pool_tokens is not None:
        window = max(stage.footprint.window_tokens for stage in plan.stages)
        return smaller(plan.kv_tokens / held_tokens, plan.window_pool_tokens / smaller(held_tokens, window))
    found: Num = np.inf
    for i, stage in enumerate(plan.stages):
        room = min(rank.pool_bytes for rank in plan.ranks if rank.stage == i)
        if stage.footprint != KvFootprint(0.0, 0.0, (), 0.0):
            found = smaller(found, room / stage.footprint.held_bytes(held_tokens))
    return found


def steady_serving(
    engine: Engine,
    limits: SteadyLimits,
    *,
    input_tokens: Num,
    output_tokens: Num,
    concurrency: Num | None = None,
    requests_per_s: Num | None = None,
    burst_frac: Num = 0.0,
) -> SteadyServing:
    """Return the steady state of one replica under `concurrency` users, or under `requests_per_s`; arrays broadcast.

    `concurrency` counts requests in flight (a user sends the next one once the last is answered). `burst_frac` is the
    share of requests that are sent together at the start: concurrency / number of requests of a load generator. Raises
    SpecError unless exactly one of both is given and every number is above zero.

    >>> from perfmodel.specs.catalogue import Catalogue
    >>> from perfmodel.step.question import Question, case_of
    >>> case = case_of(Catalogue.standard(), Question(model="llama-3.1-8b", hardware="h100-sxm"))
    >>> one = steady_serving(case.engine, SteadyLimits(), input_tokens=1024.0, output_tokens=256.0, concurrency=1.0)
    >>> many = steady_serving(case.engine, SteadyLimits(), input_tokens=1024.0, output_tokens=256.0, concurrency=64.0)
    >>> bool(one.tpot_s < many.tpot_s), bool(many.output_tokens_per_s > 10 * one.output_tokens_per_s)
    (True, True)
    """
    numbers = {"input tokens": input_tokens, "output tokens": output_tokens}
    numbers |= {"concurrency": concurrency} if concurrency is not None else {}
    numbers |= {"requests per second": requests_per_s} if requests_per_s is not None else {}
    if (concurrency is None) == (requests_per_s is None):
        raise SpecError("a steady load is users or a rate", expected="one of concurrency and requests_per_s")
    faults = [
        Fault(name, str(value), "finite numbers above 0")
        for name, value in numbers.items()
        if not np.all(np.isfinite(value) & (np.asarray(value) > 0))
    ]
    if faults:
        raise SpecError("the load cannot be used", faults=faults)
    prompt, output = 1.0 * input_tokens, 1.0 * output_tokens
    most = larger(smaller(limits.max_num_seqs, limits.kv_seqs), 1.0)

    def at(n_in_system: Num, others: Num) -> SteadyServing:
        return served_by(
            engine,
            limits,
            concurrency=n_in_system,
            others=others,
            input_tokens=prompt,
            output_tokens=output,
            burst_frac=burst_frac,
        )

    if concurrency is not None:
        users = 1.0 * concurrency
        return at(users, larger(smaller(users, most) - 1.0, 0.0))
    assert requests_per_s is not None
    return _open_loop(at, 1.0 * requests_per_s, most)


def _open_loop(at: Callable[[Num, Num], SteadyServing], rate: Num, most: Num) -> SteadyServing:
    slots = smaller(most, _MOST_RUNNING)
    full = at(slots, larger(slots - 1.0, 0.0))
    capacity = full.requests_per_s
    is_stable = np.multiply(rate < capacity, 1.0)
    asked = smaller(rate, capacity * (1.0 - 1e-9))
    running = _running(lambda n: at(n, n).requests_per_s, asked, slots)
    running = np.where(is_stable > 0, running, slots)[()]
    found = at(running, running)
    nudged = at(running * (1.0 + _NUDGE), running * (1.0 + _NUDGE))
    of_e2e, of_tpot = (
        smaller(np.log(b.value / a.value) / np.log1p(_NUDGE), 0.98)
        for a, b in ((found.e2e, nudged.e2e), (found.tpot, nudged.tpot))
    )
    use = smaller(running / slots, 1.0 - 1e-9)
    n_waits = is_stable * _EVEN_SERVICE * use ** ((2.0 * (slots + 1.0)) ** 0.5 - 1.0) / (slots * (1.0 - use))
    wait = repeated("wait_for_a_slot", found.e2e, n_waits)
    ttft = total("ttft_with_queue", (found.ttft, wait))
    e2e = total("e2e_with_queue", (found.e2e, wait))
    return replace(
        found,
        concurrency=running * (e2e.value / found.e2e.value),
        ttft=ttft,
        e2e=e2e,
        stable=is_stable,
        growth_requests_per_s=larger(rate - capacity, 0.0),
        capacity_requests_per_s=capacity,
        e2e_gain=1.0 / (1.0 - of_e2e),
        tpot_gain=1.0 + of_tpot / (1.0 - of_e2e),
    )


def _running(rate_at: Callable[[Num], Num], rate: Num, most: Num) -> Num:
    """Return the running requests whose throughput is `rate`: a root in log-log, bracketed, of a growing function."""
    wanted = np.log(rate)
    shape = np.broadcast_shapes(np.shape(rate), np.shape(most))
    low = np.full(shape, np.log(_LEAST_RUNNING))
    high = np.broadcast_to(np.log(most), shape) * 1.0
    off_low, off_high = (np.log(rate_at(np.exp(x))) - wanted for x in (low, high))
    middle = high
    for i in range(_ROUNDS):
        with np.errstate(invalid="ignore", divide="ignore"):
            secant = low - off_low * (high - low) / (off_high - off_low)
        inside = np.isfinite(secant) & (secant > low) & (secant < high) & (i % 3 < 2)
        middle = np.where(inside, secant, 0.5 * (low + high))
        off = np.log(rate_at(np.exp(middle))) - wanted
        below = off < 0
        low, off_low = np.where(below, middle, low), np.where(below, off, off_low)
        high, off_high = np.where(below, high, middle), np.where(below, off_high, off)
        if np.all((np.abs(off) < _TOLERANCE) | (high - low < _TOLERANCE)):
            break
    found: Num = np.exp(middle)[()]
    return found
