"""Importers of profiles and operator tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.errors import MeasurementError
from perfmodel.measure.importers.operators import gemm_size
from perfmodel.measure.importers.reading import csv_grid
from perfmodel.measure.importers.registry import import_file, import_text
from perfmodel.measure.profile import OperatorTiming, shapes_from_text

DATA = Path(__file__).parent / "data"


def test_op_summary_of_the_newer_generation() -> None:
    found = import_file(DATA / "op_summary_new.csv", device="ascend-910b2")
    first, norm, collective = found.operators[0], found.operators[2], found.operators[3]
    assert len(found.operators) == 4  # the collective is listed twice
    assert first.input_shapes == ((16, 4096), (4096, 12288))
    assert (first.n_blocks, first.counter("cube_utilization(%)")) == (24, 19.5)
    assert norm.counters == ()
    assert (collective.family, collective.input_shapes, collective.n_blocks) == ("collective", (), None)
    row = found.rows[0]
    assert (row.kind, row.m, row.n, row.k, row.compute_dtype, row.n_repeats) == ("gemm", 16, 12288, 4096, "bf16", 2)
    assert row.value == pytest.approx(85e-6)
    assert (found.rows[1].op, found.rows[1].query_tokens, found.rows[1].hidden) == ("rmsnorm", 16, 4096)
    assert len(found.table()) == 2


def test_kernel_details_of_the_older_generation() -> None:
    found = import_file(DATA / "kernel_details_old.csv")
    matmul, swiglu = found.operators
    assert (matmul.n_blocks, matmul.step, matmul.core, matmul.wait_s) == (24, "5", "AI_CORE", 5e-7)
    assert swiglu.input_shapes == ((1024, 22016), ())
    assert matmul.end_s is not None
    assert matmul.end_s - (matmul.start_s or 0) == pytest.approx(133.28e-6, rel=1e-2)
    assert {row.kind for row in found.rows} == {"gemm", "elementwise"}


def test_op_statistic_sums_up() -> None:
    found = import_file(DATA / "op_statistic.csv")
    assert (found.operators[0].type, found.operators[0].n_calls) == ("MatMulV2", 225)
    assert found.facts["device_s"] == pytest.approx(30.175e-3)


def test_a_byte_order_mark_and_quoted_shapes() -> None:
    header = "\ufeffOP State,Accelerator Core,Input Shapes,Average Duration(us),Quant Type\n"
    found = import_text(f'{header}dynamic,AI_CORE,"1,256;256,256",5.20,bf16\n')
    assert found.facts["columns"][0] == "OP State"
    row = found.rows[0]
    assert (row.m, row.n, row.k) == (1, 256, 256)
    assert row.value == pytest.approx(5.2e-6)


def test_matmuls_of_a_910b_table() -> None:
    found = import_file(DATA / "MatMulV2.csv", device="ascend-910b2")
    rates = {(r.m, r.n): 2 * (r.m or 0) * (r.n or 0) * (r.k or 0) / (r.value or 1) for r in found.rows}
    assert rates[4096, 4096] == pytest.approx(313.6e12, rel=1e-3)
    big = next(r for r in found.rows if r.n == 12288)
    assert 2 * 12288**2 / (big.value or 1) == pytest.approx(1260e9, rel=2e-3)


def test_decode_attention_of_a_910b_table_and_zero_kv_heads() -> None:
    found = import_file(DATA / "FusedInferAttentionScore_Decode.csv", device="ascend-910b2")
    rates = [
        2 * (r.batch or 0) * (r.context_tokens or 0) * (r.n_kv_heads or 0) * (r.head_dim or 0) * 2 / (r.value or 1)
        for r in found.rows
    ]
    assert rates[:2] == [pytest.approx(1296e9, rel=0.01), pytest.approx(821e9, rel=0.01)]
    assert found.rows[2].n_kv_heads == 32
    assert {r.op for r in found.rows} == {"decode"}


def test_experts_of_a_910b_table() -> None:
    found = import_file(DATA / "GroupedMatmul.csv", device="ascend-910b2")
    deepseek = found.rows[1]
    touched = 3 * (deepseek.n_experts or 0) * (deepseek.hidden or 0) * (deepseek.intermediate or 0) * 2
    assert touched / (deepseek.value or 1) == pytest.approx(1418e9, rel=0.01)
    mixtral = found.rows[2]
    touched = 3 * (mixtral.n_experts or 0) * (mixtral.hidden or 0) * (mixtral.intermediate or 0) * 2
    assert touched / (mixtral.value or 1) == pytest.approx(1203e9, rel=0.01)


def test_a_list_of_operators_in_json() -> None:
    found = import_file(DATA / "mindstudio.json")
    assert [o.type for o in found.operators] == ["MatMulV2", "SoftmaxV2"]
    assert found.operators[0].duration_s == pytest.approx(84.2e-6)
    assert found.warnings == ()
    bare = import_text('[{"op_name": "a", "op_type": "MatMulV2", "duration": 5}]')
    assert "microseconds" in bare.warnings[0]


def test_a_trace_gives_device_events_with_the_shapes_of_their_launchers() -> None:
    found = import_file(DATA / "trace.json", device="a100-80gb-sxm")
    assert [o.family for o in found.operators] == ["gemm", "norm", "copy"]
    assert found.operators[0].start_s == 0.0
    assert found.facts["busy_s"] == pytest.approx(50e-6)
    assert found.facts["span_s"] == pytest.approx(54.5e-6)
    row = found.rows[0]
    assert (row.m, row.n, row.k) == (16, 4096, 4096)
    assert row.value == pytest.approx(45.5e-6)


def test_a_trace_without_a_device_says_so() -> None:
    text = '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2}]}'
    found = import_text(text)
    assert "host" in found.warnings[0]
    assert found.rows == ()


@pytest.mark.parametrize(
    ("inputs", "outputs", "size"),
    [
        ([(2, 16, 64), (64, 32)], [], (1, 32, 32, 64)),
        ([(8, 16, 64), (8, 64, 32)], [], (8, 16, 32, 64)),
        ([(16, 64), (64, 64)], [(16, 64)], (1, 16, 64, 64)),
        ([(16, 4096), (768, 256, 16, 16)], [(16, 12288)], (1, 16, 12288, 4096)),
        ([(64, 16), (64, 32)], [(16, 32)], (1, 16, 32, 64)),
        ([(16, 64)], [], None),
        ([(16, 64), (63, 62)], [], None),
        ([(), ()], [], None),
    ],
)
def test_sizes_of_matmuls(
    inputs: list[tuple[int, ...]], outputs: list[tuple[int, ...]], size: tuple[int, int, int, int] | None
) -> None:
    assert gemm_size(inputs, outputs) == size


def test_shapes_in_both_notations() -> None:
    assert shapes_from_text("[[16, 4096], [], 3]") == ((16, 4096), (), ())
    assert shapes_from_text("N/A") == ()
    with pytest.raises(ValueError, match="invalid literal"):
        shapes_from_text("a,b")


def test_faulty_lines_of_a_profile_are_told_and_the_others_kept() -> None:
    text = (DATA / "op_summary_new.csv").read_text().replace("84.2", "broken")
    found = import_text(text)
    assert len(found.operators) == 3
    assert "line 2" in found.warnings[0]


def test_a_cut_off_table_is_refused_with_its_line() -> None:
    text = (DATA / "op_summary_new.csv").read_text()
    with pytest.raises(MeasurementError, match="line 6"):
        import_text(text[:-40])


def test_grids_in_several_dialects() -> None:
    for text in ("a,b\n1,2\n", "a\tb\n1\t2\n", "a;b\n1;2\n", "| a | b |\n|---|---|\n| 1 | 2 |\n"):
        grid = csv_grid(text, "x")
        assert (grid.header, grid.rows[0][1]) == (("a", "b"), ("1", "2"))


def test_an_operator_knows_its_family() -> None:
    assert OperatorTiming(name="x", type="GroupedMatmul", duration_s=1.0).family == "moe"
    assert OperatorTiming(name="flash_fwd_kernel", duration_s=1.0).family == "attention"
