"""What a start-up log adds to a question: the KV pool and limits that the engine really has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from perfmodel.measure.importers.base import Imported
from perfmodel.step.question import Question

__all__ = ["Started", "with_startup_log"]

_FIELDS: Final = {
    "num_gpu_blocks_override": "kv_blocks",
    "block_tokens": "block_tokens",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_running_requests",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "tp": "tp",
    "pp": "pp",
}


@dataclass(frozen=True, slots=True)
class Started:
    """What a log says and how it entered the question: each flag in words, and the KV tokens of the pool."""

    taken: tuple[str, ...]
    kv_tokens: float | None


def with_startup_log(question: Question, log: Imported) -> tuple[Question, Started]:
    """Return the question with what the log says where no flag says otherwise, and what was taken."""
    facts = dict(log.facts)
    tokens, block = facts.get("kv_tokens"), facts.get("block_tokens")
    if "kv_blocks" not in facts and tokens:
        size = block or question.deployment.block_tokens
        if size:
            facts["kv_blocks"] = tokens // size
    found: dict[str, Any] = {}
    for field, fact in _FIELDS.items():
        value = facts.get(fact)
        if value is None or getattr(question.deployment, field) is not None:
            continue
        found[field] = float(value) if field == "gpu_memory_utilization" else int(value)
    if log.rows and log.rows[0].quantization and question.deployment.quantization is None:
        found["quantization"] = log.rows[0].quantization
    taken = tuple(
        f"{field} {value:g}" if not isinstance(value, str) else f"{field} {value}" for field, value in found.items()
    )
    deployment = replace(question.deployment, **found)
    return replace(question, deployment=deployment), Started(taken, tokens)
