"""What the predictors of single kinds hand to the whole: values with bands for some positions of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfmodel.estimate import Z80, Estimate, Num, bound_shares, relative_sd
from perfmodel.measure.table import Table
from perfmodel.specs.calibration import Calibration
from perfmodel.specs.catalogue import Catalogue, Hardware, Kind, ModelChoice
from perfmodel.specs.device import Device
from perfmodel.specs.quantization import Scheme
from perfmodel.specs.runtime import Runtime
from perfmodel.specs.system import System
from perfmodel.specs.usual import UsualValues
from perfmodel.validate.runtimes import RuntimeMatch, runtime_match

__all__ = ["Floats", "Found", "HeldCatalogue", "Parts", "Positions", "bounds_of", "found_of", "grouped", "refused"]

Floats = NDArray[np.float64]
Positions = NDArray[np.intp]
T = TypeVar("T")


class Found(NamedTuple):
    """Predictions for the rows at `at`: values with their 80 % bands and bounds, or one reason why there are none."""

    at: Positions
    value: Floats
    low: Floats
    high: Floats
    bound: NDArray[np.object_]
    calibration: str = ""
    reason: str = ""
    remark: str = ""


def refused(at: Positions, reason: str) -> Found:
    """Return rows that cannot be predicted, with the reason in one line."""
    nothing = np.full(len(at), np.nan)
    words = np.full(len(at), "", dtype=object)
    return Found(at, nothing, nothing, nothing, words, reason="; ".join(reason.split("\n  ")))


def bounds_of(tree: Estimate, n: int) -> NDArray[np.object_]:
    """Return what limits each row most."""
    shares = bound_shares(tree)
    names = np.array([bound.value for bound in shares], dtype=object)
    table = np.stack([np.broadcast_to(np.asarray(share, dtype=np.float64), (n,)) for share in shares.values()])
    return np.asarray(names[np.argmax(table, axis=0)], dtype=object)


def found_of(at: Positions, tree: Estimate, calibration: str, remark: str = "", *, rate_of: Num | None = None) -> Found:
    """Return the rows that a tree of arrays predicts; with `rate_of` the value is that amount over the time."""
    n = len(at)
    time = np.broadcast_to(np.asarray(tree.value, dtype=np.float64), (n,))
    factor = np.broadcast_to(np.exp(Z80 * np.asarray(relative_sd(tree), dtype=np.float64)), (n,))
    value = time if rate_of is None else np.asarray(rate_of, dtype=np.float64) / time
    return Found(at, value, value / factor, value * factor, bounds_of(tree, n), calibration, "", remark)


def grouped(table: Table, at: Positions, names: tuple[str, ...]) -> Iterator[tuple[dict[str, str], Positions]]:
    """Yield the rows at `at` grouped by equal words of some columns (numbers as text, "" where not stated)."""
    code = np.zeros(len(at), dtype=np.int64)
    levels: list[NDArray[np.object_]] = []
    for name in names:
        column = table[name][at]
        if column.dtype != object:
            column = np.nan_to_num(column.astype(np.float64), nan=-1.0)
        words, codes = np.unique(column, return_inverse=True)
        levels.append(words)
        code = code * len(words) + codes.reshape(-1)
    order = np.argsort(code, kind="stable")
    cuts = np.flatnonzero(np.diff(code[order])) + 1
    for rows in np.split(order, cuts) if len(at) else []:
        cells = {name: table[name][at[rows[0]]] for name in names}
        yield {n: c if isinstance(c, str) else "" if c != c else f"{c:.12g}" for n, c in cells.items()}, at[rows]


class HeldCatalogue(Catalogue):
    """A catalogue that reads each file once: a table asks for the same few names a thousand times."""

    def __init__(
        self,
        homes: tuple[Path, ...],
        runtimes: Mapping[str, Runtime] | None = None,
        adjusted: Callable[[Calibration], Calibration] | None = None,
        *,
        shared: HeldCatalogue | None = None,
    ) -> None:
        """Take the homes, runtimes that stand in for those of the files, and what is changed in each calibration.

        What `shared` has read is taken from there, and what is read here goes there, but for runtimes and calibrations.
        """
        super().__init__(homes)
        object.__setattr__(self, "_adjusted", adjusted)
        object.__setattr__(self, "_runtimes", dict(runtimes or {}))
        object.__setattr__(self, "_held", {("runtime", name): runtime for name, runtime in (runtimes or {}).items()})
        object.__setattr__(self, "_shared", shared)

    @classmethod
    def over(
        cls, catalogue: Catalogue, runtimes: Mapping[str, Runtime], adjusted: Callable[[Calibration], Calibration]
    ) -> HeldCatalogue:
        """Return a catalogue with further runtimes and a further change of each calibration, after those it has."""
        if not isinstance(catalogue, HeldCatalogue):
            return cls(catalogue.homes, runtimes, adjusted)
        before: Callable[[Calibration], Calibration] | None = catalogue._adjusted  # type: ignore[attr-defined]
        held: Mapping[str, Runtime] = catalogue._runtimes  # type: ignore[attr-defined]
        both = adjusted if before is None else lambda found: adjusted(before(found))
        return cls(catalogue.homes, {**held, **runtimes}, both)

    def _once(self, key: tuple[Any, ...], read: Callable[[], T]) -> T:
        shared: HeldCatalogue | None = self._shared  # type: ignore[attr-defined]
        if shared is not None and key not in self._held and self._is_common(key):  # type: ignore[attr-defined]
            return shared._once(key, read)
        held: dict[tuple[Any, ...], Any] = self._held  # type: ignore[attr-defined]
        if key not in held:
            held[key] = read()
        result: T = held[key]
        return result

    def _is_common(self, key: tuple[Any, ...]) -> bool:
        """Tell whether an entry is the same whatever the runtimes and adjustments."""
        return key[0] != "calibration_for" or self._adjusted is None  # type: ignore[attr-defined]

    def paths(self, kind: Kind) -> dict[str, Path]:  # noqa: D102
        return self._once(("paths", kind), lambda: super(HeldCatalogue, self).paths(kind))

    def spellings(self, kind: Kind) -> dict[str, str]:  # noqa: D102
        return self._once(("spellings", kind), lambda: super(HeldCatalogue, self).spellings(kind))

    def hardware(self, name: str) -> Hardware:  # noqa: D102
        return self._once(("hardware", name), lambda: super(HeldCatalogue, self).hardware(name))

    def device(self, name: str) -> Device:  # noqa: D102
        return self._once(("device", name), lambda: super(HeldCatalogue, self).device(name))

    def system(self, name: str) -> System:  # noqa: D102
        return self._once(("system", name), lambda: super(HeldCatalogue, self).system(name))

    def runtime(self, name: str) -> Runtime:  # noqa: D102
        return self._once(("runtime", name), lambda: super(HeldCatalogue, self).runtime(name))

    def scheme(self, name: str) -> Scheme:  # noqa: D102
        return self._once(("scheme", name), lambda: super(HeldCatalogue, self).scheme(name))

    def usual_values(self) -> UsualValues:  # noqa: D102
        return self._once(("usual_values",), super().usual_values)

    def model(self, reference: str) -> ModelChoice:  # noqa: D102
        return self._once(("model", reference), lambda: super(HeldCatalogue, self).model(reference))

    def calibration(self, name: str) -> Calibration:  # noqa: D102
        return self._once(("calibration", name), lambda: super(HeldCatalogue, self).calibration(name))

    def calibration_for(  # noqa: D102
        self, name: str, devices: Sequence[Device], engine: str, runtime: str = ""
    ) -> Calibration:
        key = ("calibration_for", name, tuple(device.name for device in devices), engine, runtime)
        adjusted: Callable[[Calibration], Calibration] | None = self._adjusted  # type: ignore[attr-defined]

        def read() -> Calibration:
            found = super(HeldCatalogue, self).calibration_for(name, devices, engine, runtime)
            return found if adjusted is None else adjusted(found)

        return self._once(key, read)


class Parts:
    """What a table is predicted from: the catalogue, each file read once, and the calibration that is asked for."""

    def __init__(self, catalogue: Catalogue, calibration: str = "auto") -> None:
        self.catalogue = catalogue if isinstance(catalogue, HeldCatalogue) else HeldCatalogue(catalogue.homes)
        self.calibration = calibration
        self._runtimes: dict[str, RuntimeMatch] = {}

    def runtime(self, name: str) -> RuntimeMatch:
        """Return the profile for a runtime name, looked up once."""
        if name not in self._runtimes:
            self._runtimes[name] = runtime_match(self.catalogue, name)
        return self._runtimes[name]

    def engine(self, runtime: str) -> str:
        """Return the engine word of a runtime name, "kernel" where no profile stands for it."""
        match = self.runtime(runtime)
        return self.catalogue.runtime(match.name).engine if match.name else "kernel"

    def coefficients(self, device: Device, engine: str) -> Calibration:
        """Return the calibration for a device under an engine."""
        return self.catalogue.calibration_for(self.calibration, (device,), engine)
