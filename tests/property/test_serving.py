"""Laws of the simulation: closed forms equal single steps, nothing is lost, blocks are conserved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from perfmodel.serving.arrivals import Trace
from perfmodel.serving.batch import Batch
from perfmodel.serving.clock import Clock, FixedClock, Stepwise, TableClock, floor_sum
from perfmodel.serving.decoding import ONE_TOKEN, Pace
from perfmodel.serving.engine import Run, ServingSetup, Swap, simulated
from perfmodel.serving.metrics import serving_result
from perfmodel.serving.prefix_cache import Prefixes, PrefixPool
from perfmodel.serving.scheduler import POLICIES, BatchWindow, Policy, SchedulerLimits, policy_of
from perfmodel.serving.step_table import step_table

Array = NDArray[np.float64]


class ToyTimes:
    """Step times with a knee and a curve, as kernels have them."""

    def decode_s(self, n_seqs: Array, context: Array) -> Array:
        """A floor, a slope in total context, a curve in the mean."""
        curve: Array = 0.5 * np.log2(1 + context / 16)
        return 1e-6 * (np.maximum(9.0, 0.7 * n_seqs) + 0.0313 * n_seqs * context + curve)

    def mixed_s(self, n_seqs: Array, context: Array, prompt_tokens: Array, attended: Array) -> Array:
        """The same with prompts beside."""
        return self.decode_s(n_seqs, context) + self.prompt_s(prompt_tokens, attended)

    def prompt_s(self, prompt_tokens: Array, attended: Array) -> Array:
        """Work on tokens and on pairs."""
        return 1e-6 * (3.0 + 0.9 * prompt_tokens + 0.004 * prompt_tokens * attended)


TOY = TableClock(step_table(ToyTimes(), n_seqs=16, context_tokens=400, prompt_tokens=64))
CLOCKS: list[Clock] = [TOY, FixedClock(1000, 500, 70)]


class Watched:
    """A policy that checks the books of the batch before and after every plan."""

    def __init__(self, inner: Policy) -> None:
        self.inner = inner
        self.whole_prompts, self.admits_beside_decodes = inner.whole_prompts, inner.admits_beside_decodes
        self.wakes_ns = inner.wakes_ns

    def plan(self, batch: Batch) -> bool:
        """Check, plan, check."""
        pool = batch.pool
        shared = pool.n_shared if isinstance(pool, PrefixPool) else 0
        assert pool.used == batch.held_blocks() - shared
        assert 0 <= batch.host.used <= batch.host.n_blocks
        assert pool.used + pool.free == pool.n_blocks
        decodes = self.inner.plan(batch)
        assert pool.used + pool.free == pool.n_blocks
        assert 0 <= pool.free == pool.unclaimed()
        assert batch.n_running <= batch.limits.max_num_seqs
        assert batch.chunks or batch.decoding.n_seqs
        return decodes


@st.composite
def traces(draw: st.DrawFn, most: int = 40) -> Trace:
    n = most - draw(st.integers(0, most - 1))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    scale = draw(st.sampled_from([300, 1, 5_000, 30_000, 1_000_000]))
    arrival = np.cumsum(rng.integers(0, scale + 1, n)).astype(np.int64)
    inputs, outputs = rng.integers(1, 70, n), rng.integers(1, draw(st.sampled_from([150, 30, 2])), n)
    users = draw(st.sampled_from([None, None, None, 1, 8]))
    think = rng.integers(0, 50_000, n) if users else None
    priority = rng.integers(0, 3, n) if draw(st.booleans()) else None
    prefixes = Prefixes(
        group=rng.integers(-1, 3, n),
        group_tokens=np.minimum(rng.integers(0, 60, 3)[rng.integers(0, 3, n)], inputs),
        conversation=rng.integers(-1, 6, n),
    )
    hashed = replace(prefixes, hashes=[list(rng.integers(0, 3, length // 16)) for length in inputs], hash_tokens=16)
    return Trace(
        arrival,
        inputs,
        outputs,
        max_in_flight=users,
        think_ns=think,
        priority=priority,
        prefixes=draw(st.sampled_from([None, prefixes, prefixes, hashed])),
    )


WINDOWS: list[dict[str, Any]] = [
    {},
    {},
    {"n_full_groups": 0, "n_window_groups": 1, "window_tokens": 20},
    {"n_full_groups": 1, "n_window_groups": 2, "window_tokens": 33},
]


@st.composite
def limits(draw: st.DrawFn) -> SchedulerLimits:
    block = draw(st.sampled_from([16, 4, 1]))
    windows = draw(st.sampled_from(WINDOWS))
    tokens = draw(st.sampled_from([256, 300, 600, 2000]))
    return SchedulerLimits(
        max_num_seqs=draw(st.sampled_from([16, 16, 5, 1])),
        max_num_batched_tokens=draw(st.sampled_from([40, 64, 200, 16])),
        max_model_len=240,
        n_blocks=-(-tokens // block),
        block_tokens=block,
        chunked=draw(st.booleans()),
        watermark_frac=draw(st.sampled_from([0.0, 0.01, 0.05])),
        preallocated_tokens=None if windows else draw(st.sampled_from([None, None, None, 240])),
        keeps_prefix=draw(st.booleans()),
        reserves_prompt=draw(st.booleans()),
        **windows,
    )


@st.composite
def setups(draw: st.DrawFn) -> ServingSetup:
    of = draw(limits())
    can_share = not of.n_window_groups and not of.preallocated_tokens
    return ServingSetup(
        limits=of,
        policy=draw(st.sampled_from(list(POLICIES))),
        order=draw(st.sampled_from(["fcfs", "sjf", "priority"])),
        n_replicas=draw(st.sampled_from([1, 1, 2, 3])),
        prefix_cache=can_share and draw(st.booleans()),
        pace=draw(st.sampled_from([ONE_TOKEN, ONE_TOKEN, Pace(2, 1, 3), Pace.of(2.19, n_draft=2), Pace(1, 1, 1)])),
        window=draw(st.sampled_from([None, None, None, BatchWindow(delay_ns=3_000, preferred=3)])),
        swap=draw(st.sampled_from([None, None, Swap(host_blocks=30, block_ns=40), Swap(host_blocks=3, block_ns=0)])),
    )


def watched(setup: ServingSetup) -> ServingSetup:
    def make(of: SchedulerLimits) -> Policy:
        return Watched(policy_of(setup.policy, of))

    return replace(setup, make_policy=make)


def same(one: Run, other: Run) -> None:
    for name in ("sent_ns", "scheduled_ns", "first_token_ns", "finish_ns", "n_preemptions", "replica"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert one.refused == other.refused
    assert one.in_system_ns == other.in_system_ns


class SingleSteps(Stepwise):
    """A clock that never lets more than one step pass at a time."""

    __slots__ = ()

    def decode_run(
        self, n_seqs: int, context_tokens: int, *, n_most: int, until_ns: int, per_step: int = 1
    ) -> tuple[int, int]:
        return 1, self.clock.decode_ns(n_seqs, context_tokens)


@settings(max_examples=250, deadline=None)
@given(traces(), setups(), st.sampled_from(CLOCKS))
def test_runs_of_steps_equal_single_steps_to_the_nanosecond(trace: Trace, setup: ServingSetup, clock: Clock) -> None:
    fast = simulated(trace, setup, clock)
    same(fast, simulated(trace, setup, Stepwise(clock)))
    same(fast, simulated(trace, setup, SingleSteps(clock)))


@settings(max_examples=250, deadline=None)
@given(traces(), setups(), st.sampled_from(CLOCKS))
def test_blocks_are_conserved_and_every_request_ends_once(trace: Trace, setup: ServingSetup, clock: Clock) -> None:
    run = simulated(trace, watched(setup), clock)
    served = run.finish_ns >= 0
    assert served.sum() + len(run.refused) == len(trace)
    assert not any(served[list(run.refused)])
    assert (run.sent_ns >= trace.arrival_ns).all()
    for before, after in (
        ("sent_ns", "scheduled_ns"),
        ("scheduled_ns", "first_token_ns"),
        ("first_token_ns", "finish_ns"),
    ):
        assert (getattr(run, before)[served] <= getattr(run, after)[served]).all()
    assert run.used_blocks_at_end == 0
    assert run.in_system_ns == int((run.finish_ns - run.sent_ns)[served].sum())
    tokens = int(trace.output_tokens[served].sum())
    gaps = sum(int((s.output_tokens - s.n_late).sum()) for s in run.segments) + int(run.late_gaps[:, 1].sum())
    assert gaps == tokens - served.sum()


@pytest.mark.parametrize("policy", ["mixed", "prefill-first"])
@pytest.mark.parametrize("keeps_prefix", [True, False])
def test_a_pool_that_runs_out_all_the_time_keeps_its_books(policy: str, keeps_prefix: bool) -> None:
    n_preempted = n_reused = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        n = 80
        arrival = np.cumsum(rng.integers(0, 2_000, n)).astype(np.int64)
        trace = Trace(arrival, rng.integers(1, 70, n), rng.integers(40, 150, n))
        of = SchedulerLimits(
            max_num_seqs=16,
            max_num_batched_tokens=int(rng.choice([24, 64, 100])) if policy == "mixed" else 200,
            max_model_len=240,
            n_blocks=int(rng.choice([80, 120, 200])),
            block_tokens=4,
            watermark_frac=0.0 if policy == "mixed" else 0.01,
            keeps_prefix=keeps_prefix,
        )
        setup = ServingSetup(limits=of, policy=policy)
        fast = simulated(trace, setup, TOY)
        same(fast, simulated(trace, watched(setup), SingleSteps(TOY)))
        same(fast, simulated(trace, watched(setup), TOY))
        assert (fast.finish_ns >= 0).all()
        assert fast.used_blocks_at_end == 0
        n_preempted += int(fast.n_preemptions.sum())
        n_reused += fast.n_reused_blocks
    assert n_preempted > 100
    assert (n_reused > 100) == keeps_prefix


FEATURES: dict[str, dict[str, Any]] = {
    "swap": {"swap": Swap(host_blocks=60, block_ns=70)},
    "swap of little room": {"swap": Swap(host_blocks=12, block_ns=0)},
    "priority": {"order": "priority"},
    "priority and swap": {"order": "priority", "swap": Swap(host_blocks=60, block_ns=70)},
    "speculation": {"pace": Pace(2, 1, 2)},
    "uneven speculation and swap": {"pace": Pace.of(1.7, n_draft=2), "swap": Swap(host_blocks=60, block_ns=7)},
    "prefix cache": {"prefix_cache": True},
    "prefix cache, swap, priority": {
        "prefix_cache": True,
        "order": "priority",
        "swap": Swap(host_blocks=40, block_ns=70),
    },
    "windows": {},
}


@pytest.mark.parametrize("policy", list(POLICIES))
@pytest.mark.parametrize("feature", FEATURES)
def test_features_keep_their_books_while_the_pool_runs_out(policy: str, feature: str) -> None:
    n_preempted = n_moved = n_found = 0
    windows: dict[str, Any] = (
        {"n_full_groups": 1, "n_window_groups": 1, "window_tokens": 30} if feature == "windows" else {}
    )
    for seed in range(5):
        rng = np.random.default_rng(seed)
        n = 60
        arrival = np.cumsum(rng.integers(0, 2_000, n)).astype(np.int64)
        groups = rng.integers(-1, 4, n)
        trace = Trace(
            arrival,
            rng.integers(1, 70, n),
            rng.integers(40, 150, n),
            priority=rng.integers(0, 4, n),
            prefixes=Prefixes(groups, np.full(n, 40), rng.integers(-1, 20, n)),
        )
        of = SchedulerLimits(
            max_num_seqs=16,
            max_num_batched_tokens=int(rng.choice([24, 64, 100])) if policy == "mixed" else 200,
            max_model_len=240,
            n_blocks=int(rng.choice([80, 120, 200])),
            block_tokens=4,
            watermark_frac=0.0 if policy == "mixed" else 0.01,
            **windows,
        )
        setup = ServingSetup(limits=of, policy=policy, **FEATURES[feature])
        fast = simulated(trace, setup, TOY)
        same(fast, simulated(trace, watched(setup), SingleSteps(TOY)))
        same(fast, simulated(trace, watched(setup), TOY))
        assert (fast.finish_ns >= 0).all()
        assert fast.used_blocks_at_end == 0
        assert serving_result(fast).checks.hold
        n_preempted += int(fast.n_preemptions.sum())
        n_moved += fast.n_moved_blocks
        n_found += fast.found_tokens
    assert n_preempted > 20
    assert (n_moved > 20) == ("swap" in feature)
    assert (n_found > 100) == ("prefix" in feature)


@settings(max_examples=150, deadline=None)
@given(traces(), setups(), st.sampled_from(CLOCKS))
def test_gaps_between_tokens_add_up_to_the_time_of_decoding(trace: Trace, setup: ServingSetup, clock: Clock) -> None:
    run = simulated(trace, setup, clock)
    served = run.finish_ns >= 0
    total = sum(int((s.n_decoding * s.duration_ns)[s.n_late == 0].sum()) for s in run.segments)
    late = [(s.n_decoding, s.duration_ns, s.n_steps, s.n_late) for s in run.segments if (s.n_late > 0).any()]
    if late:
        return
    total += int((run.late_gaps[:, 0] * run.late_gaps[:, 1]).sum())
    assert total == int((run.finish_ns - run.first_token_ns)[served].sum())


@settings(max_examples=60, deadline=None)
@given(traces(), limits(), st.sampled_from(list(POLICIES)))
def test_routing_by_load_equals_single_steps_and_loses_nothing(trace: Trace, of: SchedulerLimits, policy: str) -> None:
    trace = Trace(trace.arrival_ns, trace.input_tokens, trace.output_tokens)
    setup = ServingSetup(limits=of, policy=policy, n_replicas=3, routing="least-loaded")
    fast = simulated(trace, setup, TOY)
    same(fast, simulated(trace, setup, SingleSteps(TOY)))
    assert (fast.finish_ns >= 0).sum() + len(fast.refused) == len(trace)


@given(st.integers(1, 16), st.integers(1, 390), st.integers(1, 500), st.integers(-5, 10**8), st.sampled_from(CLOCKS))
def test_a_run_of_decode_steps_is_the_sum_of_its_steps(n: int, mean: int, most: int, until: int, clock: Clock) -> None:
    context = n * mean + n // 2
    assert clock.decode_run(n, context, n_most=most, until_ns=until) == Stepwise(clock).decode_run(
        n, context, n_most=most, until_ns=until
    )


@given(st.integers(0, 300), st.integers(1, 10**6), st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9))
def test_floor_sum_is_the_sum_of_floors(n: int, m: int, a: int, b: int) -> None:
    assert floor_sum(n, m, a, b) == sum((a * i + b) // m for i in range(n))


@settings(max_examples=100, deadline=None)
@given(traces(), st.integers(2, 9), st.sampled_from(list(POLICIES)))
def test_a_faster_clock_never_delays_a_request_that_is_served_alone(trace: Trace, factor: int, policy: str) -> None:
    trace = Trace(trace.arrival_ns, trace.input_tokens, trace.output_tokens)
    of = SchedulerLimits(max_num_seqs=1, max_num_batched_tokens=256, max_model_len=240, n_blocks=20, block_tokens=16)
    setup = ServingSetup(limits=of, policy=policy)
    slow = simulated(trace, setup, FixedClock(100 * factor, 50 * factor, 7 * factor))
    fast = simulated(trace, setup, FixedClock(100, 50, 7))
    assert (fast.finish_ns <= slow.finish_ns).all()
    assert (fast.first_token_ns <= slow.first_token_ns).all()
