"""What a sequence leaves in the cache of one rank: bytes that grow with its tokens, and bytes that do not.

Four ways to grow: keys and values of every token (softmax), of the last `window` tokens (sliding), one latent vector
per token (MLA), one entry per `ratio` tokens (DeepSeek-V4). Linear attention and short convolutions keep a fixed state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from perfmodel.estimate import Num
from perfmodel.specs.model import (
    Attention,
    CompressedAttention,
    Indexer,
    LatentAttention,
    Layer,
    LinearAttention,
    Model,
    SoftmaxAttention,
)

__all__ = [
    "STATE_BYTES",
    "KvFootprint",
    "KvLayout",
    "kv_bytes_per_token",
    "kv_elements_per_token",
    "kv_footprint",
    "kv_heads_per_rank",
    "layer_kv_footprint",
]

KvLayout = Literal["plain", "fp8_ds_mla"]
"""fp8_ds_mla, vLLM's and FlashMLA's cache of DeepSeek-V3.2: FP8 latent, a 4-byte scale per 128, rope part in 16 bit."""

STATE_BYTES: Final = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0}
_CONVSTATE_BYTES: Final = 2.0
"""The tail of a convolution is kept in the 16 bits of the activations."""
_SCALED_BLOCK: Final = 128


@dataclass(frozen=True, slots=True)
class KvFootprint:
    """Cache bytes of one sequence on one rank.

    `bytes_per_token` and `index_bytes_per_token` grow without end; each window (bytes per token, tokens) grows until it
    is full; the state is there from the first token on.
    """

    bytes_per_token: float = 0.0
    index_bytes_per_token: float = 0.0
    windows: tuple[tuple[float, float], ...] = ()
    state_bytes_per_sequence: float = 0.0

    @property
    def window_bytes_per_token(self) -> float:
        """Bytes that one token adds to the windows while none of them is full."""
        return sum(per_token for per_token, _ in self.windows)

    @property
    def window_tokens(self) -> float:
        """Tokens of the longest window; 0 without any."""
        return max((tokens for _, tokens in self.windows), default=0.0)

    @property
    def growth_bytes_per_token(self) -> float:
        """Bytes that one token adds once all windows are full."""
        return self.bytes_per_token + self.index_bytes_per_token

    def held_bytes(self, n_tokens: Num) -> Num:
        """Return the bytes held for a sequence of `n_tokens`; broadcasts.

        >>> KvFootprint(bytes_per_token=10.0, windows=((5.0, 100.0),), state_bytes_per_sequence=7.0).held_bytes(200.0)
        2507.0
        """
        held = self.growth_bytes_per_token * n_tokens + self.state_bytes_per_sequence
        for per_token, tokens in self.windows:
            held = held + per_token * np.minimum(n_tokens, tokens)
        return held if isinstance(held, np.ndarray) else float(held)

    def times(self, n: int) -> KvFootprint:
        """Return the footprint of n such layers."""
        return KvFootprint(
            n * self.bytes_per_token,
            n * self.index_bytes_per_token,
            tuple((n * per_token, tokens) for per_token, tokens in self.windows),
            n * self.state_bytes_per_sequence,
        )

    def __add__(self, other: KvFootprint) -> KvFootprint:
        """Return both together; windows of equal length merge."""
        windows: dict[float, float] = {}
        for per_token, tokens in (*self.windows, *other.windows):
            windows[tokens] = windows.get(tokens, 0.0) + per_token
        return KvFootprint(
            self.bytes_per_token + other.bytes_per_token,
            self.index_bytes_per_token + other.index_bytes_per_token,
            tuple((per_token, tokens) for tokens, per_token in sorted(windows.items())),
            self.state_bytes_per_sequence + other.state_bytes_per_sequence,
        )


def kv_heads_per_rank(n_kv_heads: int, tp: int) -> int:
    """Return the key-value heads that one tensor-parallel rank stores: a share, and never less than one.

    >>> kv_heads_per_rank(8, 4), kv_heads_per_rank(8, 16), kv_heads_per_rank(10, 4)
    (2, 1, 3)
    """
    return max(1, -(-n_kv_heads // tp))


def _softmax_elements(attention: SoftmaxAttention, tp: int) -> float:
    return float(kv_heads_per_rank(attention.n_kv_heads, tp) * (attention.d_head + attention.d_v))


def kv_elements_per_token(layer: Layer, *, tp: int = 1) -> float:
    """Return the elements that one token leaves in the layer's cache, on average and while no window is full.

    Index keys are apart, and so is the window of DeepSeek-V4, which is a ring of fixed size. Linear attention: none.
    """
    attention = layer.attention
    if isinstance(attention, SoftmaxAttention):
        return _softmax_elements(attention, tp)
    if isinstance(attention, LatentAttention):
        return float(attention.d_latent)
    if isinstance(attention, CompressedAttention) and attention.ratio:
        return attention.d_head / attention.ratio
    return 0.0


def _latent_bytes(attention: LatentAttention, kv_bytes_per_element: float, layout: KvLayout) -> float:
    """Return the bytes of one token in an MLA layer: 656 in the FP8 layout of 512 + 64 wide latents."""
    if layout == "plain":
        return attention.d_latent * kv_bytes_per_element
    scales = -(-attention.kv_lora_rank // _SCALED_BLOCK)
    return attention.kv_lora_rank + 4.0 * scales + 2.0 * attention.d_rope


def _index_bytes(indexer: Indexer | None) -> float:
    return 0.0 if indexer is None or indexer.shared else float(indexer.key_cache_bytes)


def _linear_state_bytes(attention: LinearAttention, tp: int) -> float:
    """Return the state of one sequence: a matrix for each value head, and the last inputs of the convolution."""
    keys = -(-attention.n_key_heads // tp) * attention.d_key
    value_heads = -(-attention.n_value_heads // tp)
    matrices = value_heads * attention.d_key * attention.d_value * STATE_BYTES[attention.state_dtype]
    tail = max(0, attention.conv_width - 1) * (2 * keys + value_heads * attention.d_value)
    return matrices + tail * _CONVSTATE_BYTES


def _compressed_footprint(attention: CompressedAttention, kv_bytes_per_element: float, dcp: int) -> KvFootprint:
    """Return the footprint of a DeepSeek-V4 layer; entries that are not yet full are not counted."""
    ring = attention.window_tokens * attention.d_head * kv_bytes_per_element
    if not attention.ratio:
        return KvFootprint(state_bytes_per_sequence=ring)
    index = attention.indexer.d_head * kv_bytes_per_element if attention.indexer is not None else 0.0
    share = attention.ratio * dcp
    return KvFootprint(attention.d_head * kv_bytes_per_element / share, index / share, (), ring)


def _attention_footprint(
    attention: Attention, kv_bytes_per_element: float, layout: KvLayout, tp: int, dcp: int
) -> KvFootprint:
    if isinstance(attention, LinearAttention):
        return KvFootprint(state_bytes_per_sequence=_linear_state_bytes(attention, tp))
    if isinstance(attention, CompressedAttention):
        return _compressed_footprint(attention, kv_bytes_per_element, dcp)
    if isinstance(attention, LatentAttention):
        per_token = _latent_bytes(attention, kv_bytes_per_element, layout)
        return KvFootprint(per_token / dcp, _index_bytes(attention.indexer) / dcp)
    per_token = _softmax_elements(attention, tp) * kv_bytes_per_element / dcp
    if attention.window_tokens is None:
        return KvFootprint(per_token)
    return KvFootprint(windows=((per_token, float(attention.window_tokens)),))


def layer_kv_footprint(
    layer: Layer, *, kv_bytes_per_element: float = 2.0, layout: KvLayout = "plain", tp: int = 1, dcp: int = 1
) -> KvFootprint:
    """Return the cache bytes of one sequence in one layer on one rank.

    `tp` splits key-value heads and linear states, and replicates latents; `dcp` (decode context parallel) splits the
    tokens of a sequence, and leaves fixed states whole.
    """
    return _attention_footprint(layer.attention, kv_bytes_per_element, layout, tp, dcp)


def kv_footprint(
    model: Model,
    *,
    kv_bytes_per_element: float = 2.0,
    layout: KvLayout = "plain",
    tp: int = 1,
    dcp: int = 1,
    start: int = 0,
    stop: int | None = None,
) -> KvFootprint:
    """Return the cache bytes of one sequence in layers[start:stop] on one rank."""
    total = KvFootprint()
    for layer, n in model.layer_counts(start, stop):
        one = layer_kv_footprint(layer, kv_bytes_per_element=kv_bytes_per_element, layout=layout, tp=tp, dcp=dcp)
        total = total + one.times(n)
    return total


def kv_bytes_per_token(model: Model, *, kv_bytes_per_element: float = 2.0, tp: int = 1) -> float:
    """Return the key-value bytes of one more token over all layers while no window is full, index keys not included.

    Llama-3.1-8B: 32 layers x 8 heads x 128 x 2 (key, value) x 2 bytes = 131072.
    """
    held = kv_footprint(model, kv_bytes_per_element=kv_bytes_per_element, tp=tp)
    return held.bytes_per_token + held.window_bytes_per_token
