"""What programs read: the keys of --json are stable, values are in base units, and bands hold their value.

The keys stand in tests/golden/cli/. A key that is new is added there on purpose; one that goes breaks somebody.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "cli"
LOAD = ("--batch", "16", "--isl", "1024", "--osl", "128")
ASKED = {
    "estimate": ("estimate", "llama-3.1-8b", "h100-sxm", *LOAD),
    "memory": ("memory", "llama-3.1-8b", "h100-sxm", "--max-model-len", "8192"),
    "whatif": ("whatif", "llama-3.1-8b", "h100-sxm", "--vary", "quantization=none,fp8", *LOAD),
    "sweep": ("sweep", "llama-3.1-8b", "h100-sxm", "--vary", "batch=1,2", "--vary", "tp=1,3"),
    "roofline": ("roofline", "llama-3.1-8b", "h100-sxm"),
    "hierarchy-matmul": (
        "hierarchy",
        "matmul",
        "ascend-910b2",
        "512",
        "512",
        "512",
        "--stated-use",
        "0.9",
        "--stated-hit",
        "0.4",
    ),
    "hierarchy-show": ("hierarchy", "show", "ascend-910b2"),
    "issue": ("issue", "ascend-910b2", "vadd c, a, b; vmul d, c, b", "--ipc", "2,1", "--longer", "0.5"),
    "layout": ("layout", "[L,D]", "--size", "L=64,D=64", "--on", "ascend-910b2"),
    "plan": (
        *("plan", "llama-3.1-8b", "--isl", "512", "--osl", "128", "--concurrent-users", "16", "--tpot", "40ms"),
        *("--hardware", "a100-80gb-sxm,l40s", "--tp", "1", "--pp", "1"),
    ),
    "sensitivity": (
        *("sensitivity", "llama-3.1-8b", "h100-sxm", *LOAD, "--target", "5ms", "--break-even", "replicas"),
    ),
    "scale": (
        *("scale", "llama-3.1-8b", "h100-sxm", "--isl", "512", "--osl", "128", "--peak-rate", "50"),
        *("--tpot", "30ms", "--step", "10min", "--growth", "0.1"),
    ),
    "hardware-list": ("hardware", "list", "h100"),
    "models-list": ("models", "list", "llama-3.1-8b"),
    "models-show": ("models", "show", "llama-3.1-8b"),
}
FREE = (
    "prices",
    "available",
    "percentiles",
    "stall_cycles",
    "waterfall_bytes",
    "bound_shares",
    "n_params_by_part",
    "weight_bytes",
    "layers",
    "published",
)
"""Keys whose own keys are names of parts, bounds and schemes."""


def keys(value: object, path: str = "") -> Iterator[str]:
    """Yield the path of every key, list items as one."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield f"{path}{name}"
            if name not in FREE:
                yield from keys(inner, f"{path}{name}.")
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner, f"{path}[].")


def numbers(value: object, path: str = "") -> Iterator[tuple[str, float, dict[str, Any]]]:
    """Yield (name, number, the mapping that holds it) of everything numeric."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if isinstance(inner, (int, float)) and not isinstance(inner, bool):
                yield name, float(inner), value
            else:
                yield from numbers(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner, path)


@pytest.fixture(scope="module")
def document(run_cli: Callable[..., Any]) -> Callable[[str], Any]:
    def ask(name: str) -> Any:
        ran = run_cli(*ASKED[name], "--json")
        assert ran.code == 0, ran.err
        assert ran.err == ""
        return json.loads(ran.out, parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))

    return ask


@pytest.mark.parametrize("name", ASKED)
def test_keys_are_those_on_record(document: Callable[[str], Any], name: str) -> None:
    found = list(dict.fromkeys(keys(document(name))))
    file = GOLDEN / f"{name}.json"
    if not file.exists():  # pragma: no cover  # a new command: look at what was written, and commit it
        file.write_text(json.dumps(sorted(found), indent=1) + "\n", encoding="utf-8")
        pytest.fail(f"{file} was missing and has been written")
    assert sorted(found) == json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["estimate", "whatif", "sweep"])
def test_bands_hold_their_value(document: Callable[[str], Any], name: str) -> None:
    n_bands = 0
    for key, value, held in numbers(document(name)):
        assert math.isfinite(value)
        if f"{key}_low" in held:
            assert 0 < held[f"{key}_low"] <= value <= held[f"{key}_high"]
            n_bands += 1
    assert n_bands >= 4


def test_values_are_in_base_units(document: Callable[[str], Any]) -> None:
    data = document("estimate")
    assert 0.01 < data["ttft_s"] < 10
    assert 1e-3 < data["tpot_s"] < 0.1
    assert data["ttft_floor_s"] <= data["ttft_s"]
    assert data["e2e_s"] == pytest.approx(data["ttft_s"] + 127 * data["tpot_s"])
    assert data["output_tokens_per_s"] == pytest.approx(16 * 128 / data["e2e_s"])
    assert 0 < data["decode_mbu_frac"] < 1
    assert 0 < data["prefill_mfu_frac"] < 1
    assert data["memory"]["ranks"][0]["total_bytes"] > 50e9
    assert sum(data["bound_shares"]["tpot"].values()) == pytest.approx(1.0)


def test_waterfall_adds_up_to_the_budget(document: Callable[[str], Any]) -> None:
    for data in (document("memory"), document("estimate")["memory"]):
        for rank in data["ranks"]:
            assert sum(rank["waterfall_bytes"].values()) == pytest.approx(rank["budget_bytes"])
            assert rank["kv_blocks"] >= data["kv_blocks"]
        assert data["kv_tokens"] == data["kv_blocks"] * data["block_tokens"]


def test_csv_has_the_same_columns_as_json(run_cli: Callable[..., Any], document: Callable[[str], Any]) -> None:
    head = run_cli(*ASKED["estimate"], "--csv").out.splitlines()[0].split(",")
    flat = [key for key, value in document("estimate").items() if not isinstance(value, (dict, list))]
    assert head == flat
