"""Figures of a run, by hand and by counting token by token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.errors import SpecError
from perfmodel.serving.arrivals import Trace, poisson_arrivals
from perfmodel.serving.clock import FixedClock
from perfmodel.serving.engine import Run, ServingSetup, simulated
from perfmodel.serving.metrics import ServingResult, Slo, Spread, serving_result
from perfmodel.serving.scheduler import SchedulerLimits
from perfmodel.serving.timeline import timeline

CLOCK = FixedClock(10_000_000, 100_000_000, 1_000_000)


def run_of(rows: list[tuple[int, int, int]], **changes: int) -> Run:
    arrival, inputs, outputs = np.array(rows, np.int64).T
    limits = SchedulerLimits(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=100, n_blocks=50)
    limits = replace(limits, **changes)  # type: ignore[arg-type]
    return simulated(Trace(arrival, inputs, outputs), ServingSetup(limits=limits), CLOCK)


def result_of(rows: list[tuple[int, int, int]], slo: Slo | None = None, **changes: int) -> ServingResult:
    return serving_result(run_of(rows, **changes), slo=slo)


def test_two_requests_by_hand() -> None:
    # The first: prompt to 110 ms, decodes at 120, 130 ms. The second comes at 125, is read from 130 to 240.
    result = result_of([(0, 10, 4), (125_000_000, 10, 1)], Slo(ttft_s=0.112))
    assert result.columns["ttft_s"].tolist() == pytest.approx([0.110, 0.115])
    assert result.columns["tpot_s"][0] == pytest.approx((0.240 - 0.110) / 3)
    assert np.isnan(result.columns["tpot_s"][1])
    assert result.columns["queue_s"].tolist() == pytest.approx([0.0, 0.005])
    assert result.spreads["itl_s"].n == 3
    assert result.spreads["itl_s"].mean == pytest.approx(0.130 / 3)
    assert result.spreads["itl_s"].percentiles == {50: 0.01, 90: 0.11, 95: 0.11, 99: 0.11}
    assert result.duration_s == pytest.approx(0.240)
    assert result.requests_per_s == pytest.approx(2 / 0.240)
    assert result.output_tokens_per_s == pytest.approx(5 / 0.240)
    assert result.total_tokens_per_s == pytest.approx(25 / 0.240)
    assert result.goodput_frac == 0.5
    assert result.goodput_requests_per_s == pytest.approx(1 / 0.240)
    assert result.usage.busy_frac == 1.0
    assert result.usage.mean_decoding == 1.0
    assert result.usage.limit_shares["arrival_rate"] == 1.0
    assert result.binding_limit == "arrival_rate"
    assert result.checks.hold


def test_shares_of_time_add_up_and_idle_time_waits_for_arrivals() -> None:
    result = result_of([(0, 10, 4)] * 9 + [(10**10, 10, 2)])
    assert sum(result.usage.limit_shares.values()) == pytest.approx(1.0)
    assert result.usage.limit_shares["max_num_seqs"] > 0
    assert result.usage.busy_frac < 0.2
    assert result.binding_limit == "arrival_rate"
    assert 0 < result.usage.kv_used_frac < result.usage.kv_used_most_frac <= 1


def test_refused_requests_are_counted_and_have_no_times() -> None:
    result = result_of([(0, 99, 99), (0, 10, 2)], Slo(e2e_s=5.0))
    assert result.n_refused == {"context_limit": 1}
    assert np.isnan(result.columns["e2e_s"][0])
    assert result.n_completed == 1
    assert result.goodput_frac == 0.5
    assert result.checks.hold
    nothing = result_of([(0, 99, 99)])
    assert nothing.requests_per_s == 0
    assert nothing.spreads["ttft_s"].mean is None
    assert nothing.spreads["itl_s"].percentiles[99] is None
    assert nothing.checks.hold
    with pytest.raises(SpecError, match="nothing was served"):
        timeline(nothing.run)


@pytest.mark.parametrize(("rate", "is_stable"), [(2.0, True), (6.0, True), (30.0, False)])
def test_rates_beyond_saturation_are_unstable(rate: float, is_stable: bool) -> None:
    n = 600
    arrival = poisson_arrivals(n, requests_per_s=rate, rng=np.random.default_rng(2))
    one = np.ones(n, np.int64)
    limits = SchedulerLimits(max_num_seqs=1, max_num_batched_tokens=64, max_model_len=100, n_blocks=50)
    # A request takes 101 + 10 ms: at most 9 a second.
    result = serving_result(simulated(Trace(arrival, one, 2 * one), ServingSetup(limits=limits), CLOCK))
    assert result.is_stable == is_stable
    if result.growth_requests_per_s is not None:
        assert result.growth_requests_per_s == pytest.approx(rate - 9.0, rel=0.1)
        assert result.binding_limit == "max_num_seqs"


def test_weighted_percentiles_equal_those_of_the_samples() -> None:
    rng = np.random.default_rng(4)
    values, weights = rng.random(50), rng.integers(0, 6, 50)
    spread, samples = Spread.weighted(values, weights), np.repeat(values, weights)
    assert spread.n == len(samples)
    assert spread.mean == pytest.approx(samples.mean())
    assert spread.std == pytest.approx(samples.std())
    for p, value in spread.percentiles.items():
        assert value == np.percentile(samples, p, method="inverted_cdf")


def test_objectives_are_above_zero() -> None:
    with pytest.raises(SpecError, match="tpot_s"):
        Slo(tpot_s=0.0)


def test_the_timeline_keeps_every_integral() -> None:
    rng = np.random.default_rng(0)
    rows = [
        (int(t), int(i), int(o))
        for t, i, o in zip(
            np.sort(rng.integers(0, 10**10, 60)), rng.integers(5, 60, 60), rng.integers(2, 39, 60), strict=True
        )
    ]
    run = run_of(rows, n_blocks=14)
    assert run.n_preemptions.sum() > 0
    line = timeline(run, n_points=37)
    width = line.time_s[1] - line.time_s[0]
    decoded = sum(int((s.n_decoding * s.n_steps).sum()) for s in run.segments)
    assert (line.output_tokens_per_s.sum() * width) == pytest.approx(decoded, rel=1e-9)
    present = (run.finish_ns - run.sent_ns).sum() / 1e9
    assert ((line.n_waiting + line.n_running).sum() * width) == pytest.approx(present, rel=1e-6)
    assert line.n_waiting.sum() * width > (run.scheduled_ns - run.sent_ns).sum() / 1e9
    assert line.kv_used_frac.max() <= 1
    assert line.n_running.max() <= 4 + 1e-9
    assert len(timeline(run, step_s=1.0).time_s) == int(np.ceil(serving_result(run).duration_s))


def test_the_way_in_and_out_of_the_engine_counts_and_keeps_users_waiting() -> None:
    # One user, prompts of one step (110 ms), two further tokens (20 ms): 130 ms in the engine, 30 ms outside of it.
    arrival, inputs, outputs = np.array([(0, 10, 3)] * 4, np.int64).T
    trace = Trace(arrival, inputs, outputs).closed(1)
    limits = SchedulerLimits(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=100, n_blocks=50)
    run = simulated(trace, ServingSetup(limits=limits, outside_ns=30_000_000), CLOCK)
    assert np.diff(run.sent_ns).tolist() == [160_000_000] * 3
    result = serving_result(run)
    assert result.columns["ttft_s"].tolist() == pytest.approx([0.140] * 4)
    assert result.columns["e2e_s"].tolist() == pytest.approx([0.160] * 4)
    assert result.columns["tpot_s"].tolist() == pytest.approx([0.010] * 4)
    assert result.checks.hold
