"""How much each figure matters: elasticities by central differences, and what a change of it does (the tornado).

The elasticity of y to x is d ln y / d ln x: the percentage by which y grows when x grows by one percent. It comes from
two evaluations of the whole model a little below and above, so that every effect counts: memory, batching, queues.
Arrays of loads are evaluated at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import PerfmodelError
from perfmodel.estimate import Num
from perfmodel.plan.knobs import Knob, Scene, knobs_of
from perfmodel.serving.steady_case import SteadyCase, steady_case

__all__ = ["OUTPUTS", "Effect", "effects", "outputs", "steady_of"]

Floats = NDArray[np.float64]

OUTPUTS: Final[Mapping[str, str]] = {
    "ttft_s": "mean time to first token",
    "tpot_s": "mean time per output token",
    "e2e_s": "mean end-to-end time",
    "output_tokens_per_s": "output tokens/s of all devices",
    "capacity_requests_per_s": "requests/s of full engines (open loop)",
    "kv_tokens": "tokens that the KV cache of a rank holds",
    "usd_per_million_tokens": "US dollars for a million output tokens",
}
_WITHOUT_EFFECT: Final = 1e-6
_JUMP: Final = 0.5
"""Elasticities of the two sides that are further apart than this belong to a step between them."""


@dataclass(frozen=True, eq=False, slots=True)
class Effect:
    """What one knob does to each output: elasticity, and the values at the lower and the higher end of the change.

    `jumps` are outputs that make a step right here (a prompt just fits in one step of the engine, say): their
    elasticity is that of the flatter side.
    """

    knob: Knob
    elasticity: Mapping[str, Floats]
    jumps: tuple[str, ...]
    low: Mapping[str, Floats]
    high: Mapping[str, Floats]

    def swing(self, output: str) -> float:
        """Return how far an output moves over the change, as a share of its middle; 0 where it cannot be said."""
        low, high = np.atleast_1d(self.low[output])[0], np.atleast_1d(self.high[output])[0]
        size = abs(float(high - low)) / max(abs(float(high + low)) / 2.0, 1e-300)
        return size if np.isfinite(size) else 0.0


def steady_of(scene: Scene) -> SteadyCase:
    """Return the steady state of a scene; raises InfeasibleError where it does not fit."""
    return steady_case(
        scene.case,
        concurrency=scene.concurrency,
        requests_per_s=scene.requests_per_s,
        input_tokens=scene.input_tokens,
        output_tokens=scene.output_tokens,
    )


def outputs(scene: Scene) -> dict[str, Floats]:
    """Return the outputs of a scene, as arrays of the shape of its load; those that do not apply are left out."""
    found = steady_of(scene)
    one, n_replicas = found.one, found.case.n_replicas
    rate = one.output_tokens_per_s * n_replicas
    values: dict[str, Num] = {
        "ttft_s": one.ttft_s,
        "tpot_s": one.tpot_s,
        "e2e_s": one.e2e_s,
        "output_tokens_per_s": rate,
        "kv_tokens": float(found.plan.kv_tokens),
    }
    if scene.requests_per_s is not None:
        values["capacity_requests_per_s"] = one.capacity_requests_per_s * n_replicas
    if scene.usd_per_device_hour is not None:
        values["usd_per_million_tokens"] = scene.usd_per_device_hour * found.case.n_devices / (3600.0 * rate) * 1e6
    shape = np.shape(one.e2e_s)
    return {name: np.broadcast_to(np.asarray(value, np.float64), shape) for name, value in values.items()}


def _outputs_or_nan(scene: Scene, like: Mapping[str, Floats]) -> dict[str, Floats]:
    try:
        return outputs(scene)
    except PerfmodelError:
        return {name: np.full_like(value, np.nan) for name, value in like.items()}


def _slopes(
    steps: tuple[float, float], below: Mapping[str, Floats], here: Mapping[str, Floats], above: Mapping[str, Floats]
) -> tuple[dict[str, Floats], tuple[str, ...]]:
    """Return the elasticity of each output over both sides, or over the flatter one where it jumps between them."""
    slopes, jumps = {}, []
    for name, middle in here.items():
        left = np.log(below[name] / middle) / np.log(steps[0])
        right = np.log(above[name] / middle) / np.log(steps[1])
        both = np.log(above[name] / below[name]) / np.log(steps[1] / steps[0])
        is_jump = np.abs(left - right) > _JUMP
        slopes[name] = np.where(is_jump, np.where(np.abs(left) < np.abs(right), left, right), both)
        if np.any(is_jump):
            jumps.append(name)
    return slopes, tuple(jumps)


def effects(
    scene: Scene,
    *,
    change_frac: float = 0.1,
    knobs: Sequence[Knob] | None = None,
    told: Callable[[int], object] | None = None,
) -> tuple[Effect, ...]:
    """Return what each knob does; those that move nothing are left out. `told` is called with 1 after each knob.

    Where an end cannot be (the model no longer fits) its values are NaN.
    """
    base = steady_of(scene)
    like = outputs(scene)
    chosen = knobs_of(scene, (base.one.ttft, base.one.e2e)) if knobs is None else knobs
    found = []
    for knob in chosen:
        below, above = (_outputs_or_nan(knob.turned(scene, factor), like) for factor in knob.steps)
        slope, jumps = _slopes(knob.steps, below, like, above)
        if told is not None:
            told(1)
        if all(not np.any(np.abs(values) > _WITHOUT_EFFECT) for values in slope.values()):
            continue
        low, high = (_outputs_or_nan(knob.turned(scene, 1.0 + side * change_frac), like) for side in (-1.0, 1.0))
        found.append(Effect(knob, slope, jumps, low, high))
    return tuple(found)
