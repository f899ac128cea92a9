"""Launch lines and configurations read back to the deployment that was priced."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from perfmodel.plan.demand import Demand, Targets
from perfmodel.plan.launch import launch_of
from perfmodel.plan.search import searched
from perfmodel.plan.space import Candidate, Space
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.launch.mindie_config import mindie_config
from perfmodel.specs.launch_line import deployment_from
from perfmodel.step.question import Question, case_of
from perfmodel.work.memory import memory_plan

DEMAND = Demand(input_tokens=1000, output_tokens=200, n_users=16)


def one_candidate(catalogue: Catalogue, model: str, hardware: str, runtime: str, **space: object) -> Candidate:
    sizes: dict[str, object] = {"pp": (1,), "kv_cache_dtypes": ("auto",), "quantizations": ("auto",)}
    wanted = Space(models=(model,), hardware=(hardware,), runtimes=(runtime,), **(sizes | space))  # type: ignore[arg-type]
    return searched(catalogue, wanted, DEMAND, Targets()).candidates[0]


@pytest.mark.parametrize(
    ("model", "hardware", "runtime", "space"),
    [
        ("llama-3.1-8b", "a100-80gb-sxm", "vllm-0.11", {"tp": (2,)}),
        ("llama-3.1-8b", "l40s", "vllm-0.11", {"tp": (1,), "quantizations": ("fp8",), "kv_cache_dtypes": ("fp8",)}),
        ("deepseek-v3", "h200-sxm", "vllm-0.11", {"tp": (1,), "dp": (8,)}),
        ("qwen3-32b", "ascend-910b3", "mindie-2.1", {"tp": (4,)}),
        ("qwen3-32b", "h100-sxm", "sglang-0.5", {"tp": (2,)}),
    ],
)
def test_the_line_starts_what_was_priced(
    catalogue: Catalogue, model: str, hardware: str, runtime: str, space: dict[str, object]
) -> None:
    one = one_candidate(catalogue, model, hardware, runtime, **space)
    launch = launch_of(catalogue, one)
    stated = deployment_from(launch.text)
    assert stated.unknown == ()
    question = Question(
        hardware=hardware, deployment=stated, input_tokens=1000, output_tokens=200, batch=1, runtime=runtime
    )
    case = case_of(catalogue, question)
    assert case.setup.layout == one.case.setup.layout
    assert case.setup.scheme == one.case.setup.scheme
    assert case.setup.kv_dtype == one.case.setup.kv_dtype
    plan = memory_plan(case.memory)
    assert (plan.kv_tokens, plan.limits.max_num_batched_tokens) == (
        one.plan.kv_tokens,
        one.plan.limits.max_num_batched_tokens,
    )


def test_the_shown_line_is_the_same_to_a_shell(catalogue: Catalogue) -> None:
    launch = launch_of(catalogue, one_candidate(catalogue, "llama-3.1-8b", "a100-80gb-sxm", "vllm-0.11", tp=(1,)))
    assert launch.shown.count("\\\n") == launch.text.count(" --")
    assert deployment_from(launch.shown).stated == deployment_from(launch.text).stated


def test_weights_that_need_a_checkpoint_are_said(catalogue: Catalogue) -> None:
    one = one_candidate(catalogue, "llama-3.1-8b", "a100-80gb-sxm", "vllm-0.11", tp=(1,), quantizations=("w8a8",))
    notes = " ".join(launch_of(catalogue, one).notes)
    assert "checkpoint" in notes
    assert "quality" in notes


def test_a_mindie_configuration_reads_back() -> None:
    stated = deployment_from(
        '{"ModelConfig": [{"modelWeightPath": "/w", "worldSize": 8, "tp": 4, "dp": 2, "npuMemSize": 12}], '
        '"maxSeqLen": 4096, "maxBatchSize": 100, "maxPrefillTokens": 8192, "maxIterTimes": 512}'
    )
    again = deployment_from(json.dumps(mindie_config(stated)))
    assert replace(again, ignored=(), notes=()) == replace(stated, ignored=(), notes=())
