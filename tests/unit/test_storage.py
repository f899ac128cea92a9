"""Bytes of weights: published checkpoint sizes, hand sums, and laws of sharding."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.specs.model import DenseFfn, LatentAttention, Layer, Model, MoeFfn, Mtp, SoftmaxAttention
from perfmodel.specs.quantization import Scheme, scheme_by_name
from perfmodel.units import GB, GIB, MIB
from perfmodel.work.storage import (
    rank_tensor,
    rank_weight_bytes,
    tensor_bytes,
    total_weight_bytes,
    weight_bytes,
)
from perfmodel.work.tensors import Tensor, model_tensors, mtp_tensors

FOLDER = Path(__file__).parents[2] / "models" / "quantization"
FILES: dict[str, dict[str, Any]] = {p.stem: yaml.safe_load(p.read_text()) for p in sorted(FOLDER.glob("*.yaml"))}


def load(name: str) -> Mapping[str, Any] | None:
    """Return the file of a scheme, None where there is none."""
    return FILES.get(name)


def scheme(name: str) -> Scheme:
    """Return a scheme by name."""
    return scheme_by_name(name, load)


def dense(
    *,
    n_layers: int,
    d: int,
    d_ff: int,
    heads: int,
    kv: int,
    vocab: int,
    tied: bool = False,
    bias: bool = False,
    qk_norm: bool = False,
    d_head: int = 128,
) -> Model:
    """Return a dense GQA model."""
    attention = SoftmaxAttention(
        n_heads=heads, n_kv_heads=kv, d_head=d_head, qkv_bias=bias, qk_norm="head" if qk_norm else "none"
    )
    layer = Layer(attention=attention, ffn=DenseFfn(d_ff=d_ff))
    return Model(name="m", d_model=d, vocab_size=vocab, tied_embeddings=tied, layers=(layer,), pattern=(0,) * n_layers)


LLAMA_2_7B = dense(n_layers=32, d=4096, d_ff=11008, heads=32, kv=32, vocab=32000)
LLAMA_31_8B = dense(n_layers=32, d=4096, d_ff=14336, heads=32, kv=8, vocab=128256)
LLAMA_31_70B = dense(n_layers=80, d=8192, d_ff=28672, heads=64, kv=8, vocab=128256)
QWEN25_05B = dense(n_layers=24, d=896, d_ff=4864, heads=14, kv=2, vocab=151936, tied=True, bias=True, d_head=64)
QWEN25_15B = dense(n_layers=28, d=1536, d_ff=8960, heads=12, kv=2, vocab=151936, tied=True, bias=True)
QWEN25_7B = dense(n_layers=28, d=3584, d_ff=18944, heads=28, kv=4, vocab=152064, bias=True)
QWEN25_14B = dense(n_layers=48, d=5120, d_ff=13824, heads=40, kv=8, vocab=152064, bias=True)
QWEN25_32B = dense(n_layers=64, d=5120, d_ff=27648, heads=40, kv=8, vocab=152064, bias=True)
QWEN3_8B = dense(n_layers=36, d=4096, d_ff=12288, heads=32, kv=8, vocab=151936, qk_norm=True)


def gpt_oss(n_layers: int, n_experts: int) -> Model:
    """Return a gpt-oss model."""
    attention = SoftmaxAttention(n_heads=64, n_kv_heads=8, d_head=64, qkv_bias=True, o_bias=True, sinks=True)
    ffn = MoeFfn(n_experts=n_experts, top_k=4, d_expert=2880, expert_bias=True, router_bias=True)
    layer = Layer(attention=attention, ffn=ffn)
    return Model(name="gpt-oss", d_model=2880, vocab_size=201088, layers=(layer,), pattern=(0,) * n_layers)


def deepseek_v3() -> Model:
    """Return DeepSeek-V3 with its multi-token-prediction module."""
    attention = LatentAttention(n_heads=128, q_lora_rank=1536, kv_lora_rank=512, d_nope=128, d_rope=64, d_value=128)
    moe = MoeFfn(n_experts=256, top_k=8, d_expert=2048, d_shared=2048, router_bias=True)
    layers = (Layer(attention=attention, ffn=DenseFfn(d_ff=18432)), Layer(attention=attention, ffn=moe))
    return Model(
        name="deepseek-v3",
        d_model=7168,
        vocab_size=129280,
        layers=layers,
        pattern=(0,) * 3 + (1,) * 58,
        mtp=Mtp(n_modules=1),
    )


def n_params(model: Model) -> int:
    """Return the parameter count."""
    return sum(n * t.n_params for t, n in model_tensors(model))


def bits_per_weight(model: Model, name: str) -> float:
    """Return bits of storage for each parameter of the whole model."""
    return 8 * total_weight_bytes(model, scheme(name)) / n_params(model)


class TestPublishedSizes:
    def test_llama_31_70b_in_16_bits(self) -> None:
        # 70,553,706,496 weights x 2 bytes
        size = total_weight_bytes(LLAMA_31_70B, scheme("none"))
        assert size == 2 * 70_553_706_496
        assert size / GIB == pytest.approx(131.42, abs=0.005)
        assert size / GB == pytest.approx(141.11, abs=0.005)

    @pytest.mark.parametrize(("model", "bits"), [(LLAMA_2_7B, 4.62), (LLAMA_31_8B, 5.71), (QWEN25_7B, 5.85)])
    def test_awq_over_the_whole_model(self, model: Model, bits: float) -> None:
        # Llama-2-7B: 6.4765e9 linear weights x 4.15625 bits + 0.2622e9 others x 16, over 6.7384e9
        assert bits_per_weight(model, "awq-int4-g128") == pytest.approx(bits, abs=0.005)

    def test_awq_of_llama_31_70b(self) -> None:
        assert bits_per_weight(LLAMA_31_70B, "awq-int4-g128") == pytest.approx(4.51, abs=0.005)

    @pytest.mark.parametrize(("layers", "experts", "bits", "gib"), [(24, 32, 5.26, 12.82), (36, 128, 4.47, 60.77)])
    def test_gpt_oss_holds_mxfp4_in_experts_only(self, layers: int, experts: int, bits: float, gib: float) -> None:
        model = gpt_oss(layers, experts)
        assert bits_per_weight(model, "mxfp4") == pytest.approx(bits, abs=0.01)
        assert total_weight_bytes(model, scheme("mxfp4")) / GIB == pytest.approx(gib, abs=0.005)

    def test_deepseek_v3_repository(self) -> None:
        # 680,571,043,840 FP8, 3,918,786,560 BF16, 41,555,600 F32 (41,540,496 block scales, 59 x 256 router biases)
        exact = 680_571_043_840 + 2 * 3_918_786_560 + 4 * 41_555_600
        assert total_weight_bytes(deepseek_v3(), scheme("fp8-block128"), with_mtp=True) == exact
        assert exact / GB == pytest.approx(688.57, abs=0.01)

    def test_qwen25_14b_q4_k_m_as_llama_cpp_reports_it(self) -> None:
        assert total_weight_bytes(QWEN25_14B, scheme("q4_k_m")) == 8_982_142_976

    @pytest.mark.parametrize(
        ("model", "bits"), [(LLAMA_2_7B, 4.84), (LLAMA_31_8B, 4.89), (QWEN25_15B, 5.08), (QWEN25_05B, 6.35)]
    )
    def test_q4_k_m_is_not_one_number_of_bits(self, model: Model, bits: float) -> None:
        assert bits_per_weight(model, "q4_k_m") == pytest.approx(bits, abs=0.005)

    def test_a_tied_table_is_stored_as_the_head(self) -> None:
        # llama.cpp prints 934.69 MiB (5.08 BPW) for Qwen2.5-1.5B: its one table is Q6_K
        assert total_weight_bytes(QWEN25_15B, scheme("q4_k_m")) / MIB == pytest.approx(934.69, abs=0.005)

    def test_qwen25_05b_falls_back_where_256_does_not_divide(self) -> None:
        # d_model 896 is no multiple of 256: attention and gate/up in Q5_0 (v_proj and embedding Q8_0), while down_proj
        # with d_in 4864 = 19 x 256 keeps Q4_K
        s = scheme("q4_k_m")
        gate = Tensor("gate_proj", "dense_mlp", 896, 4864)
        down = Tensor("down_proj", "dense_mlp", 4864, 896)
        assert tensor_bytes(gate, s) * 8 / gate.n_weights == 5.5
        assert tensor_bytes(down, s, layer=4, n_layers=24) * 8 / down.n_weights == 4.5
        assert tensor_bytes(Tensor("v_proj", "attention", 896, 128), s, layer=0, n_layers=24) == 896 * 128 * 34 / 32

    def test_qwen3_8b_fp8_saves_a_byte_for_each_linear_weight(self) -> None:
        # 36 x (2 x 4096 x 4096 + 2 x 4096 x 1024 + 3 x 4096 x 12288) = 6.946e9 bytes = 6.47 GiB
        saved = total_weight_bytes(QWEN3_8B, scheme("none")) - total_weight_bytes(QWEN3_8B, scheme("fp8"))
        assert saved / GIB == pytest.approx(6.47, abs=0.005)

    def test_qwen25_32b_awq_does_not_fit_into_nine_gib(self) -> None:
        # 31.2e9 x 4.156 bits = 16.2e9, and 2 x 152064 x 5120 x 2 bytes = 3.1e9: 18.0 GiB
        assert total_weight_bytes(QWEN25_32B, scheme("awq-int4-g128")) / GIB == pytest.approx(18.0, rel=0.01)

    def test_qwen25_7b_nf4_keeps_embeddings_wide(self) -> None:
        # 6.525e9 x 4.5 bits = 3.67e9 and 2 x 152064 x 3584 x 2 bytes = 2.18e9: 5.45 GiB in blocks of 64
        assert total_weight_bytes(QWEN25_7B, scheme("bnb-nf4")) / GIB == pytest.approx(5.45, abs=0.01)


class TestTensorBytes:
    MATRIX = Tensor("q_proj", "attention", 4096, 4096)

    @pytest.mark.parametrize(
        ("name", "bits"),
        [
            ("awq-int4-g128", 4.15625),  # 4 + 16/128 + 4/128
            ("awq-int4-g64", 4.3125),
            ("awq-int4-g32", 4.625),
            ("gptq-int4-g128", 4.15625 + 32 / 4096),  # g_idx: 32 bits an input row over 4096 outputs
            ("marlin-int4-g128", 4.125),
            ("int4-g32", 5.0),
            ("w8a8-ascend", 8 + 96 / 4096),
            ("w8a8-ascend-fp16", 8 + 128 / 4096),
            ("w8a8-ascend-dynamic", 8 + 32 / 4096),
            ("fp8-channel", 8 + 32 / 4096),
            ("fp8-block128", 8 + 32 / 128**2),
            ("nvfp4", 4.5 + 64 / 4096**2),
            ("mxfp4-all", 4.25),
            ("mxfp4", 16),
            ("bnb-nf4", 4.5),
            ("bnb-nf4-double", 4.126953125),
            ("q8_0", 8.5),
            ("q6_k", 6.5625),
            ("q4_0", 4.5),
            ("fp32", 32),
            ("none", 16),
        ],
    )
    def test_bits_of_a_matrix(self, name: str, bits: float) -> None:
        assert tensor_bytes(self.MATRIX, scheme(name)) * 8 / 4096**2 == pytest.approx(bits, rel=1e-12)

    def test_a_bias_is_not_quantised(self) -> None:
        with_bias = Tensor("q_proj", "attention", 4096, 4096, bias=True)
        s = scheme("awq-int4-g128")
        assert tensor_bytes(with_bias, s) - tensor_bytes(self.MATRIX, s) == 2 * 4096
        assert tensor_bytes(with_bias, scheme("q8_0")) - tensor_bytes(self.MATRIX, scheme("q8_0")) == 4 * 4096

    def test_broken_groups_and_blocks_count_whole(self) -> None:
        # 200 rows: 2 groups of 128, 2 x 2 blocks for 200 x 200
        matrix = Tensor("q_proj", "attention", 200, 200)
        assert tensor_bytes(matrix, scheme("marlin-int4-g128")) == (4 * 200 * 200 + 16 * 2 * 200) / 8
        assert tensor_bytes(matrix, scheme("fp8-block128")) == 200 * 200 + 4 * 4

    def test_layers_average_to_the_whole(self) -> None:
        down = Tensor("down_proj", "dense_mlp", 11008, 4096)
        s = scheme("q4_k_m")
        each = [tensor_bytes(down, s, layer=i, n_layers=32) for i in range(32)]
        assert sum(each) / 32 == pytest.approx(tensor_bytes(down, s, n_layers=32), rel=1e-12)
        assert len(set(each)) == 2


class TestMonotone:
    @pytest.mark.parametrize("model", [LLAMA_31_8B, gpt_oss(4, 32), deepseek_v3(), QWEN25_05B])
    def test_fewer_bits_fewer_bytes(self, model: Model) -> None:
        ladder = ["fp32", "none", "q8_0", "q6_k", "q5_k_m", "q4_k_m"]
        sizes = [total_weight_bytes(model, scheme(name)) for name in ladder]
        assert sizes == sorted(sizes, reverse=True)
        groups = [f"awq-int4-g{g}" for g in (32, 64, 128)] + ["marlin-int4-g128"]
        sizes = [total_weight_bytes(model, scheme(name)) for name in groups]
        assert sizes == sorted(sizes, reverse=True)

    @pytest.mark.parametrize("name", sorted(set(FILES) - {"fp32"}))
    def test_no_scheme_is_larger_than_16_bits(self, name: str) -> None:
        assert total_weight_bytes(LLAMA_31_8B, scheme(name)) <= total_weight_bytes(LLAMA_31_8B, scheme("none"))


class TestSharding:
    def test_norms_are_whole_on_each_rank(self) -> None:
        # two norms a layer of 4096 each, and the final one, 2 bytes an element
        own = rank_weight_bytes(LLAMA_2_7B, scheme("none"), tp=4)
        assert own["norm"] == (32 * 8192 + 4096) * 2

    def test_key_value_heads_are_never_split(self) -> None:
        k = Tensor("k_proj", "attention", 4096, 8 * 128, shard="kv_columns", kv_heads=8)
        assert [rank_tensor(k, tp=tp).d_out for tp in (1, 2, 8, 16)] == [1024, 512, 128, 128]

    def test_bias_of_a_row_split_matrix_is_whole(self) -> None:
        o = rank_tensor(Tensor("o_proj", "attention", 4096, 4096, shard="rows", bias=True), tp=4)
        assert (o.d_in, o.n_biases) == (1024, 4096)

    def test_vocabulary_is_padded_first(self) -> None:
        # 32001 -> 32064 = 501 x 64; a quarter is 8016
        head = Tensor("lm_head", "lm_head", 4096, 32001, shard="vocab", linear=False)
        embed = Tensor("embed_tokens", "embed", 32001, 4096, shard="vocab", linear=False)
        assert rank_tensor(head, tp=4, vocab_pad=64).d_out == 8016
        assert rank_tensor(embed, tp=4, vocab_pad=64).d_in == 8016
        assert rank_tensor(head, tp=4).d_out == 8001

    def test_experts_split_by_number_or_by_width(self) -> None:
        gate = Tensor("gate_proj", "experts", 7168, 2048, n=256, shard="experts")
        down = Tensor("down_proj", "experts", 2048, 7168, n=256, shard="experts")
        assert rank_tensor(gate, tp=8, ep=8).n == 32
        assert rank_tensor(gate, tp=8, ep=8).d_out == 2048
        assert rank_tensor(gate, tp=8).d_out == 256
        assert rank_tensor(down, tp=8).d_in == 256
        assert rank_tensor(down, tp=8, ep=2, moe_tp=4).d_in == 512
        assert rank_tensor(gate, tp=1, ep=3).n == 86

    def test_latent_projections_are_whole_on_each_rank(self) -> None:
        a = rank_tensor(Tensor("kv_a_proj", "attention", 7168, 576), tp=8)
        assert a.n_weights == 7168 * 576

    def test_pipeline_stages_add_up(self) -> None:
        for name in ("none", "awq-int4-g128", "q4_k_m"):
            s = scheme(name)
            first = rank_weight_bytes(QWEN25_7B, s, layers=(0, 10), has_head=False)
            last = rank_weight_bytes(QWEN25_7B, s, layers=(10, 28), has_embedding=False)
            total = total_weight_bytes(QWEN25_7B, s)
            assert sum(first.values()) + sum(last.values()) == pytest.approx(total, rel=1e-12)

    @pytest.mark.parametrize("name", ["none", "q4_k_m", "q4_0"])
    def test_last_stage_has_its_own_copy_of_a_tied_table(self, name: str) -> None:
        s = scheme(name)
        first = rank_weight_bytes(QWEN25_15B, s, layers=(0, 14), has_head=False)
        last = rank_weight_bytes(QWEN25_15B, s, layers=(14, 28), has_embedding=False)
        assert last["lm_head"] == pytest.approx(first["embed"], rel=1e-12)
        whole = rank_weight_bytes(QWEN25_15B, s)
        assert "lm_head" not in whole
        assert sum(whole.values()) == pytest.approx(total_weight_bytes(QWEN25_15B, s), rel=1e-12)

    def test_parts_are_those_of_the_whole(self) -> None:
        model = deepseek_v3()
        whole = weight_bytes(model, scheme("fp8-block128"))
        assert rank_weight_bytes(model, scheme("fp8-block128")) == whole
        assert set(whole) == {
            "embed",
            "lm_head",
            "attention",
            "norm",
            "dense_mlp",
            "router",
            "experts",
            "shared_experts",
        }
        assert not mtp_tensors(LLAMA_2_7B)

    def test_a_split_does_not_change_the_format_of_a_gguf_tensor(self) -> None:
        # 13824 / 4 is no multiple of 256, yet down_proj stays in Q4_K and Q6_K
        s = scheme("q4_k_m")
        own, whole = rank_weight_bytes(QWEN25_14B, s, tp=4), weight_bytes(QWEN25_14B, s)
        assert own["dense_mlp"] * 4 == pytest.approx(whole["dense_mlp"], rel=1e-12)

    def test_group_scales_shard_with_their_weights(self) -> None:
        # rows 11008 / 4 = 2752 = 21.5 groups of 128: each rank holds 22, so four ranks hold 2 more than one device
        down = Tensor("down_proj", "dense_mlp", 11008, 4096, shard="rows")
        s = scheme("marlin-int4-g128")
        extra = 4 * tensor_bytes(rank_tensor(down, tp=4), s) - tensor_bytes(down, s)
        assert extra == 2 * 4096 * 2

    @settings(max_examples=60, deadline=None)
    @given(
        tp=st.sampled_from([1, 2, 3, 4, 8, 16]),
        ep=st.sampled_from([1, 2, 4]),
        heads=st.integers(1, 24),
        kv=st.integers(1, 8),
        d_ff=st.integers(1, 3000),
        vocab=st.integers(1, 3000),
        name=st.sampled_from(sorted(FILES)),
        experts=st.integers(0, 9),
    )
    def test_ranks_together_hold_at_least_the_whole(
        self, tp: int, ep: int, heads: int, kv: int, d_ff: int, vocab: int, name: str, experts: int
    ) -> None:
        attention = SoftmaxAttention(n_heads=heads * kv, n_kv_heads=kv, d_head=64, qkv_bias=True)
        ffn = MoeFfn(n_experts=experts, top_k=1, d_expert=d_ff) if experts else DenseFfn(d_ff=d_ff)
        layer = Layer(attention=attention, ffn=ffn)
        model = Model(name="m", d_model=512, vocab_size=vocab, layers=(layer,), pattern=(0, 0, 0))
        s = scheme(name)
        whole = total_weight_bytes(model, s)
        moe_tp = max(1, tp // ep)
        own = sum(rank_weight_bytes(model, s, tp=tp, ep=ep, moe_tp=moe_tp).values())
        n_ranks = max(tp, ep * moe_tp)
        assert own * n_ranks >= whole * (1 - 1e-12)
        assert own <= whole * (1 + 1e-12)

    @pytest.mark.parametrize("name", ["none", "fp32", "awq-int4-g128", "marlin-int4-g128", "fp8-block128", "q4_0"])
    @pytest.mark.parametrize("tp", [2, 4, 8])
    def test_ranks_together_hold_the_whole_where_all_divides(self, name: str, tp: int) -> None:
        s = scheme(name)
        whole = weight_bytes(LLAMA_31_70B, s)
        own = rank_weight_bytes(LLAMA_31_70B, s, tp=tp)
        for part in ("embed", "lm_head", "attention", "dense_mlp"):
            assert own[part] * tp == pytest.approx(whole[part], rel=1e-12)
