"""Waste of KV memory: closed forms by hand, enumerated lengths exactly, random lengths within sampling error."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import SpecError
from perfmodel.serving.churn import FragmentationRun, simulated_fragmentation
from perfmodel.serving.fragmentation import bandwidth_frac, internal_waste_frac, reallocation_s, snapshot_waste_frac
from perfmodel.serving.kv_policy import BestFit, Fixed, KvPolicy, Paged, Window
from perfmodel.serving.lengths import LengthDistribution, fixed, lognormal, observed, uniform
from perfmodel.specs.catalogue import Catalogue, builtin_home

GIB = 2**30
TOKEN = 131_072  # Llama-3.1-8B
RULES = Catalogue((builtin_home(),)).allocator("pytorch")
EXACT: Sequence[KvPolicy] = (Fixed(400), Paged(1), Paged(16), Paged(128), Window(100, 16), Window(64, 64))
LENGTHS = st.lists(st.integers(1, 400), min_size=1, max_size=40)


def run(policy: KvPolicy, lengths: LengthDistribution, n: int = 8_000, *, pool: int = 400 * GIB, prompt: float = 1.0,
        growth: int = 0) -> FragmentationRun:  # fmt: skip
    rng = np.random.default_rng(3)
    allocator = policy.allocator(pool, bytes_per_token=TOKEN)
    result = simulated_fragmentation(
        allocator, lengths.drawn(n, rng), bytes_per_token=TOKEN, rng=rng, prompt_frac=prompt, growth_tokens=growth
    )
    assert (allocator.live_bytes, allocator.held_bytes) == (0, 0)
    return result


def test_uniform_lengths_under_the_longest_reservation() -> None:
    """Uniform 20,000 to 32,000 under 32,000: 1 - 26,000 / 32,000 = 18.75 %; with K = 1024 the same."""
    assert internal_waste_frac(Fixed(32_000), uniform(20_000, 32_000)) == pytest.approx(0.1875, abs=1e-12)
    assert internal_waste_frac(Fixed(32_768), uniform(20_480, 32_768)) == pytest.approx(0.1875, abs=1e-12)


def test_a_paged_sequence_wastes_half_a_block() -> None:
    """Lengths 1 to 16 in blocks of 16: 136 of 256 tokens are useful; each wastes (16 - 1) / 2 = 7.5 on average."""
    lengths = uniform(1, 16)
    assert internal_waste_frac(Paged(16), lengths) == pytest.approx(1 - 136 / 256)
    assert internal_waste_frac(Paged(16), uniform(16_001, 32_000)) == pytest.approx(7.5 / (24_000.5 + 7.5))


def test_a_window_holds_up_to_a_block_more() -> None:
    """Window 100 in blocks of 16, length 1000: from token 900, in block 56 (896), to block 62 (992..1007): 112."""
    assert internal_waste_frac(Window(100, 16), fixed(1000)) == pytest.approx(1 - 100 / 112)
    assert internal_waste_frac(Window(100, 16), fixed(50)) == pytest.approx(1 - 50 / 64)


def test_growth_is_averaged_over_the_life_of_a_sequence() -> None:
    """10 of 40 tokens at first, 10 more at a time, under 40 reserved: 25 of 40 are useful on average."""
    waste = internal_waste_frac(Fixed(40), fixed(40), prompt_frac=0.25, growth_tokens=10)
    assert waste == pytest.approx(1 - 25 / 40)
    assert internal_waste_frac(Fixed(40), fixed(40), prompt_frac=1.0, growth_tokens=10) == 0.0


@pytest.mark.parametrize("policy", EXACT, ids=lambda p: p.name)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(lengths=LENGTHS)
def test_enumerated_lengths_are_met_exactly(policy: KvPolicy, lengths: list[int]) -> None:
    """An allocator that holds each length once wastes what the closed form says."""
    closed = internal_waste_frac(policy, observed(lengths))
    assert snapshot_waste_frac(policy, lengths, bytes_per_token=7) == pytest.approx(closed, abs=1e-12)


@pytest.mark.parametrize("policy", EXACT, ids=lambda p: p.name)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(lengths=st.lists(st.integers(1, 400), min_size=1, max_size=5), growth=st.integers(1, 90))
def test_an_allocator_driven_through_every_stage_wastes_what_the_closed_form_says(
    policy: KvPolicy, lengths: list[int], growth: int
) -> None:
    closed = internal_waste_frac(policy, observed(lengths), prompt_frac=0.3, growth_tokens=growth)
    pool, live, held = policy.allocator(2**20, bytes_per_token=5), 0, 0
    for owner, n in enumerate(lengths):
        now = max(1, round(0.3 * n))
        while True:
            assert pool.grow(owner, now * 5)
            live, held = live + pool.live_bytes, held + pool.held_bytes
            if now == n:
                break
            now = min(now + growth, n)
        pool.release(owner)
    assert 1 - live / held == pytest.approx(closed, abs=1e-12)


@pytest.mark.parametrize("lengths", [uniform(20_000, 32_000), lognormal(8_000.0, 0.8, 32_000)], ids=["even", "skew"])
@pytest.mark.parametrize("policy", [Fixed(32_000), Paged(256), Window(4096, 128)], ids=lambda p: p.name)
def test_random_lengths_are_met_within_sampling_error(policy: KvPolicy, lengths: LengthDistribution) -> None:
    """8,000 sequences: the mean useful length has a relative error of sigma / mean / sqrt(8,000), about 1 %."""
    found = run(policy, lengths)
    assert found.waste_of_held_frac == pytest.approx(internal_waste_frac(policy, lengths), abs=0.01, rel=0.03)
    assert found.was_full


def test_random_growth_is_met_within_sampling_error() -> None:
    lengths = uniform(2_000, 4_000)
    found = run(Paged(256), lengths, 4_000, pool=30 * GIB, prompt=0.5, growth=100)
    closed = internal_waste_frac(Paged(256), lengths, prompt_frac=0.5, growth_tokens=100)
    assert found.waste_of_held_frac == pytest.approx(closed, rel=0.03)
    assert found.n_preempted > 0


@pytest.mark.parametrize("policy", [Fixed(32_000), Paged(16), BestFit(RULES, TOKEN)], ids=lambda p: p.name)
def test_shares_of_the_pool_add_up(policy: KvPolicy) -> None:
    found = run(policy, uniform(20_000, 32_000), 2_000)
    assert found.useful_frac + found.internal_frac + found.external_frac == pytest.approx(1.0)
    assert found.n_allocations == found.n_sequences == 2_000
    assert np.all(found.used_frac <= found.held_frac)


def test_paging_serves_more_sequences_than_reserving_and_never_strands() -> None:
    """Blocks are equal, so that whatever is free in sum can be used; contiguous pieces strand memory."""
    lengths = uniform(20_000, 32_000)
    paged, slots, pieces = (run(p, lengths, 3_000) for p in (Paged(16), Fixed(32_000), BestFit(RULES, TOKEN)))
    assert paged.mean_live_sequences > slots.mean_live_sequences
    assert (paged.n_refused_stranded, slots.n_refused_stranded) == (0, 0)
    assert pieces.n_refused_stranded > 0
    assert pieces.stranded_frac > 0.05


@settings(max_examples=40, deadline=None, derandomize=True)
@given(block=st.integers(1, 64), lengths=LENGTHS)
def test_waste_lies_in_its_bounds(block: int, lengths: list[int]) -> None:
    """Smaller blocks of which larger ones are made never waste more; one-token blocks waste nothing."""
    seen = observed(lengths)
    coarse, fine = internal_waste_frac(Paged(2 * block), seen), internal_waste_frac(Paged(block), seen)
    assert -1e-12 <= fine <= coarse + 1e-12 < 1
    assert internal_waste_frac(Paged(1), seen) == pytest.approx(0.0, abs=1e-12)
    assert internal_waste_frac(Fixed(400), seen) <= internal_waste_frac(Fixed(500), seen)


@pytest.mark.parametrize("policy", EXACT, ids=lambda p: p.name)
def test_policies_say_the_same_for_one_length_and_for_many(policy: KvPolicy) -> None:
    n = np.arange(1.0, 400.0)
    np.testing.assert_array_equal(policy.held_tokens(n), [policy.held_tokens(float(x)) for x in n])
    np.testing.assert_array_equal(policy.useful_tokens(n), [policy.useful_tokens(float(x)) for x in n])


def test_a_read_moves_whole_lines() -> None:
    """Rows of 256 bytes, lines of 512, blocks of 3 rows: 768 bytes move 1024. 6: 1536 of 2048; 7: 1792 of 2560."""

    def read(n: int, run_tokens: float | None = None) -> float:
        return bandwidth_frac(Paged(3), fixed(n), row_bytes=256.0, line_bytes=512.0, run_tokens=run_tokens)

    assert read(6, run_tokens=3.0) == pytest.approx(1536 / 2048)
    assert read(7, run_tokens=3.0) == pytest.approx(1792 / 2560)
    assert read(6) == 1.0  # side by side: 1536 bytes are three lines


def test_a_padded_read_moves_all_that_is_reserved() -> None:
    """Then the share of useful bytes is what is not wasted: 1 - 18.75 %."""
    share = bandwidth_frac(
        Fixed(32_000), uniform(20_000, 32_000), row_bytes=512.0, line_bytes=512.0, reads_all_held=True
    )
    assert share == pytest.approx(0.8125)


def test_moving_a_cache_reads_and_writes_it() -> None:
    """26,000 tokens of 131,072 bytes at 1.6 TB/s: 2 x 3.408 GB / 1.6 TB/s = 4.26 ms; two calls of 1 ms more."""
    assert reallocation_s(copied_bytes=26_000.0 * TOKEN, n_device_calls=0.0, bytes_per_s=1.6e12) == pytest.approx(
        4.2598e-3, rel=1e-4
    )
    assert reallocation_s(copied_bytes=0.0, n_device_calls=2.0, bytes_per_s=1.0, call_s=1e-3) == 2e-3


def test_a_growing_contiguous_cache_is_copied_and_blocks_are_not() -> None:
    lengths = uniform(2_000, 4_000)
    assert run(Paged(16), lengths, 500, pool=30 * GIB, prompt=0.5, growth=100).copied_bytes == 0
    assert run(BestFit(RULES, TOKEN), lengths, 500, pool=30 * GIB, prompt=0.5, growth=100).copied_bytes > 0


def test_lengths_have_the_moments_they_are_asked_for() -> None:
    assert lognormal(1_000.0, 0.5).mean_tokens == pytest.approx(1_000.0, rel=1e-3)
    assert float(lognormal(1_000.0, 0.5).share.sum()) == pytest.approx(1.0)
    seen = observed([5, 5, 10])
    assert seen.mean_tokens == pytest.approx(20 / 3)
    assert seen.most_tokens == 10
    drawn = uniform(1, 4).drawn(40_000, np.random.default_rng(0))
    np.testing.assert_allclose(np.bincount(drawn)[1:] / 40_000, 0.25, atol=0.01)


def test_a_small_load_never_fills_the_pool() -> None:
    found = run(Paged(16), fixed(100), 3)
    assert not found.was_full
    assert found.mean_live_sequences == 3


@pytest.mark.parametrize("bad", [
    lambda: fixed(0),
    lambda: uniform(5, 4),
    lambda: lognormal(0.5, 1.0),
    lambda: lognormal(1e5, 4.0),
    lambda: observed([]),
    lambda: observed([0]),
    lambda: Fixed(0),
    lambda: Paged(0),
    lambda: Window(10, 0),
    lambda: internal_waste_frac(Fixed(4), fixed(4), prompt_frac=2.0, growth_tokens=1),
    lambda: run(Paged(16), fixed(100), pool=TOKEN * 32),
    lambda: snapshot_waste_frac(Fixed(10), [11]),
    lambda: BestFit(RULES, 10).allocator(GIB, bytes_per_token=11),
])  # fmt: skip
def test_what_cannot_be_is_refused(bad: object) -> None:
    with pytest.raises(SpecError):
        bad()  # type: ignore[operator]
