"""The commands as people type them: names, files, pasted lines, layouts, what is printed and what is assumed."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path

import pytest

from perfmodel.cli import names
from perfmodel.cli.app import COMMANDS, GROUPS
from perfmodel.cli.flags import ALIASES, SHARED, canonical
from perfmodel.cli.serving_flags import SERVING
from perfmodel.cli.traffic_flags import TRAFFIC
from tests.unit.cli_parts import Run, answer

QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}
MINDIE = {
    "ServerConfig": {"port": 1025},
    "BackendConfig": {
        "ModelDeployConfig": {
            "maxSeqLen": 32768,
            "ModelConfig": [
                {"modelName": "DeepSeek-R1-Distill-Llama-70B", "modelWeightPath": "/data/llama", "worldSize": 8}
            ],
        },
        "ScheduleConfig": {"maxPrefillTokens": 32768, "cacheBlockSize": 128, "maxBatchSize": 200},
    },
}


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    folder = tmp_path / "My-Qwen"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN))
    return folder


def test_estimate_prints_figures_bands_limits_and_assumptions(run_cli: Run) -> None:
    ran = run_cli("estimate", "llama-3.1-8b", "a100-80gb-sxm", "--batch", "16", "--isl", "2048", "--osl", "256")
    assert ran.code == 0
    assert ran.err == ""
    for words in ("TTFT", "TPOT", "80 % band", "datasheet floor", "MFU", "MBU", "Energy", "J", "is bound by", "then"):
        assert words in ran.out
    assert "runtime vllm" in ran.out
    assert "context limit 2304 tokens" in ran.out


def test_no_default_of_the_workload_is_silent(run_cli: Run) -> None:
    ran = run_cli("estimate", "llama-3.1-8b", "a100-80gb-sxm")
    assert "not stated: batch 1, input tokens 1024, output tokens 256" in ran.out


def test_fabric_that_was_assumed_is_named(run_cli: Run) -> None:
    ran = run_cli("estimate", "llama-3.1-70b", "h200-sxm", "--devices", "8")
    assert "devices wired as in HGX H200" in ran.out
    assert "nvlink (switch of 8)" in ran.out
    assert "tensor parallelism over all 8 devices" in ran.out


def test_part_of_a_system_is_said_to_be_a_part(run_cli: Run) -> None:
    assert "8 of the 16 devices are used" in run_cli("estimate", "llama-3.1-8b", "2xdgx-a100", "-tp8").out


def test_counted_systems_count_their_devices(run_cli: Run) -> None:
    assert answer(run_cli, "estimate", "llama-3.1-70b", "2xdgx-a100", "-tp", "8", "-pp", "2")["n_devices"] == 16


def test_offload_swap_and_their_limit_are_seen(run_cli: Run) -> None:
    ran = run_cli("estimate", "llama-3.1-8b", "a100-80gb-sxm", "--cpu-offload-gb", "5", "--swap-space", "4")
    assert "5 GiB of weights a rank, read over the host link" in ran.out
    assert "swap space for 2,048 KV blocks" in ran.out
    assert "offloaded weights come from the host (link)" in ran.out


def test_explanation_names_formulas_and_sources(run_cli: Run) -> None:
    ran = run_cli("estimate", "llama-3.1-8b", "a100-80gb-sxm", "--explain")
    assert "peak_flop_per_s" in ran.out
    assert "[1]" in ran.out
    data = answer(run_cli, "estimate", "llama-3.1-8b", "a100-80gb-sxm", "--explain")
    assert sum(leaf["share"] for leaf in data["explanation"]["tpot"]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "size", ["-tp8", "-tp=8", "-tp 8", "--tp 8", "--tp=8", "--tp_size 8", "--tensor-parallel-size=8"]
)
def test_spellings_of_one_flag(run_cli: Run, size: str) -> None:
    data = answer(run_cli, "memory", "llama-3.1-70b", "h100-sxm", *size.split())
    assert (data["tp"], data["n_devices"]) == (8, 8)


def test_human_sizes_read_as_vllm_does(run_cli: Run) -> None:
    one, two = (answer(run_cli, "memory", "qwen3-8b", "l4", "--max-model-len", size) for size in ("8k", "8K"))
    assert (one["max_model_len"], two["max_model_len"]) == (8000, 8192)


def test_every_alias_points_at_a_flag_that_exists() -> None:
    grouped = [annotation for group in (SERVING, TRAFFIC) for annotation, _ in group.flags.values()]
    flags = [annotation.__metadata__[0] for annotation in (*SHARED.values(), *grouped)]
    shown = {name for flag in flags for name in (flag.default, *(flag.param_decls or ()))}
    assert {words[0] for words in ALIASES.values()} <= shown
    assert not shown & set(ALIASES)


def test_values_are_left_alone() -> None:
    words = ["whatif", "--vary", "max_model_len=1,2", "--from", "vllm serve X --tp_size 2"]
    assert canonical(words) == words


def test_config_files_and_folders_are_models(run_cli: Run, qwen: Path) -> None:
    named = answer(run_cli, "estimate", "qwen2.5-7b", "rtx-4090")
    for reference in (qwen, qwen / "config.json"):
        data = answer(run_cli, "estimate", str(reference), "rtx-4090")
        assert data["model"] == "my-qwen"
        assert data["tpot_s"] == pytest.approx(named["tpot_s"])


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "awq-int4-g128"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "gptq-int4-g128"),
        ("neuralmagic/Qwen2.5-7B-Instruct-FP8", "fp8"),
        ("qwen2.5-7b-instruct", "none"),
    ],
)
def test_checkpoint_suffixes_say_the_weights(run_cli: Run, name: str, scheme: str) -> None:
    data = answer(run_cli, "memory", name, "rtx-4090", "--max-model-len", "4096")
    assert data["quantization"] == scheme
    said = any(f"{name} is read as qwen2.5-7b with {scheme} weights" in warning for warning in data["warnings"])
    assert said == (scheme != "none")


@pytest.mark.parametrize(
    ("model", "loader", "scheme"),
    [
        ("qwen2.5-32b", "awq_marlin", "awq-int4-g128"),
        ("qwen2.5-32b-gptq-int4", "gptq_marlin", "gptq-int4-g128"),
        ("deepseek-v3", "compressed-tensors", "fp8-block128"),
        ("qwen2.5-32b", "bitsandbytes", "bnb-nf4"),
    ],
)
def test_loaders_of_engines_are_understood(run_cli: Run, model: str, loader: str, scheme: str) -> None:
    data = answer(run_cli, "memory", model, "8xh200-sxm", "-q", loader)
    assert data["quantization"] == scheme
    assert any(scheme in text for text in data["assumed"])


def test_expert_parallelism_of_a_dense_model_is_said_to_do_nothing(run_cli: Run) -> None:
    data = answer(run_cli, "estimate", "llama-3.1-8b", "2xh100-sxm", "-tp", "2", "--ep", "2")
    assert any("expert parallelism has no effect" in warning for warning in data["warnings"])


def test_pasted_vllm_line_and_flags_laid_over_it(run_cli: Run) -> None:
    line = "vllm serve Qwen/Qwen3-32B -tp 4 --max-model-len 32768 --gpu-memory-utilization 0.85 --frobnicate 3"
    data = answer(run_cli, "memory", "h100-sxm", "--from", line)
    assert (data["model"], data["tp"], data["max_model_len"]) == ("qwen3-32b", 4, 32768)
    assert data["ranks"][0]["utilization"] == 0.85
    assert "flag --frobnicate is not known and has no effect" in data["warnings"]
    over = answer(run_cli, "memory", "h100-sxm", "--from", line, "--gpu-memory-utilization", "0.6", "-tp2")
    assert (over["tp"], over["ranks"][0]["utilization"]) == (2, 0.6)


def test_pasted_sglang_line_and_mindie_config(run_cli: Run, tmp_path: Path) -> None:
    line = "python3 -m sglang.launch_server --model-path Qwen/Qwen2.5-7B-Instruct --tp 2 --mem-fraction-static 0.8"
    data = answer(run_cli, "estimate", "rtx-4090", "--from", line)
    assert data["runtime"].startswith("sglang")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(MINDIE))
    data = answer(run_cli, "memory", "ascend-910b3", "--from", str(file))
    assert (data["runtime"], data["tp"], data["block_tokens"]) == ("mindie-2.1", 8, 128)


def test_mixed_cards_and_uneven_stages(run_cli: Run) -> None:
    ran = run_cli("memory", "qwen3-32b-awq", "rtx-3090,rtx-4090", "--pp-partition", "30,34")
    assert ran.code == 0
    for words in ("stage 0", "1 x rtx-3090", "stage 1", "1 x rtx-4090", "rtx-3090 + rtx-4090", "GiB", "GB"):
        assert words in ran.out


def test_estimate_that_does_not_fit_prints_no_result(run_cli: Run) -> None:
    ran = run_cli("estimate", "llama-3.1-70b", "rtx-4090")
    assert (ran.code, ran.out) == (1, "")
    assert "would fit: " in ran.err


def test_whatif_compares_marks_and_explains(run_cli: Run) -> None:
    ran = run_cli(
        "whatif", "llama-3.1-70b", "a100-80gb-sxm", "--vary", "tp=1,2,3,4", "--vary", "kv=auto,fp8", "--isl", "512"
    )
    assert ran.code == 0
    for words in ("does not fit", "not possible", "Best per device: #", "per device", "KV tokens", " * ", " %", "…"):
        assert (words in ran.out) == (words != "…"), words
    assert all(len(line) <= 118 for line in ran.out.splitlines())


def test_whatif_names_the_quickest_where_more_devices_pay_only_in_latency(run_cli: Run) -> None:
    asked = ("whatif", "llama-2-7b", "rtx-3090", "--batch", "1", "--isl", "512", "--vary")
    ran = run_cli(*asked, "devices=1,2")
    assert "Best per device: #1 devices=1" in ran.out
    assert "Quickest for one request: #2" in " ".join(ran.out.split())
    assert "devices weights/rank" in ran.out  # the axis alone, not the number of devices once more
    assert "Quickest" not in run_cli(*asked, "batch=1,4").out  # another load is not compared


def test_whatif_says_what_differs(run_cli: Run) -> None:
    data = answer(run_cli, "whatif", "qwen3-32b", "a100-80gb-sxm", "--vary", "tp=1,2", "--batch", "64")
    one, two = data["variations"]
    assert (one["tp"], two["tp"]) == (1, 2)
    assert one["bound"] == "kv_capacity"
    assert any("run at once" in warning for warning in one["warnings"])
    assert two["ttft_s_change_frac"] == pytest.approx(two["ttft_s"] / one["ttft_s"] - 1)
    assert data["variations"][data["best"]]["best"]


def test_whatif_over_hardware_and_models(run_cli: Run) -> None:
    ran = run_cli(
        "whatif",
        "qwen3-8b",
        "h20",
        "--vary",
        "hardware=h20,ascend-910b3,2xrtx-4090",
        "--vary",
        "model=qwen3-8b,llama-3.1-8b",
    )
    assert ran.code == 0
    assert "#6" in ran.out


def test_whatif_where_nothing_works(run_cli: Run) -> None:
    ran = run_cli("whatif", "llama-3.1-70b", "rtx-4090", "--vary", "tp=1", "--vary", "kv=auto,fp8")
    assert ran.code == 1
    assert "no variation works" in ran.err


@pytest.mark.parametrize("command", ["estimate", "memory", "whatif"])
def test_markdown_is_a_table(run_cli: Run, command: str) -> None:
    more = ["--vary", "tp=1,2"] if command == "whatif" else []
    ran = run_cli(command, "qwen3-8b", "h100-sxm", *more, "--markdown")
    assert ran.code == 0
    table = [line for line in ran.out.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert set(table[1]) <= set("|:-")
    if command != "memory":
        for column in ("ISL", "OSL", "concurrency", "TTFT", "TPOT", "tok/s", "tok/s/device"):
            assert f" {column} " in table[0]


def test_sweep_writes_csv_and_json(run_cli: Run, tmp_path: Path) -> None:
    asked = ("sweep", "llama-3.1-8b", "l4", "--vary", "batch=1:16:x4", "--vary", "tp=1,2,3", "--osl", "64")
    ran = run_cli(*asked)
    rows = list(csv.DictReader(StringIO(ran.out)))
    assert [row["tp"] for row in rows] == ["1"] * 3 + ["2"] * 3 + ["3"]
    assert rows[-1]["error"].startswith("Llama-3.1-8B cannot be cut")
    file = tmp_path / "grid.json"
    ran = run_cli(*asked, "-o", str(file))
    assert (ran.code, ran.out) == (0, "")
    written = json.loads(file.read_text())["rows"]
    assert written[0]["tp"] == 1
    assert written[0]["ttft_s"] == pytest.approx(float(rows[0]["ttft_s"]))
    assert not list(tmp_path.glob("*.partial"))


def test_sweep_without_a_row_that_works_fails(run_cli: Run) -> None:
    ran = run_cli("sweep", "llama-3.1-70b", "rtx-4090", "--vary", "kv_cache_dtype=auto,fp8")
    assert (ran.code, ran.out) == (1, "")
    ran = run_cli("sweep", "llama-3.1-70b", "rtx-4090", "--vary", "batch=1,2")
    assert (ran.code, ran.out) == (1, "")
    assert "would fit" in ran.err
    ran = run_cli("sweep", "llama-3.1-8b", "rtx-4090", "--vary", "quantization=x,y")
    assert (ran.code, ran.out) == (2, "")


def test_sweep_agrees_with_estimate_and_says_what_does_not_fit(run_cli: Run) -> None:
    ran = run_cli(
        "sweep", "llama-3.1-8b", "rtx-4090", "--vary", "batch=8,512", "--isl", "1000", "--osl", "64", "--json"
    )
    first, second = json.loads(ran.out)["rows"]
    one = answer(run_cli, "estimate", "llama-3.1-8b", "rtx-4090", "--batch", "8", "--isl", "1000", "--osl", "64")
    assert first["ttft_s"] == pytest.approx(one["ttft_s"], rel=1e-12)
    assert first["output_tokens_per_s_per_device"] == pytest.approx(one["output_tokens_per_s_per_device"], rel=1e-12)
    assert (first["fits"], second["fits"]) == (1.0, 0.0)


def test_roofline_gives_rows_or_a_picture(run_cli: Run, tmp_path: Path) -> None:
    rows = answer(run_cli, "roofline", "deepseek-v2-lite", "ascend-910b2")["rows"]
    assert {"ceiling", "operator"} <= {row["kind"] for row in rows}
    file = tmp_path / "r.svg"
    ran = run_cli("roofline", "llama-3.1-8b", "l4", "-o", str(file))
    assert ran.code == 0
    assert file.read_text().lstrip().startswith("<?xml")


def test_own_hardware_and_models_from_a_folder(run_cli: Run, qwen: Path, tmp_path: Path) -> None:
    home = tmp_path / "mine"
    assert run_cli("models", "add", str(qwen), "--name", "my-own", "--catalog", str(home)).code == 0
    card = tmp_path / "card.yaml"
    shipped = Path(__file__).resolve().parents[2] / "hardware" / "l4.yaml"
    card.write_text(shipped.read_text().replace("name: l4\n", "name: mycard\n", 1))
    assert "sound" in run_cli("hardware", "check", str(card)).out
    assert run_cli("hardware", "add", str(card), "--catalog", str(home)).code == 0
    assert "mycard.yaml: " in run_cli("hardware", "check", "mycard", "--catalog", str(home)).out
    again = run_cli("hardware", "add", str(card), "--catalog", str(home))
    assert again.code == 2
    assert "--force" in again.err
    assert run_cli("hardware", "add", str(card), "--catalog", str(home), "--force").code == 0
    data = answer(run_cli, "estimate", "my-own", "mycard", "--catalog", str(home))
    assert (data["model"], data["hardware"]) == ("my-own", ["mycard"])
    assert "mycard" in run_cli("hardware", "list", "mycard", "--catalog", str(home)).out
    assert "my-own" in run_cli("models", "list", "my-own", "--catalog", str(home)).out


def test_lists_and_shows(run_cli: Run) -> None:
    assert "4090" in run_cli("hardware", "list", "4090").out
    assert "source" in run_cli("hardware", "show", "ascend-910b2").out
    assert "one direction" in run_cli("hardware", "show", "dgx-a100").out
    shown = run_cli("models", "show", "deepseek-v3").out
    assert "difference +0" in shown
    assert "163,840" in shown  # longest context
    assert {row["kind"] for row in json.loads(run_cli("hardware", "list", "h100", "--json").out)} == {
        "device",
        "system",
    }
    assert len(list(csv.DictReader(StringIO(run_cli("models", "list", "qwen3", "--csv").out)))) > 5
    empty = run_cli("models", "list", "nothing-like-it")
    assert (empty.code, empty.out) == (0, "")
    assert "nothing-like-it" in empty.err


def test_fit_of_a_model_suggests_memory(run_cli: Run) -> None:
    ran = run_cli("fit", "llama-3.1-8b", "h100-sxm", "-tp2")
    assert (ran.code, ran.out) == (2, "")
    assert "perfmodel memory llama-3.1-8b h100-sxm -tp 2" in ran.err


def test_demo_predicts_beside_stated(run_cli: Run) -> None:
    rows = json.loads(run_cli("demo", "--json").out)["runs"]
    assert any(row["error"] for row in rows)
    assert any(row.get("output_tokens_per_s") and row["stated_output_tokens_per_s"] for row in rows)
    text = run_cli("demo").out
    assert "does not fit" in text
    assert "would fit" in text


@pytest.mark.parametrize(
    "words", [(), *((name,) for name in (*COMMANDS, *GROUPS)), ("hardware", "add"), ("models", "list")]
)
def test_help_is_whole(run_cli: Run, words: tuple[str, ...]) -> None:
    ran = run_cli(*words, "--help")
    assert ran.code == 0
    assert "…" not in ran.out
    if words and words[0] in ("estimate", "memory", "whatif", "sweep", "roofline"):
        examples = [line for line in ran.out.splitlines() if f"perfmodel {words[0]} " in line and "Usage" not in line]
        assert len(examples) >= 2
        assert all(len(line.rstrip()) <= 80 for line in examples)


def test_version(run_cli: Run) -> None:
    assert run_cli("--version").out.startswith("perfmodel ")


def test_names_are_completed() -> None:
    assert "llama-3.1-8b" in names.model_names("Llama-3.1")
    assert {"h100-sxm", "h100-pcie"} <= set(names.hardware_names("h1"))
    assert "vllm-0.11" in names.runtime_names("vllm")
    assert "ideal" in names.calibration_names("id")
    assert names.scheme_names("awq") == ["awq-int4-g128"]
