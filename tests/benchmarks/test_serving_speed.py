"""Speed and memory of the simulation; `make bench` times these, an ordinary test run skips them.

One A100, Llama-3.1-8B, Poisson arrivals below saturation, 512 tokens in and 256 out. Times are processor time of one
process, so that neighbours on the machine do not count.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

from perfmodel.serving.arrivals import Trace, fixed_lengths, poisson_arrivals
from perfmodel.serving.deployment import ServingCase, serving_case
from perfmodel.serving.engine import simulated
from perfmodel.serving.metrics import serving_result
from perfmodel.specs.catalogue import Catalogue, builtin_home
from perfmodel.step.question import Question, case_of

RATE_PER_S = 8.0
MOST_S = {100_000: 5.0, 1_000_000: 60.0}
MOST_BYTES = 2e9
SWEEP_RATES, SWEEP_REQUESTS, MOST_SWEEP_S = 20, 10_000, 15.0


def traffic(n: int, rate: float = RATE_PER_S) -> Trace:
    """Return Poisson arrivals of equal requests."""
    arrival = poisson_arrivals(n, requests_per_s=rate, rng=np.random.default_rng(0))
    return Trace(arrival, fixed_lengths(n, tokens=512), fixed_lengths(n, tokens=256))


def deployment(trace: Trace) -> ServingCase:
    """Return the deployment that is timed."""
    catalogue = Catalogue((builtin_home(),))
    question = Question(model="llama-3.1-8b", hardware="a100-80gb-sxm", input_tokens=512, output_tokens=256)
    return serving_case(case_of(catalogue, question), trace)


def served_s(n: int) -> float:
    """Return the processor time to simulate n requests and to work out their figures."""
    trace = traffic(n)
    serving = deployment(trace)
    start = time.process_time()
    result = serving_result(simulated(trace, serving.setup, serving.clock))
    seconds = time.process_time() - start
    assert result.is_stable
    assert result.checks.hold
    assert result.n_completed == n
    return seconds


def test_a_hundred_thousand_requests(benchmark: Any) -> None:
    assert benchmark.pedantic(served_s, (100_000,), rounds=2) < MOST_S[100_000]


@pytest.mark.parametrize("n", [1_000_000])
def test_a_million_requests_in_time_and_memory(benchmark: Any, n: int) -> None:
    """In a fresh process, whose peak memory is its own."""

    def run() -> list[float]:
        out = subprocess.run((sys.executable, __file__, str(n)), check=True, capture_output=True, text=True).stdout
        return [float(word) for word in out.split()]

    seconds, peak_bytes = benchmark.pedantic(run, rounds=1)
    benchmark.extra_info["peak_bytes"] = peak_bytes
    assert seconds < MOST_S[n]
    assert peak_bytes < MOST_BYTES


def test_a_sweep_of_rates(benchmark: Any) -> None:
    """Twenty rates up to beyond saturation, ten thousand requests each."""

    def sweep() -> float:
        serving = deployment(traffic(SWEEP_REQUESTS))
        start = time.process_time()
        for rate in np.linspace(1.0, 20.0, SWEEP_RATES):
            assert serving_result(simulated(traffic(SWEEP_REQUESTS, rate), serving.setup, serving.clock)).checks.hold
        return time.process_time() - start

    assert benchmark.pedantic(sweep, rounds=1) < MOST_SWEEP_S


if __name__ == "__main__":
    print(served_s(int(sys.argv[1])), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
