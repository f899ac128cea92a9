"""What a run leaves behind: trace events of the schedule, and tables as CSV or Parquet."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from perfmodel.errors import SpecError
from perfmodel.report.schedule_trace import save_schedule, schedule_events
from perfmodel.report.serving import request_rows
from perfmodel.report.table_file import checked_table_file, saved_rows
from perfmodel.serving.arrivals import Trace
from perfmodel.serving.clock import FixedClock
from perfmodel.serving.engine import Run, ServingSetup, simulated
from perfmodel.serving.metrics import serving_result
from perfmodel.serving.scheduler import SchedulerLimits

LIMITS = SchedulerLimits(max_num_seqs=2, max_num_batched_tokens=64, max_model_len=100, n_blocks=50)


@pytest.fixture
def run() -> Run:
    rows = [(0, 10, 4), (0, 10, 4), (5_000_000, 20, 8), (10**9, 200, 2)]
    arrival, inputs, outputs = np.array(rows, np.int64).T
    setup = ServingSetup(limits=LIMITS, n_replicas=2)
    return simulated(Trace(arrival, inputs, outputs), setup, FixedClock(10_000_000, 100_000_000))


def test_steps_of_the_trace_cover_the_busy_time_of_each_replica(run: Run) -> None:
    events = list(schedule_events(run))
    for replica, segments in enumerate(run.segments):
        steps = [e for e in events if e["ph"] == "X" and e["pid"] == replica]
        assert sum(e["dur"] for e in steps) * 1000 == pytest.approx(segments.duration_ns.sum())
        ends = [e["ts"] + e["dur"] for e in steps]
        assert all(end <= e["ts"] + 1e-6 for end, e in zip(ends, steps[1:], strict=False)), "steps do not overlap"


def test_spans_of_a_request_open_and_close_and_lie_in_the_request(run: Run) -> None:
    spans = [e for e in schedule_events(run) if e.get("cat") == "request"]
    for request in (0, 1, 2):
        mine = [e for e in spans if e["id"] == request]
        opened = {e["name"]: e["ts"] for e in mine if e["ph"] == "b"}
        closed = {e["name"]: e["ts"] for e in mine if e["ph"] == "e"}
        assert opened.keys() == closed.keys()
        whole = f"request {request}"
        assert all(opened[whole] <= opened[name] <= closed[name] <= closed[whole] for name in opened)
        assert closed[whole] * 1000 == pytest.approx(run.finish_ns[request])
    assert not [e for e in spans if e["id"] == 3], "a refused request has no span"


def test_the_file_is_one_json_array(run: Run, tmp_path: Path) -> None:
    path = save_schedule(run, tmp_path / "schedule.json")
    assert json.loads(path.read_text()) == json.loads(json.dumps(list(schedule_events(run))))
    with pytest.raises(SpecError, match="cannot be written"):
        save_schedule(run, tmp_path / "no folder" / "schedule.json")


def test_rows_are_the_same_as_csv_and_as_parquet(run: Run, tmp_path: Path) -> None:
    rows = list(request_rows(serving_result(run)))
    csv = saved_rows(rows, tmp_path / "requests.csv").read_text().splitlines()
    table = pq.read_table(saved_rows(rows, tmp_path / "requests.parquet")).to_pylist()
    assert table == rows
    assert len(csv) == len(rows) + 1
    assert csv[0].split(",") == list(rows[0])


@pytest.mark.parametrize("name", ["rows.txt", "rows"])
def test_a_table_of_another_kind_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match=r"\.csv or \.parquet"):
        checked_table_file(Path(name))
    assert checked_table_file(None) is None


def test_a_table_is_not_left_half_written(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be written"):
        saved_rows([{"a": 1}], tmp_path / "none" / "rows.parquet")
    assert list(tmp_path.iterdir()) == []
