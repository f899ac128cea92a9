"""Speed of the audit as a process: `make bench` times it; an ordinary test run skips it."""

from __future__ import annotations

import resource
import sys
from typing import Any

from tests.benchmarks import scenarios

AUDIT = (sys.executable, "-m", "perfmodel", "audit", "--json")
MOST_S = 5.0


def processor_s() -> float:
    """Return the processor time of a whole audit, start of the process included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    scenarios.process(AUDIT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def test_a_whole_audit(benchmark: Any) -> None:
    found = benchmark.pedantic(processor_s, rounds=3)
    benchmark.extra_info["processor_s"] = found
    assert found < MOST_S
