"""A pasted launch line states exactly what it states, and nothing but SpecError is raised for the rest."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import SpecError
from perfmodel.specs.deployment import Deployment
from perfmodel.specs.launch_line import (
    bench_line,
    deployment_from,
    deployment_from_file,
    deployment_from_text,
    launch_line,
    unwritten,
)
from tests.unit.launch_lines import LINES


@pytest.mark.parametrize(("text", "expected"), [(t, e) for _, t, e in LINES], ids=[name for name, _, _ in LINES])
def test_real_lines(text: str, expected: dict[str, Any]) -> None:
    found = deployment_from_text(text)
    assert {name: getattr(found, name) for name in expected} == expected


BAD: list[tuple[str, str, str]] = [
    ("empty", "  \n", "empty"),
    ("binary", "vllm serve m\x00\x01", "binary"),
    ("prose", "hello world", "no launch line found"),
    ("open quote", "vllm serve 'm --tp 2", "without its closing one"),
    ("word for a number", "vllm serve m --tp abc", "--tp (line 1): got 'abc', expected a whole number"),
    ("negative", "vllm serve m --tp -1", "a whole number from 1 to 4096"),
    ("zero", "vllm serve m --max-num-seqs 0", "got 0"),
    ("not a number", "vllm serve m --gpu-memory-utilization nan", "got nan"),
    ("per cent", "vllm serve m --gpu-memory-utilization 90", "Write 0.9."),
    ("twice", "vllm serve m --tp 2 --tensor-parallel-size 4", "while --tp (line 1) says 2"),
    ("yes and no", "vllm serve m --enable-prefix-caching --no-enable-prefix-caching", "one value"),
    ("two models", "vllm serve m --model n", "while model (line 1) says 'm'"),
    ("two servers", "vllm serve m --tp 2\nvllm serve m --tp 4", "Paste one launch line"),
    ("empty value", "vllm serve m --tp=", "--tp (line 1): got nothing"),
    ("no value", "vllm serve m --tp --pp 2", "--tp (line 1): got nothing"),
    ("capital with decimals", "vllm serve m --max-model-len 1.5K", "Write 1.5k"),
    ("JSON without quotes", 'vllm serve m --speculative-config {"num_speculative_tokens": 2}', "single quotes"),
    ("unset variable", "vllm serve m --tp $TP", "got $TP"),
    ("rate", "vllm bench serve --request-rate 0", "above 0"),
    ("truncated JSON", '{"BackendConfig": {"npuDeviceIds": [[0,1', "Is the text cut off?"),
    ("model's own JSON", '{"architectures": ["X"], "hidden_size": 4096}', "Give it as the model"),
    ("nested without end", "{" + '"a":{' * 20000, "moderate depth"),
    ("memory", '{"maxSeqLen": 10, "npuMemSize": -2}', "-1 for automatic"),
    ("MindIE daemon", "./bin/mindieservice_daemon", "config.json"),
]


@pytest.mark.parametrize(("text", "message"), [(t, m) for _, t, m in BAD], ids=[name for name, _, _ in BAD])
def test_bad_lines_say_why(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        deployment_from_text(text)
    assert message in str(caught.value)


def test_all_faults_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        deployment_from_text("vllm serve m --tp abc \\\n --pp 0 --gpu-memory-utilization 95 --max-model-len long")
    assert len(caught.value.faults) == 4
    assert "--pp (line 2)" in str(caught.value)


MINDIE = """
{
    "Version" : "1.0.0",
    "ServerConfig" : { "ipAddress" : "127.0.0.1", "port" : 1025, "httpsEnabled" : false, // no TLS },
    },
    "BackendConfig" : {
        "backendName" : "mindieservice_llm_engine",
        "npuDeviceIds" : [[0,1,2,3,4,5,6,7]],
        "interNodeTlsCaFiles" : ["ca.pem"],
        "ModelDeployConfig" : {
            "maxSeqLen" : 25600, # context
            "maxInputTokenLen" : 20480,
            "truncation" : false,
            "ModelConfig" : [ {
                "modelInstanceType" : "Standard",
                "modelName" : "deepseek_r1",
                "modelWeightPath" : "/data/DeepSeek-R1-W8A8",
                "worldSize" : 8, "cpuMemSize" : 5, "npuMemSize" : -1,
                "tp": 8, "dp": 4, "moe_ep": 32, "moe_tp": 1, "pp": 1, "sp": 1,
                "plugin_params": "{\\"plugin_type\\":\\"mtp, splitfuse\\",\\"num_speculative_tokens\\": 2}",
                "madeUpKey": 3
            } ]
        },
        "ScheduleConfig" : {
            "templateType": "Mix",
            "cacheBlockSize" : 128, "maxPrefillBatchSize" : 50, "maxPrefillTokens" : 8192,
            "maxBatchSize" : 200, "maxIterTimes" : 512, "supportSelectBatch" : false,
        }
    }
}
"""


def test_mindie_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(MINDIE.replace("no TLS", "无").encode("gb18030"))
    found = deployment_from(str(path))
    assert found == deployment_from_file(path)
    assert found.stated == {
        "model": "/data/DeepSeek-R1-W8A8",
        "served_model_name": "deepseek_r1",
        "engine": "mindie",
        "tp": 8,
        "dp": 4,
        "pp": 1,
        "ep": 32,
        "moe_tp": 1,
        "world_size": 8,
        "max_model_len": 25600,
        "max_num_seqs": 200,
        "max_num_batched_tokens": 8192,
        "max_input_tokens": 20480,
        "max_output_tokens": 512,
        "max_prefill_batch": 50,
        "block_tokens": 128,
        "chunked_prefill": True,
        "speculative_tokens": 2,
        "speculative_method": "mtp",
    }
    assert found.unknown == ("BackendConfig.ModelDeployConfig.ModelConfig.madeUpKey",)
    assert any("npuMemSize" in note for note in found.notes)
    assert found.layout().n_devices == 32


def test_mindie_flat_fragment_and_memory() -> None:
    flat = deployment_from_text('{"maxSeqLen": 2560, "worldSize": 4, "npuMemSize": 8, "modelName": "llama", "tp": -1}')
    assert (flat.tp, flat.npu_memory_bytes, flat.model) == (4, 8 * 2**30, "llama")
    fragment = deployment_from_text('"ScheduleConfig": {"maxBatchSize": 64},\n"ModelDeployConfig": {"maxSeqLen": 100},')
    assert (fragment.max_num_seqs, fragment.max_model_len) == (64, 100)


def test_mindie_faults_together() -> None:
    with pytest.raises(SpecError) as caught:
        deployment_from_text('{"maxSeqLen": "x", "maxBatchSize": -5, "worldSize": true, "npuDeviceIds": [[]]}')
    assert len(caught.value.faults) == 4


def test_files(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/bash\nset -e\nvllm serve m --tp abc\n", encoding="utf-8")
    with pytest.raises(SpecError, match=r"run\.sh"):
        deployment_from(script)
    with pytest.raises(SpecError, match="cannot be read"):
        deployment_from(str(tmp_path / "none.json"))
    script.write_bytes("vllm serve m -tp 2".encode("utf-16"))
    assert deployment_from(script).tp == 2
    assert deployment_from("vllm serve m --config a.yaml").model == "m"


@pytest.mark.parametrize(
    ("text", "devices", "ep", "replicas"),
    [
        ("vllm serve m -dp 8 --enable-expert-parallel", 8, 8, 1),
        ("vllm serve m -tp 4 -pp 2", 8, 1, 1),
        ("sglang serve --model-path m --tp 8 --dp 8 --enable-dp-attention", 8, 1, 1),
        ("sglang serve --model-path m --tp 4 --dp 2", 4, 1, 2),
        ("sglang serve --model-path m --tp 8 --moe-a2a-backend deepep", 8, 8, 1),
        ('{"worldSize": 8, "dp": 2, "moe_tp": 2}', 8, 4, 1),
    ],
)
def test_layout(text: str, devices: int, ep: int, replicas: int) -> None:
    found = deployment_from_text(text)
    assert (found.layout().n_devices, found.layout().ep, found.n_replicas) == (devices, ep, replicas)
    assert found.layout(moe=False).ep == 1


def test_layouts_that_cannot_be() -> None:
    for stated in (
        Deployment(engine="sglang", tp=8, dp=3, dp_attention=True),
        Deployment(tp=8, moe_tp=3),
        Deployment(tp=8, moe_tp=2, ep=8),
    ):
        with pytest.raises(SpecError):
            stated.layout()


def test_model_names() -> None:
    cached = "/cache/models--Qwen--Qwen3-8B/snapshots/0c351dd"
    assert Deployment(model=cached).model_names == (cached, "Qwen/Qwen3-8B", "Qwen3-8B")
    assert Deployment(model="Qwen/Qwen3-8B").model_names == ("Qwen/Qwen3-8B", "Qwen3-8B")
    assert Deployment().model_names == ()


def test_deployment_refuses_nonsense() -> None:
    with pytest.raises(SpecError) as caught:
        Deployment(tp=0, gpu_memory_utilization=90.0, request_rate=-1.0, model="-x", swap_space_gib=float("nan"))
    assert len(caught.value.faults) == 5
    with pytest.raises(SpecError):
        launch_line(Deployment(engine="mindie"))


def _explained(error: SpecError) -> None:
    assert error.faults
    assert all(fault.got or fault.expected for fault in error.faults)


def _sizes(high: int = 10**9) -> st.SearchStrategy[int | None]:
    return st.none() | st.integers(1, high)


_WORDS = st.none() | st.from_regex(r"[A-Za-z0-9_./][A-Za-z0-9_./:-]{0,20}", fullmatch=True).filter(
    lambda text: text.lower() not in ("none", "null")
)
_NAMES = st.none() | st.text(
    st.characters(
        min_codepoint=32, max_codepoint=0x2100, exclude_categories=("Cc", "Cf", "Zs", "Zl", "Zp", "Cn", "Co")
    ),
    min_size=1,
    max_size=20,
).filter(lambda text: text.isprintable() and text[0].isalpha() and text.lower() not in ("none", "null"))
_SWITCH = st.none() | st.booleans()


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    """Return deployments of what a launch line can state."""
    ranks = ("tp", "pp", "dp", "ep", "dcp")
    sizes = """
    max_model_len max_num_seqs max_num_batched_tokens max_prefill_tokens max_total_tokens kv_cache_memory_bytes
    num_gpu_blocks_override block_tokens graph_max_batch speculative_tokens num_prompts max_concurrency
    input_tokens output_tokens
    """
    switches = ("enable_expert_parallel", "dp_attention", "chunked_prefill", "prefix_caching", "enforce_eager")
    floats = st.none() | st.floats(0.01, 1.0)
    values: dict[str, Any] = {
        **{name: draw(_sizes(64)) for name in ranks},
        **{name: draw(_sizes()) for name in sizes.split()},
        **{name: draw(_SWITCH) for name in switches},
        **{name: draw(_WORDS) for name in ("kv_cache_dtype", "quantization", "dtype", "served_model_name")},
        **{name: draw(floats) for name in ("gpu_memory_utilization", "swap_space_gib", "cpu_offload_gib")},
        "model": draw(_NAMES),
        "speculative_method": draw(st.sampled_from((None, "mtp", "eagle", "eagle3", "ngram"))),
        "request_rate": draw(st.none() | st.just(float("inf")) | st.floats(0.001, 1e9)),
        "environment": draw(
            st.dictionaries(
                st.sampled_from(("CUDA_VISIBLE_DEVICES", "VLLM_USE_V1", "A1")),
                st.from_regex(r"[ -~]{0,12}", fullmatch=True),
            )
        ),
    }
    return Deployment(**values)


@settings(max_examples=150, deadline=None)
@given(deployments(), st.sampled_from(("vllm", "sglang")))
def test_round_trip(deployment: Deployment, engine: Any) -> None:
    line = f"{launch_line(deployment, engine)}\n{bench_line(deployment)}"
    lost = dict.fromkeys(unwritten(deployment, engine))
    expected = dataclasses.replace(deployment, engine=engine, **lost)  # type: ignore[arg-type]
    found = deployment_from_text(line)
    assert (found.stated, found.environment) == (expected.stated, expected.environment)
    assert found.unknown == ()


_SCRAPS = st.sampled_from([
        "vllm serve", "vllm", "serve", "bench", "-m", "vllm.entrypoints.openai.api_server", "sglang.launch_server",
        "docker", "run", "bash", "-c", "--tp", "-tp", "8", "=", "--model", "m", "'", '"', "`", "$(", "${", "}",
        "$X", "\\", "\n", "\\\n", "#", ";", "&&", "|", ">", "2>&1", "<x>", "command:", "  command: >", "- --tp",
        "[", "]", "{", '"tp":', "image: vllm/x", '{"maxSeqLen":', "1}", "--speculative-config",
        '{"num_speculative_tokens": 2}', "--config", "-O", "-O.x", "--no-", "--", "—tp", "“", "”", "nan", "1e999",
        "32K", "--speculative-config.x", "--gpu-memory-utilization", "environment:", "A=b", "\t", "args:", "|-",
        "- |", "--chunked-prefill-size", "-1", "--request-rate", "export", "--random-input", "\ufeff", "٣",
])  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.text() | st.lists(_SCRAPS, max_size=14).map(" ".join) | st.lists(_SCRAPS, max_size=14).map("".join))
def test_arbitrary_text_raises_only_spec_errors(text: str) -> None:
    try:
        assert isinstance(deployment_from(text), Deployment)
    except SpecError as error:
        _explained(error)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["maxSeqLen", "npuMemSize", "npuDeviceIds", "plugin_params", "tp", "cp", "model", "ModelConfig", "x"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(_JSON, st.integers(0, 60))
def test_arbitrary_json_raises_only_spec_errors(value: object, cut: int) -> None:
    text = json.dumps(value)
    for source in (text, text[:cut]):
        try:
            assert isinstance(deployment_from_text(source), Deployment)
        except SpecError as error:
            _explained(error)


@given(st.sampled_from([t for _, t, _ in LINES]), st.integers(0, 400))
def test_truncated_lines_raise_only_spec_errors(text: str, cut: int) -> None:
    try:
        deployment_from_text(text[:cut])
    except SpecError as error:
        _explained(error)


def test_long_texts_are_quick() -> None:
    lines = "vllm serve m --tp 2 --unknown x \\\n" + "  --flag-x 'a b' \\\n" * 20000
    assert deployment_from_text(lines).tp == 2
