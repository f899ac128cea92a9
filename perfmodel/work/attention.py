"""The attention core of a layer on one rank: scores, weighting and the cache traffic, without the projections.

Flop are 2 per multiply-add; a query-key pair costs 2 x d_head for the score and 2 x d_value for the weighting, for each
head. Cached keys and values are read once for all query heads that share them. MLA is counted both ways: with keys and
values expanded from the latent (prefill), and with the expansion absorbed into query and output (decode), where each
pair costs 2 (2 kv_lora_rank + d_rope) for each head but the latent is read once for all heads.
Sources: GQA paper; DeepSeek-V2 paper and inference code; FlashAttention (scores stay on chip when fused).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perfmodel.estimate import Num, above, log2, smaller
from perfmodel.specs.model import CompressedAttention, Indexer, LatentAttention, LinearAttention, SoftmaxAttention
from perfmodel.specs.setup import Setup
from perfmodel.work.kernel import Slice, Work, mean_clipped
from perfmodel.work.kv import STATE_BYTES, kv_heads_per_rank

__all__ = ["AttentionCore", "CompressedCore", "LatentCore", "LinearCore", "SoftmaxCore", "attention_core"]

MERGED_TOKENS = 128.0
"""Tokens whose partial results a decode attention kernel merges at a time (tile of FlashAttention's split-KV)."""

DELTA_CHUNK_TOKENS = 64
"""Tokens that the chunked form of linear attention handles at a time (flash-linear-attention's default)."""


EXPONENTIAL_WIDTH = 50.0
"""Width of head whose multiplication takes as long as the exponential of a score. From public prefill tables of H100,
H200 and B200 with heads 64 to 256 wide: time per flop goes as (d + 50) / d. A100, 910B: measured at one width."""

USUAL_WIDTH = 128.0
"""Width of head at which prefill attention has an effort of 1."""

PAD_ELEMENTS = 256.0
"""Elements of key and value that a padding token of decode attention stands for: what a unit of work (a sequence and KV
head) costs besides its tokens depends neither on the width of the head nor on the type of the cache."""


def _tiled(work: Work, s: Slice, cap: float | None, *, pair_flop: Num, n_heads: Num, pad_bytes: Num) -> Work:
    """Return the work with what tiling adds.

    Decode: depth and the bytes of a padding token. Prefill: flop of one, rows, and the flop of a row against the
    longest context, which a core works off alone. `pair_flop` counts one query-key pair over all heads.
    """
    if s.phase == "prefill":
        longest = s.last_attended if cap is None else smaller(s.last_attended, cap)
        return work._replace(
            flop_per_pad=s.n_tokens * pair_flop, rows=s.new_tokens, unit_flop_per_row=longest * (pair_flop / n_heads)
        )
    context = mean_clipped(s.first_attended, s.last_attended, cap)
    return work._replace(depth=log2(1.0 + context / MERGED_TOKENS), bytes_per_pad=s.n_seqs * pad_bytes)


def _cache_class(core: SoftmaxCore | LatentCore) -> str:
    """Return what a narrow cache adds to the name of the kernel class: such kernels convert what they read.

    Those that multiply in the narrow format itself are a class of their own.
    """
    if core.kv_element_bytes >= core.element_bytes:
        return ""
    return "/kv8/fp8" if core.dtype == "fp8" else "/kv8"


@dataclass(frozen=True, slots=True)
class SoftmaxCore:
    """MHA, GQA or MQA. Without flash attention the scores go through main memory four times, in kernels apart."""

    n_heads: Num
    n_kv_heads: Num
    d_head: Num
    d_value: Num
    window_tokens: int | None
    dtype: str
    element_bytes: float
    kv_element_bytes: float
    flash: bool
    dcp: int
    reread_frac: float = 0.0
    """Share of the further query heads of a group that read their KV head once more in decode."""

    def works(self, s: Slice) -> Iterator[Work]:
        """Yield the kernels for one slice of the step."""
        cap = float(self.window_tokens) if self.window_tokens else None
        pairs = s.n_pairs(cap) * self.n_heads
        reread = self.reread_frac if s.phase == "decode" else 0.0
        n_read = self.n_kv_heads + reread * (self.n_heads - self.n_kv_heads)
        token_bytes = n_read * (self.d_head + self.d_value) * self.kv_element_bytes / self.dcp
        io = s.n_tokens * (self.n_heads * (self.d_head + self.d_value) * self.element_bytes)
        width = (self.d_head + self.d_value) * 0.5
        effort = (1.0 + EXPONENTIAL_WIDTH / width) / (1.0 + EXPONENTIAL_WIDTH / USUAL_WIDTH)
        yield _tiled(
            Work(
                "attention",
                f"attention/{s.phase}" + _cache_class(self),
                self.dtype,
                flop=pairs * (2.0 * (self.d_head + self.d_value)),
                kv_bytes=s.kv_tokens(cap) * token_bytes,
                io_bytes=io,
                n_launches=1.0 if self.flash else 2.0,
                grouped_share=above(self.n_heads / self.n_kv_heads, 1.0) if s.phase == "decode" else None,
                effort=effort if s.phase == "prefill" else 1.0,
            ),
            s,
            cap,
            pair_flop=2.0 * self.n_heads * (self.d_head + self.d_value),
            n_heads=self.n_heads,
            pad_bytes=self.n_kv_heads * (PAD_ELEMENTS * self.element_bytes),
        )
        if not self.flash:
            yield Work(
                "softmax",
                "elementwise",
                "fp32",
                flop=pairs * 5.0,
                io_bytes=pairs * (4.0 * self.element_bytes),
                n_launches=2.0,
                engine="vector",
            )


@dataclass(frozen=True, slots=True)
class IndexerCore:
    """Lightning indexer: every query is scored against every cached index key, in FP8 where the device can."""

    n_heads: int
    d_head: int
    top_k: int
    key_bytes: int
    dtype: str

    def works(self, s: Slice) -> Iterator[Work]:
        """Yield the scoring and the selection."""
        pairs = s.n_pairs()
        yield Work(
            "index_scores",
            "attention/" + s.phase,
            self.dtype,
            flop=pairs * (2.0 * self.n_heads * self.d_head),
            kv_bytes=s.kv_tokens() * float(self.key_bytes),
            io_bytes=pairs * 4.0,
        )
        yield Work("index_top_k", "elementwise", "fp32", io_bytes=pairs * 4.0, flop=pairs * 2.0, engine="vector")


@dataclass(frozen=True, slots=True)
class LatentCore:
    """MLA. A sparse indexer limits each query to `top_k` tokens and always runs absorbed."""

    n_heads: Num
    kv_lora_rank: int
    d_nope: int
    d_rope: int
    d_value: int
    dtype: str
    element_bytes: float
    kv_element_bytes: float
    latent_cache: bool
    dcp: int
    indexer: IndexerCore | None
    top_k: int | None

    @property
    def d_latent(self) -> int:
        """Cached elements of one token."""
        return self.kv_lora_rank + self.d_rope

    def absorbs(self, s: Slice) -> bool:
        """Tell whether the slice runs with the expansion absorbed."""
        return self.latent_cache and (s.phase == "decode" or self.top_k is not None)

    def expanded_tokens(self, s: Slice) -> Num:
        """Return the tokens whose latent goes through the expansion: cached ones too where only latents are kept."""
        return s.kv_tokens() if self.latent_cache and not self.absorbs(s) else s.n_tokens

    def works(self, s: Slice) -> Iterator[Work]:
        """Yield the kernels for one slice of the step."""
        if self.indexer is not None:
            yield from self.indexer.works(s)
        cap = float(self.top_k) if self.top_k else None
        if self.absorbs(s):
            yield self._absorbed(s, cap)
        elif self.latent_cache:
            yield self._materialised(s)
        else:
            yield self._expanded(s)

    def _absorbed(self, s: Slice, cap: float | None) -> Work:
        cached = s.kv_tokens(cap) if s.phase == "decode" else s.kv_tokens()
        return _tiled(
            Work(
                "mla_absorbed",
                f"mla/{s.phase}" + _cache_class(self),
                self.dtype,
                flop=s.n_pairs(cap) * (2.0 * self.n_heads * (2 * self.kv_lora_rank + self.d_rope)),
                kv_bytes=cached * (self.d_latent * self.kv_element_bytes / self.dcp),
                io_bytes=s.n_tokens * (self.n_heads * (2 * self.kv_lora_rank + self.d_rope) * self.element_bytes),
            ),
            s,
            cap,
            pair_flop=2.0 * self.n_heads * (2 * self.kv_lora_rank + self.d_rope),
            n_heads=self.n_heads,
            pad_bytes=self.d_latent * self.kv_element_bytes / self.dcp,
        )

    def _materialised(self, s: Slice) -> Work:
        expanded = self.n_heads * (self.d_nope + self.d_rope + self.d_value) * self.element_bytes
        return _tiled(
            Work(
                "mla_materialised",
                f"mla/{s.phase}" + _cache_class(self),
                self.dtype,
                flop=s.n_pairs() * (2.0 * self.n_heads * (self.d_nope + self.d_rope + self.d_value)),
                kv_bytes=s.kv_tokens() * (self.d_latent * self.kv_element_bytes / self.dcp),
                io_bytes=s.kv_tokens() * expanded + s.n_tokens * expanded,
            ),
            s,
            None,
            pair_flop=2.0 * self.n_heads * (self.d_nope + self.d_rope + self.d_value),
            n_heads=self.n_heads,
            pad_bytes=0.0,
        )

    def _expanded(self, s: Slice) -> Work:
        width = self.n_heads * (self.d_nope + self.d_rope + self.d_value)
        return _tiled(
            Work(
                "attention_expanded_heads",
                f"attention/{s.phase}",
                self.dtype,
                flop=s.n_pairs() * (2.0 * width),
                kv_bytes=s.kv_tokens() * (width * self.kv_element_bytes / self.dcp),
                io_bytes=s.n_tokens * (width * self.element_bytes),
            ),
            s,
            None,
            pair_flop=2.0 * width,
            n_heads=self.n_heads,
            pad_bytes=self.n_heads * (PAD_ELEMENTS * self.element_bytes),
        )


@dataclass(frozen=True, slots=True)
class LinearCore:
    """Linear attention: a state of d_key x d_value for each value head is read and written once a step.

    Prefill works in chunks: within a chunk all pairs, between chunks the state.
    """

    n_heads: int
    d_key: int
    d_value: int
    n_conv_elements: int
    state_element_bytes: float
    dtype: str
    element_bytes: float

    def works(self, s: Slice) -> Iterator[Work]:
        """Yield the recurrence (or its chunked form) for one slice."""
        state = self.n_heads * self.d_key * self.d_value
        if s.phase == "decode":
            per_token = 6.0 * state
        else:
            per_token = 4.0 * state + 2.0 * DELTA_CHUNK_TOKENS * self.n_heads * (self.d_key + self.d_value)
        held = state * self.state_element_bytes + self.n_conv_elements * self.element_bytes
        yield Work(
            "linear_attention",
            f"linear_attention/{s.phase}",
            self.dtype,
            flop=s.n_tokens * per_token,
            kv_bytes=s.n_seqs * (2.0 * held),
            io_bytes=s.n_tokens * (self.n_heads * (2 * self.d_key + 2 * self.d_value) * self.element_bytes),
            n_launches=2.0,
        )


@dataclass(frozen=True, slots=True)
class CompressedCore:
    """DeepSeek-V4: a window of single tokens and compressed entries of `ratio` tokens; one vector is key and value.

    Entries are what public descriptions give; partial blocks and the split of FP8 and rope parts are not modelled.
    """

    n_heads: int
    d_head: int
    window_tokens: int
    ratio: int
    top_k: int | None
    indexer: IndexerCore | None
    dtype: str
    element_bytes: float
    kv_element_bytes: float

    def works(self, s: Slice) -> Iterator[Work]:
        """Yield scoring of compressed entries (where the layer has an indexer) and attention over the rest."""
        entries: Num = 0.0
        if self.ratio:
            every = mean_clipped(s.first_attended, s.last_attended, None) * (1.0 / self.ratio)
            cap = float(self.top_k * self.ratio) if self.top_k else None
            entries = mean_clipped(s.first_attended, s.last_attended, cap) * (1.0 / self.ratio)
            if self.indexer is not None:
                scored = s.n_tokens * every
                yield Work(
                    "index_scores",
                    f"attention/{s.phase}",
                    self.indexer.dtype,
                    flop=scored * (2.0 * self.indexer.n_heads * self.indexer.d_head),
                    kv_bytes=s.n_seqs * every * (self.indexer.d_head * self.kv_element_bytes),
                    io_bytes=scored * 8.0,
                    n_launches=2.0,
                )
        seen = mean_clipped(s.first_attended, s.last_attended, float(self.window_tokens)) + entries
        read = s.n_seqs * seen if s.phase == "decode" else s.n_tokens + s.past_tokens / max(1, self.ratio)
        yield Work(
            "compressed_attention",
            f"mla/{s.phase}",
            self.dtype,
            flop=s.n_tokens * seen * (4.0 * self.n_heads * self.d_head),
            kv_bytes=read * (self.d_head * self.kv_element_bytes),
            io_bytes=s.n_tokens * (2.0 * self.n_heads * self.d_head * self.element_bytes),
        )


AttentionCore = SoftmaxCore | LatentCore | LinearCore | CompressedCore


def _indexer(indexer: Indexer | None, setup: Setup) -> IndexerCore | None:
    if indexer is None or indexer.shared:
        return None
    dtype = "fp8" if all(d.has_rate("fp8") for d in setup.devices) else setup.dtype
    return IndexerCore(indexer.n_heads, indexer.d_head, indexer.top_k, indexer.key_cache_bytes, dtype)


def attention_core(
    attention: SoftmaxAttention | LatentAttention | LinearAttention | CompressedAttention, setup: Setup
) -> AttentionCore:
    """Return the attention core of one rank under tensor parallelism: heads are split, a latent is not."""
    tp, dtype, element, kv_element = setup.layout.tp, setup.dtype, setup.element_bytes, setup.kv_element_bytes
    match attention:
        case SoftmaxAttention():
            return SoftmaxCore(
                n_heads=attention.n_heads // tp,
                n_kv_heads=kv_heads_per_rank(attention.n_kv_heads, tp),
                d_head=attention.d_head,
                d_value=attention.d_v,
                window_tokens=attention.window_tokens,
                dtype=dtype,
                element_bytes=element,
                kv_element_bytes=kv_element,
                flash="flash_attention" in setup.runtime.fused,
                dcp=setup.layout.dcp,
                reread_frac=setup.runtime.gqa_reread_frac,
            )
        case LatentAttention():
            return LatentCore(
                n_heads=attention.n_heads // tp,
                kv_lora_rank=attention.kv_lora_rank,
                d_nope=attention.d_nope,
                d_rope=attention.d_rope,
                d_value=attention.d_value,
                dtype=dtype,
                element_bytes=element,
                kv_element_bytes=kv_element,
                latent_cache=setup.runtime.latent_cache,
                dcp=setup.layout.dcp,
                indexer=_indexer(attention.indexer, setup),
                top_k=attention.indexer.top_k if attention.indexer else None,
            )
        case LinearAttention():
            conv = (attention.conv_width - 1) * (
                2 * attention.n_key_heads * attention.d_key + attention.n_value_heads * attention.d_value
            )
            return LinearCore(
                n_heads=attention.n_value_heads // tp,
                d_key=attention.d_key,
                d_value=attention.d_value,
                n_conv_elements=max(0, conv) // tp,
                state_element_bytes=STATE_BYTES[attention.state_dtype],
                dtype=dtype,
                element_bytes=element,
            )
        case CompressedAttention():
            return CompressedCore(
                n_heads=attention.n_heads // tp,
                d_head=attention.d_head,
                window_tokens=attention.window_tokens,
                ratio=attention.ratio,
                top_k=attention.indexer.top_k if attention.indexer else None,
                indexer=_indexer(attention.indexer, setup),
                dtype=dtype,
                element_bytes=element,
                kv_element_bytes=kv_element,
            )
