"""Calibrated coefficients as data: what a law needs beside the datasheet, with its uncertainty and its source.

A file holds `kernels` (by class, finest name first: "matmul/fp8" falls back to "matmul"), `collectives` and `when`
entries that replace some of them for a device family or market. Fits and priors have the same form; the difference
is stated in `status`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import AfterValidator, Field

from perfmodel.errors import CalibrationError
from perfmodel.estimate import Coefficient, Num, larger, log2
from perfmodel.specs.device import Device
from perfmodel.specs.figures import Spec
from perfmodel.specs.step_scatter import StepScatter

__all__ = [
    "LARGEST_SD",
    "CalibratedDevice",
    "Calibration",
    "Coef",
    "CollectiveFit",
    "FitRecord",
    "KernelFit",
    "Override",
    "When",
    "coarser_classes",
]


LARGEST_SD: Final = 3.0
"""A relative standard deviation beyond says nothing more."""


class Coef(Spec):
    """One number: its value, its relative standard deviation (or absolute error, fitted), and where it comes from."""

    value: float
    rel_sd: Annotated[float, Field(ge=0, le=LARGEST_SD)] = 0.0
    source: str = ""
    note: str = ""


def _above_zero(coef: Coef) -> Coef:
    if coef.value <= 0:
        raise ValueError(f"a share of a nominal rate must be above 0, since it divides; got {coef.value:g}")
    return coef


Share = Annotated[Coef, AfterValidator(_above_zero)]
"""A share of a nominal rate; above 1 where silicon beats its datasheet."""


class KernelFit(Spec):
    """Coefficients of `launch + chain x depth + (flop / (compute x peak)) (+)q (bytes / (memory x bandwidth))`.

    `knee` is the exponent q of the soft maximum; without it the maximum is hard. `chain_s` is the time of one link of
    the serial chain whose length is the work's `depth`. `pad_tokens` are tokens that an attention kernel works on
    beside the asked ones, `min_rows` the least number of rows that the matrix engine works on. `cache_speedup` is how
    many times as fast as main memory the last cache feeds a kernel whose operands, just written, fit into it.
    `quantise_frac` is the share of the bandwidth that the kernel reaches which scales activations before the multiply;
    without it their bytes count as the multiply's own. `grouped_start_s` is what decode attention takes longer to start
    where query heads share KV heads: another kernel. `scatter` is the relative scatter of measured times around the
    law.
    """

    launch_s: Coef
    compute_frac: Share
    memory_frac: Share
    knee: Coef | None = None
    chain_s: Coef | None = None
    pad_tokens: Coef | None = None
    min_rows: Coef | None = None
    cache_speedup: Coef | None = None
    quantise_frac: Share | None = None
    grouped_start_s: Coef | None = None
    scatter: Coef | None = None


class CollectiveFit(Spec):
    """Coefficients of collectives: start-up beside the fabric's latency per step, and share of nominal bandwidth.

    `knee` is the exponent q < 1 of the q-norm of start-up and transfer: messages of middling size take longer than the
    sum (protocols change, pipelines fill). Without: the sum. Three forms:

    textbook (neither `hop_s` nor `one_shot_frac`): the best of all algorithms that the fabric allows.
    ring library such as NCCL (`hop_s`, the time of each step of the ring): the ring alone, in-switch addition with a
    share of its own (`switch_frac`); among n ranks the transfer takes 1 + 2 pair_excess / n times as long, since few
    peers leave channels idle.
    direct kernels of an engine (`one_shot_frac`): an all-reduce in one shot, or in two with `second_shot_s` between
    them, whichever is quicker; `peer_s` is what each further rank adds to the start-up.
    """

    start_s: Coef
    bandwidth_frac: Share
    peer_s: Coef | None = None
    hop_s: Coef | None = None
    pair_excess: Coef | None = None
    switch_frac: Share | None = None
    one_shot_frac: Share | None = None
    second_shot_s: Coef | None = None
    knee: Coef | None = None
    scatter: Coef | None = None


def coarser_classes(name: str) -> Iterator[str]:
    """Yield a kernel class and the ones that it falls back to.

    >>> list(coarser_classes("attention/decode/kv8"))
    ['attention/decode/kv8', 'attention/decode', 'attention']
    """
    parts = name.split("/")
    return ("/".join(parts[:n]) for n in range(len(parts), 0, -1))


class FitRecord(Spec):
    """How a kernel class was fitted: on what, how well, and over which range."""

    runtime: str
    n_rows: Annotated[int, Field(ge=1)]
    n_groups: Annotated[int, Field(ge=1)]
    left_out_median_frac: float
    left_out_p90_frac: float
    left_out_covered_frac: float | None = None
    """Share of the rows left out that lie in an 80 % band whose width comes from the other rows."""
    data_sha256: str
    ranges: dict[str, tuple[float, float]] = Field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    log_covariance: tuple[tuple[float, ...], ...] = ()
    """Covariance of the logarithms of the parameters, in their order."""
    remarks: tuple[str, ...] = ()


class When(Spec):
    """Which devices an override is for; an absent condition always holds."""

    device: tuple[str, ...] = ()
    family: tuple[str, ...] = ()
    market: tuple[str, ...] = ()
    vendor: tuple[str, ...] = ()

    def holds_for(self, device: Device) -> bool:
        """Tell whether every stated condition holds for the device."""
        facts = (
            (self.device, device.name),
            (self.family, device.family),
            (self.market, device.market),
            (self.vendor, device.vendor),
        )
        return all(not wanted or have in wanted for wanted, have in facts)


Ranges = dict[str, tuple[float, float]]


class Override(Spec):
    when: When
    kernels: dict[str, KernelFit] = Field(default_factory=dict)
    collectives: dict[str, CollectiveFit] = Field(default_factory=dict)
    measured_bytes: Ranges = Field(default_factory=dict)
    """Least and most bytes of a kernel class, or of the messages of a link kind, that were measured."""


class Calibration(Spec):
    """A set of coefficients: `ideal` (the datasheet), `prior` (typical of a class) or `fit` (of measured data).

    `bound` is what nothing may beat: maximum clock, reduction in the switch, whatever fits in the last cache free.
    Under `ideal` and `bound` the host costs nothing.
    """

    kind: Literal["calibration"] = "calibration"
    name: str
    status: Literal["bound", "ideal", "prior", "fit"]
    title: str = ""
    sources: dict[str, str] = Field(default_factory=dict)
    kernels: dict[str, KernelFit] = Field(default_factory=dict)
    collectives: dict[str, CollectiveFit] = Field(default_factory=dict)
    overrides: tuple[Override, ...] = ()
    step_scatter: StepScatter = StepScatter()
    """Scatter of whole steps under runtimes that were not measured."""
    extrapolation: Coef | None = None
    """Relative standard deviation of a fit for each doubling of the bytes beyond what was measured; None: none."""
    device: str = ""
    """For a fit: the device that was measured."""
    runtime: str = ""
    fits: dict[str, FitRecord] = Field(default_factory=dict)
    program_version: str = ""

    def with_fits(self, fits: Iterable[Calibration]) -> Calibration:
        """Return the calibration with fits laid over it, each for its own device only; later ones win."""
        listed = tuple(fits)
        if not listed:
            return self
        own = tuple(
            Override(
                when=When(device=(f.device,)),
                kernels=f.kernels,
                collectives=f.collectives,
                measured_bytes=f.measured_bytes,
            )
            for f in listed
        )
        sources = dict(self.sources)
        for f in listed:
            sources |= f.sources
        name = " + ".join([*(f.name for f in listed), self.name])
        changes = {"overrides": (*self.overrides, *own), "name": name, "sources": sources}
        return self.model_copy(update=changes)

    @property
    def measured_bytes(self) -> Ranges:
        """Least and most bytes that were measured of each fitted kernel class or link kind."""
        found = {name: record.ranges for name, record in self.fits.items()}
        words = ("bytes", "message_bytes")
        return {name: ranges[word] for name, ranges in found.items() for word in words if word in ranges}

    @property
    def is_physics_only(self) -> bool:
        """Whether this is a bound from the datasheet alone: no latency, no host, no start-up."""
        return self.status in ("ideal", "bound")

    def for_device(self, device: Device) -> CalibratedDevice:
        """Return the device together with the coefficients that hold for it; later overrides win."""
        kernels, collectives, origin = dict(self.kernels), dict(self.collectives), "any device"
        measured = self.measured_bytes
        for override in self.overrides:
            if override.when.holds_for(device):
                kernels |= override.kernels
                collectives |= override.collectives
                measured |= override.measured_bytes
                origin = ", ".join(v for values in override.when.model_dump().values() for v in values)
        return CalibratedDevice(device, self, origin, kernels, collectives, measured)


@dataclass(frozen=True, slots=True)
class KernelCoefficients:
    """A KernelFit made ready for the laws: coefficients with keys that say which errors are shared."""

    launch: Coefficient
    compute: Coefficient
    memory: Coefficient
    chain: Coefficient | None
    knee: float | None
    pad_tokens: float
    min_rows: float
    cache_speedup: Coefficient | None
    quantise: Coefficient | None
    grouped_start: Coefficient | None
    scatter: float
    measured_bytes: tuple[float, float] | None


class CollectiveCoefficients(NamedTuple):
    """A CollectiveFit made ready for the laws."""

    start: Coefficient
    bandwidth: Coefficient
    peer: Coefficient | None
    hop: Coefficient | None
    pair_excess_frac: float
    switch: Coefficient | None
    one_shot: Coefficient | None
    second_shot: Coefficient | None
    knee: float | None
    scatter: float
    measured_bytes: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class CalibratedDevice:
    """A device and the coefficients that its kernels are priced with."""

    device: Device
    calibration: Calibration
    origin: str
    _kernels: dict[str, KernelFit]
    _collectives: dict[str, CollectiveFit]
    _measured_bytes: Ranges = field(default_factory=dict)

    @property
    def is_fitted(self) -> bool:
        """Whether measurements of this very device lie behind some of the coefficients."""
        return self.calibration.status == "fit" or self.origin == self.device.name

    @property
    def kernels(self) -> Mapping[str, KernelFit]:
        """The fit of each kernel class that holds for this device."""
        return self._kernels

    @property
    def collectives(self) -> Mapping[str, CollectiveFit]:
        """The fit of each link kind that holds for this device."""
        return self._collectives

    def kernel(self, name: str) -> KernelCoefficients:
        """Return the coefficients for a kernel class, or of the next coarser class before a slash."""
        for key in coarser_classes(name):
            fit = self._kernels.get(key)
            if fit is not None:
                return KernelCoefficients(
                    self._named(f"{key}.launch", fit.launch_s),
                    self._named(f"{key}.compute", fit.compute_frac),
                    self._named(f"{key}.memory", fit.memory_frac),
                    self._named(f"{key}.chain", fit.chain_s) if fit.chain_s else None,
                    fit.knee.value if fit.knee else None,
                    fit.pad_tokens.value if fit.pad_tokens else 0.0,
                    fit.min_rows.value if fit.min_rows else 0.0,
                    self._named(f"{key}.cache", fit.cache_speedup) if fit.cache_speedup else None,
                    self._named(f"{key}.quantise", fit.quantise_frac) if fit.quantise_frac else None,
                    self._named(f"{key}.grouped", fit.grouped_start_s) if fit.grouped_start_s else None,
                    fit.scatter.value if fit.scatter else 0.0,
                    self._measured_bytes.get(key),
                )
        raise CalibrationError(
            f"calibration {self.calibration.name} has no coefficients for {name}", where=self.device.name
        )

    def collective(self, name: str) -> CollectiveCoefficients:
        """Return the coefficients for a link kind, or those of `any`."""
        fit = self._collectives.get(name) or self._collectives.get("any")
        if fit is None:
            raise CalibrationError(f"calibration {self.calibration.name} has no coefficients for {name} links")
        return CollectiveCoefficients(
            self._named(f"{name}.start", fit.start_s),
            self._named(f"{name}.bandwidth", fit.bandwidth_frac),
            self._named(f"{name}.peer", fit.peer_s) if fit.peer_s else None,
            self._named(f"{name}.hop", fit.hop_s) if fit.hop_s else None,
            fit.pair_excess.value if fit.pair_excess else 0.0,
            self._named(f"{name}.switch", fit.switch_frac) if fit.switch_frac else None,
            self._named(f"{name}.one_shot", fit.one_shot_frac) if fit.one_shot_frac else None,
            self._named(f"{name}.second_shot", fit.second_shot_s) if fit.second_shot_s else None,
            fit.knee.value if fit.knee else None,
            fit.scatter.value if fit.scatter else 0.0,
            self._measured_bytes.get(name),
        )

    def beyond(self, key: str, n_bytes: Num, measured: tuple[float, float]) -> Coefficient:
        """Return the error of going beyond the bytes that were measured: so much for each doubling, 0 within."""
        low, high = measured
        rule = self.calibration.extrapolation
        asked = larger(n_bytes, 1.0)
        n_doublings = larger(log2(asked / high), 0.0) + larger(log2(low / asked), 0.0)
        return Coefficient(f"{key}.extrapolation", 1.0, n_doublings * (rule.value if rule else 0.0))

    def _named(self, key: str, coef: Coef) -> Coefficient:
        return Coefficient(key, coef.value, coef.rel_sd, self.calibration.sources.get(coef.source, coef.source))
