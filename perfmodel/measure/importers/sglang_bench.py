"""Results of SGLang's bench_serving: one JSON object a run, appended to a file."""

from __future__ import annotations

from perfmodel.measure.importers.base import Context, Imported
from perfmodel.measure.importers.reading import json_objects
from perfmodel.measure.importers.serving import imported_serving
from perfmodel.measure.importers.serving_json import run_from_record

__all__ = ["parse"]


def parse(text: str, *, context: Context) -> Imported:
    """Return the runs of a bench_serving file."""
    records = json_objects(text, context.name)
    return imported_serving([run_from_record(r, runtime="sglang") for r in records], context, "sglang-bench-serving")
