"""Importers of logs, collectives, copies, wiring, quality and llama-bench."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.errors import MeasurementError
from perfmodel.measure.importers.collective_tests import (
    bus_factor,
    implied_ranks,
    non_monotone_sizes,
    unit_of_bandwidth,
)
from perfmodel.measure.importers.registry import import_file, import_text
from perfmodel.measure.importers.topology import link_matrix
from perfmodel.specs.files import checked
from perfmodel.specs.system import System
from perfmodel.units import GB, GIB

DATA = Path(__file__).parent / "data"


def test_log_of_the_newer_vllm() -> None:
    found = import_file(DATA / "vllm_v1.log", device="a100-80gb-sxm")
    facts = found.facts
    assert (facts["weights_bytes"] / GIB, facts["available_kv_bytes"] / GIB) == (
        pytest.approx(7.1126),
        pytest.approx(9.62),
    )
    assert (facts["kv_tokens"], facts["max_concurrency"], facts["engine_version"]) == (360192, 43.97, "0.12.0")
    assert (found.rows[0].model, found.rows[0].tp, found.rows[0].compute_dtype) == ("qwen2.5-7b", 2, "bf16")
    assert found.warnings == ()
    assert len(found.table()) == 4


def test_log_of_the_older_vllm_counts_blocks() -> None:
    facts = import_file(DATA / "vllm_v0.log").facts
    assert (facts["kv_blocks"], facts["n_cpu_blocks"], facts["block_tokens"]) == (88952, 0, 16)
    assert facts["kv_bytes_per_token_implied"] == pytest.approx(12288, rel=1e-3)
    assert facts["gpu_memory_utilization"] == 0.78
    assert facts["weights_bytes"] == pytest.approx(0.5151 * GIB)


def test_log_of_sglang_takes_the_limiting_rank() -> None:
    facts = import_file(DATA / "sglang.log").facts
    assert facts["engine"] == "sglang"
    assert (facts["weights_bytes"] / GIB, facts["kv_tokens"]) == (pytest.approx(28.81), 383800)
    assert facts["graph_bytes"] / GIB == pytest.approx(0.8)


def test_log_of_vllm_ascend_prints_bytes() -> None:
    facts = import_file(DATA / "vllm_ascend.log").facts
    assert facts["engine"] == "vllm-ascend"
    assert (facts["available_kv_bytes"], facts["total_memory_bytes"]) == (38147203072, 65464696832)


def test_a_start_without_room_for_the_cache_is_told() -> None:
    text = (
        "model weights take 5.20GiB; non_torch_memory takes 0.03GiB; PyTorch activation peak memory takes 1.42GiB; "
        "the rest of the memory reserved for KV Cache is -1.05GiB.\n# GPU blocks: 0, # CPU blocks: 4681\n"
    )
    found = import_text(text)
    assert found.facts["available_kv_bytes"] / GIB == pytest.approx(-1.05)
    assert "no memory was left" in found.warnings[0]
    assert all((row.value or 0) >= 0 for row in found.rows)


def test_lines_of_two_starts_do_not_agree() -> None:
    text = "GPU KV cache size: 78,800 tokens\nMaximum concurrency for 8,192 tokens per request: 99.0x\n"
    assert "two starts" in import_text(text).warnings[0]


def test_nccl_tests() -> None:
    found = import_file(DATA / "nccl_allreduce.txt", device="a100-80gb-sxm")
    row = found.rows[-1]
    assert (row.op, row.n_devices, row.message_bytes, row.compute_dtype) == ("all_reduce", 4, 67108864, "fp32")
    assert row.value == pytest.approx(540e-6)
    assert found.facts["best_bus_bytes_per_s"] == pytest.approx(186.41e9, rel=1e-3)
    assert found.facts["usable"] is True
    assert len(found.table()) == 4


def test_an_average_bus_bandwidth_of_zero_is_not_usable() -> None:
    text = (DATA / "nccl_allreduce.txt").read_text().replace("102.464", "0")
    found = import_text(text)
    assert not found.usable_for_fit
    assert {row.status for row in found.rows} == {"invalid"}
    summary_only = import_text("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0\n")
    assert summary_only.facts["usable"] is False


def test_ranks_follow_from_the_ratio_of_bandwidths() -> None:
    rows = [(0.92, 0.48), (17.13, 8.84), (98.34, 50.76), (84.9, 43.82), (91.69, 47.32)]
    assert bus_factor("all_reduce", 32) == 1.9375
    assert [implied_ranks(bus / alg) for bus, alg in rows[2:]] == [32, 32, 32]
    sizes = [32 * 2**10, 2**20, 32 * 2**20, 64 * 2**20, 16 * 2**30]
    assert non_monotone_sizes([(s, alg) for s, (_, alg) in zip(sizes, rows, strict=True)]) == (64 * 2**20, 16 * 2**30)
    headless = "\n".join(line for line in (DATA / "nccl_allreduce.txt").read_text().splitlines() if "Rank" not in line)
    assert import_text(headless, file="all_reduce_perf.txt").facts["n_ranks"] == 4


def test_a_cut_off_sweep_keeps_whole_lines() -> None:
    text = (DATA / "nccl_allreduce.txt").read_text()
    found = import_text(text[: text.index("186.41") - 10])
    assert len(found.rows) == 3
    assert any("cut off" in warning for warning in found.warnings)


def test_hccl_test_prints_gib_under_the_heading_of_gb() -> None:
    found = import_file(DATA / "hccl_allreduce.txt", device="ascend-910b3", n_devices=8)
    first = found.rows[0]
    assert (first.message_bytes or 0) / (first.value or 1) / GB == pytest.approx(0.010715, rel=2e-3)
    assert unit_of_bandwidth(8192, 764.55e-6, 0.00998) == GIB
    assert unit_of_bandwidth(8192, 764.55e-6, 0.010715) == GB
    assert any("GiB/s" in warning for warning in found.warnings)
    assert len(found.table()) == 3


def test_hccl_test_in_another_order_of_columns_and_with_failures() -> None:
    text = "check_result: | data_size(Bytes): | avg_time(us): | alg_bandwidth(GB/s):\nfailed | 1024 | 10.5 | 0.0975\n"
    found = import_text(text, op="all_gather", n_devices=8)
    assert found.rows[0].status == "invalid"
    assert found.rows[0].value == pytest.approx(10.5e-6)


def test_nvbandwidth_matrices() -> None:
    found = import_file(DATA / "nvbandwidth.txt", device="a100-80gb-sxm")
    assert [row.op for row in found.rows] == ["host_to_device", "p2p"]
    assert found.rows[0].value == pytest.approx(25.985e9)
    assert found.rows[1].value == pytest.approx(276.215e9)
    assert len(found.table()) == 2


@pytest.mark.parametrize(
    ("name", "device", "kind", "topology", "n"),
    [
        ("topo_a100.txt", "a100-80gb-sxm", "nvlink", "switch", 4),
        ("topo_4090.txt", "rtx-4090", "pcie-host-staged", "tree", 4),
        ("topo_npu.txt", "ascend-910b3", "hccs", "full_mesh", 8),
    ],
)
def test_a_matrix_of_links_becomes_a_system(name: str, device: str, kind: str, topology: str, n: int) -> None:
    found = import_file(DATA / name, device=device)
    assert found.system is not None
    system = checked(System, found.system, name)
    fabric = system.fabrics[0]
    assert (fabric.kind, fabric.topology, fabric.n_devices, system.n_devices) == (kind, topology, n, n)
    assert fabric.bandwidth_per_direction.value > 1e10


def test_bridged_pairs_are_two_levels() -> None:
    rows = ["X NV4 SYS SYS", "NV4 X SYS SYS", "SYS SYS X NV4", "SYS SYS NV4 X"]
    text = "\tGPU0\tGPU1\tGPU2\tGPU3\n" + "\n".join(f"GPU{i}\t" + row.replace(" ", "\t") for i, row in enumerate(rows))
    found = import_text(text, device="rtx-3090")
    assert found.system is not None, found.warnings
    assert [(f["name"], f["n_devices"]) for f in found.system["fabrics"]] == [("nvlink", 2), ("pcie", 4)]


def test_without_a_device_there_is_a_matrix_only() -> None:
    found = import_file(DATA / "topo_a100.txt")
    assert found.system is None
    assert found.facts["links"][0][1] == "NV12"
    assert "device=" in found.warnings[0]


def test_a_cut_off_matrix_is_refused() -> None:
    text = (DATA / "topo_npu.txt").read_text()
    with pytest.raises(MeasurementError, match="Copy the whole matrix"):
        link_matrix("\n".join(text.splitlines()[:5]), "x")


def test_scores_of_lm_eval() -> None:
    found = import_file(DATA / "lm_eval.json", device="a100-80gb-sxm")
    scores = {row.op: (row.metric, row.value, row.stderr) for row in found.rows}
    assert scores["gsm8k:exact_match:strict-match"] == ("accuracy_frac", 0.7551, 0.0118)
    assert scores["wikitext:word_perplexity"][:2] == ("perplexity", 9.62)
    assert (found.rows[0].model, found.rows[0].quantization) == ("qwen2.5-7b", "awq-int4-g128")
    assert len(found.table()) == 5


@pytest.mark.parametrize("name", ["llama_bench.md", "llama_bench.json"])
def test_llama_bench_rates_become_times_of_steps(name: str) -> None:
    found = import_file(DATA / name, device="rtx-4090")
    prefill, decode = found.rows[:2]
    assert (prefill.kind, prefill.input_tokens, decode.kind, decode.context_tokens) == (
        "prefill_step",
        512,
        "decode_step",
        64,
    )
    assert decode.value == pytest.approx(1 / 145, rel=0.03)
    assert {row.quantization for row in found.rows} == {"q4_k_m"}
    assert len(found.table()) == len(found.rows)


def test_llama_bench_after_a_filled_cache() -> None:
    found = import_file(DATA / "llama_bench.md")
    assert found.rows[2].context_tokens == 4096 + 64
