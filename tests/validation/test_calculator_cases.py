"""Figures that calculators got wrong, questions with a checkable answer, and the right values, from public threads."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.errors import SpecError
from perfmodel.specs.hf_config import model_from_config
from perfmodel.specs.layout import Layout
from perfmodel.units import GB, GIB, TERA
from perfmodel.work.kv import kv_bytes_per_token, kv_footprint, kv_heads_per_rank
from perfmodel.work.memory import memory_plan
from perfmodel.work.memory_rules import MemoryOptions, cached_model, kv_capacity_tokens
from perfmodel.work.memory_types import MemoryCase
from perfmodel.work.storage import rank_tensor, total_weight_bytes, weight_bytes
from perfmodel.work.tensors import layer_tensors, model_tensors, mtp_tensors
from tests.validation.memory_parts import CONFIGS, case, device, model, runtime, scheme


@pytest.mark.parametrize(
    ("source", "name", "right", "wrong"),
    [
        ("jranaraki/vllm-fit#2", "llama-2-7b", 524288, 2 * 32 * 32 * 4096 * 4 // 8),
        ("vllm-project/vllm PR#29736", "llama-3.1-8b", 131072, 2 * 32 * 4096 * 2),
    ],
    ids=["calc-01", "calc-02"],
)
def test_calc_kv_per_token(source: str, name: str, right: int, wrong: int) -> None:
    assert source
    assert kv_bytes_per_token(model(name)) == right
    assert wrong > right


@pytest.mark.parametrize(
    ("name", "hidden", "heads", "head_dim", "guess", "error_pct"),
    [
        ("mistral-small-24b", 5120, 32, 128, 160, 25.0),
        ("gpt-oss-20b", 2880, 64, 64, 45, -29.7),
        ("gemma-3-12b", 3840, 16, 256, 240, -6.2),
    ],
    ids=["calc-03-mistral", "calc-03-gpt-oss", "calc-03-gemma"],
)
def test_calc_03(name: str, hidden: int, heads: int, head_dim: int, guess: int, error_pct: float) -> None:
    """NVIDIA/Model-Optimizer#2482: head width guessed as hidden / heads."""
    config = {
        **CONFIGS["llama-2-7b"],
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": head_dim,
    }
    truth = kv_bytes_per_token(model_from_config(config, name=name))
    assert truth == 32 * 8 * 2 * head_dim * 2
    assert hidden // heads == guess
    assert 100 * (guess / head_dim - 1) == pytest.approx(error_pct, rel=0.02)


def test_calc_04() -> None:
    """cli99/llm-analysis#19: two norms a layer, and tensor parallelism does not divide them."""
    one = model("llama-2-7b")
    norms = [t for t in layer_tensors(one.layers[0], one.d_model) if t.part == "norm"]
    assert sum(t.n_params for t in norms) == 8192
    assert sum(rank_tensor(t, tp=4).n_params for t in norms) == 8192


def test_calc_05() -> None:
    """gpustack/gguf-parser-go#8: DeepSeek-R1 at 65,536 tokens as latents, and as expanded heads."""
    assert 65536 * kv_bytes_per_token(model("deepseek-v3")) / GIB == pytest.approx(4.289, rel=0.001)
    whole = runtime("vllm-0.6.3").model_copy(update={"expanded_head": None})
    expanded = kv_bytes_per_token(cached_model(model("deepseek-v3"), whole))
    assert 65536 * expanded / GIB == pytest.approx(305.0, rel=0.01)


def test_calc_06() -> None:
    """huggingface/transformers PR#48566: blocks of 256 sized with all KV heads under TP4."""
    one = model("qwen3-32b")
    assert kv_bytes_per_token(one) / kv_bytes_per_token(one, tp=4) == 4.0
    assert pytest.approx(4.0, rel=0.003) == 834000 / 208000
    assert pytest.approx(4.0, rel=0.001) == 3258 / 814
    assert {round(208000 / 814), round(834000 / 3258)} == {256}


@pytest.mark.parametrize(("heads", "tp", "copies"), [(8, 32, 4), (4, 8, 2)])
def test_calc_07(heads: int, tp: int, copies: int) -> None:
    """tenstorrent/vllm PR#50, huggingface/transformers#48307: more ranks than KV heads."""
    assert kv_heads_per_rank(heads, tp) == 1
    assert tp * kv_heads_per_rank(heads, tp) // heads == copies


def test_calc_08() -> None:
    """AlexsJones/llmfit#1045: eight 4-bit weights in an int32 are eight parameters, whatever the file's header says."""
    one, quantised = model("llama-3.1-8b"), scheme("gptq-int4-g128")
    linear = sum(t.n_weights * n for t, n in model_tensors(one) if t.linear)
    assert 32 / quantised.weight_bits == 8
    packed = linear / 8 + sum(t.n_params * n for t, n in model_tensors(one) if not t.linear)
    assert packed == pytest.approx(2e9, rel=0.1)  # what the header's element count suggests: "2B"
    assert sum(t.n_params * n for t, n in model_tensors(one)) == 8030261248


def test_calc_09() -> None:
    """alvarobartt/hf-mem#60: gpt-oss-20b, 32 sequences of 8,192: 12.00 GiB, or 6.09 where windows are released."""
    one = model("gpt-oss-20b")
    assert 32 * float(kv_footprint(one).held_bytes(8192.0)) / GIB == pytest.approx(6.09, rel=0.002)
    keeps = cached_model(one, runtime("vllm-0.7.3"))
    assert 32 * float(kv_footprint(keeps).held_bytes(8192.0)) / GIB == 12.0


def test_calc_10() -> None:
    """huggingface/accelerate#3379: Llama-3.1-70B in 16 bits; the printed 64.73 is one byte a weight, less the head."""
    parts = weight_bytes(model("llama-3.1-70b"), scheme("none"))
    total = sum(parts.values())
    assert total / GIB == pytest.approx(131.42, rel=0.001)
    assert total / GB == pytest.approx(141.11, rel=0.001)
    assert (total - parts["lm_head"]) / 2 / GIB == pytest.approx(64.73, rel=0.001)


def test_calc_11() -> None:
    """rohitg00/ai-engineering-from-scratch PR#57: Llama-2 at 32,768 tokens."""
    assert 32768 * kv_bytes_per_token(model("llama-2-7b")) / GIB == 16.0
    assert 32768 * kv_bytes_per_token(model("llama-2-70b")) / GIB == 10.0


def test_calc_12() -> None:
    """deepseek-ai/DeepSeek-V3#231: 671 B in all, 37 B active, 685 B with the prediction module."""
    v3 = model("deepseek-v3")
    assert sum(t.n_params * n for t, n in model_tensors(v3)) == 671026419200
    active = sum(t.n_params * n * (8 / 256 if t.part == "experts" else 1) for t, n in model_tensors(v3))
    assert active == 37552297472
    embedding = v3.vocab_size * v3.d_model
    assert active - embedding == pytest.approx(36625612800, rel=1e-4)
    with_mtp = 671026419200 + sum(t.n_params for t in mtp_tensors(v3))
    assert with_mtp / 1e9 == pytest.approx(685, rel=0.002)
    lite = model("deepseek-v2-lite")
    assert sum(t.n_params * n for t, n in model_tensors(lite)) == 15706484224
    active = sum(t.n_params * n * (6 / 64 if t.part == "experts" else 1) for t, n in model_tensors(lite))
    assert active - 2 * lite.vocab_size * lite.d_model >= 2.242e9 * 0.999
    assert active <= 2.661e9 * 1.001


def test_sane_01() -> None:
    """Claim: DeepSeek-R1 in BF16 on sixteen 64 GB 910B, 58 GB each. It is 83.9 GB each; 32 cards are needed."""
    total = total_weight_bytes(model("deepseek-v3"), scheme("none"))
    assert total / 16 / GB == pytest.approx(83.9, rel=0.001)
    fits = {}
    for n in (8, 16, 32, 64):
        one = MemoryCase(
            model("deepseek-v3"),
            scheme("none"),
            Layout(tp=8, pp=n // 8),
            runtime("vllm-ascend-0.18"),
            (device("ascend-910b2"),),
            MemoryOptions(max_model_len=8192),
        )
        fits[n] = memory_plan(one).starts
    assert fits == {8: False, 16: False, 32: True, 64: True}
    w8a8 = MemoryCase(
        model("deepseek-v3"),
        scheme("w8a8-ascend"),
        Layout(tp=16),
        runtime("vllm-ascend-0.18"),
        (device("ascend-910b2"),),
        MemoryOptions(max_model_len=8192),
    )
    assert memory_plan(w8a8).starts


def test_sane_02() -> None:
    """vllm-project/vllm#2107: an A100-SXM decodes for one user as fast as an H100-PCIe: equal memory bandwidth."""
    assert device("a100-80gb-sxm").dram_bytes_per_s / device("h100-pcie").dram_bytes_per_s == pytest.approx(1, rel=0.05)


def test_sane_04() -> None:
    """harvard-edge/cs249r_book PR#1591: 70 B weights of 4 bits at 3.35 TB/s: 95.7 tokens a second, not 24."""
    bits = scheme("int4-g32").weight_bits
    assert 3.35 * TERA / (70e9 * bits / 8) == pytest.approx(95.7, rel=0.002)


def test_sane_05() -> None:
    """sgl-project/sglang#3640: R1 in BF16 on 24 A100-80GB: 55.9 GB each fit, but 24 does not divide the heads."""
    r1 = model("deepseek-v3")
    assert total_weight_bytes(r1, scheme("none")) / 24 / GB == pytest.approx(55.9, rel=0.002)
    with pytest.raises(SpecError):
        Layout(tp=24).checked_for(r1)
    layout = Layout(tp=8, pp=3).checked_for(r1)
    options = MemoryOptions(max_model_len=8192)
    plan = memory_plan(
        MemoryCase(r1, scheme("none"), layout, runtime("sglang-0.5"), (device("a100-80gb-sxm"),), options)
    )
    assert plan.starts


def test_two_unequal_cards_in_a_pipeline() -> None:
    """vllm-project/vllm#34076: 16 and 32 GB cards with 16 and 32 layers: about 104k tokens, not 34,736.

    The thread's figures are for one pool sized by the smaller card and counted with all layers; each stage holds the
    KV of its own layers only.
    """
    one = case(
        "qwen2.5-14b",
        "vllm-0.11",
        ("ascend-310p", "rtx-5090"),
        pp=2,
        stages=(16, 32),
        quant="awq-int4-g128",
        utilization=0.9,
    )
    plan = memory_plan(one)
    small, large = plan.stages
    assert large.block_bytes == 2 * small.block_bytes
    assert plan.n_blocks == min(small.n_blocks, large.n_blocks)
    naive = small.n_blocks * small.block_bytes / (small.block_bytes + large.block_bytes)
    assert small.n_blocks == pytest.approx(3 * naive, abs=3)
    assert 104_208 == 3 * 34_736


def test_capacity_formula_takes_arrays() -> None:
    found = kv_capacity_tokens(
        available_bytes=np.array([-1.0, 3.81 * GIB, 2.89 * GIB]), bytes_per_token=131072.0, block_tokens=16.0
    )
    assert np.asarray(found).tolist() == [0.0, 31200.0, 23664.0]
