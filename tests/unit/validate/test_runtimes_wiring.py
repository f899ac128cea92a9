"""Names of software in tables, and the wiring behind a link word."""

from __future__ import annotations

import pytest

from perfmodel.specs.catalogue import Catalogue
from perfmodel.validate.runtimes import runtime_match
from perfmodel.validate.wiring import wired_system


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("vllm-0.6.3", "vllm-0.6.3"),
        ("vllm-0.6.3.post1", "vllm-0.6.3"),
        ("vllm-0.4.2", "vllm-2024"),
        ("vllm-2023-12-nccl-ar", "vllm-2023"),
        ("trtllm-0.9", "tensorrt-llm-0.14"),
        ("trtllm-1.3.0rc5", "tensorrt-llm-1.2"),
        ("trtllm-2024", "tensorrt-llm-0.14"),
        ("sglang-0.5.10.post1", "sglang-0.5.10"),
        ("transformers-4.46", "pytorch-eager"),
        ("autoawq-0.1.6", "autoawq-0.1"),
        ("tinychat-2.0", "tinychat-2.0"),
        ("lmdeploy-0.2.0", "lmdeploy-0.2"),
        ("gpt-fast", "gpt-fast"),
        ("vllm-ascend 0.7.3 (no turbo) eager", "vllm-ascend-0.9"),
    ],
)
def test_software_of_public_tables_finds_a_profile(catalogue: Catalogue, name: str, profile: str) -> None:
    match = runtime_match(catalogue, name)
    assert match.name == profile
    exact = name in catalogue.spellings("runtime")
    assert bool(match.remark) is not exact


@pytest.mark.parametrize("name", ["homemade", "", "nccl-2.27", "kernel"])
def test_software_that_is_no_runtime_finds_none(catalogue: Catalogue, name: str) -> None:
    match = runtime_match(catalogue, name)
    assert match.name == ""
    assert match.remark


@pytest.mark.parametrize(
    ("device", "n", "link", "first"),
    [
        ("a100-80gb-sxm", 8, "nvswitch", ("nvlink", "switch")),
        ("a100-80gb-pcie", 4, "pcie", ("pcie-p2p", "tree")),
        ("a100-80gb-pcie", 2, "nvlink-pair", ("nvlink", "pair")),
        ("ascend-910b2", 8, "hccs", ("hccs", "full_mesh")),
        ("h100-sxm", 8, "a-word-nobody-knows", ("nvlink", "switch")),
    ],
)
def test_a_link_word_chooses_the_wiring(
    catalogue: Catalogue, device: str, n: int, link: str, first: tuple[str, str]
) -> None:
    system = wired_system(catalogue, catalogue.device(device), n, link)
    assert system is not None
    assert (system.fabrics[0].kind, system.fabrics[0].topology) == first


def test_one_device_needs_no_wire(catalogue: Catalogue) -> None:
    assert wired_system(catalogue, catalogue.device("h100-sxm"), 1, "nvswitch") is None
