"""Speed and memory: `make bench` times these; an ordinary test run skips them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.benchmarks import scenarios

if TYPE_CHECKING:
    from perfmodel.specs.catalogue import Catalogue


def test_scalar_estimate(benchmark: Any, catalogue: Catalogue) -> None:
    benchmark(scenarios.scalar_estimate(catalogue))
    assert benchmark.stats.stats.median < scenarios.MOST_SCALAR_S


def test_whole_answer(benchmark: Any, catalogue: Catalogue) -> None:
    benchmark(scenarios.whole_answer(catalogue))


@pytest.mark.parametrize(
    ("sweep", "most_s"),
    [(scenarios.dense_sweep, scenarios.MOST_DENSE_S), (scenarios.experts_sweep, scenarios.MOST_EXPERTS_S)],
    ids=["dense_1e6_rows", "experts_1e6_rows"],
)
def test_sweep(
    benchmark: Any,
    catalogue: Catalogue,
    sweep: Callable[[Catalogue], scenarios.Sweep],
    most_s: float,
) -> None:
    benchmark.pedantic(sweep(catalogue).run, rounds=3, warmup_rounds=1)
    assert benchmark.stats.stats.min < most_s


@pytest.mark.parametrize("sweep", scenarios.SWEEPS)
def test_peak_memory(benchmark: Any, sweep: str) -> None:
    """A million rows in a fresh process, imports included."""
    peak = benchmark.pedantic(scenarios.peak_bytes, (sweep,), rounds=1)
    benchmark.extra_info["peak_bytes"] = peak
    assert peak < scenarios.MOST_PEAK_BYTES


def test_process_against_its_imports(benchmark: Any) -> None:
    """`perfmodel estimate ... --json` as a whole against the imports that it cannot do without, turn by turn."""
    scenarios.process(scenarios.ESTIMATE)
    seconds: dict[str, list[float]] = {"imports": [], "estimate": []}
    for _ in range(5):
        for name, command in (("imports", scenarios.IMPORTS), ("estimate", scenarios.ESTIMATE)):
            start = time.perf_counter()
            scenarios.process(command)
            seconds[name].append(time.perf_counter() - start)
    ratio = min(seconds["estimate"]) / min(seconds["imports"])
    benchmark.extra_info["ratio"] = ratio
    benchmark.pedantic(scenarios.process, (scenarios.ESTIMATE,), rounds=3)
    assert ratio < scenarios.MOST_PROCESS_RATIO
