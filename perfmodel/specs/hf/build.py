"""From a config.json to a model in normal form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from pydantic import ValidationError

from perfmodel.errors import Fault, SpecError
from perfmodel.specs.families import FAMILIES, Family, family_traits
from perfmodel.specs.hf.attention import AttentionKey, attention_keys, attention_of, traits_with_flags
from perfmodel.specs.hf.feedforward import FfnKey, ffn_keys, ffn_of
from perfmodel.specs.hf.fields import MOST_LAYERS, Fields, shown
from perfmodel.specs.hf.nesting import language_config
from perfmodel.specs.model import Layer, Model, Mtp, Published

__all__ = ["model_from_config", "validation_faults"]

Dtype = Literal["fp16", "bf16", "fp32"]

_D_MODEL: Final = ("hidden_size", "n_embd", "d_model", "model_dim", "n_embed")
_N_LAYERS: Final = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_transformer_layers")
_CONTEXT: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "n_ctx",
    "max_sequence_length",
    "max_context_length",
    "model_max_length",
)
_TIED: Final = ("tie_word_embeddings", "tie_embeddings", "share_input_output_layers")
_MTP: Final = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
_DTYPES: Final[Mapping[str, Dtype]] = {
    "float16": "fp16",
    "half": "fp16",
    "fp16": "fp16",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float32": "fp32",
    "float": "fp32",
    "fp32": "fp32",
}
_ASSUMED: Final = "gated MLP, RMSNorm, two norms a layer, no biases, head not tied to the embedding"


def validation_faults(error: ValidationError, prefix: str = "") -> tuple[Fault, ...]:
    """Return the faults that pydantic found, in this program's own words."""
    return tuple(
        Fault(
            where=".".join([*([prefix] if prefix else []), *(str(part) for part in found["loc"])]),
            got="nothing" if found["type"] == "missing" else shown(found["input"]),
            expected="this key" if found["type"] == "missing" else found["msg"],
        )
        for found in error.errors(include_url=False, include_context=False)
    )


def model_from_config(
    config: Mapping[str, object],
    *,
    name: str,
    structure: Mapping[str, object] | None = None,
    title: str = "",
    published: Published | None = None,
    sources: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
    defaults: Mapping[str, object] | None = None,
) -> Model:
    """Return the model that a Hugging Face config.json describes, in normal form.

    `structure` overrides traits of the family (the fields of `Family`); `defaults` stand in for keys that the config
    lacks. What had to be assumed stands in the model's `warnings`.

    Raises SpecError with every missing or wrong value at once.
    """
    if not isinstance(config, Mapping):
        raise SpecError(f"{name} is no model", where="config", got=shown(config), expected="an object with keys")
    flat = language_config(config)
    known = family_traits(_model_type(flat))
    try:
        family = Family.model_validate({**(known or Family()).model_dump(), **(structure or {})})
    except (ValidationError, TypeError) as error:
        faults = validation_faults(error, "structure") if isinstance(error, ValidationError) else ()
        raise SpecError(f"{name} is no model: its structure is wrong", faults=faults) from error
    stated = {key: getattr(family, key) for key in structure or {}}
    fields = Fields(flat, {**family.absent, **(defaults or {})})
    if known is None:
        fields.warnings.append(_unknown_family(flat))
    try:
        parts = _parts(fields, traits_with_flags(fields, family).model_copy(update=stated))
        _refuse(fields, name)
        return Model.model_validate(
            {
                **parts,
                "name": name,
                "title": title,
                "weight_scheme": _weight_scheme(flat),
                "published": published or Published(),
                "warnings": tuple(fields.warnings),
                "sources": sources,
                "notes": notes,
            }
        )
    except ValidationError as error:
        _refuse(fields, name)
        raise SpecError(f"{name} is no model", faults=validation_faults(error)) from error


def _refuse(fields: Fields, name: str) -> None:
    """Raise SpecError when faults were met, each of them once."""
    if fields.faults:
        faults = tuple(dict.fromkeys(fields.faults))
        raise SpecError(f"{name}: the config cannot be used as it stands", faults=faults)


def _model_type(config: Mapping[str, object]) -> str:
    """Return `model_type`, or the known type that the first architecture's name spells."""
    stated = config.get("model_type")
    if isinstance(stated, str) and stated:
        return stated
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list | tuple) and architectures else ""
    plain = str(first).partition("For")[0].lower()
    return next((known for known in FAMILIES if plain and known.replace("_", "").lower() == plain), "")


def _unknown_family(config: Mapping[str, object]) -> str:
    stated = config.get("model_type")
    what = f"model_type {shown(stated)} is not known" if stated else "model_type is missing"
    return f"{what}: assumed {_ASSUMED}, unless the config says otherwise"


def _parts(fields: Fields, family: Family) -> dict[str, object]:
    """Return the fields of the model that the config decides."""
    if fields.flag("is_encoder_decoder"):
        fields.fault("is_encoder_decoder", True, "a decoder-only model", "encoder-decoder models are not modelled")
    d_model = fields.size(*_D_MODEL)
    n_layers = fields.size(*_N_LAYERS, most=MOST_LAYERS)
    context = fields.maybe_size(*_CONTEXT)
    attention = attention_keys(fields, family, n_layers, context)
    ffn = ffn_keys(fields, family, n_layers, d_model)
    layers, pattern = _layers(fields, family, tuple(zip(attention, ffn, strict=True)), d_model)
    tied = fields.flag(*_TIED)
    return {
        "family": fields.text("model_type"),
        "d_model": d_model,
        "vocab_size": fields.size("padded_vocab_size" if fields.found("padded_vocab_size") else "vocab_size"),
        "max_position_tokens": context,
        "tied_embeddings": family.tied if tied is None else tied,
        "lm_head_bias": family.lm_head_bias,
        "n_position_rows": _position_rows(fields, family, context),
        "embed_norm": family.embed_norm,
        "final_norm": family.final_norm,
        "n_other_params": _streams(fields, d_model)[1],
        "layers": layers,
        "pattern": pattern,
        "dtype": _dtype(fields),
        "mtp": _mtp(fields, family),
        "vision_params": family.vision_params,
    }


def _layers(
    fields: Fields, family: Family, keys: tuple[tuple[AttentionKey, FfnKey], ...], d_model: int
) -> tuple[tuple[Layer, ...], tuple[int, ...]]:
    """Return the distinct layers and the index of each of the model's layers among them."""
    distinct = list(dict.fromkeys(keys))
    layers = tuple(
        Layer(
            attention=attention_of(fields, family, attention, d_model),
            ffn=ffn_of(fields, family, ffn),
            n_norms=family.n_norms,
            norm_bias=family.norm_bias,
            n_other_params=_streams(fields, d_model)[0],
        )
        for attention, ffn in distinct
    )
    place = {key: index for index, key in enumerate(distinct)}
    return layers, tuple(place[key] for key in keys)


def _streams(fields: Fields, d_model: int) -> tuple[int, int]:
    """Return the weights of hyper-connections in a layer and at the head (DeepSeek-V4); zeros where there are none.

    m residual streams: each of the two blocks of a layer holds a matrix [m d, (2 + m) m] with a bias and three scales;
    the head holds [m d, m] with a bias and one scale.
    """
    m = fields.count("hc_mult")
    if not m:
        return 0, 0
    mixed = (2 + m) * m
    return 2 * (mixed * m * d_model + mixed + 3), m * m * d_model + m + 1


def _position_rows(fields: Fields, family: Family, context: int | None) -> int:
    """Return the rows of a learned position table."""
    if family.position_offset is None:
        return 0
    if context is None:
        fields.missing("max_position_embeddings", "n_positions", cure="the learned position table has that many rows")
    return (context or 0) + family.position_offset


def _mtp(fields: Fields, family: Family) -> Mtp | None:
    n_modules = fields.count(*_MTP, default=family.n_mtp_modules)
    if not n_modules or not family.mtp_stored:
        return None
    if n_modules > MOST_LAYERS:
        fields.fault(_MTP[0], n_modules, f"at most {MOST_LAYERS}")
        return None
    return Mtp(n_modules=n_modules, duplicates_embedding=family.mtp_duplicates_embedding)


def _dtype(fields: Fields) -> Dtype:
    stated = fields.text("torch_dtype", "dtype").removeprefix("torch.")
    if not stated or stated in _DTYPES:
        return _DTYPES.get(stated, "bf16")
    fields.warnings.append(f"dtype {shown(stated)} is not known: assumed bfloat16 for what is not quantised")
    return "bf16"


def _weight_scheme(config: Mapping[str, object]) -> str:
    """Return the name of the quantisation that the config states, none for 16-bit weights."""
    stated = config.get("quantization_config") or config.get("compression_config")
    if not stated:
        return "none"
    if not isinstance(stated, Mapping):
        raise SpecError(
            "the quantisation of the checkpoint cannot be read",
            where="quantization_config",
            got=shown(stated),
            expected="an object with keys",
        )
    from perfmodel.specs.quantization_config import scheme_name

    return scheme_name(stated)
