"""Results of lm-evaluation-harness: accuracies and perplexities as quality rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from perfmodel.errors import MeasurementError
from perfmodel.measure.importers.base import Context, Imported, named_rows
from perfmodel.measure.importers.reading import json_objects, number_of
from perfmodel.measure.importers.serving import model_and_scheme
from perfmodel.measure.row import Row

__all__ = ["parse"]

_ACCURACIES: Final = ("acc", "acc_norm", "exact_match", "em", "mc1", "mc2", "f1", "pass@1", "prompt_level_strict_acc")
_PERPLEXITIES: Final = ("perplexity", "word_perplexity", "byte_perplexity")


def _model(record: Mapping[str, Any]) -> str:
    config = record.get("config")
    args = config.get("model_args") if isinstance(config, dict) else None
    if isinstance(args, dict):
        return str(args.get("pretrained") or args.get("model") or record.get("model_name") or "")
    match = re.search(r"(?:pretrained|model)=([^,]+)", str(args or ""))
    return match[1] if match else str(record.get("model_name") or "")


def _task_rows(task: str, scores: Mapping[str, Any], base: Row, shots: object) -> list[Row]:
    rows = []
    for key, raw in scores.items():
        metric, _, variant = key.partition(",")
        value = number_of(raw)
        if metric.endswith("_stderr") or value is None or value < 0:
            continue
        error = number_of(scores.get(f"{metric}_stderr,{variant}" if variant else f"{metric}_stderr"))
        name = "accuracy_frac" if metric in _ACCURACIES else metric if metric in _PERPLEXITIES else ""
        if name:
            kind = "perplexity" if metric in _PERPLEXITIES else name
            note = f"{shots}-shot" if isinstance(shots, int) else ""
            suffix = ":".join(part for part in (task, metric, "" if variant == "none" else variant) if part)
            rows.append(base.with_columns(op=suffix, metric=kind, value=value, stderr=error, note=note))
    return rows


def parse(text: str, *, context: Context) -> Imported:
    """Return the scores of a results_*.json: metric in `op` as task:metric:filter."""
    rows: list[Row] = []
    for record in json_objects(text, context.name):
        results = record.get("results")
        if not isinstance(results, dict):
            raise MeasurementError(
                f"{context.name} is no lm-eval result", got=", ".join(record)[:100], expected="a key `results`"
            )
        word = _model(record)
        name, scheme = model_and_scheme(word) if word else ("", "")
        version = record.get("lm_eval_version")
        runtime = f"lm-eval-{version}" if isinstance(version, str) else "lm-eval"
        base = Row(kind="quality", **context.filled(model=name, quantization=scheme, runtime=runtime).cells())
        shots = record.get("n-shot")
        for task, scores in results.items():
            if isinstance(scores, dict):
                rows += _task_rows(str(task), scores, base, shots.get(task) if isinstance(shots, dict) else None)
    if not rows:
        raise MeasurementError(f"{context.name} holds no score", expected="tasks with acc, exact_match or perplexity")
    return Imported(format="lm-eval", rows=named_rows(rows, context, "quality"))
