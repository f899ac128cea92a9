"""A batch of equal requests served together: time to first token, time per output token, end to end.

Definitions. TTFT: from the start of the batch until its last prompt has been read (prompts are read in steps of at
most the token budget). TPOT: mean time between output tokens after the first, at full batch, averaged over the
growing context. End to end: TTFT + (output tokens - 1) x TPOT. Every quantity is closed form in batch and lengths.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.estimate import Estimate, Num, ceiling, larger, repeated, smaller, total
from perfmodel.specs.layout import Layout
from perfmodel.step.step import Engine
from perfmodel.work.kernel import Slice

__all__ = ["RequestEstimate", "decode_slice", "prefill_slice", "request_estimate"]


def prefill_slice(n_prompts: Num, input_tokens: Num, *, n_steps: Num) -> Slice:
    """Return the mean step of `n_steps` that read `n_prompts` prompts.

    A prompt that is cut over 1/p steps re-reads what it cached: half of it on average, without the step's own part.
    """
    per_step = n_prompts / n_steps
    past = larger(1.0 - per_step, 0.0) * 0.5 * input_tokens
    return Slice("prefill", per_step, input_tokens, 1.0, input_tokens, past)


def decode_slice(n_seqs: Num, input_tokens: Num, output_tokens: Num, *, tokens_per_step: float = 1.0) -> Slice:
    """Return the mean decode step of a generation: contexts run from input + 1 to input + output - 1 tokens."""
    first = input_tokens + 1.0
    last = larger(input_tokens + output_tokens - 1.0, first)
    return Slice("decode", n_seqs, tokens_per_step, first, last)


@dataclass(frozen=True, slots=True)
class RequestEstimate:
    """Times of a batch as trees, with the rates that follow. Values are floats, or arrays of one shape."""

    batch: Num
    input_tokens: Num
    output_tokens: Num
    n_prefill_steps: Num
    ttft: Estimate
    tpot: Estimate
    e2e: Estimate

    @property
    def output_tokens_per_s(self) -> Num:
        """Generated tokens per second of the whole deployment while the batch runs."""
        return self.batch * self.output_tokens / self.e2e.value

    @property
    def requests_per_s(self) -> Num:
        """Requests finished per second, one batch after the other."""
        return self.batch / self.e2e.value

    @property
    def prefill_tokens_per_s(self) -> Num:
        """Prompt tokens read per second during prefill."""
        return self.batch * self.input_tokens / self.ttft.value


def _sequences_per_pass(batch: Num, layout: Layout) -> tuple[Num, Num]:
    """Return (sequences of one microbatch on one data-parallel rank, microbatches in flight)."""
    per_rank = ceiling(batch / float(layout.dp))
    n_microbatches = smaller(per_rank, float(layout.pp))
    return ceiling(per_rank / n_microbatches), n_microbatches


def request_estimate(
    engine: Engine, *, batch: Num, input_tokens: Num, output_tokens: Num, token_budget: Num
) -> RequestEstimate:
    """Return the estimate for `batch` equal requests; all numbers are floats or arrays that broadcast.

    `batch` counts sequences of the whole deployment, `token_budget` the prompt tokens that one step may hold.
    """
    layout, speculation = engine.setup.layout, engine.setup.speculation
    per_rank = ceiling(batch / float(layout.dp))
    n_steps = ceiling(per_rank * input_tokens / token_budget)
    ttft = engine.pipelined("ttft", (prefill_slice(per_rank, input_tokens, n_steps=n_steps),), n_steps=n_steps)
    n_seqs, n_microbatches = _sequences_per_pass(batch, layout)
    if speculation is None:
        tpot = engine.step("tpot", (decode_slice(n_seqs, input_tokens, output_tokens),), n_microbatches=n_microbatches)
    else:
        width = 1.0 + speculation.n_draft
        one = decode_slice(n_seqs, input_tokens, output_tokens, tokens_per_step=width)
        verify = engine.step("speculative_step", (one,), n_microbatches=n_microbatches)
        tpot = repeated("tpot", verify, 1.0 / speculation.acceptance_length)
    decoding = repeated("decode", tpot, larger(output_tokens - 1.0, 0.0))
    return RequestEstimate(batch, input_tokens, output_tokens, n_steps, ttft, tpot, total("e2e", (ttft, decoding)))
