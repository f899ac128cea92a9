"""Parameter counts and cache bytes by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.specs.hf_config import model_from_config
from perfmodel.specs.model import DenseFfn, Indexer, LatentAttention, Layer, LinearAttention, Model, SoftmaxAttention
from perfmodel.work.kv import (
    KvFootprint,
    kv_bytes_per_token,
    kv_elements_per_token,
    kv_footprint,
    kv_heads_per_rank,
    layer_kv_footprint,
)
from perfmodel.work.params import param_counts
from perfmodel.work.tensors import model_tensors, mtp_tensors
from tests.validation.memory_parts import CONFIGS

DEEPSEEK_V3 = CONFIGS["deepseek-v3"]
DEEPSEEK_V2_LITE = {
    **DEEPSEEK_V3,
    "model_type": "deepseek_v2",
    "num_hidden_layers": 27,
    "first_k_dense_replace": 1,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "num_experts_per_tok": 6,
    "n_shared_experts": 2,
    "q_lora_rank": None,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 102400,
    "num_nextn_predict_layers": 0,
}


def small(**overrides: object) -> Model:
    layer = Layer(attention=SoftmaxAttention(n_heads=4, n_kv_heads=2, d_head=8), ffn=DenseFfn(d_ff=64))
    values: dict[str, object] = {
        "name": "m",
        "d_model": 32,
        "vocab_size": 100,
        "layers": (layer,),
        "pattern": (0, 0, 0),
    }
    return Model.model_validate({**values, **overrides})


def latent(indexer: Indexer | None = None) -> Layer:
    attention = LatentAttention(
        n_heads=16, kv_lora_rank=512, q_lora_rank=None, d_nope=128, d_rope=64, d_value=128, indexer=indexer
    )
    return Layer(attention=attention, ffn=DenseFfn(d_ff=64))


class TestParams:
    def test_small_model_by_hand(self) -> None:
        counts = param_counts(small())
        # attention 32x32 + 2 x 32x16 + 32x32 = 3072; MLP 3 x 32x64 = 6144; norms 2 x 32
        assert counts.total == 2 * 3200 + 3 * (3072 + 6144 + 64) + 32
        assert counts.by_part == {
            "embed": 3200,
            "lm_head": 3200,
            "norm": 3 * 64 + 32,
            "attention": 3 * 3072,
            "dense_mlp": 3 * 6144,
        }
        assert counts.active_excl_input_embedding == counts.total - 3200
        assert counts.active_excl_embed_and_head == counts.total - 6400

    def test_a_tied_table_is_stored_once_and_read_as_head(self) -> None:
        counts = param_counts(small(tied_embeddings=True))
        assert counts.by_part.get("lm_head") is None
        assert counts.active_excl_input_embedding == counts.active_incl_embedding == counts.total
        assert counts.active_excl_embed_and_head == counts.total - 3200

    def test_deepseek_v3_with_all_three_customs(self) -> None:
        counts = param_counts(model_from_config(DEEPSEEK_V3, name="v3"))
        assert counts.total == 671026419200
        assert counts.with_mtp == 684489845504  # a layer more, and embedding and head stored again
        assert counts.active_incl_embedding == 37552297472
        assert counts.active_excl_input_embedding == 36625618432
        assert counts.active_excl_embed_and_head == 35698939392

    def test_deepseek_v2_lite(self) -> None:
        counts = param_counts(model_from_config(DEEPSEEK_V2_LITE, name="lite"))
        assert counts.total == counts.with_mtp == 15706484224
        assert (counts.active_excl_embed_and_head, counts.active_incl_embedding) == (2241719808, 2661150208)

    def test_vision_is_stored_and_not_active(self) -> None:
        plain, seeing = param_counts(small()), param_counts(small(vision_params=1000))
        assert seeing.total == plain.total + 1000
        assert seeing.active_incl_embedding == plain.active_incl_embedding

    def test_parts_sum_to_the_total(self) -> None:
        model = model_from_config(DEEPSEEK_V3, name="v3")
        counts = param_counts(model)
        assert sum(counts.by_part.values()) == counts.total == sum(n * t.n_params for t, n in model_tensors(model))
        assert counts.mtp == sum(t.n_params for t in mtp_tensors(model))

    @given(st.integers(1, 6), st.integers(1, 6))
    def test_more_layers_or_heads_never_weigh_less(self, n_layers: int, n_heads: int) -> None:
        def total(layers: int, heads: int) -> int:
            layer = Layer(attention=SoftmaxAttention(n_heads=heads, n_kv_heads=1, d_head=8), ffn=DenseFfn(d_ff=8))
            return param_counts(small(layers=(layer,), pattern=(0,) * layers)).total

        assert total(n_layers + 1, n_heads) > total(n_layers, n_heads)
        assert total(n_layers, n_heads + 1) > total(n_layers, n_heads)


class TestCache:
    def test_grouped_queries_by_hand(self) -> None:
        assert kv_elements_per_token(small().layers[0]) == 2 * 2 * 8
        assert kv_bytes_per_token(small()) == 3 * 32 * 2
        assert kv_bytes_per_token(small(), kv_bytes_per_element=1.0) == 3 * 32

    @pytest.mark.parametrize(("n_kv", "tp", "kept"), [(8, 1, 8), (8, 8, 1), (8, 16, 1), (1, 4, 1), (10, 4, 3)])
    def test_heads_are_split_and_then_replicated(self, n_kv: Any, tp: Any, kept: Any) -> None:
        assert kv_heads_per_rank(n_kv, tp) == kept

    def test_a_latent_is_replicated_and_split_by_context(self) -> None:
        layer = latent()
        assert kv_elements_per_token(layer, tp=8) == 576
        assert layer_kv_footprint(layer, tp=8).bytes_per_token == 1152
        assert layer_kv_footprint(layer, dcp=4).bytes_per_token == 288

    def test_latent_wins_over_stated_heads(self) -> None:
        assert kv_bytes_per_token(model_from_config(DEEPSEEK_V3, name="v3")) == 70272  # 61 x 576 x 2

    def test_fp8_layout_of_sparse_attention(self) -> None:
        # 512 latent bytes, four 4-byte scales, 64 rope values of two bytes; index key 128 + 4
        layer = latent(Indexer(n_heads=64, d_head=128, top_k=2048))
        held = layer_kv_footprint(layer, kv_bytes_per_element=1.0, layout="fp8_ds_mla")
        assert (held.bytes_per_token, held.index_bytes_per_token) == (656, 132)

    def test_a_shared_indexer_keeps_no_keys(self) -> None:
        layer = latent(Indexer(n_heads=64, d_head=128, top_k=2048, shared=True))
        assert layer_kv_footprint(layer).index_bytes_per_token == 0

    def test_windows_fill_and_stop(self) -> None:
        layers = tuple(
            Layer(
                attention=SoftmaxAttention(n_heads=4, n_kv_heads=2, d_head=8, window_tokens=window),
                ffn=DenseFfn(d_ff=64),
            )
            for window in (None, 10, 100)
        )
        held = kv_footprint(small(layers=layers, pattern=(0, 1, 2, 1)))
        assert held.windows == ((128.0, 10.0), (64.0, 100.0))
        assert held.held_bytes(5.0) == 4 * 64 * 5
        assert held.held_bytes(50.0) == 64 * 50 + 128 * 10 + 64 * 50
        assert held.held_bytes(1000.0) == 64 * 1000 + 128 * 10 + 64 * 100
        assert (held.window_bytes_per_token, held.window_tokens, held.growth_bytes_per_token) == (192, 100, 64)

    def test_linear_state_is_split_by_heads(self) -> None:
        linear = LinearAttention(
            variant="gated_deltanet", n_key_heads=16, n_value_heads=32, d_key=128, d_value=128, conv_width=4
        )
        layer = Layer(attention=linear, ffn=DenseFfn(d_ff=64))
        # 32 x 128 x 128 in fp32, and 3 steps of 2 x 16 x 128 + 32 x 128 = 8192 values in 16 bit
        whole = 32 * 128 * 128 * 4 + 3 * 8192 * 2
        assert layer_kv_footprint(layer).state_bytes_per_sequence == whole
        assert layer_kv_footprint(layer, tp=4).state_bytes_per_sequence == whole / 4
        assert kv_elements_per_token(layer) == 0

    def test_slices_of_layers_sum_to_the_whole(self) -> None:
        model = model_from_config(DEEPSEEK_V3, name="v3")
        assert kv_footprint(model, stop=20) + kv_footprint(model, start=20) == kv_footprint(model)

    def test_arrays_equal_scalars(self) -> None:
        held = KvFootprint(10.0, 1.0, ((5.0, 100.0), (2.0, 7.0)), 3.0)
        lengths = np.array([0.0, 1.0, 50.0, 100.0, 1e6])
        together = held.held_bytes(lengths)
        assert isinstance(together, np.ndarray)
        assert together.tolist() == [held.held_bytes(float(n)) for n in lengths]

    @given(st.floats(0, 1e6), st.floats(0, 1e6))
    def test_longer_sequences_never_hold_less(self, a: float, b: float) -> None:
        held = KvFootprint(10.0, 1.0, ((5.0, 100.0),), 3.0)
        assert held.held_bytes(min(a, b)) <= held.held_bytes(max(a, b))
