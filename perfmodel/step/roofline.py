"""The roofline of a deployment as data: the device's ceilings, and where each operator of a step stands under them.

The roof over an operator is min(peak of its dtype and engine, intensity x main-memory bandwidth) with the nominal rates
of the datasheet. Intensity counts every byte that main memory must move (weights, cache, activations), so caches are
drawn for orientation and bound no operator. The predicted rate is flop over predicted time, launches included.
A calibration that lets a kernel exceed the datasheet (some cards do), or that feeds it from the last cache, puts its
point above the roof of main memory: that is shown.
Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from perfmodel.cost.hierarchy import LevelBytes, level_bytes, tiles_of
from perfmodel.errors import SpecError
from perfmodel.estimate import Bound, Estimate, leaf_shares
from perfmodel.specs.core import CoreClass
from perfmodel.specs.device import Device
from perfmodel.step.ceilings import Ceiling, EngineKind, Level, MemoryCeiling, ceilings_of, memories_of
from perfmodel.step.request import decode_pass, prefill_pass, prefill_slice
from perfmodel.step.step import Engine
from perfmodel.work.kernel import Message, Slice, Work

__all__ = [
    "LevelPoint",
    "OperatorPoint",
    "OtherTime",
    "Phase",
    "Ridge",
    "Roofline",
    "StepTime",
    "roofline",
]

Phase = Literal["prefill", "decode"]
OtherKind = Literal["message", "kernel", "host", "offload", "other_device"]
Row = dict[str, str | float | bool | None]

_COLUMNS: Final = (
    "kind", "name", "phase", "dtype", "engine", "level", "flop_per_s", "bytes_per_s", "ridge_flop_per_byte", "is_used",
    "intensity_flop_per_byte", "bound_flop_per_s", "predicted_flop_per_s", "roof_frac", "bound", "time_s", "time_share",
    "n_launches", "flop", "n_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ridge:
    """Where a memory diagonal meets a ceiling: below this intensity the memory bounds, above it the arithmetic."""

    dtype: str
    engine: EngineKind
    level: str
    memory: str
    ridge_flop_per_byte: float
    flop_per_s: float
    is_used: bool


@dataclass(frozen=True, slots=True)
class LevelPoint:
    """Where an operator stands under one memory level: its intensity there, and the roof of that level alone."""

    level: Level
    memory: str
    n_bytes: float
    intensity_flop_per_byte: float
    bound_flop_per_s: float


@dataclass(frozen=True, slots=True)
class OperatorPoint:
    """An operator of one step on one rank: all kernels of that name and dtype together.

    `bound` is what most of its predicted time is spent on, `time_share` its part of the whole step; `levels` has a
    place under each memory level where those were asked for.
    """

    name: str
    phase: Phase
    dtype: str
    engine: EngineKind
    intensity_flop_per_byte: float
    bound_flop_per_s: float
    predicted_flop_per_s: float
    time_s: float
    time_share: float
    n_launches: float
    flop: float
    n_bytes: float
    bound: Bound
    levels: tuple[LevelPoint, ...] = ()

    @property
    def roof_frac(self) -> float:
        """Predicted rate over the roof at this intensity."""
        return self.predicted_flop_per_s / self.bound_flop_per_s


@dataclass(frozen=True, slots=True)
class OtherTime:
    """Time of a step that has no place under the roof: messages, kernels without arithmetic, host, other devices."""

    name: str
    phase: Phase
    kind: OtherKind
    time_s: float
    time_share: float
    n_launches: float = 0.0


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step that the points stand for: its time through all stages, and how many sequences and tokens it holds."""

    phase: Phase
    step_s: float
    n_seqs: float
    n_tokens: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """Ceilings, memory levels and operators, with what a title has to say. Main memory is the first memory level."""

    device: str
    model: str
    scheme: str
    dtype: str
    kv_dtype: str
    layout: str
    runtime: str
    calibration: str
    batch: float
    input_tokens: float
    output_tokens: float
    token_budget: float
    ceilings: tuple[Ceiling, ...]
    memories: tuple[MemoryCeiling, ...]
    points: tuple[OperatorPoint, ...]
    others: tuple[OtherTime, ...]
    steps: tuple[StepTime, ...]

    @property
    def ridges(self) -> tuple[Ridge, ...]:
        """The ridge of every ceiling with every memory level."""
        return tuple(
            Ridge(c.dtype, c.engine, m.level, m.name, c.flop_per_s / m.bytes_per_s, c.flop_per_s, c.is_used)
            for c in self.ceilings
            for m in self.memories
        )

    def ridge_flop_per_byte(self, dtype: str, *, engine: EngineKind = "matrix", level: str = "dram") -> float:
        """Return the ridge of a dtype with a memory level; raises SpecError where the device lacks either."""
        for ridge in self.ridges:
            if (ridge.dtype, ridge.engine, ridge.level) == (dtype, engine, level):
                return ridge.ridge_flop_per_byte
        raise SpecError(f"no ridge of {dtype} ({engine}) with {level} is known", where=self.device)

    def as_rows(self) -> list[dict[str, str | float | bool | None]]:
        """Return one flat row for each ceiling, memory, ridge, operator and other time; all have the same keys."""
        return [dict.fromkeys(_COLUMNS) | row for row in self._rows()]

    def _rows(self) -> Iterator[Row]:
        for c in self.ceilings:
            common: Row = {"dtype": c.dtype, "engine": c.engine, "flop_per_s": c.flop_per_s, "is_used": c.is_used}
            yield {"kind": "ceiling", "name": c.name, **common}
        for m in self.memories:
            yield {"kind": "memory", "name": m.name, "level": m.level, "bytes_per_s": m.bytes_per_s}
        for r in self.ridges:
            yield {
                "kind": "ridge", "name": f"{r.dtype} on {r.memory}", "dtype": r.dtype, "engine": r.engine,
                "level": r.level, "flop_per_s": r.flop_per_s, "ridge_flop_per_byte": r.ridge_flop_per_byte,
                "is_used": r.is_used,
            }  # fmt: skip
        for p in self.points:
            yield {
                "kind": "operator", "name": p.name, "phase": p.phase, "dtype": p.dtype, "engine": p.engine,
                "intensity_flop_per_byte": p.intensity_flop_per_byte, "bound_flop_per_s": p.bound_flop_per_s,
                "predicted_flop_per_s": p.predicted_flop_per_s, "roof_frac": p.roof_frac, "bound": p.bound.value,
                "time_s": p.time_s, "time_share": p.time_share, "n_launches": p.n_launches,
                "flop": p.flop, "n_bytes": p.n_bytes,
            }  # fmt: skip
            for v in p.levels:
                yield {
                    "kind": "level", "name": p.name, "phase": p.phase, "dtype": p.dtype, "engine": p.engine,
                    "level": v.level, "intensity_flop_per_byte": v.intensity_flop_per_byte, "n_bytes": v.n_bytes,
                    "bound_flop_per_s": v.bound_flop_per_s, "predicted_flop_per_s": p.predicted_flop_per_s,
                    "roof_frac": p.predicted_flop_per_s / v.bound_flop_per_s,
                }  # fmt: skip
        for o in self.others:
            yield {
                "kind": o.kind, "name": o.name, "phase": o.phase, "time_s": o.time_s, "time_share": o.time_share,
                "n_launches": o.n_launches,
            }  # fmt: skip


@dataclass(slots=True)
class _Sum:
    """What the kernels of one name add up to."""

    flop: float = 0.0
    n_bytes: float = 0.0
    time_s: float = 0.0
    n_launches: float = 0.0
    by_bound: dict[Bound, float] = field(default_factory=dict)
    by_level: dict[Level, float] = field(default_factory=dict)

    def add_levels(self, n_bytes: LevelBytes, n_times: float) -> None:
        """Count the bytes of one more kernel at each level."""
        levels: tuple[Level, ...] = ("dram", "l2", "on_chip")
        for level, size in zip(levels, n_bytes, strict=True):
            self.by_level[level] = self.by_level.get(level, 0.0) + float(size) * n_times

    def add(self, item: Work | Message, time: Estimate, n_times: float) -> None:
        own_s = float(time.value) * n_times
        self.time_s += own_s
        if isinstance(item, Work):
            self.flop += float(item.flop) * n_times
            self.n_bytes += float(item.n_bytes) * n_times
            self.n_launches += item.n_launches * n_times
        else:
            self.n_launches += n_times if item.n_ranks > 1 else 0.0
        for part, share in leaf_shares(time):
            if part.bound is not None:
                self.by_bound[part.bound] = self.by_bound.get(part.bound, 0.0) + float(share) * own_s


_NOTHING: Final = 1e-12
"""Share of a step below which a remainder is rounding."""

_Key = tuple[str, str, EngineKind, bool]
"""Name, dtype and engine of a kernel; the last tells a kernel (True) from a message."""


def roofline(
    engine: Engine,
    core: CoreClass | None = None,
    /,
    *,
    batch: float,
    input_tokens: float,
    output_tokens: float,
    token_budget: float,
) -> Roofline:
    """Return the roofline of a prefill step and of the mean decode step that `request_estimate` prices.

    With the device's class of cores, operators also get a place under each memory level (cost/hierarchy.py).
    Counts are those of one rank; with pipeline stages a step is one microbatch's way through all of them, and stages
    on a device other than the first stage's are only timed. The shares of points and others of a phase add up to 1.
    Raises SpecError for a batch or a length below 1.
    """
    numbers = (batch, input_tokens, output_tokens, token_budget)
    if not all(value >= 1 for value in numbers):
        got = "batch {:g}, {:g} input and {:g} output tokens, token budget {:g}".format(*numbers)
        raise SpecError("the roofline has nothing to draw", got=got, expected="numbers of at least 1")
    setup, device = engine.setup, engine.stages[0].kernels.device.device
    points: list[OperatorPoint] = []
    others: list[OtherTime] = []
    steps: list[StepTime] = []
    for one in _slices(engine, float(batch), float(input_tokens), float(output_tokens), float(token_budget)):
        step_s = sum(float(engine.stage_step(stage, (one,)).value) for stage in engine.stages)
        sums, rest = _sums(engine, one, device, core)
        for key, found in sums.items():
            if found.flop > 0 and found.n_bytes > 0:
                points.append(_point(key, found, one.phase, step_s, device))
            elif found.time_s > 0:
                others.append(_other(key, found, one.phase, step_s))
        others += [
            OtherTime(name, one.phase, kind, time_s, time_s / step_s)
            for name, kind, time_s in rest
            if time_s > _NOTHING * step_s
        ]
        steps.append(StepTime(one.phase, step_s, float(one.n_seqs), float(one.n_tokens)))
    layout = setup.layout
    cuts = {"TP": layout.tp, "PP": layout.pp, "EP": layout.ep, "DP": layout.dp}
    return Roofline(
        device=device.title,
        model=setup.model.name,
        scheme=setup.scheme.name,
        dtype=setup.dtype,
        kv_dtype=setup.kv_dtype,
        layout=" ".join(f"{name} {n}" for name, n in cuts.items() if n > 1),
        runtime=setup.runtime.title,
        calibration=engine.calibration.name,
        batch=float(batch),
        input_tokens=float(input_tokens),
        output_tokens=float(output_tokens),
        token_budget=float(token_budget),
        ceilings=ceilings_of(device, {(p.dtype, p.engine) for p in points}),
        memories=memories_of(device),
        points=tuple(sorted(points, key=lambda p: (p.phase != "prefill", -p.time_s))),
        others=tuple(sorted(others, key=lambda o: (o.phase != "prefill", -o.time_s))),
        steps=tuple(steps),
    )


def _slices(
    engine: Engine, batch: float, input_tokens: float, output_tokens: float, token_budget: float
) -> tuple[Slice, Slice]:
    """Return what one mean prefill step and one decode microbatch of a rank hold."""
    per_rank, n_steps = prefill_pass(engine, batch=batch, input_tokens=input_tokens, token_budget=token_budget)
    decode, _ = decode_pass(engine, batch=batch, input_tokens=input_tokens, output_tokens=output_tokens)
    return prefill_slice(per_rank, input_tokens, n_steps=n_steps), decode


def _sums(
    engine: Engine, one: Slice, device: Device, core: CoreClass | None
) -> tuple[dict[_Key, _Sum], list[tuple[str, OtherKind, float]]]:
    """Return sums over kernels and messages on `device`, and the times beside them (name, kind, seconds)."""
    sums: dict[_Key, _Sum] = {}
    rest: list[tuple[str, OtherKind, float]] = []
    host_s = offload_s = 0.0
    tiles = tiles_of(device, core) if core is not None else None
    for stage in engine.stages:
        whole = engine.stage_step(stage, (one,))
        own = stage.kernels.device.device
        if own.name != device.name:
            rest.append((f"stage {stage.blueprint.index} on {own.title}", "other_device", float(whole.value)))
            continue
        for section in engine.sections(stage, (one,)):
            for item in section.items:
                found = sums.setdefault(_key(item), _Sum())
                found.add(item, stage.item_time(item), section.n_times)
                if core is not None and tiles is not None and isinstance(item, Work):
                    found.add_levels(level_bytes(item, core, tiles), section.n_times)
        offloaded_s = sum(float(part.value) for part in whole.parts if part.name == "offloaded_weights")
        offload_s += offloaded_s
        host_s += float(whole.value) - offloaded_s - float(whole.find("device").value)
    return sums, [*rest, ("offloaded weights", "offload", offload_s), ("host", "host", host_s)]


def _key(item: Work | Message) -> _Key:
    return (item.name, item.dtype, item.engine, True) if isinstance(item, Work) else (item.name, "", "vector", False)


def _point(key: _Key, found: _Sum, phase: Phase, step_s: float, device: Device) -> OperatorPoint:
    name, dtype, engine, _ = key
    peak = device.peak_flop_per_s(dtype, engine)
    intensity = found.flop / found.n_bytes
    return OperatorPoint(
        name=name,
        phase=phase,
        dtype=dtype,
        engine=engine,
        intensity_flop_per_byte=intensity,
        bound_flop_per_s=min(peak, intensity * device.dram_bytes_per_s),
        predicted_flop_per_s=found.flop / found.time_s,
        time_s=found.time_s,
        time_share=found.time_s / step_s,
        n_launches=found.n_launches,
        flop=found.flop,
        n_bytes=found.n_bytes,
        bound=max(found.by_bound, key=lambda bound: found.by_bound[bound]),
        levels=tuple(_level_points(found, device, peak, engine)),
    )


def _level_points(found: _Sum, device: Device, peak_flop_per_s: float, engine: EngineKind) -> Iterator[LevelPoint]:
    """Yield the operator's place under each level whose bandwidth is known; on chip, the buffer of its engine."""
    memories = memories_of(device)
    for level, n_bytes in found.by_level.items():
        own = [memory for memory in memories if memory.level == level]
        if own and n_bytes > 0:
            memory = own[-1] if engine == "vector" else own[0]
            intensity = found.flop / n_bytes
            roof = min(peak_flop_per_s, intensity * memory.bytes_per_s)
            yield LevelPoint(level, memory.name, n_bytes, intensity, roof)


def _other(key: _Key, found: _Sum, phase: Phase, step_s: float) -> OtherTime:
    kind: OtherKind = "kernel" if key[3] else "message"
    return OtherTime(key[0], phase, kind, found.time_s, found.time_s / step_s, found.n_launches)
