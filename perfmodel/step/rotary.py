"""What it costs to rotate queries and keys in fp32 from some layer on, beside 16-bit rotation everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.errors import SpecError
from perfmodel.estimate import Estimate, Num, repeated, total
from perfmodel.step.step import Engine
from perfmodel.work.kernel import Slice, Work

__all__ = ["RotaryFallback", "rotary_fallback"]

_ROPE = "rope_kv_write"
_WIDE_BYTES = 4.0


@dataclass(frozen=True, slots=True)
class RotaryFallback:
    """Time of one step's rotations: as they are, with fp32 inside of the same kernels, and with casts of their own."""

    n_layers: int
    """Layers that rotate in fp32."""
    narrow: Estimate
    fused: Estimate
    apart: Estimate

    @property
    def fused_extra_s(self) -> Num:
        """What fp32 adds where each kernel reads and writes the wider elements itself."""
        return self.fused.value - self.narrow.value

    @property
    def apart_extra_s(self) -> Num:
        """What fp32 adds where a kernel widens the inputs before and another narrows the results after."""
        return self.apart.value - self.narrow.value


def rotary_fallback(engine: Engine, slices: Sequence[Slice], *, from_layer: int) -> RotaryFallback:
    """Return the time of the rotations of one step, with fp32 from a layer on (the first is 0).

    Layers are taken as alike: the share of layers from there on falls back. Raises SpecError for a layer that the model
    does not have, and for a model that does not rotate.
    """
    n_layers = engine.setup.model.n_layers
    if not 0 <= from_layer <= n_layers:
        raise SpecError("there is no such layer", got=str(from_layer), expected=f"0 to {n_layers}")
    widening = _WIDE_BYTES / engine.setup.element_bytes
    share = (n_layers - from_layer) / n_layers
    narrow, fused, apart = [], [], []
    for stage in engine.stages:
        for section in engine.sections(stage, slices):
            for item in section.items:
                if not isinstance(item, Work) or item.name != _ROPE:
                    continue
                before = repeated(item.name, stage.kernels.time(item), section.n_times)
                wide = stage.kernels.time(item._replace(io_bytes=_io(item) * widening))
                # one cast reads narrow and writes wide elements of half the kernel's traffic, the other the reverse
                cast = item._replace(flop=0.0, io_bytes=_io(item) * (1.0 + widening), n_launches=2.0)
                kept = repeated(item.name, before, 1.0 - share)
                narrow.append(before)
                wide_all = repeated(f"{item.name}_fp32", wide, section.n_times * share)
                casts = repeated("casts", stage.kernels.time(cast), section.n_times * share)
                fused.append(total("rotation", (kept, wide_all)))
                apart.append(total("rotation", (kept, wide_all, casts)))
    if not narrow:
        raise SpecError(
            f"{engine.setup.model.title} does not rotate positions", expected="a model with rotary embedding"
        )
    return RotaryFallback(
        n_layers - from_layer,
        total("narrow", tuple(narrow)),
        total("fused", tuple(fused)),
        total("apart", tuple(apart)),
    )


def _io(item: Work) -> Num:
    return 0.0 if item.io_bytes is None else item.io_bytes
