"""Memory lines of an engine's start-up log: vLLM (old and new engine), vllm-ascend, SGLang.

All three divide by 2**30 and print GiB or GB: both are read as GiB. Each rank logs for itself; of several ranks the
fullest one counts for weights and the poorest one for the cache, since it limits all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final

from perfmodel.errors import MeasurementError
from perfmodel.measure.importers.base import Context, Imported, named_rows
from perfmodel.measure.importers.reading import number_of
from perfmodel.measure.importers.serving import model_and_scheme
from perfmodel.measure.row import Row
from perfmodel.units import GIB

__all__ = ["parse"]

_N: Final = r"(-?[\d,]+(?:\.\d+)?(?:e[+-]?\d+)?)"
_G: Final = rf"{_N}\s*Gi?B"

Choice = Callable[[list[float]], float]

_LINES: Final[tuple[tuple[str, str, float, Choice], ...]] = (
    ("weights_bytes", rf"(?:Loading model weights|Model loading) took {_G}", GIB, max),
    ("weights_bytes", rf"[Mm]odel weights takes? {_G}", GIB, max),
    ("weights_bytes", rf"Load weight end\..*?mem usage={_G}", GIB, max),
    ("total_memory_bytes", rf"total_gpu_memory \({_G}\)", GIB, min),
    ("total_memory_bytes", rf"total_gpu_memory={_G}", GIB, min),
    ("total_memory_bytes", rf"Available memory: \d+, total memory: {_N}", 1.0, min),
    ("budget_bytes", rf"gpu_memory_utilization \([\d.]+\) = {_G}", GIB, min),
    ("gpu_memory_utilization", rf"gpu_memory_utilization(?: \(|[=:]\s*|'?: ){_N}", 1.0, max),
    ("gpu_memory_utilization", rf"mem_fraction_static[=:]\s*{_N}", 1.0, max),
    ("peak_torch_bytes", rf"peak_torch_memory={_G}", GIB, max),
    ("non_torch_bytes", rf"non_torch_memory(?:=| takes ){_G}", GIB, max),
    ("activation_peak_bytes", rf"activation peak memory takes {_G}", GIB, max),
    ("available_kv_bytes", rf"Available KV cache memory: {_G}", GIB, min),
    ("available_kv_bytes", rf"reserved for KV Cache is {_G}", GIB, min),
    ("available_kv_bytes", rf"kv_cache_size={_G}", GIB, min),
    ("available_kv_bytes", rf"Available memory: {_N}, total memory: \d+", 1.0, min),
    ("kv_blocks", rf"# (?:GPU|cuda|NPU|npu|device) blocks: {_N}", 1.0, min),
    ("n_cpu_blocks", rf"# CPU blocks: {_N}", 1.0, min),
    ("kv_tokens", rf"KV cache size: {_N} tokens", 1.0, min),
    ("kv_tokens", rf"KV Cache is allocated\..*?#tokens: {_N}", 1.0, min),
    ("kv_tokens", rf"max_total_num_tokens={_N}", 1.0, min),
    ("max_concurrency", rf"Maximum concurrency for [\d,]+ tokens per request: {_N}\s*[x×]", 1.0, min),
    ("concurrency_tokens", rf"Maximum concurrency for {_N} tokens per request", 1.0, min),
    ("graph_bytes", rf"Graph capturing finished in .*?took {_G}", GIB, max),
    ("graph_bytes", rf"Capture \w+ graph end\..*?mem usage={_G}", GIB, max),
    ("max_running_requests", rf"max_running_requests={_N}", 1.0, min),
    ("max_model_len", rf"(?:max_seq_len|context_len|max_model_len)'?[=:]\s*{_N}", 1.0, max),
    ("tp", rf"(?:tensor_parallel_size|tp_size)'?[=:]\s*{_N}", 1.0, max),
    ("pp", rf"(?:pipeline_parallel_size|pp_size)'?[=:]\s*{_N}", 1.0, max),
    ("dp", rf"(?:data_parallel_size|dp_size)'?[=:]\s*{_N}", 1.0, max),
    ("ep", rf"(?:ep_size)'?[=:]\s*{_N}", 1.0, max),
    ("block_tokens", rf"\b(?:block_size|page_size)'?[=:]\s*{_N}", 1.0, max),
)  # fmt: skip
_PATTERNS: Final = tuple((name, re.compile(pattern), scale, choice) for name, pattern, scale, choice in _LINES)
_WORDS: Final = (
    ("model", re.compile(r"(?:with config: model=|model_path=|'model': )'([^']+)'")),
    ("version", re.compile(r"(?:LLM engine \(v|vLLM API server version |sglang version[: ]+)([\w.+-]+)")),
    ("compute_dtype", re.compile(r"\bdtype=torch\.(\w+)")),
    ("quantization", re.compile(r"\bquantization='?(\w[\w-]*)'?")),
    ("kv_dtype", re.compile(r"kv_cache_dtype='?(\w+)'?")),
    ("type", re.compile(r"Load weight end\..*?type=(\w+)")),
)
_KV_SIZES: Final = re.compile(rf"#tokens: [\d,]+, (?:K size: {_G}, V size: {_G}|KV size: {_G})")
_DTYPES: Final = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32"}


def _numbers(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, pattern, scale, choice in _PATTERNS:
        numbers = [value * scale for word in pattern.findall(text) if (value := number_of(word)) is not None]
        values = [value for value in numbers if math.isfinite(value)]
        if values and name not in found:
            found[name] = choice(values)
    sizes = [sum(number_of(part) or 0.0 for part in match if part) * GIB for match in _KV_SIZES.findall(text)]
    if sizes and "available_kv_bytes" not in found:
        found["available_kv_bytes"] = min(sizes)
    return found


def _words(text: str) -> dict[str, str]:
    found = {name: match[1] for name, pattern in _WORDS if (match := pattern.search(text))}
    return {name: word for name, word in found.items() if word.lower() not in ("none", "auto")}


def _engine(text: str) -> str:
    if re.search(r"KV Cache is allocated|max_total_num_tokens|Load weight end|sglang", text):
        return "sglang"
    return (
        "vllm-ascend"
        if re.search(r"vllm_ascend|vllm-ascend|# npu blocks|torch_npu|Available memory: \d+", text)
        else "vllm"
    )


_ROWS: Final = (
    ("weights_bytes", "weights", "bytes"),
    ("available_kv_bytes", "kv_capacity", "bytes"),
    ("activation_peak_bytes", "activation_peak", "bytes"),
    ("non_torch_bytes", "non_torch", "bytes"),
    ("graph_bytes", "graph", "bytes"),
    ("kv_tokens", "kv_capacity", "kv_tokens"),
    ("kv_blocks", "kv_capacity", "kv_blocks"),
)


def parse(text: str, *, context: Context) -> Imported:
    """Return the memory that an engine reports when it starts, as memory rows (of one rank) and facts by name."""
    numbers, words = _numbers(text), _words(text)
    if not numbers.keys() & {name for name, _, _ in _ROWS}:
        raise MeasurementError(
            f"{context.name} holds no memory lines of an engine",
            expected="lines such as 'GPU KV cache size: 78,800 tokens' or 'Model loading took 15.2 GiB'",
            cure="Paste the log from the start of the engine to its first request.",
        )
    engine = _engine(text)
    version = words.get("version", "").lstrip("v")
    name, scheme = model_and_scheme(words["model"]) if "model" in words else ("", "")
    stated: dict[str, Any] = {key: int(numbers[key]) for key in ("tp", "pp", "dp", "ep") if numbers.get(key, 0) >= 1}
    named = context.filled(
        model=name,
        runtime=f"{engine}-{version}" if version else engine,
        compute_dtype=_DTYPES.get(words.get("compute_dtype", ""), ""),
        quantization=scheme,
        kv_dtype=_DTYPES.get(words.get("kv_dtype", ""), words.get("kv_dtype", "")),
        **stated,
    )
    base = Row(kind="memory", note="one rank", **named.cells())
    rows = [
        base.with_columns(op=op, metric=metric, value=numbers[key])
        for key, op, metric in _ROWS
        if numbers.get(key, -1.0) >= 0
    ]
    facts: dict[str, Any] = {**numbers, "engine": engine, **{k: v for k, v in words.items() if k != "version"}}
    if version:
        facts["engine_version"] = version
    facts |= _derived(numbers)
    return Imported(
        format="startup-log", rows=named_rows(rows, context, "log"), facts=facts, warnings=_warnings(numbers)
    )


def _derived(numbers: dict[str, float]) -> dict[str, float]:
    derived: dict[str, float] = {}
    tokens, blocks = numbers.get("kv_tokens"), numbers.get("kv_blocks")
    size = numbers.get("block_tokens")
    length, claimed = numbers.get("concurrency_tokens"), numbers.get("max_concurrency")
    if not size and tokens is None and blocks and length and claimed:
        derived["block_tokens"] = size = float(round(claimed * length / blocks))
    if tokens is None and blocks is not None and size:
        derived["kv_tokens"] = tokens = blocks * size
    if tokens and numbers.get("available_kv_bytes", 0) > 0:
        derived["kv_bytes_per_token_implied"] = numbers["available_kv_bytes"] / tokens
    if blocks and tokens and not size:
        derived["block_tokens"] = tokens / blocks
    return derived


def _warnings(numbers: dict[str, float]) -> tuple[str, ...]:
    warnings = []
    if numbers.get("available_kv_bytes", 1.0) <= 0 or numbers.get("kv_blocks") == 0:
        warnings.append("no memory was left for the cache: the engine cannot have started")
    tokens, length, claimed = (numbers.get(k) for k in ("kv_tokens", "concurrency_tokens", "max_concurrency"))
    if tokens and length and claimed and abs(tokens / length / claimed - 1) > 0.02:
        warnings.append(
            f"{tokens:.0f} tokens over {length:.0f} a request make {tokens / length:.2f}, the log says {claimed:.2f}: "
            "sliding windows or state caches need less per request, or lines of two starts are mixed"
        )
    return tuple(warnings)
