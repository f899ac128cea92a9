"""Print the benchmark table of docs/benchmarks.md as markdown: python tests/benchmarks/table.py, on a quiet machine.

Each figure is the best of several rounds; processes alternate with the imports that they are compared to.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.benchmarks import scenarios


def best_s(run: Callable[[], object], rounds: int) -> float:
    """Return the shortest of several runs, in seconds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def rows() -> list[tuple[str, str, str]]:
    """Return (what, measured, limit) of every benchmark."""
    catalogue = scenarios.shipped()
    found = []
    estimate, answer = scenarios.scalar_estimate(catalogue), scenarios.whole_answer(catalogue)
    answer()
    found.append(("one estimate, in process", f"{1e3 * best_s(estimate, 500):.3f} ms", "1 ms"))
    found.append(("one whole answer (memory, bands, limits), in process", f"{1e3 * best_s(answer, 100):.2f} ms", ""))
    for name, title, most_s in (
        ("dense_sweep", "10^6 rows of Llama-3.1-8B with bands, tp 1, 2, 4, 8", scenarios.MOST_DENSE_S),
        ("experts_sweep", "10^6 rows of DeepSeek-V3 with bands, tp 8", scenarios.MOST_EXPERTS_S),
    ):
        sweep = scenarios.SWEEPS[name](catalogue)
        sweep.run()
        found.append((title, f"{best_s(sweep.run, 5):.2f} s", f"{most_s:g} s"))
        peak = scenarios.peak_bytes(name)
        found.append((f"{title}: peak memory", f"{peak / 1e6:.0f} MB", f"{scenarios.MOST_PEAK_BYTES / 1e6:.0f} MB"))
    scenarios.process(scenarios.ESTIMATE)
    imports_s, estimate_s = [], []
    for _ in range(10):
        imports_s.append(best_s(lambda: scenarios.process(scenarios.IMPORTS), 1))
        estimate_s.append(best_s(lambda: scenarios.process(scenarios.ESTIMATE), 1))
    found.append(("python -c 'import numpy, pydantic, typer, yaml'", f"{1e3 * min(imports_s):.0f} ms", ""))
    found.append(("perfmodel estimate ... --json, whole process", f"{1e3 * min(estimate_s):.0f} ms", ""))
    ratio = min(estimate_s) / min(imports_s)
    found.append(("ratio of the two", f"{ratio:.2f}", f"{scenarios.MOST_PROCESS_RATIO:g}"))
    return found


def main() -> None:
    """Print the table with the machine that it was measured on."""
    print(f"{os.cpu_count()} cores of {platform.machine()}, Python {platform.python_version()}, {platform.system()}\n")
    print("| What | Measured | At most |\n| --- | ---: | ---: |")
    for row in rows():
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
