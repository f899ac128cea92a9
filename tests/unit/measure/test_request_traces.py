"""Request traces of several projects in one shape."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.errors import MeasurementError
from perfmodel.measure.importers.registry import detect, import_file, import_text
from perfmodel.measure.request_trace import RequestTrace

DATA = Path(__file__).parent / "data"


def _trace(text: str) -> RequestTrace:
    trace = import_text(text).facts["trace"]
    assert isinstance(trace, RequestTrace)
    return trace


def test_azure_dates_keep_seven_decimals() -> None:
    trace = import_file(DATA / "azure.csv").facts["trace"]
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 0.25, 2.0], abs=1e-6)
    assert trace.input_tokens.tolist() == [512, 4808, 110]
    assert trace.requests_per_s == pytest.approx(1.0)


def test_mooncake_clocks_are_milliseconds_and_hashes_share_prefixes() -> None:
    trace = import_file(DATA / "mooncake.jsonl").facts["trace"]
    assert trace.arrival_s.tolist() == [0.0, 3.0, 3.5]
    assert trace.block_tokens == 512
    assert trace.shared_prefix_frac == pytest.approx(3 / 7)


def test_burstgpt_failures_are_left_out_and_counted() -> None:
    found = import_file(DATA / "burstgpt.csv")
    assert found.facts["trace"].arrival_s.tolist() == [0.0, 40.0]
    assert found.facts["trace"].sessions == ("12", "13")
    assert "1 requests without an answer" in found.warnings[0]


TOKENS = '"input_toks": 10, "output_toks": 20'
LENGTHS = '"input_length": 10, "output_length": 20'


@pytest.mark.parametrize(
    "text",
    [
        "arrived_at,num_prefill_tokens,num_decode_tokens\n1.5,10,20\n2.0,10,20\n",
        "request_id,arrival_timestamp,prompt_size,token_size\n0,0.0,10,20\n1,0.5,10,20\n",
        "StartTimeOffset(ns),ContextTokens,GeneratedTokens\n0,10,20\n500000000,10,20\n",
        f'{{{TOKENS}, "arrival_time_ns": 0}}\n{{{TOKENS}, "arrival_time_ns": 500000000}}\n',
        "request_id,arrival_s,input_tokens,output_tokens\na,0.0,10,20\nb,0.5,10,20\n",
        f'{{"chat_id": 1, "timestamp(s)": 0.0, {LENGTHS}}}\n{{"chat_id": 2, "timestamp(s)": 0.5, {LENGTHS}}}\n',
    ],
)
def test_other_projects_write_the_same_in_other_words(text: str) -> None:
    assert detect(text) == "request-trace"
    trace = _trace(text)
    assert trace.arrival_s.tolist() == [0.0, 0.5]
    assert trace.output_tokens.tolist() == [20, 20]


def test_sub_requests_are_flattened() -> None:
    text = (
        '{"session_id": "s", "arrival_time_ns": 0, "sub_requests": [{"input_toks": 1, "output_toks": 2}, '
        '{"input_toks": 3, "output_toks": 4}]}\n'
    )
    found = import_text(text, "request-trace")
    assert found.facts["trace"].input_tokens.tolist() == [1, 3]
    assert "start together" in found.warnings[-1]


def test_a_trace_without_answers_or_without_a_clock_is_refused() -> None:
    with pytest.raises(MeasurementError, match="answered"):
        import_text("arrived_at,num_prefill_tokens,num_decode_tokens\n1,10,0\n")
    with pytest.raises(MeasurementError, match="no column of arrival"):
        import_text("num_prefill_tokens,num_decode_tokens\n1,10\n", "request-trace")


def test_one_request_has_no_rate() -> None:
    assert _trace("arrived_at,num_prefill_tokens,num_decode_tokens\n1,10,5\n").requests_per_s is None
