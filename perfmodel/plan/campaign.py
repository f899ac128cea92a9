"""A campaign: many simulated runs, over deployments, loads and seeds, as tasks that can be worked off anywhere.

One task is one deployment with all of its loads, so that its memory plan and step table are made once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Final

from perfmodel.errors import PerfmodelError, SpecError
from perfmodel.serving.deployment import ServingCase, serving_case
from perfmodel.serving.engine import simulated
from perfmodel.serving.metrics import Slo, serving_result
from perfmodel.serving.result_row import RESULT_COLUMNS, result_row
from perfmodel.serving.traffic import Traffic
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.question import Case, Question, case_of
from perfmodel.step.variation import variations

__all__ = ["LOAD_AXES", "CampaignTask", "campaign_columns", "campaign_tasks", "task_rows"]

LOAD_AXES: Final = ("request_rate", "max_concurrency", "seed", "input_tokens", "output_tokens")
"""Axes that change the load and leave the deployment as it is."""
_MOST_RUNS: Final = 10**6
_RUNS_A_TASK: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignTask:
    """The runs of one deployment: `loads` are values of the load axes; `folders` are those of the user's catalogues."""

    names: Mapping[str, str]
    question: Question
    traffic: Traffic
    loads: tuple[Mapping[str, float], ...]
    folders: tuple[Path, ...] = ()
    slo: Slo | None = None

    @property
    def n_runs(self) -> int:
        """How many rows the task makes."""
        return len(self.loads)


def campaign_tasks(
    question: Question,
    axes: Mapping[str, Sequence[str]],
    traffic: Traffic,
    *,
    folders: Sequence[Path] = (),
    slo: Slo | None = None,
) -> list[CampaignTask]:
    """Return the tasks of all combinations, in the order of the axes, those of the load last.

    `traffic` is the load where no axis says otherwise. Raises SpecError for values that are no load, and too many runs.
    """
    n_runs = prod(len(values) for values in axes.values())
    if n_runs > _MOST_RUNS:
        raise SpecError("the campaign is too large", got=f"{n_runs} runs", expected=f"at most {_MOST_RUNS}")
    names = {name: values for name, values in axes.items() if name not in LOAD_AXES}
    numbers = {name: [_number(name, text) for text in values] for name, values in axes.items() if name in LOAD_AXES}
    loads = [dict(zip(numbers, values, strict=True)) for values in product(*numbers.values())]
    return [
        CampaignTask(
            names=changes,
            question=changed,
            traffic=traffic,
            loads=tuple(loads[start : start + _RUNS_A_TASK]),
            folders=tuple(folders),
            slo=slo,
        )
        for changes, changed in variations(question, names)
        for start in range(0, len(loads), _RUNS_A_TASK)
    ]


def campaign_columns(axes: Mapping[str, Sequence[str]]) -> dict[str, type]:
    """Return the columns of the rows with the type of each: axes, error, figures."""
    own = {name: str for name in axes if name not in LOAD_AXES}
    loads = {name: float for name in axes if name in LOAD_AXES}
    return {**own, **loads, "error": str, **RESULT_COLUMNS}


def _number(name: str, text: str) -> float:
    whole = name != "request_rate"
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    least = 0 if name == "seed" else 1 if whole else 1e-9
    if not (value >= least and (not whole or value == int(value))) or (whole and value > 2**53):
        kind = "a whole number" if whole else "requests per second, or inf"
        raise SpecError(f"axis {name} cannot take this value", got=repr(text), expected=f"{kind} of at least {least:g}")
    return value


def _drawn(traffic: Traffic, load: Mapping[str, float]) -> Traffic:
    changes: dict[str, Any] = {
        name: int(load[name]) for name in ("seed", "input_tokens", "output_tokens") if name in load
    }
    if "max_concurrency" in load:
        changes["max_in_flight"] = int(load["max_concurrency"])
    if "request_rate" in load:
        rate = load["request_rate"]
        changes["requests_per_s"] = None if rate == float("inf") else rate
    return replace(traffic, **changes)


def task_rows(task: CampaignTask) -> list[dict[str, Any]]:
    """Return a row for each run of a task; a run that cannot be carries the reason in `error`."""
    rows = []
    loads = [_drawn(task.traffic, load) for load in task.loads]
    case: Case | PerfmodelError
    try:
        case = case_of(Catalogue.standard(task.folders), task.question)
    except PerfmodelError as error:
        case = error
    served: dict[tuple[int, int, int], ServingCase] = {}
    for traffic, load in zip(loads, task.loads, strict=True):
        row: dict[str, Any] = {**task.names, **load, "error": ""}
        try:
            if isinstance(case, PerfmodelError):
                raise case
            trace = traffic.trace()
            # What a deployment takes from a trace: equal here, equal there, so that rows are those of single runs.
            key = (int((trace.input_tokens + trace.output_tokens).max()), int(trace.input_tokens.sum()), len(trace))
            serving = served.get(key)
            if serving is None:
                serving = served[key] = serving_case(case, trace)
            row |= result_row(serving_result(simulated(trace, serving.setup, serving.clock), slo=task.slo))
        except PerfmodelError as error:
            row["error"] = "; ".join(str(error).split("\n  "))
        rows.append(row)
    return rows
