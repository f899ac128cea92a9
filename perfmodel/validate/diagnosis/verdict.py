"""The diagnosis of a measured run: what was expected, what limits, what explains the difference, what would help."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any, Final

from perfmodel.errors import MeasurementError, PerfmodelError
from perfmodel.estimate import Bound
from perfmodel.measure.serving_run import ServingRun
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.answer import Figure
from perfmodel.step.question import Question
from perfmodel.validate.diagnosis.expected import LATENCIES, STATS, Expected, expected_run, quick_run, run_figures
from perfmodel.validate.diagnosis.levers import Change, levers, suspicions
from perfmodel.validate.diagnosis.load import Load, load_of

__all__ = ["Compared", "Diagnosis", "Effect", "Suspicion", "diagnosis", "measured_figures"]

_WAITS_FROM: Final = 0.1
"""Share of time in which requests have to wait for a limit for it to be able to bind."""
_DECISIVE: Final = ("ttft_s_mean", "tpot_s_mean", "e2e_s_mean", "output_tokens_per_s", "requests_per_s")
"""Figures that a run is judged by: means; tails depend on arrivals and lengths that the result does not hold."""
_QUEUE_LIMITS: Final = {
    "kv_capacity": Bound.KV_CAPACITY,
    "max_num_seqs": Bound.MAX_NUM_SEQS,
    "token_budget": Bound.TOKEN_BUDGET,
}


@dataclass(frozen=True, slots=True)
class Compared:
    """One measured figure beside what was expected; repeated runs differ by `repeat_frac`."""

    measured: float
    expected: Figure
    repeat_frac: float

    @property
    def is_inside(self) -> bool:
        """Whether the measurement lies in the band, as far as a repeated run would show."""
        slack = 1.0 + self.repeat_frac
        return self.expected.low / slack <= self.measured <= self.expected.high * slack

    @property
    def ratio(self) -> float:
        """Measured over expected."""
        return self.measured / self.expected.value


@dataclass(frozen=True, slots=True)
class Effect:
    """What a change does to the figures of the run, as predicted values; `change` says what it is."""

    change: Change
    figures: Mapping[str, float]
    e2e_ratio: float
    """Mean end-to-end time with the change over that without it."""
    throughput_ratio: float


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A setting that was not stated, with which the measured figures lie in the band."""

    change: Change
    compared: Mapping[str, Compared]
    distance: float
    """Mean absolute log-ratio of measured to expected."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Diagnosis:
    """What can be said of one run. `binding` limits it first; `explanations` hold if the run is not normal."""

    run: ServingRun
    load: Load
    expected: Expected
    compared: Mapping[str, Compared]
    binding: Bound
    effects: tuple[Effect, ...]
    """Changes in order of the mean end-to-end time that they lead to."""
    impossible: tuple[tuple[str, str], ...]
    """Changes that cannot be made, with the reason."""
    explanations: tuple[Suspicion, ...]

    @property
    def is_normal(self) -> bool:
        """Whether all means lie in the band."""
        return all(one.is_inside for name, one in self.compared.items() if name in _DECISIVE)

    @property
    def is_explained(self) -> bool:
        """Whether the run is as expected, or as expected with one setting that was not stated."""
        return self.is_normal or bool(self.explanations)


def measured_figures(run: ServingRun) -> dict[str, float]:
    """Return what a result states of the figures that a simulation has too, by name in base units."""
    tokens = run.output_tokens_per_s
    if run.total_output_tokens and run.duration_s:
        tokens = run.total_output_tokens / run.duration_s
    found = {"requests_per_s": run.finished_per_s, "output_tokens_per_s": tokens}
    found |= {f"{name}_s_{stat}": run.latency_s.get((name, stat)) for name in LATENCIES for stat in STATS}
    return {name: value for name, value in found.items() if value is not None and value > 0}


def _compared(measured: Mapping[str, float], expected: Expected) -> dict[str, Compared]:
    figures, repeat = expected.figures, expected.repeat_frac
    return {name: Compared(value, figures[name], repeat) for name, value in measured.items() if name in figures}


def _distance(compared: Mapping[str, Compared]) -> float:
    decisive = [abs(log(one.ratio)) for name, one in compared.items() if name in _DECISIVE]
    return sum(decisive) / len(decisive)


def _is_slower(compared: Mapping[str, Compared]) -> bool:
    """Return whether a run outside of its band is slower than expected, all means taken together."""
    signs = {name: -1.0 if name.endswith("_per_s") else 1.0 for name in compared}
    return sum(signs[name] * log(one.ratio) for name, one in compared.items() if name in _DECISIVE) > 0


def diagnosis(
    catalogue: Catalogue, question: Question, run: ServingRun, *, told: Callable[[], object] | None = None
) -> Diagnosis:
    """Return the diagnosis of one measured run of the deployment in a question.

    Raises MeasurementError where the result holds nothing that can be compared, and what `simulate` raises.
    """
    load = load_of(run, input_tokens=question.input_tokens, output_tokens=question.output_tokens)
    question = replace(question, batch=1.0, input_tokens=load.input_tokens, output_tokens=load.output_tokens)
    expected = expected_run(catalogue, question, load)
    compared = _compared(measured_figures(run), expected)
    if not compared.keys() & set(_DECISIVE):
        raise MeasurementError(
            "the result holds nothing to diagnose", expected="a mean TTFT, TPOT, end-to-end time or a throughput"
        )
    effects, impossible = _effects(catalogue, levers(question, load, expected), expected, told)
    explanations: tuple[Suspicion, ...] = ()
    normal = all(one.is_inside for name, one in compared.items() if name in _DECISIVE)
    if not normal:
        doubts = suspicions(question, load, expected, slower=_is_slower(compared))
        explanations = _explanations(catalogue, doubts, measured_figures(run), told)
    return Diagnosis(
        run=run,
        load=load,
        expected=expected,
        compared=compared,
        binding=_binding(expected, effects),
        effects=effects,
        impossible=impossible,
        explanations=explanations,
    )


def _effects(
    catalogue: Catalogue, changes: Any, expected: Expected, told: Callable[[], object] | None
) -> tuple[tuple[Effect, ...], tuple[tuple[str, str], ...]]:
    base = run_figures(expected.result)
    found, refused = [], []
    for change in changes:
        try:
            figures = run_figures(quick_run(catalogue, change.question, change.load))
        except PerfmodelError as error:
            refused.append((change.text, str(error).splitlines()[0]))
            continue
        finally:
            if told is not None:
                told()
        e2e, tokens = (figures[name] / base[name] for name in ("e2e_s_mean", "output_tokens_per_s"))
        found.append(Effect(change, figures, e2e, tokens))
    found.sort(key=lambda effect: effect.e2e_ratio)
    return tuple(found), tuple(refused)


def _explanations(
    catalogue: Catalogue, changes: Any, measured: Mapping[str, float], told: Callable[[], object] | None
) -> tuple[Suspicion, ...]:
    """Return the changes with which all means lie in their bands, the closest first."""
    found = []
    for change in changes:
        try:
            expected = expected_run(catalogue, change.question, change.load)
        except PerfmodelError:
            continue  # a setting that cannot be is no explanation
        finally:
            if told is not None:
                told()
        compared = _compared(measured, expected)
        if all(one.is_inside for name, one in compared.items() if name in _DECISIVE):
            found.append(Suspicion(change, compared, _distance(compared)))
    found.sort(key=lambda suspicion: suspicion.distance)
    return tuple(found)


def _binding(expected: Expected, effects: Sequence[Effect]) -> Bound:
    """Return what limits the run first.

    A queue limit binds where requests wait for it and relaxing it helps: the one that helps most. Otherwise the load
    binds where nothing waits most of the time, else what the steps spend most of their time on.
    """
    waits = expected.result.usage.limit_shares
    gains: dict[Bound, float] = {}
    for effect in effects:
        bound = effect.change.bound
        name = next((name for name, limit in _QUEUE_LIMITS.items() if limit is bound), None)
        if bound is not None and name is not None and waits[name] >= _WAITS_FROM:
            gain = max(1.0 / effect.e2e_ratio, effect.throughput_ratio)
            gains[bound] = max(gain, gains.get(bound, 0.0))
    best = max(gains, key=lambda bound: gains[bound], default=None)
    if best is not None and gains[best] > 1 + expected.repeat_frac:
        return best
    if max(waits, key=lambda limit: waits[limit]) == "arrival_rate":
        return Bound.ARRIVAL_RATE
    return next(iter(expected.step_bounds))
