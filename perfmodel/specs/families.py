"""What a config.json leaves unsaid: the traits that the modelling code of each `model_type` fixes.

Source: the modelling and configuration classes of Hugging Face transformers (4.57 and 5.13), and the remote code that
ships with Baichuan, ChatGLM, InternLM, Qwen (first generation), Kimi and MiniMax checkpoints. A catalogue file may
override any trait in its `structure` mapping; the keys are the fields of `Family`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import Field

from perfmodel.specs.figures import Spec

__all__ = ["FAMILIES", "Family", "QkNorm", "WindowRule", "family_traits"]

QkNorm = Literal["none", "head", "flat"]
WindowRule = Literal["none", "all", "upper", "alternate", "pattern"]
Small = Annotated[int, Field(ge=0, lt=2**40)]


class Family(Spec):
    """Traits of one family; the defaults describe Llama."""

    gated: bool = True
    mlp_bias: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    attention_bias: Literal["", "qkv", "qkvo"] = ""
    """Projections that the config key `attention_bias` switches; empty: the key changes nothing."""
    norm_bias: bool = False
    n_norms: Annotated[int, Field(ge=0, le=8)] = 2
    final_norm: bool = True
    embed_norm: bool = False
    qk_norm: QkNorm = "none"
    weightless_qk_norm: bool = False
    """The norm on query and key, where the config asks for one, has no weights."""
    tied: bool = False
    """Whether the head shares the embedding when the config does not say."""
    lm_head_bias: bool = False
    sinks: bool = False
    output_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    shared_gate: bool = False
    n_shared: Small = 0
    """Shared experts when the config does not say."""
    position_offset: Small | None = None
    """Rows of a learned position table beyond the context length; None: no such table."""
    window_rule: WindowRule = "all"
    """Layers that a `sliding_window` binds: every one, those from max_window_layers on, every other one starting
    with the first, or all but each n-th."""
    window_pattern: Annotated[int, Field(ge=1, le=4096)] = 6
    linear_variant: Literal["gated_deltanet", "lightning"] = "gated_deltanet"
    linear_state_dtype: Literal["fp32", "fp16", "bf16"] = "fp32"
    d_ff_ratio: Annotated[int, Field(ge=0, le=64)] = 0
    """MLP width over hidden size when the config gives none; 0: it must."""
    halves_ffn: bool = False
    """`intermediate_size` counts gate and up projection together."""
    compressed: bool = False
    """DeepSeek-V4 attention: window plus compressed entries."""
    n_mtp_modules: Small = 0
    """MTP modules of the checkpoint when the config does not say."""
    mtp_stored: bool = True
    mtp_duplicates_embedding: bool = False
    vision_params: Small = 0
    absent: dict[str, int | bool] = Field(default_factory=dict)
    """Values that the configuration class takes for absent keys."""


Traits = Mapping[str, object]

_LAYERNORM: Final[Traits] = {"norm_bias": True, "window_rule": "none"}
_ALL_BIASES: Final[Traits] = {"qkv_bias": True, "o_bias": True, "mlp_bias": True}
_LLAMA: Final[Traits] = {"attention_bias": "qkvo", "window_rule": "none"}
_QWEN2: Final[Traits] = {"qkv_bias": True, "window_rule": "upper"}
_QWEN2_MOE: Final[Traits] = {**_QWEN2, "shared_gate": True}
_QWEN3: Final[Traits] = {
    "qk_norm": "head",
    "attention_bias": "qkvo",
    "window_rule": "upper",
    "absent": {"head_dim": 128},
}
_QWEN3_MOE: Final[Traits] = {**_QWEN3, "absent": {}}
_QWEN3_NEXT: Final[Traits] = {
    "qk_norm": "head",
    "attention_bias": "qkvo",
    "window_rule": "none",
    "output_gate": True,
    "shared_gate": True,
    "absent": {"head_dim": 256},
}
_DEEPSEEK: Final[Traits] = {"window_rule": "none"}
_DEEPSEEK_V3: Final[Traits] = {"window_rule": "none", "router_bias": True, "mtp_duplicates_embedding": True}
_GPT2: Final[Traits] = {
    **_LAYERNORM,
    **_ALL_BIASES,
    "gated": False,
    "tied": True,
    "position_offset": 0,
    "d_ff_ratio": 4,
}
_GEMMA: Final[Traits] = {
    "tied": True,
    "attention_bias": "qkvo",
    "window_rule": "none",
    "absent": {"head_dim": 256},
}
_GEMMA2: Final[Traits] = {**_GEMMA, "n_norms": 4, "window_rule": "alternate"}
_GEMMA3: Final[Traits] = {
    **_GEMMA,
    "n_norms": 4,
    "qk_norm": "head",
    "window_rule": "pattern",
    "absent": {
        "head_dim": 256,
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "max_position_embeddings": 131072,
    },
}
_COHERE: Final[Traits] = {"n_norms": 1, "tied": True, "attention_bias": "qkvo", "window_rule": "none"}
_MINIMAX: Final[Traits] = {"window_rule": "none", "linear_variant": "lightning", "linear_state_dtype": "fp16"}
_PHI: Final[Traits] = {**_LAYERNORM, **_ALL_BIASES, "gated": False, "n_norms": 1, "lm_head_bias": True}
_FALCON: Final[Traits] = {**_LAYERNORM, "gated": False, "tied": True, "d_ff_ratio": 4}

FAMILIES: Final[Mapping[str, Traits]] = MappingProxyType(
    {
        "aquila": _LLAMA,
        "aquila3": _LLAMA,
        "baichuan": {"window_rule": "none"},
        "bloom": {**_LAYERNORM, **_ALL_BIASES, "gated": False, "tied": True, "embed_norm": True, "d_ff_ratio": 4},
        "chatglm": {"window_rule": "none"},
        "cohere": _COHERE,
        "cohere2": {**_COHERE, "window_rule": "pattern", "window_pattern": 4},
        "dbrx": {"window_rule": "none"},
        "deci": _LLAMA,
        "deepseek": _DEEPSEEK,
        "deepseek_v2": _DEEPSEEK,
        "deepseek_v3": _DEEPSEEK_V3,
        "deepseek_v32": _DEEPSEEK_V3,
        "deepseek_v4": {"window_rule": "none", "compressed": True},
        "dots1": {"qk_norm": "head", "router_bias": True},
        "ernie4_5": {"tied": True, "window_rule": "none"},
        "ernie4_5_moe": {"tied": True, "router_bias": True, "window_rule": "none"},
        "exaone4": {"qk_norm": "head", "window_rule": "pattern", "window_pattern": 4},
        "falcon": _FALCON,
        "RefinedWeb": _FALCON,
        "RefinedWebModel": _FALCON,
        "gemma": _GEMMA,
        "gemma2": _GEMMA2,
        "gemma3": _GEMMA3,
        "gemma3_text": _GEMMA3,
        "glm": {"attention_bias": "qkv", "window_rule": "none", "absent": {"head_dim": 128}},
        "glm4": {"attention_bias": "qkv", "n_norms": 4, "window_rule": "none", "absent": {"head_dim": 128}},
        "glm4_moe": {
            "attention_bias": "qkv",
            "router_bias": True,
            "window_rule": "none",
            "mtp_duplicates_embedding": True,
            "absent": {"head_dim": 128},
        },
        "glm4v_moe_text": {"attention_bias": "qkv", "router_bias": True, "window_rule": "none"},
        "glm4v_text": {"attention_bias": "qkv", "n_norms": 4, "window_rule": "none"},
        "glm_moe_dsa": {"router_bias": True, "window_rule": "none"},
        "gpt2": _GPT2,
        "gpt3": _GPT2,
        "gpt_bigcode": _GPT2,
        "gpt_neox": {**_LAYERNORM, **_ALL_BIASES, "gated": False},
        "gpt_oss": {
            "qkv_bias": True,
            "o_bias": True,
            "attention_bias": "qkvo",
            "sinks": True,
            "router_bias": True,
            "expert_bias": True,
            "window_rule": "alternate",
            "absent": {"head_dim": 64},
        },
        "gptj": {**_LAYERNORM, "gated": False, "mlp_bias": True, "n_norms": 1, "lm_head_bias": True, "d_ff_ratio": 4},
        "granite": {**_LLAMA, "tied": True},
        "granitemoe": {**_LLAMA, "tied": True},
        "granitemoeshared": {**_LLAMA, "tied": True},
        "hunyuan_v1_dense": {"qk_norm": "head", "tied": True, "window_rule": "none"},
        "hunyuan_v1_moe": {"qk_norm": "head", "tied": True, "window_rule": "none"},
        "hy_v3": {"qk_norm": "head", "window_rule": "none", "absent": {"head_dim": 128}},
        "internlm": {"window_rule": "none"},
        "internlm2": {"window_rule": "none"},
        "internlm3": {"window_rule": "none"},
        "kimi_k2": {**_DEEPSEEK_V3},
        "llama": _LLAMA,
        "llama4_text": {**_LLAMA, "n_shared": 1, "weightless_qk_norm": True, "absent": {"head_dim": 128}},
        "mimo": {**_QWEN2},
        "minicpm": {**_LLAMA, "tied": True},
        "minimax": _MINIMAX,
        "minimax_m1": _MINIMAX,
        "minimax_m2": {"qk_norm": "flat", "router_bias": True, "window_rule": "none", "mtp_stored": False},
        "minimax_text_01": _MINIMAX,
        "mistral": {"window_rule": "all"},
        "ministral3": {"window_rule": "all"},
        "mixtral": {"window_rule": "all"},
        "mpt": {"gated": False, "tied": True, "window_rule": "none", "d_ff_ratio": 4},
        "nemotron": {**_LAYERNORM, "gated": False, "attention_bias": "qkvo"},
        "nemotron-nas": _LLAMA,
        "olmo": {"n_norms": 0, "final_norm": False, "attention_bias": "qkvo", "window_rule": "none"},
        "olmo2": {"qk_norm": "flat", "attention_bias": "qkvo", "window_rule": "none"},
        "olmoe": {"qk_norm": "flat", "attention_bias": "qkvo", "window_rule": "none"},
        "openelm": {"tied": True, "window_rule": "none"},
        "opt": {**_LAYERNORM, **_ALL_BIASES, "gated": False, "tied": True, "position_offset": 2},
        "orion": {"norm_bias": True, "window_rule": "none"},
        "phi": _PHI,
        "phi3": {"window_rule": "all"},
        "phi3small": {"window_rule": "none"},
        "phimoe": {"norm_bias": True, "attention_bias": "qkvo", "window_rule": "all"},
        "qwen": {"qkv_bias": True, "halves_ffn": True, "window_rule": "none"},
        "qwen2": _QWEN2,
        "qwen2_5_omni_text": _QWEN2,
        "qwen2_5_vl": _QWEN2,
        "qwen2_5_vl_text": _QWEN2,
        "qwen2_moe": _QWEN2_MOE,
        "qwen2_vl": _QWEN2,
        "qwen2_vl_text": _QWEN2,
        "qwen3": _QWEN3,
        "qwen3_5": _QWEN3_NEXT,
        "qwen3_5_moe": _QWEN3_NEXT,
        "qwen3_5_moe_text": _QWEN3_NEXT,
        "qwen3_5_text": _QWEN3_NEXT,
        "qwen3_moe": _QWEN3_MOE,
        "qwen3_next": _QWEN3_NEXT,
        "qwen3_omni_moe_text": _QWEN3_MOE,
        "qwen3_vl": _QWEN3,
        "qwen3_vl_moe": _QWEN3_MOE,
        "qwen3_vl_moe_text": _QWEN3_MOE,
        "qwen3_vl_text": _QWEN3,
        "seed_oss": {"qkv_bias": True, "attention_bias": "qkv", "window_rule": "none", "absent": {"head_dim": 128}},
        "smollm3": {**_LLAMA, "tied": True},
        "stablelm": {"norm_bias": True, "window_rule": "none"},
        "starcoder2": {**_ALL_BIASES, "norm_bias": True, "gated": False, "tied": True, "window_rule": "all"},
        "xverse": {"window_rule": "none"},
        "yi": _LLAMA,
    }
)


def family_traits(model_type: str) -> Family | None:
    """Return the traits of a known `model_type`, None of an unknown one.

    >>> family_traits("qwen2").qkv_bias, family_traits("no_such_type")
    (True, None)
    """
    traits = FAMILIES.get(model_type) or FAMILIES.get(model_type.lower())
    return None if traits is None else Family.model_validate(dict(traits))
