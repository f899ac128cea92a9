"""Calibrated coefficients as data: what a law needs beside the datasheet, with its uncertainty and its source.

A file holds `kernels` (by class, finest name first: "matmul/fp8" falls back to "matmul"), `collectives` and `when`
entries that replace some of them for a device family or market. Fits and priors have the same form; the difference
is stated in `status`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from perfmodel.errors import CalibrationError
from perfmodel.estimate import Coefficient
from perfmodel.specs.device import Device
from perfmodel.specs.figures import Spec

__all__ = ["CalibratedDevice", "Calibration", "Coef", "CollectiveFit", "KernelFit", "Override", "When"]


class Coef(Spec):
    """One number: its value, its relative standard deviation (or absolute error, fitted), and where it comes from."""

    value: float
    rel_sd: Annotated[float, Field(ge=0, le=3)] = 0.0
    source: str = ""
    note: str = ""


class KernelFit(Spec):
    """Coefficients of `launch + (flop / (compute x peak)) (+)q (bytes / (memory x bandwidth))` for a kernel class.

    `knee` is the exponent q of the soft maximum; without it the maximum is hard. `min_rows` is the least number of
    rows that the matrix engine works on. `scatter` is the relative scatter of measured times around the law.
    """

    launch_s: Coef
    compute_frac: Coef
    memory_frac: Coef
    knee: Coef | None = None
    min_rows: Coef | None = None
    scatter: Coef | None = None


class CollectiveFit(Spec):
    """Coefficients of collectives: start-up beside the fabric's latency per step, and share of nominal bandwidth."""

    start_s: Coef
    bandwidth_frac: Coef
    scatter: Coef | None = None


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


class Override(Spec):
    when: When
    kernels: dict[str, KernelFit] = Field(default_factory=dict)
    collectives: dict[str, CollectiveFit] = Field(default_factory=dict)


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
    kernels: dict[str, KernelFit] = Field(min_length=1)
    collectives: dict[str, CollectiveFit] = Field(min_length=1)
    overrides: tuple[Override, ...] = ()

    @property
    def is_physics_only(self) -> bool:
        """Whether this is a bound from the datasheet alone: no latency, no host, no start-up."""
        return self.status in ("ideal", "bound")

    def for_device(self, device: Device) -> CalibratedDevice:
        """Return the device together with the coefficients that hold for it; later overrides win."""
        kernels, collectives, origin = dict(self.kernels), dict(self.collectives), "any device"
        for override in self.overrides:
            if override.when.holds_for(device):
                kernels |= override.kernels
                collectives |= override.collectives
                origin = ", ".join(v for values in override.when.model_dump().values() for v in values)
        return CalibratedDevice(device, self, origin, kernels, collectives)


@dataclass(frozen=True, slots=True)
class KernelCoefficients:
    """A KernelFit made ready for the laws: coefficients with keys that say which errors are shared."""

    launch: Coefficient
    compute: Coefficient
    memory: Coefficient
    knee: float | None
    min_rows: float
    scatter: float


@dataclass(frozen=True, slots=True)
class CalibratedDevice:
    """A device and the coefficients that its kernels are priced with."""

    device: Device
    calibration: Calibration
    origin: str
    _kernels: dict[str, KernelFit]
    _collectives: dict[str, CollectiveFit]

    def kernel(self, name: str) -> KernelCoefficients:
        """Return the coefficients for a kernel class, or of the coarser class before the slash."""
        for key in (name, name.split("/")[0]):
            fit = self._kernels.get(key)
            if fit is not None:
                return KernelCoefficients(
                    self._named(f"{key}.launch", fit.launch_s),
                    self._named(f"{key}.compute", fit.compute_frac),
                    self._named(f"{key}.memory", fit.memory_frac),
                    fit.knee.value if fit.knee else None,
                    fit.min_rows.value if fit.min_rows else 0.0,
                    fit.scatter.value if fit.scatter else 0.0,
                )
        raise CalibrationError(
            f"calibration {self.calibration.name} has no coefficients for {name}", where=self.device.name
        )

    def collective(self, name: str) -> tuple[Coefficient, Coefficient, float]:
        """Return (start-up time, bandwidth share, scatter) for a link kind, or those of `any`."""
        fit = self._collectives.get(name) or self._collectives.get("any")
        if fit is None:
            raise CalibrationError(f"calibration {self.calibration.name} has no coefficients for {name} links")
        scatter = fit.scatter.value if fit.scatter else 0.0
        start, share = self._named(f"{name}.start", fit.start_s), self._named(f"{name}.bandwidth", fit.bandwidth_frac)
        return start, share, scatter

    def _named(self, key: str, coef: Coef) -> Coefficient:
        return Coefficient(key, coef.value, coef.rel_sd, self.calibration.sources.get(coef.source, coef.source))
