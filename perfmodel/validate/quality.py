"""Quality beside speed and memory: scores of quantised models joined with what the model says of serving them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from perfmodel.errors import MeasurementError
from perfmodel.measure.importers.registry import import_file
from perfmodel.plan.pareto import front
from perfmodel.specs.catalogue import Catalogue
from perfmodel.step.answer import Figure, answer_to
from perfmodel.step.question import Question, case_of

__all__ = ["QualityPoint", "Score", "quality_points", "scores_in"]

_LOWER_IS_BETTER: Final = ("perplexity",)


@dataclass(frozen=True, slots=True)
class Score:
    """One score of a results file: which task and metric, of which model and weight scheme."""

    file: str
    op: str
    """task:metric:filter, as in the results file."""
    metric: str
    """accuracy_frac, or perplexity."""
    model: str
    scheme: str
    value: float
    stderr: float

    @property
    def lower_is_better(self) -> bool:
        """Whether a smaller value is the better one."""
        return self.metric in _LOWER_IS_BETTER


@dataclass(frozen=True, slots=True)
class QualityPoint:
    """A score with the speed and memory of the deployment that it belongs to."""

    score: Score
    output_tokens_per_s: Figure
    ttft_s: Figure
    weight_bytes: float
    """Of one device."""
    kv_tokens: int
    on_front: bool
    """No other point is at least as good and at least as fast."""


def scores_in(path: Path) -> tuple[Score, ...]:
    """Return the scores of a results file of lm-evaluation-harness; raises MeasurementError where it is none."""
    rows = import_file(path, "lm-eval").rows
    return tuple(
        Score(
            path.name,
            row.op,
            row.metric,
            row.model,
            row.quantization,
            row.value or 0.0,
            math.nan if row.stderr is None else row.stderr,
        )
        for row in rows
    )


def _chosen(found: Sequence[tuple[Score, ...]], metric: str | None) -> str:
    """Return the task and metric to compare by: the one asked for, else the first that all files have."""
    common = [s.op for s in found[0] if all(any(o.op == s.op for o in scores) for scores in found)]
    if metric is None and common:
        return common[0]
    asked = [op for op in common if metric is not None and metric in op]
    if len(asked) == 1 or (metric in asked):
        return str(metric) if metric in asked else asked[0]
    raise MeasurementError(
        "the files have no one score to compare by"
        if metric is None
        else f"{metric!r} names no one score of all files",
        got=", ".join(asked) or "none",
        expected=f"one of {', '.join(common) or 'none: the files share no score'}",
    )


def quality_points(
    files: Sequence[Path], catalogue: Catalogue, question: Question, *, metric: str | None = None
) -> tuple[QualityPoint, ...]:
    """Return one point a results file: its score, and speed and memory of its model under the question's load.

    The model and weight scheme are those that the file names; a model in the question stands in for the file's. Raises
    MeasurementError where the files share no score, InfeasibleError where a model does not fit.
    """
    if not files:
        raise MeasurementError("there are no results to compare", expected="results_*.json of lm-evaluation-harness")
    found = [scores_in(path) for path in files]
    op = _chosen(found, metric)
    scores = [next(score for score in each if score.op == op) for each in found]
    points = [_point(score, catalogue, question) for score in scores]
    better = np.array([-s.value if s.lower_is_better else s.value for s in scores])
    kept = set(front(np.array([p.output_tokens_per_s.value for p in points]), better).tolist())
    return tuple(replace(point, on_front=i in kept) for i, point in enumerate(points))


def _point(score: Score, catalogue: Catalogue, question: Question) -> QualityPoint:
    deployment = replace(question.deployment, quantization=score.scheme or question.deployment.quantization)
    asked = replace(question, model=question.model or score.model, deployment=deployment)
    answer = answer_to(case_of(catalogue, asked))
    return QualityPoint(
        replace(score, scheme=answer.case.setup.scheme.name, model=answer.case.setup.model.name),
        answer.figures["output_tokens_per_s"],
        answer.figures["ttft_s"],
        answer.memory.tightest.weights_on_device_bytes,
        answer.memory.kv_tokens,
        False,
    )
