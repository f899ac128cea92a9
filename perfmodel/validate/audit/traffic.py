"""A set-up under its load: a closed loop simulated where the number of requests is stated, else one static batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perfmodel.serving.arrivals import Trace, fixed_lengths, simultaneous_arrivals
from perfmodel.serving.deployment import serving_case
from perfmodel.serving.engine import simulated
from perfmodel.serving.metrics import serving_result
from perfmodel.step.answer import Figure
from perfmodel.units import time_text
from perfmodel.validate.audit.base import Desk

__all__ = ["Served", "served"]


@dataclass(frozen=True, slots=True)
class Served:
    """Rate and first-token times of a set-up under its load, with bands, and how they were computed."""

    output_tokens_per_s: Figure
    ttfts_s: Mapping[int, Figure]
    """By percentile; 0 is the mean."""
    device: str
    working: tuple[str, ...]

    def ttft(self, percentile: int | None) -> Figure:
        """Return the time to first token at a percentile, or the mean."""
        return self.ttfts_s[percentile or 0]


def served(desk: Desk, name: str) -> Served:
    """Return what the model says of a set-up under its load; the bands are those of the step model."""
    key = f"served {name}"
    if key not in desk.kept:
        desk.kept[key] = _served(desk, name)
    found: Served = desk.kept[key]
    return found


def _served(desk: Desk, name: str) -> Served:
    setup, answer = desk.setup(name), desk.answer(name)
    rate, ttft = answer.figures["output_tokens_per_s"], answer.figures["ttft_s"]
    case = answer.case
    what = (
        f"{case.setup.model.title} ({case.setup.scheme.name} weights) on {case.setup.devices[0].title}, "
        f"{case.setup.runtime.name}, {setup.input_tokens} in, {setup.output_tokens} out"
    )
    device = case.setup.devices[0].title
    if setup.n_requests is None:
        lines = (f"{what}: one batch of {setup.batch}", f"calibration {case.calibration.name}")
        return Served(rate, dict.fromkeys((0, 50, 90, 95, 99), ttft), device, lines)
    n, users = setup.n_requests, setup.batch or 1
    trace = Trace(
        simultaneous_arrivals(n),
        fixed_lengths(n, tokens=setup.input_tokens or 1),
        fixed_lengths(n, tokens=setup.output_tokens or 1),
    ).closed(users)
    one = desk.case(name, batch=1)
    ready = serving_case(one, trace)
    result = serving_result(simulated(trace, ready.setup, ready.clock))
    spread = result.spreads["ttft_s"]
    times = {p: float(t) for p, t in {0: spread.mean, **spread.percentiles}.items() if t is not None}
    scale = result.output_tokens_per_s / rate.value
    working = (
        f"{what}: {n} requests, {users} in flight, simulated with {ready.setup.policy} scheduling",
        (
            f"{result.output_tokens_per_s:,.4g} tokens/s; time to first token {time_text(times[0])} on average, "
            f"{time_text(times[95])} at 95 %"
        ),
        f"calibration {case.calibration.name}",
    )
    return Served(
        Figure(rate.value * scale, rate.low * scale, rate.high * scale),
        {p: _scaled(ttft, value) for p, value in times.items()},
        device,
        working,
    )


def _scaled(figure: Figure, value: float) -> Figure:
    return Figure(value, figure.low * value / figure.value, figure.high * value / figure.value)
