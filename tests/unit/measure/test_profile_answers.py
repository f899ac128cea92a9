"""Profiles against the roofline, rules that suggest, and the command with its pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfmodel import api
from perfmodel.estimate import Bound
from perfmodel.measure.profile import OperatorTiming
from perfmodel.measure.profiling.profile_file import profile_of, read_profile
from perfmodel.measure.profiling.roofline_gap import operator_counts, roofline_gaps
from perfmodel.measure.profiling.shares import operator_shares
from perfmodel.measure.profiling.suggest import suggestions
from perfmodel.measure.profiling.timeline import timeline_of
from perfmodel.specs.catalogue import Catalogue
from tests.unit.cli_parts import Run, answer
from tests.unit.measure.profile_parts import Op, op, prices, table, transformer, written


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
