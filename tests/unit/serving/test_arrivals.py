"""Traffic: rates, spreads and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.errors import SpecError
from perfmodel.serving.arrivals import (
    Trace,
    constant_arrivals,
    diurnal_arrivals,
    empirical_lengths,
    fixed_lengths,
    gamma_arrivals,
    lognormal_lengths,
    on_off_arrivals,
    poisson_arrivals,
    simultaneous_arrivals,
    uniform_lengths,
)

N = 40_000


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def rate_and_variation(arrival_ns: np.ndarray) -> tuple[float, float]:
    gaps = np.diff(arrival_ns) / 1e9
    return 1 / float(gaps.mean()), float(gaps.std() / gaps.mean())


def test_rates_and_the_variation_of_gaps() -> None:
    assert rate_and_variation(constant_arrivals(N, requests_per_s=5.0)) == pytest.approx((5.0, 0.0), abs=1e-6)
    assert rate_and_variation(poisson_arrivals(N, requests_per_s=5.0, rng=rng())) == pytest.approx((5, 1), rel=0.02)
    for burstiness in (0.25, 1.0, 4.0):
        drawn = gamma_arrivals(N, requests_per_s=5.0, burstiness=burstiness, rng=rng())
        assert rate_and_variation(drawn) == pytest.approx((5.0, burstiness**-0.5), rel=0.04)
    assert not simultaneous_arrivals(7).any()


def test_on_off_traffic_is_silent_while_off() -> None:
    arrival_s = on_off_arrivals(N, requests_per_s=50.0, on_s=2.0, off_s=3.0, rng=rng()) / 1e9
    assert len(arrival_s) / arrival_s[-1] == pytest.approx(20.0, rel=0.03)
    # The first request was moved to time zero, by one gap at most.
    assert (((arrival_s % 5.0) < 2.0) | ((arrival_s % 5.0) > 4.5)).all()


def test_diurnal_traffic_follows_its_rate() -> None:
    arrival_s = diurnal_arrivals(N, requests_per_s=50.0, swing_frac=0.8, period_s=100.0, rng=rng()) / 1e9
    counts, _ = np.histogram(arrival_s % 100.0, bins=10, range=(0, 100))
    edges = np.linspace(0, 1, 11)
    expected = np.diff(edges - 0.8 * np.sin(2 * np.pi * edges) / (2 * np.pi)) * N
    np.testing.assert_allclose(counts, expected, atol=0.01 * N)


def test_lengths() -> None:
    assert set(fixed_lengths(5, tokens=7).tolist()) == {7}
    drawn = uniform_lengths(N, low_tokens=3, high_tokens=5, rng=rng())
    assert set(drawn.tolist()) == {3, 4, 5}
    drawn = lognormal_lengths(N, mean_tokens=300.0, sigma=0.8, rng=rng())
    assert drawn.mean() == pytest.approx(300, rel=0.02)
    assert drawn.min() >= 1
    assert lognormal_lengths(N, mean_tokens=300.0, sigma=0.8, rng=rng(), most_tokens=500).max() == 500
    inputs, outputs = empirical_lengths(N, input_tokens=ints(10, 20), output_tokens=ints(1, 2), rng=rng())
    assert set(zip(inputs.tolist(), outputs.tolist(), strict=True)) == {(10, 1), (20, 2)}


def test_one_seed_gives_one_trace() -> None:
    first, second = (poisson_arrivals(100, requests_per_s=3.0, rng=rng(5)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert first[0] == 0


def test_a_trace_is_scaled_cut_and_closed() -> None:
    trace = Trace(ints(0, 4, 10), ints(1, 2, 3), ints(4, 5, 6), think_ns=ints(7, 8, 9), max_in_flight=2)
    assert trace.scaled(2.0).arrival_ns.tolist() == [0, 2, 5]
    cut = trace.cut(2)
    assert (len(cut), cut.think_ns.tolist() if cut.think_ns is not None else None, cut.max_in_flight) == (2, [7, 8], 2)
    open_trace = Trace(ints(0, 10**9), ints(1, 1), ints(1, 1))
    assert open_trace.requests_per_s == 1.0
    assert not open_trace.closed(3).is_open
    assert open_trace.closed(3).requests_per_s is None
    with pytest.raises(SpecError, match="above 0"):
        trace.scaled(0.0)


@pytest.mark.parametrize(
    ("arrival", "inputs", "outputs", "says"),
    [
        ((), (), (), "no requests"),
        ((0, 1), (5, -3), (1, 1), "request 1: got input tokens -3"),
        ((0, 1), (5, 0), (1, 1), "input tokens 0"),
        ((0, 1, 2), (5, 5, 5), (1, 0, 0), r"request 1 \(and 1 more\): got output tokens 0"),
        ((5, 4), (5, 5), (1, 1), "Sort the requests"),
        ((-1, 4), (5, 5), (1, 1), "arrival time -1"),
        ((0, 1), (5,), (1, 1), "shape"),
    ],
)
def test_traffic_that_cannot_be_served(
    arrival: tuple[int, ...], inputs: tuple[int, ...], outputs: tuple[int, ...], says: str
) -> None:
    with pytest.raises(SpecError, match=says):
        Trace(ints(*arrival), ints(*inputs), ints(*outputs))


def test_traffic_in_other_types_or_without_users_is_refused() -> None:
    with pytest.raises(SpecError, match="float64"):
        Trace(np.array([0.0]), ints(1), ints(1))
    with pytest.raises(SpecError, match="max_in_flight"):
        Trace(ints(0), ints(1), ints(1), max_in_flight=0)


def test_draws_that_make_no_sense() -> None:
    with pytest.raises(SpecError, match="requests_per_s"):
        poisson_arrivals(3, requests_per_s=0.0, rng=rng())
    with pytest.raises(SpecError, match="n_requests"):
        simultaneous_arrivals(0)
    with pytest.raises(SpecError, match="swing_frac"):
        diurnal_arrivals(3, requests_per_s=1.0, swing_frac=1.5, period_s=1.0, rng=rng())
    with pytest.raises(SpecError, match="low <= high"):
        uniform_lengths(3, low_tokens=4, high_tokens=3, rng=rng())
    with pytest.raises(SpecError, match="as many of both"):
        empirical_lengths(3, input_tokens=ints(1), output_tokens=ints(), rng=rng())
