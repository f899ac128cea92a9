"""Where a choice begins to pay: tensor parallelism, lighter weights, a second instance; over the number of users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import InfeasibleError, SpecError
from perfmodel.estimate import smaller
from perfmodel.plan.inverse import crossings
from perfmodel.plan.knobs import Scene
from perfmodel.plan.sensitivity import outputs, steady_of
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.question import Question, case_of

__all__ = ["BreakEven", "break_even_instance", "break_even_quantization", "break_even_tp", "compared"]

Floats = NDArray[np.float64]

_POINTS: Final = 48
_MOST_USERS: Final = 4096.0
_HALF_USED: Final = 1.5
"""Throughput of two instances over that of one from which the second counts as at least half used."""


@dataclass(frozen=True, eq=False, slots=True)
class BreakEven:
    """Two choices over the number of users: `output` of each, and where they cross.

    `more_is_better` says how to read the output; `at` is empty where one of them is always better.
    """

    first: str
    second: str
    output: str
    more_is_better: bool
    users: Floats
    of_first: Floats
    of_second: Floats
    at: tuple[float, ...]

    def better(self, i: int) -> str:
        """Return the better choice at the i-th number of users; empty where neither can be."""
        a, b = float(self.of_first[i]), float(self.of_second[i])
        if not np.isfinite(a) or not np.isfinite(b):
            return self.first if np.isfinite(a) else self.second if np.isfinite(b) else ""
        return self.first if (a > b) == self.more_is_better else self.second

    def text(self) -> str:
        """Return the answer as a sentence."""
        few, many = self.better(0), self.better(len(self.users) - 1)
        reach = f"from {self.users[0]:g} to {self.users[-1]:g} users"
        if not self.at:
            return f"{few} is better throughout, {reach}" if few else "neither can be served"
        places = ", ".join(f"{x:.3g}" for x in self.at)
        return f"{few} is better with few users, {many} with many; they are equal at {places} users ({reach})"


def _scene(catalogue: Catalogue, question: Question) -> Scene:
    case = case_of(catalogue, replace(question, batch=1.0))
    work = case.workload
    return Scene(case=case, input_tokens=work.input_tokens, output_tokens=work.output_tokens)


def _most_users(scene: Scene) -> float:
    """Return how many users the replicas hold at once, as far as is looked."""
    found = steady_of(replace(scene, concurrency=1.0))
    plan, n = found.plan, found.case.n_replicas
    held = plan.kv_tokens / (scene.input_tokens + scene.output_tokens)
    return float(smaller(float(held), float(plan.limits.max_num_seqs)) * plan.n_pools * n)


def compared(first: tuple[str, Scene], second: tuple[str, Scene], output: str, *, more_is_better: bool) -> BreakEven:
    """Return two scenes over users, from one user a replica to what the larger of them holds.

    Raises InfeasibleError where neither fits; one that does not fit loses everywhere.
    """
    scenes = dict((first, second))
    most: dict[str, float] = {}
    errors = []
    for name, scene in scenes.items():
        try:
            most[name] = _most_users(scene)
        except InfeasibleError as error:
            errors.append(error)
    if not most:
        raise errors[0]
    least = float(max(scene.case.n_replicas for scene in scenes.values()))
    users = np.unique(np.rint(np.geomspace(least, max(min(max(most.values()), _MOST_USERS), 2 * least), _POINTS)))

    def curve(name: str, at: Floats) -> Floats:
        if name not in most:
            return np.full_like(at, np.nan)
        return outputs(replace(scenes[name], concurrency=at))[output]

    def gap(x: float) -> float:
        at = np.array([x])
        return float((curve(first[0], at) - curve(second[0], at))[0])

    a, b = curve(first[0], users), curve(second[0], users)
    return BreakEven(first[0], second[0], output, more_is_better, users, a, b, crossings(users, a, b, gap))


def break_even_tp(catalogue: Catalogue, question: Question) -> tuple[BreakEven, ...]:
    """Return wider tensor parallelism against more replicas on the same devices: time per token, and throughput."""
    scene = _scene(catalogue, question)
    layout, n_replicas = scene.case.setup.layout, scene.case.n_replicas
    if layout.tp < 2:
        raise SpecError("tensor parallelism is not used", got=f"tp {layout.tp}", expected="tp of at least 2 to compare")
    n_devices = layout.n_devices * n_replicas
    stated = replace(question.deployment, tp=layout.tp // 2, pp=layout.pp)
    narrow = _scene(catalogue, replace(question, deployment=stated, n_devices=n_devices))
    names = (f"{n_replicas} x tp{layout.tp}", f"{narrow.case.n_replicas} x tp{layout.tp // 2}")
    return tuple(
        compared((names[0], scene), (names[1], narrow), output, more_is_better=more)
        for output, more in (("tpot_s", False), ("output_tokens_per_s", True))
    )


def break_even_quantization(catalogue: Catalogue, question: Question, scheme: str) -> tuple[BreakEven, ...]:
    """Return weights of another scheme against those asked about: time per token, and throughput."""
    scene = _scene(catalogue, question)
    own = scene.case.setup.scheme.name
    other = _scene(catalogue, replace(question, deployment=replace(question.deployment, quantization=scheme)))
    if own == other.case.setup.scheme.name:
        raise SpecError("the two weight schemes are one", got=own, expected="another one")
    return tuple(
        compared((f"{own} weights", scene), (f"{scheme} weights", other), output, more_is_better=more)
        for output, more in (("tpot_s", False), ("output_tokens_per_s", True))
    )


def break_even_instance(
    catalogue: Catalogue, question: Question, *, most_tpot_s: float | None = None, most_ttft_s: float | None = None
) -> tuple[BreakEven, ...]:
    """Return from how many users a second instance pays: where one breaks a target, and where two are half used.

    A second instance counts as half used where both give 1.5 times the tokens of one.
    """
    one = _scene(catalogue, question)
    two = replace(one, case=replace(one.case, n_replicas=2 * one.case.n_replicas))
    names = ("one instance", "a second one")
    found = []
    most = max(min(2.0 * _most_users(one), _MOST_USERS), 4.0)
    users = np.unique(np.rint(np.geomspace(float(two.case.n_replicas), most, _POINTS)))

    def values(output: str, at: Floats) -> Floats:
        return outputs(replace(one, concurrency=at))[output]

    for output, target in (("tpot_s", most_tpot_s), ("ttft_s", most_ttft_s)):
        if target is not None:
            found.append(_against(names, output, users, target, values))

    def ratio(at: Floats) -> Floats:
        wide = outputs(replace(two, concurrency=at))["output_tokens_per_s"]
        return wide / values("output_tokens_per_s", at)

    level = np.full_like(users, _HALF_USED)
    curve = ratio(users)
    at = crossings(users, level, curve, lambda x: _HALF_USED - float(ratio(np.array([x]))[0]))
    found.append(BreakEven(*names, "output_tokens_per_s of two over one", True, users, level, curve, at))
    return tuple(found)


def _against(
    names: tuple[str, str], output: str, users: Floats, target: float, values: Callable[[str, Floats], Floats]
) -> BreakEven:
    curve = values(output, users)
    at = crossings(
        users, curve, np.full_like(users, target), lambda x: float(values(output, np.array([x]))[0]) - target
    )
    return BreakEven(*names, f"{output} against the target", False, users, curve, np.full_like(users, target), at)
