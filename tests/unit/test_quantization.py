"""Schemes, their names, and the configs that state them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import SpecError, UnknownNameError
from perfmodel.specs.formats import GGML_FORMATS, Format
from perfmodel.specs.quantization import Rule, Scheme, scheme_by_name
from perfmodel.specs.quantization_config import scheme_from_config, scheme_name

FOLDER = Path(__file__).parents[2] / "models" / "quantization"
FILES: dict[str, dict[str, Any]] = {p.stem: yaml.safe_load(p.read_text()) for p in sorted(FOLDER.glob("*.yaml"))}
ALIASES = {alias: name for name, content in FILES.items() for alias in content.get("names", [])}


def load(name: str) -> Mapping[str, Any] | None:
    """Return the file of a scheme or alias, None where there is none."""
    return FILES.get(ALIASES.get(name, name))


class TestCatalogue:
    @pytest.mark.parametrize("name", sorted(FILES))
    def test_each_file_is_a_scheme_of_its_own_name(self, name: str) -> None:
        scheme = scheme_by_name(name, load)
        assert scheme.name == name
        assert scheme.title
        assert scheme.sources

    def test_no_alias_is_said_twice(self) -> None:
        said = [alias for content in FILES.values() for alias in content.get("names", [])]
        assert len(said) == len(set(said))
        assert not set(said) & set(FILES)
        assert all(alias == alias.lower() for alias in said)

    @pytest.mark.parametrize(
        "name",
        [
            "none",
            "awq-int4",
            "gptq-int8",
            "fp8-block",
            "int4-weight-only",
            "int8",
            "moe w4a8",
            "w4a4",
            "w4a8c8",
            "w8a8c16",
            "exl2-2.5bpw",
            "q4",
            "int4",
            "int4-g32",
            "int8-weight-only",
            "nvfp4",
            "mxfp4",
            "q4_k_m",
            "w8a8-ascend",
        ],
    )
    def test_names_in_measurement_tables_resolve(self, name: str) -> None:
        assert scheme_by_name(name, load).weight_bits <= 16

    def test_expected_bits(self) -> None:
        bits = {name: scheme_by_name(name, load).bits_with_scales for name in FILES}
        assert bits["awq-int4-g128"] == 4.15625
        assert bits["marlin-int4-g128"] == 4.125
        assert bits["nvfp4"] == 4.5
        assert bits["mxfp4"] == 4.25
        assert bits["fp8-block128"] == pytest.approx(8.00195, abs=1e-5)
        assert bits["none"] == 16
        assert bits["fp32"] == 32


class TestFormats:
    @pytest.mark.parametrize(
        ("name", "bits"),
        [
            ("q8_0", 8.5),
            ("q6_k", 6.5625),
            ("q5_k", 5.5),
            ("q4_k", 4.5),
            ("q4_0", 4.5),
            ("q3_k", 3.4375),
            ("q2_k", 2.625),
            ("iq4_xs", 4.25),
            ("q5_0", 5.5),
        ],
    )
    def test_gguf_blocks(self, name: str, bits: float) -> None:
        assert GGML_FORMATS[name].bits_with_scales == bits

    def test_fallbacks_exist(self) -> None:
        assert {f.fallback for f in GGML_FORMATS.values() if f.fallback} <= set(GGML_FORMATS)

    def test_scales_without_a_group_are_refused(self) -> None:
        with pytest.raises(ValueError, match="group_size"):
            Format(element_bits=4, scale_bits=16)

    @given(st.integers(1, 9000), st.integers(1, 9000), st.sampled_from(sorted(FILES)))
    def test_a_matrix_takes_at_least_its_elements(self, d_in: int, d_out: int, name: str) -> None:
        stored = scheme_by_name(name, load).weight_format
        if stored is not None:
            assert stored.matrix_bits(d_in, d_out) >= stored.element_bits * d_in * d_out


class TestNames:
    def test_derived_groups(self) -> None:
        assert scheme_by_name("awq-int4-g64", load).bits_with_scales == 4.3125  # 4 + 20/64
        assert scheme_by_name("gptq-int8-g32", load).bits_with_scales == 8.75  # 8 + 24/32
        assert scheme_by_name("gptq-int8-g32", load).name == "gptq-int8-g32"
        assert scheme_by_name("fp8-block64", load).bits_with_scales == 8 + 32 / 64**2
        assert scheme_by_name("exl2-2.5bpw", load).bits_with_scales == 2.5

    def test_per_channel(self) -> None:
        stored = scheme_by_name("marlin-int4-channel", load).weight_format
        assert stored == Format(element_bits=4, channel_bits=16)

    def test_tail_leaves_parts_alone_or_adds_them(self) -> None:
        scheme = scheme_by_name("marlin-int4-g32!attention+lm_head", load)
        assert scheme.part_bits("attention") == 16
        assert scheme.part_bits("experts") == 4
        assert scheme.part_bits("lm_head") == 4

    def test_tail_with_layers(self) -> None:
        scheme = scheme_by_name("fp8-block128!experts.down_proj:0-2,5", load)
        assert scheme.depends_on_layer
        (first,) = scheme.stored_formats("down_proj", "experts", linear=True, layer=5, n_layers=10)
        (other,) = scheme.stored_formats("down_proj", "experts", linear=True, layer=6, n_layers=10)
        assert first[0] is None
        assert other[0] is not None
        assert dict(scheme.stored_formats("down_proj", "experts", linear=True, n_layers=10))[None] == 0.4

    @pytest.mark.parametrize("name", ["awq-int4!nonsense", "fp8!attention:x", "fp8!"])
    def test_a_broken_tail_is_an_error(self, name: str) -> None:
        with pytest.raises(SpecError, match="tail"):
            scheme_by_name(name, load)

    @pytest.mark.parametrize("name", ["int3-g7x", "awq-int4-g0", "fp8-block0", "q4_k_xxl", ""])
    def test_unknown(self, name: str) -> None:
        with pytest.raises(UnknownNameError):
            scheme_by_name(name, load)

    def test_a_broken_file_names_its_faults(self) -> None:
        with pytest.raises(SpecError, match="weight_dtype"):
            scheme_by_name("x", lambda name: {"name": name, "sources": []})


class TestScheme:
    def test_compute_and_kernel_follow_the_tensor(self) -> None:
        scheme = scheme_by_name("fp8", load)
        assert scheme.compute_of("q_proj", "attention", linear=True) == "fp8"
        assert scheme.compute_of("lm_head", "lm_head", linear=False) == "16bit"
        assert scheme.kernel_of("router", "router", linear=False) == "16bit"
        assert scheme_by_name("mxfp4", load).kernel_of("q_proj", "attention", linear=True) == "16bit"
        assert scheme_by_name("fp32", load).compute_of("q_proj", "attention", linear=True) == "fp32"

    def test_weight_only_on_a_device_without_the_engine(self) -> None:
        fp8 = scheme_by_name("fp8", load).weight_only()
        assert (fp8.compute, fp8.kernel, fp8.dynamic_activations) == ("16bit", "weight_only_int8", False)
        assert scheme_by_name("nvfp4", load).weight_only().kernel == "weight_only_int4"
        awq = scheme_by_name("awq-int4-g128", load)
        assert awq.weight_only() is awq

    def test_more_bits_picks_half_of_28_layers(self) -> None:
        rule = Rule(layers="more_bits", format="q6_k")
        picked = [i for i in range(28) if rule.layer_frac(i, 28)]
        assert picked == [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]

    def test_an_unknown_format_is_refused(self) -> None:
        with pytest.raises(ValueError, match="expected weight, high"):
            Rule(format="q9_z")
        with pytest.raises(ValueError, match="expected a format"):
            Scheme(name="x", weight_dtype="int4", compute="16bit", kernel="16bit", weight="q9_z", sources=("s",))


def compressed(
    weights: dict[str, Any], inputs: dict[str, Any] | None = None, ignore: list[str] | None = None
) -> dict[str, Any]:
    """Return a compressed-tensors config of one group."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ignore or []}


class TestConfig:
    def test_compressed_int4_with_ignored_head(self) -> None:
        config = compressed(
            {"num_bits": 4, "group_size": 128, "type": "int", "symmetric": True}, None, ["lm_head", "re:.*mlp.gate$"]
        )
        scheme = scheme_from_config(config, load)
        assert scheme.weight_bits == 4
        assert scheme.bits_with_scales == 4.125  # a 16-bit scale for 128 weights
        assert scheme.part_bits("lm_head") == 16

    @pytest.mark.parametrize(
        ("config", "name"),
        [
            ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}, "awq-int4-g64"),
            ({"quant_method": "awq", "w_bit": 4, "q_group_size": 128, "zero_point": False}, "marlin-int4-g128"),
            ({"quant_method": "gptq", "bits": 8, "group_size": 32, "sym": True, "desc_act": True}, "gptq-int8-g32"),
            ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "gptq-int4-channel"),
            ({"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True}, "gptq-int4-g128+lm_head"),
            ({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}, "fp8-block128"),
            ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8-static"),
            ({"quant_method": "fp8"}, "fp8"),
            ({"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}, "fp8-channel"),
            ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, "nvfp4"),
            ({"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}, "fp8-static"),
            ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bnb-nf4"),
            ({"load_in_4bit": True, "bnb_4bit_use_double_quant": True}, "bnb-nf4-double"),
            ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bnb-int8"),
            ({"model_quant_type": "W8A8_DYNAMIC"}, "w8a8-ascend-dynamic"),
            ({"quant_method": "torchao", "quant_type": "int8_weight_only"}, "int8-weight-only"),
            ({"quant_method": "exl2", "bits": 2.5}, "exl2-2.5bpw"),
            (
                {
                    "quant_method": "mxfp4",
                    "modules_to_not_convert": [
                        "model.layers.*.self_attn",
                        "model.layers.*.mlp.router",
                        "model.embed_tokens",
                        "lm_head",
                    ],
                },
                "mxfp4",
            ),
            (
                compressed(
                    {"num_bits": 8, "type": "int", "strategy": "channel"}, {"num_bits": 8, "type": "int"}, ["lm_head"]
                ),
                "w8a8",
            ),
            (compressed({"num_bits": 8, "type": "int", "strategy": "channel"}, None, ["lm_head"]), "int8-weight-only"),
            (
                compressed({"num_bits": 8, "type": "float", "strategy": "channel"}, {"num_bits": 8, "type": "float"}),
                "fp8-channel+lm_head",
            ),
            (
                compressed(
                    {"num_bits": 8, "type": "float", "strategy": "tensor"},
                    {"num_bits": 8, "dynamic": False},
                    ["lm_head"],
                ),
                "fp8-static",
            ),
            (compressed({"num_bits": 4, "type": "float", "group_size": 16}, {"num_bits": 4}, ["lm_head"]), "nvfp4"),
            (
                compressed({"num_bits": 4, "type": "int", "group_size": 32, "symmetric": False}, None, ["lm_head"]),
                "awq-int4-g32",
            ),
            (compressed({"num_bits": 4, "type": "int", "group_size": 128}, {"num_bits": 8}, ["lm_head"]), "w4a8"),
        ],
    )
    def test_names(self, config: dict[str, Any], name: str) -> None:
        assert scheme_name(config) == name
        assert scheme_by_name(name, load).quantises

    def test_regular_expressions_leave_whole_parts_alone(self) -> None:
        config = compressed(
            {"num_bits": 4, "type": "int", "group_size": 32},
            None,
            ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
        )
        assert scheme_name(config) == "marlin-int4-g32!attention!dense_mlp!shared_experts"

    def test_listed_modules_of_some_layers(self) -> None:
        names = [f"model.layers.{i}.self_attn.{p}_proj" for i in (0, 1, 7) for p in "qkvo"]
        config = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": [*names, "model.layers.0.mlp.down_proj"]}
        assert scheme_name(config) == "fp8-channel!attention:0-1,7!dense_mlp.down_proj:0"

    def test_vision_modules_do_not_matter(self) -> None:
        config = compressed(
            {"num_bits": 4, "type": "int", "group_size": 128}, None, ["lm_head", "re:visual.*", "model.vision_tower"]
        )
        assert scheme_name(config) == "marlin-int4-g128"

    def test_ascend_description_of_mixed_weights(self) -> None:
        description = {
            "model_quant_type": "W8A8_DYNAMIC",
            "model.embed_tokens.weight": "FLOAT",
            "model.layers.0.self_attn.q_proj.weight": "W8A8_DYNAMIC",
            "model.layers.3.mlp.experts.0.gate_proj.weight": "W4A8_DYNAMIC",
        }
        assert scheme_name(description) == "w4a8-experts"
        del description["model.layers.3.mlp.experts.0.gate_proj.weight"]
        description["model.layers.0.mlp.down_proj.weight"] = "FLOAT"
        assert scheme_name(description) == "w8a8-ascend-dynamic!dense_mlp.down_proj:0"

    def test_an_unknown_method_names_the_known_ones(self) -> None:
        with pytest.raises(SpecError, match=r"awq.*compressed-tensors.*gptq"):
            scheme_name({"quant_method": "sparsegpt"})

    @pytest.mark.parametrize(
        "config",
        [
            {},
            {"quant_method": "gptq", "bits": "four"},
            {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
            {"quant_method": "compressed-tensors"},
            compressed({"num_bits": 3, "type": "int"}),
            compressed({"num_bits": 4, "type": "int", "group_size": 32}, None, ["re:(["]),
        ],
    )
    def test_what_cannot_be_read_is_an_error(self, config: dict[str, Any]) -> None:
        with pytest.raises(SpecError):
            scheme_name(config)
