"""The schedule of a simulated run as trace events: open the file at ui.perfetto.dev or chrome://tracing.

Each replica is a process: a track of its steps, counters of what runs, waits and is cached, and the phases of its
requests as nested spans. Format: Trace Event Format, JSON array flavour; times in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from perfmodel.report.output import whole_file
from perfmodel.serving.engine import Run
from perfmodel.serving.scheduler import Limit

__all__ = ["save_schedule", "schedule_events"]

MOST_REQUESTS: Final = 20_000
"""Requests with spans of their own: viewers get slow beyond that. Steps and counters are always whole."""
_NS_PER_TICK: Final = 1000
"""A tick of the format is a microsecond."""


def schedule_events(run: Run) -> Iterator[Mapping[str, Any]]:
    """Yield trace events: steps and counters of each replica, then the spans of the requests."""
    for replica, segments in enumerate(run.segments):
        yield _named("process_name", replica, f"replica {replica}")
        yield _named("thread_name", replica, "steps")
        columns = (column.tolist() for column in segments)
        for start, length, n_steps, n_decoding, n_running, prompt, n_waiting, blocks, limit, *_ in zip(
            *columns, strict=True
        ):
            parts = [f"{prompt} prompt tokens"] if prompt else []
            parts += [f"{n_steps} x {n_decoding} decodes"] if n_decoding else []
            yield {
                "name": " + ".join(parts),
                "cat": "prompt" if prompt else "decode",
                "ph": "X",
                "pid": replica,
                "tid": 0,
                "ts": start / _NS_PER_TICK,
                "dur": length / _NS_PER_TICK,
                "args": {"steps": n_steps, "decoding": n_decoding, "waits_for": Limit(limit).name.lower()},
            }
            counted = {"requests": {"running": n_running, "waiting": n_waiting}, "KV blocks": {"held": blocks}}
            for name, values in counted.items():
                yield {"name": name, "ph": "C", "pid": replica, "ts": start / _NS_PER_TICK, "args": values}
    yield from _request_spans(run)


def _named(what: str, replica: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": replica, "tid": 0, "args": {"name": name}}


def _request_spans(run: Run) -> Iterator[dict[str, Any]]:
    inputs, outputs = run.trace.input_tokens.tolist(), run.trace.output_tokens.tolist()
    times = zip(
        *(t.tolist() for t in (run.sent_ns, run.scheduled_ns, run.first_token_ns, run.finish_ns, run.replica)),
        strict=True,
    )
    for i, (sent, scheduled, first, finish, replica) in enumerate(times):
        if i >= MOST_REQUESTS:
            return
        if finish < 0:
            continue
        base = {"cat": "request", "id": i, "pid": replica, "tid": 0}
        args = {"input_tokens": inputs[i], "output_tokens": outputs[i], "preemptions": int(run.n_preemptions[i])}
        spans = ((f"request {i}", sent, finish), ("queued", sent, scheduled), ("prompt", scheduled, first))
        for name, start, end in (*spans, ("decode", first, finish)):
            if end > start:
                yield {**base, "name": name, "ph": "b", "ts": start / _NS_PER_TICK, "args": args}
                yield {**base, "name": name, "ph": "e", "ts": end / _NS_PER_TICK}


def save_schedule(run: Run, path: Path) -> Path:
    """Write the events to a file, one a line, and return its path; raises SpecError where it cannot be written."""
    with whole_file(path) as file:
        file.write("[\n")
        for i, event in enumerate(schedule_events(run)):
            file.write((",\n" if i else "") + json.dumps(event, separators=(",", ":")))
        file.write("\n]\n")
    return path
