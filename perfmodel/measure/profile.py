"""Operator timings as a profiler records them, before anything is known of the model behind them."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Final

__all__ = ["OperatorTiming", "Shape", "dtype_name", "family_of", "shapes_from_text"]

Shape = tuple[int, ...]

_DTYPES: Final = {
    "float16": "fp16", "half": "fp16", "fp16": "fp16", "f16": "fp16", "c10::half": "fp16",
    "bfloat16": "bf16", "bf16": "bf16", "c10::bfloat16": "bf16",
    "float": "fp32", "float32": "fp32", "fp32": "fp32", "f32": "fp32",
    "int8": "int8", "int4": "int4", "float8_e4m3fn": "fp8", "fp8": "fp8", "hifloat8": "fp8",
    "double": "fp64", "float64": "fp64",
}  # fmt: skip
_FAMILIES: Final = (
    (
        "collective",
        re.compile(r"hcom|hccl|nccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast_", re.IGNORECASE),
    ),
    (
        "moe",
        re.compile(
            r"grouped_?mat_?mul|fused_?moe|moe_|groupedgemm|moe(gating|init|finalize|distribute)", re.IGNORECASE
        ),
    ),
    ("mla_attention", re.compile(r"mla|multi_?latent", re.IGNORECASE)),
    (
        "attention",
        re.compile(r"attention|flash|fmha|unpad_?fa|prompt_?fa|incre_?fa|fused_?infer|\bsdpa", re.IGNORECASE),
    ),
    ("gemm", re.compile(r"mat_?mul|gemm|gemv|::mm\b|addmm|linear\b|\bbmm|cutlass.*gemm|cublas", re.IGNORECASE)),
    ("norm", re.compile(r"(rms|layer)_?norm|add_?rms", re.IGNORECASE)),
    ("rope", re.compile(r"rotary|rope", re.IGNORECASE)),
    ("activation", re.compile(r"swiglu|silu|gelu|swish|relu", re.IGNORECASE)),
    ("softmax", re.compile(r"softmax", re.IGNORECASE)),
    ("sampling", re.compile(r"top_?[kp]|sampl|argmax|multinomial", re.IGNORECASE)),
    (
        "copy",
        re.compile(
            r"memcpy|memset|\bcopy|tensormove|transpose|concat|slice|gather|scatter|cast|reshape", re.IGNORECASE
        ),
    ),
)
_EMPTY: Final = ("", "n/a", "na", "none", "null")
_NO_DIGITS: Final = str.maketrans("", "", "0123456789")
"""Tools number every call: without the numbers a name is looked up once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTiming:
    """One run of one operator on a device, or the mean of `n_calls` runs where a tool sums up.

    `start_s` counts from the profiler's own zero. `wait_s` is what the operator waited before it started. `n_blocks` is
    how many cores (Ascend: Block Dim or Block Num) it was spread over. Shapes and dtypes are in the tool's order.
    `place` says where in the file it stands, for messages.
    """

    name: str
    type: str = ""
    duration_s: float
    start_s: float | None = None
    wait_s: float | None = None
    n_calls: int = 1
    device: str = ""
    stream: str = ""
    core: str = ""
    n_blocks: float | None = None
    input_shapes: tuple[Shape, ...] = ()
    output_shapes: tuple[Shape, ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    input_formats: tuple[str, ...] = ()
    step: str = ""
    place: str = ""
    counters: tuple[tuple[str, float], ...] = ()

    @property
    def family(self) -> str:
        """Kind of operator by its type or name: gemm, attention, moe, norm, collective, copy, ..., or other."""
        return family_of(f"{self.type} {self.name}".translate(_NO_DIGITS))

    @property
    def end_s(self) -> float | None:
        """When it ended on the profiler's clock."""
        return None if self.start_s is None else self.start_s + self.duration_s

    @property
    def n_input_elements(self) -> int:
        """Elements of all inputs."""
        return sum(prod(shape) for shape in self.input_shapes)

    def counter(self, name: str) -> float | None:
        """Return a hardware counter by the tool's column name, None where the tool gave none."""
        return dict(self.counters).get(name)


@lru_cache(maxsize=4096)
def family_of(words: str) -> str:
    """Return the kind of operator that a type or kernel name stands for.

    >>> family_of("MatMulV2"), family_of("hcom_allReduce__123"), family_of("RmsNorm"), family_of("Frobnicate")
    ('gemm', 'collective', 'norm', 'other')
    """
    return next((family for family, pattern in _FAMILIES if pattern.search(words)), "other")


@lru_cache(maxsize=256)
def dtype_name(word: str) -> str:
    """Return a tool's dtype in the words of the measurement table, or "" for one that it does not know.

    >>> dtype_name("DT_BF16"), dtype_name("FLOAT16"), dtype_name("c10::Half")
    ('bf16', 'fp16', 'fp16')
    """
    return _DTYPES.get(word.strip().lower().removeprefix("dt_").removeprefix("torch."), "")


@lru_cache(maxsize=4096)
def shapes_from_text(text: str) -> tuple[Shape, ...]:
    """Return shapes written as "16,4096;4096,12288" (nothing between marks = a scalar) or as "[[16, 4096], []]".

    Raises ValueError for text that is neither.

    >>> shapes_from_text('"1,256;256,256;"')
    ((1, 256), (256, 256), ())
    """
    plain = text.strip().strip('"').strip()
    if plain.lower() in _EMPTY:
        return ()
    if plain.startswith("["):
        return _nested_shapes(plain)
    return tuple(_shape(part) for part in plain.split(";"))


def _shape(part: str) -> Shape:
    words = [word.strip() for word in part.strip().strip("()[]").split(",")]
    return tuple(int(word) for word in words if word)


def _nested_shapes(text: str) -> tuple[Shape, ...]:
    try:
        found = ast.literal_eval(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(f"{text[:60]!r} is no list of shapes") from error
    return nested_shapes(found)


def nested_shapes(found: object) -> tuple[Shape, ...]:
    """Return shapes given as nested lists; what is no list of whole numbers becomes a scalar's empty shape."""
    if not isinstance(found, (list, tuple)):
        return ()
    if found and all(isinstance(size, int) for size in found):
        return (tuple(found),)
    return tuple(
        tuple(item) if isinstance(item, (list, tuple)) and all(isinstance(size, int) for size in item) else ()
        for item in found
    )
