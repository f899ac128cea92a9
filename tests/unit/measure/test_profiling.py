"""Profiles: laws of shares, paths and what-ifs, hand-counted figures, rules, bad files, the command and its picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel import api
from perfmodel.cost.kernel import KernelPrices
from perfmodel.errors import MeasurementError, SpecError
from perfmodel.estimate import Bound
from perfmodel.measure.importers.registry import import_text
from perfmodel.measure.profile import OperatorTiming
from perfmodel.measure.profiling.answer import profile_answer
from perfmodel.measure.profiling.profile_file import Profile, profile_of, read_profile
from perfmodel.measure.profiling.roofline_gap import GapPrices, operator_counts, roofline_gaps
from perfmodel.measure.profiling.shares import StatedShare, common_total_s, operator_shares, stream_shares
from perfmodel.measure.profiling.suggest import suggestions
from perfmodel.measure.profiling.timeline import amdahl_s, factor_of, timeline_of, what_if
from perfmodel.report.output import json_text
from perfmodel.report.profile import profile_document
from perfmodel.specs.catalogue import Catalogue
from tests.unit.cli_parts import Run, answer
from tests.unit.measure.profile_parts import HEADER, Op, span, table, trace, transformer, written


def op(kind: str, start: float, duration: float, stream: str = "1", **more: Any) -> OperatorTiming:
    """Return an operator; times in microseconds."""
    return OperatorTiming(
        name=f"{kind}_{start:g}", type=kind, start_s=start / 1e6, duration_s=duration / 1e6, stream=stream, **more
    )


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


def prices(catalogue: Catalogue, device: str = "ascend-910b2") -> GapPrices:
    own = catalogue.device(device)
    names = ("ideal", "hard-bound", "prior")
    return GapPrices(*(KernelPrices(catalogue.calibration(name).for_device(own)) for name in names))


def matmul(m: int, n: int, k: int, us: float, dtype: str = "bf16") -> OperatorTiming:
    return op(
        "MatMulV2",
        0,
        us,
        input_shapes=((m, k), (k, n)),
        output_shapes=((m, n),),
        input_dtypes=(dtype, dtype),
        output_dtypes=("bf16",),
    )


def test_gap_of_a_matmul_by_hand(catalogue: Catalogue) -> None:
    # 4096 cubed on a 910B2: 2 x 4096^3 / 353.9e12 = 388.4 us; 3 x 4096^2 x 2 bytes / 1.6e12 = 62.9 us is less.
    found = roofline_gaps(profile_of([matmul(4096, 4096, 4096, 500.0)]), prices(catalogue)).gaps[0]
    assert found.bound_s == pytest.approx(2 * 4096**3 / 353.9e12)
    assert found.roof_frac == pytest.approx(388.4 / 500, rel=1e-3)
    assert found.gap_s == pytest.approx(111.6e-6, rel=1e-3)
    assert found.bound is Bound.COMPUTE
    assert found.hard_bound_s <= found.bound_s <= found.predicted_s
    assert not found.beats_hard_bound
    # One row: the weights decide, 4096 x 4096 x 2 bytes in 20.98 us.
    one = roofline_gaps(profile_of([matmul(1, 4096, 4096, 30.0)]), prices(catalogue)).gaps[0]
    assert one.bound_s == pytest.approx(20.98e-6, rel=1e-3)
    assert one.bound is Bound.ACTIVATION_IO
    assert roofline_gaps(profile_of([matmul(4096, 4096, 4096, 300.0)]), prices(catalogue)).gaps[0].beats_hard_bound


def test_counts_follow_shapes_and_dtypes() -> None:
    # int8: one byte an input element, two an output element.
    work = operator_counts(matmul(16, 32, 64, 1.0, dtype="int8"))
    assert work is not None
    assert (work.flop, work.weight_bytes, work.io_bytes) == (2 * 16 * 32 * 64, 64 * 32, 16 * 64 + 16 * 32 * 2)
    batched = op(
        "BatchMatMulV2", 0, 1, input_shapes=((8, 16, 64), (8, 64, 32)), output_shapes=((8, 16, 32),),
        input_dtypes=("fp16", "fp16"), output_dtypes=("fp16",),
    )  # fmt: skip
    work = operator_counts(batched)
    assert work is not None
    assert (work.flop, work.weight_bytes) == (2 * 8 * 16 * 32 * 64, 8 * 64 * 32 * 2)
    added = op(
        "Add", 0, 1, input_shapes=((4, 8), (4, 8)), output_shapes=((4, 8),), input_dtypes=("fp32", "fp32"),
        output_dtypes=("fp32",),
    )  # fmt: skip
    work = operator_counts(added)
    assert work is not None
    assert work.io_bytes == 3 * 32 * 4
    for untestable in (op("Add", 0, 1), op("GatherV2", 0, 1, input_shapes=((9, 9),), input_dtypes=("fp16",))):
        assert operator_counts(untestable) is None


def test_untestable_operators_are_counted(catalogue: Catalogue) -> None:
    found = roofline_gaps(profile_of([matmul(16, 16, 16, 5.0), op("Mystery", 9, 7.0)]), prices(catalogue))
    assert (len(found.gaps), found.n_untestable) == (1, 1)
    assert found.untestable_s == pytest.approx(7e-6)


def rules(*operators: OperatorTiming, **device: float) -> dict[str, float]:
    found = profile_of(operators)
    return {one.rule: one.saves_at_most_s for one in suggestions(found, timeline=timeline_of(found), **device)}


def test_rules_by_hand() -> None:
    # Mul, Add, Relu of 3, 5 and 2 us: one kernel takes at least 2 us.
    assert rules(op("Mul", 0, 3), op("Add", 3, 5), op("Relu", 8, 2))["fuse elementwise chain"] == pytest.approx(8e-6)
    convolution = rules(op("Conv2D", 0, 50), op("Relu", 50, 4), op("Conv2D", 54, 50), op("Relu", 104, 4))
    assert convolution == {"fuse activation": pytest.approx(8e-6)}
    shape: dict[str, Any] = {"input_shapes": ((64, 64),), "input_dtypes": ("fp32",), "output_dtypes": ("fp16",)}
    casts = [op("Cast", 20 * i, 6, **shape) for i in range(4)] + [op("MatMul", 20 * i + 6, 14) for i in range(4)]
    assert rules(*casts)["keep the converted tensor"] == pytest.approx(18e-6)
    # 90 of 100 us nothing runs.
    assert rules(op("MatMul", 0, 5), op("MatMul", 95, 5))["capture a graph"] == pytest.approx(90e-6)
    assert rules(op("MatMul", 0, 50), op("Gather", 50, 50)) == {}


def test_static_weights_help_only_where_they_fit_together() -> None:
    # 64 x 64 x 2 bytes, three calls: two need not read 8 KiB again, at 1 GB/s 8.19 us each.
    small = [
        OperatorTiming(
            name="proj", type="MatMul", start_s=i * 1e-4, duration_s=1e-4, input_shapes=((8, 64), (64, 64)),
            input_dtypes=("fp16", "fp16"),
        )
        for i in range(3)
    ]  # fmt: skip
    fits = rules(*small, cache_bytes=1e4, dram_bytes_per_s=1e9)
    assert fits["cache static weights"] == pytest.approx(2 * 8192 / 1e9)
    assert rules(*small, cache_bytes=1e3, dram_bytes_per_s=1e9)["cache static weights"] == 0.0
    assert "cache static weights" not in rules(*small)


def test_totals_by_type_say_nothing_of_neighbours(tmp_path: Path) -> None:
    head = "Device_id,OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),Ratio(%)"
    lines = "0,Mul,AI_VECTOR_CORE,3,30,9,10,11,50\n0,Add,AI_VECTOR_CORE,3,30,9,10,11,50\n"
    profile = read_profile([written(tmp_path, "op_statistic_0.csv", f"{head}\n{lines}")])
    assert suggestions(profile) == ()
    assert [one.n_calls for one in operator_shares(profile)] == [3, 3]


def test_waits_between_streams_are_no_operators(tmp_path: Path) -> None:
    ops = [Op("MatMulV2", 0.0, 10.0), Op("EVENT_WAIT", 10.0, 90.0), Op("Add", 100.0, 10.0)]
    profile = read_profile([written(tmp_path, "op_summary_0.csv", table(ops))])
    assert [one.type for one in operator_shares(profile)] == ["Add", "MatMulV2"]
    assert "1 waits and records" in profile.warnings[0]


def test_several_files_are_several_devices(tmp_path: Path) -> None:
    files = [written(tmp_path, f"op_summary_{i}.csv", table(transformer(1))) for i in (0, 1)]
    profile = read_profile(files)
    assert len(profile.streams) == 4
    assert profile.untestable == ""
    alone = read_profile(files[:1])
    both, one = timeline_of(profile, handover_s=2e-5), timeline_of(alone, handover_s=2e-5)
    assert both.critical_path.length_s == pytest.approx(one.critical_path.length_s)
    assert profile.total_s == pytest.approx(2 * alone.total_s)


def test_public_interface_reads_and_draws(tmp_path: Path) -> None:
    file = written(tmp_path, "op_summary_0.csv", table(transformer(2)))
    found = api.profile(file, device="ascend-910b2", faster={"MatMul": 1.3})
    assert found.what_ifs[0].saved_s > 0
    assert found.gaps is not None
    assert api.profile([file], handover_s=None).assumed == ()
    api.figure(found).savefig(tmp_path / "heat.png")
    assert (tmp_path / "heat.png").stat().st_size > 5000


def test_command_tells_everything(run_cli: Run, tmp_path: Path) -> None:
    file = written(tmp_path, "op_summary_0.csv", table(transformer(2)))
    picture = tmp_path / "heat.png"
    words = ("profile", str(file), "--device", "ascend-910b2", "--if", "MatMul=1.3x", "--if", "hcom=2x")
    ran = run_cli(*words, "--plot", str(picture))
    assert ran.code == 0, ran.err
    for text in ("MatMulV2", "critical path", "1.3 times as fast", "Against the roofline", "suggestion", "stream 5"):
        assert text in ran.out
    assert picture.read_bytes().startswith(b"\x89PNG")
    data = answer(run_cli, *words)
    assert sum(row["share"] for row in data["operators"]) == pytest.approx(1.0)
    assert data["critical_path_s"] <= data["span_s"]
    assert sum(row["critical_path_s"] for row in data["operators"]) == pytest.approx(data["critical_path_s"])
    assert data["what_if"][0]["saved_s"] > 0
    assert data["n_without_shapes"] == 2 + 4  # attention and all-reduces
    pages = [tmp_path / "one.html", tmp_path / "two.html"]
    for page in pages:
        assert run_cli(*words, "--html", str(page)).code == 0
    text = pages[0].read_text()
    assert text == pages[1].read_text()
    assert "<svg" in text
    assert "hcom_allReduce_" in text
    rows = run_cli("profile", str(file), "--csv").out.splitlines()
    assert rows[0].startswith("type,family,n_calls")
    assert len(rows) == 1 + len(data["operators"])


def test_pictures_of_profiles_without_times(run_cli: Run, tmp_path: Path) -> None:
    listed = [{"op_name": f"op{i}", "op_type": f"T{i % 20}", "duration_us": 1 + i, "stream": i % 2} for i in range(40)]
    file = written(tmp_path, "ops.json", json.dumps(listed))
    ran = run_cli("profile", str(file), "--plot", str(tmp_path / "heat.svg"), "--if", "T1=2x", "--top", "3")
    assert ran.code == 0, ran.err
    assert "not testable" in ran.out
    assert "17 more" in ran.out
    assert "Amdahl" in ran.out
    assert "<svg" in (tmp_path / "heat.svg").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ("--device", "no-such-device"),
        ("--if", "MatMul"),
        ("--if", "Conv3D=2x"),
        ("--plot", "heat.gif"),
        ("--handover", "-1"),
        ("--top", "0"),
        ("--json", "--csv"),
        ("--format", "nonsense"),
    ],
)
def test_bad_flags_are_refused(run_cli: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    ran = run_cli("profile", str(written(tmp_path, "op_summary_0.csv", table(transformer(1)))), *words)
    assert (ran.code, ran.out) == (2, "")
    assert "perfmodel:" in ran.err
