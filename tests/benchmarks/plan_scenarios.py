"""A plan over a million configurations: 3 models x 12 devices x layouts x requests in flight."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from perfmodel.plan.demand import Demand, Targets
from perfmodel.plan.finalists import contested
from perfmodel.plan.ranking import ranked
from perfmodel.plan.search import searched
from perfmodel.plan.space import Space
from perfmodel.report.plan import plan_document
from perfmodel.report.plan_view import PlanView
from tests.benchmarks.scenarios import shipped

MODELS = ("llama-3.1-8b", "deepseek-r1-distill-qwen-32b", "llama-3.1-70b")
DEVICES = (
    "a100-80gb-sxm", "a100-40gb-sxm", "a800-sxm", "h100-sxm", "h200-sxm", "h20", "h800-sxm", "b200-sxm",
    "ascend-910b2", "ascend-910b3", "rtx-4090", "l40s",
)  # fmt: skip
MOST_IN_FLIGHT = 4096
LEAST_ROWS = 1_000_000
MOST_S = 10.0
MOST_BYTES = 1.5e9


def million_plan() -> int:
    """Run the plan to a ranked answer with fronts, finalists simulated; return the number of configurations."""
    space = Space(
        models=MODELS,
        hardware=DEVICES,
        quantizations=("auto",),
        kv_cache_dtypes=("auto",),
        in_flight=tuple(range(1, MOST_IN_FLIGHT + 1)),
        max_num_seqs=MOST_IN_FLIGHT,
    )
    demand = Demand(input_tokens=256, output_tokens=128, requests_per_s=200.0)
    targets = Targets(ttft_s=2.0, tpot_s=0.05, max_devices=512)
    view = PlanView(contested(ranked(searched(shipped(), space, demand, targets))))
    document = plan_document(view)
    assert document["fronts"]["interactivity"]
    assert view.contest.winner is not None
    assert view.contest.winner.simulated is not None
    return len(view.plan.table)


def peak_bytes() -> float:
    """Return the peak resident size of a fresh process that runs the plan, imports included."""
    code = (
        "import resource; from tests.benchmarks.plan_scenarios import million_plan; million_plan(); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run((sys.executable, "-c", code), check=True, capture_output=True, text=True, cwd=root)
    return float(done.stdout) * 1024.0
