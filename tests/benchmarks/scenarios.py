"""What the benchmarks time, so that pytest-benchmark and the table of docs/benchmarks.md measure the same things."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from perfmodel.specs.catalogue import Catalogue, builtin_home
from perfmodel.specs.deployment import Deployment
from perfmodel.step.answer import Answer, answer_to
from perfmodel.step.question import Question, case_of
from perfmodel.step.request import RequestEstimate, request_estimate
from perfmodel.step.step import Engine
from perfmodel.step.sweep import sweep_totals

N_ROWS = 1_000_000
IMPORTS = (sys.executable, "-c", "import numpy, pydantic, typer, yaml")
ESTIMATE = (
    sys.executable, "-m", "perfmodel", "estimate", "llama-3.1-8b", "a100-80gb-sxm",
    "--batch", "1", "--isl", "512", "--osl", "256", "--json",
)  # fmt: skip
MOST_PROCESS_RATIO = 2.2
MOST_SCALAR_S = 1e-3
MOST_DENSE_S, MOST_EXPERTS_S = 2.0, 5.0
MOST_PEAK_BYTES = 600e6


@dataclass(frozen=True, slots=True)
class Sweep:
    """A million rows of batch, input and output tokens, in equal parts for each engine (one a layout)."""

    engines: tuple[Engine, ...]

    def run(self) -> float:
        """Run all rows with their bands; return the sum of times, so that nothing is left uncounted."""
        n = N_ROWS // len(self.engines)
        rng = np.random.default_rng(0)
        total = 0.0
        for engine in self.engines:
            batch, isl, osl = (np.floor(np.exp(rng.uniform(0.0, np.log(top), n))) for top in (512, 32_768, 4096))
            found = sweep_totals(engine, batch=batch, input_tokens=isl, output_tokens=osl, token_budget=8192.0)
            total += float(found.e2e_s.sum() + found.e2e_sd.sum())
        return total


def engine(catalogue: Catalogue, model: str, hardware: str, tp: int) -> Engine:
    """Return the engine of a deployment by name."""
    deployment = Deployment(tp=tp)
    return case_of(catalogue, Question(hardware=hardware, model=model, deployment=deployment)).engine


def dense_sweep(catalogue: Catalogue) -> Sweep:
    """Return the sweep of Llama-3.1-8B over batch, lengths and tp 1, 2, 4, 8."""
    return Sweep(tuple(engine(catalogue, "llama-3.1-8b", "a100-80gb-sxm", tp) for tp in (1, 2, 4, 8)))


def experts_sweep(catalogue: Catalogue) -> Sweep:
    """Return the sweep of DeepSeek-V3 with tp 8."""
    return Sweep((engine(catalogue, "deepseek-v3", "h200-sxm", 8),))


def scalar_estimate(catalogue: Catalogue) -> Callable[[], RequestEstimate]:
    """Return a function that makes one estimate on a priced engine."""
    dense = engine(catalogue, "llama-3.1-8b", "a100-80gb-sxm", 1)
    _ = dense.stages
    return partial(request_estimate, dense, batch=8.0, input_tokens=1024.0, output_tokens=256.0, token_budget=8192.0)


def whole_answer(catalogue: Catalogue) -> Callable[[], Answer]:
    """Return a function that goes from looked-up facts to the answer with memory, bands and limits."""
    question = Question(
        hardware="a100-80gb-sxm", model="llama-3.1-8b", batch=8.0, input_tokens=1024.0, output_tokens=256.0
    )
    return partial(answer_to, case_of(catalogue, question))


def process(command: tuple[str, ...]) -> None:
    """Run a command to its end; raises where it fails."""
    subprocess.run(command, check=True, capture_output=True)


def shipped() -> Catalogue:
    """Return the catalogue that perfmodel ships."""
    return Catalogue((builtin_home(),))


def peak_bytes(sweep: str) -> float:
    """Return the peak resident size of a fresh process that runs a sweep, imports included."""
    code = (
        "import resource; from tests.benchmarks import scenarios as s; "
        f"s.{sweep}(s.shipped()).run(); print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run((sys.executable, "-c", code), check=True, capture_output=True, text=True, cwd=root)
    return float(done.stdout) * 1024.0


SWEEPS: Mapping[str, Callable[[Catalogue], Sweep]] = {"dense_sweep": dense_sweep, "experts_sweep": experts_sweep}
