"""Closed forms that any simulator of queues must meet: M/D/1, M/M/1, Little's law, a static batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from perfmodel.serving.arrivals import Trace, fixed_lengths, poisson_arrivals, simultaneous_arrivals
from perfmodel.serving.clock import FixedClock, Stepwise, TableClock
from perfmodel.serving.engine import ServingSetup, simulated
from perfmodel.serving.metrics import serving_result
from perfmodel.serving.scheduler import SchedulerLimits
from perfmodel.serving.step_table import EngineTimes, step_table
from perfmodel.step.request import request_estimate
from perfmodel.step.step import Engine

SERVICE_NS = 1_000_000
N_SEEDS, N_REQUESTS = 10, 20_000


def one_at_a_time(max_tokens: int = 10**7) -> ServingSetup:
    limits = SchedulerLimits(
        max_num_seqs=1, max_num_batched_tokens=max_tokens, max_model_len=max_tokens, n_blocks=1, block_tokens=max_tokens
    )
    return ServingSetup(limits=limits)


def waits_s(rho: float, clock: FixedClock, mean_tokens: float | None = None, *, n: int = N_REQUESTS) -> np.ndarray:
    means = []
    for seed in range(N_SEEDS):
        rng = np.random.default_rng(seed)
        arrival = poisson_arrivals(n, requests_per_s=rho * 1e9 / SERVICE_NS, rng=rng)
        inputs = fixed_lengths(n, tokens=1)
        if mean_tokens is not None:
            inputs = np.maximum(np.rint(rng.exponential(mean_tokens, n)), 1).astype(np.int64)
        run = simulated(Trace(arrival, inputs, fixed_lengths(n, tokens=1)), one_at_a_time(), clock)
        means.append((run.scheduled_ns - run.sent_ns).mean() / 1e9)
    return np.array(means)


@pytest.mark.parametrize("rho", [0.3, 0.6, 0.8])
def test_mean_waiting_of_m_d_1(rho: float) -> None:
    waits = waits_s(rho, FixedClock(1, SERVICE_NS))
    expected = rho * SERVICE_NS / 1e9 / (2 * (1 - rho))
    assert abs(waits.mean() - expected) < 3 * waits.std(ddof=1) / N_SEEDS**0.5


@pytest.mark.parametrize("rho", [0.3, 0.6, 0.8])
def test_mean_waiting_of_m_m_1(rho: float) -> None:
    waits = waits_s(rho, FixedClock(1, 0, 100), SERVICE_NS / 100, n=N_REQUESTS // 2)
    expected = rho * SERVICE_NS / 1e9 / (1 - rho)
    assert abs(waits.mean() - expected) < 3 * waits.std(ddof=1) / N_SEEDS**0.5


@pytest.fixture(scope="module")
def engine(engine_of: Callable[..., Engine]) -> Engine:
    return engine_of("llama-3.1-8b", "a100-80gb-sxm")


@pytest.fixture(scope="module")
def clock(engine: Engine) -> TableClock:
    return TableClock(step_table(EngineTimes(engine), n_seqs=64, context_tokens=768, prompt_tokens=2048))


def served_by(n_blocks: int = 4000, **more: object) -> ServingSetup:
    limits = SchedulerLimits(max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=768, n_blocks=n_blocks)
    return ServingSetup(limits=limits, **more)  # type: ignore[arg-type]


def poisson(n: int, rate: float, seed: int = 0) -> Trace:
    rng = np.random.default_rng(seed)
    arrival = poisson_arrivals(n, requests_per_s=rate, rng=rng)
    return Trace(arrival, rng.integers(64, 513, n), rng.integers(16, 257, n))


def test_littles_law_in_steady_state(clock: TableClock) -> None:
    n, rate = 30_000, 8.0
    run = simulated(poisson(n, rate), served_by(), clock)
    # From the middle half of the trace alone: requests present, against arrivals there and their time in the system.
    start, end = run.sent_ns[n // 4], run.sent_ns[3 * n // 4]
    inside = np.minimum(run.finish_ns, end) - np.maximum(run.sent_ns, start)
    present = inside[inside > 0].sum() / (end - start)
    arrived = (run.sent_ns >= start) & (run.sent_ns < end)
    through = arrived.sum() / (end - start) * (run.finish_ns - run.sent_ns)[arrived].mean()
    assert present == pytest.approx(through, rel=1e-3)
    checks = serving_result(run).checks
    assert checks.hold
    assert checks.mean_in_system == pytest.approx(checks.rate_times_e2e, rel=1e-12)


@pytest.mark.parametrize("policy", ["static", "prefill-first"])
@pytest.mark.parametrize("batch", [1, 4])
def test_a_static_batch_is_the_closed_form(engine: Engine, clock: TableClock, policy: str, batch: int) -> None:
    n_in, n_out = 512, 256
    trace = Trace(simultaneous_arrivals(batch), fixed_lengths(batch, tokens=n_in), fixed_lengths(batch, tokens=n_out))
    run = simulated(trace, served_by(policy=policy), clock)
    # With the same clock: the prompts in one step, then each decode step, to the nanosecond.
    first = clock.mixed_ns(0, 0, prompt_tokens=batch * n_in, pairs=batch * n_in * (n_in + 1) // 2)
    steps = sum(clock.decode_ns(batch, batch * context) for context in range(n_in + 1, n_in + n_out))
    assert set(run.first_token_ns.tolist()) == {first}
    assert set(run.finish_ns.tolist()) == {first + steps}
    closed = request_estimate(
        engine, batch=float(batch), input_tokens=float(n_in), output_tokens=float(n_out), token_budget=2048.0
    )
    assert first / 1e9 == pytest.approx(closed.ttft.value, rel=2e-3)
    assert (first + steps) / 1e9 == pytest.approx(closed.e2e.value, rel=2e-3)


class EveryContext:
    """Exact step times at every context, so that nothing is read between knots."""

    def __init__(self, engine: Engine, n_seqs: int, contexts: range) -> None:
        times = EngineTimes(engine)
        context = np.arange(contexts.start, contexts.stop, dtype=np.float64)
        steps = np.rint(times.decode_s(np.full_like(context, n_seqs), context) * 1e9).astype(np.int64)
        self.steps: dict[int, int] = dict(zip(contexts, steps.tolist(), strict=True))

    def decode_ns(self, n_seqs: int, context_tokens: int) -> int:
        return self.steps[context_tokens // n_seqs]

    def mixed_ns(self, n_seqs: int, context_tokens: int, *, prompt_tokens: int, pairs: int) -> int:
        return 1


def test_a_static_batch_is_the_step_model_exactly(engine: Engine) -> None:
    batch, n_in, n_out = 4, 300, 200
    exact = EveryContext(engine, batch, range(n_in + 1, n_in + n_out + 1))
    trace = Trace(simultaneous_arrivals(batch), fixed_lengths(batch, tokens=n_in), fixed_lengths(batch, tokens=n_out))
    run = simulated(trace, served_by(policy="static"), Stepwise(exact))  # type: ignore[arg-type]
    decoding = sum(exact.steps[context] for context in range(n_in + 1, n_in + n_out))
    assert set((run.finish_ns - run.first_token_ns).tolist()) == {decoding}
    # The closed form takes the mean step over the same contexts: equal but for whole nanoseconds and kinks.
    closed = request_estimate(
        engine, batch=float(batch), input_tokens=float(n_in), output_tokens=float(n_out), token_budget=1e6
    )
    assert decoding / 1e9 == pytest.approx(closed.e2e.value - closed.ttft.value, rel=2e-4)


def mean_e2e_s(setup: ServingSetup, clock: TableClock, seeds: int = 50, rate: float = 24.0) -> float:
    runs = [simulated(poisson(120, rate, seed), setup, clock) for seed in range(seeds)]
    return float(np.mean([(run.finish_ns - run.sent_ns).mean() for run in runs])) / 1e9


def test_more_memory_more_replicas_or_a_faster_device_does_not_slow_requests_down(
    clock: TableClock, engine_of: Callable[..., Engine]
) -> None:
    noise = 1.01
    scarce, ample = mean_e2e_s(served_by(250), clock), mean_e2e_s(served_by(1000), clock)
    assert ample <= scarce * noise
    assert ample < 0.7 * scarce
    two = mean_e2e_s(served_by(250, n_replicas=2), clock)
    assert two < scarce
    assert mean_e2e_s(served_by(250, n_replicas=2, routing="least-loaded"), clock) <= two * noise
    h100 = EngineTimes(engine_of("llama-3.1-8b", "h100-sxm"))
    faster = TableClock(step_table(h100, n_seqs=64, context_tokens=768, prompt_tokens=2048))
    assert mean_e2e_s(served_by(250), faster) < scarce


def test_the_shortest_first_shortens_the_mean_wait(clock: TableClock) -> None:
    waits = {}
    for order in ("fcfs", "sjf"):
        run = simulated(poisson(300, 40.0), served_by(250, order=order), clock)
        waits[order] = (run.scheduled_ns - run.sent_ns).mean()
        assert (run.finish_ns > 0).all()
    assert waits["sjf"] < 0.9 * waits["fcfs"]


def test_a_closed_loop_keeps_its_users_busy(clock: TableClock) -> None:
    n, users = 200, 8
    trace = Trace(simultaneous_arrivals(n), fixed_lengths(n, tokens=256), fixed_lengths(n, tokens=64))
    run = simulated(trace.closed(users), served_by(), clock)
    events = np.concatenate((run.sent_ns, run.finish_ns))
    change = np.concatenate((np.ones(n), -np.ones(n)))
    order = np.lexsort((change, events))
    in_flight = np.cumsum(change[order])
    assert in_flight.max() == users
    thinking = np.full(n, 10**9)
    slow = simulated(trace.closed(users, think_ns=thinking), served_by(), clock)
    per_user = (slow.finish_ns - slow.sent_ns).mean() / 1e9 + 1.0
    # Users answer themselves: N = X (R + Z), but for the start and the end.
    assert users == pytest.approx(n / (slow.finish_ns.max() / 1e9 + 1.0) * per_user, rel=0.02)
