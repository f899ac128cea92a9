"""Where the language model stands in a config: at the top, or inside the config of a multimodal model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["language_config"]

_WIDTHS: Final = ("hidden_size", "n_embd", "d_model", "model_dim", "n_embed")
_NESTS: Final = (
    "text_config",
    "thinker_config",
    "llm_config",
    "language_config",
    "language_model_config",
    "text_model_config",
    "decoder_config",
    "llm",
    "language_model",
)
_OUTER: Final = (
    "tie_word_embeddings",
    "torch_dtype",
    "dtype",
    "quantization_config",
    "compression_config",
    "vocab_size",
)
"""Keys of an outer config that hold for the inner one where it is silent."""
_SUBS: Final = ("attn_config", "ffn_config")
_DEEPEST: Final = 5


def _inner(config: Mapping[str, object], depth: int) -> Mapping[str, object] | None:
    for name in _NESTS:
        nested = config.get(name)
        if not isinstance(nested, Mapping) or depth >= _DEEPEST:
            continue
        deeper = _inner(nested, depth + 1)
        found = deeper if deeper is not None else (nested if any(nested.get(w) is not None for w in _WIDTHS) else None)
        if found is not None:
            outer = {key: config[key] for key in _OUTER if config.get(key) is not None}
            return {**outer, **{key: value for key, value in found.items() if value is not None}}
    return None


def _flat(config: Mapping[str, object]) -> Mapping[str, object]:
    """Return the config with attention and feed-forward sub-objects (MPT, DBRX) lifted to its own level."""
    subs = [sub for name in _SUBS if isinstance(sub := config.get(name), Mapping)]
    lifted = {key: value for sub in subs for key, value in sub.items() if key != "model_type"}
    return {**lifted, **{key: value for key, value in config.items() if value is not None}}


def language_config(config: Mapping[str, object]) -> Mapping[str, object]:
    """Return the config of the language model: the innermost nested one that has a width, else the config itself.

    >>> language_config({"thinker_config": {"text_config": {"hidden_size": 8}}, "dtype": "float16"})["dtype"]
    'float16'
    """
    inner = _inner(config, 0)
    return _flat(config if inner is None else inner)
