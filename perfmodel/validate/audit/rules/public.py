"""Checks against what is public: datasheets, package metadata, what tools measure, what hardware runs a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field

from perfmodel.errors import UnitError
from perfmodel.specs.device import Device
from perfmodel.specs.model import LatentAttention, Model
from perfmodel.units import quantity
from perfmodel.validate.audit.base import Check, Desk, MissingError, Ref
from perfmodel.validate.audit.facts import Fact, version_holds
from perfmodel.validate.audit.figures import dimension_of, figure_text
from perfmodel.validate.audit.verdict import Finding, Verdict, not_testable
from perfmodel.work.params import param_counts

__all__ = ["CacheAxes", "HasOperator", "IndexRange", "Requires", "RunsOn", "Specification", "ToolMeasures"]

_DEVICE_WORDS: Mapping[str, str] = {"dram_bytes_per_s": "memory bandwidth", "l2_bytes_per_s": "L2 bandwidth"}
"""Quantities of a device, and the words that its file uses where sources disagree about them."""


class Specification(Check):
    """A figure against the public one: `of` is a public fact, a device or a model, `quantity` which figure of it."""

    kind: Literal["spec"]
    of: str
    quantity: str
    figure: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield whether the figure is the public one, or one of those that public sources print."""
        stated = desk.printed(self.figure)
        name = self.figure.rpartition(".")[2]
        public = dict(self._public(desk))
        if not public:
            yield not_testable(
                self.kind,
                f"no public figure for the {self.quantity.replace('_', ' ')} of {self.of} is known",
                name=name,
            )
            return
        chosen = next(iter(public.values()))
        agrees = any(abs(stated.value - value) <= max(stated.resolution, 1e-9 * value) for value in public.values())
        listed = tuple(f"{source}: {figure_text(name, value)}" for source, value in public.items())
        others = ", ".join(dict.fromkeys(figure_text(name, value) for value in list(public.values())[1:]))
        yield Finding(
            check=self.kind,
            verdict=Verdict.REPRODUCED if agrees else Verdict.CONTRADICTS_SPECIFICATION,
            reason=f"public figure of {self.of}: {figure_text(name, chosen)}"
            + (f" (others print {others})" if others else ""),
            name=name,
            stated=stated.value,
            model=chosen,
            low=min(public.values()),
            high=max(public.values()),
            working=listed,
        )

    def _public(self, desk: Desk) -> Iterator[tuple[str, float]]:
        fact = desk.facts.find(self.of)
        if fact is not None:
            for found in fact.figures(self.quantity):
                yield found.source, found.value
        elif self.of in desk.catalogue.spellings("hardware"):
            yield from device_figures(desk.device(self.of), self.quantity)
        else:
            model = desk.catalogue.model(self.of).model
            value = _model_figure(model, self.quantity)
            if value is not None:
                yield f"configuration of {model.title or model.name}", float(value)


def _model_figure(model: Model, name: str) -> int | None:
    match name:
        case "n_params":
            return param_counts(model).total
        case "n_layers":
            return model.n_layers
        case "max_position_tokens":
            return model.max_position_tokens
        case _:
            return None


def device_figures(device: Device, name: str) -> Iterator[tuple[str, float]]:
    """Yield (source, value) of a quantity of a device: the chosen one first, then others that public sources print."""
    dram, l2, core = device.level("dram"), device.level("l2"), device.ai_core
    figures = {
        "dram_bytes_per_s": dram.bandwidth if dram else None,
        "dram_bytes": dram.capacity if dram else None,
        "l2_bytes_per_s": l2.bandwidth if l2 else None,
        "l2_bytes": l2.capacity if l2 else None,
        "l2_line_bytes": l2.line_bytes if l2 else None,
        "n_cores": device.matrix.n_cores if device.matrix else device.vector.n_cores,
        "vector_cores_per_core": core.vector_cores_per_cube_core if core else None,
        "clock_hz": device.boost_clock,
    }
    found = figures.get(name)
    if found is None:
        return
    yield device.sources[found.source], float(found.value)
    dimension = dimension_of(name)
    for entry in device.contradictions:
        for statement in entry.statements if dimension and entry.quantity == _DEVICE_WORDS.get(name) else ():
            try:
                other = quantity(statement.says.partition(":")[0], dimension)
            except UnitError:
                continue
            if other != found.value:
                yield f"{device.sources[statement.source]} ({statement.says})", other


class Requires(Check):
    """Versions of packages beside a software that states which ones it needs."""

    kind: Literal["requires"]
    software: str
    beside: dict[str, str] = Field(min_length=1)

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield one finding a package: whether the version is one that the software accepts, also by way of others."""
        for package, version in self.beside.items():
            found = _condition(desk, desk.facts.get(self.software), package)
            if found is None:
                yield not_testable(self.kind, f"no public condition of {self.software} on {package} is known")
                continue
            condition, path = found
            holds = version_holds(version, condition)
            yield Finding(
                check=self.kind,
                verdict=Verdict.REPRODUCED if holds else Verdict.CONTRADICTS_SPECIFICATION,
                reason=f"{package} {version} {'meets' if holds else 'fails'} {condition}: {path[-1]}",
                working=path,
            )


def _condition(desk: Desk, fact: Fact, package: str, seen: tuple[str, ...] = ()) -> tuple[str, tuple[str, ...]] | None:
    """Return the condition of a software on a package and the way there, also by way of what it pins itself."""
    direct = fact.needs.get(package)
    if direct is not None:
        return direct.version, (f"{fact.title} needs {package} {direct.version} ({direct.source})",)
    for other, need in fact.needs.items():
        pinned = desk.facts.find(f"{other}-{need.version.removeprefix('==')}") if need.version[:2] == "==" else None
        further = _condition(desk, pinned, package, (*seen, fact.name)) if pinned and pinned.name not in seen else None
        if further is not None:
            return further[0], (f"{fact.title} needs {other} {need.version} ({need.source})", *further[1])
    return None


class RunsOn(Check):
    """Software or code that is said to run on, or to have been chosen for, a device."""

    kind: Literal["runs_on"]
    software: str
    hardware: str

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield whether the device is among those that the software runs on."""
        fact, device = desk.facts.get(self.software), desk.catalogue.hardware(self.hardware).device
        where = fact.runs_on
        if where is None:
            raise MissingError(f"no public statement says what {fact.title} runs on")
        runs = device.family in where.families or device.vendor in where.vendors
        listed = ", ".join((*where.families, *where.vendors))
        yield Finding(
            check=self.kind,
            verdict=Verdict.REPRODUCED if runs else Verdict.CONTRADICTS_SPECIFICATION,
            reason=f"{fact.title} runs on {listed}" + ("" if runs else f", which {device.title} is not"),
            working=(f"source: {where.source}",),
        )


class ToolMeasures(Check):
    """Quantities that a tool is said to have measured."""

    kind: Literal["tool_measures"]
    tool: str
    quantities: Annotated[tuple[str, ...], Field(min_length=1)]

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield whether the tool reports these quantities at all."""
        fact = desk.facts.get(self.tool)
        if fact.measures is None:
            raise MissingError(f"no public statement says what {fact.title} measures")
        outside = [word for word in self.quantities if word not in fact.measures.quantities]
        measured = ", ".join(fact.measures.quantities)
        yield Finding(
            check=self.kind,
            verdict=Verdict.CONTRADICTS_SPECIFICATION if outside else Verdict.REPRODUCED,
            reason=f"{fact.title} measures {measured}" + (f", not {' or '.join(outside)}" if outside else ""),
            working=(f"source: {fact.measures.source}",),
        )


class IndexRange(Check):
    """Positions kept as whole numbers of some width, for contexts of a length."""

    kind: Literal["index_range"]
    bits: Annotated[int, Field(ge=1, le=64)]
    signed: bool = False
    model: str | None = None
    tokens: Ref | None = None

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield whether the greatest position of the stated context, or of the model's, can be written."""
        most = float(2 ** (self.bits - self.signed))
        lengths = {}
        if self.tokens is not None:
            lengths[f"the stated context ({self.tokens})"] = desk.value(self.tokens)
        if self.model is not None:
            model = desk.catalogue.model(self.model).model
            if model.max_position_tokens is not None:
                lengths[f"the context of {model.title}"] = float(model.max_position_tokens)
        if not lengths:
            raise MissingError("no context length is stated")
        for what, tokens in lengths.items():
            fits = tokens <= most
            yield Finding(
                check=self.kind,
                verdict=Verdict.REPRODUCED if fits else Verdict.CONTRADICTS_PHYSICS,
                reason=f"{self.bits} bits count {most:,.0f} positions, {what} has {tokens:,.0f}"
                + ("" if fits else ": positions wrap around"),
                name="positions",
                stated=most,
                model=tokens,
                low=tokens,
                working=(f"2^{self.bits - self.signed} = {most:,.0f}",),
            )


class CacheAxes(Check):
    """Axes of a KV cache that a layout names, against what the model's attention keeps."""

    kind: Literal["cache_axes"]
    model: str
    axes: Annotated[tuple[str, ...], Field(min_length=1)]
    head_axis: str = "H"
    separate_k_and_v: bool = False

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield whether the cache can have these axes: a latent cache has no heads, and K and V are one vector."""
        model = desk.catalogue.model(self.model).model
        attention = model.layers[model.pattern[-1]].attention
        wrong = []
        if isinstance(attention, LatentAttention):
            d_latent, n_heads = attention.d_latent, attention.n_heads
            if self.head_axis in self.axes:
                wrong.append(f"an axis over {n_heads} heads")
            if self.separate_k_and_v:
                wrong.append("K and V apart")
            kept = (
                f"one vector of {attention.kv_lora_rank} + {attention.d_rope} = {d_latent} elements a token and layer"
            )
        else:
            kept = "keys and values of each KV head"
        yield Finding(
            check=self.kind,
            verdict=Verdict.CONTRADICTS_SPECIFICATION if wrong else Verdict.REPRODUCED,
            reason=f"{model.title} caches {kept}" + (f", without {' and without '.join(wrong)}" if wrong else ""),
            working=(f"axes stated: {', '.join(self.axes)}; configuration of {model.title}",),
        )


class HasOperator(Check):
    """Operators that advice is about, in a model's graph."""

    kind: Literal["has_operator"]
    operator: str
    setup: str

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield whether a step of the set-up has an operator of that name."""
        case = desk.case(self.setup)
        answer = desk.answer(self.setup)
        names = sorted({node.name for tree in (answer.request.ttft, answer.request.tpot) for node in tree.nodes()})
        wanted = self.operator.lower()
        found = [name for name in names if wanted in name.lower()]
        model = case.setup.model
        yield Finding(
            check=self.kind,
            verdict=Verdict.REPRODUCED if found else Verdict.CONTRADICTS_SPECIFICATION,
            reason=f"{model.title} has {'operators' if found else 'no operator'} named like {self.operator}",
            working=(f"operators of a step: {', '.join(names)}",),
        )
