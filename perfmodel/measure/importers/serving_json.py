"""Keys that the JSON results of vLLM's and SGLang's serving benchmarks share."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from perfmodel.measure.importers.reading import first_of, number_of
from perfmodel.measure.serving_run import ServingRun

__all__ = ["run_from_record", "stated_cells"]

_LATENCY: Final = re.compile(r"^(mean|median|std|p\d+(?:\.\d+)?)_(ttft|tpot|itl|e2el|e2e_latency)_ms$")
_STATED: Final[Mapping[str, tuple[str, ...]]] = {
    "device": ("device", "gpu", "hardware", "accelerator"),
    "n_devices": ("n_devices", "num_gpus", "gpu_count"),
    "tp": ("tp", "tp_size", "tensor_parallel_size"),
    "pp": ("pp", "pp_size", "pipeline_parallel_size"),
    "dp": ("dp", "dp_size", "data_parallel_size"),
    "ep": ("ep", "ep_size", "expert_parallel_size"),
    "compute_dtype": ("dtype",),
    "quantization": ("quantization",),
    "kv_dtype": ("kv_cache_dtype",),
}
_DTYPES: Final = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
}


def stated_cells(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns that a result states about the deployment: metadata flags of the client, or the server's info."""
    cells: dict[str, Any] = {}
    for column, names in _STATED.items():
        value = first_of(record, *names)
        if column in ("tp", "pp", "dp", "ep", "n_devices"):
            number = number_of(value)
            if number is not None and number >= 1 and number == int(number):
                cells[column] = int(number)
        elif isinstance(value, str) and value.lower() not in ("auto", "none"):
            cells[column] = _DTYPES.get(value.lower(), value.lower())
    return cells


def _latencies(record: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for key, raw in record.items():
        match = _LATENCY.match(key)
        value = number_of(raw)
        if match and value is not None and math.isfinite(value):
            stat = {"median": "p50"}.get(match[1], match[1])
            found[match[2].replace("e2el", "e2e").replace("e2e_latency", "e2e"), stat] = value / 1e3
    return found


def _failed(record: Mapping[str, Any]) -> float | None:
    """Return failed requests: as stated, else counted from the error texts of a detailed result."""
    stated = number_of(record.get("failed"))
    errors = record.get("errors")
    if stated is not None or not isinstance(errors, Sequence) or isinstance(errors, str):
        return stated
    return float(sum(1 for error in errors if error))


def _rate(record: Mapping[str, Any]) -> float | None:
    """Return requests per second; null stands for all at once."""
    if "request_rate" not in record:
        return None
    return math.inf if record["request_rate"] is None else number_of(record["request_rate"])


def _positive(record: Mapping[str, Any], *names: str) -> float | None:
    value = number_of(first_of(record, *names))
    return value if value is not None and value >= 0 and math.isfinite(value) else None


def run_from_record(record: Mapping[str, Any], *, runtime: str) -> ServingRun:
    """Return the run that one result object describes."""
    server = record.get("server_info")
    info = server if isinstance(server, dict) else {}
    acceptance = _positive(record, "spec_decode_acceptance_rate")
    keys = ("backend", "dataset_name", "tag", "label", "date", "burstiness", "num_gpu_blocks")
    return ServingRun(
        model=str(first_of(record, "model_id", "model") or first_of(info, "model_path", "served_model_name") or ""),
        runtime=_runtime(record, info, runtime),
        n_prompts=_positive(record, "num_prompts"),
        completed=_positive(record, "completed"),
        failed=_failed(record),
        duration_s=_positive(record, "duration"),
        total_input_tokens=_positive(record, "total_input_tokens"),
        total_output_tokens=_positive(record, "total_output_tokens"),
        retokenized_output_tokens=_positive(record, "total_output_tokens_retokenized"),
        requested_input_tokens=_positive(record, "random_input_len", "input_len"),
        requested_output_tokens=_positive(record, "random_output_len", "output_len", "sharegpt_output_len"),
        max_concurrency=_positive(record, "max_concurrency"),
        request_rate_per_s=_rate(record),
        requests_per_s=_positive(record, "request_throughput"),
        output_tokens_per_s=_positive(record, "output_throughput"),
        peak_concurrency=_positive(record, "max_concurrent_requests"),
        latency_s=_latencies(record),
        acceptance_frac=None if acceptance is None else (acceptance / 100 if acceptance > 1 else acceptance),
        acceptance_length=_positive(record, "spec_decode_acceptance_length", "accept_length"),
        n_drafts=_positive(record, "spec_decode_num_drafts"),
        n_draft_tokens=_positive(record, "spec_decode_num_draft_tokens"),
        n_accepted_tokens=_positive(record, "spec_decode_num_accepted_tokens"),
        stated={**stated_cells(info), **stated_cells(record)},
        extra={key: record[key] for key in keys if isinstance(record.get(key), (str, int, float))},
    )


def _runtime(record: Mapping[str, Any], info: Mapping[str, Any], runtime: str) -> str:
    """Return the engine with its version where the file tells it; the client's backend may be another engine."""
    backend = str(record.get("backend") or "").lower()
    engine = next((name for name in ("sglang", "vllm", "trt", "lmdeploy", "tgi") if name in backend), runtime)
    version = first_of(record, "engine_version", f"{engine}_version") or first_of(info, "version")
    return f"{engine}-{version}" if version else engine
