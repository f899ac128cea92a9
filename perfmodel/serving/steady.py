"""Steady serving in closed form: concurrency or request rate to TTFT, TPOT and throughput, without a simulation.

A request waits for the scheduler to look for it, has its prompt read in n = ceil(P / C) steps of at most C tokens, and
then takes one token a step. Steps that carry prompts of others are longer than pure decode steps; how many there are
follows from counting steps, not seconds, so that no iteration is needed:

    D = P / C                      steps that one prompt fills
    S = n + q + O - 1              steps of a request from its start to its end
    a = others / S                 prompts that begin in a step, as one request sees it
    q = a D^2 / 2 / (1 - a D)      steps that it waits for prompts before it (M/D/1); S and q are solved together
    f = max(1 - exp(-a), a D)      share of steps that carry prompts: several may share one
    TPOT = (1 - f) t_decode + f t_mixed(a P / f tokens)
    TTFT = t_step poll / 2 + (n + q) t_mixed + host

Where a load generator sends everything it may have in flight at once, `burst_frac` of the requests are read in full
steps one after the other instead: (m + 1) / 2 of m = B P / C steps on average. Requests beyond what the cache or the
scheduler holds wait until others end: by Little's law N / B - 1 times the time that a request runs.

It breaks where the cache runs over: preempted requests are read again, which only `simulate` counts (`kv_limited`).
Bands are of first order, from the trees of the steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple

import numpy as np

from perfmodel.cost.host import first_token_time
from perfmodel.estimate import Estimate, Num, ceiling, larger, repeated, smaller, total
from perfmodel.step.request import decode_slice, prefill_slice
from perfmodel.step.step import Engine
from perfmodel.work.kernel import Slice

__all__ = ["Policy", "SteadyLimits", "SteadyServing", "served_by"]

Policy = Literal["mixed", "prefill-first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyLimits:
    """What one replica may hold: new tokens of a step, sequences, and such requests that the KV cache has room for.

    `kv_seqs` counts requests at their mean length, input + output / 2, `kv_full_seqs` those at their full one, which
    all reach together where a load begins with a burst. All over the data-parallel ranks together.
    """

    token_budget: Num = 8192.0
    max_num_seqs: Num = inf
    kv_seqs: Num = inf
    kv_full_seqs: Num = inf
    policy: Policy = "mixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyServing:
    """Steady state of one replica. Values are floats, or arrays of one shape.

    `concurrency` counts requests in the system, `running` those that hold a slot. `ttft` counts all waiting.
    `prompt_frac` is the share of steps that carry prompts, `budget_frac` how full prompts fill the token budget.
    `kv_limited`, `seqs_limited`: the cache, or max_num_seqs, holds fewer than are in the system; `needs_simulation`:
    the cache would not hold all of them at full length, so that some may be preempted, unknown to the closed form.

    In an open loop `stable` says whether what waits stays bounded; else it grows by `growth_requests_per_s` and the
    latencies are NaN. The trees are then those of a full engine. `e2e_gain`, `tpot_gain`: how much more these move than
    the times of steps do, since in an open loop the concurrency moves along; 1 in a closed one.
    """

    concurrency: Num
    running: Num
    input_tokens: Num
    output_tokens: Num
    ttft: Estimate
    tpot: Estimate
    e2e: Estimate
    prompt_frac: Num
    budget_frac: Num
    kv_limited: Num
    seqs_limited: Num
    needs_simulation: Num
    stable: Num = 1.0
    growth_requests_per_s: Num = 0.0
    capacity_requests_per_s: Num = inf
    e2e_gain: Num = 1.0
    tpot_gain: Num = 1.0

    @property
    def ttft_s(self) -> Num:
        """Mean time to first token; NaN where the load is not stable."""
        return self._if_stable(self.ttft.value)

    @property
    def tpot_s(self) -> Num:
        """Mean time per output token; NaN where the load is not stable."""
        return self._if_stable(self.tpot.value)

    @property
    def e2e_s(self) -> Num:
        """Mean time of a request from sending to its last token; NaN where the load is not stable."""
        return self._if_stable(self.e2e.value)

    @property
    def requests_per_s(self) -> Num:
        """Requests that end each second: by Little's law, or what a full engine does where the load is not stable."""
        return self.concurrency / self.e2e.value

    @property
    def output_tokens_per_s(self) -> Num:
        """Generated tokens each second."""
        return self.requests_per_s * self.output_tokens

    @property
    def load_frac(self) -> Num:
        """Requests served over those that a full engine would serve; 0 where its capacity was not asked for."""
        return self.requests_per_s / self.capacity_requests_per_s

    def _if_stable(self, value: Num) -> Num:
        return np.where(np.asarray(self.stable) > 0, value, np.nan)[()]


class _Flow(NamedTuple):
    """How prompts and decodes share the steps, as one request sees it; all are counts or fractions."""

    n_own: Num
    n_queue: Num
    n_steps: Num
    prompt_frac: Num
    tokens: Num
    own_tokens: Num
    budget_frac: Num


def _flow(
    policy: Policy, *, others: Num, input_tokens: Num, decode_steps: Num, room_tokens: Num, idle_steps: Num
) -> _Flow:
    """Return how steps are shared; `idle_steps` of each request pass outside of the engine."""
    load = input_tokens / room_tokens
    n_own = ceiling(load)
    work = others * load
    if policy == "mixed":
        rest = n_own + decode_steps + idle_steps
        n_steps = 0.5 * (rest + work + ((rest - work) ** 2 + 2.0 * work * load) ** 0.5)
        n_queue = n_steps - rest
    else:
        rest = n_own + idle_steps
        both = rest + work + decode_steps
        n_steps = 0.5 * (both + larger(both**2 - 4.0 * rest * work, 0.0) ** 0.5)
        n_queue = 0.5 * work * load / larger(n_steps - work, load)
    begun = others / n_steps
    filled = smaller(begun * load, 1.0)
    prompt_frac = larger(-np.expm1(-begun), filled)
    tokens = begun * input_tokens / larger(prompt_frac, 1e-12)
    own_tokens = smaller(input_tokens / n_own + begun * input_tokens, room_tokens)
    return _Flow(n_own, n_queue, n_steps, prompt_frac, larger(tokens, 1.0), own_tokens, filled)


def _share(engine: Engine, n_seqs: Num) -> tuple[Num, Num]:
    """Return what one microbatch on one data-parallel rank has of everything, and the microbatches in flight."""
    layout = engine.setup.layout
    n_micro = smaller(ceiling(larger(n_seqs / layout.dp, 1.0)), float(layout.pp))
    return 1.0 / (layout.dp * n_micro), n_micro


def _step(engine: Engine, name: str, decode: Slice | None, prompt: Slice | None, n_micro: Num) -> Estimate:
    slices = tuple(s for s in (decode, prompt) if s is not None)
    return engine.step(name, slices, n_microbatches=n_micro)


def _decodes(engine: Engine, n_seqs: Num, input_tokens: Num, output_tokens: Num) -> tuple[Slice, Num]:
    share, n_micro = _share(engine, n_seqs)
    speculation = engine.setup.speculation
    width = 1.0 if speculation is None else 1.0 + speculation.n_draft
    return decode_slice(larger(n_seqs * share, 1.0), input_tokens, output_tokens, tokens_per_step=width), n_micro


def served_by(
    engine: Engine,
    limits: SteadyLimits,
    *,
    concurrency: Num,
    others: Num,
    input_tokens: Num,
    output_tokens: Num,
    burst_frac: Num = 0.0,
) -> SteadyServing:
    """Return the steady state of one replica with `concurrency` requests in it, of which each meets `others` running.

    In a closed loop that is one fewer than run at once; in an open loop an arrival meets the mean (Poisson arrivals).
    """
    runtime, speculation = engine.setup.runtime, engine.setup.speculation
    per_step = 1.0 if speculation is None else speculation.acceptance_length
    decode_steps = larger(output_tokens - 1.0, 0.0) / per_step
    most = smaller(limits.max_num_seqs, limits.kv_seqs)
    running = smaller(concurrency, larger(most, 1.0))
    host = None if engine.calibration.is_physics_only else first_token_time(runtime, n_in_flight=running)
    room = larger(limits.token_budget - (others + 1.0) * (limits.policy == "mixed"), 1.0)

    def flow(idle_steps: Num) -> _Flow:
        return _flow(
            limits.policy,
            others=others,
            input_tokens=input_tokens,
            decode_steps=decode_steps,
            room_tokens=room,
            idle_steps=idle_steps,
        )

    idle: Num = 0.5 * runtime.n_poll_steps
    if host is not None:
        first, n_micro = _decodes(engine, 1.0 + others, input_tokens, output_tokens)
        idle = idle + host.value / _step(engine, "decode", first, None, n_micro).value
    steps = flow(idle)
    n_decoding = 1.0 + others * (decode_steps / steps.n_steps)
    one, n_micro = _decodes(engine, n_decoding, input_tokens, output_tokens)
    share, _ = _share(engine, n_decoding)

    def with_prompt(name: str, tokens: Num, beside: Slice | None) -> Estimate:
        prompt = prefill_slice(tokens * share / input_tokens, input_tokens, n_steps=1.0)
        return _step(engine, name, beside, prompt, n_micro)

    pure = _step(engine, "decode_step", one, None, n_micro)
    mixed = limits.policy == "mixed"
    with_others = with_prompt("step_with_prompts", steps.tokens, one if mixed else None)
    with_own = with_prompt("step_with_own_prompt", steps.own_tokens, one if mixed else None)
    if mixed:
        parts = (
            repeated("decode_steps", pure, 1.0 - steps.prompt_frac),
            repeated("steps_with_prompts", with_others, steps.prompt_frac),
        )
    else:
        stalls = steps.prompt_frac / larger(1.0 - steps.prompt_frac, 1e-9)
        parts = (pure, repeated("stalls_for_prompts", with_others, stalls))
    step = total("mean_step", parts)
    tpot = repeated("tpot", step, 1.0 / per_step)
    wait = repeated("wait_for_a_step", step, 0.5 * runtime.n_poll_steps)
    own = repeated("prompt_steps", with_own, steps.n_own + steps.n_queue)
    first_token = total("steady_first_token", (wait, own))
    waits = [repeated("steady_share", first_token, 1.0 - burst_frac)]
    if not (type(burst_frac) is float and burst_frac == 0.0):
        half, _ = _decodes(engine, 0.5 * (1.0 + others), input_tokens, output_tokens)
        n_full = larger(running * input_tokens / room, 1.0)
        full = with_prompt("full_step", smaller(running * input_tokens, room), half if mixed else None)
        waits.append(repeated("burst_share", full, 0.5 * (n_full + 1.0) * burst_frac))
    if host is not None:
        waits.append(host)
    served = total("ttft_once_running", tuple(waits))
    decoding = repeated("decoding", tpot, larger(output_tokens - 1.0, 0.0))
    ran = total("running", (served, decoding))
    ttft = total("ttft", (served, repeated("wait_for_a_slot", ran, concurrency / running - 1.0)))
    return SteadyServing(
        concurrency=concurrency,
        running=running,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        ttft=ttft,
        tpot=tpot,
        e2e=total("e2e", (ttft, decoding)),
        prompt_frac=steps.prompt_frac,
        budget_frac=steps.budget_frac,
        kv_limited=np.multiply((limits.kv_seqs < concurrency) & (limits.kv_seqs <= limits.max_num_seqs), 1.0),
        seqs_limited=np.multiply((limits.max_num_seqs < concurrency) & (limits.max_num_seqs < limits.kv_seqs), 1.0),
        needs_simulation=np.multiply(smaller(concurrency, limits.max_num_seqs) > limits.kv_full_seqs, 1.0),
    )
