"""What a launch line or a service configuration says about a deployment: only what is stated, nothing filled in."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final, Literal, get_args

from perfmodel.errors import Fault, SpecError
from perfmodel.specs.layout import Layout

__all__ = ["Deployment", "Engine", "field_fault"]

Engine = Literal["vllm", "sglang", "mindie"]

_RANKS: Final = 4096
_MANY: Final = 10**15
_COUNTS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("tp", "pp", "dp", "ep", "dcp", "moe_tp", "world_size"), _RANKS),
    **dict.fromkeys(
        (
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_prefill_tokens",
            "max_total_tokens",
            "kv_cache_memory_bytes",
            "num_gpu_blocks_override",
            "block_tokens",
            "graph_max_batch",
            "speculative_tokens",
            "npu_memory_bytes",
            "max_input_tokens",
            "max_output_tokens",
            "max_prefill_batch",
            "num_prompts",
            "max_concurrency",
            "input_tokens",
            "output_tokens",
        ),
        _MANY,
    ),
}
_TEXTS: Final = ("model", "served_model_name", "kv_cache_dtype", "quantization", "dtype", "speculative_method")
_SWITCHES: Final = ("enable_expert_parallel", "chunked_prefill", "prefix_caching", "enforce_eager", "dp_attention")
_HUB_CACHE: Final = re.compile(r"models--([^/\\]+?)--([^/\\]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The stated figures of one deployment; None means that the line says nothing about it.

    `gpu_memory_utilization` is vLLM's share of the device, or SGLang's `--mem-fraction-static`, which counts otherwise:
    `engine` says which of the two is meant. `speculative_tokens` are the tokens proposed per step along one chain.
    `request_rate` may be infinite (all requests at once). `ignored` names flags that are known and without effect on
    the model, `unknown` those that are not known at all, `notes` are sentences that a reader of the answer should see.
    Secrets in `environment` (tokens, keys) are masked when they come from a pasted line.

    >>> Deployment(tp=8, gpu_memory_utilization=0.9).tp
    8
    """

    model: str | None = None
    served_model_name: str | None = None
    engine: Engine | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int | None = None
    enable_expert_parallel: bool | None = None
    dcp: int | None = None
    moe_tp: int | None = None
    dp_attention: bool | None = None
    world_size: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_prefill_tokens: int | None = None
    max_total_tokens: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_prefill_batch: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_dtype: str | None = None
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    npu_memory_bytes: int | None = None
    swap_space_gib: float | None = None
    cpu_offload_gib: float | None = None
    quantization: str | None = None
    dtype: str | None = None
    block_tokens: int | None = None
    chunked_prefill: bool | None = None
    prefix_caching: bool | None = None
    enforce_eager: bool | None = None
    graph_max_batch: int | None = None
    speculative_tokens: int | None = None
    speculative_method: str | None = None
    num_prompts: int | None = None
    request_rate: float | None = None
    max_concurrency: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    ignored: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        faults = [fault for f in fields(self) if (fault := field_fault(f.name, getattr(self, f.name)))]
        if faults:
            raise SpecError("the deployment cannot be as stated", faults=faults)

    @property
    def stated(self) -> dict[str, object]:
        """Return the stated figures by name, without the lists and the environment."""
        lists = ("ignored", "unknown", "notes", "environment")
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in lists}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def model_names(self) -> tuple[str, ...]:
        """Return names to look the model up under, best first: as written, from a hub cache path, path tail, served.

        >>> Deployment(model="/data/DeepSeek-R1-W8A8/", served_model_name="r1").model_names
        ('/data/DeepSeek-R1-W8A8/', 'DeepSeek-R1-W8A8', 'r1')
        """
        names = [self.model] if self.model else []
        if self.model:
            cached = _HUB_CACHE.search(self.model)
            names += [f"{cached[1]}/{cached[2]}", cached[2]] if cached else []
            names += [part for part in re.split(r"[/\\]", self.model.rstrip("/\\"))[-1:] if part and not cached]
        names += [self.served_model_name] if self.served_model_name else []
        return tuple(dict.fromkeys(names))

    @property
    def n_replicas(self) -> int:
        """Return the number of whole copies beside the layout: SGLang's --dp-size without DP attention."""
        return (self.dp or 1) if self.engine == "sglang" and not self.dp_attention else 1

    def layout(self, *, moe: bool = True) -> Layout:
        """Return the parallel layout of one replica; what is not stated is 1. Raises SpecError if it cannot be.

        SGLang's DP attention takes its dp ranks out of tp; vLLM and MindIE multiply them. `moe` False leaves out ep.

        >>> Deployment(engine="sglang", tp=16, dp=16, dp_attention=True, ep=16).layout()
        Layout(tp=1, pp=1, dp=16, ep=16, dcp=1, stage_layers=())
        """
        tp, dp = self.tp or 1, self.dp or 1
        if self.engine == "sglang" and self.dp_attention:
            if tp % dp:
                raise SpecError(
                    "DP attention does not work out", where="dp", got=str(dp), expected=f"a divisor of tp = {tp}"
                )
            tp //= dp
        elif self.engine == "sglang":
            dp = 1
        ep = self.ep or 1
        if self.ep is None and self.enable_expert_parallel:
            ep = tp * dp
        elif self.ep is None and self.moe_tp:
            if (tp * dp) % self.moe_tp:
                raise SpecError(
                    "the experts cannot be cut like this",
                    where="moe_tp",
                    got=str(self.moe_tp),
                    expected=f"a divisor of tp x dp = {tp * dp}",
                )
            ep = tp * dp // self.moe_tp
        elif self.moe_tp and ep * self.moe_tp != tp * dp:
            raise SpecError(
                "the experts cannot be cut like this",
                where="moe_tp x ep",
                got=f"{self.moe_tp} x {ep}",
                expected=f"tp x dp = {tp * dp}",
            )
        return Layout(tp=tp, pp=self.pp or 1, dp=dp, ep=ep if moe else 1, dcp=self.dcp or 1)


def field_fault(name: str, value: object) -> Fault | None:
    """Return what is wrong with the value of one field of a Deployment, or None.

    >>> print(field_fault("gpu_memory_utilization", 90.0))
    gpu_memory_utilization: got 90.0, expected a fraction above 0 and at most 1. Write 0.9.
    """
    if value is None:
        return None
    if name in _COUNTS:
        high = _COUNTS[name]
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
            return Fault(name, repr(value), f"a whole number from 1 to {high}")
    elif name in _TEXTS:
        return _text_fault(name, value)
    elif name in _SWITCHES:
        return None if isinstance(value, bool) else Fault(name, repr(value), "true or false")
    elif name == "engine":
        return None if value in get_args(Engine) else Fault(name, repr(value), " or ".join(get_args(Engine)))
    elif name in ("gpu_memory_utilization", "request_rate", "swap_space_gib", "cpu_offload_gib"):
        return _number_fault(name, value)
    return None


def _text_fault(name: str, value: object) -> Fault | None:
    if not isinstance(value, str) or not value.strip() or not value.isprintable() or value.startswith("-"):
        return Fault(name, repr(value)[:80], "a name: printable, not blank, no leading dash")
    return None


def _number_fault(name: str, value: object) -> Fault | None:
    number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if name == "gpu_memory_utilization" and not 0 < number <= 1:
        cure = f"Write {number / 100:g}." if 1 < number <= 100 else ""
        return Fault(name, repr(value), "a fraction above 0 and at most 1", cure)
    if name == "request_rate" and not number > 0:
        return Fault(name, repr(value), "requests per second above 0, or inf")
    if name in ("swap_space_gib", "cpu_offload_gib") and not 0 <= number < _MANY:
        return Fault(name, repr(value), "a size in GiB, 0 or more")
    return None
