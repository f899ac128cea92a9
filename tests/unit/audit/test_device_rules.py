"""Rules about cores, steps, KV memory and instances on made-up claims: laws first, then verdicts by place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from perfmodel.specs.catalogue import Catalogue
from perfmodel.validate.audit.verdict import Finding, Verdict
from tests.unit.audit.claims_parts import claim, judged

REPRODUCED, PLAUSIBLE, ITSELF = Verdict.REPRODUCED, Verdict.PLAUSIBLE, Verdict.CONTRADICTS_ITSELF
PHYSICS, PUBLIC, UNKNOWN = Verdict.CONTRADICTS_PHYSICS, Verdict.CONTRADICTS_SPECIFICATION, Verdict.NOT_TESTABLE
SETUPS: Mapping[str, Any] = {
    "npu": {
        "model": "llama-2-7b",
        "hardware": "ascend-910b2",
        "runtime": "pytorch-eager",
        "batch": 1,
        "input_tokens": 512,
        "output_tokens": 256,
    }
}


def only(catalogue: Catalogue, check: Mapping[str, Any], **figures: Any) -> Finding:
    (finding,) = judged(catalogue, claim(check, figures=figures), setups=SETUPS).findings
    return finding


@pytest.mark.parametrize(
    ("layout", "read", "share"),
    [
        ("[B,H,L,D]", {"H": 1}, 1.0),  # one head lies in one piece
        ("[B,L,H,D]", {"H": 1}, 0.5),  # 256 bytes of each 512-byte line
        ("[B,L,H,D]", {}, 1.0),  # all heads of a token lie side by side
    ],
)
def test_lines_of_a_layout(catalogue: Catalogue, layout: str, read: dict[str, int], share: float) -> None:
    check = {
        "kind": "line_use", "model": "llama-2-7b", "device": "ascend-910b2", "layout": layout,
        "sizes": {"B": 1, "L": 1024}, "read": read, "figure": "x_frac",
    }  # fmt: skip
    assert only(catalogue, check, x_frac=share).verdict is REPRODUCED
    assert only(catalogue, check, x_frac=0.31).model == pytest.approx(share)
    assert only(catalogue, check, x_frac=1.5).verdict is PHYSICS
    assert only(catalogue, {**check, "below": True}, x_frac=1.0).verdict is REPRODUCED


def test_a_smaller_fall_of_ipc_leaves_less_time_to_explain(catalogue: Catalogue) -> None:
    check = {"kind": "issue_change", "before": "a", "after": "b", "figure": "x_change_frac"}
    most = [only(catalogue, check, a=4.0, b=b, x_change_frac=0.1).model for b in (3.9, 3.0, 2.0, 1.0)]
    assert most == sorted(most)
    assert most[2] == pytest.approx(1.0)
    assert "bound by issue" in only(catalogue, check, a=4.0, b=2.0, x_change_frac=0.5).reason
    assert "times the instructions" in only(catalogue, check, a=4.0, b=2.0, x_change_frac=1.5).reason
    assert only(catalogue, check, a=2.0, b=4.0, x_change_frac=0.5).verdict is UNKNOWN


def test_an_assumed_issue_width_contradicts_nothing(catalogue: Catalogue) -> None:
    check = {"kind": "issue_ceiling", "device": "ascend-910b2", "figure": "x"}
    assert only(catalogue, check, x=2.0).verdict is REPRODUCED
    assert only(catalogue, check, x=30.0).verdict is PLAUSIBLE


def test_latencies(catalogue: Catalogue) -> None:
    check = {"kind": "instruction_latency", "device": "ascend-910b2", "ops": ["vadd"], "figure": "x"}
    assert only(catalogue, check, x=22).verdict is REPRODUCED
    assert only(catalogue, check, x=2).verdict is PUBLIC
    assert only(catalogue, {**check, "ops": ["vsing"]}, x=2).verdict is UNKNOWN


def test_fusion_cannot_gain_more_than_its_traffic(catalogue: Catalogue) -> None:
    check = {"kind": "fusion_gain", "setups": ["npu"], "chain": "kv-write", "before": "a_s", "after": "b_s"}
    expected = {"1 ms": PHYSICS, "6 ms": PLAUSIBLE}
    assert {b: only(catalogue, check, a_s="15 ms", b_s=b).verdict for b in expected} == expected


def test_page_walks_and_dispatch(catalogue: Catalogue) -> None:
    walks = {"kind": "page_walks", "device": "ascend-910b2", "figure": "x_frac"}
    assert only(catalogue, walks, x_frac="1 %").verdict is REPRODUCED
    assert only(catalogue, walks, x_frac="30 %").verdict is PLAUSIBLE
    cores = {"kind": "core_use", "setups": ["npu"], "phase": "decode", "batch": "n", "figure": "x_frac"}
    assert only(catalogue, cores, n=1, x_frac="120 %").verdict is PHYSICS
    shares = [only(catalogue, cores, n=n, x_frac="50 %").high for n in (1, 8, 64)]
    assert all(0.0 < share <= 1.0 for share in shares)


@pytest.mark.parametrize(("reserved", "waste"), [(32_000, 0.1875), (52_000, 0.5)])
def test_waste_of_a_fixed_reservation(catalogue: Catalogue, reserved: int, waste: float) -> None:
    """Lengths of 20,000 to 32,000 have a mean of 26,000: 1 - 26,000 / reserved."""
    check = {
        "kind": "kv_waste", "policy": "fixed", "reserved_tokens": reserved,
        "low_tokens": "low", "high_tokens": "high", "figure": "x_frac",
    }  # fmt: skip
    finding = only(catalogue, check, low=20000, high=32000, x_frac=waste)
    assert finding.verdict is REPRODUCED
    assert finding.model == pytest.approx(waste)
    assert only(catalogue, check, low=20000, high=32000, x_frac=0.05).verdict is PLAUSIBLE


def test_larger_blocks_waste_more(catalogue: Catalogue) -> None:
    wastes = []
    for block in (16, 128, 1024):
        check = {
            "kind": "kv_waste", "policy": "paged", "block_tokens": block,
            "low_tokens": "low", "high_tokens": "high", "figure": "x_frac",
        }  # fmt: skip
        wastes.append(only(catalogue, check, low=1000, high=4000, x_frac=0.5).model)
    assert wastes == sorted(wastes)
    assert wastes[0] == pytest.approx(7.5 / 2507.5, rel=0.05)


def test_copying_cannot_take_longer_than_the_whole_memory(catalogue: Catalogue) -> None:
    """79.25 GiB read and written at 2039 GB/s: 83 ms."""
    check = {"kind": "reallocation", "device": "a100-80gb-sxm", "figure": "x_s"}
    assert only(catalogue, check, x_s="80 ms").verdict is PLAUSIBLE
    assert only(catalogue, check, x_s="90 ms").verdict is PHYSICS


def test_a_resource_that_fills_makes_each_further_instance_cost_more(catalogue: Catalogue) -> None:
    check = {"kind": "knee", "n_instances": ["n1", "n2", "n3"], "rates": ["r1", "r2", "r3"], "knee": "n2"}
    counts = {"n1": 1, "n2": 2, "n3": 4}
    assert only(catalogue, check, **counts, r1=1.0, r2=0.9, r3=0.5).verdict is REPRODUCED
    assert only(catalogue, check, **counts, r1=1.0, r2=0.6, r3=0.55).verdict is ITSELF


def test_speed_of_instances(catalogue: Catalogue) -> None:
    check = {
        "kind": "instance_speed", "network": "resnet-50", "device": "ascend-910b2",
        "n_instances": "n", "n_devices": "devices", "rate": "r", "alone": "r1",
    }  # fmt: skip
    packed = [only(catalogue, check, n=n, devices=1, r=0.5, r1=1.0).low for n in (1, 2, 8)]
    assert packed == sorted(packed, reverse=True)
    assert packed[0] == pytest.approx(1.0)
    assert only(catalogue, check, n=2, devices=2, r=1.2, r1=1.0).verdict is PHYSICS


def test_a_matmul_that_fits_the_cache_moves_once(catalogue: Catalogue) -> None:
    check = {
        "kind": "matmul_memory", "device": "ascend-910b2", "m": 2048, "n": 2048, "k": 2048,
        "dram_use": "u_frac", "hit": "h_frac",
    }  # fmt: skip
    judgement = judged(catalogue, claim(check, figures={"u_frac": 0.9, "h_frac": 0.2}), setups=SETUPS)
    assert judgement.verdict is PLAUSIBLE
    assert all("fit into" in finding.reason for finding in judgement.findings)
    again = [f.model for f in judged(catalogue, claim(check, figures={"u_frac": 0.1, "h_frac": 0.9})).findings]
    assert again == [f.model for f in judgement.findings], "the model does not look at the claim"
