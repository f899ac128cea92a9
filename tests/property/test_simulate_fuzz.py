"""Whatever features of a simulation are asked for together: it answers with books that balance, or refuses clearly."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.property.test_cli_fuzz import checked

BASES = (
    ("llama-3.1-8b", "a100-80gb-sxm"),
    ("llama-3.1-8b", "4xh100-sxm", "-dp", "4"),
    ("qwen3-30b-a3b", "2xh100-sxm", "-tp", "2"),
    ("gpt-oss-20b", "a100-80gb-sxm"),
    ("deepseek-v2-lite", "2xh100-sxm", "-dp", "2"),
)
FEATURES: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("--request-rate", "3"), ("--request-rate", "1e6"), ("--request-rate", "2", "--arrivals", "on-off")),
    (("--max-concurrency", "1"), ("--max-concurrency", "3"), ("--turns", "3", "--think-time", "0.1")),
    (("--length-spread", "1"), ("--lengths", "lognormal")),
    (("--prefix-len", "100"), ("--prefix-groups", "3", "--prefix-len", "17")),
    (("--order", "sjf"), ("--order", "priority", "--priorities", "0:1,1:3")),
    (("--preemption-mode", "swap", "--swap-space", "0.01"), ("--preemption-mode", "swap", "--swap-space", "4")),
    (("--max-queue-delay", "0"), ("--max-queue-delay", "5000", "--preferred-batch", "4")),
    (("--routing", "least-loaded"), ("--routing", "prefix"), ("--routing", "session")),
    (("--prefill-replicas", "2", "--decode-replicas", "2"), ("--separate-ranks",)),
    (("--instances-per-device", "2", "--gpu-memory-utilization", "0.45"),),
    (("--fail", "0@0.2"), ("--fail", "0@0.1+1,0@0.5+2", "--on-failure", "lose")),
    (("--policy", "static"), ("--policy", "prefill-first"), ("--policy", "mixed", "--max-num-batched-tokens", "64")),
    (("--max-num-seqs", "1"), ("--max-num-seqs", "3")),
    (("--num-gpu-blocks-override", "30"), ("--num-gpu-blocks-override", "150")),
    (("--speculative-tokens", "3", "--acceptance-length", "1.5"),),
    (("--warmup", "0.5"), ("--slo-ttft", "100")),
)


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    words = ["simulate", *draw(st.sampled_from(BASES))]
    sizes = draw(st.sampled_from([("16", "40"), ("400", "60"), ("300", "1"), ("1", "2")]))
    words += ["--isl", sizes[0], "--osl", sizes[1], "--num-prompts", draw(st.sampled_from(["1", "7", "30"]))]
    for i in sorted(draw(st.sets(st.integers(0, len(FEATURES) - 1), max_size=6))):
        words += draw(st.sampled_from(FEATURES[i]))
    return [*words, "--json"]


@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=lines())
def test_features_together_keep_the_books(run_cli: Callable[..., Any], words: list[str]) -> None:
    ran = run_cli(*words)
    checked(ran, words)
    if ran.code:
        return
    found = json.loads(ran.out)
    assert found["checks"]["hold"], words
    ended = found["n_completed"] + found["n_warmup"] + sum(found["n_refused"].values())
    assert ended == found["n_requests"], words
    assert abs(sum(found["limit_shares"].values()) - 1) < 1e-9, words
    for name in ("busy_frac", "kv_used_frac", "kv_used_most_frac"):
        assert 0 <= found[name] <= 1 + 1e-9, (name, words)
    if found["max_concurrency"]:
        assert found["checks"]["mean_in_system"] <= found["max_concurrency"] * (1 + 1e-9), words
    assert run_cli(*words).out == ran.out, words
