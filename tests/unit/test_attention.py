"""Attention cores: flop and bytes by hand, sums over tokens by brute force, and laws between ways to compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.specs.layout import Layout
from perfmodel.step.request import decode_slice, prefill_slice
from perfmodel.step.step import Engine
from perfmodel.work.attention import (
    DELTA_CHUNK_TOKENS,
    AttentionCore,
    CompressedCore,
    LatentCore,
    LinearCore,
    SoftmaxCore,
)
from perfmodel.work.kernel import Slice, Work, mean_clipped

EngineOf = Callable[..., Engine]


def decode(context: float, n_seqs: float = 1.0, new_tokens: float = 1.0) -> Slice:
    return Slice("decode", n_seqs, new_tokens, context, context)


def prefill(length: float, n_seqs: float = 1.0) -> Slice:
    return Slice("prefill", n_seqs, length, 1.0, length)


def works(core: AttentionCore, s: Slice) -> dict[str, Work]:
    return {work.name: work for work in core.works(s)}


def cores(engine: Engine) -> list[AttentionCore]:
    return [layer.core for layer, _ in engine.stages[0].blueprint.layers]


def softmax(**changes: object) -> SoftmaxCore:
    """Llama-3.1-8B: 32 query heads, 8 KV heads of 128, everything in 2 bytes."""
    fields: dict[str, object] = {
        "n_heads": 32, "n_kv_heads": 8, "d_head": 128, "d_value": 128, "window_tokens": None, "dtype": "bf16",
        "element_bytes": 2.0, "kv_element_bytes": 2.0, "flash": True, "dcp": 1,
    }  # fmt: skip
    return SoftmaxCore(**(fields | changes))  # type: ignore[arg-type]


def latent(**changes: object) -> LatentCore:
    """DeepSeek-V3: 128 heads, latent 512 + 64, heads of 128 + 64 for keys and 128 for values."""
    fields: dict[str, object] = {
        "n_heads": 128, "kv_lora_rank": 512, "d_nope": 128, "d_rope": 64, "d_value": 128, "dtype": "bf16",
        "element_bytes": 2.0, "kv_element_bytes": 2.0, "latent_cache": True, "dcp": 1, "indexer": None, "top_k": None,
    }  # fmt: skip
    return LatentCore(**(fields | changes))  # type: ignore[arg-type]


# --- means over tokens -----------------------------------------------------------------------------------------------


@given(st.integers(1, 300), st.integers(0, 300), st.one_of(st.none(), st.integers(1, 400)))
@settings(max_examples=100, deadline=None)
def test_clipped_mean_is_the_brute_force_mean(first: int, more: int, cap: int | None) -> None:
    last = first + more
    seen = [min(x, cap) if cap is not None else x for x in range(first, last + 1)]
    found = mean_clipped(float(first), float(last), None if cap is None else float(cap))
    assert found == pytest.approx(sum(seen) / len(seen), rel=1e-13)


def test_clipped_mean_broadcasts() -> None:
    last = np.array([4.0, 1.0, 1000.0])
    assert np.asarray(mean_clipped(1.0, last, 2.0)) == pytest.approx([1.75, 1.0, 1.999], rel=1e-12)


@given(st.integers(1, 60), st.integers(1, 60), st.one_of(st.none(), st.integers(1, 80)))
@settings(max_examples=60, deadline=None)
def test_pairs_of_prefill_and_decode_together(n_in: int, n_out: int, cap: int | None) -> None:
    """Brute force over a whole generation: token t of the sequence sees min(t, cap) tokens, itself included."""
    top = None if cap is None else float(cap)
    reading = prefill_slice(1.0, float(n_in), n_steps=1.0).n_pairs(top)
    assert reading == pytest.approx(sum(min(t, cap or t) for t in range(1, n_in + 1)), rel=1e-12)
    if n_out > 1:
        mean = decode_slice(1.0, float(n_in), float(n_out)).n_pairs(top)
        contexts = range(n_in + 1, n_in + n_out)
        assert mean * (n_out - 1) == pytest.approx(sum(min(t, cap or t) for t in contexts), rel=1e-12)


@given(st.integers(1, 50), st.integers(1, 7), st.integers(1, 9), st.one_of(st.none(), st.integers(1, 60)))
@settings(max_examples=60, deadline=None)
def test_chunked_prefill_has_the_pairs_of_unchunked(length: int, n_prompts: int, n_steps: int, cap: int | None) -> None:
    top = None if cap is None else float(cap)
    whole = prefill_slice(float(n_prompts), float(length), n_steps=1.0)
    step = prefill_slice(float(n_prompts), float(length), n_steps=float(n_steps))
    assert step.n_pairs(top) * n_steps == pytest.approx(whole.n_pairs(top), rel=1e-12)
    assert step.n_tokens * n_steps == pytest.approx(whole.n_tokens, rel=1e-12)


@pytest.mark.parametrize("n_chunks", [1, 2, 3, 8])
def test_chunks_re_read_what_came_before(n_chunks: int) -> None:
    """Chunk k of a prompt of 240 reads k x 240 / n cached tokens: brute force over the chunks."""
    step = prefill_slice(1.0, 240.0, n_steps=float(n_chunks))
    assert step.past_tokens == pytest.approx(np.mean([k * 240 / n_chunks for k in range(n_chunks)]))
    assert step.kv_tokens() == pytest.approx(240 / n_chunks + step.past_tokens)


def test_a_window_limits_what_a_chunk_re_reads() -> None:
    step = prefill_slice(1.0, 8192.0, n_steps=4.0)
    assert step.past_tokens == 3072.0
    assert step.kv_tokens(128.0) == 2048.0 + 128.0
    assert step.kv_tokens(100_000.0) == step.kv_tokens() == 2048.0 + 3072.0


# --- softmax ---------------------------------------------------------------------------------------------------------


def test_grouped_query_decode_by_hand() -> None:
    """One token against 1000 cached ones: 2 x 32 heads x 1000 x (128 + 128) flop; 8 heads x 256 x 2 bytes a token."""
    work = works(softmax(), decode(1000.0))["attention"]
    assert work.flop == 2 * 32 * 1000 * 256 == 16_384_000
    assert work.kv_bytes == 1000 * 8 * 256 * 2 == 4_096_000
    assert work.io_bytes == 32 * 256 * 2
    assert (work.kernel, work.dtype, work.n_launches) == ("attention/decode", "bf16", 1.0)


def test_prefill_is_half_a_square() -> None:
    work = works(softmax(), prefill(1024.0))["attention"]
    assert work.flop == 2 * 32 * 256 * (1024 * 1025 / 2)
    assert work.kv_bytes == 1024 * 8 * 256 * 2


def test_sequences_only_multiply() -> None:
    one, many = works(softmax(), decode(777.0))["attention"], works(softmax(), decode(777.0, n_seqs=13.0))["attention"]
    assert many.flop == pytest.approx(13 * np.asarray(one.flop))
    assert many.n_bytes == pytest.approx(13 * np.asarray(one.n_bytes))


def test_guessed_tokens_share_the_cache_read() -> None:
    """A speculative step of 4 tokens does 4 times the flop on one read of the cache."""
    one, four = (
        works(softmax(), decode(500.0))["attention"],
        works(softmax(), decode(500.0, new_tokens=4.0))["attention"],
    )
    assert four.flop == 4 * np.asarray(one.flop)
    assert four.kv_bytes == one.kv_bytes


def test_kv_precision_and_value_width() -> None:
    narrow = works(softmax(kv_element_bytes=1.0), decode(1000.0))["attention"]
    assert narrow.kv_bytes == 1000 * 8 * 256
    assert narrow.flop == works(softmax(), decode(1000.0))["attention"].flop
    wide = works(softmax(d_value=64), decode(1000.0))["attention"]
    assert wide.flop == 2 * 32 * 1000 * (128 + 64)
    assert wide.kv_bytes == 1000 * 8 * (128 + 64) * 2


def test_a_window_caps_a_decode_step() -> None:
    full, cut = (
        works(softmax(), decode(5000.0))["attention"],
        works(softmax(window_tokens=128), decode(5000.0))["attention"],
    )
    assert cut.flop == pytest.approx(np.asarray(full.flop) * 128 / 5000)
    assert cut.kv_bytes == pytest.approx(np.asarray(full.kv_bytes) * 128 / 5000)
    short = works(softmax(window_tokens=128), decode(100.0))["attention"]
    assert short == works(softmax(), decode(100.0))["attention"]


def test_without_flash_attention_scores_travel() -> None:
    """32 heads x 1000 scores, written and read twice in 2 bytes each."""
    eager = works(softmax(flash=False), decode(1000.0))
    assert set(eager) == {"attention", "softmax"}
    assert eager["softmax"].io_bytes == 32 * 1000 * 4 * 2
    assert eager["softmax"].engine == "vector"


def test_context_parallel_ranks_share_the_cache_not_the_flop() -> None:
    """Each of dcp ranks takes the heads of all of them over 1/dcp of the tokens."""
    whole, cut = works(softmax(), decode(1000.0))["attention"], works(softmax(dcp=4), decode(1000.0))["attention"]
    assert cut.flop == whole.flop
    assert cut.kv_bytes == pytest.approx(np.asarray(whole.kv_bytes) / 4)


@pytest.mark.parametrize(("tp", "kv_heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_tensor_parallelism_splits_heads_and_replicates_kv(engine_of: EngineOf, tp: int, kv_heads: int) -> None:
    core = cores(engine_of("llama-3.1-8b", "h100-sxm", layout=Layout(tp=tp), system="gh200-nvl32" if tp > 8 else None))[
        0
    ]
    assert isinstance(core, SoftmaxCore)
    assert (core.n_heads, core.n_kv_heads) == (32 // tp, kv_heads)


# --- MLA -------------------------------------------------------------------------------------------------------------


def test_absorbed_and_materialised_flop_per_pair() -> None:
    """DeepSeek-V3, a pair over 128 heads: 2 x 128 x (512 + 64 + 512) = 278,528; 2 x 128 x (128 + 64 + 128) = 81,920."""
    absorbed = works(latent(), decode(1.0))["mla_absorbed"]
    materialised = works(latent(), prefill(1.0))["mla_materialised"]
    assert absorbed.flop == 278_528
    assert materialised.flop == 81_920
    # Queries of 512 + 64 in, 512 out for each head; expanded heads of 320 are written once and read once.
    assert absorbed.io_bytes == 128 * (512 + 64 + 512) * 2
    assert materialised.io_bytes == 2 * 128 * 320 * 2


def test_one_latent_serves_all_heads() -> None:
    """576 elements of 2 bytes a token, however many heads; the expanded cache holds 128 x (192 + 128) elements."""
    assert works(latent(), decode(1000.0))["mla_absorbed"].kv_bytes == 1000 * 576 * 2
    assert works(latent(n_heads=16), decode(1000.0))["mla_absorbed"].kv_bytes == 1000 * 576 * 2
    expanded = works(latent(latent_cache=False), decode(1000.0))["attention_expanded_heads"]
    assert expanded.kv_bytes == 1000 * 128 * 320 * 2


def test_break_even_between_absorbing_and_expanding(engine_of: EngineOf) -> None:
    """Expanding L tokens costs L x 2 x 512 x 128 x (128 + 128); absorbing costs 196,608 more for each pair.

    n new tokens over L cached ones: expanded 33,554,432 L + 81,920 n L, absorbed 33,554,432 n + 278,528 n L. For long
    contexts they meet at n = 33,554,432 / 196,608 = 170.7 new tokens: below, absorbing is cheaper.
    """
    engine = engine_of("deepseek-v3", "h200-sxm", layout=Layout(tp=1))
    layer = engine.stages[0].blueprint.layers[0][0]
    core = layer.core
    assert isinstance(core, LatentCore)
    assert layer.latent_up is not None
    expand = float(np.asarray(layer.latent_up.work(1.0).flop))
    per_pair = [float(np.asarray(next(iter(core.works(s))).flop)) for s in (decode(1.0), prefill(1.0))]
    assert expand == 2 * 512 * 128 * 256 == 33_554_432
    assert per_pair == [278_528, 81_920]
    assert expand / (per_pair[0] - per_pair[1]) == pytest.approx(170.67, abs=0.01)


def test_what_goes_through_the_expansion() -> None:
    """Absorbed: the new token alone. Materialised: all that is attended. Expanded cache: new tokens, not kept ones."""
    chunk = Slice("prefill", 1.0, 100.0, 301.0, 400.0, past_tokens=300.0)
    assert latent().expanded_tokens(decode(1000.0)) == 1.0
    assert latent().expanded_tokens(chunk) == 400.0
    assert latent(latent_cache=False).expanded_tokens(decode(1000.0)) == 1.0
    assert latent(latent_cache=False).expanded_tokens(chunk) == 100.0
    assert latent(top_k=2048).expanded_tokens(chunk) == 100.0


def test_sparse_attention_limits_pairs_but_scores_all(engine_of: EngineOf) -> None:
    """DeepSeek-V3.2 at 32k: 2048 tokens attended, all 32768 scored by 64 heads of 128 in FP8, 132 bytes of key each."""
    core = next(c for c in cores(engine_of("deepseek-v3.2", "h200-sxm")) if isinstance(c, LatentCore))
    found = works(core, decode(32768.0))
    assert found["mla_absorbed"].flop == 2048 * 278_528
    assert found["mla_absorbed"].kv_bytes == 2048 * 576 * 2
    assert found["index_scores"].flop == 32768 * 2 * 64 * 128
    assert found["index_scores"].kv_bytes == 32768 * 132
    assert found["index_scores"].dtype == "fp8"
    assert works(core, decode(1000.0))["mla_absorbed"].flop == 1000 * 278_528


# --- fixed states, compressed entries --------------------------------------------------------------------------------


def test_linear_attention_does_not_grow(engine_of: EngineOf) -> None:
    """Qwen3-Next: 32 value heads with a state of 128 x 128 in fp32, read and written; 6 flop an element a token."""
    core = next(c for c in cores(engine_of("qwen3-next-80b-a3b", "h100-sxm")) if isinstance(c, LinearCore))
    near, far = works(core, decode(10.0))["linear_attention"], works(core, decode(1e5))["linear_attention"]
    assert near == far
    assert near.flop == 6 * 32 * 128 * 128
    conv = 3 * (2 * 16 * 128 + 32 * 128)
    assert near.kv_bytes == 2 * (32 * 128 * 128 * 4 + conv * 2)
    long = works(core, prefill(1000.0))["linear_attention"]
    assert long.flop == 1000 * (4 * 32 * 128 * 128 + 2 * DELTA_CHUNK_TOKENS * 32 * 256)
    assert long.kv_bytes == near.kv_bytes


def compressed(ratio: int, top_k: int | None) -> CompressedCore:
    return CompressedCore(
        n_heads=64, d_head=512, window_tokens=128, ratio=ratio, top_k=top_k, indexer=None,
        dtype="bf16", element_bytes=2.0, kv_element_bytes=2.0,
    )  # fmt: skip


@pytest.mark.parametrize("first", [1, 300])
@pytest.mark.parametrize(("ratio", "top_k"), [(0, None), (4, 50), (4, None), (128, None)])
def test_compressed_attention_is_the_brute_force_sum(ratio: int, top_k: int | None, first: int) -> None:
    """Each query sees a window of 128 and t / ratio entries, at most top_k: 4 flop a head and element of each."""
    last = 1000
    s = Slice("prefill", 1.0, float(last - first + 1), float(first), float(last))
    seen = sum(min(t, 128) + (min(t / ratio, top_k or t) if ratio else 0.0) for t in range(first, last + 1))
    assert works(compressed(ratio, top_k), s)["compressed_attention"].flop == pytest.approx(
        seen * 4 * 64 * 512, rel=1e-12
    )
    one = works(compressed(ratio, top_k), decode(1000.0))["compressed_attention"]
    entries = min(1000 / ratio, top_k or 1000) if ratio else 0.0
    assert one.kv_bytes == pytest.approx((128 + entries) * 512 * 2)


def totals(core: AttentionCore, slices: Sequence[Slice]) -> list[tuple[float, float]]:
    return [
        (
            sum(float(np.asarray(w.flop)) for w in core.works(s)),
            sum(float(np.asarray(w.n_bytes)) for w in core.works(s)),
        )
        for s in slices
    ]


@pytest.mark.parametrize(
    "name",
    [
        "llama-3.1-8b",
        "deepseek-v3",
        "deepseek-v3.2",
        "gpt-oss-20b",
        "gemma-3-27b",
        "qwen3-next-80b-a3b",
        "deepseek-v4-flash",
    ],
)
def test_work_never_falls_with_context_or_sequences(engine_of: EngineOf, name: str) -> None:
    contexts = [1.0, 2.0, 127.0, 128.0, 129.0, 1024.0, 2048.0, 2049.0, 5000.0, 100_000.0]
    for core in cores(engine_of(name, "h200-sxm")):
        for made in (
            [decode(c) for c in contexts],
            [prefill(c) for c in contexts],
            [decode(500.0, n_seqs=n) for n in (1.0, 2.0, 7.0, 300.0)],
            [Slice("prefill", 1.0, 64.0, p + 1.0, p + 64.0, p) for p in (0.0, 10.0, 1000.0, 50_000.0)],
        ):
            found = totals(core, made)
            assert all(b[0] >= a[0] and b[1] >= a[1] for a, b in pairwise(found)), core
