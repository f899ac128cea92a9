"""Configs that are wrong, files that hold none, and arbitrary input: a model or a clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from perfmodel.errors import SpecError
from perfmodel.specs.families import FAMILIES
from perfmodel.specs.hf_config import config_from_path, config_from_text, model_from_config
from perfmodel.work.kv import kv_bytes_per_token
from perfmodel.work.params import param_counts
from tests.unit.hf_parts import LATENT, LLAMA, MOE, read


class TestFaults:
    def test_all_missing_fields_at_once(self) -> None:
        with pytest.raises(SpecError) as caught:
            read({"model_type": "llama"})
        text = str(caught.value)
        for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"):
            assert key in text
        assert "Traceback" not in text

    @pytest.mark.parametrize(
        "value", [0, -1, "4096", 2**60, True, [4096], {"a": 1}, float("nan"), float("inf"), 4096.5]
    )
    @pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads"])
    def test_bad_values(self, key: Any, value: Any) -> None:
        with pytest.raises(SpecError, match=key):
            read(LLAMA, **{key: value})

    def test_whole_floats_pass(self) -> None:
        assert read(LLAMA, hidden_size=4096.0).d_model == 4096

    @pytest.mark.parametrize("config", [None, [], "text", 3])
    def test_no_mapping(self, config: Any) -> None:
        with pytest.raises(SpecError, match="object with keys"):
            read(config)

    def test_a_bad_name(self) -> None:
        with pytest.raises(SpecError, match="name"):
            model_from_config(LLAMA, name="Bad Name")

    def test_encoder_decoders_are_refused(self) -> None:
        with pytest.raises(SpecError, match="decoder-only"):
            read(LLAMA, is_encoder_decoder=True)

    def test_quantisation_of_the_wrong_type(self) -> None:
        with pytest.raises(SpecError, match="quantization_config"):
            read(LLAMA, quantization_config="fp8")

    def test_defaults_stand_in(self) -> None:
        config = {"hidden_size": 6144, "num_attention_heads": 48, "num_key_value_heads": 8, "num_hidden_layers": 56}
        model = model_from_config(config, name="m", defaults={"vocab_size": 32000, "intermediate_size": 16384})
        assert kv_bytes_per_token(model) == 229376


class TestFiles:
    def test_file_and_directory(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(json.dumps(LLAMA))
        assert config_from_path(tmp_path) == config_from_path(tmp_path / "config.json") == LLAMA

    def test_byte_order_mark(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())
        assert config_from_path(tmp_path) == LLAMA

    @pytest.mark.parametrize(
        ("raw", "said"),
        [
            (b"", "is empty"),
            (b"  \n", "is empty"),
            (b'{"a": 1,\n "b": }', "line 2"),
            (b"[1, 2]", "JSON object"),
            (b"3", "JSON object"),
            (b"\x93NUMPY\x00\xff", "not UTF-8"),
            (b"[" * 100_000, "cannot be parsed"),
        ],
    )
    def test_what_is_no_config(self, tmp_path: Path, raw: bytes, said: str) -> None:
        (tmp_path / "config.json").write_bytes(raw)
        with pytest.raises(SpecError, match=said):
            config_from_path(tmp_path)

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match="cannot be read"):
            config_from_path(tmp_path / "nothing")

    def test_numbers_too_long_to_parse(self) -> None:
        with pytest.raises(SpecError, match="cannot be parsed"):
            config_from_text('{"a": ' + "1" * 5000 + "}", "here")


_MORE_KEYS = (
    "head_dim layer_types sliding_window sliding_window_pattern use_sliding_window max_window_layers "
    "attn_type_list  full_attention_interval index_n_heads index_head_dim index_topk indexer_types "
    "index_topk_pattern compress_ratios  o_groups o_lora_rank hc_mult text_config quantization_config "
    "torch_dtype multi_query block_configs  ffn_multipliers moe_layer_freq mlp_only_layers mlp_layer_types "
    "num_nextn_predict_layers attn_config  architectures moe_layers attention_bias n_shared_experts "
    "first_k_dense_replace linear_num_key_heads expansion_ratio "
)
KEYS = st.sampled_from(sorted({*LLAMA, *LATENT, *MOE, *_MORE_KEYS.split()}))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 200)
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["full_attention", "sliding_attention", "linear_attention", "dense", "shared", "float16"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5) | KEYS, inner, max_size=4),
    max_leaves=8,
)
TYPES = st.sampled_from([*FAMILIES, "unknown"])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(kind=TYPES, changes=st.dictionaries(KEYS, VALUES, max_size=6), layers=st.integers(1, 4))
@example(kind="mixtral", changes={"num_experts": 2, "num_experts_per_tok": 2**40}, layers=1)
def test_any_config_gives_a_model_or_a_spec_error(kind: str, changes: dict[str, object], layers: int) -> None:
    config = {**LLAMA, "model_type": kind, "num_hidden_layers": layers, **changes}
    try:
        model = model_from_config(config, name="m")
    except SpecError:
        return
    counts = param_counts(model)
    assert counts.total > 0
    assert counts.active_excl_embed_and_head <= counts.active_incl_embedding <= counts.total <= counts.with_mtp
    assert kv_bytes_per_token(model) >= 0


@given(VALUES)
def test_anything_at_all_is_no_crash(config: object) -> None:
    with pytest.raises(SpecError):
        model_from_config(config, name="m")  # type: ignore[arg-type]
