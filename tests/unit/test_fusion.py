"""Fusion: laws that every chain keeps, hand-counted bytes, prices, and the ways to have cached keys and values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import InfeasibleError, SpecError, UnknownNameError
from perfmodel.step.fusion import chain_size, fusion, fusions, tokens_for_time, total_time
from perfmodel.step.recompute import break_even_flop_per_byte, break_even_tokens, kv_ways
from perfmodel.step.step import Engine
from perfmodel.work.fusion import Buffer, Chain, Operator
from perfmodel.work.fusion_chains import CHAINS, ChainSize, chain_of
from tests.unit.cli_parts import Run, answer

EngineOf = Callable[..., Engine]


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    """A random chain: each operator reads some of what is there and writes one new buffer."""
    sizes = draw(st.lists(st.floats(0.0, 1e9), min_size=2, max_size=8))
    there = ["b0"]
    operators = []
    for i in range(1, len(sizes)):
        reads = draw(st.lists(st.sampled_from(there), min_size=1, unique=True))
        operators.append(Operator(f"op{i}", tuple(reads), (f"b{i}",), flop=sizes[i]))
        there.append(f"b{i}")
    last = len(sizes) - 1
    roles = ["input" if i == 0 else "output" if i == last else "inner" for i in range(len(sizes))]
    buffers = tuple(Buffer(f"b{i}", size, role) for i, (size, role) in enumerate(zip(sizes, roles, strict=True)))  # type: ignore[arg-type]
    return Chain("random", buffers, tuple(operators))


@given(chains(), st.data())
@settings(max_examples=60, deadline=None)
def test_fused_never_moves_more_bytes_nor_has_more_launches(chain: Chain, data: st.DataObject) -> None:
    names = [operator.name for operator in chain.operators]
    first = data.draw(st.integers(0, len(names) - 1))
    last = data.draw(st.integers(first, len(names) - 1))
    part, whole = chain.fused([names[first : last + 1]]), chain.fused()
    assert whole.n_bytes <= part.n_bytes <= chain.n_bytes
    assert 1 == whole.n_launches <= part.n_launches <= chain.n_launches
    assert whole.flop == pytest.approx(chain.flop)
    assert whole.unreleased_bytes <= chain.unreleased_bytes
    assert chain.peak_live_bytes <= chain.unreleased_bytes


@given(chains())
@settings(max_examples=40, deadline=None)
def test_fusing_nothing_changes_nothing(chain: Chain) -> None:
    assert chain.fused([]).operators == chain.operators
    assert chain.fused([]).peak_live_bytes == chain.peak_live_bytes


@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v2-lite", "qwen3-8b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_every_shipped_chain_gains_within_its_limit(engine_of: EngineOf, model: str, phase: str) -> None:
    engine = engine_of(model, "a100-80gb-sxm")
    size = chain_size(phase=phase, n_seqs=4.0, input_tokens=1024.0)  # type: ignore[arg-type]
    found = fusions(engine, size, phase=phase)  # type: ignore[arg-type]
    assert {one.name for one in found} >= {"kv-write", "softmax", "swiglu", "add-norm"}
    for one in found:
        assert one.after.n_bytes <= one.before.n_bytes
        if one.name != "attention":  # flash attention is a kernel of another class
            assert 1.0 <= one.time_ratio <= one.time_ratio_limit * (1 + 1e-12)
        lasting = [b.n_bytes for b in one.before.chain.buffers if b.role in ("input", "output", "held")]
        assert one.after.peak_live_bytes <= max(float(one.before.peak_live_bytes), float(sum(lasting)))


def test_scalar_and_array_agree(engine_of: EngineOf) -> None:
    engine = engine_of("llama-3.1-8b", "a100-80gb-sxm")
    tokens = np.array([1.0, 100.0, 5000.0])
    many = fusions(engine, chain_size(phase="decode", n_seqs=tokens, input_tokens=64.0), phase="decode")
    for i, n in enumerate(tokens):
        alone = fusions(engine, chain_size(phase="decode", n_seqs=float(n), input_tokens=64.0), phase="decode")
        by_name = {one.name: one for one in alone}
        for one in many:
            assert np.broadcast_to(one.time_ratio, 3)[i] == pytest.approx(by_name[one.name].time_ratio, rel=1e-12)


def test_swiglu_by_hand(engine_of: EngineOf) -> None:
    # llama-3.1-8b: width 14336, 2 bytes: a row of one tensor is 28672 bytes. Apart: silu 2, multiply 3 rows; fused 3.
    setup = engine_of("llama-3.1-8b", "a100-80gb-sxm").setup
    chain = chain_of("swiglu", setup, setup.model.layers[0], ChainSize(10.0, 0.0))
    assert chain is not None
    assert chain.n_bytes == 10 * 5 * 28672
    assert chain.fused().n_bytes == 10 * 3 * 28672
    assert chain.fused().n_launches == 1
    assert chain.peak_live_bytes == chain.fused().peak_live_bytes == 10 * 3 * 28672


def test_latent_cache_write_by_hand(engine_of: EngineOf) -> None:
    # DeepSeek-V2-Lite: latent 512, rope 64. Elements a token, without the norm weight: norm 2 x 512, rope 3 x 64,
    # join 2 x 576, write 2 x 576 = 3520; fused reads 512 + 64 + 64 (table) and writes 576 = 1216. An element of the
    # latent passes three kernels apart, one fused.
    setup = engine_of("deepseek-v2-lite", "a100-80gb-sxm").setup
    chain = chain_of("kv-write", setup, setup.model.layers[0], ChainSize(1000.0, 0.0))
    assert chain is not None
    assert chain.n_bytes == 1000 * 3520 * 2 + 512 * 2
    assert chain.fused().n_bytes == 1000 * 1216 * 2 + 512 * 2
    assert chain.passes("latent") == 3
    assert chain.fused().passes("latent") == 1


def test_three_passes_to_one_move_at_most_three_times_the_bytes(engine_of: EngineOf) -> None:
    for model in ("llama-2-7b", "deepseek-v2-lite", "deepseek-v3"):
        setup = engine_of(model, "a100-80gb-sxm").setup
        chain = chain_of("kv-write", setup, setup.model.layers[0], ChainSize(4096.0, 0.0))
        assert chain is not None
        assert chain.n_bytes / chain.fused().n_bytes < 3.0


def test_writing_keys_and_values_frees_no_memory(engine_of: EngineOf) -> None:
    # What a step hands to the next is freed before the chain ends, so that the peak is input and output either way:
    # fused, the table of the rotation is alive too.
    found = fusions(
        engine_of("llama-2-7b", "a100-80gb-sxm"), ChainSize(4096.0, 0.0), phase="prefill", names=("kv-write",)
    )
    rows = 4096 * 2 * 4096 * 2  # keys and values of 4096 tokens, 4096 wide, 2 bytes
    assert found[0].before.peak_live_bytes == 2 * rows
    assert found[0].after.peak_live_bytes == 2 * rows + 4096 * 128 * 2


def test_host_launches_count_where_no_graph_replays(engine_of: EngineOf) -> None:
    eager = engine_of("llama-2-7b", "a100-80gb-sxm", runtime="pytorch-eager")
    one = fusions(eager, ChainSize(1.0, 1.0), phase="decode", names=("kv-write",))[0]
    # 34 us for each launch, 3 kernels before and 1 after; the device takes a few microseconds.
    assert one.before.time.value == pytest.approx(3 * 34e-6)
    assert one.time_ratio == pytest.approx(3.0)


def test_stated_time_gives_its_number_of_tokens(engine_of: EngineOf) -> None:
    engine = engine_of("llama-2-7b", "ascend-910b2")

    def time_s(n: float) -> float:
        size = chain_size(phase="prefill", n_seqs=n / 2048.0, input_tokens=2048.0)
        return float(total_time(fusions(engine, size, phase="prefill", names=("kv-write",)), fused=False).value)

    n = tokens_for_time(time_s, 42.3e-3)
    assert time_s(n) == pytest.approx(42.3e-3, rel=1e-6)
    with pytest.raises(InfeasibleError, match="no number of tokens"):
        tokens_for_time(time_s, 1e-12)


def test_bad_chains_are_refused(engine_of: EngineOf) -> None:
    a, b = Buffer("a", 1.0, "input"), Buffer("b", 1.0, "output")
    with pytest.raises(SpecError, match="an earlier operator has written"):
        Chain("bad", (a, b), (Operator("f", ("b",), ("a",)),))
    with pytest.raises(SpecError, match="buffers of the chain"):
        Chain("bad", (a, b), (Operator("f", ("c",), ("b",)),))
    buffers = (a, Buffer("t", 1.0), Buffer("u", 1.0), b)
    steps = (Operator("f", ("a",), ("t",)), Operator("g", ("t",), ("u",)), Operator("h", ("u",), ("b",)))
    chain = Chain("three", buffers, steps)
    for groups, words in (([["f", "h"]], "follow each other"), ([["x"]], "at most once"), ([["f"], ["f"]], "at most")):
        with pytest.raises(SpecError, match=words):
            chain.fused(groups)
    setup = engine_of("llama-3.1-8b", "a100-80gb-sxm").setup
    with pytest.raises(UnknownNameError, match="unknown chain"):
        chain_of("swiglo", setup, setup.model.layers[0], ChainSize(1.0, 1.0))
    with pytest.raises(SpecError, match="below zero"):
        chain_of("swiglu", setup, setup.model.layers[0], ChainSize(-1.0, 1.0))


def test_own_chain_is_priced(engine_of: EngineOf) -> None:
    prices = engine_of("llama-3.1-8b", "a100-80gb-sxm").stages[0].kernels
    a, t, b = Buffer("a", 1e9, "input"), Buffer("t", 1e9), Buffer("b", 1e9, "output")
    found = fusion(Chain("own", (a, t, b), (Operator("f", ("a",), ("t",)), Operator("g", ("t",), ("b",)))), prices)
    assert found.bytes_ratio == 2.0
    assert found.time_ratio == pytest.approx(2.0)


def test_ways_to_have_keys_and_values(engine_of: EngineOf) -> None:
    ways = {way.name: way for way in kv_ways(engine_of("llama-2-7b", "a100-80gb-sxm"), 1000.0)}
    # 32 layers x 2 x 4096 x 2 bytes kept a token; the layer inputs are half of that (one vector of 4096 a layer).
    assert ways["keep and read"].held_bytes_per_token == 32 * 2 * 4096 * 2
    assert ways["keep layer inputs, project"].held_bytes_per_token == 32 * 4096 * 2
    assert ways["read the prompt again"].held_bytes_per_token == 0.0
    assert "keep latents, expand" not in ways
    latent = {way.name: way for way in kv_ways(engine_of("deepseek-v2-lite", "a100-80gb-sxm"), 1000.0)}
    assert latent["keep latents, expand"].time.value > latent["keep and read"].time.value
    for found in (ways, latent):
        for way in found.values():
            assert float(way.s_per_token) * 1000 == pytest.approx(float(way.time.value))


def test_projecting_pays_beyond_a_ratio_of_arithmetic_to_memory(engine_of: EngineOf) -> None:
    # llama-2-7b: 2 x 4096 x 8192 flop a token and layer save 2 x 4096 x 2 - 4096 x 2 = 8192 bytes: 8192 flop a byte.
    assert break_even_flop_per_byte(kv_ways(engine_of("llama-2-7b", "a100-80gb-sxm"), 9.0)) == pytest.approx(8192.0)
    for model in ("llama-3.1-8b", "deepseek-v2-lite"):
        assert break_even_flop_per_byte(kv_ways(engine_of(model, "a100-80gb-sxm"), 9.0)) is None


def test_grouped_heads_are_smaller_than_what_they_are_made_from(engine_of: EngineOf) -> None:
    # llama-3.1-8b: 2 x 8 x 128 elements of keys and values against 4096 of the layer input.
    ways = {way.name: way for way in kv_ways(engine_of("llama-3.1-8b", "a100-80gb-sxm"), 1000.0)}
    kept, inputs = ways["keep and read"], ways["keep layer inputs, project"]
    assert inputs.held_bytes_per_token == 2 * kept.held_bytes_per_token


def test_break_even_is_where_two_times_meet() -> None:
    assert break_even_tokens(lambda n: 9.0 + n, lambda n: 6.0 * n, most_tokens=64.0) == pytest.approx(1.8)
    assert break_even_tokens(lambda n: n, lambda n: 2 * n, most_tokens=4096.0) is None


def test_commands(run_cli: Run) -> None:
    data = answer(run_cli, "fusion", "llama-2-7b", "ascend-910b2", "--chain", "kv-write", "--isl", "2048")
    assert data["chains"][0]["n_launches_before"] == 3
    assert data["chains"][0]["n_layers"] == 32
    assert {row["side"] for row in data["operators"]} == {"before", "after"}
    matched = answer(
        run_cli, "fusion", "llama-2-7b", "ascend-910b2", "--chain", "kv-write", "--isl", "2048", "--match", "40ms"
    )
    assert matched["all_layers_apart_s"] == pytest.approx(0.040, rel=1e-6)
    assert matched["all_layers_fused_s"] < 0.040
    shown = run_cli("fusion", "deepseek-v2-lite", "ascend-910b2", "--operators", "--tokens", "64")
    assert shown.code == 0
    for word in (*CHAINS, "at most", "cache_write", "runtime vllm-ascend-0.18"):
        assert word in shown.out or word == "qkv"  # without a query projection of its own there is nothing to join
    rows = run_cli("fusion", "qwen3-8b", "a100-80gb-sxm", "--phase", "decode", "--csv").out.splitlines()
    assert len(rows) == 1 + len(CHAINS)
    ways = answer(run_cli, "recompute", "llama-2-7b", "ascend-910b2", "--isl", "2048")
    assert len(ways["ways"]) == 4
    assert ways["break_even_tokens"]
    assert ways["break_even_flop_per_byte"] == pytest.approx(8192.0)
    assert "one token" in run_cli("recompute", "deepseek-v2-lite", "ascend-910b2").out
    assert run_cli("recompute", "llama-2-7b", "ascend-910b2", "--csv").out.startswith("way,paid")


def test_commands_refuse_bad_words(run_cli: Run) -> None:
    for words in (("--chain", "nope"), ("--phase", "both"), ("--tokens", "-3"), ("--chain", "")):
        ran = run_cli("fusion", "llama-2-7b", "ascend-910b2", *words)
        assert ran.code == 2, words
        assert "perfmodel:" in ran.err
