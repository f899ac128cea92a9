"""What a kernel has to do and what a message has to carry: counts, never seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from perfmodel.estimate import Num, larger, smaller

__all__ = ["Collective", "Message", "Section", "Slice", "Work", "mean_clipped", "n_seqs_of", "n_tokens_of"]

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point"]


class Work(NamedTuple):
    """One kernel (or a run of `n_launches` like ones) on one rank.

    `kernel` is the class that a calibration knows, finest first: "matmul/fp8" falls back to "matmul".
    `dtype` is what the engine multiplies in. Bytes are what main memory must move at least once; None: it has none.
    `rows` is the number of rows a matrix engine is fed at a time; engines pad it to their tile.
    `depth` is the length of the longest serial chain, in units of the kernel class: the contraction length of a matmul,
    log2(1 + context / 128) of decode attention. `flop_per_pad` and `bytes_per_pad` are what one more token for each
    query (prefill attention) or sequence (decode attention) would add: kernels work on whole tiles. `unit_flop_per_row`
    is what one row of the longest unit of work costs: a unit (a tile of rows) runs on one core, however many are idle.
    `quantise_bytes` are read and written by a kernel of its own that scales activations before the multiply.
    `grouped_share` is 1 where several query heads share a KV head in decode, 0 where each has its own.
    `effort` is what a flop costs against one of the usual shape of the class (exponentials beside narrow heads).
    """

    name: str
    kernel: str
    dtype: str
    flop: Num = 0.0
    weight_bytes: Num | None = None
    kv_bytes: Num | None = None
    io_bytes: Num | None = None
    n_launches: float = 1.0
    engine: Literal["matrix", "vector"] = "matrix"
    rows: Num | None = None
    depth: Num | None = None
    flop_per_pad: Num | None = None
    bytes_per_pad: Num | None = None
    unit_flop_per_row: Num | None = None
    quantise_bytes: Num | None = None
    grouped_share: Num | None = None
    effort: Num = 1.0

    @property
    def n_bytes(self) -> Num:
        """All bytes that main memory moves."""
        result: Num = 0.0
        for n_bytes in (self.weight_bytes, self.kv_bytes, self.io_bytes, self.quantise_bytes):
            if n_bytes is not None:
                result = result + n_bytes
        return result


class Message(NamedTuple):
    """One collective among `n_ranks` that lie `stride` devices apart; `n_bytes` is the buffer on each rank.

    For all_gather and reduce_scatter that is the whole (gathered) buffer, as nccl-tests counts "size".
    """

    name: str
    op: Collective
    n_bytes: Num
    n_ranks: int
    stride: int = 1


class Section(NamedTuple):
    """Items that run one after the other, `n_times` in the step."""

    name: str
    n_times: float
    items: tuple[Work | Message, ...]


def mean_clipped(first: Num, last: Num, cap: float | None) -> Num:
    """Return the mean of min(x, cap) over the whole numbers x = first..last.

    >>> mean_clipped(1.0, 4.0, None), mean_clipped(1.0, 4.0, 2.0)
    (2.5, 1.75)
    """
    if cap is None:
        return (first + last) * 0.5
    n_below = smaller(larger(cap - first + 1.0, 0.0), last - first + 1.0)
    n_above = (last - first + 1.0) - n_below
    below: Num = n_below * (first + (n_below - 1.0) * 0.5)
    return (below + n_above * cap) / (last - first + 1.0)


class Slice(NamedTuple):
    """Sequences that do alike in one step: `new_tokens` each, attending to a growing number of tokens.

    `first_attended`..`last_attended` are the tokens that the first and the last query see (itself included); for a
    decode step averaged over a whole generation they run over its contexts. `past_tokens` are cached tokens, summed
    over sequences, that a prefill chunk reads beside its own. n_seqs may be a fraction (a prompt cut over steps).
    """

    phase: Literal["prefill", "decode"]
    n_seqs: Num
    new_tokens: Num
    first_attended: Num
    last_attended: Num
    past_tokens: Num = 0.0

    @property
    def n_tokens(self) -> Num:
        """New tokens of all sequences."""
        return self.n_seqs * self.new_tokens

    def n_pairs(self, cap: float | None = None) -> Num:
        """Return query-key pairs, each query seeing at most `cap` tokens."""
        return self.n_tokens * mean_clipped(self.first_attended, self.last_attended, cap)

    def kv_tokens(self, cap: float | None = None) -> Num:
        """Return cached tokens that must be read once, over all sequences, at most `cap` (+ new ones) a sequence."""
        if self.phase == "decode":
            return self.n_seqs * mean_clipped(self.first_attended, self.last_attended, cap)
        past = self.past_tokens if cap is None else smaller(self.past_tokens, larger(self.n_seqs, 1.0) * cap)
        return self.n_tokens + past


def n_tokens_of(slices: Sequence[Slice]) -> Num:
    """Return the new tokens of all slices of a step."""
    return sum((s.n_tokens for s in slices[1:]), start=slices[0].n_tokens)


def n_seqs_of(slices: Sequence[Slice]) -> Num:
    """Return the sequences of all slices of a step."""
    return sum((s.n_seqs for s in slices[1:]), start=slices[0].n_seqs)
