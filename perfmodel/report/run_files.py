"""The files that a simulated run can leave behind: tables, pictures, the schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.report.output import json_text, placed, written
from perfmodel.report.picture import checked_picture
from perfmodel.report.serving import request_rows
from perfmodel.report.table_file import checked_table_file, saved_rows
from perfmodel.serving.metrics import ServingResult, Slo
from perfmodel.serving.timeline import timeline

__all__ = ["RunFiles", "series_rows"]


def series_rows(result: ServingResult) -> Iterator[dict[str, Any]]:
    """Yield the run over time, a row for each of equal stretches, in base units."""
    line = timeline(result.run)
    columns = {
        "time_s": line.time_s,
        "n_running": line.n_running,
        "n_waiting": line.n_waiting,
        "kv_used_frac": line.kv_used_frac,
        "prompt_tokens_per_s": line.prompt_tokens_per_s,
        "output_tokens_per_s": line.output_tokens_per_s,
    }
    for values in zip(*(column.tolist() for column in columns.values()), strict=True):
        yield dict(zip(columns, values, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """Where to write what; None: not at all. Raises SpecError at once for what cannot be written there."""

    result: Path | None = None
    requests: Path | None = None
    series: Path | None = None
    schedule: Path | None = None
    over_time: Path | None = None
    latencies: Path | None = None

    def __post_init__(self) -> None:
        for table in (self.requests, self.series):
            checked_table_file(table)
        for picture in (self.over_time, self.latencies):
            checked_picture(picture)
        for document in (self.result, self.schedule):
            if document is not None:
                placed(document)

    def write(self, result: ServingResult, *, document: Mapping[str, Any], title: str, slo: Slo | None) -> None:
        """Write the files that are asked for, `document` as the result; raises SpecError where one cannot be."""
        if self.result is not None:
            written(self.result, json_text(document) + "\n")
        if self.requests is not None:
            saved_rows(list(request_rows(result)), self.requests)
        if self.series is not None:
            saved_rows(list(series_rows(result)), self.series)
        if self.schedule is not None:
            from perfmodel.report.schedule_trace import save_schedule

            save_schedule(result.run, self.schedule)
        if self.over_time is not None:
            from perfmodel.report.serving_plot import save_timeline

            save_timeline(timeline(result.run), self.over_time, title=title)
        if self.latencies is not None:
            from perfmodel.report.latency_plot import save_latencies

            save_latencies(result, self.latencies, title=title, slo=slo)
