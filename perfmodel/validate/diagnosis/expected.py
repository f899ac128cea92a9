"""What a deployment should have shown under a load: the simulation, with the band of its step times carried through.

The run is simulated three times: with the predicted step times, and with all of them at either end of their 80 % band.
So the band of a waiting time counts that a slower server also has the longer queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from perfmodel.estimate import Bound, band_factor, bound_shares, relative_sd
from perfmodel.serving.clock import TableClock
from perfmodel.serving.deployment import ServingCase, serving_case
from perfmodel.serving.engine import simulated
from perfmodel.serving.metrics import ServingResult, serving_result
from perfmodel.serving.step_table import prompt_slice
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.answer import Figure
from perfmodel.step.question import Question, case_of
from perfmodel.step.step import Engine
from perfmodel.validate.diagnosis.load import Load
from perfmodel.work.kernel import Slice

__all__ = ["Expected", "expected_run", "quick_run", "run_figures"]

LATENCIES: Final = ("ttft", "tpot", "itl", "e2e")
STATS: Final = ("mean", "p50", "p90", "p95", "p99")


@dataclass(frozen=True, eq=False, slots=True)
class Expected:
    """A simulated run. `figures` maps names as `ttft_s_mean` to values with bands; `step_bounds` are shares of time."""

    serving: ServingCase
    result: ServingResult
    figures: Mapping[str, Figure]
    step_bounds: Mapping[Bound, float]
    """What the steps spend their time on, over all steps of the run, largest first."""
    repeat_frac: float
    """Difference that says nothing: that of runs that were repeated."""


def run_figures(result: ServingResult) -> dict[str, float]:
    """Return the figures of a run that clients report, by name in base units."""
    figures = {
        "requests_per_s": result.requests_per_s,
        "output_tokens_per_s": result.output_tokens_per_s,
    }
    for name in LATENCIES:
        spread = result.spreads[f"{name}_s"]
        values = {"mean": spread.mean, **{f"p{p}": value for p, value in spread.percentiles.items()}}
        figures |= {f"{name}_s_{stat}": value for stat in STATS if (value := values.get(stat)) is not None}
    return figures


def _serving(catalogue: Catalogue, question: Question, load: Load) -> ServingCase:
    case = case_of(catalogue, question)
    return serving_case(case, load.trace())


def quick_run(catalogue: Catalogue, question: Question, load: Load) -> ServingResult:
    """Return the run as predicted, without a band."""
    serving = _serving(catalogue, question, load)
    return serving_result(simulated(load.trace(), serving.setup, serving.clock))


def expected_run(catalogue: Catalogue, question: Question, load: Load) -> Expected:
    """Return what the deployment of a question should show; raises what `simulate` raises."""
    serving = _serving(catalogue, question, load)
    trace = load.trace()
    result = serving_result(simulated(trace, serving.setup, serving.clock))
    rel_sd, bounds = _steps(serving.case.engine, result, load)
    factor = float(band_factor(rel_sd))
    ends = [
        run_figures(serving_result(simulated(trace, serving.setup, TableClock(serving.clock.table.scaled(pace)))))
        for pace in (1.0 / factor, factor)
    ]
    figures = {}
    for name, value in run_figures(result).items():
        values = (value, *(end[name] for end in ends if name in end))
        figures[name] = Figure(value, min(values), max(values))
    return Expected(serving, result, figures, bounds, catalogue.usual_values().repeat_frac.value)


def _steps(engine: Engine, result: ServingResult, load: Load) -> tuple[float, dict[Bound, float]]:
    """Return the relative standard deviation of the steps' time, and what it is spent on.

    Decode steps and steps with prompts are each looked at as one mean step, weighted by their share of the busy time.
    """
    decode_ns = prompt_ns = n_tokens = n_steps = prompts = beside = n_prompt_steps = 0
    for s in result.run.segments:
        reads = s.prompt_tokens > 0
        decode_ns += int(s.duration_ns[~reads].sum())
        prompt_ns += int(s.duration_ns[reads].sum())
        n_tokens += int((s.n_decoding * s.n_steps)[~reads].sum())
        n_steps += int(s.n_steps[~reads].sum())
        prompts += int(s.prompt_tokens.sum())
        beside += int(s.n_decoding[reads].sum())
        n_prompt_steps += int(reads.sum())
    context = load.input_tokens + 0.5 * load.output_tokens
    layout, variance = engine.setup.layout, 0.0
    bounds: dict[Bound, float] = {}
    parts = []
    if decode_ns:
        parts.append((decode_ns, (Slice("decode", max(n_tokens / n_steps / layout.dp, 1.0), 1.0, context, context),)))
    if prompt_ns:
        read = prompt_slice(max(prompts / n_prompt_steps / layout.dp, 1.0), 0.5 * (load.input_tokens + 1.0))
        decodes = beside / n_prompt_steps / layout.dp
        also = (Slice("decode", decodes, 1.0, context, context),) if decodes >= 1 else ()
        parts.append((prompt_ns, (*also, read)))
    for time_ns, slices in parts:
        tree = engine.step("step", slices)
        share = time_ns / (decode_ns + prompt_ns)
        variance += share * float(relative_sd(tree)) ** 2
        for bound, part in bound_shares(tree).items():
            bounds[bound] = bounds.get(bound, 0.0) + share * float(part)
    ranked = sorted(((b, s) for b, s in bounds.items() if s > 0), key=lambda pair: -pair[1])
    return variance**0.5, dict(ranked)
