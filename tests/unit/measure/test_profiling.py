"""Profiles: laws of shares, paths and what-ifs, hand-counted figures, rules, bad files, the command and its picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import MeasurementError, SpecError
from perfmodel.measure.importers.registry import import_text
from perfmodel.measure.profile import OperatorTiming
from perfmodel.measure.profiling.answer import profile_answer
from perfmodel.measure.profiling.profile_file import Profile, profile_of, read_profile
from perfmodel.measure.profiling.roofline_gap import GapPrices
from perfmodel.measure.profiling.shares import StatedShare, common_total_s, operator_shares, stream_shares
from perfmodel.measure.profiling.timeline import amdahl_s, factor_of, timeline_of, what_if
from perfmodel.report.output import json_text
from perfmodel.report.profile import profile_document
from perfmodel.specs.catalogue import Catalogue
from tests.unit.cli_parts import Run
from tests.unit.measure.profile_parts import HEADER, Op, op, prices, span, table, trace, transformer, written


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """A random profile: up to three streams, operators one after the other in each."""
    found = []
    for stream in range(draw(st.integers(1, 3))):
        now = 0.0
        for _ in range(draw(st.integers(1, 6))):
            now += draw(st.floats(0, 50))
            length = draw(st.floats(1, 50))
            found.append(op(draw(st.sampled_from(["MatMul", "Softmax", "Add"])), now, length, str(stream)))
            now += length
    return profile_of(found)


@given(profiles(), st.sampled_from([None, 2e-5]), st.floats(0.2, 5.0))
@settings(max_examples=80, deadline=None)
def test_laws_of_a_profile(profile: Profile, handover_s: float | None, factor: float) -> None:
    shares = operator_shares(profile)
    assert sum(one.share for one in shares) == pytest.approx(1.0)
    assert sum(one.share for one in stream_shares(profile)) == pytest.approx(1.0)
    line = timeline_of(profile, handover_s=handover_s)
    path = line.critical_path.length_s
    busiest = max(one.total_s for one in stream_shares(profile))
    assert busiest * (1 - 1e-9) <= path <= min(profile.total_s, line.span_s) * (1 + 1e-9) + 1e-12
    assert sum(one.exposed_s or 0.0 for one in shares) <= line.span_s * (1 + 1e-9)
    kind = shares[0].type
    same, other = (what_if(profile, kind, f, timeline=line) for f in (1.0, factor))
    assert same.after_s == pytest.approx(same.before_s, rel=1e-12)
    assert same.before_s == pytest.approx(line.span_s)
    assert (other.saved_s >= -1e-15) if factor >= 1 else (other.saved_s <= 1e-15)
    # Nothing is saved beyond what the matched operators take in all.
    assert other.saved_s <= other.matched_s * (1 - 1 / factor) + 1e-12 if factor >= 1 else True


def test_critical_path_by_hand() -> None:
    # Stream 1: a 0-10, b 30-40. Stream 2: c 10-30. b waited for c: 10 + 20 + 10 where the wait is inferred, and the
    # longer stream alone, 20, where nothing is known of it.
    profile = profile_of([op("a", 0, 10), op("b", 30, 10), op("c", 10, 20, "2")])
    known, inferred = timeline_of(profile), timeline_of(profile, handover_s=1e-6)
    assert known.critical_path.length_s == pytest.approx(20e-6)
    assert inferred.critical_path.length_s == pytest.approx(40e-6)
    assert [inferred.operators[i].type for i in inferred.critical_path.positions] == ["a", "c", "b"]
    assert inferred.n_inferred == 2
    assert [known.span_s, inferred.span_s] == pytest.approx([40e-6, 40e-6])
    # c twice as fast: 30 us where b waits for it; nothing where it is thought to have waited for something else.
    assert what_if(profile, "c", 2.0, timeline=inferred).after_s == pytest.approx(30e-6)
    assert what_if(profile, "c", 2.0, timeline=known).after_s == pytest.approx(40e-6)


def test_hidden_operators_save_nothing() -> None:
    profile = profile_of([op("MatMul", 0, 100), op("hcom_allReduce_", 10, 50, "2")])
    line = timeline_of(profile)
    assert what_if(profile, "collective", 10.0, timeline=line).saved_s == pytest.approx(0.0)
    assert {one.type: one.exposed_s for one in operator_shares(profile)} == {
        "MatMul": pytest.approx(50e-6),
        "hcom_allReduce_": 0.0,
    }


def test_amdahl_by_hand() -> None:
    # 127.4 of 335 ms, 1.3 times as fast: 335 - 127.4 + 98.0 = 305.6 ms.
    assert amdahl_s(total_s=0.335, part_s=0.1274, factor=1.3) == pytest.approx(0.3056)
    profile = profile_of(
        [OperatorTiming(name="MatMul", duration_s=0.1274), OperatorTiming(name="Other", duration_s=0.2076)]
    )
    assert profile.untestable == "operators have no start times"
    assert what_if(profile, "MatMul", 1.3, timeline=None).after_s == pytest.approx(0.3056)
    assert what_if(profile, "gemm", 1.0, timeline=None).saved_s == pytest.approx(0.0)


def test_stated_shares_agree_or_do_not() -> None:
    # 127.4 ms is 38 %: 127.35 / 0.385 = 330.8 to 127.45 / 0.375 = 339.9 ms; 42.1 ms is 13 %: 42.05 / 0.135 = 311.5 to
    # 42.15 / 0.125 = 337.2 ms. Both hold from 330.8 to 337.2 ms.
    stated = [StatedShare(0.1274, 1e-4, 0.38, 0.01), StatedShare(0.0421, 1e-4, 0.13, 0.01)]
    found = common_total_s(stated)
    assert found is not None
    assert list(found) == pytest.approx([0.33078, 0.3372], rel=1e-4)
    assert common_total_s([stated[0], StatedShare(0.0421, 1e-4, 0.20, 0.01)]) is None
    open_ended = common_total_s([StatedShare(1.0, 0.0, 0.0, 0.01)])
    assert open_ended is not None
    assert list(open_ended) == pytest.approx([200.0, float("inf")])
    with pytest.raises(SpecError, match="no share"):
        common_total_s([])
    with pytest.raises(SpecError, match="cannot be used"):
        common_total_s([StatedShare(-1.0, 0.0, 0.1, 0.0)])


@pytest.mark.parametrize(
    ("text", "found"), [("MatMul=1.3x", ("MatMul", 1.3)), ("a=b=30%", ("a=b", 1.3)), ("Add=2", ("Add", 2.0))]
)
def test_what_ifs_are_read(text: str, found: tuple[str, float]) -> None:
    assert factor_of(text) == found


@pytest.mark.parametrize("text", ["MatMul", "MatMul=", "=2x", "MatMul=0x", "MatMul=-200%", "MatMul=fast", "M=infx"])
def test_bad_what_ifs_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="what-if"):
        factor_of(text)


def test_unknown_operator_lists_those_there_are() -> None:
    with pytest.raises(SpecError, match="MatMul"):
        what_if(profile_of([op("MatMul", 0, 1)]), "Conv", 2.0, timeline=None)


def test_overlap_within_a_stream_is_named_and_shares_remain(tmp_path: Path) -> None:
    file = written(tmp_path, "op_summary_0.csv", table([Op("MatMulV2", 0.0, 100.0), Op("Add", 90.0, 20.0)]))
    profile = read_profile([file])
    assert "line 2" in profile.untestable
    assert "line 3" in profile.untestable
    assert "overlap by 10 us" in profile.untestable
    assert operator_shares(profile)[0].share == pytest.approx(100 / 120)
    with pytest.raises(MeasurementError, match="not testable"):
        timeline_of(profile)


def test_rounding_of_an_epoch_is_no_overlap(tmp_path: Path) -> None:
    file = written(tmp_path, "op_summary_0.csv", table(transformer(4, epoch=1.7e15)))
    profile = read_profile([file])
    assert profile.untestable == ""
    line = timeline_of(profile, handover_s=2e-5)
    assert what_if(profile, "MatMul", 1.0, timeline=line).after_s == pytest.approx(line.span_s, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("op_summary_0.csv", table([Op("MatMulV2", 0.0, 5.0), Op("Add", 9.0, -3.0)]), "line 3, duration: got -3.0"),
        ("ops.json", '[{"op_name": "a", "duration_us": 3}, {"op_name": "b", "duration_us": -1}]', "operator 2"),
        ("trace_view.json", trace([span("MatMul", 0, 5), span("Add", 9, -2)]), "event 3"),
        ("op_summary_0.csv", "", "no format"),
        ("op_summary_0.csv", HEADER + "\n", "no operator"),
        ("op_summary_0.csv", table([Op("MatMulV2", 0.0, 5.0)])[:-60], "cut off"),
        ("ops.json", '[{"op_name": "a", "duration_us": 3}, {"op_na', "cut off"),
        ("trace_view.json", trace([span("MatMul", 0, 5)])[:-9], "cut off"),
        ("ops.json", '[{"op_name": "a", "duration_us": 0}]', "took time"),
        ("op_summary_0.csv", HEADER.replace("Task Duration(us)", "Duration"), "no format"),
    ],
)
def test_broken_profiles_are_refused(run_cli: Run, tmp_path: Path, name: str, text: str, words: str) -> None:
    ran = run_cli("profile", str(written(tmp_path, name, text)))
    assert ran.code == 2
    assert ran.out == ""
    assert words in ran.err


def test_file_that_is_no_profile_is_refused(run_cli: Run, tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,512,256\n"
    file = written(tmp_path, "trace.csv", text)
    ran = run_cli("profile", str(file))
    assert ran.code == 2
    assert "no operator timings" in ran.err


def test_negative_duration_in_the_program_is_refused() -> None:
    with pytest.raises(MeasurementError, match="time cannot take"):
        profile_of([op("a", 0, -1)])


@pytest.fixture(scope="module")
def priced(catalogue: Catalogue) -> GapPrices:
    return prices(catalogue)


WORD = st.sampled_from(["MatMulV2", "Cast", "hcom_allReduce_", "Relu", "Conv2D", "", "Softmax"])
SHAPES = st.lists(st.lists(st.sampled_from([0, 1, 16, 4096, 10**400]), max_size=4).map(tuple), max_size=3).map(tuple)


@given(
    st.lists(
        st.builds(
            OperatorTiming,
            name=WORD,
            type=WORD,
            duration_s=st.sampled_from([0.0, 1e-9, 1e-5, 3e-5, 1e9]),
            start_s=st.sampled_from([None, 0.0, 1e-5, 2e-5, 1.7e9, -3.0]),
            n_calls=st.sampled_from([1, 1, 1, 7]),
            stream=st.sampled_from(["", "2", "x"]),
            input_shapes=SHAPES,
            output_shapes=SHAPES,
            input_dtypes=st.sampled_from([(), ("bf16",), ("bf16", "fp32"), ("int8", "int8", "odd")]),
            output_dtypes=st.sampled_from([(), ("bf16",)]),
        ),
        max_size=8,
    )
)
@settings(max_examples=100, deadline=None)
def test_whatever_a_profile_holds_is_answered_or_refused(priced: GapPrices, operators: list[OperatorTiming]) -> None:
    try:
        profile = profile_of(operators)
    except MeasurementError:
        assert sum(o.duration_s for o in operators) <= 0.0
        return
    found = profile_answer(profile, prices=priced, what_ifs=[(operators[0].type or operators[0].name, 2.0)])
    json_text(profile_document(found))
    assert sum(one.share for one in found.operators) == pytest.approx(1.0)
    assert (found.timeline is None) == bool(found.untestable)


def test_start_that_is_no_moment_is_refused() -> None:
    with pytest.raises(MeasurementError, match="start inf"):
        profile_of([op("a", float("inf"), 1)])


def test_links_of_a_trace_are_dependencies() -> None:
    def flow(phase: str, ts: float, tid: int) -> dict[str, object]:
        return {"ph": phase, "name": "sync", "cat": "sync", "id": 7, "pid": 1, "tid": tid, "ts": ts}

    events = [span("a", 0, 10), span("b", 100, 10, 3), flow("s", 10, 2), flow("f", 100, 3)]
    found = import_text(trace(events))
    assert found.links == ((0, 1),)
    profile = profile_of(found.operators, links=found.links)
    assert timeline_of(profile).critical_path.length_s == pytest.approx(20e-6)
    # A link whose first operator ended after the second began cannot have been waited for.
    late = profile_of([op("a", 0, 100), op("b", 50, 10, "2")], links=[(0, 1)])
    assert timeline_of(late).critical_path.length_s == pytest.approx(100e-6)
