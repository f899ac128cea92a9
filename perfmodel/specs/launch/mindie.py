"""A MindIE service configuration (config.json, whole, nested, flat or a pasted fragment) as a deployment."""

from __future__ import annotations

import json
import re
from typing import Final

from perfmodel.errors import Fault, SpecError
from perfmodel.specs.launch.flags import Kind, by_name
from perfmodel.specs.launch.line import take_flags
from perfmodel.specs.launch.reading import Reading
from perfmodel.specs.launch.words import Word
from perfmodel.units import GIB

__all__ = ["looks_like_json", "take_json"]

_KEYS: Final[dict[str, tuple[str, Kind]]] = {
    "maxSeqLen": ("max_model_len", "count"),
    "maxInputTokenLen": ("max_input_tokens", "count"),
    "maxIterTimes": ("max_output_tokens", "count"),
    "maxPrefillTokens": ("max_num_batched_tokens", "count"),
    "maxPrefillBatchSize": ("max_prefill_batch", "count"),
    "maxBatchSize": ("max_num_seqs", "count"),
    "cacheBlockSize": ("block_tokens", "count"),
    "worldSize": ("world_size", "count"),
    "tp": ("tp", "count"),
    "dp": ("dp", "count"),
    "pp": ("pp", "count"),
    "moe_tp": ("moe_tp", "count"),
    "moe_ep": ("ep", "count"),
    "modelWeightPath": ("model", "text"),
    "modelName": ("served_model_name", "text"),
}
_AUTOMATIC: Final = ("tp", "dp", "pp", "moe_tp", "moe_ep")
"""-1 here means that the engine chooses."""
_OTHERS: Final = ("npuMemSize", "npuDeviceIds", "plugin_params", "templateType")
_SECTIONS: Final = ("ServerConfig", "LogConfig", "LogParam", "ServeParam", "models")
"""Parts of the file that say nothing about performance."""
_NOT_MODELLED: Final = """
    Version EnableDynamicAdjustTimeoutConfig backendName modelInstanceNumber tokenizerProcessNumber
    multiNodesInferEnabled multiNodesInferPort interNodeTLSEnabled truncation modelInstanceType cpuMemSize
    backendType trustRemoteCode async_scheduler_wait_time kv_trans_timeout kv_link_timeout templateName
    prefillTimeMsPerReq prefillPolicyType sp cp decodeTimeMsPerReq decodePolicyType maxPreemptCount
    supportSelectBatch maxQueueDelayMicroseconds maxFirstTokenWaitTime prefillChunkSize maxNumPartialPrefills
    longPrefillTokenThreshold maxLongPartialPrefills preAllocBlocks ep_level enable_init_routing_cutoff
    stageSelectPolicy dynamicBatchSizeEnable distributedEnable lora_modules max_loras max_lora_rank
"""
_IGNORED: Final = frozenset(_NOT_MODELLED.split())
_COMMENT: Final = re.compile(r"(\"(?:[^\"\\\n]|\\.)*\")|//[^\n]*|#[^\n]*|/\*.*?\*/", re.DOTALL)
_TRAILING_COMMA: Final = re.compile(r"(\"(?:[^\"\\\n]|\\.)*\")|,(?=\s*(?:[}\]]|\Z))")
_TITLE: Final = "the configuration cannot be read"


class _Pairs(list[tuple[str, object]]):
    """A JSON object with its keys in order, repeats included."""


def looks_like_json(text: str) -> bool:
    """Return whether the text is meant as a JSON object, or as the inside of one."""
    first = text.lstrip("\ufeff \t\r\n")
    fragment = re.match(r"\"\w+\"\s*:", first)
    return first.startswith("{") or (bool(fragment) and any(f'"{key}"' in text for key in (*_KEYS, *_OTHERS)))


def take_json(text: str, reading: Reading) -> None:
    """State in `reading` what a JSON configuration says: MindIE's, or vLLM's arguments by name. Raises SpecError."""
    document = _document(text)
    keys = set(_all_keys(document))
    if keys & {
        *(key for key in _KEYS if key not in ("tp", "dp", "pp")),
        *_OTHERS,
        "ModelDeployConfig",
        "ScheduleConfig",
    }:
        reading.put("engine", "mindie", "engine")
        _walk(document, "", reading)
        _finish(reading)
    elif any(f"--{key.replace('_', '-')}" in by_name() for key, _ in document) and "hidden_size" not in keys:
        words = [word for key, value in document for word in _as_flag(key, value)]
        take_flags(words, reading)
    else:
        is_model = "hidden_size" in keys or "architectures" in keys
        raise SpecError(
            _TITLE,
            where="the JSON text",
            got="a model's config.json" if is_model else f"the keys {', '.join(sorted(keys))[:120] or '(none)'}",
            expected="a MindIE config.json (ModelDeployConfig, ScheduleConfig, ...) or engine arguments by name",
            cure="Give it as the model instead." if is_model else "",
        )


def _document(text: str) -> _Pairs:
    text = text.lstrip("\ufeff \t\r\n")
    bare = _TRAILING_COMMA.sub(r"\1", _COMMENT.sub(r"\1", text))
    if not bare.startswith("{"):
        bare = f"{{{bare}}}"
    try:
        document = json.loads(bare, object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        cure = "Is the text cut off? Give the whole file."
        raise SpecError(_TITLE, where=where, got=error.msg, expected="well-formed JSON", cure=cure) from error
    except (ValueError, RecursionError) as error:
        raise SpecError(_TITLE, got=type(error).__name__, expected="well-formed JSON of moderate depth") from error
    if not isinstance(document, _Pairs):
        raise SpecError(_TITLE, got=type(document).__name__, expected="a JSON object")
    return document


def _children(value: object) -> list[_Pairs]:
    if isinstance(value, _Pairs):
        return [value]
    return [item for item in value if isinstance(item, _Pairs)] if isinstance(value, list) else []


def _all_keys(document: _Pairs) -> list[str]:
    """Return every key at any depth."""
    found, waiting = [], [document]
    while waiting:
        for key, value in waiting.pop():
            found.append(key)
            waiting += _children(value)
    return found


def _walk(document: _Pairs, path: str, reading: Reading) -> None:
    waiting = [(document, path)]
    while waiting:
        pairs, prefix = waiting.pop()
        for key, value in pairs:
            where = f"{prefix}{key}"
            if key in _SECTIONS:
                reading.ignored.append(key)
            elif children := _children(value):
                waiting += [(child, f"{where}.") for child in children]
            else:
                _leaf(key, value, where, reading)


def _leaf(key: str, value: object, where: str, reading: Reading) -> None:
    text = _text(value)
    if key == "npuDeviceIds":
        _devices(value, where, reading)
    elif key in ("sp", "cp") and text not in ("-1", "0", "1", ""):
        reading.ignored.append(key)
        reading.notes.append(f"{key} = {text}: sequence and context parallelism are not modelled")
    elif key in _IGNORED or key.startswith("interNode"):
        reading.ignored.append(key)
    elif key not in _KEYS and key not in _OTHERS:
        reading.unknown.append(where)
    elif text is None:
        reading.faults.append(Fault(where, repr(value)[:80], "a number or a text"))
    elif key == "npuMemSize":
        _memory(text, where, reading)
    elif key == "plugin_params":
        _plugins(text, where, reading)
    elif key == "templateType":
        if text == "Mix":
            reading.put("chunked_prefill", True, where)
    elif not (key in _AUTOMATIC and text == "-1"):
        reading.put_text(*_KEYS[key], text, where)


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, (int, float)) else None


def _memory(text: str, where: str, reading: Reading) -> None:
    """Read npuMemSize: the KV cache of one NPU in GiB; -1 lets the engine take what is left."""
    if text in ("-1", "-1.0"):
        reading.notes.append("npuMemSize -1: the engine sizes the KV cache from the memory that is left")
    elif re.fullmatch(r"[0-9]{1,6}(?:\.[0-9]{1,6})?", text) and float(text) > 0:
        reading.put("npu_memory_bytes", round(float(text) * GIB), where)
    else:
        reading.faults.append(Fault(where, text[:80], "a size in GiB above 0, or -1 for automatic"))


def _devices(value: object, where: str, reading: Reading) -> None:
    """Read npuDeviceIds: one list of ids for each model instance."""
    ids = value if isinstance(value, list) else [value]
    flat = bool(ids) and all(isinstance(item, int) for item in ids)
    groups = [ids] if flat else [item for item in ids if isinstance(item, list) and item]
    if not groups or (not flat and len(groups) < len(ids)):
        reading.faults.append(Fault(where, repr(value)[:80], "lists of device ids, such as [[0,1,2,3]]"))
        return
    reading.fallback["world_size"] = min(len(groups[0]), 4096)
    if len(groups) > 1:
        reading.notes.append(f"{len(groups)} model instances are configured; one of them is described here")


def _plugins(text: str, where: str, reading: Reading) -> None:
    if not text.strip():
        return
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        reading.faults.append(Fault(where, repr(text)[:80], "a JSON object in a string"))
        return
    kinds = str(found.get("plugin_type", ""))
    if "splitfuse" in kinds:
        reading.put("chunked_prefill", True, where)
    if "prefix_cache" in kinds:
        reading.put("prefix_caching", True, where)
    if found.get("num_speculative_tokens") is not None:
        reading.put_text("speculative_tokens", "count", str(found["num_speculative_tokens"]), where)
    if "mtp" in kinds:
        reading.put("speculative_method", "mtp", where)


def _finish(reading: Reading) -> None:
    """MindIE gives all of worldSize to tp unless told otherwise, and names the model twice."""
    stated = reading.fallback | reading.values
    world = stated.get("world_size")
    others = stated.get("dp", 1) * stated.get("pp", 1)
    if world and "tp" not in stated and world % others == 0:
        reading.fallback["tp"] = world // others
    elif world and "tp" in stated and stated["tp"] * others != world:
        reading.notes.append(f"tp x dp x pp is {stated['tp'] * others} and the node has {world} devices: several nodes")
    if "model" not in stated and "served_model_name" in stated:
        reading.values["model"] = reading.values.pop("served_model_name")


def _as_flag(key: str, value: object) -> list[Word]:
    name = f"--{key.replace('_', '-')}"
    if isinstance(value, (_Pairs, list)):
        return [Word(name), Word(json.dumps(dict(value) if isinstance(value, _Pairs) else value, default=str))]
    text = _text(value)
    return [Word(name), Word(text)] if text else []
