"""One stream against two for a deployment: its decode steps beside its prompts, under each policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, get_args

import numpy as np

from perfmodel.cost.streams import Policy, fifo_cycle_s
from perfmodel.errors import InfeasibleError, SpecError
from perfmodel.serving.streams import StreamRun, arrival_times, stream_run
from perfmodel.step.dispatch import tasks
from perfmodel.step.fitting import unfit_reason
from perfmodel.step.question import Case
from perfmodel.step.request import decode_slice, prefill_slice
from perfmodel.work.tiling import Tile

__all__ = ["StreamCase", "stream_case"]

_USUAL_LOAD: Final = 0.5
"""Share of what one stream can read, where no rate is stated."""


@dataclass(frozen=True, slots=True)
class StreamCase:
    """What each policy gives. `decode_step_s` and `prefill_s` are the times of a step and a prompt alone.

    `decode_step_s` counts the host time between steps.
    """

    runs: tuple[StreamRun, ...]
    batch: float
    input_tokens: float
    decode_step_s: float
    prefill_s: float
    prefills_per_s: float
    duration_s: float
    seed: int
    assumed: tuple[str, ...]

    @property
    def load_frac(self) -> float:
        """Share of a stream of their own that prompts would fill."""
        return self.prefills_per_s * self.prefill_s

    @property
    def one_stream_step_s(self) -> float | None:
        """Mean time between decode steps of one stream in closed form, None where prompts alone are too many."""
        if self.load_frac >= 1.0:
            return None
        return float(
            fifo_cycle_s(decode_s=self.decode_step_s, arrivals_per_s=self.prefills_per_s, prefill_s=self.prefill_s)
        )


def stream_case(
    case: Case,
    tile: Tile,
    *,
    prefills_per_s: float | None = None,
    duration_s: float = 10.0,
    decode_core_share: float = 0.5,
    seed: int = 0,
    on_policy_done: Callable[[int], None] = lambda _: None,
) -> StreamCase:
    """Return the batch of a case decoding without end beside prompts that come at random, under each policy.

    Each prompt is `input_tokens` long and read in one step on the first stage. Without a rate, prompts come half as
    often as one stream could read them. Raises InfeasibleError where memory does not hold the batch, SpecError
    for a seed that is no whole number from 0 on.
    """
    if not isinstance(seed, int) or seed < 0:
        raise SpecError("a seed cannot be used", got=repr(seed), expected="a whole number from 0 on")
    lacks = unfit_reason(case)
    if lacks:
        raise InfeasibleError(
            "the batch cannot decode, for memory does not hold it",
            got=lacks,
            cure="Take a smaller batch, shorter requests or more devices; `perfmodel memory` shows what fits.",
        )
    engine, work = case.engine, case.workload
    step = decode_slice(work.batch, work.input_tokens, work.output_tokens)
    decode = tasks(engine, (step,), tile)
    prefill = tasks(engine, (prefill_slice(1.0, work.input_tokens, n_steps=1.0),), tile)
    decode_s, prefill_s = (sum(task.time_s for task in side) for side in (decode, prefill))
    gap_s = max(0.0, float(engine.stage_step(engine.stages[0], (step,)).value) - decode_s)
    assumed: tuple[str, ...] = ()
    if prefills_per_s is None:
        prefills_per_s = float(f"{_USUAL_LOAD / prefill_s:.3g}")
        assumed = (f"{prefills_per_s:g} prompts a second, half of what one stream can read",)
    arrivals = arrival_times(np.random.default_rng(seed), arrivals_per_s=prefills_per_s, duration_s=duration_s)
    runs = []
    for policy in get_args(Policy):
        runs.append(
            stream_run(
                decode,
                prefill,
                arrivals,
                policy,
                duration_s=duration_s,
                host_gap_s=gap_s,
                decode_core_share=decode_core_share,
            )
        )
        on_policy_done(1)
    return StreamCase(
        tuple(runs),
        work.batch,
        work.input_tokens,
        decode_s + gap_s,
        prefill_s,
        prefills_per_s,
        duration_s,
        seed,
        assumed,
    )
