"""How far operators are from what the device could do: measured time beside the roofline, the hard bound, a prediction.

Flop and bytes come from shapes and dtypes as the profiler states them: every input is read once, every output written
once. Operators without shapes, or whose shapes do not say what was computed (attention, look-ups), are counted apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, NamedTuple

from perfmodel.cost.kernel import KernelPrices
from perfmodel.errors import CalibrationError, SpecError
from perfmodel.estimate import Bound
from perfmodel.measure.importers.operators import gemm_size
from perfmodel.measure.profile import OperatorTiming, Shape
from perfmodel.measure.profiling.profile_file import Profile
from perfmodel.measure.profiling.shares import type_of
from perfmodel.work.kernel import Work

__all__ = ["GapPrices", "RooflineGap", "RooflineGaps", "is_elementwise", "operator_counts", "roofline_gaps"]

_BYTES: Final = {
    "fp64": 8.0, "fp32": 4.0, "int32": 4.0, "int64": 8.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0,
    "uint8": 1.0, "bool": 1.0, "int4": 0.5,
}  # fmt: skip
_NAMES: Final = {"DT_INT32": "int32", "DT_INT64": "int64", "DT_BOOL": "bool", "DT_UINT8": "uint8"}
_CLASSES: Final = {"fp16": "16bit", "bf16": "16bit", "fp32": "fp32", "int8": "int8", "fp8": "fp8", "int4": "int4"}
_ELEMENTWISE: Final = (
    "add", "sub", "mul", "div", "realdiv", "muls", "adds", "cast", "exp", "log", "pow", "sqrt", "rsqrt", "neg", "abs",
    "sigmoid", "tanh", "relu", "gelu", "silu", "swish", "swiglu", "maximum", "minimum", "masked", "maskedfill", "fill",
    "softmax", "rmsnorm", "layernorm", "addrmsnorm", "rotary", "rope", "transpose", "transdata", "tensormove", "copy",
    "reducemean", "reducesum", "square", "select", "where", "clamp", "clip", "biasadd", "scale",
)  # fmt: skip


class RooflineGap(NamedTuple):
    """Equal operators: mean time beside what the device could do at best and what the calibration predicts.

    `bound_s` is the datasheet roofline (nominal peak and bandwidth), `hard_bound_s` what nothing may beat (maximum
    clock, last cache). `gap_s` is what all calls took beyond the roofline: 0 where a cache made them quicker.
    """

    type: str
    shapes: str
    dtype: str
    n_calls: int
    mean_s: float
    flop: float
    n_bytes: float
    bound_s: float
    hard_bound_s: float
    predicted_s: float
    bound: Bound

    @property
    def roof_frac(self) -> float:
        """Roofline over measured time: 1 is at the roof."""
        return self.bound_s / self.mean_s

    @property
    def beats_hard_bound(self) -> bool:
        """Whether the time is below what nothing may beat: then shapes or times of the profile are wrong."""
        return self.mean_s < self.hard_bound_s * (1 - 1e-9)

    @property
    def gap_s(self) -> float:
        """Time of all calls beyond the roofline."""
        return self.n_calls * max(0.0, self.mean_s - self.bound_s)


@dataclass(frozen=True, slots=True)
class RooflineGaps:
    """Gaps by shape, the largest first, and what had no shapes to tell."""

    gaps: tuple[RooflineGap, ...]
    n_untestable: int
    untestable_s: float


@dataclass(frozen=True, slots=True)
class GapPrices:
    """Prices of one device: by the datasheet, by what nothing may beat, and by its calibration."""

    ideal: KernelPrices
    hard_bound: KernelPrices
    predicted: KernelPrices


def is_elementwise(operator: OperatorTiming) -> bool:
    """Tell whether an operator works on every element of its inputs, and on nothing else."""
    plain = type_of(operator).lower().replace("_", "")
    if operator.family in ("gemm", "attention", "mla_attention", "moe", "collective", "sampling"):
        return False
    return any(plain.startswith(word) or plain.split("::")[-1].startswith(word) for word in _ELEMENTWISE)


def _sizes(shapes: Sequence[Shape], dtypes: Sequence[str]) -> float | None:
    """Return the bytes of tensors, None where a dtype is missing or not known."""
    names = [_NAMES.get(word, word) for word in dtypes]
    if not shapes or len(names) < len(shapes) or any(name not in _BYTES for name in names[: len(shapes)]):
        return None
    return sum(prod(shape) * _BYTES[name] for shape, name in zip(shapes, names, strict=False))


def operator_counts(operator: OperatorTiming) -> Work | None:
    """Return the work of a matmul or an elementwise operator from its shapes, None where they do not tell."""
    read = _sizes(operator.input_shapes, operator.input_dtypes)
    if read is None or read <= 0.0:
        return None
    written = _sizes(operator.output_shapes, operator.output_dtypes)
    if operator.family == "gemm":
        return _matmul(operator, written)
    if not is_elementwise(operator) or written is None:
        return None
    n_elements = max(float(operator.n_input_elements), float(sum(prod(shape) for shape in operator.output_shapes)))
    return Work("elementwise", "elementwise", "fp32", flop=n_elements, io_bytes=read + written, engine="vector")


def _matmul(operator: OperatorTiming, written: float | None) -> Work | None:
    size, dtype = gemm_size(operator.input_shapes, operator.output_shapes), operator.input_dtypes[0]
    if size is None or dtype not in _CLASSES or 0 in size:
        return None
    batch, m, n, k = (float(value) for value in size)
    first, second = (_BYTES[name] for name in operator.input_dtypes[:2])
    out = batch * m * n * min(first, 2.0) if written is None else written
    n_second = batch if len(operator.input_shapes[1]) == len(operator.input_shapes[0]) > 2 else 1.0
    return Work(
        "matmul",
        f"matmul/{_CLASSES[dtype]}",
        dtype,
        flop=2.0 * batch * m * n * k,
        weight_bytes=n_second * n * k * second,
        io_bytes=batch * m * k * first + out,
        rows=batch * m / n_second,
        depth=k,
    )


def roofline_gaps(profile: Profile, prices: GapPrices) -> RooflineGaps:
    """Return the gaps of a profile's operators on the device that `prices` are of."""
    groups: dict[tuple[object, ...], list[OperatorTiming]] = {}
    for o in profile.operators:
        key = (type_of(o), o.input_shapes, o.output_shapes, o.input_dtypes, o.output_dtypes)
        groups.setdefault(key, []).append(o)
    found, n_rest, rest_s = [], 0, 0.0
    for group in groups.values():
        gap = _gap(group, prices)
        if gap is None:
            n_rest, rest_s = (
                n_rest + sum(o.n_calls for o in group),
                rest_s + sum(o.duration_s * o.n_calls for o in group),
            )
        else:
            found.append(gap)
    return RooflineGaps(tuple(sorted(found, key=lambda gap: -gap.gap_s)), n_rest, rest_s)


def _gap(group: Sequence[OperatorTiming], prices: GapPrices) -> RooflineGap | None:
    first, n_calls = group[0], sum(o.n_calls for o in group)
    mean = sum(o.duration_s * o.n_calls for o in group) / n_calls
    work = operator_counts(first)
    if work is None or mean <= 0.0:
        return None
    try:
        ideal, hard, predicted = (one.time(work) for one in (prices.ideal, prices.hard_bound, prices.predicted))
    except (CalibrationError, SpecError):
        return None  # a dtype that the device does not compute in
    compute = float(ideal.find("compute").value)
    return RooflineGap(
        type=type_of(first),
        shapes=" x ".join(",".join(map(str, shape)) or "scalar" for shape in first.input_shapes),
        dtype=work.dtype,
        n_calls=n_calls,
        mean_s=mean,
        flop=float(work.flop),
        n_bytes=float(work.n_bytes),
        bound_s=float(ideal.value),
        hard_bound_s=float(hard.value),
        predicted_s=float(predicted.value),
        bound=Bound.COMPUTE if compute >= float(ideal.value) * (1 - 1e-9) else Bound.ACTIVATION_IO,
    )
