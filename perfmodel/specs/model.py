"""One model in normal form: what its layers are made of, however its own config file spelled it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from perfmodel.specs.figures import Spec

__all__ = [
    "Attention",
    "CompressedAttention",
    "DenseFfn",
    "Ffn",
    "FixedWork",
    "Indexer",
    "LatentAttention",
    "Layer",
    "LinearAttention",
    "Model",
    "MoeFfn",
    "Mtp",
    "Published",
    "SoftmaxAttention",
]

Size = Annotated[int, Field(gt=0, lt=2**40)]
Count = Annotated[int, Field(ge=0, lt=2**40)]


class SoftmaxAttention(Spec):
    """MHA, GQA or MQA, over all tokens or a sliding window."""

    kind: Literal["softmax"] = "softmax"
    n_heads: Size
    n_kv_heads: Size
    d_head: Size
    d_value: Size | None = None
    """Width of a value head where it differs from d_head."""
    window_tokens: Size | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: Literal["none", "head", "flat"] = "none"
    """Norm weights on query and key: one vector of d_head each, or one over all heads."""
    sinks: bool = False
    """One learned logit per head."""
    output_gate: bool = False
    """q_proj is twice as wide: its second half gates the output."""

    @property
    def d_v(self) -> int:
        """Width of one value head."""
        return self.d_value or self.d_head


class Indexer(Spec):
    """Lightning indexer of DeepSeek sparse attention: scores all tokens, keeps `top_k`."""

    n_heads: Size
    d_head: Size
    top_k: Size
    shared: bool = False
    """The layer reuses the choice of an earlier layer: no weights, no cache, no scoring of its own."""
    key_cache_bytes: Size = 132
    """Bytes that one token's key takes in the index cache of a layer: 128 in FP8 and a 4-byte scale."""


class LatentAttention(Spec):
    """Multi-head latent attention (MLA): one compressed vector per token serves all heads."""

    kind: Literal["latent"] = "latent"
    n_heads: Size
    q_lora_rank: Size | None = None
    kv_lora_rank: Size
    d_nope: Size
    d_rope: Size
    d_value: Size
    indexer: Indexer | None = None

    @property
    def d_latent(self) -> int:
        """Elements that one token leaves in the cache of a layer."""
        return self.kv_lora_rank + self.d_rope


class LinearAttention(Spec):
    """Attention with a fixed state instead of a growing cache: Gated DeltaNet, or MiniMax's lightning attention."""

    kind: Literal["linear"] = "linear"
    variant: Literal["gated_deltanet", "lightning"]
    n_key_heads: Size
    n_value_heads: Size
    d_key: Size
    d_value: Size
    conv_width: Count = 0
    state_dtype: Literal["fp32", "fp16", "bf16"] = "fp32"


class CompressedAttention(Spec):
    """DeepSeek-V4: one shared key-value vector per entry, a short window, and entries compressed by `ratio`.

    The indexer scores compressed entries; its keys are compressed by the same ratio.
    """

    kind: Literal["compressed"] = "compressed"
    n_heads: Size
    d_head: Size
    d_rope: Size
    q_lora_rank: Size
    o_groups: Size
    o_lora_rank: Size
    window_tokens: Size
    ratio: Count
    """Tokens per compressed entry; 0: the layer has its window only."""
    indexer: Indexer | None = None
    n_other_params: Count = 0
    """Weights of the block that no field here implies."""


Attention = Annotated[
    SoftmaxAttention | LatentAttention | LinearAttention | CompressedAttention, Field(discriminator="kind")
]


class DenseFfn(Spec):
    kind: Literal["dense"] = "dense"
    d_ff: Size
    gated: bool = True
    bias: bool = False


class MoeFfn(Spec):
    """Mixture of experts: `top_k` of `n_experts` routed ones for each token, and shared ones for all."""

    kind: Literal["moe"] = "moe"
    n_experts: Size
    top_k: Size
    d_expert: Size
    gated: bool = True
    expert_bias: bool = False
    router_bias: bool = False
    """A stored vector of n_experts beside the router matrix (bias, or correction for load balance)."""
    d_shared: Count = 0
    """Width of all shared experts together."""
    shared_gate: bool = False
    """The shared expert has a learned gate of d_model weights."""

    @model_validator(mode="after")
    def _top_k_exists(self) -> MoeFfn:
        if self.top_k > self.n_experts:
            raise ValueError(f"top_k {self.top_k} is more than n_experts {self.n_experts}")
        return self


Ffn = Annotated[DenseFfn | MoeFfn, Field(discriminator="kind")]


class Layer(Spec):
    """One decoder layer."""

    attention: Attention
    ffn: Ffn
    n_norms: Count = 2
    norm_bias: bool = False
    n_other_params: Count = 0
    """Weights of the layer that no operator here describes (hyper-connections, ...)."""


class Mtp(Spec):
    """Multi-token-prediction modules that the checkpoint carries after the main layers."""

    n_modules: Size
    duplicates_embedding: bool = True
    """The checkpoint stores embedding and head again for the module."""
    n_params_each: Count | None = None
    """Weights of one module without embedding and head; None: a last layer, its norms and a 2d x d projection."""


class Published(Spec):
    """Parameter counts as others print them: exact ones are checked, headlines are shown."""

    total: str = ""
    active: str = ""
    n_params: int | None = None
    n_params_with_mtp: int | None = None
    difference_explained: str = ""


class FixedWork(Spec):
    """A network that costs the same for every sample (ResNet-50): no tokens, no cache."""

    n_params: Size
    flop_per_sample: Annotated[float, Field(gt=0)]
    activation_bytes_per_sample: Annotated[float, Field(ge=0)] = 0.0


class Model(Spec):
    """A language model in normal form.

    `layers` holds the distinct kinds of layer and `pattern` says, for each of the model's layers in order, which kind
    it is. `weight_scheme` is the quantisation that the checkpoint itself states (none for 16-bit weights).
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._+-]*$")]
    title: str = ""
    family: str = ""
    d_model: Size
    vocab_size: Size
    max_position_tokens: Size | None = None
    tied_embeddings: bool = False
    lm_head_bias: bool = False
    n_position_rows: Count = 0
    """Rows of a learned position table."""
    embed_norm: bool = False
    final_norm: bool = True
    n_other_params: Count = 0
    layers: tuple[Layer, ...] = Field(min_length=1)
    pattern: tuple[int, ...] = Field(min_length=1, max_length=4096)
    dtype: Literal["fp16", "bf16", "fp32"] = "bf16"
    weight_scheme: str = "none"
    mtp: Mtp | None = None
    vision_params: Count = 0
    """Weights of a vision or audio tower that sits beside the text model."""
    published: Published = Published()
    warnings: tuple[str, ...] = ()
    """What had to be assumed when the config was read."""
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _pattern_points_at_layers(self) -> Model:
        if any(not 0 <= index < len(self.layers) for index in self.pattern):
            raise ValueError(f"pattern must hold indices below {len(self.layers)}")
        return self

    @property
    def n_layers(self) -> int:
        """Number of decoder layers."""
        return len(self.pattern)

    def layer_counts(self, start: int = 0, stop: int | None = None) -> tuple[tuple[Layer, int], ...]:
        """Return each distinct layer with how often it stands in layers[start:stop], in order of first use."""
        counts: dict[int, int] = {}
        for index in self.pattern[start:stop]:
            counts[index] = counts.get(index, 0) + 1
        return tuple((self.layers[index], n) for index, n in counts.items())
