"""Configurations that broke other calculators in public, and an error band that somebody asked for, by thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.hf_config import model_from_config
from perfmodel.specs.model import LatentAttention, SoftmaxAttention
from perfmodel.step.answer import answer_to
from perfmodel.step.question import Question, case_of
from perfmodel.work.kv import kv_bytes_per_token
from perfmodel.work.params import param_counts
from perfmodel.work.storage import weight_bytes
from tests.validation.memory_parts import CONFIGS

REST = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "intermediate_size": 16384,
    "vocab_size": 32768,
    "max_position_embeddings": 65536,
}
"""What the posters left out since it did not matter to them."""


def test_head_dim_null_means_absent() -> None:
    """A config with head_dim: null (Mixtral-8x22B): vllm-project/vllm#18573, sgl-project/sglang#7788."""
    config = {
        **REST,
        "hidden_size": 6144,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "head_dim": None,
        "num_hidden_layers": 56,
    }
    model = model_from_config(config, name="mixtral-like")
    assert {layer.attention.d_head for layer in model.layers if isinstance(layer.attention, SoftmaxAttention)} == {128}
    assert kv_bytes_per_token(model) == 229_376


@pytest.mark.parametrize("where", [("thinker_config", "text_config"), ("llm_config",), ("text_config",)])
def test_dimensions_nested_below_a_multimodal_wrapper(where: tuple[str, ...]) -> None:
    """Text sizes under thinker_config.text_config or llm_config: huggingface/transformers#37515, vllm#17646."""
    config: dict[str, Any] = {
        **REST,
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
    }
    for key in reversed(where):
        config = {key: config}
    assert kv_bytes_per_token(model_from_config(config, name="omni-like")) == 57_344


@pytest.mark.parametrize("missing", [True, False])
def test_kv_heads_null_or_missing_are_all_heads(missing: bool) -> None:
    """Older Llama configs have no num_key_value_heads, or null: nod-ai AMD-SHARK PR#388."""
    config: dict[str, Any] = {**REST, "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32}
    if not missing:
        config["num_key_value_heads"] = None
    model = model_from_config(config, name="llama-like")
    assert {layer.attention.n_kv_heads for layer in model.layers if isinstance(layer.attention, SoftmaxAttention)} == {
        32
    }
    assert kv_bytes_per_token(model) == 524_288


def test_compressed_tensors_nested_with_an_ignore_list(catalogue: Catalogue) -> None:
    """quantization_config with config_groups and ignore under text_config: InfiniTensor/InfiniLM PR#582."""
    group = {"num_bits": 4, "group_size": 128, "type": "int", "symmetric": True}
    config = {
        "text_config": {
            **REST,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_hidden_layers": 4,
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": group}},
                "ignore": ["lm_head", "re:.*mlp.gate$"],
            },
        }
    }
    model = model_from_config(config, name="quantised-like")
    scheme = catalogue.scheme(model.weight_scheme)
    assert scheme.weight_bits == 4
    assert scheme.bits_with_scales == 4.125
    stored = weight_bytes(model, scheme)
    assert stored["lm_head"] == 32_768 * 4096 * 2


def test_latent_attention_wins_over_the_gqa_fields() -> None:
    """DeepSeek configs state 128 KV heads beside a latent cache, and MTP modules that the total leaves out."""
    config = {"architectures": ["DeepseekV3ForCausalLM"], **CONFIGS["deepseek-v3"]}
    model = model_from_config(config, name="deepseek-like")
    assert all(isinstance(layer.attention, LatentAttention) for layer in model.layers)
    assert kv_bytes_per_token(model) == 70_272
    assert param_counts(model).total == 671_026_419_200


@pytest.mark.parametrize("device", ["ascend-910b2", "a100-80gb-sxm"])
def test_every_predicted_time_has_a_band(catalogue: Catalogue, device: str) -> None:
    """A 910B2 user accepts 30 % of error, so has to be told how much it is: Kirrito-k423/GroundUpScale#54."""
    question = Question(model="qwen2.5-7b", hardware=device, batch=4.0, input_tokens=1000.0, output_tokens=100.0)
    figures = answer_to(case_of(catalogue, question)).figures
    for name in ("ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s"):
        figure = figures[name]
        assert figure.low < figure.value < figure.high
        assert (figure.high / figure.low) ** 0.5 > 1.02


def test_bands_reach_whoever_asks(run_cli: Callable[..., Any]) -> None:
    assert "80 % band" in run_cli("estimate", "qwen2.5-7b", "ascend-910b2").out
