"""Parameter totals that the hub lists for models outside the catalogue, from their configs."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.work.params import param_counts
from tests.unit.hf_parts import read


def moe(n_experts: int, top_k: int, width: int, **more: object) -> dict[str, object]:
    return {"num_experts": n_experts, "num_experts_per_tok": top_k, "moe_intermediate_size": width, **more}


def shape(
    kind: str, d: int, ff: int, n_layers: int, heads: int, kv: int, vocab: int, **more: object
) -> dict[str, object]:
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    return {
        "model_type": kind,
        **dict(zip(keys, (d, ff, n_layers, heads, kv), strict=True)),
        "vocab_size": vocab,
        **more,
    }


DBRX = {
    "model_type": "dbrx",
    "d_model": 6144,
    "n_heads": 48,
    "n_layers": 40,
    "max_seq_len": 32768,
    "vocab_size": 100352,
    "attn_config": {"kv_n_heads": 8, "clip_qkv": 8},
    "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    "tie_word_embeddings": False,
}
PHI_MOE = {"num_local_experts": 16, "num_experts_per_tok": 2, "attention_bias": True, "lm_head_bias": True}
ERNIE = {
    "moe_num_experts": 64,
    "moe_k": 6,
    "moe_intermediate_size": 1536,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "tie_word_embeddings": True,
    "head_dim": 128,
}
SCOUT = {
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
    "intermediate_size_mlp": 16384,
    "interleave_moe_layer_step": 1,
    "use_qk_norm": True,
    "head_dim": 128,
}
SHARED = {"shared_expert_intermediate_size": 5632}


@pytest.mark.parametrize(
    ("config", "total"),
    [
        (DBRX, 131596523520),
        (shape("olmo2", 4096, 11008, 32, 32, 32, 100352), 7298617344),
        (shape("olmoe", 2048, 1024, 16, 16, 16, 50304, num_experts=64, num_experts_per_tok=8), 6919161856),
        (shape("qwen2_moe", 2048, 5632, 24, 16, 16, 151936, **moe(60, 4, 1408, **SHARED)), 14315784192),
        (shape("gpt_neox", 6144, 24576, 44, 64, 64, 50432), 20554567680),
        (shape("phimoe", 4096, 6400, 32, 32, 8, 32064, **PHI_MOE), 41873153344),
        (shape("gemma", 3072, 24576, 28, 16, 16, 256000, head_dim=256), 8537680896),
        (shape("internlm2", 4096, 14336, 32, 32, 8, 92544, bias=False), 7737708544),
        (shape("baichuan", 4096, 11008, 32, 32, 32, 125696), 7505973248),
        (shape("cohere", 8192, 22528, 40, 64, 64, 256000, use_qk_norm=False), 34980831232),
        (shape("smollm3", 2048, 11008, 36, 16, 4, 128256), 3075098624),
        (shape("seed_oss", 5120, 27648, 64, 80, 8, 155136, attention_bias=True, head_dim=128), 36151104512),
        (shape("stablelm", 2560, 6912, 32, 32, 32, 50304, use_qkv_bias=False), 2795443200),
        (shape("granite", 4096, 12800, 40, 32, 8, 49155), 8170848256),
        (shape("ernie4_5_moe", 2560, 12288, 28, 20, 4, 103424, **ERNIE), 21825437888),
        ({"text_config": shape("llama4_text", 5120, 8192, 48, 40, 8, 202048, **SCOUT)}, 107769861120),
    ],
)
def test_totals_that_the_hub_lists_for_models_outside_the_catalogue(config: Any, total: Any) -> None:
    assert param_counts(read(config)).total == total
