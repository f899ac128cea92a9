"""A catalogue that reads each file once: for searches that look the same names up a thousand times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from perfmodel.specs.calibration import Calibration
from perfmodel.specs.catalogue import Catalogue, Hardware, Kind, ModelChoice
from perfmodel.specs.device import Device
from perfmodel.specs.quantization import Scheme
from perfmodel.specs.runtime import Runtime
from perfmodel.specs.system import System

__all__ = ["KeptCatalogue"]

T = TypeVar("T")


@dataclass(frozen=True)
class KeptCatalogue(Catalogue):
    """As `Catalogue`, but what a name stands for is kept: changes of files after the first look-up are not seen."""

    _kept: dict[tuple[object, ...], Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, catalogue: Catalogue) -> KeptCatalogue:
        """Return a keeping catalogue over the same homes."""
        return cls(catalogue.homes)

    def _once(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        if key not in self._kept:
            self._kept[key] = make()
        found: T = self._kept[key]
        return found

    def paths(self, kind: Kind) -> dict[str, Path]:
        """Return canonical name -> file for one kind."""
        return self._once(("paths", kind), lambda: Catalogue.paths(self, kind))

    def spellings(self, kind: Kind) -> dict[str, str]:
        """Return every spelling with the canonical name that it stands for."""
        return self._once(("spellings", kind), lambda: Catalogue.spellings(self, kind))

    def hardware(self, name: str) -> Hardware:
        """Return what a hardware name stands for."""
        return self._once(("hardware", name), lambda: Catalogue.hardware(self, name))

    def device(self, name: str) -> Device:
        """Return a device by name."""
        return self._once(("device", name), lambda: Catalogue.device(self, name))

    def system(self, name: str) -> System:
        """Return a system by name."""
        return self._once(("system", name), lambda: Catalogue.system(self, name))

    def usual_system(self, device: Device, n_devices: int) -> System | None:
        """Return the system in which so many of this device are usually wired."""
        return self._once(("usual", device.name, n_devices), lambda: Catalogue.usual_system(self, device, n_devices))

    def runtime(self, name: str) -> Runtime:
        """Return a runtime profile by name."""
        return self._once(("runtime", name), lambda: Catalogue.runtime(self, name))

    def calibration(self, name: str) -> Calibration:
        """Return a calibration by name, or from a file path."""
        return self._once(("calibration", name), lambda: Catalogue.calibration(self, name))

    def calibration_for(self, name: str, devices: Sequence[Device], engine: str, runtime: str = "") -> Calibration:
        """Return the calibration of that name for these devices."""
        key = ("calibration_for", name, tuple(d.name for d in devices), engine, runtime)
        return self._once(key, lambda: Catalogue.calibration_for(self, name, devices, engine, runtime))

    def scheme(self, name: str) -> Scheme:
        """Return a quantisation scheme by name."""
        return self._once(("scheme", name), lambda: Catalogue.scheme(self, name))

    def model(self, reference: str) -> ModelChoice:
        """Return the model behind a name or a config.json path."""
        return self._once(("model", reference), lambda: Catalogue.model(self, reference))
