"""A batch of equal requests served together: time to first token, time per output token, end to end.

Definitions. TTFT: from the start of the batch until its last prompt has been read (prompts are read in steps of at
most the token budget). TPOT: mean time between output tokens after the first, at full batch, averaged over the
growing context. End to end: TTFT + (output tokens - 1) x TPOT. Every quantity is closed form in batch and lengths.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.estimate import Estimate, Num, ceiling, larger, repeated, smaller, total
from perfmodel.step.step import Engine
from perfmodel.work.kernel import Slice

__all__ = ["RequestEstimate", "decode_pass", "decode_slice", "prefill_pass", "prefill_slice", "request_estimate"]


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


def prefill_pass(engine: Engine, *, batch: Num, input_tokens: Num, token_budget: Num) -> tuple[Num, Num]:
    """Return the prompts that one data-parallel rank reads, and the steps of at most the token budget it takes."""
    per_rank = ceiling(batch / float(engine.setup.layout.dp))
    return per_rank, ceiling(per_rank * input_tokens / token_budget)


def decode_pass(engine: Engine, *, batch: Num, input_tokens: Num, output_tokens: Num) -> tuple[Slice, Num]:
    """Return the mean decode step of one microbatch on one data-parallel rank, and the microbatches in flight."""
    layout, speculation = engine.setup.layout, engine.setup.speculation
    per_rank = ceiling(batch / float(layout.dp))
    n_microbatches = smaller(per_rank, float(layout.pp))
    width = 1.0 if speculation is None else 1.0 + speculation.n_draft
    n_seqs = ceiling(per_rank / n_microbatches)
    return decode_slice(n_seqs, input_tokens, output_tokens, tokens_per_step=width), n_microbatches


def _prefill_time(engine: Engine, n_prompts: Num, input_tokens: Num, *, token_budget: Num, n_steps: Num) -> Estimate:
    """Return the time to read the prompts of one rank in `n_steps` steps.

    One stage does equal steps. In a pipeline the first step is as large as the budget lets it be, as schedulers do:
    with equal steps a prompt just beyond the budget would fill the pipeline in halves and take less time than one
    that fits.
    """
    if len(engine.stages) == 1:
        return engine.pipelined("ttft", (prefill_slice(n_prompts, input_tokens, n_steps=n_steps),), n_steps=n_steps)
    n_first = smaller(n_prompts, token_budget / input_tokens)
    first = prefill_slice(n_first, input_tokens, n_steps=1.0)
    further = prefill_slice(n_prompts - n_first, input_tokens, n_steps=larger(n_steps - 1.0, 1.0))
    return engine.pipelined("ttft", (further,), n_steps=n_steps, first=(first,))


def request_estimate(
    engine: Engine, *, batch: Num, input_tokens: Num, output_tokens: Num, token_budget: Num
) -> RequestEstimate:
    """Return the estimate for `batch` equal requests; all numbers are floats or arrays that broadcast.

    `batch` counts sequences of the whole deployment, `token_budget` the prompt tokens that one step may hold.
    """
    per_rank, n_steps = prefill_pass(engine, batch=batch, input_tokens=input_tokens, token_budget=token_budget)
    ttft = _prefill_time(engine, per_rank, input_tokens, token_budget=token_budget, n_steps=n_steps)
    one, n_microbatches = decode_pass(engine, batch=batch, input_tokens=input_tokens, output_tokens=output_tokens)
    speculation = engine.setup.speculation
    if speculation is None:
        tpot = engine.step("tpot", (one,), n_microbatches=n_microbatches)
        decoding = repeated("decode", tpot, larger(output_tokens - 1.0, 0.0))
    else:
        verify = engine.step("speculative_step", (one,), n_microbatches=n_microbatches)
        tpot = repeated("tpot", verify, 1.0 / speculation.acceptance_length)
        left = larger(output_tokens - 1.0, 0.0)
        decoding = repeated("decode", verify, larger(left / speculation.acceptance_length, smaller(left, 1.0)))
    return RequestEstimate(batch, input_tokens, output_tokens, n_steps, ttft, tpot, total("e2e", (ttft, decoding)))
