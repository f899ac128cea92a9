"""Checks of what goes on inside of a core: cache lines that a layout uses, instructions issued, cycles waited."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import Field

from perfmodel.cost.issue import instruction_growth, issue_share, slowdown
from perfmodel.cost.layout import block_read
from perfmodel.specs.model import LatentAttention, SoftmaxAttention
from perfmodel.validate.audit.base import Check, Desk, MissingError, Ref
from perfmodel.validate.audit.verdict import Finding, Verdict, graded, not_testable

__all__ = ["InstructionLatency", "IssueCeiling", "IssueChange", "LineUse"]

_LINES_BYTES: Final = (32, 64, 128, 256, 512)
_ALIGNMENTS_BYTES: Final = (16, 32, 64, 128)


class LineUse(Check):
    """Share of fetched cache lines that is of use, for a tensor of a layout read block by block.

    Axes H and D are the heads of the model and the width of one; `sizes` says the others, `read` how many of an axis
    are read at a time (axes that it does not name are read whole).
    """

    kind: Literal["line_use"]
    model: str
    device: str
    layout: str
    sizes: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    read: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    element_bytes: Annotated[float, Field(gt=0)] = 2.0
    figure: Ref
    below: bool = False
    """The figure is a limit that the share lies below."""

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield the share on the device's lines, and other lines and alignments that would give the figure."""
        stated, device = desk.printed(self.figure), desk.device(self.device)
        l2 = device.level("l2")
        if l2 is None or l2.line_bytes is None:
            raise MissingError(f"the device file of {device.name} states no line size")
        line_bytes = int(l2.line_bytes.value)
        heads, width, others = self._widths(desk)
        sizes = {"H": heads, "D": width, **self.sizes}
        block = block_read(
            self.layout, sizes=sizes, read=self.read, element_bytes=self.element_bytes, line_bytes=line_bytes
        )
        found = f"{block.run_bytes} bytes in a run, {line_bytes} in a line of {device.title}"
        elsewhere = _lines_giving(
            stated.value, stated.resolution, [int(w * self.element_bytes) for w in others], below=self.below
        )
        share = block.use_frac
        yield graded(
            self.kind,
            self.figure.rpartition(".")[2],
            stated=stated.value,
            model=share,
            low=share if self.below else share - stated.resolution,
            high=1.0 if self.below else block.shared_use_frac + stated.resolution,
            least=0.0,
            most=1.0,
            inside=f"{100 * share:.3g} % of each line is of use: {found}",
            cause=f"on this device {100 * share:.3g} % ({found}); {elsewhere}",
            bound="more than all of a line",
            working=(
                f"{self.layout} with {', '.join(f'{axis} = {size}' for axis, size in sizes.items())}: {found}",
                f"{100 * share:.4g} % where each run fetches its lines",
                f"{100 * block.shared_use_frac:.4g} % where lines stay for the next run",
                elsewhere,
            ),
        )

    def _widths(self, desk: Desk) -> tuple[int, int, tuple[int, ...]]:
        """Return heads, the width of one, and all widths of this attention that a run might have."""
        model = desk.catalogue.model(self.model).model
        attention = model.layers[model.pattern[-1]].attention
        if isinstance(attention, LatentAttention):
            width = attention.d_nope + attention.d_rope
            return attention.n_heads, width, (attention.d_rope, attention.d_nope, width, attention.d_latent)
        if isinstance(attention, SoftmaxAttention):
            return attention.n_heads, attention.d_head, (attention.d_head,)
        raise MissingError(f"{model.title} has no heads of one width")


def _lines_giving(share: float, resolution: float, runs_bytes: list[int], *, below: bool) -> str:
    """Return which runs, lines and alignments would give a share, as words."""
    found = []
    for run in dict.fromkeys(runs_bytes):
        for line in _LINES_BYTES:
            for alignment in (a for a in _ALIGNMENTS_BYTES if line % a == 0 and run % a == 0):
                read = block_read(
                    ("D",), sizes={"D": run}, read={}, element_bytes=1, line_bytes=line, alignment_bytes=alignment
                )
                gap = share - read.use_frac
                if (0.0 < gap <= 5.0 * resolution) if below else abs(gap) <= resolution:
                    found.append(
                        (
                            abs(gap),
                            f"{run} bytes aligned to {alignment} on lines of {line} give {100 * read.use_frac:.3g} %",
                        )
                    )
    best = [text for _, text in sorted(found)[:2]]
    return "; ".join(best) if best else "no run of this attention gives it on lines of 32 to 512 bytes"


class IssueCeiling(Check):
    """Instructions per cycle of a core."""

    kind: Literal["issue_ceiling"]
    device: str
    figure: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield whether a core can issue so many instructions; an assumed width contradicts nothing."""
        stated, device = desk.value(self.figure), desk.device(self.device)
        core = desk.catalogue.core_of(device)
        if core.issue_width is None or device.ai_core is None:
            raise MissingError(f"no issue width of {core.title} is known")
        dispatchers = 1.0 + device.ai_core.vector_cores_per_cube_core.value
        ceiling = dispatchers * core.issue_width.value
        is_assumed = core.issue_width.source == "assumed"
        name = self.figure.rpartition(".")[2]
        origin = "assumed, no public figure" if is_assumed else core.sources[core.issue_width.source]
        how = f"{dispatchers:g} dispatchers a core, {core.issue_width.value:g} instruction a cycle each ({origin})"
        within = stated <= ceiling
        beyond = Verdict.PLAUSIBLE if is_assumed else Verdict.CONTRADICTS_PHYSICS
        yield Finding(
            check=self.kind,
            verdict=Verdict.REPRODUCED if within else beyond,
            reason=f"{'within' if within else 'above'} {ceiling:g}: {how}"
            + ("" if within else "; a figure of another kind of core, or one that counts otherwise"),
            name=name,
            stated=stated,
            model=ceiling,
            low=0.0,
            high=ceiling,
            working=(how,),
        )


class IssueChange(Check):
    """A time that grew as instructions per cycle fell: `figure` is the change of the time."""

    kind: Literal["issue_change"]
    before: Ref
    after: Ref
    figure: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield how much of the time must have been bound by issue, or how many more instructions were run."""
        longer = desk.printed(self.figure)
        before, after = desk.printed(self.before), desk.printed(self.after)
        name = self.figure.rpartition(".")[2]
        if before.value <= after.value:
            yield not_testable(self.kind, "the IPC did not fall", name=name)
            return
        most = slowdown(before_ipc=before.value, after_ipc=after.value) - 1.0
        widest = float(before.value + 0.5 * before.resolution) / (after.value - 0.5 * after.resolution) - 1.0
        share = issue_share(before_ipc=before.value, after_ipc=after.value, longer_frac=longer.value)
        growth = instruction_growth(before_ipc=before.value, after_ipc=after.value, longer_frac=longer.value)
        within = longer.value - 0.5 * longer.resolution <= widest
        yield Finding(
            check=self.kind,
            verdict=Verdict.PLAUSIBLE,
            reason=(
                f"{100 * float(share):.3g} % of the time would have to be bound by issue, which is not stated"
                if within
                else f"at most +{100 * float(most):.3g} % follows from this fall of IPC (the digits allow "
                f"+{100 * widest:.3g} %); the rest asks for {float(growth):.3g} times the instructions"
            ),
            name=name,
            stated=longer.value,
            model=float(most),
            low=0.0,
            high=widest,
            working=(
                "time = instructions / (IPC x clock): the change is at most IPC before / IPC after - 1",
                f"{before.value:g} / {after.value:g} - 1 = {100 * float(most):.4g} %",
            ),
        )


class InstructionLatency(Check):
    """Cycles after which an instruction that needs another's result may start."""

    kind: Literal["instruction_latency"]
    device: str
    ops: Annotated[tuple[str, ...], Field(min_length=1)]
    dtype: str = "fp16"
    figure: Ref

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield whether the latency is one that public sources give the instructions."""
        stated, device = desk.value(self.figure), desk.device(self.device)
        core = desk.catalogue.core_of(device)
        known = {op: i for op in self.ops if (i := core.instruction(op, self.dtype)) is not None}
        if not known:
            raise MissingError(f"no latency of {', '.join(self.ops)} on {core.title} is known")
        cycles = [i.latency_cycles.value for i in known.values()]
        low = min(i.forwarded_cycles.value if i.forwarded_cycles else i.latency_cycles.value for i in known.values())
        inside = low <= stated <= max(cycles)
        listed = ", ".join(f"{op} {i.latency_cycles.value:g}" for op, i in known.items())
        sources = {core.sources[i.latency_cycles.source] for i in known.values()}
        yield Finding(
            check=self.kind,
            verdict=Verdict.REPRODUCED if inside else Verdict.CONTRADICTS_SPECIFICATION,
            reason=f"public latencies of a dependent call in cycles: {listed}",
            name=self.figure.rpartition(".")[2],
            stated=stated,
            model=sum(cycles) / len(cycles),
            low=low,
            high=max(cycles),
            working=tuple(sorted(sources)),
        )
