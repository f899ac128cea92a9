"""The weights of a model as a list of matrices: the one inventory behind parameter counts, weight bytes and matmuls.

A matrix of d_in rows and d_out columns maps d_in inputs to d_out outputs. `shard` says what tensor parallelism does to
it, `part` where a reader looks for it. Sources: the modelling code of each family in Hugging Face transformers;
DeepSeek's published inference code for MLA.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from perfmodel.specs.model import (
    Attention,
    CompressedAttention,
    DenseFfn,
    Ffn,
    LatentAttention,
    Layer,
    LinearAttention,
    Model,
    MoeFfn,
    SoftmaxAttention,
)

__all__ = [
    "Part",
    "Shard",
    "Tensor",
    "attention_tensors",
    "ffn_tensors",
    "head_tensor",
    "layer_tensors",
    "model_tensors",
    "mtp_tensors",
]

OVERLAPPED_RATIO: Final = 4
"""DeepSeek-V4 entries of this many tokens overlap."""

Part = Literal[
    "embed", "lm_head", "attention", "norm", "dense_mlp", "router", "experts", "shared_experts", "other", "vision"
]
Shard = Literal["columns", "rows", "kv_columns", "vocab", "experts", "replicated"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """`n` equal matrices [d_in, d_out], with or without a bias of d_out.

    `linear`: a matmul weight that weight quantisation may shrink; norms, biases, tables and gates are not.
    `kv_heads`: for kv_columns, the number of heads beyond which tensor parallelism replicates instead of splitting.
    """

    name: str
    part: Part
    d_in: int
    d_out: int
    n: int = 1
    shard: Shard = "replicated"
    linear: bool = True
    bias: bool = False
    kv_heads: int = 0

    @property
    def n_weights(self) -> int:
        """Matrix elements of all n copies."""
        return self.n * self.d_in * self.d_out

    @property
    def n_biases(self) -> int:
        """Bias elements of all n copies."""
        return self.n * self.d_out if self.bias else 0

    @property
    def n_params(self) -> int:
        """All elements."""
        return self.n_weights + self.n_biases


def _vector(name: str, part: Part, size: int, *, shard: Shard = "replicated") -> Tensor:
    return Tensor(name, part, 1, size, shard=shard, linear=False)


def _softmax(a: SoftmaxAttention, d: int) -> Iterator[Tensor]:
    q_width = a.n_heads * a.d_head * (2 if a.output_gate else 1)
    yield Tensor("q_proj", "attention", d, q_width, shard="columns", bias=a.qkv_bias)
    yield Tensor(
        "k_proj", "attention", d, a.n_kv_heads * a.d_head, shard="kv_columns", bias=a.qkv_bias, kv_heads=a.n_kv_heads
    )
    yield Tensor(
        "v_proj", "attention", d, a.n_kv_heads * a.d_v, shard="kv_columns", bias=a.qkv_bias, kv_heads=a.n_kv_heads
    )
    yield Tensor("o_proj", "attention", a.n_heads * a.d_v, d, shard="rows", bias=a.o_bias)
    if a.qk_norm == "head":
        yield _vector("q_norm", "attention", a.d_head)
        yield _vector("k_norm", "attention", a.d_head)
    elif a.qk_norm == "flat":
        yield _vector("q_norm", "attention", a.n_heads * a.d_head)
        yield _vector("k_norm", "attention", a.n_kv_heads * a.d_head)
    if a.sinks:
        yield _vector("sinks", "attention", a.n_heads)


def _latent(a: LatentAttention, d: int) -> Iterator[Tensor]:
    q_width = a.n_heads * (a.d_nope + a.d_rope)
    if a.q_lora_rank is None:
        yield Tensor("q_proj", "attention", d, q_width, shard="columns")
    else:
        yield Tensor("q_a_proj", "attention", d, a.q_lora_rank)
        yield _vector("q_a_norm", "attention", a.q_lora_rank)
        yield Tensor("q_b_proj", "attention", a.q_lora_rank, q_width, shard="columns")
    yield Tensor("kv_a_proj", "attention", d, a.d_latent)
    yield _vector("kv_a_norm", "attention", a.kv_lora_rank)
    yield Tensor("kv_b_proj", "attention", a.kv_lora_rank, a.n_heads * (a.d_nope + a.d_value), shard="columns")
    yield Tensor("o_proj", "attention", a.n_heads * a.d_value, d, shard="rows")
    if a.indexer is not None and not a.indexer.shared:
        i = a.indexer
        yield Tensor("index_q_proj", "attention", a.q_lora_rank or d, i.n_heads * i.d_head)
        yield Tensor("index_k_proj", "attention", d, i.d_head)
        yield replace(_vector("index_k_norm", "attention", i.d_head), bias=True)
        yield Tensor("index_weights_proj", "attention", d, i.n_heads, linear=False)


def _linear(a: LinearAttention, d: int) -> Iterator[Tensor]:
    keys, values = a.n_key_heads * a.d_key, a.n_value_heads * a.d_value
    if a.variant == "gated_deltanet":
        yield Tensor("in_proj_qkvz", "attention", d, 2 * keys + 2 * values, shard="columns")
        yield Tensor("in_proj_ba", "attention", d, 2 * a.n_value_heads, shard="columns")
        yield Tensor("conv", "attention", a.conv_width, 2 * keys + values, shard="columns", linear=False)
        yield _vector("decay", "attention", 2 * a.n_value_heads, shard="columns")
        yield _vector("gate_norm", "attention", a.d_value)
    else:
        yield Tensor("qkv_proj", "attention", d, 2 * keys + values, shard="columns")
        yield Tensor("output_gate", "attention", d, values, shard="columns")
        yield _vector("norm", "attention", values)
    yield Tensor("out_proj", "attention", values, d, shard="rows")


def _compressor(name: str, d: int, d_head: int, ratio: int) -> Iterator[Tensor]:
    """Yield what makes one compressed entry of `ratio` tokens: values, gates, a place for each token, a norm.

    At the ratio of 4 neighbouring entries overlap, so that the projections are twice as wide.
    """
    width = d_head * (2 if ratio == OVERLAPPED_RATIO else 1)
    yield Tensor(f"{name}_kv_proj", "attention", d, width)
    yield Tensor(f"{name}_gate_proj", "attention", d, width)
    yield _vector(f"{name}_places", "attention", ratio * width)
    yield _vector(f"{name}_norm", "attention", d_head)


def _compressed(a: CompressedAttention, d: int) -> Iterator[Tensor]:
    yield Tensor("q_a_proj", "attention", d, a.q_lora_rank)
    yield _vector("q_a_norm", "attention", a.q_lora_rank)
    yield Tensor("q_b_proj", "attention", a.q_lora_rank, a.n_heads * a.d_head, shard="columns")
    yield Tensor("kv_proj", "attention", d, a.d_head)
    yield _vector("kv_norm", "attention", a.d_head)
    grouped = a.n_heads * a.d_head // a.o_groups
    yield Tensor("o_a_proj", "attention", grouped, a.o_lora_rank, n=a.o_groups, shard="experts")
    yield Tensor("o_b_proj", "attention", a.o_groups * a.o_lora_rank, d, shard="rows")
    yield _vector("sinks", "attention", a.n_heads, shard="columns")
    if a.ratio:
        yield from _compressor("compressor", d, a.d_head, a.ratio)
    if a.indexer is not None:
        i = a.indexer
        yield Tensor("index_q_proj", "attention", a.q_lora_rank, i.n_heads * i.d_head)
        yield Tensor("index_weights_proj", "attention", d, i.n_heads, linear=False)
        yield from _compressor("index_compressor", d, i.d_head, a.ratio)
    if a.n_other_params:
        yield _vector("other", "attention", a.n_other_params)


def attention_tensors(attention: Attention, d_model: int) -> tuple[Tensor, ...]:
    """Return the weights of one attention block, norms of the residual stream not included."""
    if isinstance(attention, SoftmaxAttention):
        return tuple(_softmax(attention, d_model))
    if isinstance(attention, LatentAttention):
        return tuple(_latent(attention, d_model))
    if isinstance(attention, LinearAttention):
        return tuple(_linear(attention, d_model))
    return tuple(_compressed(attention, d_model))


def _mlp(
    part: Part,
    d: int,
    width: int,
    *,
    gated: bool,
    bias: bool,
    n: int = 1,
    shards: tuple[Shard, Shard] = ("columns", "rows"),
) -> Iterator[Tensor]:
    names = ("gate_proj", "up_proj") if gated else ("up_proj",)
    for name in names:
        yield Tensor(name, part, d, width, n=n, shard=shards[0], bias=bias)
    yield Tensor("down_proj", part, width, d, n=n, shard=shards[1], bias=bias)


def ffn_tensors(ffn: Ffn, d_model: int) -> tuple[Tensor, ...]:
    """Return the weights of one feed-forward block: dense, or router, experts and shared experts."""
    if isinstance(ffn, DenseFfn):
        return tuple(_mlp("dense_mlp", d_model, ffn.d_ff, gated=ffn.gated, bias=ffn.bias))
    return tuple(_moe(ffn, d_model))


def _moe(ffn: MoeFfn, d: int) -> Iterator[Tensor]:
    yield Tensor("router", "router", d, ffn.n_experts, linear=False, bias=ffn.router_bias)
    yield from _mlp(
        "experts",
        d,
        ffn.d_expert,
        gated=ffn.gated,
        bias=ffn.expert_bias,
        n=ffn.n_experts,
        shards=("experts", "experts"),
    )
    if ffn.d_shared:
        yield from _mlp("shared_experts", d, ffn.d_shared, gated=ffn.gated, bias=False)
    if ffn.shared_gate:
        yield Tensor("shared_gate", "shared_experts", d, 1, linear=False)


def layer_tensors(layer: Layer, d_model: int) -> tuple[Tensor, ...]:
    """Return all weights of one decoder layer."""
    norms = [replace(_vector(f"norm_{i}", "norm", d_model), bias=layer.norm_bias) for i in range(layer.n_norms)]
    other = [_vector("other", "other", layer.n_other_params)] if layer.n_other_params else []
    return (*attention_tensors(layer.attention, d_model), *ffn_tensors(layer.ffn, d_model), *norms, *other)


def head_tensor(model: Model) -> Tensor:
    """Return the matrix that makes logits, be it the model's own or its tied table of embeddings."""
    return Tensor(
        "lm_head", "lm_head", model.d_model, model.vocab_size, shard="vocab", linear=False, bias=model.lm_head_bias
    )


def model_tensors(model: Model) -> tuple[tuple[Tensor, int], ...]:
    """Return every weight of the model with the number of layers that hold it; MTP modules are apart."""
    d, v = model.d_model, model.vocab_size
    last_bias = model.layers[model.pattern[-1]].norm_bias
    outer = [Tensor("embed_tokens", "embed", v, d, shard="vocab", linear=False)]
    if model.n_position_rows:
        outer.append(Tensor("position_table", "embed", model.n_position_rows, d, linear=False))
    if model.embed_norm:
        outer.append(replace(_vector("embed_norm", "norm", d), bias=last_bias))
    if model.final_norm:
        outer.append(replace(_vector("final_norm", "norm", d), bias=last_bias))
    if not model.tied_embeddings:
        outer.append(head_tensor(model))
    if model.n_other_params:
        outer.append(_vector("other", "other", model.n_other_params))
    if model.vision_params:
        outer.append(_vector("vision_tower", "vision", model.vision_params))
    inner = [(tensor, n) for layer, n in model.layer_counts() for tensor in layer_tensors(layer, d)]
    return (*((tensor, 1) for tensor in outer), *inner)


def _with_own_indexer(layer: Layer) -> Layer:
    """Return the layer as an MTP module has it: with an indexer of its own where the last layer borrows one."""
    attention = layer.attention
    if not isinstance(attention, LatentAttention) or attention.indexer is None or not attention.indexer.shared:
        return layer
    own = attention.model_copy(update={"indexer": attention.indexer.model_copy(update={"shared": False})})
    return layer.model_copy(update={"attention": own})


def mtp_tensors(model: Model) -> tuple[Tensor, ...]:
    """Return the weights of the multi-token-prediction modules; empty where the checkpoint has none."""
    if model.mtp is None:
        return ()
    d, v, mtp = model.d_model, model.vocab_size, model.mtp
    if mtp.n_params_each is not None:
        body: tuple[Tensor, ...] = (_vector("mtp_module", "other", mtp.n_params_each),)
    else:
        layer = _with_own_indexer(model.layers[model.pattern[-1]])
        norms = [_vector(f"mtp_norm_{i}", "norm", d) for i in range(3)]
        body = (*layer_tensors(layer, d), *norms, Tensor("eh_proj", "other", 2 * d, d, linear=False))
    doubles = (
        Tensor("mtp_embed", "embed", v, d, shard="vocab", linear=False),
        Tensor("mtp_head", "lm_head", d, v, shard="vocab", linear=False),
    )
    return (*body, *(doubles if mtp.duplicates_embedding else ())) * mtp.n_modules
