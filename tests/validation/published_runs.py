"""Published runs with their figures, as predicted and as measured: a row for each figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from perfmodel.serving.steady_case import SteadyCase, steady_case
from perfmodel.specs.catalogue import Catalogue, builtin_home
from perfmodel.specs.deployment import Deployment
from perfmodel.step.answer import answer_to
from perfmodel.step.question import Case, Question, case_of

CATALOGUE = Catalogue((builtin_home(),))
FLOOD = 2.0**20
"""Users who keep every slot taken: all requests sent at once."""
Verdict = Literal["explained", "not explained"]


def case(model: str, hardware: str, runtime: str, *, isl: float, osl: float, n: int = 1, **stated: Any) -> Case:
    calibration = stated.pop("calibration", "auto")
    question = Question(
        model=model, hardware=hardware, runtime=runtime, n_devices=n, batch=1.0, input_tokens=isl, output_tokens=osl,
        calibration=calibration, deployment=Deployment(tp=n if n > 1 else None, **stated),
    )  # fmt: skip
    return case_of(CATALOGUE, question)


@cache
def steady(model: str, hardware: str, runtime: str, users: float, **stated: Any) -> SteadyCase:
    return steady_case(case(model, hardware, runtime, **stated), concurrency=users)


def tpot_ms(found: SteadyCase) -> float:
    return 1e3 * float(found.one.tpot_s)


def ttft_ms(found: SteadyCase) -> float:
    return 1e3 * float(found.one.ttft_s)


def rate(found: SteadyCase) -> float:
    return float(found.one.output_tokens_per_s) * found.case.n_replicas


@dataclass(frozen=True, slots=True)
class Entry:
    """One figure of a case: how it is predicted, what was measured, how near is good, and what came out."""

    name: str
    source: str
    predicted: Callable[[], Sequence[float]]
    measured: tuple[float, ...]
    tol_rel: float
    verdict: Verdict = "explained"
    reason: str = ""


def verdict(predicted: Sequence[float], measured: Sequence[float], tol_rel: float) -> Verdict:
    errors = np.abs(np.asarray(predicted, dtype=float) / np.asarray(measured, dtype=float) - 1.0)
    return "explained" if bool(np.all(errors <= tol_rel)) else "not explained"


SHAREGPT = {"isl": 217.0, "osl": 202.0}
QWEN72 = {"osl": 128.0, "n": 2, "gpu_memory_utilization": 0.95}


def _perf_01(users: float) -> float:
    return tpot_ms(steady("qwen3-8b", "h100-sxm", "vllm-0.11", users, isl=233.0, osl=221.0))


def _perf_08() -> SteadyCase:
    awq: dict[str, Any] = {"quantization": "awq-int4-g128", "enforce_eager": True}
    return steady("qwen3-14b", "a100-80gb-sxm", "vllm-0.9", 1.0, isl=16000.0, osl=200.0, **awq)


def _perf_02(runtime: str, quantization: str | None = None) -> float:
    return rate(steady("qwen3-14b", "a100-80gb-sxm", runtime, FLOOD, quantization=quantization, **SHAREGPT))


def _perf_03(isl: float, osl: float) -> float:
    h100, a100 = (
        rate(steady("qwen3-32b", device, "vllm-0.11", FLOOD, isl=isl, osl=osl))
        for device in ("h100-sxm", "a100-80gb-sxm")
    )
    return h100 / a100


def _perf_04(isl: float, osl: float) -> float:
    return rate(steady("qwen3-235b-a22b", "h100-sxm", "vllm-0.11", FLOOD, isl=isl, osl=osl, n=8, quantization="none"))


def perf_10(runtime: str) -> float:
    return tpot_ms(steady("qwen3-32b", "ascend-910b4-1", runtime, 16.0, isl=2048.0, osl=512.0, n=2))


def _perf_18(n: int, users: float) -> float:
    found = steady(
        "qwen3.5-27b", "rtx-3090", "vllm-0.11", users, isl=256.0, osl=256.0, n=n, quantization="awq-int4-g128"
    )
    return rate(found)


def _perf_19(n: int) -> float:
    return 1e3 / tpot_ms(steady("gpt-oss-120b", "a100-80gb-sxm", "vllm-0.11", 1.0, isl=256.0, osl=256.0, n=n))


def _perf_20() -> float:
    found = steady("llama-3.1-8b", "h100-sxm", "sglang-0.5", FLOOD, isl=4065.0, osl=4.0)
    return float(found.one.requests_per_s) * 4065.0


ENTRIES = (
    Entry(
        "perf-01 TPOT of 1 to 8 users",
        "gpustack performance-lab qwen3-8b/h100-latency.md",
        lambda: [_perf_01(users) for users in (1.0, 2.0, 4.0, 8.0)],
        (7.28, 7.37, 7.38, 7.71),
        0.15,
    ),
    Entry(
        "perf-02 fp8 over bf16",
        "gpustack performance-lab qwen3-14b/a100.md",
        lambda: [_perf_02("vllm-0.11", "fp8") / _perf_02("vllm-0.11")],
        (0.85,),
        0.02,
        "not explained",
        "0.87: the direction is right (an A100 expands fp8 weights, and is bound by arithmetic), 3 % beside the mark",
    ),
    Entry(
        "perf-02 awq over bf16",
        "gpustack performance-lab qwen3-14b/a100.md",
        lambda: [_perf_02("vllm-0.11", "awq-int4-g128") / _perf_02("vllm-0.11")],
        (0.955,),
        0.02,
        "not explained",
        "the direction is right; expanding 4-bit weights is priced dearer than that engine's Marlin kernel does it",
    ),
    Entry(
        "perf-02 TensorRT-LLM over vLLM",
        "gpustack performance-lab qwen3-14b/a100.md",
        lambda: [_perf_02("tensorrt-llm-1.0") / _perf_02("vllm-0.11")],
        (1.47,),
        0.02,
        "not explained",
        "host times of both engines are those of Hopper and Blackwell hosts; nothing here tells them apart on an A100",
    ),
    Entry(
        "perf-03 H100 over A100, ShareGPT",
        "gpustack performance-lab qwen3-32b",
        lambda: [_perf_03(**SHAREGPT)],
        (1.36,),
        0.02,
        "not explained",
        "1.5: below the 3.2 of arithmetic, as measured; real lengths have a long tail that one mean length has not",
    ),
    Entry(
        "perf-03 H100 over A100, 4,000 in 200 out",
        "gpustack performance-lab qwen3-32b",
        lambda: [_perf_03(4000.0, 200.0)],
        (1.17,),
        0.02,
        "not explained",
        "1.4: the KV cache is the limit on both, so that preemption counts, which the closed form does not know",
    ),
    Entry(
        "perf-03 A100, 4,000 in 200 out",
        "gpustack performance-lab qwen3-32b/a100.md",
        lambda: [rate(steady("qwen3-32b", "a100-80gb-sxm", "vllm-0.11", FLOOD, isl=4000.0, osl=200.0))],
        (87.5,),
        0.15,
    ),
    Entry(
        "perf-04 4,000 in 200 out",
        "gpustack performance-lab qwen3-235b-a22b/h100.md",
        lambda: [_perf_04(4000.0, 200.0)],
        (931.0,),
        0.3,
    ),
    Entry(
        "perf-04 ShareGPT",
        "gpustack performance-lab qwen3-235b-a22b/h100.md",
        lambda: [_perf_04(**SHAREGPT)],
        (4015.0,),
        0.3,
        "not explained",
        "1,000 requests of unequal length fill the slots for a short time only: mostly beginning and end of a run",
    ),
    Entry(
        "perf-05 TPOT of 4 users",
        "gpustack performance-lab qwen3-30b-a3b/910b.md",
        lambda: [tpot_ms(steady("qwen3-30b-a3b", "ascend-910b3", "vllm-ascend-0.9", 4.0, n=2, **SHAREGPT))],
        (122.7,),
        0.3,
        "not explained",
        "38 ms: neither bytes nor flop nor counted launches come near; MindIE ran the same model 3.8 times as quick",
    ),
    Entry(
        "perf-06 TPOT of 8 to 64 users",
        "SemiAnalysisAI/InferenceX#870",
        lambda: [
            tpot_ms(steady("deepseek-r1", "h200-sxm", "sglang-0.5", u, isl=1024.0, osl=1024.0, n=8))
            for u in (8.0, 16.0, 32.0, 64.0)
        ],
        (12.8, 17.2, 25.6, 34.6),
        0.2,
    ),
    Entry(
        "perf-07 TPOT after 128 tokens",
        "tenstorrent/tt-inference-server#143",
        lambda: [tpot_ms(steady("qwen2.5-72b", "h100-sxm", "vllm-0.11", 1.0, isl=128.0, **QWEN72))],
        (30.9,),
        0.1,
    ),
    Entry(
        "perf-07 TTFT of 8,192 tokens",
        "tenstorrent/tt-inference-server#143",
        lambda: [ttft_ms(steady("qwen2.5-72b", "h100-sxm", "vllm-0.11", 1.0, isl=8192.0, **QWEN72))],
        (1063.8,),
        0.25,
    ),
    Entry(
        "perf-08 TPOT, eager",
        "vllm-project/vllm#20469",
        lambda: [tpot_ms(_perf_08())],
        (20.63,),
        0.3,
    ),
    Entry(
        "perf-08 TTFT of 16,000 tokens",
        "vllm-project/vllm#20469",
        lambda: [ttft_ms(_perf_08())],
        (3345.0,),
        0.25,
    ),
    Entry(
        "perf-10 TPOT under version 0.13",
        "vllm-project/vllm-ascend#5892",
        lambda: [perf_10("vllm-ascend-0.18")],
        (46.0,),
        0.25,
        "not explained",
        "60 ms: no profile stands for 0.13, and coefficients of this card are carried over from another 910B",
    ),
    Entry(
        "perf-11 tokens per second",
        "vllm-project/recipes DeepSeek-V3_2.md",
        lambda: [
            rate(
                steady(
                    "deepseek-v3.2", "h20", "vllm-0.19", 95.0, isl=2048.0, osl=1024.0, n=8, gpu_memory_utilization=0.95
                )
            )
        ],
        (791.73,),
        0.25,
        "not explained",
        "the predicted activation peak leaves a KV cache for fewer than the 95 requests that were in flight",
    ),
    Entry(
        "perf-16 datasheet tokens per second",
        "mit-han-lab/llm-awq#78",
        lambda: [
            answer_to(
                case(
                    "llama-2-7b",
                    "rtx-4090",
                    "gpt-fast",
                    isl=32.0,
                    osl=256.0,
                    quantization="awq-int4-g128",
                    calibration="ideal",
                )
            )
            .figures["decode_tokens_per_s"]
            .value
        ],
        (270.0,),
        0.05,
    ),
    Entry(
        "perf-18 second card for one user",
        "syv-ai/qwen38-27b-rtx3090#135",
        lambda: [_perf_18(2, 1.0) / _perf_18(1, 1.0)],
        (1.31,),
        0.05,
    ),
    Entry(
        "perf-18 second card for 64 users",
        "syv-ai/qwen38-27b-rtx3090#135",
        lambda: [_perf_18(2, 64.0) / _perf_18(1, 64.0)],
        (0.886,),
        0.01,
        "not explained",
        "the model sees one card's KV cache run out at 64 users, which two cards mend; the run had room on one card",
    ),
    Entry(
        "perf-19 second card",
        "vllm-project/vllm#22331",
        lambda: [_perf_19(2) / _perf_19(1)],
        (0.86,),
        0.02,
        "not explained",
        "1.3: what held that first release back at 90 tokens/s is neither bytes nor flop nor a known host time",
    ),
    Entry(
        "perf-20 prompt tokens per second",
        "sgl-project/sglang PR#1060",
        lambda: [_perf_20()],
        (4_064_944 / 146.91,),
        0.1,
        "not explained",
        "40,000: that is an engine of August 2024, and no measured step of it tells what its host took",
    ),
)
