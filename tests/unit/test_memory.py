"""Laws of the memory accounting: parts add up, more memory never holds less, and inverse questions agree with it."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.bisection import first_true, last_true
from perfmodel.errors import InfeasibleError, SpecError
from perfmodel.specs.layout import Layout
from perfmodel.specs.model import (
    Layer,
    Model,
)
from perfmodel.specs.runtime import Runtime
from perfmodel.units import GIB
from perfmodel.work.memory import memory_plan
from perfmodel.work.memory_rules import (
    MemoryOptions,
    activation_peak_bytes,
    cached_model,
    dual_pool_tokens,
    kv_capacity_tokens,
    step_limits,
)
from perfmodel.work.memory_search import (
    concurrency_at,
    does_not_fit,
    largest_context_tokens,
    smallest_utilization,
    utilization_for_tokens,
    what_would_fit,
)
from perfmodel.work.memory_types import MemoryCase
from tests.unit.memory_scene import (
    ALL,
    DENSE,
    HALF,
    LATENT,
    MODELS,
    PLAIN,
    RUNTIMES,
    STATEFUL,
    UNIFORM,
    V0,
    VLLM,
    WINDOWED,
    card,
    case,
    load,
    softmax,
    tower,
)


@pytest.mark.parametrize("path", RUNTIMES, ids=lambda p: p.stem)
def test_runtime_file_is_sound(path: Path) -> None:
    found = load(path.stem)
    assert found.name == path.stem
    assert found.decode_graphs or found.graph_max_batch is None
    assert all(text for text in found.sources.values())


def test_runtime_names_are_unique() -> None:
    names = [name for runtime in ALL for name in (runtime.name, *runtime.names)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("model", MODELS, ids=["uniform", "windowed", "stateful", "latent"])
@pytest.mark.parametrize("runtime", ALL, ids=lambda r: r.name)
def test_waterfall_adds_up_to_the_budget(runtime: Runtime, model: Model) -> None:
    for gib in (16.0, 24.0, 80.0):
        changes: list[dict[str, Any]] = [
            {},
            {"cpu_offload_bytes": 2 * GIB},
            {"pool_frac": 0.5},
            {"kv_cache_memory_bytes": 3 * GIB},
        ]
        for options in changes:
            plan = memory_plan(case(model, runtime, gib=gib, **options))
            for rank in plan.ranks:
                assert math.isclose(sum(size for _, size in rank.waterfall()), rank.budget_bytes, rel_tol=1e-12)
                assert rank.pool_bytes <= max(0.0, rank.available_bytes) * (1 + 1e-12)
                assert rank.n_blocks >= 0
            assert plan.assumed


@settings(max_examples=60, deadline=None)
@given(
    gib=st.floats(4, 200),
    more=st.floats(0, 100),
    frac=st.floats(0.05, 0.99),
    tp=st.sampled_from([1, 2, 4, 8]),
    model=st.sampled_from(MODELS),
    runtime=st.sampled_from(ALL),
)
def test_more_memory_never_holds_less(
    gib: float, more: float, frac: float, tp: int, model: Model, runtime: Runtime
) -> None:
    # Scheduler defaults that depend on the size of the card are held still.
    held: dict[str, Any] = {"utilization": frac, "max_num_seqs": 64, "max_num_batched_tokens": 4096}
    small = memory_plan(case(model, runtime, gib=gib, layout=Layout(tp=tp), **held))
    large = memory_plan(case(model, runtime, gib=gib + more, layout=Layout(tp=tp), **held))
    assert 0 <= small.n_blocks <= large.n_blocks
    assert 0 <= small.kv_tokens <= large.kv_tokens
    assert small.max_concurrency <= large.max_concurrency * (1 + 1e-12)


@settings(max_examples=40, deadline=None)
@given(gib=st.floats(4, 200), model=st.sampled_from(MODELS), runtime=st.sampled_from(ALL))
def test_smaller_kv_elements_never_hold_fewer_tokens(gib: float, model: Model, runtime: Runtime) -> None:
    tokens = [memory_plan(case(model, runtime, gib=gib, kv_element_bytes=b)).kv_tokens for b in (2.0, 1.0, 0.5)]
    assert tokens == sorted(tokens)


@settings(max_examples=40, deadline=None)
@given(gib=st.floats(16, 90), length=st.integers(256, 60000), model=st.sampled_from(MODELS))
def test_largest_context_agrees_with_the_plan(gib: float, length: int, model: Model) -> None:
    one = case(model, VLLM, gib=gib)
    best = largest_context_tokens(one)
    if best:
        assert memory_plan(one.with_options(max_model_len=best)).fits_full_length
    if best < 131072:
        assert not memory_plan(one.with_options(max_model_len=best + 1)).fits_full_length
    assert memory_plan(one.with_options(max_model_len=length)).fits_full_length == (length <= best)


@settings(max_examples=30, deadline=None)
@given(gib=st.floats(24, 90), model=st.sampled_from(MODELS), runtime=st.sampled_from(ALL))
def test_smallest_utilization_agrees_with_the_plan(gib: float, model: Model, runtime: Runtime) -> None:
    one = case(model, runtime, gib=gib)
    found = smallest_utilization(one)
    if found is not None:
        assert memory_plan(one.with_options(utilization=found)).fits_full_length
        if found > 2e-4:
            assert not memory_plan(one.with_options(utilization=found - 1e-4)).fits_full_length


def test_utilization_for_tokens_agrees_with_the_plan() -> None:
    one = case(gib=40.0)
    found = utilization_for_tokens(one, 50_000)
    assert found is not None
    assert memory_plan(one.with_options(utilization=found)).kv_tokens >= 50_000
    assert memory_plan(one.with_options(utilization=found - 1e-4)).kv_tokens < 50_000
    assert utilization_for_tokens(one, 10**9) is None


def le_than(limit: int, n: int) -> bool:
    return n <= limit


def gt_than(limit: int, n: int) -> bool:
    return n > limit


def test_bisection_helpers() -> None:
    for limit in range(-1, 12):
        assert last_true(partial(le_than, limit), 0, 10) == (None if limit < 0 else min(limit, 10))
        assert first_true(partial(gt_than, limit), 0, 10) == (None if limit >= 10 else max(0, limit + 1))
    assert last_true(lambda _: True, 3, 2) is None


def test_chunked_prefill_comes_on_above_its_limit() -> None:
    found = [step_limits(UNIFORM, V0, MemoryOptions(max_model_len=n), card()) for n in (1024, 32768, 32769)]
    assert [f.chunked_prefill for f in found] == [False, False, True]
    assert [f.max_num_batched_tokens for f in found] == [2048, 32768, 2048]
    assert any("chunked prefill" in text for text in found[2].assumed)


def test_large_cards_have_other_defaults() -> None:
    options = MemoryOptions(max_model_len=4096)
    hopper = step_limits(UNIFORM, VLLM, options, card(79.0, family="hopper"))
    ampere = step_limits(UNIFORM, VLLM, options, card(79.0, family="ampere"))
    assert (hopper.max_num_seqs, hopper.max_num_batched_tokens) == (1024, 8192)
    assert (ampere.max_num_seqs, ampere.max_num_batched_tokens) == (256, 2048)


def test_nothing_is_assumed_in_silence() -> None:
    text = " ".join(memory_plan(case()).assumed)
    for word in ("max_num_seqs", "max_num_batched_tokens", "utilisation", "KV elements", "activation", "total memory"):
        assert word in text
    without = MemoryCase(UNIFORM, PLAIN, Layout(), VLLM, (card(),))
    assert any("context limit 131072" in row for row in memory_plan(without).assumed)


def test_no_context_limit_is_an_error() -> None:
    blind = tower(Layer(attention=softmax(), ffn=DENSE), position=None)
    with pytest.raises(SpecError, match="states no context limit"):
        memory_plan(MemoryCase(blind, PLAIN, Layout(), VLLM, (card(),)))


def test_whole_prompts_must_fit_in_a_step() -> None:
    with pytest.raises(SpecError, match="does not fit in one step"):
        memory_plan(case(max_num_batched_tokens=2048, chunked_prefill=False, max_model_len=4096))


@pytest.mark.parametrize(
    "options",
    [{"utilization": 1.5}, {"utilization": 0.0}, {"max_model_len": 0}, {"cpu_offload_bytes": -1.0}, {"pool_frac": 0}],
)
def test_options_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="memory options"):
        MemoryOptions(**options)


def test_latents_are_replicated_and_heads_are_sharded() -> None:
    one, two = (memory_plan(case(UNIFORM, gib=80.0, layout=Layout(tp=n))) for n in (1, 2))
    assert one.kv_bytes_per_token == 2 * two.kv_bytes_per_token
    one, two = (memory_plan(case(LATENT, gib=80.0, layout=Layout(tp=n))) for n in (1, 2))
    assert one.kv_bytes_per_token == two.kv_bytes_per_token


def test_more_ranks_than_kv_heads_replicate() -> None:
    few = tower(Layer(attention=softmax(n_kv_heads=4), ffn=DENSE))
    four, eight = (memory_plan(case(few, gib=80.0, layout=Layout(tp=n))) for n in (4, 8))
    assert four.kv_bytes_per_token == eight.kv_bytes_per_token


def test_context_parallel_divides_tokens() -> None:
    plain, cut = (memory_plan(case(LATENT, gib=80.0, layout=Layout(tp=4, dcp=n))) for n in (1, 4))
    assert cut.block_tokens == 4 * plain.block_tokens
    assert cut.kv_tokens == pytest.approx(4 * plain.kv_tokens, rel=1e-3)


def test_data_parallel_ranks_have_pools_of_their_own() -> None:
    layout = Layout(tp=1, dp=8, ep=8)
    plan = memory_plan(case(LATENT, gib=80.0, layout=layout))
    alone = memory_plan(case(LATENT, gib=80.0))
    assert plan.n_pools == 8
    assert plan.ranks[0].weights_on_device_bytes < alone.ranks[0].weights_on_device_bytes


def test_stages_hold_their_own_layers_and_the_smallest_decides() -> None:
    layout = Layout(pp=2, stage_layers=(10, 22))
    cards = (card(16.0, name="small"), card(32.0, name="large"))
    plan = memory_plan(MemoryCase(UNIFORM, PLAIN, layout, V0, cards, MemoryOptions(max_model_len=4096)))
    assert [stage.stop - stage.start for stage in plan.stages] == [10, 22]
    assert plan.n_blocks == min(stage.n_blocks for stage in plan.stages)
    assert {rank.device for rank in plan.ranks} == {"small", "large"}


def test_devices_must_match_the_layout() -> None:
    with pytest.raises(SpecError, match="do not match"):
        memory_plan(MemoryCase(UNIFORM, PLAIN, Layout(tp=4), VLLM, (card(), card()), MemoryOptions(max_model_len=1)))


def test_mixed_cards_in_a_tensor_parallel_group() -> None:
    cards = (card(24.0), card(16.0, name="small"))
    plan = memory_plan(MemoryCase(UNIFORM, PLAIN, Layout(tp=2), VLLM, cards, MemoryOptions(max_model_len=4096)))
    assert plan.tightest.device == "small"
    assert plan.n_blocks == min(rank.n_blocks for rank in plan.ranks)


def test_one_rank_samples_in_the_old_engine_and_all_in_the_new() -> None:
    old = memory_plan(case(runtime=V0, layout=Layout(tp=4), max_model_len=1024))
    assert [(rank.n_ranks, rank.samples) for rank in old.ranks] == [(1, True), (3, False)]
    new = memory_plan(case(layout=Layout(tp=4), max_model_len=1024))
    assert [(rank.n_ranks, rank.samples) for rank in new.ranks] == [(4, True)]


def test_offload_moves_weights_to_the_host() -> None:
    plain, moved = (memory_plan(case(gib=40.0, cpu_offload_bytes=n * GIB)) for n in (0, 4))
    assert moved.ranks[0].offloaded_bytes == 4 * GIB
    assert moved.ranks[0].available_bytes == pytest.approx(plain.ranks[0].available_bytes + 4 * GIB)
    everything = memory_plan(case(gib=40.0, cpu_offload_bytes=900 * GIB))
    assert everything.ranks[0].weights_on_device_bytes == 0


def test_swap_counts_blocks_of_host_memory() -> None:
    plan = memory_plan(case(gib=40.0, swap_space_bytes=4 * GIB))
    assert plan.n_host_blocks == 4 * GIB // plan.stages[0].block_bytes


def test_fixed_states_are_counted_for_each_sequence() -> None:
    plan = memory_plan(case(STATEFUL, gib=40.0))
    assert plan.fixed_bytes_per_sequence == 24 * 32 * 128 * 128 * 4
    assert plan.max_concurrency == pytest.approx(plan.ranks[0].available_bytes / plan.full_length_bytes)
    assert concurrency_at(plan, 256) < 4096 / 256 * concurrency_at(plan, 4096)


def test_released_windows_hold_more_sequences() -> None:
    keeps = VLLM.model_copy(update={"windowed_cache": False})
    long: dict[str, Any] = {"gib": 40.0, "max_model_len": 32768}
    assert (
        memory_plan(case(WINDOWED, VLLM, **long)).max_concurrency
        > memory_plan(case(WINDOWED, keeps, **long)).max_concurrency
    )
    assert cached_model(WINDOWED, keeps).layers[1].attention == softmax()


def test_concurrency_at_a_length_is_pool_over_need() -> None:
    plan = memory_plan(case(gib=40.0))
    assert concurrency_at(plan, 4096) == pytest.approx(plan.max_concurrency)
    assert concurrency_at(plan, 2048) == pytest.approx(2 * plan.max_concurrency)


def test_activation_is_array_valued() -> None:
    tokens = np.array([512.0, 2048.0, 8192.0])
    law = VLLM.memory.activation
    for model in MODELS:
        found = activation_peak_bytes(model, law, layout=Layout(tp=2), n_tokens=tokens, n_seqs=16.0)
        each = [
            float(activation_peak_bytes(model, law, layout=Layout(tp=2), n_tokens=float(t), n_seqs=16.0))
            for t in tokens
        ]
        np.testing.assert_allclose(np.asarray(found), each, rtol=1e-12)
        assert np.all(np.diff(found) >= 0)


def test_pool_formulas_are_array_valued() -> None:
    room = np.array([-1.0, 0.0, 1e6, 1e9])
    found = kv_capacity_tokens(available_bytes=room, bytes_per_token=1000.0, block_tokens=16.0)
    assert np.asarray(found).tolist() == [0.0, 0.0, 992.0, 1000000.0 // 16 * 16]
    full, window = dual_pool_tokens(
        available_bytes=room, full_bytes_per_token=1000.0, window_bytes_per_token=500.0, swa_full_ratio=0.8
    )
    assert np.all(full * 1000 + window * 500 <= np.maximum(room, 0.0))


def test_remedies_make_the_case_fit() -> None:
    one = case(gib=18.0, max_model_len=65536)
    plan = memory_plan(one)
    assert not plan.starts
    assert plan.needs_bytes > plan.has_bytes
    remedies = what_would_fit(one, schemes=(HALF,))
    assert {"max_model_len", "weights", "tp"} <= {remedy.kind for remedy in remedies}
    assert all(remedy.plan.fits_full_length for remedy in remedies)


def test_lighter_weights_are_proposed_with_fewer_devices_where_they_alone_do_not_fit() -> None:
    found = {remedy.kind: remedy for remedy in what_would_fit(case(gib=5.0, max_model_len=256), schemes=(HALF,))}
    assert "weights" not in found
    assert found["weights_tp"].plan.fits_full_length
    assert "with tensor parallelism" in found["weights_tp"].text
    n_devices = {
        kind: int(found[kind].text.split("tensor parallelism ")[1].split()[0]) for kind in ("weights_tp", "tp")
    }
    assert n_devices["weights_tp"] < n_devices["tp"]


def test_error_says_what_would_fit() -> None:
    one = case(gib=18.0, max_model_len=65536)
    error = does_not_fit(one, memory_plan(one))
    assert isinstance(error, InfeasibleError)
    for word in ("got", "expected", "would fit", "--max-model-len", "assumed"):
        assert word in str(error)


def test_hopeless_case_has_no_remedy_but_an_error() -> None:
    one = case(gib=0.5)
    assert what_would_fit(one) == ()
    assert "does not fit" in str(does_not_fit(one, memory_plan(one)))


def test_a_block_larger_than_the_pool_says_what_it_lacks() -> None:
    plan = memory_plan(case(block_tokens=10**8))
    rank = plan.ranks[0]
    assert not plan.starts
    assert rank.available_bytes > 0
    assert plan.needs_bytes - plan.has_bytes == pytest.approx(plan.stages[0].block_bytes - rank.available_bytes)


def test_budget_beyond_free_memory_is_refused() -> None:
    plan = memory_plan(case(gib=40.0, used_by_others_bytes=8 * GIB))
    assert not plan.starts
    assert "are free" in plan.reason


def test_explicit_pool_counts_against_the_device() -> None:
    assert memory_plan(case(gib=40.0, kv_cache_memory_bytes=4 * GIB)).starts
    refused = memory_plan(case(gib=24.0, kv_cache_memory_bytes=20 * GIB))
    assert not refused.starts


def test_block_override_and_token_cap() -> None:
    assert memory_plan(case(gib=40.0, num_gpu_blocks_override=1000)).kv_tokens == 16000
    capped = memory_plan(case(runtime=load("sglang-0.5"), gib=40.0, max_total_tokens=5000))
    assert capped.kv_tokens == 5000


def test_graphs_beside_the_budget_warn() -> None:
    plan = memory_plan(case(gib=40.0, utilization=1.0))
    assert any("beside the budget" in text for text in plan.warnings)
    assert not memory_plan(case(gib=40.0, utilization=0.9)).warnings
    assert memory_plan(case(gib=40.0, enforce_eager=True)).ranks[0].graph_bytes == 0
