"""Laws of replicas that serve together: fast-forward equals single steps, every request ends once, also in failures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.serving.arrivals import Trace
from perfmodel.serving.clock import Clock, FixedClock, TableClock
from perfmodel.serving.decoding import ONE_TOKEN, Pace
from perfmodel.serving.engine import ServingSetup, Swap, simulated
from perfmodel.serving.fleet_setup import Disaggregation, Failure, KvLink, Sharing
from perfmodel.serving.metrics import serving_result
from perfmodel.serving.prefix_cache import Prefixes
from perfmodel.serving.records import LOST, NEVER
from perfmodel.serving.routing import ROUTINGS
from perfmodel.serving.scheduler import POLICIES, BatchWindow, SchedulerLimits
from perfmodel.serving.sharing import SlowdownTable
from perfmodel.serving.step_table import step_table
from tests.property.test_serving import SingleSteps, ToyTimes, same, watched

TOY = TableClock(step_table(ToyTimes(), n_seqs=32, context_tokens=400, prompt_tokens=64))
CLOCKS: list[Clock] = [TOY, FixedClock(1000, 500, 70)]


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    n = draw(st.integers(1, 30))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    scale = draw(st.sampled_from([300, 5_000, 1, 30_000, 1_000_000]))
    arrival = np.cumsum(rng.integers(0, scale + 1, n)).astype(np.int64)
    inputs, outputs = rng.integers(1, 70, n), rng.integers(1, draw(st.sampled_from([90, 2])), n)
    prefixes = Prefixes(rng.integers(-1, 3, n), np.minimum(30, inputs), rng.integers(-1, 4, n))
    trace = Trace(arrival, inputs, outputs, prefixes=prefixes)
    match draw(st.sampled_from(["open", "users", "turns"])):
        case "users":
            return trace.closed(draw(st.integers(1, 6)), think_ns=rng.integers(0, 3_000, n))
        case "turns":
            # The i-th request waits for one of those before it, each at most once.
            after = np.array([i - 3 if i >= 3 and rng.random() < 0.7 else -1 for i in range(n)])
            return replace(trace, after=after, think_ns=rng.integers(0, 3_000, n))
        case _:
            return trace


@st.composite
def setups(draw: st.DrawFn) -> ServingSetup:
    n = draw(st.sampled_from([2, 3, 1, 4]))
    of = SchedulerLimits(
        max_num_seqs=draw(st.sampled_from([6, 2])),
        max_num_batched_tokens=draw(st.sampled_from([128, 200])),
        max_model_len=draw(st.sampled_from([170, 120])),
        n_blocks=draw(st.sampled_from([60, 45])),
        block_tokens=4,
        chunked=draw(st.booleans()),
    )
    apart, sharing = None, None
    if n > 1 and draw(st.booleans()):
        n_prefill = draw(st.integers(1, n - 1))
        link = KvLink(latency_ns=draw(st.sampled_from([0, 700])), token_ns=draw(st.sampled_from([0.0, 3.7, 90.0])))
        apart = Disaggregation(n_prefill=n_prefill, n_decode=n - n_prefill, link=link)
    if draw(st.integers(0, 3)) == 0:
        sharing = Sharing(n_instances=2, contention=SlowdownTable((1.0, 1.7, 2.9)))
    failures = []
    for _ in range(draw(st.sampled_from([0, 0, 1, 3]))):
        at_ns = draw(st.integers(0, 60_000))
        back_ns = draw(st.sampled_from([at_ns + 1, at_ns + 20_000, at_ns + 300_000, NEVER]))
        replica = draw(st.integers(0, n - 1))
        failure = Failure(replica=replica, at_ns=at_ns, back_ns=back_ns)
        failures.append(replace(failure, then="lose") if draw(st.booleans()) else failure)
    n_ranks = draw(st.sampled_from([1, n])) if not (apart or sharing or failures) else 1
    return ServingSetup(
        limits=of,
        policy=draw(st.sampled_from(list(POLICIES))),
        order=draw(st.sampled_from(["fcfs", "sjf"])),
        n_replicas=n,
        routing=draw(st.sampled_from(list(ROUTINGS))),
        prefix_cache=draw(st.booleans()),
        pace=draw(st.sampled_from([ONE_TOKEN, ONE_TOKEN, Pace.of(1.6, n_draft=2)])),
        n_ranks=n_ranks,
        window=draw(st.sampled_from([None, None, BatchWindow(delay_ns=4_000, preferred=2)])) if n_ranks == 1 else None,
        swap=draw(st.sampled_from([None, Swap(host_blocks=20, block_ns=30)])),
        apart=apart,
        failures=tuple(failures),
        sharing=sharing,
    )


@settings(max_examples=300, deadline=None)
@given(traces(), setups(), st.sampled_from(CLOCKS))
def test_a_fleet_equals_single_steps_and_loses_nothing(trace: Trace, setup: ServingSetup, clock: Clock) -> None:
    run = simulated(trace, watched(setup), clock)
    same(run, simulated(trace, setup, SingleSteps(clock)))
    checks = serving_result(run).checks
    assert checks.requests_conserved
    assert checks.blocks_conserved
    assert checks.tokens_conserved
    served = run.finish_ns >= 0
    assert run.in_system_ns == int((run.finish_ns - run.sent_ns)[served].sum())
    assert not any(served[list(run.refused)])
    assert (run.sent_ns >= trace.arrival_ns).all()
    assert (run.first_token_ns[served] > run.scheduled_ns[served]).all()
    assert (run.finish_ns[served] >= run.first_token_ns[served]).all()
    if not any(failure.then == "lose" or failure.back_ns == NEVER for failure in setup.failures):
        assert LOST not in run.refused.values()
    if not setup.failures:
        assert run.n_retried == run.lost_tokens == 0


@pytest.mark.parametrize("routing", list(ROUTINGS))
def test_more_replicas_do_not_slow_requests_down(routing: str) -> None:
    of = SchedulerLimits(max_num_seqs=6, max_num_batched_tokens=128, max_model_len=170, n_blocks=60, block_tokens=4)

    def mean_ns(n: int) -> float:
        total = 0.0
        for seed in range(20):
            rng = np.random.default_rng(seed)
            arrival = np.cumsum(rng.exponential(1_500, 60)).astype(np.int64)
            prefixes = Prefixes(rng.integers(0, 5, 60), np.full(60, 20), rng.integers(-1, 9, 60))
            trace = Trace(arrival, rng.integers(21, 70, 60), rng.integers(1, 60, 60), prefixes=prefixes)
            setup = ServingSetup(limits=of, n_replicas=n, routing=routing, prefix_cache=True)
            run = simulated(trace, setup, TOY)
            total += float((run.finish_ns - run.sent_ns).mean())
        return total / 20

    one, two, four = (mean_ns(n) for n in (1, 2, 4))
    assert four <= two * 1.01
    assert two <= one * 1.01
    assert two < 0.9 * one
