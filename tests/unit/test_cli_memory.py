"""`memory`: the waterfall, the inverse questions, and what is said where a model does not fit."""

from __future__ import annotations

import json

from tests.unit.cli_parts import Run, answer


def test_memory_waterfall_is_labelled_and_grouped(run_cli: Run) -> None:
    ran = run_cli("memory", "deepseek-v3", "h200-sxm", "--devices", "8", "-tp", "8", "--max-model-len", "32768")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert sum("weights" in line and line.startswith("- ") for line in lines) == 1
    for words in (
        "each of 8 ranks",
        "experts 76.",
        "= KV pool",
        "Starts",
        "yes",
        "tokens in",
        "Concurrency",
        "captured graphs",
    ):
        assert words in ran.out


def test_memory_backwards(run_cli: Run) -> None:
    data = answer(
        run_cli, "memory", "qwen3-8b", "l4", "--max-model-len", "4k", "--at", "2000", "--want-kv-tokens", "10k"
    )
    assert data["concurrency_at_length"] > 1
    assert 0 < data["utilization_for_tokens"] <= data["smallest_utilization"] + 0.5
    assert data["largest_context_tokens"] >= 4000


def test_memory_that_does_not_fit_shows_the_waterfall_and_what_would(run_cli: Run) -> None:
    ran = run_cli("memory", "deepseek-v3", "ascend-910b4", "--devices", "8", "--max-model-len", "4096")
    assert ran.code == 1
    assert "! short by" in ran.out
    assert "- weights" in ran.out
    assert "would fit: " in ran.err
    assert "are short" in ran.err
    ran = run_cli("memory", "deepseek-v3", "ascend-910b4", "--devices", "8", "--max-model-len", "4096", "--json")
    assert ran.code == 1
    data = json.loads(ran.out)
    assert data["starts"] is False
    assert data["would_fit"]


def test_memory_says_why_a_longer_context_starts(run_cli: Run) -> None:
    """vLLM V0 cuts prompts above 32768 tokens: 29000 does not start on an RTX 3090 and 35000 does."""
    words = ("memory", "llama-3.1-8b", "rtx-3090", "--runtime", "vllm-0.6.3", "--max-model-len")
    refused, started = run_cli(*words, "29000"), run_cli(*words, "35000")
    assert (refused.code, started.code) == (1, 0)
    assert "cuts prompts over steps" in refused.out
    assert "cuts prompts over steps" not in started.out
