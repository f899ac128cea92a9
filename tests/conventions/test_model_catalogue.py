"""The shipped models: every file is readable, sourced and named once, and counts to what was published."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
import yaml

from perfmodel.errors import SpecError
from perfmodel.specs.catalogue_model import catalogue_entry, catalogue_name, model_from_catalogue
from perfmodel.specs.families import FAMILIES
from perfmodel.specs.model import FixedWork, Model
from perfmodel.work.kv import kv_bytes_per_token, kv_footprint
from perfmodel.work.params import param_counts

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "models").glob("*.yaml"))
GOLDEN = ROOT / "tests" / "golden" / "model_counts.csv"
UNEXPLAINED = {"kimi-k2": 3416}
"""Published minus counted, where the two differ: 61 layers x 56."""


@cache
def content(name: str) -> dict[str, object]:
    data = yaml.safe_load((ROOT / "models" / f"{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(data, dict)
    return data


@cache
def model(name: str) -> Model:
    found = model_from_catalogue(content(name), content)
    assert isinstance(found, Model)
    return found


NAMES = [file.stem for file in FILES]
MODELS = [name for name in NAMES if content(name)["kind"] == "model"]
with GOLDEN.open(encoding="utf-8", newline="") as rows:
    COUNTS = {row.pop("model"): {key: int(value) for key, value in row.items()} for row in csv.DictReader(rows)}


def test_all_are_there() -> None:
    assert len(COUNTS) == 92
    assert set(COUNTS) <= set(MODELS)


@pytest.mark.parametrize("name", NAMES)
def test_file_is_readable_and_sourced(name: str) -> None:
    data = content(name)
    assert data["name"] == name == catalogue_name(name)
    assert data["sources"]
    assert isinstance(model_from_catalogue(data, content), Model | FixedWork)


@pytest.mark.parametrize("name", MODELS)
def test_nothing_had_to_be_assumed(name: str) -> None:
    assert model(name).warnings == ()
    assert model(name).family in FAMILIES


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_counts(name: str) -> None:
    counts, expected = param_counts(model(name)), COUNTS[name]
    assert counts.total == expected["total"]
    assert counts.active_incl_embedding == expected["active_incl"]
    assert counts.active_excl_input_embedding == expected["active_excl_in"]
    assert counts.active_excl_embed_and_head == expected["active_excl_both"]
    assert kv_bytes_per_token(model(name)) == expected["kv_bytes_fp16"]


@pytest.mark.parametrize("name", MODELS)
def test_counts_equal_published_ones(name: str) -> None:
    published, counts = model(name).published, param_counts(model(name))
    if published.n_params is not None:
        assert published.n_params - counts.total == UNEXPLAINED.get(name, 0)
    if published.n_params_with_mtp is not None:
        assert published.n_params_with_mtp == counts.with_mtp
    assert bool(published.difference_explained) == (name in UNEXPLAINED)


def test_many_have_an_exact_published_count() -> None:
    published = [model(name).published for name in MODELS]
    assert sum(p.n_params is not None or p.n_params_with_mtp is not None for p in published) >= 65


def test_every_name_is_used_once() -> None:
    used = Counter(name for name in NAMES)
    for name in NAMES:
        listed = content(name).get("names", [])
        assert isinstance(listed, list)
        used.update(str(alias).lower() for alias in listed)
    assert [name for name, n in used.items() if n > 1] == []


def test_every_hf_id_is_used_once() -> None:
    used = Counter(str(content(name).get("hf_id", name)).lower() for name in NAMES)
    assert [name for name, n in used.items() if n > 1] == []


@pytest.mark.parametrize(
    ("name", "state", "index", "window"),
    [
        ("qwen3-next-80b-a3b", 75497472 + 1769472, 0, 0),  # 36 fp32 states, 36 convolution tails
        ("minimax-m1", 146800640, 0, 0),  # 70 layers x 64 x 128 x 128 x 2
        ("deepseek-v3.2", 0, 61 * 132, 0),
        ("glm-5", 0, 78 * 132, 0),
        ("glm-5.2", 0, 21 * 132, 0),
        ("deepseek-v4-flash", 43 * 128 * 512 * 2, 21 * 128 * 2 / 4, 0),
        ("deepseek-v4-pro", 61 * 128 * 512 * 2, 30 * 128 * 2 / 4, 0),
        ("gpt-oss-20b", 0, 0, 12 * 128 * 2048),  # 12 layers x 128 tokens x 2 x 8 x 64 x 2 bytes
        ("gemma-3-27b", 0, 0, 436207616),
        ("mistral-7b-v0.1", 0, 0, 536870912),
    ],
)
def test_caches_that_do_not_just_grow(name: str, state: float, index: float, window: float) -> None:
    held = kv_footprint(model(name))
    assert held.state_bytes_per_sequence == state
    assert held.index_bytes_per_token == index
    assert sum(per_token * tokens for per_token, tokens in held.windows) == window


def test_fp8_layout_of_deepseek_v32() -> None:
    assert kv_footprint(model("deepseek-v3.2"), layout="fp8_ds_mla").bytes_per_token == 61 * 656


def test_deepseek_v4_pro_at_a_million_tokens() -> None:
    held = kv_footprint(model("deepseek-v4-pro")).held_bytes(1048576.0)
    assert held / 2**30 == pytest.approx(9.62, abs=0.005)  # as public pages print it


def test_resnet_is_fixed_work() -> None:
    work = model_from_catalogue(content("resnet-50"))
    assert isinstance(work, FixedWork)
    assert work.n_params == 25557032


class TestEntries:
    def test_a_config_becomes_an_entry_that_reads_back(self) -> None:
        config = content("qwen3-8b")["config"]
        assert isinstance(config, Mapping)
        entry = catalogue_entry(config, "My Qwen/Qwen3 8B", "a file of mine")
        assert entry["name"] == "qwen3-8b"
        again = model_from_catalogue(yaml.safe_load(yaml.safe_dump(entry)))
        assert isinstance(again, Model)
        assert param_counts(again).total == param_counts(model("qwen3-8b")).total

    @pytest.mark.parametrize(
        "data", [None, [], {}, {"kind": "model"}, {"kind": "model", "name": "A b", "sources": ["x"]}]
    )
    def test_what_is_no_entry(self, data: object) -> None:
        with pytest.raises(SpecError):
            model_from_catalogue(data)  # type: ignore[arg-type]

    def test_unknown_keys_are_named(self) -> None:
        with pytest.raises(SpecError, match="hf_idd"):
            model_from_catalogue({**content("qwen3-8b"), "hf_idd": "x"})

    def test_an_entry_without_source_is_refused(self) -> None:
        with pytest.raises(SpecError, match="sources"):
            model_from_catalogue({key: value for key, value in content("qwen3-8b").items() if key != "sources"})

    def test_like_needs_a_resolver_and_must_end(self) -> None:
        data = content("llama-3-8b")
        with pytest.raises(SpecError, match="another file"):
            model_from_catalogue(data)
        with pytest.raises(SpecError, match="builds on itself"):
            model_from_catalogue(data, lambda _: {**data, "like": "llama-3.1-8b", "name": "llama-3.1-8b"})

    def test_like_keeps_what_it_does_not_change(self) -> None:
        old, new = model("llama-3-8b"), model("llama-3.1-8b")
        assert (old.max_position_tokens, new.max_position_tokens) == (8192, 131072)
        assert old.layers == new.layers
