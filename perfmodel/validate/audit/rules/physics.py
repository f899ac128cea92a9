"""Checks against what a device and a number format can do at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from perfmodel.units import bandwidth_text
from perfmodel.validate.audit.base import Check, Desk, MissingError, Ref, paired
from perfmodel.validate.audit.figures import figure_text
from perfmodel.validate.audit.rules.public import device_figures
from perfmodel.validate.audit.verdict import Finding, Verdict, graded
from perfmodel.work.precision import rotation_error_bound_frac, rotation_error_rms_frac, rounding_mean_frac

__all__ = ["Bandwidth", "Placement", "RotaryError"]

_MOST_INSTANCES: Final = 100_000


class Bandwidth(Check):
    """A rate at which a device is said to move bytes; with `level` from one memory, without it from any."""

    kind: Literal["bandwidth"]
    device: str
    figure: Ref
    level: Literal["dram", "l2"] | None = None

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield whether the memory can deliver so much at its highest public rate."""
        stated, device = desk.value(self.figure), desk.device(self.device)
        tops = {
            level: [value for _, value in device_figures(device, f"{level}_bytes_per_s")] for level in ("dram", "l2")
        }
        dram, l2 = (max(tops[level], default=0.0) for level in ("dram", "l2"))
        bound = {"dram": dram, "l2": l2, None: max(dram, l2)}[self.level]
        if bound <= 0.0:
            raise MissingError(f"the device file of {device.name} states no {self.level} bandwidth")
        cache = figure_text("l2_bytes", device.l2_bytes)
        yield graded(
            self.kind,
            self.figure.rpartition(".")[2],
            stated=stated,
            model=tops["dram"][0],
            low=0.0,
            high=dram,
            most=bound,
            inside=f"below the main memory's {bandwidth_text(dram)}",
            cause=f"above the main memory ({bandwidth_text(tops['dram'][0])}, at most {bandwidth_text(dram)} in any "
            f"public source): only data that stays in the {cache} L2 moves so fast",
            bound=f"above {bandwidth_text(bound)}, the most that any public source gives the "
            f"{'main memory' if self.level == 'dram' else 'L2'} of {device.title}",
            working=(
                f"main memory: {', '.join(bandwidth_text(v) for v in tops['dram'])}",
                f"L2: {', '.join(bandwidth_text(v) for v in tops['l2']) or 'not known'}",
            ),
        )


class Placement(Check):
    """Instances on a number of devices, each with its rate: what their placement must have been."""

    kind: Literal["placement"]
    n_instances: Annotated[tuple[Ref, ...], Field(min_length=2)]
    rates: Annotated[tuple[Ref, ...], Field(min_length=2)]
    n_devices: Ref

    @model_validator(mode="after")
    def _points_pair(self) -> Placement:
        paired(n_instances=self.n_instances, rates=self.rates)
        return self

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield whether rates fell while every instance could have had a device of its own."""
        counts = [desk.count(ref, most=_MOST_INSTANCES) for ref in self.n_instances]
        rates = [desk.printed(ref) for ref in self.rates]
        devices = desk.count(self.n_devices, most=_MOST_INSTANCES)
        alone = [(n, r) for n, r in zip(counts, rates, strict=True) if n <= devices]
        if len(alone) < 2:
            raise MissingError("no two of the counts could have a device for each instance")
        first, last = alone[0], alone[-1]
        fell = first[1].value - last[1].value > first[1].resolution + last[1].resolution
        lines = tuple(
            f"{n:g} instances on {devices:g} devices, evenly: at most {-(-n // devices):g} on one; rate {r.value:g}"
            for n, r in zip(counts, rates, strict=True)
        )
        loss = 1.0 - last[1].value / first[1].value
        yield Finding(
            check=self.kind,
            verdict=Verdict.PLAUSIBLE if fell else Verdict.REPRODUCED,
            reason=(
                f"{last[0]:g} instances on {devices:g} devices share nothing if spread evenly, yet the rate fell by "
                f"{100 * loss:.0f} %: possible only if several were put on one device, which is not stated"
                if fell
                else "the rate holds while each instance can have a device of its own"
            ),
            name="loss_frac",
            stated=loss,
            model=0.0,
            working=lines,
        )


class RotaryError(Check):
    """Error of rotary embedding in a number format, mean or largest, relative to the value."""

    kind: Literal["rotary_error"]
    figure: Ref
    dtype: str = "fp16"
    largest: bool = False

    def findings(self, desk: Desk) -> Iterator[Finding]:
        """Yield whether rounding in the format explains an error of this size."""
        stated = desk.printed(self.figure)
        one, rms = rounding_mean_frac(self.dtype), rotation_error_rms_frac(self.dtype)
        bound = rotation_error_bound_frac(self.dtype)
        yield graded(
            self.kind,
            self.figure.rpartition(".")[2],
            stated=stated.value,
            model=bound if self.largest else rms,
            low=one - stated.resolution,
            high=bound + stated.resolution,
            inside=f"a size that rounding to {self.dtype} explains: {100 * one:.3g} % for one rounding, "
            f"{100 * rms:.3g} % for a rotation, {100 * bound:.3g} % at most",
            cause=f"rounding to {self.dtype} gives {100 * one:.3g} % to {100 * bound:.3g} %: another format, an angle "
            f"held in {self.dtype}, or another measure of error",
            working=(
                f"one rounding to {self.dtype}: {100 * one:.4f} % on average",
                f"a rotation with exact angle: {100 * rms:.4f} % rms, {100 * bound:.4f} % at most",
                "each layer rotates anew from the position: growth with depth comes from the layer's input",
            ),
        )
