"""From names to a case: what is assumed is said, and what makes no sense is refused with one clear message."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import PerfmodelError, SpecError, UnknownNameError
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.deployment import Deployment
from perfmodel.step.answer import answer_to
from perfmodel.step.question import Case, Question, case_of
from perfmodel.work.memory import memory_plan


def case(catalogue: Catalogue, **changes: Any) -> Case:
    fields: dict[str, Any] = {"hardware": "a100-80gb-sxm", "model": "llama-3.1-8b"} | changes
    return case_of(catalogue, Question(**fields))


# --- defaults are said -----------------------------------------------------------------------------------------------


def test_every_default_is_listed(catalogue: Catalogue) -> None:
    found = case(catalogue)
    assert (found.workload.batch, found.workload.input_tokens, found.workload.output_tokens) == (1.0, 1024.0, 256.0)
    text = "\n".join(found.assumed)
    for word in ("batch 1", "input tokens 1024", "output tokens 256", "runtime vllm"):
        assert word in text
    stated = case(catalogue, batch=2.0, input_tokens=10.0, output_tokens=5.0, runtime="vllm-0.6.3")
    assert stated.assumed == ()


def test_the_fabric_that_was_assumed_is_said(catalogue: Catalogue) -> None:
    found = case(catalogue, n_devices=8)
    assert found.setup.layout.tp == 8
    assert any("wired as in" in text for text in found.assumed)
    assert any("tensor parallelism over all 8" in text for text in found.assumed)


def test_the_usual_runtime_follows_the_vendor(catalogue: Catalogue) -> None:
    assert case(catalogue).setup.runtime.engine == "vllm"
    assert case(catalogue, hardware="ascend-910b3").setup.runtime.engine == "vllm-ascend"
    asked = Deployment(engine="sglang")
    assert case(catalogue, deployment=asked).setup.runtime.engine == "sglang"


def test_a_checkpoint_brings_its_quantisation(catalogue: Catalogue) -> None:
    found = case(catalogue, model="Qwen/Qwen2.5-7B-Instruct-AWQ")
    assert found.setup.scheme.name == "awq-int4-g128"
    assert any("awq-int4-g128" in text for text in found.assumed)
    assert case(catalogue, deployment=Deployment(quantization="fp8")).setup.scheme.name == "fp8"


# --- layouts ---------------------------------------------------------------------------------------------------------


def test_devices_that_the_layout_leaves_become_replicas(catalogue: Catalogue) -> None:
    found = case(catalogue, n_devices=8, deployment=Deployment(tp=2))
    assert (found.setup.layout.tp, found.n_replicas, found.n_devices) == (2, 4, 8)
    dense = case(catalogue, n_devices=8, deployment=Deployment(tp=2, dp=4))
    assert (dense.setup.layout.dp, dense.n_replicas) == (1, 4)


def test_data_parallel_attention_stays_in_the_layout(catalogue: Catalogue) -> None:
    found = case(
        catalogue, model="deepseek-v3", hardware="h200-sxm", deployment=Deployment(dp=8, enable_expert_parallel=True)
    )
    assert (found.setup.layout.dp, found.setup.layout.ep, found.n_replicas) == (8, 8, 1)


def test_several_devices_make_a_pipeline(catalogue: Catalogue) -> None:
    found = case(catalogue, hardware="a100-80gb-sxm,h100-sxm", stage_layers=(12, 20))
    assert found.setup.layout.pp == 2
    assert found.setup.layout.stages(32) == ((0, 12), (12, 32))
    assert [d.name for d in found.setup.devices] == ["a100-80gb-sxm", "h100-sxm"]


@pytest.mark.parametrize(
    "changes",
    [
        {"n_devices": 3, "deployment": Deployment(tp=2)},
        {"n_devices": 8, "deployment": Deployment(tp=2, dp=2)},
        {"n_devices": 3},
        {"n_devices": 0},
        {"n_devices": -2},
        {"n_devices": 10**9},
        {"hardware": "0xa100-80gb-sxm"},
        {"deployment": Deployment(tp=3)},
        {"deployment": Deployment(ep=2, tp=2), "stage_layers": (1, 2)},
        {"stage_layers": (16, 16)},
        {"hardware": "a100-80gb-sxm,h100-sxm,l4", "deployment": Deployment(pp=2)},
    ],
)
def test_layouts_that_do_not_work_are_refused(catalogue: Catalogue, changes: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as caught:
        case(catalogue, **changes)
    assert caught.value.exit_code == 2
    assert "got" in str(caught.value)


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["batch", "input_tokens", "output_tokens"])
@pytest.mark.parametrize("value", [0.0, -1.0, 0.5, 1e30, math.nan, math.inf, -math.inf, 2.5])
def test_workloads_are_whole_and_finite(catalogue: Catalogue, name: str, value: float) -> None:
    with pytest.raises(SpecError, match=name.replace("_", " ")):
        case(catalogue, **{name: value})


def test_all_bad_numbers_are_named_at_once(catalogue: Catalogue) -> None:
    with pytest.raises(SpecError) as caught:
        case(catalogue, batch=0.0, input_tokens=math.nan, output_tokens=-3.0)
    assert len(caught.value.faults) == 3


def test_context_beyond_the_models_longest_is_refused(catalogue: Catalogue) -> None:
    """Llama-3.1 was trained for 131,072 tokens, input and output together."""
    assert case(catalogue, input_tokens=131_000.0, output_tokens=72.0).workload.input_tokens == 131_000.0
    with pytest.raises(SpecError, match="at most 131072"):
        case(catalogue, input_tokens=131_000.0, output_tokens=73.0)
    with pytest.raises(SpecError, match="--max-model-len"):
        case(catalogue, input_tokens=900.0, output_tokens=200.0, deployment=Deployment(max_model_len=1000))


@pytest.mark.parametrize("length", [0.9, 3.5, math.nan, -1.0, math.inf])
def test_acceptance_lies_between_one_and_all(catalogue: Catalogue, length: float) -> None:
    with pytest.raises(SpecError):
        case(catalogue, deployment=Deployment(speculative_tokens=2), acceptance_length=length)


def test_acceptance_by_hand(catalogue: Catalogue) -> None:
    """1 + 0.7 + 0.49 + 0.343 tokens a step for three drafted ones."""
    found = case(catalogue, deployment=Deployment(speculative_tokens=3)).setup.speculation
    assert found is not None
    assert found.acceptance_length == pytest.approx(1 + 0.7 + 0.49 + 0.343)
    with pytest.raises(SpecError, match="drafted tokens"):
        case(catalogue, acceptance_length=2.0)


@pytest.mark.parametrize("n_bytes", [-1.0, math.nan, math.inf])
def test_memory_of_others_is_a_size(catalogue: Catalogue, n_bytes: float) -> None:
    with pytest.raises(SpecError):
        case(catalogue, used_by_others_bytes=n_bytes)


@pytest.mark.parametrize(
    "changes",
    [
        {"cpu_offload_gib": -1.0}, {"swap_space_gib": math.nan}, {"gpu_memory_utilization": 1.5}, {"tp": 0},
        {"tp": True}, {"max_num_seqs": -4}, {"block_tokens": 0}, {"speculative_tokens": 0}, {"max_model_len": 2**60},
        {"dtype": ""},
    ],
)  # fmt: skip
def test_deployments_are_checked(changes: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=next(iter(changes))):
        Deployment(**changes)


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "lama-3.1-8b"}, {"hardware": "a100-80gb-smx"}, {"runtime": "vllm-9"}, {"calibration": "ideel"},
        {"deployment": Deployment(quantization="int3")}, {"hardware": ""}, {"hardware": "h100-sxm,"}, {"model": ""},
    ],
)  # fmt: skip
def test_unknown_names_are_refused(catalogue: Catalogue, changes: dict[str, Any]) -> None:
    with pytest.raises(PerfmodelError) as caught:
        case(catalogue, **changes)
    assert isinstance(caught.value, UnknownNameError | SpecError)


def test_no_model_is_refused(catalogue: Catalogue) -> None:
    with pytest.raises(SpecError, match="no model is named"):
        case_of(catalogue, Question(hardware="h100-sxm"))
    by_flag = case_of(catalogue, Question(hardware="h100-sxm", deployment=Deployment(model="/data/Llama-3.1-8B/")))
    assert by_flag.setup.model.name == "llama-3.1-8b"


# --- every model, every device ---------------------------------------------------------------------------------------


def test_every_model_gets_an_answer_or_a_reason(catalogue: Catalogue) -> None:
    """On eight H200: figures in order, or an error of this program that says what does not fit."""
    answered = 0
    for name, header in catalogue.headers("model"):
        if header.get("kind") == "fixed_work":
            continue
        question = Question(hardware="8xh200-sxm", model=name, batch=4.0, input_tokens=200.0, output_tokens=50.0)
        try:
            found = answer_to(case_of(catalogue, question))
        except PerfmodelError:
            continue
        answered += 1
        for figure in found.figures.values():
            assert 0 < figure.low <= figure.value <= figure.high < math.inf
    assert answered > 60


def test_every_device_gets_an_answer(catalogue: Catalogue) -> None:
    for name, header in catalogue.headers("hardware"):
        if header.get("kind") == "system":
            continue
        for calibration in ("prior", "ideal", "hard-bound"):
            question = Question(
                hardware=name,
                model="qwen2.5-0.5b",
                calibration=calibration,
                batch=1.0,
                input_tokens=200.0,
                output_tokens=50.0,
            )
            figures = answer_to(case_of(catalogue, question)).figures
            assert 0 < figures["tpot_s"].value < figures["e2e_s"].value < 100


ANY = st.one_of(st.integers(-(2**70), 2**70), st.floats(), st.sampled_from([1, 2, 8, 64, 1024]))


@given(
    st.sampled_from(["llama-3.1-8b", "deepseek-v2-lite", "gpt-oss-20b", "nonsense"]),
    st.sampled_from(["h100-sxm", "8xrtx-4090", "ascend-910b3", "hgx-h20", "2xjetson-orin", "h100-sxm,l4"]),
    st.sampled_from(["none", "fp8", "w8a8", "awq-int4-g128", "mxfp4", "int3"]),
    ANY, ANY, ANY, st.one_of(st.none(), st.integers(-3, 20)), st.one_of(st.none(), st.integers(-1, 9)),
    st.one_of(st.none(), st.integers(0, 5)), st.one_of(st.none(), st.floats()),
)  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_any_question_is_answered_or_refused(
    catalogue: Catalogue, model: str, hardware: str, scheme: str, batch: float, isl: float, osl: float,
    n_devices: int | None, tp: int | None, n_draft: int | None, util: float | None,
) -> None:  # fmt: skip
    try:
        stated = Deployment(tp=tp, speculative_tokens=n_draft, gpu_memory_utilization=util, quantization=scheme)
        question = Question(
            hardware=hardware, model=model, deployment=stated, n_devices=n_devices, batch=batch, input_tokens=isl,
            output_tokens=osl,
        )  # fmt: skip
        found = answer_to(case_of(catalogue, question))
    except PerfmodelError:
        return
    assert all(0 <= f.low <= f.value <= f.high < math.inf for f in found.figures.values())


def test_a_stated_dtype_reaches_the_memory_plan(catalogue: Catalogue) -> None:
    """Weights take in memory what the kernels read: twice as much in fp32 as in bf16."""
    bf16, fp32 = (
        memory_plan(case(catalogue, deployment=Deployment(dtype=dtype)).memory).tightest.weights_on_device_bytes
        for dtype in ("bfloat16", "float32")
    )
    assert fp32 == 2 * bf16


def test_without_captured_graphs_the_host_costs_more_on_every_layer(catalogue: Catalogue) -> None:
    # vllm-ascend: 400 instead of 80 us on each of 28 layers, 9.0 ms a token more; launches hide beside the device.
    asked = {"model": "qwen2.5-7b", "hardware": "ascend-910b3", "input_tokens": 512.0, "output_tokens": 32.0}
    replayed, eager = (
        answer_to(case(catalogue, **asked, deployment=Deployment(enforce_eager=on))).figures["tpot_s"].value
        for on in (False, True)
    )
    assert eager - replayed == pytest.approx(28 * 320e-6, rel=0.01)
