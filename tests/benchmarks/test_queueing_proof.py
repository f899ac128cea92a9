"""Mean waiting of M/D/1 and M/M/1 over 20 seeds of 100,000 requests; run as a script it prints the table.

    python tests/benchmarks/test_queueing_proof.py

An ordinary test run has the same with fewer requests (tests/unit/serving/test_queueing.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from perfmodel.serving.arrivals import Trace, fixed_lengths, poisson_arrivals
from perfmodel.serving.clock import FixedClock
from perfmodel.serving.engine import ServingSetup, simulated
from perfmodel.serving.scheduler import SchedulerLimits

SERVICE_NS = 1_000_000
N_SEEDS, N_REQUESTS = 20, 100_000
LOADS = (0.3, 0.6, 0.8)
MOST_ERRORS = 3.0


class Waiting(NamedTuple):
    """Mean waiting in microseconds: simulated, its standard error over seeds, and the closed form."""

    queue: str
    load: float
    mean_us: float
    error_us: float
    expected_us: float

    @property
    def n_errors(self) -> float:
        """Distance from the closed form in standard errors."""
        return abs(self.mean_us - self.expected_us) / self.error_us


def waiting(queue: str, load: float, *, n_seeds: int = N_SEEDS, n: int = N_REQUESTS) -> Waiting:
    """Return the mean waiting of a server that takes one request at a time."""
    is_exponential = queue == "M/M/1"
    # A prompt token takes 100 ns; with exponential service lengths are drawn with the mean service.
    clock = FixedClock(1, 0, 100) if is_exponential else FixedClock(1, SERVICE_NS)
    limits = SchedulerLimits(
        max_num_seqs=1, max_num_batched_tokens=10**7, max_model_len=10**7, n_blocks=1, block_tokens=10**7
    )
    means = []
    for seed in range(n_seeds):
        rng = np.random.default_rng(seed)
        arrival = poisson_arrivals(n, requests_per_s=load * 1e9 / SERVICE_NS, rng=rng)
        inputs = fixed_lengths(n, tokens=1)
        if is_exponential:
            inputs = np.maximum(np.rint(rng.exponential(SERVICE_NS / 100, n)), 1).astype(np.int64)
        run = simulated(Trace(arrival, inputs, fixed_lengths(n, tokens=1)), ServingSetup(limits=limits), clock)
        means.append((run.scheduled_ns - run.sent_ns).mean() / 1e3)
    error = float(np.std(means, ddof=1)) / n_seeds**0.5
    expected = load / (1 - load) * SERVICE_NS / 1e3 * (1.0 if is_exponential else 0.5)
    return Waiting(queue, load, float(np.mean(means)), error, expected)


def all_waiting() -> Iterator[Waiting]:
    """Yield every queue at every load."""
    for queue in ("M/D/1", "M/M/1"):
        for load in LOADS:
            yield waiting(queue, load)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("queue", ["M/D/1", "M/M/1"])
def test_mean_waiting_is_that_of_the_closed_form(benchmark: Any, queue: str, load: float) -> None:
    found = benchmark.pedantic(waiting, (queue, load), rounds=1)
    assert found.n_errors < MOST_ERRORS, found


if __name__ == "__main__":
    for row in all_waiting():
        shown = f"{row.mean_us:9.3f} +- {row.error_us:.3f} us, closed form {row.expected_us:9.3f} us"
        print(f"{row.queue} rho {row.load}: {shown}, {row.n_errors:.2f} standard errors")
