"""One step of a deployment: kernels, messages and host time on every pipeline stage, as one tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from perfmodel.cost.host import host_launch_time, host_time, offload_time
from perfmodel.cost.kernel import KernelPrices
from perfmodel.cost.network import NetworkPrices
from perfmodel.errors import SpecError
from perfmodel.estimate import Coefficient, Estimate, Num, above, repeated, slowest, total, uncertain
from perfmodel.specs.calibration import Calibration
from perfmodel.specs.device import Device, Link
from perfmodel.specs.setup import Setup
from perfmodel.work.graph import StageBlueprint, blueprints
from perfmodel.work.kernel import Message, Section, Slice, Work, n_seqs_of, n_tokens_of
from perfmodel.work.storage import stage_weight_bytes

__all__ = ["Engine", "StagePrices", "host_link"]


def host_link(device: Device) -> Link:
    """Return the link of a device to its host; raises SpecError where it lists none."""
    link = next((link for link in device.links if link.kind.startswith("pcie")), None)
    if link is None:
        text = f"{device.title} lists no host link, so what crosses it cannot be priced"
        raise SpecError(text, where=device.name)
    return link


@dataclass(frozen=True)
class StagePrices:
    """A pipeline stage with the prices of its device."""

    blueprint: StageBlueprint
    kernels: KernelPrices
    network: NetworkPrices
    weight_bytes: float = 0.0
    """Weights of one rank of the stage: no more than these can be offloaded (counted only where some are)."""

    def section_time(self, section: Section) -> Estimate:
        """Return the time of a section: its items one after the other, repeated."""
        items = tuple(self.item_time(item) for item in section.items)
        once = total(section.name, items) if len(items) > 1 else items[0]
        return (
            once if section.n_times == 1.0 else repeated(f"{section.n_times:g} x {section.name}", once, section.n_times)
        )

    def item_time(self, item: Work | Message) -> Estimate:
        """Return the time of one kernel or message."""
        return self.kernels.time(item) if isinstance(item, Work) else self.network.time(item)


@dataclass(frozen=True)
class Engine:
    """A setup with prices: answers how long a step takes. Build it once, ask it often, with floats or arrays."""

    setup: Setup
    calibration: Calibration

    @cached_property
    def stages(self) -> tuple[StagePrices, ...]:
        """Priced pipeline stages, in order."""
        runtime = self.setup.runtime
        result = []
        for blueprint in blueprints(self.setup):
            device = self.calibration.for_device(self.setup.device_of_stage(blueprint.index))
            weights = _stage_weight_bytes(self.setup, blueprint) if self.setup.offload_bytes else 0.0
            overlaps = device.device.family in runtime.launch_shown_families
            shown = runtime.launch_shown_frac if overlaps else 1.0
            result.append(
                StagePrices(blueprint, KernelPrices(device, shown), NetworkPrices(self.setup.system, device), weights)
            )
        return tuple(result)

    @cached_property
    def _step_errors(self) -> dict[str, tuple[Coefficient, ...]]:
        """Errors common to a whole step, by phase: what measured steps scatter beyond their kernels and host times."""
        runtime, result = self.setup.runtime, {}
        for phase in ("prefill", "decode"):
            own = getattr(runtime.step_scatter, phase)
            held, sources = (runtime, runtime.sources) if own else (self.calibration, self.calibration.sources)
            used = getattr(held.step_scatter, phase)
            source = sources.get(used.source, used.source) if used else ""
            result[phase] = held.step_scatter.coefficient(phase, owner=runtime.name, source=source)
        return result

    def step(self, name: str, slices: Sequence[Slice], *, n_microbatches: Num = 1.0) -> Estimate:
        """Return the time of one step over all stages; slices are those of one microbatch.

        With several microbatches in flight the slowest stage sets the pace: the maximum of one microbatch's way
        through all stages and of all microbatches through the slowest stage (a round trip of the pipeline).
        """
        times = tuple(self.stage_step(stage, slices) for stage in self.stages)
        if len(times) == 1:
            return times[0] if times[0].name == name else total(name, times)
        through = total("all_stages", times)
        return slowest(
            name, (through, repeated("slowest_stage_paces", slowest("slowest_stage", times), n_microbatches))
        )

    def pipelined(
        self, name: str, slices: Sequence[Slice], *, n_steps: Num, first: Sequence[Slice] | None = None
    ) -> Estimate:
        """Return the time of `n_steps` steps that follow each other through the pipeline without waiting.

        The first passes all stages, each further one adds the slowest stage: the bubble of GPipe. `slices` are those of
        a further step; where the first one is larger it is given apart, since it alone decides how the pipeline fills.
        """
        if len(self.stages) == 1 and first is None:
            return repeated(name, self.stage_step(self.stages[0], slices), n_steps)
        further = tuple(self.stage_step(stage, slices) for stage in self.stages)
        opening = further if first is None else tuple(self.stage_step(stage, first) for stage in self.stages)
        rest = repeated("further_steps", slowest("slowest_stage", further), n_steps - 1.0)
        return total(name, (total("first_step", opening), rest))

    def sections(self, stage: StagePrices, slices: Sequence[Slice]) -> tuple[Section, ...]:
        """Return what one stage does in a step, with the drafting of a speculative decode step on the last stage."""
        sections, speculation = stage.blueprint.sections(slices), self.setup.speculation
        is_decode = all(s.phase == "decode" for s in slices)
        if speculation is None or not is_decode or stage.blueprint.head is None:
            return sections
        return (*sections, stage.blueprint.draft_section(speculation.n_draft, slices))

    def stage_step(self, stage: StagePrices, slices: Sequence[Slice]) -> Estimate:
        """Return the time of one stage: device work beside host launches, then the host time nothing hides."""
        runtime = self.setup.runtime
        sections = self.sections(stage, slices)
        is_decode = all(s.phase == "decode" for s in slices)
        on_device = total("device", tuple(stage.section_time(section) for section in sections))
        if self.calibration.is_physics_only:
            return total(f"stage_{stage.blueprint.index}", (on_device, *self._offload(stage)))
        launched = self._host_launched(sections, slices, is_decode=is_decode)
        if launched is not None:
            on_device = slowest("device_beside_host", (on_device, launched))
        n_messages = sum(s.n_times * sum(_is_sent(item) for item in s.items) for s in sections)
        host = host_time(
            runtime, n_layers=float(stage.blueprint.n_layers), n_seqs=n_seqs_of(slices), n_messages=n_messages
        )
        parts = (on_device, host, *self._offload(stage))
        whole = total(f"stage_{stage.blueprint.index}", parts)
        return uncertain(whole, self._step_errors["decode" if is_decode else "prefill"])

    def _host_launched(
        self, sections: Sequence[Section], slices: Sequence[Slice], *, is_decode: bool
    ) -> Estimate | None:
        """Return the host's time to launch the kernels of a step; None where a captured graph always replays them.

        Decode steps beyond the largest captured batch are launched one by one.
        """
        runtime = self.setup.runtime
        replayed = runtime.decode_graphs if is_decode else runtime.prefill_graphs
        limit = runtime.graph_max_batch if is_decode else None
        if runtime.host_launch.value <= 0 or (replayed and limit is None):
            return None
        n_kernels: Num = sum(s.n_times * sum(_n_launches(item) for item in s.items) for s in sections)
        if replayed:
            n_kernels = n_kernels * above(n_tokens_of(slices), float(limit or 0))
        return host_launch_time(runtime, n_kernels)

    def _offload(self, stage: StagePrices) -> tuple[Estimate, ...]:
        if not self.setup.offload_bytes:
            return ()
        device = self.setup.device_of_stage(stage.blueprint.index)
        link = device.host_link
        if link is None:
            raise SpecError(
                f"{device.title} lists no host link, so offloaded weights cannot be priced", where=device.name
            )
        frac = stage.kernels.device.collective(link.kind).bandwidth
        n_bytes = min(self.setup.offload_bytes, stage.weight_bytes)
        return (offload_time(n_bytes, bytes_per_s=link.bandwidth_per_direction.value, bandwidth_frac=frac),)


def _stage_weight_bytes(setup: Setup, blueprint: StageBlueprint) -> float:
    parts = stage_weight_bytes(
        setup.model,
        setup.scheme,
        setup.layout,
        blueprint.index,
        high_bytes=setup.element_bytes,
        with_mtp=setup.speculation is not None,
    )
    return sum(parts.values())


def _n_launches(item: Work | Message) -> float:
    return item.n_launches if isinstance(item, Work) else float(item.n_ranks > 1)


def _is_sent(item: Work | Message) -> bool:
    return isinstance(item, Message) and item.n_ranks > 1
