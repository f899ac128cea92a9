"""Every figure of a deployment that can be turned: hardware, wiring, runtime, calibration, model and workload.

A knob multiplies one figure by a factor. Figures of hardware, systems and runtimes are found by walking their
specifications, so that a new figure in a file is a new knob. Whole numbers of a model move by whole units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import BaseModel

from perfmodel.estimate import Estimate, Num
from perfmodel.specs.calibration import Override, When
from perfmodel.specs.device import Device
from perfmodel.specs.figures import Figure
from perfmodel.specs.model import DenseFfn, Layer, Model, MoeFfn, SoftmaxAttention
from perfmodel.specs.runtime import Runtime
from perfmodel.specs.system import System
from perfmodel.step.question import Case
from perfmodel.work.memory_rules import step_limits

__all__ = ["Knob", "Scene", "figures_in", "knobs_of", "together", "with_figure"]

Path = tuple[str | int, ...]

_STEP: Final = 1e-3
"""Relative half-width of a central difference: truncation errs by its square, rounding by 1e-13 over it."""
_UNIT_WIDTH: Final = 64
"""Widths of a model move by this on each rank for their elasticity: a tile, so that padding does not show."""
_SKIPPED: Final = ("labels", "contradictions", "price", "notes", "ai_core")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A deployment under a load. `concurrency` or `requests_per_s`, and lengths, may be arrays of one shape."""

    case: Case
    concurrency: Num | None = None
    requests_per_s: Num | None = None
    input_tokens: Num = 1024.0
    output_tokens: Num = 256.0
    usd_per_device_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Knob:
    """One figure: its name, which kind it is of, its value, and the scene with it multiplied by a factor.

    `steps` are the factors of a central difference; `is_whole`: only whole units, other factors are rounded to them.
    """

    name: str
    kind: str
    value: float
    turned: Callable[[Scene, float], Scene]
    steps: tuple[float, float] = (1.0 - _STEP, 1.0 + _STEP)
    is_whole: bool = False


def figures_in(spec: BaseModel, path: Path = (), label: str = "") -> Iterator[tuple[str, Path, float]]:
    """Yield (label, path, value) of every figure above zero in a specification.

    Items of a list are labelled by what tells them apart: dtype, level or name.
    """
    for name in type(spec).model_fields:
        if name in _SKIPPED:
            continue
        yield from _walk(getattr(spec, name), (*path, name), f"{label}.{name}" if label else name)


def _walk(node: Any, path: Path, label: str) -> Iterator[tuple[str, Path, float]]:
    if isinstance(node, Figure):
        value = getattr(node, "value", None)
        if isinstance(value, (int, float)) and value > 0:
            yield label, (*path, "value"), float(value)
    if isinstance(node, BaseModel):
        yield from figures_in(node, path, label)
    elif isinstance(node, tuple):
        for i, item in enumerate(node):
            yield from _walk(item, (*path, i), f"{label}[{_item_name(item, i)}]")


def _item_name(item: object, index: int) -> str:
    accumulate = getattr(item, "accumulate", None)
    name = next((str(v) for k in ("dtype", "level", "name") if (v := getattr(item, k, None))), str(index))
    return f"{name}/{accumulate}" if accumulate not in (None, "fp32", "int32", "fp64") else name


def with_figure(node: Any, path: Path, value: float) -> Any:
    """Return a specification with the figure at a path replaced."""
    if not path:
        return value
    head, *rest = path
    if isinstance(head, int):
        items = list(node)
        items[head] = with_figure(items[head], tuple(rest), value)
        return tuple(items)
    return node.model_copy(update={head: with_figure(getattr(node, head), tuple(rest), value)})


def _with_device(case: Case, device: Device) -> Case:
    devices = tuple(device for _ in case.setup.devices)
    return replace(case, setup=replace(case.setup, devices=devices), memory=replace(case.memory, devices=devices))


def _with_system(case: Case, system: System) -> Case:
    return replace(case, setup=replace(case.setup, system=system))


def _with_runtime(case: Case, runtime: Runtime) -> Case:
    return replace(case, setup=replace(case.setup, runtime=runtime), memory=replace(case.memory, runtime=runtime))


def _with_model(case: Case, model: Model) -> Case:
    return replace(case, setup=replace(case.setup, model=model), memory=replace(case.memory, model=model))


def _spec_knobs(
    prefix: str, kind: str, get: Callable[[Case], Any], put: Callable[[Case, Any], Case], case: Case
) -> Iterator[Knob]:
    for label, path, value in figures_in(get(case)):

        def turned(scene: Scene, factor: float, path: Path = path, value: float = value) -> Scene:
            return replace(scene, case=put(scene.case, with_figure(get(scene.case), path, value * factor)))

        yield Knob(f"{prefix}.{label.removesuffix('.value')}", kind, value, turned)


def _calibration_knobs(case: Case, used: frozenset[str]) -> Iterator[Knob]:
    """Yield the coefficients that the times depend on, each laid over the calibration for this device only."""
    device = case.setup.devices[0]
    found = case.calibration.for_device(device)
    groups: tuple[tuple[str, Mapping[str, Any]], ...] = (
        ("kernels", found.kernels),
        ("collectives", found.collectives),
    )
    named = {key for key in found.collectives if key != "any"}
    others = frozenset(key.partition(".")[2] for key in used if key.partition(".")[0] not in named)
    for group, fits in groups:
        for key, fit in fits.items():
            for field, coef in fit:
                short = field.removesuffix("_s").removesuffix("_frac")
                value = getattr(coef, "value", None)
                is_used = f"{key}.{short}" in used or (key == "any" and short in others)
                if value is None or not value > 0 or field == "scatter" or not is_used:
                    continue

                def turned(
                    scene: Scene, factor: float, group: str = group, key: str = key, field: str = field
                ) -> Scene:
                    fit = getattr(scene.case.calibration.for_device(device), group)[key]
                    coef = getattr(fit, field)
                    changed = fit.model_copy(update={field: coef.model_copy(update={"value": coef.value * factor})})
                    calibration = scene.case.calibration
                    over = Override(when=When(device=(device.name,)), **{group: {key: changed}})
                    laid = calibration.model_copy(update={"overrides": (*calibration.overrides, over)})
                    return replace(scene, case=replace(scene.case, calibration=laid))

                yield Knob(f"calibration.{key}.{short}", "calibration", float(value), turned)


def _whole(name: str, value: int, step: int, put: Callable[[Case, int], Case], *, unit: int = 1) -> Knob:
    """Return a knob of a whole number that moves by multiples of `unit`, and by `step` for its elasticity."""

    def turned(scene: Scene, factor: float) -> Scene:
        return replace(scene, case=put(scene.case, max(unit, round(value * factor / unit) * unit)))

    step = min(step, value - unit) if value > unit else unit
    return Knob(name, "model", float(value), turned, ((value - step) / value, (value + step) / value), is_whole=True)


def _model_knobs(case: Case) -> Iterator[Knob]:
    model, layout = case.setup.model, case.setup.layout

    def layers(case: Case, n: int) -> Case:
        own = case.setup.model.pattern
        return _with_model(
            case, case.setup.model.model_copy(update={"pattern": (*own[:n], *([own[-1]] * (n - len(own))))})
        )

    def each(change: Callable[[Layer], Layer]) -> Callable[[Case], Case]:
        def put(case: Case) -> Case:
            own = case.setup.model
            return _with_model(case, own.model_copy(update={"layers": tuple(map(change, own.layers))}))

        return put

    def width(name: str, part: str, kind: type[BaseModel]) -> Callable[[Case, int], Case]:
        def put(case: Case, n: int) -> Case:
            def change(layer: Layer) -> Layer:
                held = getattr(layer, part)
                if not isinstance(held, kind) or not getattr(held, name):
                    return layer
                return layer.model_copy(update={part: held.model_copy(update={name: n})})

            return each(change)(case)

        return put

    if layout.pp == 1:
        yield _whole("model.n_layers", model.n_layers, 1, layers)
    ranks = layout.tp * layout.dp
    yield _whole(
        "model.vocab_size",
        model.vocab_size,
        _UNIT_WIDTH * ranks,
        lambda case, n: _with_model(case, case.setup.model.model_copy(update={"vocab_size": n})),
        unit=ranks,
    )
    for name, part, kind in (
        ("d_ff", "ffn", DenseFfn),
        ("d_expert", "ffn", MoeFfn),
        ("top_k", "ffn", MoeFfn),
        ("d_head", "attention", SoftmaxAttention),
    ):
        parts: list[Any] = [getattr(layer, part) for layer in model.layers]
        held = next((p for p in parts if isinstance(p, kind)), None)
        if held is not None:
            step = 1 if name == "top_k" else 8 if name == "d_head" else _UNIT_WIDTH * ranks
            unit = ranks if name in ("d_ff", "d_expert") else 1
            yield _whole(f"model.{name}", int(getattr(held, name)), step, width(name, part, kind), unit=unit)


def _workload_knobs(scene: Scene) -> Iterator[Knob]:
    for name in ("concurrency", "requests_per_s", "input_tokens", "output_tokens"):
        value = getattr(scene, name)
        if value is None:
            continue

        def turned(scene: Scene, factor: float, name: str = name) -> Scene:
            return replace(scene, **{name: getattr(scene, name) * factor})

        shown = float(value) if isinstance(value, (int, float)) else float("nan")
        yield Knob(f"workload.{name}", "workload", shown, turned)


def _option_knobs(scene: Scene) -> Iterator[Knob]:
    case = scene.case
    options = case.memory.options
    utilization = options.utilization or case.setup.runtime.memory.default_utilization

    def memory(scene: Scene, factor: float) -> Scene:
        changed = scene.case.memory.with_options(utilization=min(utilization * factor, 1.0))
        return replace(scene, case=replace(scene.case, memory=changed))

    yield Knob("runtime.gpu_memory_utilization", "runtime", utilization, memory)
    budget = step_limits(case.setup.model, case.setup.runtime, options, case.setup.devices[0]).max_num_batched_tokens

    def tokens(scene: Scene, factor: float) -> Scene:
        changed = scene.case.memory.with_options(max_num_batched_tokens=max(1, round(budget * factor)))
        return replace(scene, case=replace(scene.case, memory=changed))

    step = max(1.0 / budget, _STEP)
    yield Knob("runtime.max_num_batched_tokens", "runtime", float(budget), tokens, (1 - step, 1 + step), is_whole=True)


def _price_knob(scene: Scene) -> Iterator[Knob]:
    if scene.usd_per_device_hour is None:
        return
    price = scene.usd_per_device_hour
    yield Knob(
        "price.usd_per_device_hour",
        "price",
        price,
        lambda scene, factor: replace(scene, usd_per_device_hour=price * factor),
    )


def knobs_of(scene: Scene, trees: tuple[Estimate, ...]) -> tuple[Knob, ...]:
    """Return every knob of a scene; of the calibration those that the trees depend on."""
    case = scene.case
    used = frozenset(c.key for tree in trees for node in tree.nodes() for c in node.coefficients)
    found = [*_spec_knobs("device", "hardware", lambda case: case.setup.devices[0], _with_device, case)]
    if case.setup.system is not None and case.setup.layout.n_devices > 1:
        found += _spec_knobs("system", "hardware", lambda case: case.setup.system, _with_system, case)
    found += _spec_knobs("runtime", "runtime", lambda case: case.setup.runtime, _with_runtime, case)
    return (
        *found,
        *_option_knobs(scene),
        *_calibration_knobs(case, used),
        *_model_knobs(case),
        *_workload_knobs(scene),
        *_price_knob(scene),
    )


def together(name: str, knobs: Sequence[Knob]) -> Knob:
    """Return a knob that multiplies several figures at once."""

    def turned(scene: Scene, factor: float) -> Scene:
        for knob in knobs:
            scene = knob.turned(scene, factor)
        return scene

    return Knob(name, "together", 1.0, turned)
