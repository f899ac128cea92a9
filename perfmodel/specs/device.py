"""One accelerator: what its datasheet says, what the silicon may do, and where each figure comes from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from perfmodel.errors import SpecError
from perfmodel.specs.figures import (
    BandwidthFigure,
    CountFigure,
    Figure,
    FrequencyFigure,
    PowerFigure,
    PriceFigure,
    RateFigure,
    SizeFigure,
    Spec,
    TimeFigure,
    source_keys,
)
from perfmodel.units import rate_text

__all__ = [
    "AiCore",
    "Contradiction",
    "Device",
    "Dtype",
    "Engine",
    "Label",
    "Launch",
    "Link",
    "LinkKind",
    "MemoryLevel",
    "Rate",
]

Dtype = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp6", "fp4", "int8", "int4"]
LinkKind = Literal[
    "nvlink",
    "hccs",
    "ub",
    "xgmi",
    "ici",
    "pcie-p2p",
    "pcie-host-staged",
    "pcie",
    "roce",
    "infiniband",
    "ethernet",
    "sio",
]


class Rate(RateFigure):
    """Dense rate of an engine for one dtype; `accumulate` names the accumulator where the rate depends on it."""

    dtype: Dtype
    accumulate: Literal["fp32", "fp16", "int32", "fp64"] | None = None
    flop_per_cycle_per_core: float | None = Field(None, gt=0)
    """Dense flop (2 per multiply-add) that one core retires per cycle: cores x this x clock is checked."""
    clock_hz: FrequencyFigure | None = None
    """The clock behind this rate where it is not the device's boost clock."""


class Engine(Spec):
    """Equal cores that work side by side: SMs' tensor units, AI cubes, MMEs, or the vector units."""

    core: str
    n_cores: CountFigure
    rates: tuple[Rate, ...] = Field(min_length=1)


class MemoryLevel(Spec):
    """HBM or GDDR, L2 (or Infinity Cache), or on-chip memory (total over the device unless per_core)."""

    level: Literal["dram", "l2", "infinity_cache", "on_chip"]
    kind: str = ""
    capacity: SizeFigure | None = None
    bandwidth: BandwidthFigure | None = None
    line_bytes: CountFigure | None = None
    per_core: bool = False


class Link(Spec):
    """A way out of the device. Bandwidth is one direction, all lanes of one device together."""

    name: str
    kind: LinkKind
    n_lanes: CountFigure | None = None
    bandwidth_per_direction: BandwidthFigure
    latency: TimeFigure | None = None


class Launch(Spec):
    """What it costs to start a kernel: back to back in a stream, replayed from a graph, and on the host."""

    stream: TimeFigure | None = None
    graph: TimeFigure | None = None
    host_dispatch: TimeFigure | None = None


class Power(Spec):
    tdp: PowerFigure | None = None
    idle: PowerFigure | None = None


class Price(Spec):
    """Rent per device and hour: the range seen and a typical value."""

    low: PriceFigure | None = None
    typical: PriceFigure | None = None
    high: PriceFigure | None = None


class AiCore(Spec):
    """Inside of an Ascend AI core: buffers per core and widths per cycle."""

    cube_macs_per_cycle_fp16: CountFigure
    vector_lanes_fp16: CountFigure
    vector_cores_per_cube_core: CountFigure
    l0a: SizeFigure | None = None
    l0b: SizeFigure | None = None
    l0c: SizeFigure | None = None
    l1: SizeFigure | None = None
    unified_buffer: SizeFigure | None = None
    special_ops_per_cycle: CountFigure | None = None


class MediaUnit(Spec):
    """Fixed-function units for images: how many of a size all of them together work on in a second."""

    work: Literal["jpeg_decode", "resize"]
    images_per_s: CountFigure
    n_pixels: CountFigure
    """Pixels of the image that the rate is stated for; the rate falls as images grow."""


class Label(Spec):
    """A printed number that is easily read as something else: what it is made of, and what to use instead."""

    text: str
    means: str
    source: str


class Statement(Figure):
    """One side of a contradiction, as its source prints it."""

    says: str


class Contradiction(Spec):
    """Sources that disagree about one quantity: all sides, the value chosen, and why."""

    quantity: str
    statements: tuple[Statement, ...] = Field(min_length=2)
    chosen: str
    why: str


class Device(Spec):
    """One accelerator as the catalogue holds it.

    `family` groups devices that share priors (ampere, ada, hopper, ascend-910b, ...); `market` separates GeForce
    cards, which reach more of their nominal rate, from data-centre ones. `names` are other names for the same part.
    """

    kind: Literal["device"] = "device"
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]*$")]
    title: str
    vendor: Literal["nvidia", "huawei", "amd", "intel", "google"]
    family: str
    market: Literal["datacenter", "workstation", "geforce", "embedded", "edge"] = "datacenter"
    names: tuple[str, ...] = ()
    n_dies: int = Field(1, ge=1)
    """Dies in the package; the program sees one device per package unless the file describes a single die."""
    usual_system: str | None = None
    sources: dict[str, str] = Field(min_length=1)
    boost_clock: FrequencyFigure | None = None
    maximum_clock: FrequencyFigure | None = None
    """What the silicon may run at when cool: sets the hard bound, not the datasheet peak."""
    matrix: Engine | None = None
    vector: Engine
    memory: tuple[MemoryLevel, ...] = Field(min_length=1)
    usable_memory: SizeFigure
    """What the driver reports as total: the number that an engine multiplies with its utilisation."""
    links: tuple[Link, ...] = ()
    launch: Launch = Launch()
    power: Power = Power()
    price: Price = Price()
    ai_core: AiCore | None = None
    media: tuple[MediaUnit, ...] = ()
    labels: tuple[Label, ...] = ()
    contradictions: tuple[Contradiction, ...] = ()
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _sources_exist(self) -> Device:
        missing = sorted({key for key in source_keys(self.model_dump()) if key not in self.sources})
        if missing:
            raise ValueError(f"source {', '.join(missing)} is used but not listed under `sources`")
        if not any(level.level == "dram" and level.bandwidth and level.capacity for level in self.memory):
            raise ValueError("memory needs a `dram` level with capacity and bandwidth")
        return self

    def level(self, name: str) -> MemoryLevel | None:
        """Return the memory level of that name, or None where the device has none."""
        return next((level for level in self.memory if level.level == name and not level.per_core), None)

    @property
    def dram_bytes_per_s(self) -> float:
        """Nominal bandwidth of the main memory, bytes per second."""
        dram = self.level("dram")
        assert dram is not None  # held by the validator
        assert dram.bandwidth is not None
        return dram.bandwidth.value

    @property
    def l2_bytes(self) -> float:
        """Capacity of the L2, bytes; 0 where the file states none."""
        return self._capacity_bytes("l2")

    @property
    def last_cache_bytes(self) -> float:
        """Capacity of the last cache before the main memory, bytes; 0 where the file states none."""
        return self._capacity_bytes("infinity_cache") or self._capacity_bytes("l2")

    def _capacity_bytes(self, name: str) -> float:
        level = self.level(name)
        return level.capacity.value if level is not None and level.capacity is not None else 0.0

    @property
    def host_link(self) -> Link | None:
        """The link to the host (PCIe), None where the file states none."""
        return next((link for link in self.links if link.kind.startswith("pcie")), None)

    @property
    def clock_headroom(self) -> float:
        """Maximum clock over boost clock, at least 1: how far silicon may beat the datasheet rate."""
        if self.boost_clock is None or self.maximum_clock is None:
            return 1.0
        return max(1.0, self.maximum_clock.value / self.boost_clock.value)

    def peak_flop_per_s(self, dtype: str, engine: Literal["matrix", "vector"] = "matrix") -> float:
        """Return the dense peak for `dtype`, accumulating in fp32 (or int32) as inference engines do.

        "fp16/fp16" asks for another accumulator; where the rate does not depend on it, it is the usual one.

        Raises SpecError, naming the dtypes that the device has, where it has no such rate.
        """
        found = self._rate(dtype, engine)
        if found is None:
            holder = self.matrix if engine == "matrix" else self.vector
            have = ", ".join(f"{r.dtype} {rate_text(r.value)}" for r in (holder.rates if holder else ()))
            raise SpecError(
                f"{self.title} has no {dtype} {engine} rate",
                where=self.name,
                expected=f"one of {have or 'nothing: it has no such engine'}",
                cure="pick a dtype that the hardware has, or quantise the weights only",
            )
        return found.value

    def has_rate(self, dtype: str, engine: Literal["matrix", "vector"] = "matrix") -> bool:
        """Tell whether the device computes in `dtype` at all."""
        return self._rate(dtype, engine) is not None

    def _rate(self, dtype: str, engine: str) -> Rate | None:
        holder = self.matrix if engine == "matrix" else self.vector
        name, _, accumulate = dtype.partition("/")
        rates = [r for r in (holder.rates if holder else ()) if r.dtype == name]
        wide = [r for r in rates if r.accumulate in ("fp32", "int32", "fp64", None)]
        asked = [r for r in rates if r.accumulate == accumulate]
        return next(iter(asked or wide or rates), None)
