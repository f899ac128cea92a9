"""Published runs with their figures: what the model explains within the stated tolerance, and what it does not.

A case that the model cannot explain stands here as "not explained" with the reason: a better law would turn it over,
and the test would say so. Figures are re-tabulated from the threads and pages named; none was used for a fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import pytest

from perfmodel.serving.arrivals import Trace, fixed_lengths, poisson_arrivals, simultaneous_arrivals
from perfmodel.serving.clock import FixedClock
from perfmodel.serving.engine import ServingSetup, simulated
from perfmodel.serving.metrics import serving_result
from perfmodel.serving.scheduler import SchedulerLimits
from perfmodel.serving.steady_case import SteadyCase, steady_case
from perfmodel.specs.catalogue import Catalogue, builtin_home
from perfmodel.specs.deployment import Deployment
from perfmodel.specs.setup import Speculation
from perfmodel.step.answer import answer_to
from perfmodel.step.question import Case, Question, case_of
from perfmodel.work.params import param_counts

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


def _perf_10(runtime: str) -> float:
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
        lambda: [_perf_10("vllm-ascend-0.18")],
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


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_published_run(entry: Entry) -> None:
    found = verdict(entry.predicted(), entry.measured, entry.tol_rel)
    assert found == entry.verdict, (entry.predicted(), entry.measured)
    assert bool(entry.reason) == (entry.verdict == "not explained")
    assert entry.source


def test_perf_01_floor_and_bandwidth() -> None:
    """15.1 GB of weights at 3.35 TB/s are 4.5 ms; 7.28 ms measured is 0.62 of the bandwidth."""
    floor = answer_to(
        case("qwen3-8b", "h100-sxm", "vllm-0.11", isl=233.0, osl=221.0), ideal=CATALOGUE.calibration("ideal")
    )
    assert 1e3 * floor.figures["tpot_floor_s"].value == pytest.approx(4.5, rel=0.05)
    assert pytest.approx(0.62, rel=0.05) == 4.5 / 7.28


def test_perf_03_memory_is_the_limit_on_both() -> None:
    for device in ("h100-sxm", "a100-80gb-sxm"):
        assert steady("qwen3-32b", device, "vllm-0.11", FLOOD, isl=4000.0, osl=200.0).one.kv_limited


def test_perf_05_nothing_counted_comes_near() -> None:
    """Sound words about 122.7 ms: the floor is a tenth of it, so bytes and arithmetic are not the cause."""
    one = case("qwen3-30b-a3b", "ascend-910b3", "vllm-ascend-0.9", n=2, **SHAREGPT)
    floor = answer_to(one, ideal=CATALOGUE.calibration("ideal")).figures["tpot_floor_s"].value
    assert 1e3 * floor < 0.1 * 122.7
    assert pytest.approx(3.84, rel=0.02) == 341.5 / 88.95


def test_perf_06_intervals_are_chunks_of_ten_tokens() -> None:
    """ITL is ten times TPOT at any load: --stream-interval 10. Rates follow from Little's law."""
    tpot, itl, users = (12.8, 17.2, 25.6, 34.6), (127.4, 170.9, 254.3, 344.8), (8, 16, 32, 64)
    assert [i / t for i, t in zip(itl, tpot, strict=True)] == pytest.approx([9.95, 9.94, 9.93, 9.97], rel=0.02)
    e2e_s = 0.4231 + 1023 * 34.6e-3
    assert users[-1] * 1024 / e2e_s / 8 == pytest.approx(223.6, rel=0.05)


def test_perf_07_bandwidth_and_growth() -> None:
    """(72.7 - 1.25)e9 x 2 bytes on two cards at 3.35 TB/s: 21.3 ms, 0.69 of the measured step."""
    counts = param_counts(CATALOGUE.model("qwen2.5-72b").model)
    read = (counts.total - 152064 * 8192) * 2.0 / 2
    assert 1e3 * read / 3.35e12 == pytest.approx(21.3, rel=0.01)
    assert read / 3.35e12 / 30.9e-3 == pytest.approx(0.69, rel=0.03)
    short, long = (
        tpot_ms(steady("qwen2.5-72b", "h100-sxm", "vllm-0.11", 1.0, isl=isl, **QWEN72)) for isl in (128.0, 8192.0)
    )
    rounding_ms = 0.05  # 30.9 and 31.3 are printed with one digit
    assert 0.5 * 0.4 - rounding_ms <= long - short <= 1.5 * 0.4 + rounding_ms


def test_perf_08_identity() -> None:
    assert pytest.approx(26.84, rel=0.02) == 200 / (3.345 + 199 * 0.02063)


def test_perf_09_saturates_between_4_and_16() -> None:
    """Qwen2.5-VL-7B on one 910B: 109 tokens out a request (109.2 tokens/s at 1 request/s); input lengths not stated.

    That the rate falls beyond its peak (673.5 to 557.5 tokens/s) is not explained: the model knows no thrashing.
    """
    one = case("qwen2.5-7b", "ascend-910b4", "vllm-ascend-0.9", isl=1024.0, osl=109.0)
    found = steady_case(one, requests_per_s=np.array([4.0, 16.0]))
    assert np.asarray(found.one.stable).tolist() == [1.0, 0.0]
    beyond = steady_case(one, requests_per_s=np.array([16.0, 1000.0])).one.output_tokens_per_s
    assert np.diff(np.asarray(beyond)) == pytest.approx(0.0, abs=1e-6)


def test_perf_10_version_matters() -> None:
    assert abs(_perf_10("vllm-ascend-0.9") / _perf_10("vllm-ascend-0.18") - 1) > 0.1


def test_perf_11_identities() -> None:
    """100 prompts of 1,024 tokens at 791.73/s; on average 95 in flight by Little's law."""
    assert pytest.approx(129.34, rel=0.01) == 100 * 1024 / 791.73
    e2e_s = 21.147 + 1023 * 0.09971
    assert 100 / 129.34 * e2e_s == pytest.approx(95, rel=0.03)


def test_perf_12_speculation_counts() -> None:
    """59,946 drafted tokens in 19,982 steps; 12,784 accepted: one token a step and what was accepted are all tokens."""
    n_draft = round(59946 / 19982)
    spec = Speculation(n_draft, 1 + n_draft * 0.2133)
    assert spec.n_draft == 3
    assert spec.acceptance_length == pytest.approx(1.64, rel=0.002)
    assert pytest.approx(1.638, rel=0.002) == 57.98 / 35.39
    assert spec.acceptance_length == pytest.approx(57.98 / 35.39, rel=0.003)
    assert 19982 * spec.acceptance_length == pytest.approx(32768, rel=0.001)
    assert pytest.approx(32766, rel=0.001) == 19982 + 12784


def test_perf_13_open_loop_concurrency() -> None:
    """200 requests of 200/128 tokens at 1 request/s: 0.944/s x (0.2155 + 127 x 0.09896) s = 12.1 in flight.

    The same from a simulation whose steps take what was measured.
    """
    assert pytest.approx(12.1, rel=0.05) == 200 / 211.9 * (0.2155 + 127 * 0.09896)
    assert pytest.approx(120.81, rel=0.005) == 200 * 128 / 211.9
    trace = Trace(
        poisson_arrivals(4000, requests_per_s=0.944, rng=np.random.default_rng(3)),
        fixed_lengths(4000, tokens=200),
        fixed_lengths(4000, tokens=128),
    )
    limits = SchedulerLimits(
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        max_model_len=512,
        n_blocks=100_000,
        block_tokens=16,
        chunked=True,
    )
    run = serving_result(simulated(trace, ServingSetup(limits=limits), FixedClock(98_960_000, 98_960_000)))
    assert run.checks.mean_in_system == pytest.approx(12.1, rel=0.1)


@pytest.mark.parametrize(("parallel", "mean_ttft_s", "tol_rel"), [(8, 3.94, 0.03), (16, 11.8, 0.02)])
def test_perf_14_slots_explain_the_plateau(parallel: int, mean_ttft_s: float, tol_rel: float) -> None:
    """Four slots at 520 tokens/s: a reply of 1,024 takes 7.88 s; whoever comes later waits for whole waves of four.

    The limit is max_num_seqs and not arithmetic, as the thread thought.
    """
    step_ns = round(1e9 * 4 / 520)
    assert 1024 * step_ns / 1e9 == pytest.approx(7.88, rel=0.01)
    trace = Trace(
        simultaneous_arrivals(parallel), fixed_lengths(parallel, tokens=16), fixed_lengths(parallel, tokens=1024)
    )
    limits = SchedulerLimits(
        max_num_seqs=4, max_num_batched_tokens=8192, max_model_len=2048, n_blocks=10_000, block_tokens=16, chunked=True
    )
    run = serving_result(simulated(trace, ServingSetup(limits=limits), FixedClock(step_ns, step_ns)))
    assert run.spreads["ttft_s"].mean == pytest.approx(mean_ttft_s, rel=tol_rel)
    assert run.usage.limit_shares["max_num_seqs"] == pytest.approx(1 - 4 / parallel, abs=0.02)
    assert run.usage.limit_shares["kv_capacity"] == 0.0


def test_perf_15_fp8_should_gain_and_did_not() -> None:
    """5,409 tokens/s in bf16, 5,304 in fp8: at the roofline fp8 cannot be slower. The loss of 2 % is not explained."""
    gain = {
        calibration: rate(
            steady(
                "qwen3-8b",
                "h100-sxm",
                "vllm-0.10",
                64.0,
                isl=1024.0,
                osl=2048.0,
                quantization="fp8",
                calibration=calibration,
            )
        )
        / rate(steady("qwen3-8b", "h100-sxm", "vllm-0.10", 64.0, isl=1024.0, osl=2048.0, calibration=calibration))
        for calibration in ("auto", "ideal")
    }
    assert gain["ideal"] > 1.0
    assert gain["auto"] < gain["ideal"]  # scaled activations and attention in 16 bits eat part of it
    assert verdict([gain["auto"]], [5304 / 5409], 0.002) == "not explained"


def test_perf_16_kernels_reach_half_of_the_bandwidth() -> None:
    assert [rate_ / 270.0 for rate_ in (112.9, 159.4, 206.4)] == pytest.approx([0.42, 0.59, 0.76], rel=0.05)


def test_perf_17_rows_that_cannot_be_are_found_before_a_fit() -> None:
    """Prompt tokens/s of an 8B model in F16: two of four cards are slower than their own Q4, by more than half.

    2 x 7.5e9 flop a token; an A100 at 681 tokens/s would run at 3 % of its peak beside 35 % on the same page.
    """
    rows = {
        "a100-80gb-sxm": (5863.92, 681.47),
        "a100-80gb-pcie": (5800.48, 7504.24),
        "l40s": (5908.52, 2491.65),
        "rtx-4090": (6898.71, 9056.26),
    }
    flop = 2 * 7.5e9
    mfu = {n: flop * f16 / CATALOGUE.device(n).peak_flop_per_s("fp16") for n, (_, f16) in rows.items()}
    assert mfu["rtx-4090"] == pytest.approx(0.82, rel=0.05)
    assert mfu["a100-80gb-sxm"] == pytest.approx(0.033, rel=0.1)
    predicted = {
        name: 1024.0 / answer_to(case("llama-3-8b", name, "vllm-0.6.3", isl=1024.0, osl=1.0)).figures["ttft_s"].value
        for name in rows
    }
    odd = {name for name, (_, f16) in rows.items() if not 0.4 < f16 / predicted[name] < 2.5}
    assert odd == {"a100-80gb-sxm", "l40s"}


def test_perf_19_few_bytes_are_read() -> None:
    """5 B active parameters in MXFP4: reading them takes far less than the 11 ms of a measured step."""
    one = case("gpt-oss-120b", "a100-80gb-sxm", "vllm-0.11", isl=256.0, osl=256.0)
    floor = answer_to(one, ideal=CATALOGUE.calibration("ideal")).figures["tpot_floor_s"].value
    assert floor < 0.25 / 90


def test_perf_20_utilisation() -> None:
    """2 x 7.5e9 flop x 27,670 tokens/s over 989 Tflop/s: 0.42, attention not counted."""
    assert pytest.approx(27670, rel=0.001) == 4_064_944 / 146.91
    peak = CATALOGUE.device("h100-sxm").peak_flop_per_s("bf16")
    assert 2 * 7.5e9 * 27670 / peak == pytest.approx(0.42, rel=0.06)
