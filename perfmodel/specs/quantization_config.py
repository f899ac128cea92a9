"""The quantisation that a checkpoint's own config states, as the name of a scheme.

One mapping of what quantisers write into config.json (`quantization_config`), or beside it (hf_quant_config.json of
ModelOpt, quant_model_description.json of Ascend), to names that scheme_by_name understands. What the config leaves
unquantised becomes the tail of the name, as far as it concerns weights that would else be quantised.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from perfmodel.errors import SpecError
from perfmodel.specs.quantization import Load, Scheme, scheme_by_name

__all__ = ["scheme_from_config", "scheme_name"]

Config = Mapping[str, object]

N_LAYERS_TRIED: Final = 128
"""Patterns are tried on the layers 0 to 127; one that matches in all of them is taken to mean every layer."""

_MODULES: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("self_attn.q_proj", "attention", ("q_proj",)),
    ("self_attn.k_proj", "attention", ("k_proj",)),
    ("self_attn.v_proj", "attention", ("v_proj",)),
    ("self_attn.qkv_proj", "attention", ("q_proj", "k_proj", "v_proj")),
    ("self_attn.o_proj", "attention", ("o_proj",)),
    ("self_attn.q_a_proj", "attention", ("q_a_proj",)),
    ("self_attn.q_b_proj", "attention", ("q_b_proj",)),
    ("self_attn.kv_a_proj_with_mqa", "attention", ("kv_a_proj",)),
    ("self_attn.kv_b_proj", "attention", ("kv_b_proj",)),
    ("self_attn.indexer.wq_b", "attention", ("index_q_proj",)),
    ("self_attn.indexer.wk", "attention", ("index_k_proj",)),
    ("linear_attn.in_proj_qkvz", "attention", ("in_proj_qkvz",)),
    ("linear_attn.in_proj_qkv", "attention", ("in_proj_qkvz",)),
    ("linear_attn.in_proj_ba", "attention", ("in_proj_ba",)),
    ("linear_attn.out_proj", "attention", ("out_proj",)),
    ("mlp.gate_proj", "dense_mlp", ("gate_proj",)),
    ("mlp.up_proj", "dense_mlp", ("up_proj",)),
    ("mlp.gate_up_proj", "dense_mlp", ("gate_proj", "up_proj")),
    ("mlp.down_proj", "dense_mlp", ("down_proj",)),
    ("mlp.experts.0.gate_proj", "experts", ("gate_proj",)),
    ("mlp.experts.0.up_proj", "experts", ("up_proj",)),
    ("mlp.experts.0.down_proj", "experts", ("down_proj",)),
    ("mlp.experts.gate_up_proj", "experts", ("gate_proj", "up_proj")),
    ("mlp.experts.down_proj", "experts", ("down_proj",)),
    ("block_sparse_moe.experts.0.w1", "experts", ("gate_proj",)),
    ("block_sparse_moe.experts.0.w3", "experts", ("up_proj",)),
    ("block_sparse_moe.experts.0.w2", "experts", ("down_proj",)),
    ("mlp.shared_experts.gate_proj", "shared_experts", ("gate_proj",)),
    ("mlp.shared_experts.up_proj", "shared_experts", ("up_proj",)),
    ("mlp.shared_experts.down_proj", "shared_experts", ("down_proj",)),
    ("mlp.shared_expert.gate_proj", "shared_experts", ("gate_proj",)),
    ("mlp.shared_expert.up_proj", "shared_experts", ("up_proj",)),
    ("mlp.shared_expert.down_proj", "shared_experts", ("down_proj",)),
)
"""Module path inside a layer, part, and names in the weight inventory."""

_WHOLE: Final[Mapping[str, frozenset[str]]] = {
    "attention": frozenset({"q_proj", "k_proj", "v_proj", "o_proj"}),
    "dense_mlp": frozenset({"gate_proj", "up_proj", "down_proj"}),
    "experts": frozenset({"gate_proj", "up_proj", "down_proj"}),
    "shared_experts": frozenset({"gate_proj", "up_proj", "down_proj"}),
}
_STEMS = ("model.layers", "model.language_model.layers", "language_model.model.layers")
_NOT_TEXT = ("visual", "vision", "audio", "multi_modal", "mm_projector")

Ignored = dict[tuple[str, str], set[int]]
"""Layers for each (part, tensor); an empty set means all."""


def _text(config: Config, key: str, default: str = "") -> str:
    value = config.get(key)
    return default if value is None else str(value).lower()


def _number(config: Config, key: str, default: int) -> int:
    value = config.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise SpecError("quantization_config cannot be read", where=key, got=repr(value), expected="a whole number")
    return int(value)


def _mapping(value: object) -> Config:
    return value if isinstance(value, Mapping) else {}


def _strings(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    return tuple(str(v) for v in value) if isinstance(value, Sequence) else ()


def _grouped(stem: str, group: int) -> str:
    return f"{stem}-g{group}" if group > 0 else f"{stem}-channel"


def _matcher(entry: str) -> Callable[[str], bool]:
    """Return whether a module path is meant by an entry: a "re:" pattern, a wildcard, or part of a path."""
    if entry.startswith("re:"):
        try:
            pattern = re.compile(entry[3:])
        except re.error as error:
            raise SpecError("quantization_config ignores a pattern that cannot be read", got=entry) from error
        return lambda path: pattern.match(path) is not None
    bare = entry.removesuffix(".weight").strip(".")
    if "*" in bare or "?" in bare:
        wild = re.compile(rf"(?:{fnmatch.translate(bare)})|(?:{fnmatch.translate(bare + '.*')})")
        return lambda path: wild.match(path) is not None
    if "layers." in bare:
        bare = bare[bare.index("layers.") :]
    return lambda path: f".{bare}." in f".{path}."


def _layers_tried(entry: str) -> Iterable[int]:
    if entry.startswith("re:") or "*" in entry or "?" in entry:
        return range(N_LAYERS_TRIED)
    found = re.search(r"layers\.(\d+)(?:\.|$)", entry)
    return (int(found[1]),) if found else (0,)


def _ignored(entries: Iterable[str]) -> Ignored:
    """Return which quantisable weights the entries of an ignore list mean."""
    out: Ignored = {}
    for entry in entries:
        if any(word in entry for word in _NOT_TEXT):
            continue
        matches, tried = _matcher(entry), tuple(_layers_tried(entry))
        one_layer = len(tried) == 1 and re.search(r"layers\.\d", entry) is not None
        for path, part, names in _MODULES:
            hits = {i for i in tried if any(matches(f"{stem}.{i}.{path}") for stem in _STEMS)}
            if not hits:
                continue
            everywhere = len(hits) == len(tried) and not one_layer
            for name in names:
                known = out.get((part, name))
                out[part, name] = set() if everywhere or known == set() else (known or set()) | hits
    return out


def _ranges(layers: Iterable[int]) -> str:
    runs: list[list[int]] = []
    for i in sorted(layers):
        if runs and i == runs[-1][1] + 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _tail(ignored: Ignored, *, parts: Iterable[str] = _WHOLE, plus_head: bool = False) -> str:
    """Return the end of a scheme name: what is left unquantised, and whether the head is not."""
    text = "+lm_head" if plus_head else ""
    for part in parts:
        rows = {name: layers for (p, name), layers in ignored.items() if p == part}
        same = {frozenset(rows.get(name, {-1})) for name in _WHOLE[part]}
        if len(same) == 1 and -1 not in next(iter(same)) and len(set(map(frozenset, rows.values()))) == 1:
            layers = next(iter(same))
            text += f"!{part}" + (f":{_ranges(layers)}" if layers else "")
            continue
        for name, found in sorted(rows.items()):
            text += f"!{part}.{name}" + (f":{_ranges(found)}" if found else "")
    return text


def _awq(config: Config) -> str:
    bits = _number(config, "bits", _number(config, "w_bit", 4))
    group = _number(config, "group_size", _number(config, "q_group_size", 128))
    zero_point = config.get("zero_point", True)
    stem = f"awq-int{bits}" if zero_point else f"marlin-int{bits}"
    return _grouped(stem, group) + _tail(_ignored(_strings(config.get("modules_to_not_convert"))))


def _gptq(config: Config) -> str:
    name = _grouped(f"gptq-int{_number(config, 'bits', 4)}", _number(config, "group_size", 128))
    dynamic = [key[2:] for key in _mapping(config.get("dynamic")) if key.startswith("-:")]
    ignored = _ignored([f"re:{key}" for key in dynamic])
    return name + _tail(ignored, plus_head=config.get("lm_head") is True)


def _fp8(config: Config) -> str:
    block = config.get("weight_block_size")
    skipped = _strings(config.get("modules_to_not_convert")) + _strings(config.get("ignored_layers"))
    tail = _tail(_ignored(skipped))
    if isinstance(block, Sequence) and len(block) == 2:
        return _block_name(int(block[0]), int(block[1])) + tail
    return ("fp8-static" if _text(config, "activation_scheme") == "static" else "fp8") + tail


def _block_name(d_out: int, d_in: int) -> str:
    """Return the name for blocks that a config gives as [outputs, inputs]."""
    return f"fp8-block{d_in}" if d_in == d_out else f"fp8-block{d_in}x{d_out}"


def _fbgemm(config: Config) -> str:
    return "fp8-channel" + _tail(_ignored(_strings(config.get("modules_to_not_convert"))))


def _bitsandbytes(config: Config) -> str:
    tail = _tail(_ignored(_strings(config.get("llm_int8_skip_modules"))))
    if config.get("load_in_8bit") is True or config.get("_load_in_8bit") is True:
        return "bnb-int8" + tail
    return ("bnb-nf4-double" if config.get("bnb_4bit_use_double_quant") is True else "bnb-nf4") + tail


def _mxfp4(config: Config) -> str:
    return "mxfp4" + _tail(_ignored(_strings(config.get("modules_to_not_convert"))), parts=("experts",))


def _modelopt(config: Config) -> str:
    inner = {**config, **_mapping(config.get("quantization"))}
    algorithm = _text(inner, "quant_algo") or ("nvfp4" if "fp4" in _text(inner, "quant_method") else "")
    names = {
        "fp8": "fp8-static",
        "fp8_pb_wo": "fp8-block128",
        "fp8_per_channel_per_token": "fp8-channel",
        "nvfp4": "nvfp4",
        "nvfp4_awq": "nvfp4",
        "w4a16_nvfp4": "nvfp4-weight-only",
        "w4a16_awq": "awq-int4-g128",
        "w4a8_awq": "w4afp8",
        "mxfp8": "mxfp8",
    }
    if algorithm not in names:
        raise _unknown("quant_algo", algorithm, names)
    skipped = [k for key in ("exclude_modules", "ignore", "modules_to_not_convert") for k in _strings(inner.get(key))]
    return names[algorithm] + _tail(_ignored(skipped))


def _compressed_tensors(config: Config) -> str:
    groups = [_mapping(g) for g in _mapping(config.get("config_groups")).values()]
    found = sorted({_compressed_group(group) for group in groups})
    if len(found) != 1:
        raise SpecError(
            "quantization_config mixes formats" if found else "quantization_config has no config_groups",
            where="config_groups",
            got=" and ".join(found) or "none",
            expected="one format for all linear layers",
            cure="Name the scheme that holds for most weights.",
        )
    ignore = _strings(config.get("ignore"))
    targets = [t for group in groups for t in _strings(group.get("targets"))]
    plus_head = "Linear" in targets and not any(_matcher(entry)("lm_head") for entry in ignore)
    return found[0] + _tail(_ignored(ignore), plus_head=plus_head)


def _compressed_group(group: Config) -> str:
    weights, inputs = _mapping(group.get("weights")), _mapping(group.get("input_activations"))
    bits, kind = _number(weights, "num_bits", 8), _text(weights, "type", "int")
    size, strategy = _number(weights, "group_size", -1), _text(weights, "strategy")
    dynamic = inputs.get("dynamic") is not False
    input_bits, input_kind = _number(inputs, "num_bits", 16), _text(inputs, "type", "int")
    if kind == "float" and bits == 8:
        block = weights.get("block_structure")
        if strategy == "block" and isinstance(block, Sequence) and len(block) == 2:
            return _block_name(int(block[0]), int(block[1]))
        if strategy in ("channel", "block"):
            return "fp8-channel" if strategy == "channel" else "fp8-block128"
        return "mxfp8" if size == 32 else ("fp8" if dynamic else "fp8-static")
    if kind == "float" and bits == 4:
        if size == 32:
            return "mxfp4-all"
        return "nvfp4" if inputs else "nvfp4-weight-only"
    if kind != "int" or bits not in (4, 8):
        raise _unknown("weights", f"{bits}-bit {kind}", ("4-bit int", "8-bit int", "4-bit float", "8-bit float"))
    if input_bits == 8:
        if bits == 4:
            return "w4a8" if input_kind == "int" else "w4afp8"
        return "w8a8" if dynamic else "w8a8-static"
    if input_bits == 4:
        return "w4a4"
    if bits == 8 and size <= 0:
        return "int8-weight-only"
    stem = "marlin" if weights.get("symmetric", True) or size <= 0 else "awq"
    return _grouped(f"{stem}-int{bits}", size)


_ASCEND = {
    "w8a8": "w8a8-ascend",
    "w8a8_dynamic": "w8a8-ascend-dynamic",
    "w8a8_mix": "w8a8-ascend-dynamic",
    "w4a8_dynamic": "w4a8",
    "w4a4_flatquant_dynamic": "w4a4",
    "w8a16": "int8-weight-only",
    "w4a16": "marlin-int4-g128",
    "w8a8_mxfp8": "mxfp8",
}


def _ascend(config: Config) -> str:
    """Return the scheme of an Ascend description: the kind of most matrices; FLOAT ones are left alone.

    W4A8 descriptions that keep W8A8 outside of the experts become w4a8-experts.
    """
    kinds = {key: str(v).lower() for key, v in config.items() if key.endswith(".weight") and isinstance(v, str)}
    if not kinds:
        kind = _text(config, "model_quant_type", "w8a8_dynamic")
    else:
        expert = {kind for key, kind in kinds.items() if ".experts." in key and kind != "float"}
        other = {k for key, k in kinds.items() if ".experts." not in key and k != "float" and "layers." in key}
        if expert == {"w4a8_dynamic"} and other and other <= {"w8a8", "w8a8_dynamic"}:
            return "w4a8-experts"
        quantised = [kind for kind in kinds.values() if kind != "float"]
        kind = max(sorted(set(quantised)), key=quantised.count) if quantised else "float"
    if kind == "float":
        return "none"
    if kind not in _ASCEND:
        raise _unknown("model_quant_type", kind, _ASCEND)
    return _ASCEND[kind] + _tail(_ignored(key for key, v in kinds.items() if v == "float"))


def _torchao(config: Config) -> str:
    inner = _mapping(_mapping(config.get("quant_type")).get("default"))
    kind = (str(inner.get("_type", "")) or _text(config, "quant_type")).lower().replace("_", "")
    data = {**_mapping(inner.get("_data")), **_mapping(config.get("quant_type_kwargs"))}
    if "int4weightonly" in kind:
        return _grouped("int4", _number(data, "group_size", 128)) + "!lm_head"
    for word, name in (
        ("int8weightonly", "int8-weight-only"),
        ("int8dynamicactivationint8weight", "w8a8"),
        ("float8dynamicactivationfloat8weight", "fp8-channel"),
    ):
        if word in kind:
            return name
    raise _unknown("quant_type", kind, ("int4_weight_only", "int8_weight_only", "float8_dynamic_activation_..."))


def _exl2(config: Config) -> str:
    bits = config.get("bits", 4.0)
    return f"exl2-{bits if isinstance(bits, int | float) else 4.0:g}bpw"


def _unknown(what: str, got: str, known: Iterable[str]) -> SpecError:
    return SpecError(
        f"quantization_config has a {what} that is not known",
        where=what,
        got=repr(got),
        expected=", ".join(sorted(known)),
        cure="Name a scheme of models/quantization instead, or add a file there.",
    )


_METHODS: Final[Mapping[str, Callable[[Config], str]]] = {
    "awq": _awq,
    "gptq": _gptq,
    "gptqmodel": _gptq,
    "auto-round": _gptq,
    "marlin": lambda config: _grouped("marlin-int4", _number(config, "group_size", 128)),
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _mxfp4,
    "ascend": _ascend,
    "torchao": _torchao,
    "exl2": _exl2,
}


def scheme_name(quantization_config: Mapping[str, object]) -> str:
    """Return the name of the scheme that a quantization_config describes; scheme_by_name turns it into a scheme.

    Weights that the config leaves unquantised stand at the end of the name.

    >>> scheme_name({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True})
    'awq-int4-g64'
    >>> scheme_name({"quant_method": "fp8", "weight_block_size": [128, 128]})
    'fp8-block128'

    Raises SpecError for a method or a combination that is not known.
    """
    config = quantization_config
    method = _text(config, "quant_method")
    if not method:
        if "model_quant_type" in config:
            method = "ascend"
        elif "quant_algo" in config or "quantization" in config:
            method = "modelopt"
        elif "load_in_4bit" in config or "load_in_8bit" in config:
            method = "bitsandbytes"
        elif "config_groups" in config:
            method = "compressed-tensors"
    reader = _METHODS.get(method)
    if reader is None:
        raise _unknown("quant_method", method, _METHODS)
    return reader(config)


def scheme_from_config(quantization_config: Mapping[str, object], load: Load) -> Scheme:
    """Return the scheme that a quantization_config describes; `load` is that of scheme_by_name."""
    return scheme_by_name(scheme_name(quantization_config), load)
