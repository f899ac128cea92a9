"""Whether a stated rate follows from cores, width and clock."""

from __future__ import annotations

from typing import Final

from perfmodel.errors import Fault
from perfmodel.specs.device import Device
from perfmodel.units import GB, rate_text

__all__ = ["arithmetic_faults"]

TOLERANCE: Final = 0.01
"""Datasheets round to three digits; a larger difference is another clock, or a label that adds up other things."""


def arithmetic_faults(device: Device) -> list[Fault]:
    """Return every rate that differs from cores x flop per cycle x clock by more than 1 %."""
    faults = []
    for name, engine in (("matrix", device.matrix), ("vector", device.vector)):
        for rate in engine.rates if engine else ():
            clock = rate.clock_hz or device.boost_clock
            if engine is None or rate.flop_per_cycle_per_core is None or clock is None:
                continue
            follows = engine.n_cores.value * rate.flop_per_cycle_per_core * clock.value
            if abs(follows / rate.value - 1.0) > TOLERANCE:
                faults.append(
                    Fault(
                        f"{name} {rate.dtype}",
                        rate_text(rate.value),
                        f"{engine.n_cores.value:g} cores x {rate.flop_per_cycle_per_core:g} flop x "
                        f"{clock.value / GB:.4g} GHz = {rate_text(follows)}",
                        "State the clock behind the rate as `clock_hz`, or correct the rate.",
                    )
                )
    return faults
