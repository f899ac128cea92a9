"""`perfmodel precision`: rounding, drift and its cost, quality beside speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli_parts import Run, answer


def results(path: Path, model: str, score: float, perplexity: float) -> Path:
    """A results file of lm-evaluation-harness with made-up scores."""
    document = {
        "results": {
            "gsm8k": {"exact_match,strict-match": score, "exact_match_stderr,strict-match": 0.01},
            "wikitext": {"word_perplexity,none": perplexity, "word_perplexity_stderr,none": "N/A"},
        },
        "n-shot": {"gsm8k": 5},
        "config": {"model": "vllm", "model_args": f"pretrained={model},dtype=auto"},
        "lm_eval_version": "0.4.9",
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    return [
        str(results(tmp_path / "bf16.json", "Qwen/Qwen2.5-7B-Instruct", 0.80, 8.9)),
        str(results(tmp_path / "awq.json", "Qwen/Qwen2.5-7B-Instruct-AWQ", 0.78, 9.2)),
        str(results(tmp_path / "gptq.json", "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", 0.70, 9.9)),
    ]


def test_rounding_by_format(run_cli: Run) -> None:
    rows = answer(run_cli, "precision", "rope", "--dtype", "fp16,bf16", "--positions", "2048,32768")["rows"]
    assert [(row["dtype"], row["position_tokens"]) for row in rows] == [
        ("fp16", 2048), ("fp16", 32768), ("bf16", 2048), ("bf16", 32768),
    ]  # fmt: skip
    assert rows[0]["rounding_mean_frac"] == pytest.approx(1.761e-4, rel=1e-3)  # 2^-12 x 0.7213
    assert "65,536" in run_cli("precision", "rope").out


def test_drift_and_what_fp32_costs(run_cli: Run, tmp_path: Path) -> None:
    picture = tmp_path / "d.png"
    found = answer(
        run_cli, "precision", "drift", "deepseek-v2-lite", "ascend-910b2", "--points", "5=0.087,12=0.132",
        "--threshold", "0.15", "--plot", str(picture),
    )  # fmt: skip
    depths = {law["law"]: law["depth_layers"] for law in found["laws"]}
    assert depths["drift_linear"] == pytest.approx(12 + 0.018 / (0.045 / 7))  # 14.8
    assert [step["step"] for step in found["fallback"]] == ["prefill step", "decode step"]
    for step in found["fallback"]:
        assert 0 < step["fused_extra_s"] < step["apart_extra_s"] < 0.1 * step["step_s"]
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_quality_beside_speed(run_cli: Run, files: list[str], tmp_path: Path) -> None:
    picture = tmp_path / "q.png"
    rows = answer(
        run_cli, "precision", "quality", *files, "--on", "a100-80gb-sxm", "--metric", "gsm8k", "--plot", str(picture)
    )["rows"]
    assert [row["quantization"] for row in rows] == ["none", "awq-int4-g128", "gptq-int4-g128"]
    assert [row["on_front"] for row in rows] == [True, True, False], "GPTQ is no faster than AWQ here, and worse"
    assert rows[1]["weight_bytes"] < 0.5 * rows[0]["weight_bytes"]
    assert picture.read_bytes()[:4] == b"\x89PNG"
    by_perplexity = answer(run_cli, "precision", "quality", *files, "--on", "a100-80gb-sxm", "--metric", "wikitext")
    assert by_perplexity["rows"][0]["on_front"], "the lowest perplexity is on the front"
    assert "front" in run_cli("precision", "quality", *files, "--on", "a100-80gb-sxm").out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("rope", "--dtype", "fp7"), "fp7"),
        (("rope", "--positions", "0"), "positions"),
        (("rope", "--json", "--csv"), "two formats"),
        (("drift", "llama-3.1-8b", "l4", "--points", "5", "--threshold", "1"), "layer=error"),
        (("drift", "llama-3.1-8b", "l4", "--points", "5=1,6=2", "--threshold", "no"), "--threshold"),
        (("drift", "llama-3.1-8b", "l4", "--points", "5=1", "--threshold", "1"), "row"),
        (("quality", "no-such-file.json", "--on", "l4"), "no-such-file"),
    ],
)
def test_bad_input_is_named(run_cli: Run, arguments: tuple[str, ...], word: str) -> None:
    ran = run_cli("precision", *arguments)
    assert ran.code == 2
    assert word in ran.err
    assert "Traceback" not in ran.err


def test_a_score_that_the_files_do_not_share(run_cli: Run, files: list[str]) -> None:
    ran = run_cli("precision", "quality", *files, "--on", "l4", "--metric", "arc")
    assert ran.code == 2
    assert "gsm8k:exact_match:strict-match" in ran.err
