"""Inside of a core: pipes, instructions, buffer banks, and how kernels cut a matmul into tiles for a family of devices.

Facts of a class of cores, shared by all devices of its families. The device file says how many cores there are, their
clock and their caches.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from perfmodel.specs.figures import CountFigure, Figure, FracFigure, Spec, source_keys

__all__ = ["Banks", "CoreClass", "Instruction", "Order", "Pipe", "RateShare", "Tiling"]


class Pipe(Spec):
    """A queue whose instructions start in order; its units take one instruction each."""

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    n_units: Annotated[int, Field(ge=1)] = 1
    what: str = ""


class Instruction(Spec):
    """One instruction in one dtype.

    `latency_cycles` runs from its start until a dependent may start, beside the elements; `forwarded_cycles` is the
    same where a result may be handed on before it is written back (never more). `cycles_per_element` is how long the
    pipe is busy with each element; without it an instruction takes one cycle.
    """

    op: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.]*$")]
    pipe: str
    dtype: str = ""
    latency_cycles: CountFigure
    forwarded_cycles: CountFigure | None = None
    cycles_per_element: CountFigure | None = None

    @model_validator(mode="after")
    def _forwarding_never_delays(self) -> Instruction:
        if self.forwarded_cycles is not None and self.forwarded_cycles.value > self.latency_cycles.value:
            raise ValueError(f"{self.op} hands its result on later than it writes it back")
        return self


class Banks(Spec):
    """Banks of the buffer that vector instructions work on: each serves one word of `bank_bytes` a cycle."""

    n_banks: CountFigure
    bank_bytes: CountFigure
    what: str = ""


class Order(Figure):
    """In which order output tiles are worked on.

    `group_tiles` columns (`axis: n`) or rows (`axis: m`) are kept while the tiles advance along the other axis; 0 keeps
    all of them, which is row after row for `axis: n`. With `zigzag` every other group goes the other way.
    """

    axis: Literal["m", "n"] = "n"
    group_tiles: Annotated[int, Field(ge=0)] = 0
    zigzag: bool = False


class RateShare(FracFigure):
    """A share of a nominal bandwidth that kernels reach, with the relative standard deviation that is honest for it."""

    rel_sd: Annotated[float, Field(ge=0, le=3)]


class Tiling(Spec):
    """How a matmul is cut: the output tile of one core, the order of tiles, and what the L2 gives.

    `usable_l2_frac` is the share of the L2 that one kernel's data may fill before lines are lost. `tiled_l2_frac` is
    what of the L2's bandwidth tiled kernels reach, `stream_l2_frac` what kernels reach that use each byte once.
    """

    tile_m: CountFigure
    tile_n: CountFigure
    operand_m: CountFigure
    operand_n: CountFigure
    """Rows and columns of the output that one reading of operands out of the core's own memory serves."""
    attention_rows: CountFigure
    """Query rows that an attention kernel keeps on a core while keys and values pass."""
    order: Order
    usable_l2_frac: FracFigure
    tiled_l2_frac: RateShare
    stream_l2_frac: RateShare


class CoreClass(Spec):
    """A class of cores as the catalogue holds it; `families` are those of the devices that have it."""

    kind: Literal["core"] = "core"
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]*$")]
    title: str
    families: tuple[str, ...] = ()
    sources: dict[str, str] = Field(min_length=1)
    issue_width: CountFigure | None = None
    """Instructions that one core starts in a cycle at most."""
    pipes: tuple[Pipe, ...] = ()
    instructions: tuple[Instruction, ...] = ()
    banks: Banks | None = None
    tiling: Tiling
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> CoreClass:
        missing = sorted({key for key in source_keys(self.model_dump()) if key not in self.sources})
        if missing:
            raise ValueError(f"source {', '.join(missing)} is used but not listed under `sources`")
        pipes = {pipe.name for pipe in self.pipes}
        if lost := sorted({i.pipe for i in self.instructions} - pipes):
            raise ValueError(f"pipe {', '.join(lost)} is used but not listed under `pipes`")
        return self

    def instruction(self, op: str, dtype: str) -> Instruction | None:
        """Return the instruction in a dtype, else the one for all dtypes, None where there is neither."""
        named = [i for i in self.instructions if i.op == op]
        return next((i for i in named if i.dtype == dtype), next((i for i in named if not i.dtype), None))
