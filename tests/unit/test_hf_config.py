"""Reading config.json: every spelling of every family, and every way to be wrong."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.errors import SpecError
from perfmodel.specs.families import FAMILIES, Family, family_traits
from perfmodel.specs.hf_config import model_from_config
from perfmodel.specs.model import (
    CompressedAttention,
    DenseFfn,
    LatentAttention,
    LinearAttention,
    MoeFfn,
)
from perfmodel.work.kv import kv_bytes_per_token
from perfmodel.work.params import param_counts
from tests.unit.hf_parts import LATENT, LLAMA, MOE, attention, moe_layers, read, softmax


class TestHeads:
    def test_null_head_dim_is_hidden_over_heads(self) -> None:
        model = read(LLAMA, hidden_size=6144, num_attention_heads=48, num_hidden_layers=56, head_dim=None)
        assert softmax(model).d_head == 128
        assert kv_bytes_per_token(model) == 229376  # 56 layers x 8 heads x 128 x 2 x 2 bytes

    @pytest.mark.parametrize(
        ("hidden", "heads", "stated", "guess"), [(5120, 32, 128, 160), (2880, 64, 64, 45), (3840, 16, 256, 240)]
    )
    def test_stated_head_dim_wins_over_the_quotient(self, hidden: Any, heads: Any, stated: Any, guess: Any) -> None:
        shape = {"hidden_size": hidden, "num_attention_heads": heads}
        assert softmax(read(LLAMA, **shape)).d_head == guess
        assert softmax(read(LLAMA, **shape, head_dim=stated)).d_head == stated

    @pytest.mark.parametrize("kv", [None, ...])
    def test_no_kv_heads_means_one_for_each_head(self, kv: Any) -> None:
        config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
        model = read(config if kv is ... else {**config, "num_key_value_heads": None})
        assert softmax(model).n_kv_heads == 32
        assert kv_bytes_per_token(model) == 524288  # 32 x 32 x 128 x 2 x 2

    def test_one_list_entry_for_each_layer(self) -> None:
        model = read(LLAMA, num_hidden_layers=4, num_key_value_heads_per_layer=[8, 4, 4, 1])
        assert [softmax(model, i).n_kv_heads for i in range(4)] == [8, 4, 4, 1]
        assert len(model.layers) == 3

    def test_a_list_of_the_wrong_length(self) -> None:
        with pytest.raises(SpecError, match=r"3 entries.*4"):
            read(LLAMA, num_hidden_layers=4, num_key_value_heads=[8, 4, 4])

    def test_kv_heads_must_divide_heads(self) -> None:
        with pytest.raises(SpecError, match=r"num_key_value_heads.*got 5.*divisor of the 32"):
            read(LLAMA, num_key_value_heads=5)

    def test_heads_must_divide_the_width(self) -> None:
        with pytest.raises(SpecError, match=r"(?s)divisor of hidden_size 4100.*head_dim"):
            read(LLAMA, hidden_size=4100)

    @pytest.mark.parametrize(
        ("config", "kv"),
        [
            ({"model_type": "falcon", "multi_query": True, "new_decoder_architecture": False}, 1),
            ({"model_type": "falcon", "num_kv_heads": 8, "new_decoder_architecture": True}, 8),
            ({"model_type": "falcon", "n_head_kv": 8, "new_decoder_architecture": True}, 8),
            ({"model_type": "gpt_bigcode", "multi_query": True}, 1),
            ({"model_type": "chatglm", "multi_query_attention": True, "multi_query_group_num": 2}, 2),
            ({"model_type": "mpt", "attn_config": {"kv_n_heads": 4}}, 4),
        ],
    )
    def test_other_spellings_of_kv_heads(self, config: Any, kv: Any) -> None:
        base = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
        assert softmax(read(base, **config)).n_kv_heads == kv

    def test_latent_fields_win_over_kv_heads(self) -> None:
        model = read(LATENT, num_key_value_heads=32)
        assert isinstance(attention(model), LatentAttention)
        assert kv_bytes_per_token(model) == 32 * (512 + 64) * 2

    def test_blocks_of_their_own(self) -> None:
        blocks = [
            {"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 5.25}},
            {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 1.0}},
        ]
        model = read(LLAMA, model_type="nemotron-nas", num_hidden_layers=2, block_configs=blocks)
        assert [softmax(model, i).n_kv_heads for i in (0, 1)] == [4, 8]
        # 2 x 5.25 x 4096 / 3 = 14336; 2 x 4096 / 3 = 2730, raised to a multiple of 256
        assert [layer.ffn.d_ff for layer in model.layers if isinstance(layer.ffn, DenseFfn)] == [14336, 2816]

    def test_a_block_without_attention_is_refused(self) -> None:
        blocks = [{"attention": {"no_op": True, "n_heads_in_group": None}, "ffn": {"ffn_mult": 1.0}}]
        with pytest.raises(SpecError, match="without attention cannot be modelled"):
            read(LLAMA, num_hidden_layers=1, block_configs=blocks)


class TestNesting:
    @pytest.mark.parametrize(
        "wrap",
        [
            lambda inner: {"text_config": inner},
            lambda inner: {"thinker_config": {"text_config": inner, "audio_config": {"d_model": 8}}},
            lambda inner: {"llm_config": inner},
            lambda inner: {"language_config": inner, "vision_config": {"hidden_size": 1152}},
        ],
    )
    def test_inner_configs_are_found(self, wrap: Any) -> None:
        shape = {"hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4}
        assert kv_bytes_per_token(read(wrap({**LLAMA, **shape}))) == 57344  # 28 x 4 x 128 x 2 x 2

    def test_outer_keys_fill_inner_gaps(self) -> None:
        inner = {key: value for key, value in LLAMA.items() if key not in ("tie_word_embeddings", "vocab_size")}
        outer = {"text_config": inner, "tie_word_embeddings": True, "torch_dtype": "float16", "vocab_size": 100}
        model = read(outer)
        assert (model.tied_embeddings, model.dtype, model.vocab_size) == (True, "fp16", 100)

    def test_quantisation_below_the_text_config(self) -> None:
        weights = {"num_bits": 4, "group_size": 128, "type": "int", "symmetric": True}
        stated = {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
            "ignore": ["lm_head", "re:.*mlp.gate$"],
        }
        assert "int4" in read({"text_config": {**LLAMA, "quantization_config": stated}}).weight_scheme


class TestWindows:
    def windows(self, **config: object) -> list[int | None]:
        model = read(LLAMA, num_hidden_layers=6, **config)
        return [softmax(model, i).window_tokens for i in range(6)]

    def test_mistral_binds_every_layer(self) -> None:
        assert self.windows(model_type="mistral", sliding_window=4096) == [4096] * 6

    def test_a_window_as_long_as_the_context_is_none(self) -> None:
        assert self.windows(model_type="mistral", sliding_window=131072) == [None] * 6

    def test_null_and_switched_off(self) -> None:
        assert self.windows(model_type="mistral", sliding_window=None) == [None] * 6
        assert self.windows(model_type="mistral", sliding_window=64, use_sliding_window=False) == [None] * 6
        assert self.windows(model_type="qwen2", sliding_window=64) == [None] * 6

    def test_qwen2_binds_upper_layers(self) -> None:
        found = self.windows(model_type="qwen2", sliding_window=64, use_sliding_window=True, max_window_layers=4)
        assert found == [None] * 4 + [64] * 2

    def test_gemma_patterns(self) -> None:
        assert self.windows(model_type="gemma2", sliding_window=64) == [64, None] * 3
        assert self.windows(model_type="gemma3_text", sliding_window=64) == [64] * 5 + [None]
        assert self.windows(model_type="gemma3_text", sliding_window=64, sliding_window_pattern=2) == [64, None] * 3

    def test_a_list_of_layer_types_wins(self) -> None:
        types = ["full_attention"] * 5 + ["sliding_attention"]
        assert self.windows(model_type="gemma2", sliding_window=64, layer_types=types) == [None] * 5 + [64]

    def test_layer_types_that_are_not_modelled(self) -> None:
        with pytest.raises(SpecError, match="mamba"):
            self.windows(layer_types=["mamba"] * 6)


class TestMixtures:
    def test_first_dense_layers(self) -> None:
        assert moe_layers(read(LLAMA, num_hidden_layers=5, first_k_dense_replace=2, **MOE)) == [2, 3, 4]

    def test_sparse_steps(self) -> None:
        assert moe_layers(read(LLAMA, num_hidden_layers=6, decoder_sparse_step=2, **MOE)) == [1, 3, 5]
        assert moe_layers(read(LLAMA, num_hidden_layers=6, moe_layer_freq=2, **MOE)) == [0, 2, 4]
        assert moe_layers(read(LLAMA, num_hidden_layers=3, moe_layer_freq=[0, 1, 1], **MOE)) == [1, 2]
        assert moe_layers(read(LLAMA, num_hidden_layers=4, mlp_only_layers=[0, 3], **MOE)) == [1, 2]
        assert moe_layers(read(LLAMA, num_hidden_layers=3, mlp_layer_types=["dense", "sparse", "sparse"], **MOE)) == [
            1,
            2,
        ]

    @pytest.mark.parametrize(
        ("extra", "width"),
        [
            ({}, 0),
            ({"n_shared_experts": 2}, 1024),
            ({"shared_expert_intermediate_size": 0}, 0),
            ({"shared_expert_intermediate_size": 2560}, 2560),
            ({"shared_intermediate_size": 300}, 300),
        ],
    )
    def test_shared_width(self, extra: Any, width: Any) -> None:
        ffn = read(LLAMA, **MOE, **extra).layers[0].ffn
        assert isinstance(ffn, MoeFfn)
        assert ffn.d_shared == width

    def test_more_chosen_than_there_are(self) -> None:
        with pytest.raises(SpecError, match="top_k 65 is more than n_experts 64"):
            read(LLAMA, **{**MOE, "num_experts_per_tok": 65})

    def test_no_dense_width_needed_where_every_layer_is_sparse(self) -> None:
        config = {key: value for key, value in LLAMA.items() if key != "intermediate_size"}
        assert moe_layers(read(config, **MOE)) == list(range(32))


class TestOtherAttention:
    def test_full_attention_interval(self) -> None:
        linear = {
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
        }
        model = read(LLAMA, model_type="qwen3_next", num_hidden_layers=8, full_attention_interval=4, **linear)
        kinds = [isinstance(attention(model, i), LinearAttention) for i in range(8)]
        assert kinds == [True, True, True, False] * 2

    def test_lightning_list(self) -> None:
        model = read(LLAMA, model_type="minimax_m1", num_hidden_layers=4, attn_type_list=[0, 0, 0, 1])
        found = attention(model)
        assert isinstance(found, LinearAttention)
        assert found.variant == "lightning"
        assert softmax(model, 3).n_kv_heads == 8

    def test_shared_indexers(self) -> None:
        index = {"index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048}
        model = read(
            LATENT, model_type="glm_moe_dsa", num_hidden_layers=11, index_topk_freq=4, index_skip_topk_offset=3, **index
        )
        own = [i for i in range(11) if not attention(model, i).indexer.shared]  # type: ignore[attr-defined]
        assert own == [0, 1, 2, 6, 10]

    def test_compressed(self) -> None:
        config = {
            **LLAMA,
            "model_type": "deepseek_v4",
            "num_hidden_layers": 3,
            "head_dim": 512,
            "qk_rope_head_dim": 64,
            "q_lora_rank": 1024,
            "o_groups": 8,
            "o_lora_rank": 1024,
            "sliding_window": 128,
            "index_n_heads": 64,
            "index_head_dim": 128,
            "index_topk": 512,
            "compress_ratios": [0, 4, 128, 0],
        }
        found = [attention(read(config), i) for i in range(3)]
        assert all(isinstance(each, CompressedAttention) for each in found)
        assert [each.ratio for each in found] == [0, 4, 128]  # type: ignore[attr-defined]
        assert [each.indexer is not None for each in found] == [False, True, False]  # type: ignore[attr-defined]


class TestFamilies:
    def test_every_family_has_legal_traits(self) -> None:
        for name in FAMILIES:
            assert isinstance(family_traits(name), Family)

    def test_unknown_family_says_what_was_assumed(self) -> None:
        model = read(LLAMA, model_type="foo")
        (warning,) = model.warnings
        assert warning.startswith("model_type 'foo' is not known: assumed gated MLP, RMSNorm, two norms a layer")

    def test_a_known_family_has_no_warning(self) -> None:
        assert read(LLAMA).warnings == ()

    def test_the_architecture_names_the_family(self) -> None:
        config = {key: value for key, value in LLAMA.items() if key != "model_type"}
        model = read(config, architectures=["Qwen2ForCausalLM"])
        assert model.warnings == ()
        assert softmax(model).qkv_bias

    def test_tied_default_of_the_family(self) -> None:
        config = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
        assert read(config, model_type="gemma").tied_embeddings
        assert not read(config).tied_embeddings

    def test_first_qwen_counts_both_halves(self) -> None:
        ffn = read(LLAMA, model_type="qwen", intermediate_size=22016).layers[0].ffn
        assert isinstance(ffn, DenseFfn)
        assert ffn.d_ff == 11008

    def test_attention_bias_reaches_as_far_as_the_family_says(self) -> None:
        assert softmax(read(LLAMA, attention_bias=True)).o_bias
        glm = softmax(read(LLAMA, model_type="glm4_moe", attention_bias=True))
        assert (glm.qkv_bias, glm.o_bias) == (True, False)

    def test_structure_overrides_family_and_config(self) -> None:
        model = model_from_config(
            {**LLAMA, "attention_bias": True}, name="m", structure={"o_bias": False, "n_norms": 4}
        )
        assert (softmax(model).qkv_bias, softmax(model).o_bias, model.layers[0].n_norms) == (True, False, 4)

    @pytest.mark.parametrize("structure", [{"no_such": 1}, {"n_norms": -1}, {"gated": "perhaps"}])
    def test_wrong_structure(self, structure: Any) -> None:
        with pytest.raises(SpecError, match="structure"):
            model_from_config(LLAMA, name="m", structure=structure)

    def test_gpt2_spelling(self) -> None:
        config = {
            "model_type": "gpt2",
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "n_positions": 1024,
            "vocab_size": 50257,
        }
        assert param_counts(read(config)).total == 124439808  # as published for the smallest GPT-2

    def test_chatglm_spelling(self) -> None:
        config = {
            "model_type": "chatglm",
            "hidden_size": 4096,
            "ffn_hidden_size": 13696,
            "num_layers": 28,
            "num_attention_heads": 32,
            "kv_channels": 128,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "padded_vocab_size": 65024,
            "seq_length": 8192,
            "add_qkv_bias": True,
            "add_bias_linear": False,
        }
        assert param_counts(read(config)).total == 6243584000

    def test_mpt_and_bloom_and_opt_spellings(self) -> None:
        mpt = {
            "model_type": "mpt",
            "d_model": 4096,
            "n_heads": 32,
            "n_layers": 32,
            "max_seq_len": 2048,
            "vocab_size": 50432,
        }
        assert param_counts(read(mpt)).total == 6649286656
        bloom = {"model_type": "bloom", "hidden_size": 14336, "n_layer": 70, "n_head": 112, "vocab_size": 250880}
        assert param_counts(read(bloom)).total == 176247271424
        opt = {
            "model_type": "opt",
            "hidden_size": 4096,
            "ffn_dim": 16384,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "vocab_size": 50272,
            "max_position_embeddings": 2048,
            "word_embed_proj_dim": 4096,
        }
        assert param_counts(read(opt)).total == 6658473984
