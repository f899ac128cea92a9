"""A step of the model as sections of kernels and messages, for one rank of each pipeline stage.

`blueprints` settles once what does not depend on sequences and tokens; `StageBlueprint.sections` then counts a step.
A step is any mix of slices: prefill, decode, or both (chunked prefill).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from perfmodel.estimate import Num
from perfmodel.specs.model import (
    Attention,
    CompressedAttention,
    DenseFfn,
    LatentAttention,
    Layer,
    MoeFfn,
    SoftmaxAttention,
)
from perfmodel.specs.setup import Setup
from perfmodel.work.attention import AttentionCore, LatentCore, attention_core
from perfmodel.work.elementwise import Elementwise
from perfmodel.work.kernel import Message, Section, Slice, Work, n_seqs_of, n_tokens_of
from perfmodel.work.matmul import Matmul, fused, matmul_of
from perfmodel.work.moe import Experts, experts_of
from perfmodel.work.tensors import Tensor, attention_tensors, ffn_tensors, head_tensor

__all__ = ["LayerBlueprint", "StageBlueprint", "blueprints"]

_FUSED_INPUTS: tuple[tuple[str, str, frozenset[str]], ...] = (
    ("qkv", "qkv_proj", frozenset({"q_proj", "k_proj", "v_proj"})),
    ("qkv", "qkv_a_proj", frozenset({"q_a_proj", "kv_a_proj"})),
    ("gate_up", "gate_up_proj", frozenset({"gate_proj", "up_proj"})),
)


@dataclass(frozen=True, slots=True)
class LayerBlueprint:
    """One kind of layer on one rank."""

    name: str
    norm: Elementwise
    projections: tuple[Matmul, ...]
    rope_kv_write: Elementwise
    core: AttentionCore
    latent_up: Matmul | None
    latent_absorbed: Matmul | None
    output: Matmul
    router: Matmul | None
    experts: Experts | None
    mlp: tuple[Matmul, ...]
    activation: Elementwise | None
    d_model: int
    element_bytes: float
    tp: int
    dp: int
    ep: int
    dcp: int
    dispatch_element_bytes: float

    def items(self, slices: Sequence[Slice]) -> Iterator[Work | Message]:
        """Yield kernels and messages of one such layer in order."""
        rows = n_tokens_of(slices)
        yield self.norm.work(rows)
        for matmul in self.projections:
            yield matmul.work(rows)
        yield self.rope_kv_write.work(rows)
        for s in slices:
            if self.latent_up is not None and isinstance(self.core, LatentCore):
                up = self.latent_absorbed if self.core.absorbs(s) and self.latent_absorbed else self.latent_up
                yield up.work(self.core.expanded_tokens(s))
            if self.dcp > 1:
                gathered = s.n_tokens * (self.core.n_heads * self.dcp * _query_width(self.core) * self.element_bytes)
                yield Message("gather_queries", "all_gather", gathered, self.dcp)
            yield from self.core.works(s)
            if self.dcp > 1:
                yield Message("merge_outputs", "reduce_scatter", gathered, self.dcp)
        yield self.output.work(rows)
        yield from self._joined("attention_all_reduce", rows)
        yield self.norm.work(rows)
        if self.experts is not None and self.router is not None:
            yield from self._expert_items(self.router, self.experts, rows)
        for i, matmul in enumerate(self.mlp):
            if self.activation is not None and i == len(self.mlp) - 1:
                yield self.activation.work(rows)
            yield matmul.work(rows)
        if self.experts is None or self.mlp or self.dp == 1 or self.ep == 1:
            yield from self._joined("ffn_all_reduce", rows)

    def _joined(self, name: str, rows: Num) -> Iterator[Message]:
        if self.tp > 1:
            yield Message(name, "all_reduce", rows * (self.d_model * self.element_bytes), self.tp)

    def _expert_items(self, router: Matmul, experts: Experts, rows: Num) -> Iterator[Work | Message]:
        """Yield the routed part of a feed-forward block.

        With DP attention and expert parallelism each tensor-parallel rank dispatches its share of the tokens, then
        gathers the combined ones. Without expert parallelism the data-parallel ranks gather each other's tokens, and
        what every rank computed with its cut of each expert is summed: over dp by a reduce-scatter here, over tp with
        the rest of the block.
        """
        yield router.work(rows)
        n_ranks = self.tp * self.dp
        every = rows * float(self.dp)
        if self.dp > 1 and self.ep > 1:
            sent = rows * (experts.top_k * self.d_model / self.tp)
            yield Message("expert_dispatch", "all_to_all", sent * self.dispatch_element_bytes, n_ranks)
            yield experts.work(every)
            yield Message("expert_combine", "all_to_all", sent * self.element_bytes, n_ranks)
            if self.tp > 1:
                yield Message(
                    "combined_tokens_all_gather", "all_gather", rows * (self.d_model * self.element_bytes), self.tp
                )
        elif self.dp > 1:
            whole = every * (self.d_model * self.element_bytes)
            yield Message("tokens_all_gather", "all_gather", whole, self.dp, self.tp)
            yield experts.work(every)
            yield Message("tokens_reduce_scatter", "reduce_scatter", whole, self.dp, self.tp)
        else:
            yield experts.work(every)


def _query_width(core: AttentionCore) -> int:
    """Return the elements of one query head that ranks exchange when the cache of a sequence is cut over them."""
    return core.d_latent if isinstance(core, LatentCore) else getattr(core, "d_head", 0)


@dataclass(frozen=True, slots=True)
class StageBlueprint:
    """One pipeline stage on one rank: its layers, and what stands before and after them."""

    index: int
    layers: tuple[tuple[LayerBlueprint, int], ...]
    embedding: Elementwise | None
    final_norm: Elementwise | None
    head: Matmul | None
    sampling: Elementwise | None
    logit_bytes_per_row: float
    hidden_bytes_per_row: float
    hand_over_bytes_per_row: float
    stage_stride: int
    tp: int

    @property
    def n_layers(self) -> int:
        """Layers of the stage."""
        return sum(n for _, n in self.layers)

    def sections(self, slices: Sequence[Slice]) -> tuple[Section, ...]:
        """Return the step as sections; layers of one kind are one section repeated."""
        rows = n_tokens_of(slices)
        parts = [Section(b.name, float(n), tuple(b.items(slices))) for b, n in self.layers]
        if self.embedding is not None:
            parts.insert(0, Section("embedding", 1.0, tuple(self._embedding_items(self.embedding, rows))))
        if self.head is not None:
            parts.append(Section("lm_head", 1.0, tuple(self._head_items(slices))))
        if self.hand_over_bytes_per_row:
            sent = rows * self.hand_over_bytes_per_row
            parts.append(
                Section("hand_over", 1.0, (Message("stage_hand_over", "point_to_point", sent, 2, self.stage_stride),))
            )
        return tuple(parts)

    def draft_section(self, n_draft: int, slices: Sequence[Slice]) -> Section:
        """Return the drafting of `n_draft` tokens by one further layer and head each (MTP or an EAGLE-like module)."""
        one = [Slice("decode", s.n_seqs, 1.0, s.first_attended, s.last_attended) for s in slices]
        assert self.head is not None  # drafts run on the last stage
        items = (*self.layers[-1][0].items(one), self.head.work(n_seqs_of(one)))
        return Section("draft", float(n_draft), items)

    def _embedding_items(self, embedding: Elementwise, rows: Num) -> Iterator[Work | Message]:
        yield embedding.work(rows)
        if self.tp > 1:
            yield Message("embedding_all_reduce", "all_reduce", rows * self.hidden_bytes_per_row, self.tp)

    def _head_items(self, slices: Sequence[Slice]) -> Iterator[Work | Message]:
        rows: Num = 0.0
        for s in slices:
            rows = rows + (s.n_tokens if s.phase == "decode" else s.n_seqs)
        assert self.head is not None  # only the last stage is asked
        assert self.final_norm is not None
        assert self.sampling is not None
        yield self.final_norm.work(rows)
        yield self.head.work(rows)
        if self.tp > 1:
            yield Message("logits_all_gather", "all_gather", rows * self.logit_bytes_per_row, self.tp)
        yield self.sampling.work(rows)


def blueprints(setup: Setup) -> tuple[StageBlueprint, ...]:
    """Return the blueprint of each pipeline stage."""
    stages = setup.layout.stages(setup.model.n_layers)
    return tuple(_stage(setup, index, start, stop) for index, (start, stop) in enumerate(stages))


def _stage(setup: Setup, index: int, start: int, stop: int) -> StageBlueprint:
    model, layout, element = setup.model, setup.layout, setup.element_bytes
    d, is_last = model.d_model, stop == model.n_layers
    return StageBlueprint(
        index=index,
        layers=tuple((_layer(layer, setup), n) for layer, n in model.layer_counts(start, stop)),
        embedding=Elementwise("embed_tokens", 2.0 * d * element) if start == 0 else None,
        final_norm=Elementwise("final_norm", 2.0 * d * element, 6.0 * d, family="norm") if is_last else None,
        head=matmul_of(head_tensor(model), setup) if is_last else None,
        sampling=Elementwise("sampling", model.vocab_size * (element + 8.0), 5.0 * model.vocab_size, 3.0)
        if is_last
        else None,
        logit_bytes_per_row=model.vocab_size * element,
        hidden_bytes_per_row=d * element,
        hand_over_bytes_per_row=0.0 if is_last else d * element,
        stage_stride=layout.tp * layout.dp,
        tp=layout.tp,
    )


def _layer(layer: Layer, setup: Setup) -> LayerBlueprint:
    model, layout, element, attention = setup.model, setup.layout, setup.element_bytes, layer.attention
    d = model.d_model
    own = attention_tensors(attention, d)
    ffn = ffn_tensors(layer.ffn, d)
    inward = [t for t in own if _is_matrix(t) and t.name not in ("o_proj", "out_proj", "o_b_proj", "kv_b_proj")]
    latent_up = next((t for t in own if t.name == "kv_b_proj"), None)
    outward = next(t for t in own if t.name in ("o_proj", "out_proj", "o_b_proj"))
    moe = layer.ffn if isinstance(layer.ffn, MoeFfn) else None
    shared_or_dense = [t for t in ffn if t.part in ("dense_mlp", "shared_experts") and t.d_out > 1]
    n_norms = max(1.0, layer.n_norms / 2)
    return LayerBlueprint(
        name=f"{attention.kind}_{layer.ffn.kind}_layer",
        norm=_norm(setup, n_norms),
        projections=_matmuls(inward, setup),
        rope_kv_write=_rope_kv_write(attention, setup),
        core=attention_core(attention, setup),
        latent_up=matmul_of(latent_up, setup) if latent_up is not None else None,
        latent_absorbed=_absorbed(matmul_of(latent_up, setup), attention, setup) if latent_up is not None else None,
        output=matmul_of(outward, setup),
        router=matmul_of(next(t for t in ffn if t.part == "router"), setup) if moe else None,
        experts=experts_of(moe, ffn, setup) if moe else None,
        mlp=_matmuls(shared_or_dense, setup),
        activation=_activation(layer, setup) if shared_or_dense else None,
        d_model=d,
        element_bytes=element,
        tp=layout.tp,
        dp=layout.dp,
        ep=layout.ep,
        dcp=layout.dcp if isinstance(attention, (SoftmaxAttention, LatentAttention)) else 1,
        dispatch_element_bytes=1.0 if setup.scheme.compute in ("fp8", "int8") else element,
    )


def _is_matrix(tensor: Tensor) -> bool:
    return tensor.d_in > 1 and tensor.d_out > 1 and tensor.name != "conv"


def _matmuls(tensors: Sequence[Tensor], setup: Setup) -> tuple[Matmul, ...]:
    """Return one matmul a kernel: matrices with one input are fused where the runtime does so."""
    left, result = list(tensors), []
    while left:
        first = left.pop(0)
        group = [first]
        name = first.name
        for fusion, fused_name, members in _FUSED_INPUTS:
            if fusion in setup.runtime.fused and first.name in members:
                group += [t for t in left if t.name in members]
                left = [t for t in left if t.name not in members]
                name = fused_name
                break
        parts = [matmul_of(t, setup) for t in group]
        result.append(fused(name, parts, first.d_in * setup.element_bytes) if len(parts) > 1 else parts[0])
    return tuple(result)


def _absorbed(expansion: Matmul, attention: Attention, setup: Setup) -> Matmul:
    """Return kv_b_proj absorbed: a batched matmul of queries into the latent and one of latents out to values."""
    assert isinstance(attention, LatentAttention)  # no other kind has the projection
    widths = attention.d_nope + 2 * attention.kv_lora_rank + attention.d_value
    per_row = attention.n_heads // setup.layout.tp * widths * setup.element_bytes
    return replace(expansion, name="kv_b_absorbed", io_bytes_per_row=per_row, n_launches=2.0)


def _norm(setup: Setup, n_norms: float) -> Elementwise:
    d, element = setup.model.d_model, setup.element_bytes
    if "add_norm" in setup.runtime.fused:
        return Elementwise("add_norm", (2.0 + 2.0 * n_norms) * d * element, 6.0 * d * n_norms, n_norms, "norm")
    return Elementwise("add_norm", (3.0 + 4.0 * n_norms) * d * element, 6.0 * d * n_norms, 1.0 + 4.0 * n_norms, "norm")


def _rope_kv_write(attention: object, setup: Setup) -> Elementwise:
    tp, element = setup.layout.tp, setup.element_bytes
    if isinstance(attention, SoftmaxAttention):
        width = (attention.n_heads / tp + 2 * max(1.0, attention.n_kv_heads / tp)) * attention.d_head
    elif isinstance(attention, LatentAttention):
        width = attention.n_heads / tp * attention.d_rope + 2 * attention.d_latent
    elif isinstance(attention, CompressedAttention):
        width = attention.n_heads / tp * attention.d_rope + 2.0 * attention.d_head
    else:
        width = 2.0 * getattr(attention, "n_value_heads", 0) * getattr(attention, "d_value", 0) / tp
    n_launches = 1.0 if "rope_kv_write" in setup.runtime.fused else 5.0
    return Elementwise("rope_kv_write", 2.0 * width * element, 3.0 * width, n_launches, "rope")


def _activation(layer: Layer, setup: Setup) -> Elementwise:
    ffn = layer.ffn
    width = (ffn.d_ff if isinstance(ffn, DenseFfn) else ffn.d_shared) / setup.layout.tp
    inputs = 2.0 if ffn.gated else 1.0
    n_launches = 1.0 if "activation" in setup.runtime.fused else 1.0 + float(ffn.gated)
    extra = 0.0 if "activation" in setup.runtime.fused else 2.0
    n_bytes = (inputs + 1.0 + extra) * width * setup.element_bytes
    return Elementwise("activation", n_bytes, 6.0 * width, n_launches, "activation")
