"""The shipped hardware files: they validate, agree with themselves, and hold the figures that people get wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from perfmodel.specs.device import Device
from perfmodel.specs.system import System
from perfmodel.units import GIB, MIB

HARDWARE = Path(__file__).resolve().parents[2] / "hardware"
FILES = sorted(HARDWARE.glob("*.yaml"))
RAW = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in FILES}
DEVICES = {name: Device.model_validate(raw) for name, raw in RAW.items() if raw["kind"] == "device"}
SYSTEMS = {name: System.model_validate(raw) for name, raw in RAW.items() if raw["kind"] == "system"}

EXPECTED = [
    "ascend-910a", "ascend-910-30c", "ascend-910b", "ascend-910b1", "ascend-910b2", "ascend-910b3", "ascend-910b4",
    "ascend-910c", "ascend-910c-die", "ascend-310p", "a100-40gb-sxm", "a100-80gb-sxm", "a100-80gb-pcie", "a800-sxm",
    "h100-sxm", "h100-pcie", "h100-nvl", "h800-sxm", "h20", "h20-3e", "h200-sxm", "gh200", "b200-sxm", "b300-sxm",
    "gb200", "gb300", "l4", "l20", "l40", "l40s", "a10", "a40", "t4", "rtx-a6000", "v100-sxm", "rtx-3090",
    "rtx-3090-ti", "rtx-4090", "rtx-4060", "rtx-5090", "rtx-6000-ada", "rtx-pro-6000-server", "jetson-orin", "mi210",
    "mi250", "mi250x", "mi250x-gcd", "mi300x", "gaudi2", "tpu-v5e",
]  # fmt: skip
EXPECTED_SYSTEMS = [
    "atlas-800i-a2", "atlas-800t-a2-910b1", "atlas-800t-a2-910b2", "atlas-800i-a2-910b4", "atlas-800i-a3",
    "cloudmatrix384", "dgx-a100", "dgx-a100-40gb", "hgx-h100", "hgx-h800", "hgx-h20", "hgx-h200", "hgx-b200",
    "hgx-b300", "gb200-nvl72", "gb300-nvl72", "8x-mi300x", "4x-mi250", "8x-rtx-4090", "8x-l40s", "2x-rtx-3090-nvlink",
    "8x-rtx-3090", "8x-a100-80gb-pcie", "8x-h100-pcie", "8x-h100-nvl", "8x-l4", "8x-l20", "8x-a10", "8x-a40",
    "8x-rtx-5090", "8x-rtx-6000-ada", "8x-rtx-pro-6000-server", "8x-t4", "8x-v100-sxm", "hls-gaudi2", "tpu-v5e-8",
    "atlas-300i-duo-box",
]  # fmt: skip

# device, engine, dtype, accumulator (None: what an inference engine gets), dense rate in units of 1e12 per second
PEAKS = [
    ("ascend-910a", "matrix", "fp16", None, 262.1),
    ("ascend-910-30c", "matrix", "fp16", None, 221.2),
    ("ascend-910b", "matrix", "bf16", None, 294.9),
    ("ascend-910b1", "matrix", "bf16", None, 353.9),
    ("ascend-910b2", "matrix", "fp16", None, 353.9),
    ("ascend-910b2", "matrix", "int8", None, 707.8),
    ("ascend-910b3", "matrix", "bf16", None, 294.9),
    ("ascend-910b3", "matrix", "int8", None, 589.8),
    ("ascend-910b4", "matrix", "bf16", None, 245.8),
    ("ascend-910b1", "vector", "fp32", None, 11.06),
    ("ascend-910c", "matrix", "bf16", None, 707.8),
    ("ascend-910c-die", "matrix", "bf16", None, 353.9),
    ("ascend-310p", "matrix", "int8", None, 138.9),
    ("a100-80gb-sxm", "matrix", "bf16", None, 312.0),
    ("a100-80gb-sxm", "matrix", "int8", None, 624.0),
    ("a100-80gb-sxm", "vector", "fp32", None, 19.5),
    ("h100-sxm", "matrix", "bf16", None, 989.4),
    ("h100-sxm", "matrix", "fp8", None, 1978.9),
    ("h100-pcie", "matrix", "bf16", None, 756.5),
    ("h100-nvl", "matrix", "bf16", None, 835.5),
    ("h800-sxm", "matrix", "fp8", None, 1978.9),
    ("h20", "matrix", "bf16", None, 148.0),
    ("b200-sxm", "matrix", "bf16", None, 2250.0),
    ("b200-sxm", "matrix", "fp4", None, 9000.0),
    ("gb200", "matrix", "fp8", None, 5000.0),
    ("b300-sxm", "matrix", "int8", None, 153.5),
    ("l4", "matrix", "fp16", None, 121.0),
    ("l40", "matrix", "fp16", None, 181.05),
    ("l40s", "matrix", "bf16", None, 362.05),
    ("l20", "matrix", "bf16", None, 119.5),
    ("a10", "matrix", "fp16", None, 125.0),
    ("a40", "matrix", "fp16", None, 149.7),
    ("v100-sxm", "matrix", "fp16", None, 125.0),
    ("t4", "matrix", "fp16", None, 65.0),
    ("rtx-3090", "matrix", "fp16", None, 71.0),
    ("rtx-3090", "matrix", "fp16", "fp16", 142.0),
    ("rtx-4090", "matrix", "fp16", None, 165.2),
    ("rtx-4090", "matrix", "bf16", None, 165.2),
    ("rtx-4090", "matrix", "fp16", "fp16", 330.3),
    ("rtx-4090", "matrix", "fp8", None, 330.3),
    ("rtx-5090", "matrix", "bf16", None, 209.5),
    ("mi210", "matrix", "fp16", None, 181.0),
    ("mi250x", "matrix", "bf16", None, 383.0),
    ("mi250x-gcd", "matrix", "bf16", None, 191.5),
    ("mi300x", "matrix", "bf16", None, 1307.4),
    ("gaudi2", "matrix", "bf16", None, 432.0),
    ("tpu-v5e", "matrix", "bf16", None, 197.0),
]

# device, nominal GB/s
BANDWIDTHS = [
    ("a100-40gb-sxm", 1555), ("a100-80gb-sxm", 2039), ("a100-80gb-pcie", 1935), ("h100-sxm", 3350),
    ("h200-sxm", 4800), ("h20", 4000), ("b200-sxm", 8000), ("rtx-3090", 936), ("rtx-4090", 1008), ("rtx-5090", 1792),
    ("l4", 300), ("l40s", 864), ("v100-sxm", 900), ("mi300x", 5300), ("mi250x-gcd", 1638), ("tpu-v5e", 819),
    ("ascend-910b1", 1600), ("ascend-910b3", 1600), ("ascend-910b4", 800), ("ascend-910c", 3200),
]  # fmt: skip

# device, link kind, one direction in GB/s: half of what vendors print
ONE_WAY = [
    ("a100-80gb-sxm", "nvlink", 300), ("a800-sxm", "nvlink", 200), ("h100-sxm", "nvlink", 450),
    ("h800-sxm", "nvlink", 200), ("h20", "nvlink", 450), ("h200-sxm", "nvlink", 450), ("b200-sxm", "nvlink", 900),
    ("gb200", "nvlink", 900), ("v100-sxm", "nvlink", 150), ("rtx-3090", "nvlink", 56.25), ("a40", "nvlink", 56.25),
    ("mi300x", "xgmi", 448), ("ascend-910b2", "hccs", 196), ("ascend-910b3", "hccs", 196), ("ascend-910c", "ub", 392),
    ("ascend-910c-die", "ub", 196), ("tpu-v5e", "ici", 200),
]  # fmt: skip
ONE_WAY_SYSTEMS = [
    ("dgx-a100", "nvlink", 300), ("hgx-h100", "nvlink", 450), ("hgx-h800", "nvlink", 200),
    ("hgx-b200", "nvlink", 900), ("gb200-nvl72", "nvlink", 900), ("atlas-800i-a2", "hccs", 196),
    ("atlas-800t-a2-910b2", "hccs", 196), ("cloudmatrix384", "ub", 392), ("8x-mi300x", "xgmi", 448),
]  # fmt: skip


def _nodes(node: object) -> list[dict[str, Any]]:
    """Return every mapping inside `node`, at any depth."""
    if isinstance(node, dict):
        return [node, *(found for child in node.values() for found in _nodes(child))]
    if isinstance(node, list):
        return [found for child in node for found in _nodes(child)]
    return []


def test_every_file_is_named_after_its_entry() -> None:
    assert set(DEVICES) | set(SYSTEMS) == {path.stem for path in FILES}
    assert [name for name, raw in RAW.items() if raw["name"] != name] == []


def test_promised_devices_and_systems_exist() -> None:
    assert [name for name in EXPECTED if name not in DEVICES] == []
    assert [name for name in EXPECTED_SYSTEMS if name not in SYSTEMS] == []


def test_no_alias_means_two_things() -> None:
    owner: dict[str, str] = {}
    entries: list[Device | System] = [*DEVICES.values(), *SYSTEMS.values()]
    for entry in entries:
        for alias in {re.sub(r"[\s_-]+", "-", name.lower()) for name in (entry.name, *entry.names)}:
            assert owner.setdefault(alias, entry.name) == entry.name, f"{alias!r} names {owner[alias]} and {entry.name}"
    expected = {"a100": "a100-80gb-sxm", "h100": "h100-sxm", "b200": "b200-sxm", "v100": "v100-sxm", "4090": "rtx-4090"}
    expected |= {"910b": "ascend-910b", "910b3": "ascend-910b3", "910c": "ascend-910c", "h800": "h800-sxm"}
    assert {alias: owner.get(alias) for alias in expected} == expected


@pytest.mark.parametrize("name", sorted(RAW))
def test_sources_are_listed_used_and_public(name: str) -> None:
    raw = RAW[name]
    body = {key: value for key, value in raw.items() if key != "sources"}
    used = {node["source"] for node in _nodes(body) if "source" in node}
    assert used == set(raw["sources"])
    for citation in raw["sources"].values():
        assert "\n" not in citation
        assert len(citation) > 12
        assert not re.search(r"(^|\s)/(work|home|tmp)\b|\.csv\b", citation)


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_rates_follow_from_cores_and_clock(name: str) -> None:
    device = DEVICES[name]
    for engine in (device.matrix, device.vector):
        if engine is None:
            continue
        for rate in engine.rates:
            if rate.flop_per_cycle_per_core is None:
                assert rate.note, f"{rate.dtype}: a rate that is not derived needs a note"
                continue
            clock = rate.clock_hz or device.boost_clock
            assert clock is not None
            derived = engine.n_cores.value * rate.flop_per_cycle_per_core * clock.value
            assert derived == pytest.approx(rate.value, rel=0.01), f"{engine.core} {rate.dtype}/{rate.accumulate}"


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_a_device_agrees_with_itself(name: str) -> None:
    device = DEVICES[name]
    dram = device.level("dram")
    assert dram is not None
    assert dram.capacity is not None
    assert 0.85 * dram.capacity.value < device.usable_memory.value <= dram.capacity.value
    if device.maximum_clock is not None and device.boost_clock is not None:
        assert device.maximum_clock.value >= device.boost_clock.value
    assert device.has_rate("fp32", "vector")
    pairs = [(rate.dtype, rate.accumulate) for rate in (device.matrix.rates if device.matrix else ())]
    assert len(pairs) == len(set(pairs))
    l2 = device.level("l2")
    if l2 is not None and l2.bandwidth is not None:
        assert l2.bandwidth.value > device.dram_bytes_per_s


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_usual_system_is_made_of_the_device(name: str) -> None:
    usual = DEVICES[name].usual_system
    if usual is None:
        assert name == "jetson-orin"  # a board of its own
        return
    assert SYSTEMS[usual].device == name


@pytest.mark.parametrize("name", sorted(SYSTEMS))
def test_system_is_wired_with_links_of_its_device(name: str) -> None:
    system = SYSTEMS[name]
    device = DEVICES[system.device]
    kinds = {link.kind: link.bandwidth_per_direction.value for link in device.links}
    for fabric in system.fabrics:
        if fabric.kind in ("nvlink", "hccs", "ub", "xgmi", "sio"):
            fastest = max(link.bandwidth_per_direction.value for link in device.links if link.kind == fabric.kind)
            assert fabric.bandwidth_per_direction.value <= fastest * 1.001, f"{fabric.name} beats the device's {kinds}"
        if fabric.kind == "pcie-p2p":
            assert device.market != "geforce"
        assert 1e-7 <= fabric.latency.value <= 5e-5
        assert fabric.efficiency is None or 0.3 <= fabric.efficiency.value <= 1.0
        assert (fabric.latency_class == "host-staged") == (fabric.kind in ("pcie-host-staged", "pcie"))


@pytest.mark.parametrize(("name", "engine", "dtype", "accumulate", "tera"), PEAKS)
def test_known_dense_peaks(
    name: str, engine: Literal["matrix", "vector"], dtype: str, accumulate: str | None, tera: float
) -> None:
    device = DEVICES[name]
    if accumulate is None:
        found = device.peak_flop_per_s(dtype, engine)
    else:
        holder = device.matrix if engine == "matrix" else device.vector
        assert holder is not None
        found = next(rate.value for rate in holder.rates if (rate.dtype, rate.accumulate) == (dtype, accumulate))
    assert found == pytest.approx(tera * 1e12, rel=0.002)


@pytest.mark.parametrize(("name", "gb"), BANDWIDTHS)
def test_known_memory_bandwidths(name: str, gb: float) -> None:
    assert DEVICES[name].dram_bytes_per_s == pytest.approx(gb * 1e9, rel=0.001)


@pytest.mark.parametrize(("name", "kind", "gb"), ONE_WAY)
def test_links_count_one_direction(name: str, kind: str, gb: float) -> None:
    link = next(link for link in DEVICES[name].links if link.kind == kind)
    assert link.bandwidth_per_direction.value == pytest.approx(gb * 1e9)


@pytest.mark.parametrize(("name", "kind", "gb"), ONE_WAY_SYSTEMS)
def test_fabrics_count_one_direction(name: str, kind: str, gb: float) -> None:
    fabric = next(fabric for fabric in SYSTEMS[name].fabrics if fabric.kind == kind)
    assert fabric.bandwidth_per_direction.value == pytest.approx(gb * 1e9)


def test_memory_sizes_that_engines_log() -> None:
    expected = {"a100-80gb-sxm": 79.25, "h100-sxm": 79.18, "h200-sxm": 139.80, "rtx-3090": 23.58, "rtx-4090": 23.55}
    expected |= {"ascend-910b4": 29.49, "ascend-310p": 43.24}
    for name, gib in expected.items():
        assert DEVICES[name].usable_memory.value / GIB == pytest.approx(gib, abs=0.01), name
    assert DEVICES["ascend-910b3"].usable_memory.value == 65452113920
    assert DEVICES["mi300x"].usable_memory.value == 206141652992


def test_ascend_insides() -> None:
    for name in ("ascend-910b1", "ascend-910b2", "ascend-910b3", "ascend-910b4", "ascend-910c-die"):
        device = DEVICES[name]
        core = device.ai_core
        assert core is not None
        assert device.matrix is not None
        per_cycle = {rate.dtype: rate.flop_per_cycle_per_core for rate in device.vector.rates}
        assert core.cube_macs_per_cycle_fp16.value == 4096
        assert core.vector_cores_per_cube_core.value * device.matrix.n_cores.value == device.vector.n_cores.value
        assert 2 * core.vector_lanes_fp16.value == per_cycle["fp16"]
        assert device.l2_bytes == (96 if name == "ascend-910b4" else 192) * MIB


def test_a_package_is_the_sum_of_its_dies() -> None:
    for package, die in (("ascend-910c", "ascend-910c-die"), ("mi250x", "mi250x-gcd")):
        whole, half = DEVICES[package], DEVICES[die]
        assert (whole.n_dies, half.n_dies) == (2, 1)
        assert whole.peak_flop_per_s("bf16") == pytest.approx(2 * half.peak_flop_per_s("bf16"), rel=0.001)
        assert whole.dram_bytes_per_s == pytest.approx(2 * half.dram_bytes_per_s, rel=0.001)
        assert whole.usable_memory.value == pytest.approx(2 * half.usable_memory.value, rel=0.001)


def test_label_traps_are_written_down() -> None:
    labels = {"ascend-910b1": "376", "ascend-910b3": "313", "a100-80gb-sxm": "NVLink 600", "h100-sxm": "1979"}
    labels |= {"mi300x": "896", "jetson-orin": "275", "ascend-910b": "without a digit"}
    for name, text in labels.items():
        assert any(text in label.text for label in DEVICES[name].labels), name
    disputes = {"ascend-910b1": "core clock", "ascend-910b3": "memory bandwidth", "ascend-910b4": "core clock"}
    disputes |= {"b200-sxm": "memory bandwidth", "h20": "power limit", "tpu-v5e": "memory bandwidth", "l40s": "clock"}
    for name, quantity in disputes.items():
        assert any(quantity in found.quantity for found in DEVICES[name].contradictions), name
