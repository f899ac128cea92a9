"""Bad input: one clear message on stderr, exit code 2 (1 for "does not fit"), no traceback, nothing like a result."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.unit.cli_parts import Run

ASK = ("estimate", "llama-3.1-8b", "a100-80gb-sxm")
SHIPPED = Path(__file__).resolve().parents[2] / "hardware" / "l4.yaml"


def refused(run_cli: Run, *arguments: str, code: int = 2) -> str:
    ran = run_cli(*arguments)
    assert ran.code == code, ran
    assert ran.out == ""
    assert ran.err.startswith("perfmodel: ")
    assert "Traceback" not in ran.err
    message: str = ran.err
    return message


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--batch", "nan"), "--batch: got 'nan', expected a whole number"),
        (("--batch", "0"), "--batch: got 0"),
        (("--batch", "-5"), "--batch: got -5"),
        (("--batch", "2.5"), "--batch: got '2.5'"),
        (("--batch", ""), "--batch: got ''"),
        (("--isl", "inf"), "--isl: got 'inf'"),
        (("--isl", "1e30"), "--isl: got '1e30'"),
        (("--isl", "9" * 400), "--isl: got"),
        (("--isl", "200000"), "expected at most 131072, the longest context of the model"),
        (("--osl", "0"), "--osl: got 0"),
        (("--isl", "2000", "--max-model-len", "1000"), "expected at most 1000, the --max-model-len"),
        (("--max-model-len", "4.5K"), "--max-model-len"),
        (("--gpu-memory-utilization", "90"), "Write 0.9."),
        (("--gpu-memory-utilization", "0"), "expected a fraction above 0"),
        (("--gpu-memory-utilization", "x"), "--gpu-memory-utilization: got 'x'"),
        (("--devices", "0"), "--devices: got 0"),
        (("-n", "99999999999999999999"), "--devices: got"),
        (("--speculative-tokens", "3", "--acceptance-length", "0"), "an acceptance length from 1"),
        (("--speculative-tokens", "3", "--acceptance-length", "nan"), "an acceptance length from 1"),
        (("--acceptance-length", "2"), "Give --speculative-tokens too."),
        (("--kv-cache-dtype", "fp7"), "unknown KV cache dtype 'fp7'"),
        (("--dtype", "int3"), "expected auto, bf16, fp16 or fp32"),
        (("-q", "nonsense"), "one of awq-int4-g128"),
        (("--runtime", "nonsense"), "There are "),
        (("--runtime", "vllm-0.12"), "did you mean vllm-"),
        (("--calibration", "nonsense"), "unknown calibration"),
        (("--calibration", "nonsense.yaml"), "No such file"),
        (("--catalog", "/nonexistent"), "does not exist"),
        (("--cpu-offload-gb", "nan"), "expected a size in GiB"),
        (("--cpu-offload-gb", "-3"), "expected a size in GiB"),
        (("--used-by-others", "5lightyears"), "expected a size in bytes"),
        (("--kv-cache-memory-bytes", "0"), "--kv-cache-memory-bytes: got 0"),
        (("-tp", "3"), "expected a divisor of the 32 attention heads. Try one of"),
        (("-tp", "0"), "--tp: got 0"),
        (("-tp", "4097"), "--tp: got 4097"),
        (("-tp", "x"), "--tp: got 'x'"),
        (("-tp", "2", "--devices", "3"), "expected 2 devices"),
        (("-pp", "64"), "expected at most 32"),
        (("-dcp", "3"), "expected a divisor of tp"),
        (("--pp-partition", "3,x"), "whole numbers parted by commas"),
        (("--pp-partition", "30,2"), "one a stage"),
        (("-pp", "2", "--pp-partition", "30,3"), "add up to 32"),
        (("--chunked-prefill", "maybe"), "expected true or false"),
        (("--json", "--csv"), "two formats are asked for"),
        (("--json", "--markdown"), "two formats are asked for"),
        (("--least-share", "x"), "expected a number from 0 to 1"),
        (("--nonsense",), "--nonsense"),
        (("extra",), "unexpected extra argument"),
        (("--isl",), "requires an argument"),
        (("--from", ""), "an empty text"),
        (("--from", "ls -la"), "no launch line found"),
        (("--from", "vllm serve --tp two"), "tp"),
    ],
)
def test_flags_that_cannot_be_used(run_cli: Run, flags: tuple[str, ...], says: str) -> None:
    assert says in refused(run_cli, *ASK, *flags)


def test_all_faults_are_told_at_once(run_cli: Run) -> None:
    told = refused(run_cli, *ASK, "--batch", "nan", "--isl", "1e30", "-tp", "x", "--gpu-memory-utilization", "90")
    assert all(flag in told for flag in ("--batch", "--isl", "--tp", "--gpu-memory-utilization"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("estimate",), "no model and no hardware are named"),
        (("estimate", "llama-3.1-8b"), "no hardware is named"),
        (("estimate", "--from", "vllm serve Qwen/Qwen3-8B"), "no hardware is named"),
        (("estimate", "h100-sxm", "--from", "vllm serve -tp 2"), "no model is named"),
        (("estimate", "llama-3.1-9b", "l4"), "did you mean llama-3.1-8b"),
        (("estimate", "llama-3.1-8b", "a100-80gb-smx"), "did you mean a100-80gb-sxm"),
        (("estimate", "llama-3.1-8b", ""), "unknown device"),
        (("estimate", "llama-3.1-8b", ","), "unknown device"),
        (("estimate", "llama-3.1-8b", "0xl4"), "number of devices"),
        (("estimate", "llama-3.1-8b", "l4,l4,l4", "-pp", "2"), "one for each stage"),
        (("estmate",), "Did you mean 'estimate'"),
        (("memory", "resnet-50", "l4"), "expected a language model"),
        (("memory", "llama-3.1-8b", "l4", "--at", "nan"), "--at: got 'nan'"),
        (("memory", "llama-3.1-8b", "l4", "--want-kv-tokens", "0"), "--want-kv-tokens: got 0"),
        (("whatif", "llama-3.1-8b", "l4"), "nothing to vary"),
        (("whatif", "llama-3.1-8b", "l4", "--vary", "tpp=1,2"), "did you mean tp"),
        (("whatif", "llama-3.1-8b", "l4", "--vary", "tp=a"), "expected a whole number"),
        (("whatif", "llama-3.1-8b", "l4", "--vary", "devices=nan,2"), "expected a whole number"),
        (("whatif", "llama-3.1-8b", "l4", "--vary", "tp=1:100000"), "Use `perfmodel sweep`."),
        (("whatif", "llama-3.1-8b", "l4", "--vary", "quantization=zzz,yyy"), "unknown quantisation scheme 'zzz'"),
        (("sweep", "llama-3.1-8b", "l4"), "nothing to sweep"),
        (("sweep", "llama-3.1-8b", "l4", "--vary", "batch"), "an axis cannot be read"),
        (("sweep", "llama-3.1-8b", "l4", "--vary", "batch="), "an axis cannot be read"),
        (("sweep", "llama-3.1-8b", "l4", "--vary", "batch=1,x"), "something else than numbers"),
        (("sweep", "llama-3.1-8b", "l4", "--vary", "batch=0:10"), "whole numbers of at least 1"),
        (("sweep", "llama-3.1-8b", "l4", "--vary", "isl=nan"), "whole numbers of at least 1"),
        (("sweep", "llama-3.1-8b", "l4", "--vary", "batch=1:1e13"), "does not end"),
        (("sweep", "llama-3.1-8b", "l4", "--vary", "batch=1:9:x1"), "does not end"),
        (("sweep", "llama-3.1-8b", "l4", "--vary", "batch=1", "--vary", "batch=2"), "given twice"),
        (("sweep", "llama-3.1-8b", "l4", "--vary", "batch=1", "-o", "/nonexistent/x.csv"), "cannot be written"),
        (("sweep", "llama-3.1-8b", "l4", "--vary", "batch=1", "-o", "/"), "cannot be written"),
        (("roofline", "llama-3.1-8b", "l4", "-o", "/nonexistent/r.png"), "cannot be written"),
        (("roofline", "llama-3.1-8b", "l4", "-o", "r.gif"), "expected one of .png"),
        (("hardware", "show", "nope"), "unknown device or system"),
        (("hardware", "list", "--json", "--csv"), "two formats"),
        (("hardware", "check", "/nonexistent.yaml"), "No such file"),
        (("hardware", "check", "/"), "is a folder"),
        (("hardware", "check", "ascend-910b1x"), "ascend-910b1"),
        (("models", "show", "nope"), "unknown model"),
        (("fit", "/nonexistent.csv"), "cannot be fitted"),
    ],
)
def test_questions_that_make_no_sense(run_cli: Run, arguments: tuple[str, ...], says: str) -> None:
    assert says in refused(run_cli, *arguments)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.json", b""),
        ("binary.json", b"\x00\x01\xff\xfe"),
        ("broken.json", b'{"a": [1,'),
        ("list.json", b"[1, 2]"),
        ("text.json", b'"just text"'),
        ("null.json", b"null"),
        ("nan.json", b'{"hidden_size": NaN, "num_hidden_layers": Infinity}'),
        ("negative.json", b'{"hidden_size": -4096, "num_hidden_layers": 32, "num_attention_heads": 0}'),
        ("deep.json", b'{"a":' + b"[" * 5000 + b"1" + b"]" * 5000 + b"}"),
        ("empty.yaml", b""),
        ("broken.yaml", b"name: [1, 2\n"),
        ("binary.yaml", b"\xff\xd8\x00\x01"),
        ("list.yaml", b"- 1\n- 2\n"),
        ("other.yaml", b"kind: potato\nname: other\n"),
        ("tabs.yaml", b"name:\n\t- x\n"),
    ],
)
def test_files_that_are_none(run_cli: Run, tmp_path: Path, name: str, content: bytes) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    assert file.stem in refused(run_cli, "estimate", str(file), "l4")
    refused(run_cli, "hardware", "check", str(file))
    refused(run_cli, "hardware", "add", str(file), "--catalog", str(tmp_path))
    refused(run_cli, "models", "add", str(file), "--catalog", str(tmp_path))
    refused(run_cli, "estimate", "l4", "--from", str(file))
    if name.endswith(".yaml"):
        refused(run_cli, *ASK, "--calibration", str(file))
    assert not (tmp_path / "models").exists()
    assert not (tmp_path / "hardware").exists()


def test_folders_and_missing_files_are_no_models(run_cli: Run, tmp_path: Path) -> None:
    assert "config.json" in refused(run_cli, "estimate", str(tmp_path), "l4")
    assert "No such file" in refused(run_cli, "estimate", str(tmp_path / "none" / "config.json"), "l4")
    assert "No such file" in refused(run_cli, "estimate", str(tmp_path / "none.yaml"), "l4")
    assert "No such file" in refused(run_cli, "estimate", "l4", "--from", str(tmp_path / "none.sh"))


def _card(**changes: str) -> str:
    text = SHIPPED.read_text()
    text = re.sub(r"^(name|names|usual_system):.*\n", "", text, flags=re.MULTILINE)
    for old, new in changes.items():
        text = text.replace(old.replace("_", " "), new)
    return "name: mycard\n" + text


def test_hardware_faults_are_told_with_line_and_unit(run_cli: Run, tmp_path: Path) -> None:
    file = tmp_path / "card.yaml"
    file.write_text(_card(**{"121_TFLOP/s": "121 GiB"}) + "fo: 3\n")
    told = refused(run_cli, "hardware", "check", str(file))
    assert re.search(r"line \d+, matrix.rates", told)
    assert "'GiB' is no unit of flop/s; expected one such as TFLOP/s" in told
    assert "fo: got 3, expected no such key" in told
    file.write_text(_card(**{"121_TFLOP/s": "-5 TFLOP/s"}))
    assert "a finite number >= 0" in refused(run_cli, "hardware", "check", str(file))


def test_device_without_a_link_serves_alone_only(run_cli: Run, tmp_path: Path) -> None:
    file = tmp_path / "card.yaml"
    file.write_text(_card())
    home = str(tmp_path / "mine")
    assert run_cli("hardware", "add", str(file), "--catalog", home).code == 0
    assert run_cli("estimate", "llama-3.1-8b", "mycard", "--catalog", home).code == 0
    for command in ("estimate", "roofline"):
        told = refused(run_cli, command, "llama-3.1-8b", "mycard", "-tp", "2", "--catalog", home, "--json")
        assert "how mycard is wired is not known" in told


def test_names_cannot_leave_the_catalogue(run_cli: Run, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 100,
                                "intermediate_size": 128, "architectures": ["LlamaForCausalLM"]}))  # fmt: skip
    told = refused(run_cli, "models", "add", str(file), "--name", "../x", "--catalog", str(tmp_path / "mine"))
    assert "--name: got '../x'" in told


def test_places_that_cannot_be_written(run_cli: Run, tmp_path: Path) -> None:
    file = tmp_path / "card.yaml"
    file.write_text(_card())
    assert "Not a directory" in refused(run_cli, "hardware", "add", str(file), "--catalog", str(file))


@pytest.mark.parametrize(
    "flags",
    [
        ("--used-by-others", "500GiB"),
        ("--kv-cache-memory-bytes", "900GiB"),
        ("--num-gpu-blocks-override", "1"),
        ("--num-gpu-blocks-override", "99999999999"),
        ("--gpu-memory-utilization", "0.01"),
    ],
)
def test_what_does_not_fit_is_a_no(run_cli: Run, flags: tuple[str, ...]) -> None:
    told = refused(run_cli, *ASK, *flags, code=1)
    assert "does not fit on" in told
    assert "-" not in re.findall(r"but (\S+) \S+ are free", told + "but 0 B are free")[0]
