"""The public interface: a function for each command, names and numbers in, objects with figures and trees out.

Everything is named as on the command line and in launch lines: `tp=2, quantization="fp8", isl=2048`. A question that
cannot be answered raises a `PerfmodelError` that says where, got, expected and what to do. Longer work with many
questions keeps one `Catalogue` and hands it to every call.

>>> answer = estimate("llama-3.1-8b", "a100-80gb-sxm", batch=16, isl=2048, osl=256)
>>> answer.bound.value
'weight_read'
>>> answer.figures["tpot_s"].low < answer.figures["tpot_s"].value < answer.figures["tpot_s"].high
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.api_judging import audit, curve, curves, verdict
from perfmodel.api_kernels import dispatch, fusion, profile, recompute, streams
from perfmodel.errors import PerfmodelError, UnknownNameError
from perfmodel.plan.demand import Demand, Targets
from perfmodel.serving.arrivals import Trace
from perfmodel.serving.metrics import ServingResult, Slo
from perfmodel.serving.traffic import Traffic
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.deployment import Deployment
from perfmodel.step.answer import Answer
from perfmodel.step.question import Case, Question
from perfmodel.work.memory_types import MemoryPlan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from perfmodel.cost.hierarchy import Hierarchy
    from perfmodel.fit.result import FitResult
    from perfmodel.measure.profiling.answer import ProfileAnswer
    from perfmodel.plan.finalists import Contest
    from perfmodel.serving.options import ServingOptions
    from perfmodel.serving.rate_sweep import RateSweep
    from perfmodel.serving.steady_case import SteadyCase
    from perfmodel.step.roofline import Roofline
    from perfmodel.validate.audit.run import Audit
    from perfmodel.validate.diagnosis.verdict import Diagnosis

__all__ = [
    "Catalogue",
    "Demand",
    "PerfmodelError",
    "Question",
    "Slo",
    "Targets",
    "Trace",
    "Traffic",
    "audit",
    "case",
    "comparison",
    "curve",
    "curves",
    "diagnosis",
    "dispatch",
    "estimate",
    "figure",
    "fusion",
    "hierarchy",
    "memory",
    "plan",
    "plan_rows",
    "profile",
    "question",
    "rate_sweep",
    "recompute",
    "roofline",
    "simulation",
    "steady",
    "streams",
    "sweep",
    "verdict",
]

_SHORT: Final = {"isl": "input_tokens", "osl": "output_tokens", "devices": "n_devices", "concurrency": "batch"}


def question(model: str, hardware: str, **stated: Any) -> Question:
    """Return a question: names, and whatever else is stated of deployment and load.

    Keywords are the fields of `Question` and `Deployment`, and isl, osl, devices, concurrency for short. Raises
    UnknownNameError for any other word.

    >>> question("qwen3-8b", "h100-sxm", tp=2, isl=512).deployment.tp
    2
    """
    own = {f.name for f in fields(Question)} - {"deployment"}
    engine = {f.name for f in fields(Deployment)}
    named = {_SHORT.get(word, word): value for word, value in stated.items()}
    for word in named:
        if word not in own | engine:
            raise UnknownNameError.of("keyword", word, sorted({*own, *engine, *_SHORT}))
    deployment = Deployment(**{word: value for word, value in named.items() if word not in own})
    asked = {word: value for word, value in named.items() if word in own}
    return Question(model=model, hardware=hardware, deployment=deployment, **asked)


def case(model: str, hardware: str, *, catalogue: Catalogue | None = None, **stated: Any) -> Case:
    """Return the question with every name looked up and every default settled; `assumed` lists what was taken."""
    from perfmodel.step.question import case_of

    return case_of(catalogue or Catalogue.standard(), question(model, hardware, **stated))


def estimate(model: str, hardware: str, *, catalogue: Catalogue | None = None, **stated: Any) -> Answer:
    """Return times, rates and memory of equal requests served together, with bands, floors and trees.

    Raises InfeasibleError where the model does not fit.

    >>> answer = estimate("qwen3-8b", "rtx-4090", quantization="fp8", batch=1, isl=128, osl=64)
    >>> answer.figures["ttft_s"].value > answer.figures["ttft_floor_s"].value
    True
    """
    from perfmodel.step.answer import answer_to

    found = catalogue or Catalogue.standard()
    return answer_to(case(model, hardware, catalogue=found, **stated), ideal=found.calibration("ideal"))


def memory(model: str, hardware: str, *, catalogue: Catalogue | None = None, **stated: Any) -> MemoryPlan:
    """Return how the memory of each rank divides, and the KV pool that is left.

    >>> plan_ = memory("llama-3.1-8b", "a100-80gb-sxm", max_model_len=8192)
    >>> plan_.starts, plan_.kv_tokens > 400_000
    (True, True)
    """
    from perfmodel.work.memory import memory_plan

    asked = {"batch": 1.0, "isl": 1.0, "osl": 1.0} | stated
    return memory_plan(case(model, hardware, catalogue=catalogue, **asked).memory)


def comparison(
    model: str, hardware: str, *, vary: Mapping[str, Sequence[Any]], catalogue: Catalogue | None = None, **stated: Any
) -> list[tuple[dict[str, Any], Answer | PerfmodelError]]:
    """Return the answer to every combination of values, beside the values; an error where there is no answer.

    >>> rows = comparison("qwen3-8b", "rtx-4090", vary={"quantization": ["none", "fp8"]}, batch=1, isl=128, osl=64)
    >>> [values["quantization"] for values, _ in rows]
    ['none', 'fp8']
    """
    from itertools import product

    found = catalogue or Catalogue.standard()
    rows: list[tuple[dict[str, Any], Answer | PerfmodelError]] = []
    for values in product(*vary.values()):
        changed = dict(zip(vary, values, strict=True))
        words = {"model": model, "hardware": hardware, **stated, **changed}
        try:
            rows.append((changed, estimate(words.pop("model"), words.pop("hardware"), catalogue=found, **words)))
        except PerfmodelError as error:
            rows.append((changed, error))
    return rows


def sweep(
    model: str, hardware: str, *, vary: Mapping[str, ArrayLike], catalogue: Catalogue | None = None, **stated: Any
) -> dict[str, NDArray[Any]]:
    """Return columns with a row for every combination: batch, isl and osl run as arrays, names and layouts in a loop.

    Rows that have no answer are NaN, with the reason in `error`.

    >>> columns = sweep("llama-3.1-8b", "a100-80gb-sxm", vary={"batch": [1, 8, 64]}, isl=512, osl=128)
    >>> bool(columns["output_tokens_per_s"][0] < columns["output_tokens_per_s"][2])
    True
    """
    from perfmodel.step.grid import grid_of, swept

    axes = {_SHORT.get(name, name): tuple(str(v) for v in np.asarray(values).tolist()) for name, values in vary.items()}
    grid = grid_of(question(model, hardware, **stated), axes)
    blocks = list(swept(catalogue or Catalogue.standard(), grid))
    names = list(dict.fromkeys(name for block in blocks for name in block.columns))
    columns: dict[str, list[NDArray[Any]]] = {name: [] for name in (*grid.named, *names, "error")}
    for block in blocks:
        n = len(next(iter(block.columns.values()))) if block.columns else 1
        for name in grid.named:
            columns[name].append(np.full(n, block.names[name]))
        for name in names:
            columns[name].append(block.columns.get(name, np.full(n, np.nan)))
        columns["error"].append(np.full(n, block.error))
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def roofline(
    model: str, hardware: str, *, hierarchical: bool = False, catalogue: Catalogue | None = None, **stated: Any
) -> Roofline:
    """Return ceilings and operators of a prefill and a decode step; `report.roofline.save_roofline` draws it.

    `hierarchical` places each operator under main memory, L2 and on-chip memory.

    >>> data = roofline("llama-3.1-8b", "a100-80gb-sxm", batch=8, isl=512, osl=64)
    >>> data.device
    'NVIDIA A100 SXM4 80 GB'
    """
    from perfmodel.step.roofline import roofline as roofline_of
    from perfmodel.work.memory import memory_plan

    known = catalogue or Catalogue.standard()
    found = case(model, hardware, catalogue=known, **stated)
    work = found.workload
    return roofline_of(
        found.engine,
        known.core_of(found.setup.devices[0]) if hierarchical else None,
        batch=work.batch,
        input_tokens=work.input_tokens,
        output_tokens=work.output_tokens,
        token_budget=float(memory_plan(found.memory).limits.max_num_batched_tokens),
    )


def hierarchy(device: str, *, calibration: str = "auto", catalogue: Catalogue | None = None) -> Hierarchy:
    """Return what prices matmuls, streams and gathers through main memory and L2 of a device.

    >>> from perfmodel.work.traffic import MatmulShape
    >>> found = hierarchy("ascend-910b2").matmul(MatmulShape(4096.0, 4096.0, 4096.0), dtype="fp16")
    >>> round(float(found.hit_frac), 3), float(found.dram_use_frac) < 0.2
    (0.939, True)
    """
    from perfmodel.cost.hierarchy import Hierarchy

    known = catalogue or Catalogue.standard()
    spec = known.hardware(device).device
    return Hierarchy.of(known.calibration_for(calibration, [spec], "").for_device(spec), known.core_of(spec))


def steady(
    model: str,
    hardware: str,
    *,
    concurrency: ArrayLike | None = None,
    requests_per_s: ArrayLike | None = None,
    catalogue: Catalogue | None = None,
    **stated: Any,
) -> SteadyCase:
    """Return steady serving in closed form under so many users, or so many requests a second; both may be arrays.

    >>> found = steady("llama-3.1-8b", "a100-80gb-sxm", concurrency=[1, 16], isl=512, osl=128)
    >>> bool(found.one.tpot_s[0] < found.one.tpot_s[1])
    True
    """
    from perfmodel.serving.steady_case import steady_case

    return steady_case(
        case(model, hardware, catalogue=catalogue, **({"batch": 1.0} | stated)),
        concurrency=None if concurrency is None else np.asarray(concurrency, np.float64),
        requests_per_s=None if requests_per_s is None else np.asarray(requests_per_s, np.float64),
    )


def simulation(
    model: str,
    hardware: str,
    *,
    traffic: Traffic | Trace,
    slo: Slo | None = None,
    policy: str | None = None,
    options: ServingOptions | None = None,
    catalogue: Catalogue | None = None,
    **stated: Any,
) -> ServingResult:
    """Return traffic as served, request by request; `options` say how it is scheduled and routed.

    >>> traffic = Traffic(n_requests=20, input_tokens=128, output_tokens=16, requests_per_s=2.0)
    >>> result = simulation("llama-3.1-8b", "a100-80gb-sxm", traffic=traffic)
    >>> result.n_completed, result.checks.hold
    (20, True)
    """
    from perfmodel.serving.deployment import serving_case
    from perfmodel.serving.engine import simulated
    from perfmodel.serving.metrics import serving_result

    trace = traffic.trace() if isinstance(traffic, Traffic) else traffic
    one = _loaded(model, hardware, trace, catalogue, stated)
    served = serving_case(one, trace, policy=policy, options=options)
    return serving_result(simulated(trace, served.setup, served.clock), slo=slo)


def rate_sweep(
    model: str,
    hardware: str,
    *,
    traffic: Traffic,
    rates_per_s: Sequence[float] = (),
    slo: Slo | None = None,
    catalogue: Catalogue | None = None,
    **stated: Any,
) -> RateSweep:
    """Return the same traffic served at each rate: latency over rate, the knee, the largest rate within objectives.

    >>> traffic = Traffic(n_requests=100, input_tokens=128, output_tokens=16)
    >>> found = rate_sweep("llama-3.1-8b", "a100-80gb-sxm", traffic=traffic, rates_per_s=[1.0, 4.0])
    >>> [point.requests_per_s for point in found.points]
    [1.0, 4.0]
    """
    from perfmodel.serving.deployment import serving_case
    from perfmodel.serving.rate_sweep import rate_sweep as swept

    trace = replace(traffic, requests_per_s=traffic.requests_per_s or 1.0).trace()
    served = serving_case(_loaded(model, hardware, trace, catalogue, stated), trace)
    return swept(trace, served.setup, served.clock, rates_per_s=rates_per_s, slo=slo)


def _loaded(model: str, hardware: str, trace: Trace, catalogue: Catalogue | None, stated: Mapping[str, Any]) -> Case:
    """Return the case of a deployment whose load is a trace."""
    lengths = {"isl": float(trace.input_tokens.mean()), "osl": float(trace.output_tokens.mean())}
    rounded = {name: max(1.0, round(value)) for name, value in lengths.items()}
    return case(model, hardware, catalogue=catalogue, **({"batch": 1.0} | rounded | dict(stated)))


def plan(
    models: str | Sequence[str],
    hardware: str | Sequence[str],
    *,
    demand: Demand,
    targets: Targets,
    prices_usd_per_hour: Mapping[str, float] | None = None,
    objective: str = "auto",
    simulate: bool = True,
    catalogue: Catalogue | None = None,
    **space: Any,
) -> Contest:
    """Return what serves a demand within targets, best first, with the reason each rival lost.

    `space` narrows the search with the fields of `plan.space.Space`: tp, quantizations, runtimes, ...

    >>> contest = plan(
    ...     "llama-3.1-8b", "a100-80gb-sxm", tp=(1,), quantizations=("none",), simulate=False,
    ...     demand=Demand(input_tokens=512, output_tokens=128, n_users=16), targets=Targets(tpot_s=0.05),
    ... )
    >>> len(contest.order) > 0
    True
    """
    from perfmodel.plan.finalists import contested
    from perfmodel.plan.ranking import ranked
    from perfmodel.plan.search import searched
    from perfmodel.plan.space import Space

    names, devices = ((one,) if isinstance(one, str) else tuple(one) for one in (models, hardware))
    found = searched(
        catalogue or Catalogue.standard(),
        Space(models=names, hardware=devices, **space),
        demand,
        targets,
        prices=dict(prices_usd_per_hour or {}),
    )
    return contested(ranked(found, objective), simulate=simulate)


def plan_rows(contest: Contest) -> list[dict[str, Any]]:
    """Return a row for each rival of a plan in its order, with stable keys in base units; `reason` says why it lost.

    >>> contest = plan(
    ...     "llama-3.1-8b", "a100-80gb-sxm", tp=(1,), quantizations=("none",), simulate=False,
    ...     demand=Demand(input_tokens=512, output_tokens=128, n_users=16), targets=Targets(tpot_s=0.05),
    ... )
    >>> plan_rows(contest)[0]["status"]
    'meets'
    """
    from perfmodel.report.plan import plan_rows as rows_of
    from perfmodel.report.plan_view import PlanView

    return rows_of(PlanView(contest))


def diagnosis(
    bench: Path | str, model: str, hardware: str, *, catalogue: Catalogue | None = None, **stated: Any
) -> list[Diagnosis]:
    """Return the diagnosis of every run in the result of a serving benchmark: limit, band, verdict, what would help.

    Raises MeasurementError where the file holds no such run.
    """
    from perfmodel.measure.importers.registry import import_file
    from perfmodel.validate.diagnosis.verdict import diagnosis as diagnosed

    found, asked = catalogue or Catalogue.standard(), question(model, hardware, **stated)
    return [diagnosed(found, asked, run) for run in import_file(Path(bench)).runs]


def figure(
    result: Roofline | ServingResult | RateSweep | FitResult | Audit | ProfileAnswer, *, title: str = ""
) -> Figure:
    """Return the picture of a result: operators under ceilings, latencies, load over rate, a fit with its bands.

    It is a matplotlib Figure: show it in a notebook, or `figure(...).savefig("picture.png")`. Raises SpecError for
    something that has no picture.

    >>> figure(curve("contention_power", [1, 2, 4, 8], [4.0, 2.8, 2.1, 1.4])).get_axes() != []
    True
    """
    from perfmodel.report.figures import figure_of

    return figure_of(result, title=title)
