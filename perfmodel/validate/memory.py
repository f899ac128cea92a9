"""Predictions for rows of memory: stored weights, peak use, and what the KV pool holds.

Weights and pools are those of the rank that holds most or least, as start-up logs print them; a peak is over all
devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from perfmodel.errors import PerfmodelError, SpecError
from perfmodel.estimate import Bound
from perfmodel.measure.table import Table
from perfmodel.step.question import Case
from perfmodel.validate.parts import Found, Parts, Positions, grouped, refused
from perfmodel.validate.steps import SETUP_COLUMNS, case_of_row
from perfmodel.work.memory import memory_plan
from perfmodel.work.memory_types import MemoryPlan

__all__ = ["memory_predictions"]

_OPS: Final = ("weights", "kv_capacity", "peak")
_REL_HALF_WIDTH: Final = {"weights": 0.01, "kv_capacity": 0.05, "peak": 0.10}
"""Half-width of the 80 % band. Weights are counted exactly; activations and reserves are estimates (no law of time)."""
_NUMBERS: Final = ("batch", "input_tokens", "output_tokens", "context_tokens")


def memory_predictions(parts: Parts, table: Table, at: Positions) -> Iterator[Found]:
    """Yield predictions of the memory rows at `at`; rows that agree in everything share one plan."""
    for words, here in grouped(table, at, ("op", "metric", *SETUP_COLUMNS, *_NUMBERS)):
        op = words["op"]
        if op not in _OPS:
            yield refused(here, f"no rule for memory {op!r}: {', '.join(_OPS)} are known")
            continue
        stated = {name: float(words[name]) for name in _NUMBERS if words[name]}
        try:
            case, remark = case_of_row(parts, words)
            value = _value(case, op, words["metric"], stated)
        except PerfmodelError as error:
            yield refused(here, str(error))
            continue
        column = np.full(len(here), value)
        width = 1.0 + _REL_HALF_WIDTH[op]
        bound = np.full(len(here), Bound.KV_CAPACITY.value, dtype=object)
        yield Found(here, column, column / width, column * width, bound, "memory accounting", "", remark)


def _value(case: Case, op: str, metric: str, stated: dict[str, float]) -> float:
    batch = max(1.0, stated.get("batch", 1.0))
    prompt = stated.get("input_tokens", stated.get("context_tokens", 0.0))
    length = int(max(1.0, prompt + stated.get("output_tokens", 0.0)))
    held = case.memory.options
    options = replace(held, max_model_len=length) if op == "peak" or stated else held
    if op == "peak":
        n_tokens = int(max(batch * prompt, batch, length))
        options = replace(options, max_num_seqs=int(batch), max_num_batched_tokens=n_tokens)
    plan = memory_plan(replace(case.memory, options=options))
    if op == "weights":
        return max(rank.weights_on_device_bytes for rank in plan.ranks)
    if op == "peak":
        return _peak(plan, batch * length, prompt_share=batch * prompt / plan.limits.max_num_batched_tokens)
    if metric == "kv_tokens":
        return float(plan.kv_tokens)
    if metric == "kv_blocks":
        return float(plan.n_blocks)
    if metric == "bytes":
        return min(rank.pool_bytes for rank in plan.ranks)
    raise SpecError(f"memory {op} has no {metric}", expected="kv_tokens, kv_blocks or bytes")


def _peak(plan: MemoryPlan, kv_tokens: float, *, prompt_share: float) -> float:
    """Return what the allocator holds at most, over all devices: weights, cache of the whole length, activations.

    The activation peak of the plan is for as many tokens as the context is long; the prompt is a share of them.
    """
    weights = sum(rank.weights_on_device_bytes for rank in plan.ranks)
    activation = max(rank.activation_bytes for rank in plan.ranks) * max(prompt_share, 0.0)
    return weights + activation + kv_tokens * plan.kv_bytes_per_token
