"""Importers of serving benchmarks: real layouts, the identities that must hold, and the runs that must not be used."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from perfmodel.errors import MeasurementError, UnknownNameError
from perfmodel.measure.importers.base import Context, Imported
from perfmodel.measure.importers.bench_block import block_values
from perfmodel.measure.importers.pasted_table import column_meaning
from perfmodel.measure.importers.reading import json_objects
from perfmodel.measure.importers.registry import FORMATS, detect, import_file, import_text
from perfmodel.measure.importers.serving import model_and_scheme
from perfmodel.measure.importers.slots import slot_wait_s

DATA = Path(__file__).parent / "data"


def _value(found: Imported, metric: str, op: str = "") -> float | None:
    return next((row.value for row in found.rows if (row.metric, row.op) == (metric, op)), None)


def test_vllm_serve_results_become_rows() -> None:
    found = import_file(DATA / "vllm_serve.json", device="a100-80gb-sxm")
    row = found.rows[0]
    assert found.format == "vllm-bench-serve"
    assert (row.model, row.tp, row.batch, row.input_tokens, row.output_tokens) == ("qwen2.5-7b", 2, 16, 512, 128)
    assert (_value(found, "ttft_s"), _value(found, "tpot_s", "p50"), _value(found, "e2e_s", "p99")) == (
        0.41,
        0.0358,
        5.21,
    )
    assert _value(found, "output_tokens_per_s") == 400.0
    assert row.stderr == pytest.approx(0.04 / math.sqrt(200))
    assert found.facts["little_concurrency"] == pytest.approx(15.57, rel=1e-3)
    assert len(found.table()) == len(found.rows)
    assert found.warnings == ()


def test_what_a_file_lacks_is_asked_for() -> None:
    found = import_file(DATA / "vllm_serve.json")
    assert found.missing == ("device",)
    with pytest.raises(MeasurementError, match=r"device=\.\.\."):
        found.table()


def test_stated_words_win_and_misspelled_ones_are_refused() -> None:
    found = import_file(DATA / "vllm_serve.json", device="l4", model="my-model", tp=4)
    assert (found.rows[0].model, found.rows[0].tp) == ("my-model", 4)
    assert found.warnings == ("the file says that qwen2.5-7b was served; my-model, which is stated, counts",)
    assert import_file(DATA / "vllm_serve.json", device="l4", model="Qwen/Qwen2.5-7B-Instruct").warnings == ()
    with pytest.raises(MeasurementError, match="did you mean device"):
        import_file(DATA / "vllm_serve.json", devise="l4")


def test_vllm_latency_needs_what_its_file_does_not_say() -> None:
    with pytest.raises(MeasurementError, match="State them: model"):
        import_file(DATA / "vllm_latency.json", batch=8)
    stated: dict[str, Any] = {
        "model": "qwen2.5-7b",
        "batch": 8,
        "input_tokens": 512,
        "output_tokens": 128,
        "device": "l4",
    }
    found = import_file(DATA / "vllm_latency.json", **stated)
    assert (_value(found, "time_s"), _value(found, "time_s", "p99")) == (3.1, 3.2)
    assert found.rows[0].stderr == pytest.approx(0.01)
    assert len(found.table()) == 7


def test_vllm_throughput_separates_output_from_prompt_tokens() -> None:
    found = import_file(DATA / "vllm_throughput.json", input_tokens=512)
    assert (_value(found, "requests_per_s"), _value(found, "output_tokens_per_s")) == (5.0, 640.0)
    assert found.rows[0].request_rate_per_s == math.inf


def test_sglang_lines_are_runs_of_their_own() -> None:
    found = import_file(DATA / "sglang_bench.jsonl")
    loads = {(row.batch, row.request_rate_per_s) for row in found.rows}
    assert found.format == "sglang-bench-serving"
    assert loads == {(32.0, None), (None, 4.0)}
    assert found.rows[0].runtime == "sglang-0.5.7"
    assert len(found.facts["runs"]) == 2


def test_speculation_identities_of_a_printed_block() -> None:
    found = import_file(DATA / "glm_block.txt")
    facts = found.facts
    assert found.format == "serving-benchmark-block"
    assert facts["draft_tokens_per_step"] == 3
    assert facts["acceptance_length"] == pytest.approx(1.64, rel=2e-3)
    assert facts["acceptance_frac"] == pytest.approx(0.2133, rel=1e-3)
    assert facts["itl_over_tpot"] == pytest.approx(1.638, rel=2e-3)
    assert facts["drafts_plus_accepted"] == pytest.approx(32766, rel=1e-3)
    assert {row.status for row in found.rows} == {"suspect"}
    assert any("TPOT is not the time of one decode step" in warning for warning in found.warnings)


def test_spellings_of_a_block_and_stray_characters() -> None:
    lines = [
        "Total Token throughput (tok/s):         5864.22",
        "Total token throughput (tok/s):          4640.43",
        "Mean TTFT (ms):                          13395.44  ·",
    ]
    assert [value for _, _, value in block_values("\n".join(lines))] == [5864.22, 4640.43, 13395.44]


def test_several_blocks_in_one_text_are_several_runs() -> None:
    block = (DATA / "glm_block.txt").read_text()
    assert len(import_text(f"$ vllm bench serve\n{block}\nnoise\n{block}").facts["runs"]) == 2


def test_a_run_in_which_nearly_all_requests_failed_is_not_usable() -> None:
    block = (
        "Serving Benchmark Result\nSuccessful requests: 1\nFailed requests: 99\nMean TTFT (ms): 40\nMean TPOT (ms): 9\n"
    )
    for found in (
        import_text(block),
        import_text(
            '{"num_prompts": 100, "completed": 1, "duration": 9.0, "mean_ttft_ms": 40.0, "output_throughput": 3}'
        ),
    ):
        assert not found.usable_for_fit
        assert {row.status for row in found.rows} == {"invalid"}
        assert "1 of 100" in found.warnings[0]


def test_totals_count_and_not_requested_lengths_and_null_is_infinite() -> None:
    text = (
        '{"random_input_len": 80000, "random_output_len": 4096, "max_concurrency": 8, "duration": 6751.398,'
        '"num_prompts": 600, "completed": 599, "total_input_tokens": 23531562, "total_output_tokens": 1260603,'
        '"mean_ttft_ms": 3987.6,'
        '"mean_e2e_\n  latency_ms": 89713.8, "request_rate": null}'
    )
    found = import_text(text)
    assert found.facts["mean_input_tokens"] == pytest.approx(39285, rel=1e-3)
    assert found.facts["mean_output_tokens"] == pytest.approx(2104.5, rel=1e-3)
    assert found.facts["little_concurrency"] == pytest.approx(7.96, rel=5e-3)
    assert found.usable_for_fit
    assert sum("requested" in warning for warning in found.warnings) == 2
    without_limit = import_text(text.replace('"max_concurrency": 8, ', ""))
    assert without_limit.rows[0].request_rate_per_s == math.inf


def test_rejected_inputs_that_a_client_counted_are_implausible() -> None:
    record = (
        '{"completed": 100, "random_input_len": 250000, "random_output_len": 1000, "duration": 33.52,'
        '"total_input_tokens": 25000000, "total_output_tokens": 100000, "total_output_tokens_retokenized": 0,'
        '"mean_ttft_ms": 0.0, "mean_e2e_latency_ms": 332.93, "request_rate": Infinity}'
    )
    found = import_text(record)
    assert not found.usable_for_fit
    assert found.facts["implied_prefill_tokens_per_s"] == pytest.approx(745_818, rel=1e-3)
    assert "inputs over the server limit were rejected, client counted them" in found.warnings[0]
    assert {row.status for row in found.rows} == {"invalid"}


def test_prompts_read_faster_than_a_device_computes_are_told_where_device_and_model_are_known() -> None:
    record = {
        "completed": 100,
        "duration": 10.0,
        "total_input_tokens": 5e6,
        "mean_ttft_ms": 50.0,
        "model_id": "Qwen3-8B",
    }
    found = import_text(json.dumps(record), device="rtx-4090")
    assert not found.usable_for_fit
    assert "times what rtx-4090 can compute" in found.warnings[0]
    assert import_text(json.dumps({**record, "total_input_tokens": 5e4}), device="rtx-4090").usable_for_fit


def test_a_name_in_a_result_never_opens_a_file_of_this_machine() -> None:
    assert model_and_scheme("../../models/config.json")[0] == "config.json"
    assert model_and_scheme("perfmodel/specs") == ("specs", "")


def test_more_in_flight_than_allowed_is_a_warning() -> None:
    record = {"completed": 100, "duration": 10.0, "max_concurrency": 4, "mean_ttft_ms": 100.0, "mean_e2el_ms": 1000.0}
    assert any("Little's law" in warning for warning in import_text(json.dumps(record)).warnings)


def test_printed_and_computed_throughput_must_agree() -> None:
    record = {
        "completed": 10,
        "duration": 10.0,
        "total_output_tokens": 1000,
        "output_throughput": 50.0,
        "mean_ttft_ms": 1.0,
    }
    assert any("tokens over duration give 100.0" in warning for warning in import_text(json.dumps(record)).warnings)


@pytest.mark.parametrize(
    "name", ["vllm_serve.json", "sglang_bench.jsonl", "lm_eval.json", "aiperf.json", "aisbench.json"]
)
def test_truncated_json_says_where_and_what_to_do(name: str) -> None:
    text = (DATA / name).read_text()
    form = detect(text, name)
    with pytest.raises(MeasurementError) as caught:
        import_text(text[: len(text.rstrip()) - 20], form, file=name)
    assert "line" in str(caught.value)
    assert "cut off" in str(caught.value)


def test_every_broken_line_of_a_json_lines_file_is_named() -> None:
    with pytest.raises(MeasurementError) as caught:
        json_objects('{"a": 1}\n{"a": \n{"b": 2}\n[}\n', "x.jsonl")
    assert len(caught.value.faults) == 2


def test_aiperf_csv_and_json_agree() -> None:
    one, other = import_file(DATA / "aiperf.json", batch=8), import_file(DATA / "aiperf.csv", batch=8)
    for metric, op in (("ttft_s", ""), ("tpot_s", "p99"), ("e2e_s", "p50"), ("output_tokens_per_s", "")):
        assert _value(one, metric, op) == _value(other, metric, op) is not None
    assert (one.rows[0].model, one.rows[0].batch, one.rows[0].input_tokens) == ("qwen3-8b", 8, 550)


def test_aisbench_cells_carry_units() -> None:
    found = import_file(DATA / "aisbench.csv")
    assert found.rows[0].batch == 16
    assert _value(found, "ttft_s") == pytest.approx(0.1069)
    assert _value(found, "e2e_s", "p99") == pytest.approx(2.5021)
    assert found.rows[0].output_tokens == 128
    text = (DATA / "aisbench.csv").read_text()
    assert (_value(found, "output_tokens_per_s"), found.format) == (
        _value(import_file(DATA / "aisbench.json"), "output_tokens_per_s"),
        "aisbench",
    )
    assert import_text(text, source="own run").missing == ("device", "runtime", "model", "batch or request_rate_per_s")
    totals = import_file(DATA / "aisbench.json")
    assert totals.rows[0].batch == 16
    assert totals.facts["concurrency"] == 15.81
    assert _value(totals, "output_tokens_per_s") == pytest.approx(980.84, rel=1e-4)


def test_mindie_tables_of_both_kinds() -> None:
    perf = import_file(DATA / "mindie_perf.csv")
    assert _value(perf, "ttft_s") == pytest.approx(0.1068)
    assert _value(perf, "itl_s", "p90") == pytest.approx(0.054)
    common = import_file(DATA / "mindie_common.csv", device="ascend-910b3", input_tokens=1024, output_tokens=128)
    assert (common.rows[0].model, common.rows[0].batch) == ("qwen2.5-7b", 16)
    assert _value(common, "output_tokens_per_s") == pytest.approx(300.47)
    assert len(common.table()) == 2


def test_chinese_headers_and_empty_cells() -> None:
    found = import_file(DATA / "chinese.csv")
    assert found.facts["columns"] == ("concurrency", "ttft_ms", "tpot_ms", "output_tokens_per_s")
    assert found.facts["n_missing"] == 1
    assert (found.rows[0].batch, _value(found, "ttft_s"), _value(found, "tpot_s")) == (16, 4.7, 0.051)


@pytest.mark.parametrize(
    ("header", "meaning"),
    [
        ("并发数", ("concurrency", "mean", "")),
        ("首Token时延 P99（ms）", ("ttft", "p99", "ms")),
        ("平均TPOT(s)", ("tpot", "mean", "s")),
        ("成功率", ("success", "mean", "")),
        ("输入长度", ("input_tokens", "mean", "")),
        ("Gen. toks/s", ("output_tokens_per_s", "mean", "")),
        ("Frobnication", ("", "", "")),
    ],
)
def test_meanings_of_headers(header: str, meaning: tuple[str, str, str]) -> None:
    assert column_meaning(header) == meaning


def test_a_framed_terminal_table_is_read() -> None:
    found = import_file(DATA / "evalscope.txt", model="qwen2.5-0.5b", device="a100-80gb-sxm", runtime="vllm")
    assert {row.batch for row in found.rows} == {1.0, 50.0}
    assert _value(found, "e2e_s", "p99") == 2.3
    assert found.facts["runs"][1]["success_frac"] == 0.98


def test_slots_explain_a_plateau() -> None:
    text = "parallel,output tok/s,TTFT (s)\n1,137,\n4,520,\n8,520,3.9\n16,520,11.8\n"
    found = import_text(text, output_tokens=1024)
    assert found.facts["limit"] == "max_num_seqs"
    assert found.facts["service_s"] == pytest.approx(7.88, rel=0.01)
    assert slot_wait_s(8, 4, 7.88) == pytest.approx(3.94, rel=0.03)
    assert slot_wait_s(16, 4, 7.88) == pytest.approx(11.8, rel=0.02)
    other = import_text(text.replace("11.8", "2.1"), output_tokens=1024)
    assert "limit" not in other.facts


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", ("qwen2.5-7b", "none")),
        ("/home/user/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/abc", ("qwen3-8b", "none")),
        ("/data/My-Own-Model", ("my-own-model", "")),
    ],
)
def test_model_names_are_looked_up(word: str, name: tuple[str, str]) -> None:
    assert model_and_scheme(word) == name


def test_an_unknown_format_lists_the_known_ones() -> None:
    with pytest.raises(MeasurementError, match="vllm-bench-serve"):
        detect("some prose\nwithout figures")
    with pytest.raises(UnknownNameError, match="did you mean hccl-test"):
        import_text("x", "hccl-tests")


def test_every_format_refuses_nonsense() -> None:
    stated: dict[str, Any] = {"model": "m", "batch": 1, "input_tokens": 1, "output_tokens": 1}
    for form in FORMATS.values():
        for text in ("", "{}", "[]", "nonsense", "a,b\n1,2\n", "[[[1]]]", "null", '{"results": 3, "traceEvents": 4}'):
            with pytest.raises(MeasurementError):
                form.parse(text, context=Context(**stated))
