"""Whatever is done to a file, an importer reads it or raises an error of ours, and rows never hold absurd numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfmodel.errors import MeasurementError, SpecError
from perfmodel.measure.importers.base import Imported
from perfmodel.measure.importers.registry import FORMATS, detect, import_text

DATA = Path(__file__).parent / "data"
FILES = {path.name: path.read_text(encoding="utf-8-sig") for path in sorted(DATA.iterdir())}
STATED: dict[str, Any] = {"device": "l4", "model": "qwen3-8b", "batch": 4, "input_tokens": 64, "output_tokens": 64}
WORDS = [
    "",
    "NaN",
    "Infinity",
    "-1",
    "1e400",
    "null",
    '"',
    "{",
    "]",
    ",",
    ";",
    "|",
    "\n",
    "9" * 400,
    "0",
    "中",
    "\x1b[4m",
]


def _sound(found: Imported) -> None:
    for row in found.rows:
        assert row.value is not None
        assert math.isfinite(row.value)
        assert row.value >= 0
    for timing in found.operators:
        assert math.isfinite(timing.duration_s)


def _tried(text: str, form: str) -> None:
    try:
        _sound(import_text(text, form, **STATED))
    except (MeasurementError, SpecError):
        return


def test_every_fixture_is_recognised_by_its_content() -> None:
    found = {detect(text) for text in FILES.values()}
    assert found == set(FORMATS)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(FILES)), st.floats(0, 1))
def test_truncated_files(name: str, share: float) -> None:
    text = FILES[name]
    _tried(text[: int(share * len(text))], detect(text))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(sorted(FILES)), st.floats(0, 1), st.integers(0, 30), st.sampled_from(WORDS) | st.text(max_size=8)
)
def test_garbled_files(name: str, share: float, length: int, patch: str) -> None:
    text = FILES[name]
    start = int(share * len(text))
    _tried(text[:start] + patch + text[start + length :], detect(text))


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200), st.sampled_from(sorted(FORMATS)))
def test_arbitrary_text(text: str, form: str) -> None:
    _tried(text, form)


KEYS = [
    *(
        "results",
        "completed",
        "duration",
        "mean_ttft_ms",
        "traceEvents",
        "ph",
        "ts",
        "dur",
        "op_name",
        "avg_ts",
        "n_prompt",
    ),
    *(
        "avg_latency",
        "time_to_first_token",
        "avg",
        "errors",
        "request_rate",
        "server_info",
        "percentiles",
        "args",
        "name",
    ),
]
JSON_FORMATS = [name for name in FORMATS if "json" in name or "bench" in name or name in ("lm-eval", "chrome-trace")]
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=6) | st.just("X"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(DOCUMENTS, st.sampled_from(JSON_FORMATS))
def test_json_of_any_shape(data: object, form: str) -> None:
    _tried(json.dumps(data), form)
