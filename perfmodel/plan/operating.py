"""One replica in the steady state, in closed form: so many requests in flight, and the times and rates that follow.

Steps either only decode, or also read prompts. With a rate of r requests/s, k steps that read each prompt, S and M the
times of the two kinds of step, the steps of one second fill it: r k M + (n_steps - r k) S = 1, so that

    tpot = S / (1 - r k (M - S))          time per output token, a mean over both kinds of step
    ttft = k M (1 + wait) + S / 2         own prompt, waiting for others' prompts, half a step under way
    n    = r (ttft + (osl - 1) tpot)      Little's law

The three give r as the root of a quadratic equation. Where an engine does not mix (prompts stop decodes), M is a step
with prompts after a decode step. Waiting is that of one server with fixed service (Pollaczek-Khinchine): it is a mean,
and so is every time here; percentiles belong to the simulation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from perfmodel.estimate import Estimate, Num, ceiling, larger, repeated, smaller, total
from perfmodel.step.request import decode_pass, prefill_slice
from perfmodel.step.step import Engine

__all__ = ["OperatingPoint", "operating_point"]

_BUSIEST: Final = 0.95
"""Waiting is computed for at most this share of time spent on prompts: beyond, only Little's law counts it."""
_ONE_STEP_UNDER_WAY: Final = 0.5
"""A request that comes meets a step half done, on average."""


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """A replica that holds `in_flight` requests: times as trees, and its rate. Floats, or arrays of one shape."""

    in_flight: Num
    output_tokens: Num
    ttft: Estimate
    tpot: Estimate
    e2e: Estimate
    decode_step: Estimate
    prompt_step: Estimate
    prompt_steps_per_request: Num

    @property
    def requests_per_s(self) -> Num:
        """Requests that the replica finishes per second, by Little's law."""
        return self.in_flight / self.e2e.value

    @property
    def output_tokens_per_s(self) -> Num:
        """Tokens that the replica generates per second."""
        return self.requests_per_s * self.output_tokens


def operating_point(
    engine: Engine,
    *,
    in_flight: Num,
    input_tokens: Num,
    output_tokens: Num,
    token_budget: Num,
    prompts_first: bool = False,
) -> OperatingPoint:
    """Return the steady state of a replica with so many requests in flight; numbers are floats or arrays.

    `token_budget` is what one step of one data-parallel rank may hold. `prompts_first`: prompts stop decodes.
    """
    decode, n_micro = decode_pass(engine, batch=in_flight, input_tokens=input_tokens, output_tokens=output_tokens)
    ranks = float(engine.setup.layout.dp)
    room = token_budget if prompts_first else larger(token_budget - decode.n_seqs, token_budget * 0.5)
    k = ceiling(input_tokens / (room * ranks))
    prompts = prefill_slice(1.0 / (ranks * n_micro), input_tokens, n_steps=k)
    s = engine.step("decode_step", (decode,), n_microbatches=n_micro)
    slices = (prompts,) if prompts_first else (decode, prompts)
    m = engine.step("prompt_step", slices, n_microbatches=n_micro)
    extra = m.value if prompts_first else larger(m.value - s.value, 0.0)
    own, decoding = k * m.value + _ONE_STEP_UNDER_WAY * s.value, (output_tokens - 1.0) * s.value
    rate = smaller(_rate(in_flight, own, decoding, k * extra), 1.0 / (k * m.value))
    tpot_s = s.value / (1.0 - rate * k * extra)
    with_prompt = rate * k * tpot_s
    only = 1.0 if prompts_first else larger(1.0 - with_prompt, 0.0)
    tpot = total("tpot", (repeated("decode_steps", s, only), repeated("steps_with_prompts", m, with_prompt)))
    busy = smaller(rate * k * m.value, _BUSIEST) * (1.0 - 1.0 / larger(in_flight, 1.0))
    held = larger(in_flight / rate - (output_tokens - 1.0) * tpot_s - own, 0.0)
    n_prompt_steps = k * (1.0 + 0.5 * busy / (1.0 - busy)) + held / m.value
    under_way = repeated("step_under_way", s, _ONE_STEP_UNDER_WAY)
    ttft = total("ttft", (repeated("prompts_read", m, n_prompt_steps), under_way))
    e2e = total("e2e", (ttft, repeated("decoding", tpot, output_tokens - 1.0)))
    return OperatingPoint(in_flight, output_tokens, ttft, tpot, e2e, s, m, k)


def _rate(in_flight: Num, own_s: Num, decoding_s: Num, extra_s: Num) -> Num:
    """Return r of n = r (own + decoding / (1 - r extra)): the smaller root, written so that nothing cancels."""
    b = own_s + decoding_s + in_flight * extra_s
    return 2.0 * in_flight / (b + larger(b * b - 4.0 * own_s * extra_s * in_flight, 0.0) ** 0.5)
