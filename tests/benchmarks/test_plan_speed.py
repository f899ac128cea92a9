"""Speed and memory of planning: `make bench` times these; an ordinary test run skips them."""

from __future__ import annotations

from typing import Any

from tests.benchmarks import plan_scenarios


def test_plan_of_a_million_configurations(benchmark: Any) -> None:
    """From names to a ranked answer with fronts and simulated finalists."""
    n_rows = benchmark.pedantic(plan_scenarios.million_plan, rounds=2, warmup_rounds=0)
    benchmark.extra_info["configurations"] = n_rows
    assert n_rows >= plan_scenarios.LEAST_ROWS
    assert benchmark.stats.stats.min < plan_scenarios.MOST_S


def test_peak_memory_of_a_plan(benchmark: Any) -> None:
    peak = benchmark.pedantic(plan_scenarios.peak_bytes, rounds=1)
    benchmark.extra_info["peak_bytes"] = peak
    assert peak < plan_scenarios.MOST_BYTES
