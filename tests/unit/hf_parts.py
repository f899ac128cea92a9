"""Small configs of each kind, and readers of the model that comes out."""

from __future__ import annotations

from perfmodel.specs.hf_config import model_from_config
from perfmodel.specs.model import (
    Model,
    MoeFfn,
    SoftmaxAttention,
)

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
LATENT = {
    **LLAMA,
    "model_type": "deepseek_v3",
    "num_key_value_heads": 32,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
MOE = {"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 512}


def read(config: object, **overrides: object) -> Model:
    merged = {**config, **overrides} if isinstance(config, dict) else config
    return model_from_config(merged, name="m")  # type: ignore[arg-type]


def attention(model: Model, layer: int = 0) -> object:
    return model.layers[model.pattern[layer]].attention


def softmax(model: Model, layer: int = 0) -> SoftmaxAttention:
    found = attention(model, layer)
    assert isinstance(found, SoftmaxAttention)
    return found


def moe_layers(model: Model) -> list[int]:
    return [i for i, kind in enumerate(model.pattern) if isinstance(model.layers[kind].ffn, MoeFfn)]
