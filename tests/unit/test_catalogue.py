"""The catalogue: every shipped name and spelling is found, homes hide each other in order, bad names are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perfmodel.errors import PerfmodelError, SpecError, UnknownNameError
from perfmodel.specs.catalogue import Catalogue, Kind, builtin_home
from perfmodel.specs.device import Device
from perfmodel.specs.model import FixedWork, Model

SHIPPED = Catalogue((builtin_home(),))
KINDS: tuple[Kind, ...] = ("hardware", "runtime", "calibration", "model", "scheme")


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_found_in_order(kind: Kind) -> None:
    names = list(SHIPPED.paths(kind))
    assert names == sorted(names)
    assert len(names) >= 3
    for name in names:
        assert SHIPPED.path(kind, name).stem == name


@pytest.mark.parametrize("kind", KINDS)
def test_every_spelling_leads_to_one_file(kind: Kind) -> None:
    spellings = SHIPPED.spellings(kind)
    for spelling, name in spellings.items():
        assert SHIPPED.path(kind, spelling).stem == name
        assert SHIPPED.path(kind, spelling.upper()).stem == name
        if "--" not in spelling:
            assert SHIPPED.path(kind, spelling.replace("-", "_")).stem == name
    others = [
        (str(other).lower().replace("_", "-").replace(" ", "-"), name)
        for name, header in SHIPPED.headers(kind)
        for other in header.get("names") or ()
    ]
    assert all(spellings[other] == name for other, name in others), "two files claim one name"


def test_devices_and_systems() -> None:
    for name, header in SHIPPED.headers("hardware"):
        found = SHIPPED.hardware(name)
        assert isinstance(found.device, Device)
        if header.get("kind") == "system":
            assert found.system is not None
            assert found.n_devices == found.system.n_devices
            with pytest.raises(SpecError, match="is a system"):
                SHIPPED.device(name)
        else:
            assert (found.system, found.n_devices) == (None, None)
            assert SHIPPED.device(name).name == name


@pytest.mark.parametrize("text", ["8xh100-sxm", "8 x h100-sxm", "8*H100-SXM", "8× h100_sxm"])
def test_a_count_may_stand_before_a_device(text: str) -> None:
    found = SHIPPED.hardware(text)
    assert (found.device.name, found.n_devices) == ("h100-sxm", 8)


def test_a_system_whose_name_begins_with_a_count_is_that_system() -> None:
    found = SHIPPED.hardware("8x-rtx-4090")
    assert found.system is not None
    assert found.system.name == "8x-rtx-4090"


def test_the_usual_system_is_large_enough() -> None:
    for name, header in SHIPPED.headers("hardware"):
        if header.get("kind") == "system":
            continue
        device = SHIPPED.device(name)
        if device.usual_system is None:
            assert SHIPPED.usual_system(device, 2) is None
            continue
        usual = SHIPPED.system(device.usual_system)
        assert usual.device == name
        small = SHIPPED.usual_system(device, 2)
        assert small is not None
        assert small.fabrics[-1].n_devices >= 2
        assert SHIPPED.usual_system(device, 10**5) is not None  # too large for all: the usual one, and pricing refuses


def test_models_come_as_models() -> None:
    for name, header in SHIPPED.headers("model"):
        if header.get("kind") == "fixed_work":
            assert isinstance(SHIPPED.fixed_work(name), FixedWork)
            with pytest.raises(SpecError, match="fixed work"):
                SHIPPED.model(name)
        else:
            assert isinstance(SHIPPED.model(name).model, Model)
            assert SHIPPED.fixed_work(name) is None
    assert SHIPPED.fixed_work("no-such-model") is None


@pytest.mark.parametrize(
    ("reference", "name", "scheme"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b", "none"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "qwen2.5-7b", "awq-int4-g128"),
        ("Qwen2.5-7B-Instruct-GPTQ-Int4", "qwen2.5-7b", "gptq-int4-g128"),
        ("llama-3.1-8b-fp8", "llama-3.1-8b", "fp8"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3", "fp8-block128"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "llama-3.1-8b", "w8a8"),
    ],
)
def test_checkpoint_names(reference: str, name: str, scheme: str) -> None:
    choice = SHIPPED.model(reference)
    assert (choice.model.name, choice.scheme) == (name, scheme)


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_names_offer_near_ones(kind: Kind) -> None:
    name = next(iter(SHIPPED.paths(kind)))
    with pytest.raises(UnknownNameError, match="did you mean"):
        SHIPPED.path(kind, name + "z")


def test_earlier_homes_hide_later_ones(tmp_path: Path) -> None:
    folder = tmp_path / "hardware"
    folder.mkdir()
    shipped = (builtin_home() / "hardware" / "a100-80gb-sxm.yaml").read_text(encoding="utf-8")
    (folder / "a100-80gb-sxm.yaml").write_text(shipped.replace("title: ", "title: My ", 1), encoding="utf-8")
    assert Catalogue((tmp_path, builtin_home())).device("a100-80gb-sxm").title.startswith("My ")
    assert not Catalogue((builtin_home(), tmp_path)).device("a100-80gb-sxm").title.startswith("My ")
    assert Catalogue.standard([tmp_path]).homes[0] == tmp_path


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="does not exist"):
        Catalogue.standard([tmp_path / "absent"])


def test_a_model_may_be_a_file_or_a_folder(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "torch_dtype": "bfloat16",
        "architectures": ["LlamaForCausalLM"],
    }  # fmt: skip
    folder = tmp_path / "My Model"
    folder.mkdir()
    file = folder / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    by_file, by_folder = SHIPPED.model(str(file)).model, SHIPPED.model(str(folder)).model
    assert by_file.name == by_folder.name == "my-model"
    assert by_file.n_layers == 2
    own = builtin_home() / "models" / "llama-3.1-8b.yaml"
    assert SHIPPED.model(str(own)).model.name == "llama-3.1-8b"


def test_a_broken_config_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"{", b"\xff\xfe\x00", b"[]", b'{"hidden_size": -1}', b"null", b'{"model_type": 3}'):
        (tmp_path / "config.json").write_bytes(content)
        with pytest.raises(PerfmodelError):
            SHIPPED.model(str(tmp_path / "config.json"))


@given(st.text(max_size=30), st.sampled_from(KINDS))
@example("", "model")
@example("../../etc/passwd", "hardware")
@example("..", "hardware")
@example("-", "model")
@example("/", "model")
@settings(max_examples=60, deadline=None)
def test_no_name_breaks_the_catalogue(name: str, kind: Kind) -> None:
    """Models are looked up as paths too; names that the file system itself refuses are tested below."""
    if name.startswith("~"):
        return
    try:
        if kind == "model":
            SHIPPED.model(name)
        elif kind == "hardware":
            SHIPPED.hardware(name)
        elif kind == "scheme":
            SHIPPED.scheme(name)
        elif kind == "runtime":
            SHIPPED.runtime(name)
        else:
            SHIPPED.calibration(name)
    except PerfmodelError:
        return


@pytest.mark.parametrize(
    "name",
    [
        "x" * 5000,
        "~nobody-of-that-name/model",
        "a\x00b",
        "a\nb",
        "\ud800",
    ],
)
def test_names_that_no_file_can_have_are_refused(name: str) -> None:
    with pytest.raises(PerfmodelError):
        SHIPPED.model(name)
    with pytest.raises(PerfmodelError):
        SHIPPED.hardware(name)
    with pytest.raises(PerfmodelError):
        SHIPPED.calibration(name + ".yaml")
