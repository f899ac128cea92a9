"""What bounds any kernel of a device: dense peaks by dtype and engine, and memory levels with their bandwidth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfmodel.specs.device import Device, MemoryLevel

__all__ = ["Ceiling", "EngineKind", "Level", "MemoryCeiling", "ceilings_of", "memories_of"]

EngineKind = Literal["matrix", "vector"]
Level = Literal["dram", "l2", "infinity_cache", "on_chip"]


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A dense peak rate of the device; `is_used` where an operator of the two steps computes in it."""

    name: str
    dtype: str
    engine: EngineKind
    flop_per_s: float
    is_used: bool


@dataclass(frozen=True, slots=True)
class MemoryCeiling:
    """A memory level with its nominal bandwidth over the whole device."""

    name: str
    level: Level
    bytes_per_s: float


def ceilings_of(device: Device, used: set[tuple[str, EngineKind]]) -> tuple[Ceiling, ...]:
    """Return the peaks that operators use and the other matrix peaks, fastest first."""
    pairs = set(used)
    if device.matrix is not None:
        pairs |= {(rate.dtype, "matrix") for rate in device.matrix.rates}
    found = (
        Ceiling(
            name=dtype if kind == "matrix" else f"{dtype} vector",
            dtype=dtype,
            engine=kind,
            flop_per_s=device.peak_flop_per_s(dtype, kind),
            is_used=(dtype, kind) in used,
        )
        for dtype, kind in pairs
    )
    return tuple(sorted(found, key=lambda c: (-c.flop_per_s, c.name)))


def memories_of(device: Device) -> tuple[MemoryCeiling, ...]:
    """Return the levels whose bandwidth is known, main memory first; per-core figures are multiplied by the cores."""
    order = ("dram", "infinity_cache", "l2", "on_chip")
    known = sorted((m for m in device.memory if m.bandwidth is not None), key=lambda m: order.index(m.level))
    return tuple(
        MemoryCeiling(_memory_name(m), m.level, m.bandwidth.value * (_n_cores(device, m) if m.per_core else 1.0))
        for m in known
        if m.bandwidth is not None
    )


def _n_cores(device: Device, level: MemoryLevel) -> float:
    holder = device.vector if device.matrix is None or "vector core" in level.kind else device.matrix
    return holder.n_cores.value


def _memory_name(level: MemoryLevel) -> str:
    usual = {"dram": "DRAM", "l2": "L2", "infinity_cache": "Infinity Cache", "on_chip": "on-chip memory"}
    named = level.kind.split(" per ")[0].split(",")[0] if level.level in ("dram", "on_chip") else ""
    return named or usual[level.level]
