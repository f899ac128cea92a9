"""A step through the memory hierarchy: bytes at each level, what the L2 has, and the least time to issue it.

Beside the prediction, which stays as it is calibrated: kernels that were measured had their L2. Operands are cold when
a kernel starts, since everything else that a step touches passes the L2 between two uses of a weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfmodel.cost.hierarchy import level_bytes, tiles_of
from perfmodel.cost.issue import issue_time
from perfmodel.specs.core import CoreClass
from perfmodel.specs.device import Device
from perfmodel.step.answer import Answer
from perfmodel.step.request import decode_pass, prefill_slice
from perfmodel.step.step import Engine
from perfmodel.work.kernel import Slice, Work

__all__ = ["StepLevels", "answer_levels", "step_levels"]


@dataclass(frozen=True, slots=True)
class StepLevels:
    """One step of a rank of the first stage. `cache_bytes` is the part of the L2 that counts.

    `issue_s` is the least time in which the vector cores can start the instructions of its vector kernels, each on a
    whole register's width; None where the class of cores states no issue width.
    """

    phase: Literal["prefill", "decode"]
    weight_bytes: float
    kv_bytes: float
    dram_bytes: float
    l2_bytes: float
    cache_bytes: float
    step_s: float
    issue_s: float | None

    @property
    def hit_frac(self) -> float:
        """Share of what the step asks of the L2 that it has."""
        return 1.0 - self.dram_bytes / self.l2_bytes if self.l2_bytes > 0 else 0.0

    @property
    def weights_stay(self) -> bool:
        """Whether all that a step moves fits into the L2, so that the next step finds its weights there."""
        return self.dram_bytes <= self.cache_bytes

    @property
    def kv_stays(self) -> bool:
        """Whether the cache that a step reads would fit into the L2 by itself."""
        return 0 < self.kv_bytes <= self.cache_bytes


def answer_levels(answer: Answer, core: CoreClass) -> tuple[StepLevels, ...]:
    """Return the mean prefill step and the mean decode step behind an answer."""
    engine, request = answer.case.engine, answer.request
    per_rank = -(-float(request.batch) // float(engine.setup.layout.dp))
    prefill = prefill_slice(per_rank, request.input_tokens, n_steps=request.n_prefill_steps)
    decode, _ = decode_pass(
        engine, batch=request.batch, input_tokens=request.input_tokens, output_tokens=request.output_tokens
    )
    return tuple(step_levels(engine, core, one) for one in (prefill, decode))


def step_levels(engine: Engine, core: CoreClass, one: Slice) -> StepLevels:
    """Return one step of the first stage through the hierarchy of its device."""
    stage = engine.stages[0]
    device = stage.kernels.device.device
    tiles = tiles_of(device, core)
    weights = kv = dram = l2 = vector_flop = 0.0
    for section in engine.sections(stage, (one,)):
        for item in section.items:
            if not isinstance(item, Work):
                continue
            levels = level_bytes(item, core, tiles)
            dram += section.n_times * float(levels.dram_bytes)
            l2 += section.n_times * float(levels.l2_bytes)
            weights += section.n_times * float(item.weight_bytes or 0.0)
            kv += section.n_times * float(item.kv_bytes or 0.0)
            vector_flop += section.n_times * float(item.flop) if item.engine == "vector" else 0.0
    step_s = float(engine.stage_step(stage, (one,)).value)
    return StepLevels(one.phase, weights, kv, dram, l2, tiles.cache_bytes, step_s, _issue_s(device, core, vector_flop))


def _issue_s(device: Device, core: CoreClass, vector_flop: float) -> float | None:
    """Return the least time to start vector instructions of a whole width: flop a cycle over what one of them does."""
    fp32 = next((rate for rate in device.vector.rates if rate.dtype == "fp32"), None)
    if core.issue_width is None or device.boost_clock is None or fp32 is None or not fp32.flop_per_cycle_per_core:
        return None
    if device.ai_core is None:
        return None
    time = issue_time(
        n_instructions=vector_flop / fp32.flop_per_cycle_per_core,
        mean_ipc=core.issue_width.value,
        n_cores=device.vector.n_cores.value,
        clock_hz=device.boost_clock.value,
    )
    return float(time.value)
