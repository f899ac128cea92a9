"""Whatever is typed or pasted, the command line answers, or refuses with one message: it never breaks.

Arguments and configurations are drawn from what is right, nearly right and absurd. Exit codes are 0, 1 and 2; a refusal
is on stderr alone, begins with the program's name and holds no traceback; what --json prints is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FEW = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

NUMBERS = st.one_of(
    st.sampled_from(
        [
            "0",
            "-1",
            "1",
            "2",
            "3",
            "8",
            "64",
            "1000",
            "32k",
            "4K",
            "1e9",
            "1e400",
            "nan",
            "inf",
            "-inf",
            "0.9",
            "90",
            "",
            " ",
            "9" * 30,
            "1_000",
            "0x10",
            "½",
            "1,2",
            "2:1:0",
            "\x00",
            "--tp",
            "16GiB",
            "-3 GiB",
            "5 parsec",
            "none",
            "auto",
        ]
    ),
    st.integers(-(10**20), 10**20).map(str),
    st.integers(1, 4096).map(str),
    st.floats().map(repr),
    st.text(max_size=6),
)
NAMES = st.one_of(
    st.sampled_from(
        [
            "",
            ",",
            "nonsense",
            "../x",
            "/",
            ".",
            "none",
            "auto",
            "fp8",
            "int8",
            "fp7",
            "w8a8",
            "awq",
            "awq-int4-g128",
            "q4_k_m",
            "gptq_marlin",
            "bf16",
            "fp32",
            "vllm-0.6.3",
            "sglang-0.5",
            "mindie-2.1",
            "ideal",
            "prior",
            "hard-bound",
        ]
    ),
    st.text(max_size=8),
)
MODELS = st.one_of(
    st.sampled_from(
        [
            "llama-3.1-8b",
            "deepseek-v3",
            "qwen3-30b-a3b",
            "qwen3-next-80b-a3b",
            "gpt-oss-20b",
            "Qwen/Qwen2.5-7B-Instruct-AWQ",
            "deepseek-v2-lite",
            "resnet-50",
            "llama-3.1-9b",
            "",
            "/",
            "x.json",
            "x.yaml",
            "a/b/c",
            "-",
            "config.json",
        ]
    ),
    st.text(max_size=12),
)
HARDWARE = st.one_of(
    st.sampled_from(
        [
            "h100-sxm",
            "8xh200-sxm",
            "dgx-a100",
            "ascend-910b2",
            "rtx-3090,rtx-4090",
            "l4",
            "v100",
            "ascend-910a",
            "tpu-v5e",
            "0xh100-sxm",
            "1000000xl4",
            "2xdgx-a100",
            "l4,,l4",
            "l4," * 40,
            "",
            "h100",
            "-",
            "3x3xl4",
            "gaudi2",
        ]
    ),
    st.text(max_size=12),
)
COUNTED = (
    "--batch", "--isl", "--osl", "--devices", "-tp", "-pp", "-dp", "-ep", "-dcp", "--pp-partition", "--max-model-len",
    "--max-num-seqs", "--max-num-batched-tokens", "--gpu-memory-utilization", "--block-size", "--kv-cache-memory-bytes",
    "--num-gpu-blocks-override", "--cpu-offload-gb", "--swap-space", "--speculative-tokens", "--acceptance-length",
    "--used-by-others", "--chunked-prefill", "--random-input-len", "--mem-fraction-static",
)  # fmt: skip
NAMED = ("--dtype", "-q", "--kv-cache-dtype", "--runtime", "--calibration", "--catalog")
SWITCHES = (
    "--enforce-eager",
    "--enable-expert-parallel",
    "--json",
    "--csv",
    "--no-such-flag",
    "--markdown",
    "--tp8",
    "-tp8",
)
LINES = (
    "vllm serve Qwen/Qwen3-8B -tp 2", "vllm serve", "--tp 4", "python -m sglang.launch_server --model-path x --tp 2",
    '{"BackendConfig": {}}', "vllm serve 'open quote", "docker run vllm/vllm-openai --model Qwen/Qwen3-8B", "\x00",
)  # fmt: skip
AXES = (
    "tp",
    "batch",
    "isl",
    "quantization",
    "kv",
    "hardware",
    "util",
    "model",
    "nope",
    "chunked_prefill",
    "enforce-eager",
    "",
)


@st.composite
def axis(draw: st.DrawFn) -> str:
    values = ",".join(draw(st.lists(st.one_of(NUMBERS, NAMES), min_size=0, max_size=2)))
    return draw(st.sampled_from([f"{draw(st.sampled_from(AXES))}={values}", values, "batch=1:8:x2", "isl=1:9000:4000"]))


@st.composite
def command_line(draw: st.DrawFn) -> list[str]:
    command = draw(st.sampled_from(["estimate", "memory", "whatif", "sweep", "roofline", "instances", "allreduce"]))
    words = [command]
    words += [draw(MODELS)] if draw(st.integers(0, 9)) else []
    words += [draw(HARDWARE)] if draw(st.integers(0, 9)) else []
    for flag in draw(st.lists(st.sampled_from(COUNTED), max_size=3, unique=True)):
        words += [flag, draw(NUMBERS)]
    if draw(st.booleans()):
        words += [draw(st.sampled_from(NAMED)), draw(NAMES)]
    words += draw(st.lists(st.sampled_from(SWITCHES), max_size=1))
    if not draw(st.integers(0, 5)):
        words += ["--from", draw(st.one_of(st.sampled_from(LINES), st.text(max_size=30)))]
    if command in ("whatif", "sweep"):
        for _ in range(draw(st.integers(0, 2))):
            words += ["--vary", draw(axis())]
    if command == "roofline" and "--csv" not in words:
        words.append("--json")
    return words


SIZES_OF_A_LAYOUT = st.sampled_from(["1", "2", "3", "4", "8", "16", "61", "64", "128"])
TOKENS = st.one_of(
    st.sampled_from(["1", "15", "16", "17", "511", "4096", "32k", "131072", "200000"]), st.integers(1, 10**7).map(str)
)
NEARLY_RIGHT = {
    "--batch": TOKENS,
    "--isl": TOKENS,
    "--osl": TOKENS,
    "-tp": SIZES_OF_A_LAYOUT,
    "-pp": SIZES_OF_A_LAYOUT,
    "-dp": SIZES_OF_A_LAYOUT,
    "-ep": SIZES_OF_A_LAYOUT,
    "-dcp": SIZES_OF_A_LAYOUT,
    "--devices": SIZES_OF_A_LAYOUT,
    "--max-model-len": TOKENS,
    "--max-num-seqs": TOKENS,
    "--max-num-batched-tokens": TOKENS,
    "--gpu-memory-utilization": st.floats(0.001, 1.0).map(repr),
    "--block-size": TOKENS,
    "--kv-cache-memory-bytes": st.sampled_from(["1", "1KiB", "1GiB", "20GiB", "70GB", "1000TB"]),
    "--num-gpu-blocks-override": TOKENS,
    "--cpu-offload-gb": st.floats(0, 1e6).map(repr),
    "--swap-space": st.floats(0, 1e6).map(repr),
    "--speculative-tokens": SIZES_OF_A_LAYOUT,
    "--acceptance-length": st.sampled_from(["1", "1.5", "2", "4"]),
    "--used-by-others": st.sampled_from(["0", "1GiB", "40GiB", "1TiB"]),
    "--chunked-prefill": st.sampled_from(["on", "off"]),
    "--kv-cache-dtype": st.sampled_from(["auto", "fp8", "int8", "fp32", "int4", "fp8_ds_mla", "nvfp4"]),
    "--dtype": st.sampled_from(["auto", "bf16", "fp16", "fp32", "half"]),
    "-q": st.sampled_from(["none", "fp8", "w8a8", "awq", "gptq_marlin", "q4_k_m", "nvfp4", "mxfp4", "awq-int4-g32"]),
    "--runtime": st.sampled_from(
        ["vllm-0.6.3", "sglang-0.5", "mindie-2.1", "pytorch-eager", "ideal", "vllm-ascend-0.9"]
    ),
    "--calibration": st.sampled_from(["prior", "ideal", "hard-bound"]),
    "--pp-partition": st.sampled_from(["16,16", "1,31", "30,31", "48", "12,12,12,12"]),
}


@st.composite
def nearly_right_line(draw: st.DrawFn) -> list[str]:
    command = draw(st.sampled_from(["estimate", "memory", "sweep"]))
    models = ["llama-3.1-8b", "deepseek-v3", "qwen3-30b-a3b", "qwen3-next-80b-a3b", "gpt-oss-20b", "deepseek-v2-lite"]
    cards = ["h100-sxm", "8xh200-sxm", "dgx-a100", "4xascend-910b2", "rtx-3090,rtx-4090", "l4", "v100", "16xb200-sxm"]
    words = [command, draw(st.sampled_from(models)), draw(st.sampled_from(cards))]
    for flag in draw(st.lists(st.sampled_from(list(NEARLY_RIGHT)), max_size=6, unique=True)):
        words += [flag, draw(NEARLY_RIGHT[flag])]
    words += draw(st.lists(st.sampled_from(["--enforce-eager", "--enable-expert-parallel"]), max_size=1))
    if command == "sweep":
        words += ["--vary", draw(st.sampled_from(["batch=1,7,512", "isl=1,100000", "tp=1,2", "kv=auto,fp8"]))]
    return [*words, "--json"]


def checked(ran: Any, words: list[str]) -> None:
    """Check what holds for every run."""
    assert ran.code in (0, 1, 2), words
    assert "Traceback" not in ran.err + ran.out, words
    if ran.code == 0:
        assert ran.out, words
    else:
        assert ran.err.startswith("perfmodel: "), words
        assert len(ran.err) < 20_000, words
    if ran.code == 2:
        assert ran.out == "", words
    if "--json" in words and ran.out:
        json.loads(ran.out, parse_constant=lambda text: pytest.fail(f"{text} in {words}"))


@FEW
@given(words=command_line())
def test_no_command_line_breaks_it(run_cli: Callable[..., Any], words: list[str]) -> None:
    checked(run_cli(*words), words)


@FEW
@given(words=nearly_right_line())
def test_no_deployment_breaks_it(run_cli: Callable[..., Any], words: list[str]) -> None:
    ran = run_cli(*words)
    checked(ran, words)
    if ran.code == 0 and words[0] == "estimate":
        data = json.loads(ran.out)
        assert 0 < data["ttft_s_low"] <= data["ttft_s"] <= data["ttft_s_high"], words
        if "hard-bound" not in words:  # which may count on more than the datasheet promises
            assert 0 < data["tpot_floor_s"] <= data["tpot_s"] * (1 + 1e-9), words
        assert data["memory"]["starts"], words
        assert 1 <= data["batch_running"] <= data["batch"], words


SIZES = st.one_of(
    st.none(),
    st.integers(-2, 70),
    st.sampled_from([128, 4096, 14336, 128256, 10**9, 10**30, 2.5, "4096", True, [], {}, float("inf"), float("nan")]),
)
KEYS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
    "vocab_size", "max_position_embeddings", "num_experts", "num_experts_per_tok", "moe_intermediate_size",
    "n_shared_experts", "first_k_dense_replace", "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "sliding_window",
    "n_routed_experts", "num_nextn_predict_layers", "tie_word_embeddings", "quantization_config", "layer_types",
    "torch_dtype", "model_type", "architectures", "text_config", "rope_scaling", "linear_num_value_heads",
)  # fmt: skip
SOUND = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
ANY = st.recursive(
    st.one_of(
        SIZES, st.text(max_size=8), st.sampled_from(["awq", "fp8", "deepseek_v3", "bfloat16", "sliding_attention"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)),
    max_leaves=8,
)


@FEW
@given(changes=st.dictionaries(st.sampled_from(KEYS), ANY, max_size=5), sound=st.booleans(), command=st.integers(0, 3))
def test_no_config_breaks_it(
    run_cli: Callable[..., Any], tmp_path: Path, changes: dict[str, Any], sound: bool, command: int
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**(SOUND if sound else {}), **changes}), encoding="utf-8")
    words = (
        ["estimate", str(file), "h100-sxm", "--json"],
        ["memory", str(file), "2xl4", "--json"],
        ["models", "show", str(file), "--json"],
        ["models", "add", str(file), "--force", "--catalog", str(tmp_path)],
    )[command]
    checked(run_cli(*words), [*words, json.dumps(changes)])


@FEW
@given(
    content=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
)
def test_no_file_breaks_it(run_cli: Callable[..., Any], tmp_path: Path, content: bytes) -> None:
    for suffix in ("json", "yaml", "sh"):
        file = tmp_path / f"file.{suffix}"
        file.write_bytes(content)
        for words in (
            ["hardware", "check", str(file)],
            ["estimate", str(file), "l4", "--json"],
            ["estimate", "l4", "--from", str(file), "--json"],
        ):
            checked(run_cli(*words), [*words, repr(content)])


LINES_OF_A_CARD = (
    (Path(__file__).resolve().parents[2] / "hardware" / "l4.yaml").read_text(encoding="utf-8").splitlines()
)


@FEW
@given(
    line=st.integers(0, len(LINES_OF_A_CARD) - 1),
    new=st.one_of(st.just(""), st.text(max_size=20), NUMBERS.map(lambda text: f"tdp: {text}")),
)
def test_no_device_file_breaks_it(run_cli: Callable[..., Any], tmp_path: Path, line: int, new: str) -> None:
    file = tmp_path / "card.yaml"
    text = "\n".join([*LINES_OF_A_CARD[:line], new, *LINES_OF_A_CARD[line + 1 :]])
    file.write_bytes(text.encode("utf-8", "replace"))
    words = ["hardware", "check", str(file)]
    checked(run_cli(*words), [*words, text])
