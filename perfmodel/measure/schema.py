"""The measurement table as data: its columns, its kinds, and what each kind must state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

__all__ = [
    "ALWAYS",
    "COLUMNS",
    "DTYPES",
    "GRADES",
    "KINDS",
    "MAY_BE_ZERO",
    "STATUSES",
    "USABLE",
    "Cell",
    "Column",
    "KindRule",
    "metric_unit",
]

Cell = Literal["text", "number", "count"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: the type of its cells, the unit of a number, the least and the largest value that it may hold."""

    cell: Cell
    unit: str = ""
    least: float = 0.0
    may_be_infinite: bool = False
    most: float = 1e18
    """Beyond it products of counts overflow, and nothing that was measured is so large."""


_TEXTS_BEFORE = ("id", "kind", "device")
_SIZES = ("tp", "pp", "ep", "dp")
_TOKENS = ("input_tokens", "output_tokens", "context_tokens", "query_tokens")
_SHAPE = ("m", "n", "k", "n_heads", "n_kv_heads", "head_dim", "hidden", "intermediate", "n_experts", "top_k")


def _columns() -> dict[str, Column]:
    text, count, number = Column("text"), Column("count", "1", 1.0, most=1e9), Column("number", "1")
    size = Column("number", "1", most=1e12)
    return {
        **dict.fromkeys(_TEXTS_BEFORE, text),
        "n_devices": count,
        **dict.fromkeys(("link", "model", "runtime", "compute_dtype", "quantization", "kv_dtype"), text),
        **dict.fromkeys(_SIZES, count),
        "batch": Column("number", "1", may_be_infinite=True, most=1e12),
        **dict.fromkeys(_TOKENS, Column("number", "token", most=1e12)),
        "request_rate_per_s": Column("number", "1/s", may_be_infinite=True),
        **dict.fromkeys(_SHAPE, size),
        "message_bytes": Column("number", "byte"),
        "n_instances": number,
        "layer": number,
        "variant": text,
        "op": text,
        "metric": text,
        "value": number,
        "stderr": number,
        "n_repeats": Column("count", "1"),
        **dict.fromkeys(("status", "grade", "source", "note"), text),
    }


COLUMNS: Final[Mapping[str, Column]] = MappingProxyType(_columns())
"""Every column in the order in which a table is written."""

ALWAYS: Final = ("id", "kind", "device", "runtime", "metric", "value", "status", "source")
"""Columns that every row fills."""

MAY_BE_ZERO: Final = ("context_tokens", "n_kv_heads")
"""Required counts of which none is a case of its own: an empty cache, and as many key heads as query heads."""

STATUSES: Final = ("ok", "inferred", "suspect", "invalid", "synthetic")
USABLE: Final = ("ok", "inferred")
"""Statuses of rows that a fit takes unless it is told otherwise."""

GRADES: Final = ("A", "B", "C", "D")
DTYPES: Final = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "int4", "fp6", "fp4")


@dataclass(frozen=True, slots=True)
class KindRule:
    """What a kind measures: metric -> unit, and the columns that it needs.

    `wanted` holds groups of columns of which one must be filled. A row that lacks one is a figure that can be shown,
    and not one that can be compared with a prediction: published tables do not always state the load.
    """

    metrics: Mapping[str, str]
    required: tuple[str, ...]
    wanted: tuple[tuple[str, ...], ...] = ()
    may_be_zero: bool = False


_TIME = {"time_s": "s"}
_SERVE = {
    "ttft_s": "s",
    "tpot_s": "s",
    "itl_s": "s",
    "e2e_s": "s",
    "output_tokens_per_s": "token/s",
    "requests_per_s": "1/s",
}

KINDS: Final[Mapping[str, KindRule]] = MappingProxyType(
    {
        "gemm": KindRule(_TIME, ("m", "n", "k", "compute_dtype")),
        "attention": KindRule(
            _TIME, ("batch", "query_tokens", "context_tokens", "n_heads", "n_kv_heads", "head_dim")
        ),
        "mla_attention": KindRule(_TIME, ("batch", "query_tokens", "context_tokens", "n_heads")),
        "moe_ffn": KindRule(_TIME, ("query_tokens", "hidden", "intermediate", "n_experts", "top_k")),
        "elementwise": KindRule(_TIME, ("op", "query_tokens", "hidden")),
        "collective": KindRule(_TIME, ("op", "n_devices", "message_bytes")),
        "bandwidth": KindRule({"bytes_per_s": "byte/s"}, ("op",)),
        "prefill_step": KindRule(_TIME, ("model", "batch", "input_tokens")),
        "decode_step": KindRule(_TIME, ("model", "batch", "context_tokens")),
        "generate": KindRule(
            {"time_s": "s", "output_tokens_per_s": "token/s"}, ("model", "batch", "input_tokens", "output_tokens")
        ),
        "serve": KindRule(
            _SERVE, ("model",), (("batch", "request_rate_per_s"), ("input_tokens",), ("output_tokens",))
        ),
        "memory": KindRule(
            {"bytes": "byte", "kv_tokens": "token", "kv_blocks": "1"}, ("model", "op"), may_be_zero=True
        ),
        "counter": KindRule({"1": "1"}, ("op",), may_be_zero=True),
        "quality": KindRule(
            {"perplexity": "1", "accuracy_frac": "1", "l2_error": "1"}, ("model", "quantization"), may_be_zero=True
        ),
    }
)  # fmt: skip
"""Kinds of measurement with their rules."""


def metric_unit(kind: str, metric: str) -> str:
    """Return the unit of a metric of a kind.

    >>> metric_unit("serve", "ttft_s")
    's'
    """
    return KINDS[kind].metrics[metric]
