"""Power: between idle and board power by utilisation. A first approximation with a wide band (`energy_rel_sd`)."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.estimate import Num, larger, smaller
from perfmodel.specs.device import Device
from perfmodel.step.step import Engine, StagePrices
from perfmodel.work.kernel import Slice, Work

__all__ = ["datasheet_s", "power_w"]


def power_w(device: Device, *, mfu_frac: Num, mbu_frac: Num, idle_power_frac: float) -> Num | None:
    """Return the mean power of one device, watt; None where the file states no board power.

    idle + (tdp - idle) x utilisation, with the larger of MFU and MBU as utilisation; idle is `idle_power_frac` of the
    board power where the file states none. Source: the linear power model of Barroso and Hoelzle; real boards lie above
    it in the middle.
    """
    if device.power.tdp is None:
        return None
    tdp = device.power.tdp.value
    idle = device.power.idle.value if device.power.idle else idle_power_frac * tdp
    return idle + (tdp - idle) * smaller(larger(mfu_frac, mbu_frac), 1.0)


def datasheet_s(engine: Engine, stage: StagePrices, slices: Sequence[Slice]) -> tuple[Num, Num]:
    """Return seconds that a stage would compute, and read memory, in one step at the rates of the datasheet.

    Each matrix kernel counts against the peak of the dtype it multiplies in. Everything that is done counts, guesses
    that are drafted and rejected too. Over the time that the step takes they are MFU and MBU.
    """
    device = stage.kernels.device.device
    computing: Num = 0.0
    reading: Num = 0.0
    for section in engine.sections(stage, slices):
        for item in section.items:
            if isinstance(item, Work):
                if item.engine == "matrix":
                    computing = computing + section.n_times * item.flop / device.peak_flop_per_s(item.dtype)
                reading = reading + section.n_times * item.n_bytes / device.dram_bytes_per_s
    return computing, reading
