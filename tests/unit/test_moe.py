"""Mixture of experts: expected counts against Monte Carlo, and the work of the busiest rank."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.specs.layout import Layout
from perfmodel.step.step import Engine
from perfmodel.work.moe import Experts, distinct_experts, pairs_of_busiest_rank

EngineOf = Callable[..., Engine]


def routed(
    n_tokens: int, n_experts: int, top_k: int, n_draws: int
) -> list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    """Return draws of [tokens, top_k] experts, each token choosing top_k different ones with equal chances."""
    rng = np.random.default_rng(7)
    return [np.argsort(rng.random((n_tokens, n_experts)), axis=1)[:, :top_k] for _ in range(n_draws)]


@pytest.mark.parametrize(("n_experts", "top_k"), [(256, 8), (128, 8), (64, 6), (8, 2), (32, 4)])
@pytest.mark.parametrize("n_tokens", [1, 2, 16, 100])
def test_distinct_experts_against_monte_carlo(n_experts: int, top_k: int, n_tokens: int) -> None:
    drawn = np.mean([len(np.unique(choice)) for choice in routed(n_tokens, n_experts, top_k, 400)])
    assert distinct_experts(float(n_tokens), n_experts=n_experts, top_k=top_k) == pytest.approx(drawn, rel=0.02)


def test_distinct_experts_by_hand() -> None:
    """256 (1 - (31/32)^16) = 101.97: DeepSeek-V3 reads two fifths of its experts for a batch of 16."""
    assert distinct_experts(16.0, n_experts=256, top_k=8) == pytest.approx(256 * (1 - (31 / 32) ** 16), rel=1e-14)
    assert distinct_experts(16.0, n_experts=256, top_k=8) == pytest.approx(101.97, abs=0.01)
    assert distinct_experts(0.0, n_experts=256, top_k=8) == 0.0
    assert distinct_experts(3.0, n_experts=4, top_k=4) == 4.0


@given(st.integers(1, 200), st.integers(1, 16), st.floats(0.1, 1e5))
@settings(max_examples=60, deadline=None)
def test_distinct_experts_stay_in_bounds(n_experts: int, top_k: int, n_tokens: float) -> None:
    top_k = min(top_k, n_experts)
    found = float(np.asarray(distinct_experts(n_tokens, n_experts=n_experts, top_k=top_k)))
    more = float(np.asarray(distinct_experts(n_tokens * 1.5, n_experts=n_experts, top_k=top_k)))
    assert 0 <= found <= n_experts
    assert found <= more * (1 + 1e-12)
    if n_tokens >= 1:
        assert top_k * (1 - 1e-12) <= found <= n_tokens * top_k * (1 + 1e-12)


@pytest.mark.parametrize(("n_experts", "top_k", "n_groups"), [(256, 8, 8), (256, 8, 32), (64, 6, 4), (128, 8, 16)])
@pytest.mark.parametrize("n_tokens", [16, 128, 1024])
def test_busiest_rank_against_monte_carlo(n_experts: int, top_k: int, n_groups: int, n_tokens: int) -> None:
    """The bound for balls in bins lies above the drawn maximum, and within a seventh of it."""
    per_group = n_experts // n_groups
    drawn = np.mean(
        [
            np.bincount((c // per_group).ravel(), minlength=n_groups).max()
            for c in routed(n_tokens, n_experts, top_k, 60)
        ]
    )
    bound = pairs_of_busiest_rank(float(n_tokens), top_k=top_k, n_experts=n_experts, n_groups=n_groups)
    assert drawn * 0.99 <= bound <= drawn * 1.15


def test_busiest_rank_limits() -> None:
    assert pairs_of_busiest_rank(10.0, top_k=8, n_experts=256, n_groups=1) == 80.0
    # One expert a rank: a token can meet it once, so one token makes one pair at most.
    assert pairs_of_busiest_rank(1.0, top_k=2, n_experts=8, n_groups=8) == 1.0
    # Large batches even out: 8 ranks do an eighth each.
    many = pairs_of_busiest_rank(1e8, top_k=8, n_experts=256, n_groups=8)
    assert many == pytest.approx(1e8, rel=1e-3)


def experts(engine: Engine) -> Experts:
    return next(layer.experts for layer, _ in engine.stages[0].blueprint.layers if layer.experts is not None)


def test_work_of_one_token_by_hand(engine_of: EngineOf) -> None:
    """DeepSeek-V3 in 16 bit: 8 experts of 3 x 7168 x 2048 weights, 2 flop and 2 bytes each."""
    work = experts(engine_of("deepseek-v3", "h200-sxm", scheme="none")).work(1.0)
    assert work.flop == 8 * 3 * 7168 * 2048 * 2
    assert work.weight_bytes == pytest.approx(8 * 3 * 7168 * 2048 * 2)
    assert work.rows == pytest.approx(1.0)


def test_all_experts_are_read_once_at_most(engine_of: EngineOf) -> None:
    found = experts(engine_of("deepseek-v3", "h200-sxm", scheme="none"))
    assert found.work(1e6).weight_bytes == pytest.approx(256 * 3 * 7168 * 2048 * 2)
    assert found.work(1e6).rows == pytest.approx(1e6 * 8 / 256)


@pytest.mark.parametrize(
    "layout", [Layout(tp=8), Layout(tp=8, ep=8), Layout(dp=8, ep=8), Layout(tp=2, dp=4, ep=4), Layout(tp=4, dp=2, ep=2)]
)
def test_all_ranks_together_do_the_work_at_large_batch(engine_of: EngineOf, layout: Layout) -> None:
    """8 ranks hold and do an eighth each, however experts and widths are cut; the busiest does hardly more."""
    whole = experts(engine_of("deepseek-v3", "h200-sxm", scheme="none")).work(1e7)
    own = experts(engine_of("deepseek-v3", "h200-sxm", scheme="none", layout=layout)).work(1e7)
    assert np.asarray(own.flop) * 8 == pytest.approx(np.asarray(whole.flop), rel=2e-3)
    assert np.asarray(own.weight_bytes) * 8 == pytest.approx(np.asarray(whole.weight_bytes), rel=1e-9)


def test_a_rank_with_a_pair_reads_a_whole_expert(engine_of: EngineOf) -> None:
    """Mixtral with one expert a rank: the busiest of 8 ranks has one pair of one token, and reads its expert."""
    found = experts(engine_of("mixtral-8x7b", "h100-sxm", layout=Layout(tp=8, ep=8)))
    assert found.work(1.0).weight_bytes == pytest.approx(found.expert_bytes)
    assert found.work(1e4).weight_bytes == pytest.approx(found.expert_bytes)


@pytest.mark.parametrize(
    ("name", "layout"), [("deepseek-v3", Layout(dp=8, ep=8)), ("mixtral-8x7b", Layout(tp=8, ep=8))]
)
def test_work_never_falls_with_tokens(engine_of: EngineOf, name: str, layout: Layout) -> None:
    work = experts(engine_of(name, "h200-sxm", layout=layout)).work(np.arange(1.0, 3000.0))
    for counts in (work.flop, work.weight_bytes, work.io_bytes):
        assert np.all(np.diff(np.asarray(counts)) >= -1e-9 * np.asarray(counts)[:-1])
