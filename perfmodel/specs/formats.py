"""How one matrix is stored: element bits, scales and zero points; and the block formats of GGUF.

The GGUF layouts are part of that format's definition (table in gguf-py/gguf/constants.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Annotated, Final

from pydantic import Field, model_validator

from perfmodel.specs.figures import Spec

__all__ = ["GGML_FORMATS", "Bits", "Block", "Format"]

Bits = Annotated[float, Field(ge=0, le=512)]
Size = Annotated[int, Field(gt=0)]


class Block(Spec):
    """One scale for each tile of `rows` x `columns` weights."""

    rows: Size
    columns: Size
    scale_bits: Bits = 32


class Format(Spec):
    """How one matrix is stored: bits of an element, and what scales and zero points add.

    A matrix of d_in x d_out has ceil(d_in / group_size) groups for each output channel.
    """

    element_bits: Annotated[float, Field(gt=0, le=64)]
    group_size: Size | None = None
    """Weights along d_in that share a scale; None: no groups."""
    scale_bits: Bits = 0
    """All scales of a group (for GGUF: everything in a block that is not an element)."""
    zero_bits: Bits = 0
    """Zero point of a group."""
    channel_bits: Bits = 0
    """Scale, offset or bias of an output channel."""
    row_bits: Bits = 0
    """Bits for each input row, such as the g_idx of GPTQ."""
    tensor_bits: Bits = 0
    """Scale of the whole matrix."""
    block: Block | None = None
    fallback: str | None = None
    """GGUF format taken instead where group_size does not divide d_in."""

    @model_validator(mode="after")
    def _groups_are_whole(self) -> Format:
        if self.group_size is None and (self.scale_bits or self.zero_bits):
            raise ValueError("scale_bits and zero_bits are those of a group: give group_size too, or use channel_bits")
        return self

    @property
    def bits_with_scales(self) -> float:
        """Bits of a weight in a large matrix: element plus its share of group and block scales."""
        grouped = (self.scale_bits + self.zero_bits) / self.group_size if self.group_size else 0.0
        tile = self.block.scale_bits / (self.block.rows * self.block.columns) if self.block else 0.0
        return self.element_bits + grouped + tile

    def matrix_bits(self, d_in: int, d_out: int) -> float:
        """Return all bits of one matrix [d_in, d_out], scales included.

        >>> Format(element_bits=4, group_size=128, scale_bits=16, zero_bits=4).matrix_bits(4096, 4096) / 4096**2
        4.15625
        """
        if self.fallback and self.group_size and d_in % self.group_size:
            return GGML_FORMATS[self.fallback].matrix_bits(d_in, d_out)
        bits = self.element_bits * d_in * d_out + self.channel_bits * d_out + self.row_bits * d_in + self.tensor_bits
        if self.group_size:
            bits += (self.scale_bits + self.zero_bits) * ceil(d_in / self.group_size) * d_out
        if self.block:
            bits += self.block.scale_bits * ceil(d_in / self.block.rows) * ceil(d_out / self.block.columns)
        return bits


def _ggml(element_bits: float, group_size: int, block_bytes: int, fallback: str | None = None) -> Format:
    """Return the layout of a GGUF block: `block_bytes` for `group_size` weights."""
    extra = 8 * block_bytes - element_bits * group_size
    return Format(element_bits=element_bits, group_size=group_size, scale_bits=extra, fallback=fallback)


GGML_FORMATS: Final[Mapping[str, Format]] = {
    "f32": Format(element_bits=32),
    "f16": Format(element_bits=16),
    "q8_0": _ggml(8, 32, 34, "f16"),
    "q5_0": _ggml(5, 32, 22, "f16"),
    "q5_1": _ggml(5, 32, 24, "f16"),
    "q4_0": _ggml(4, 32, 18, "f16"),
    "iq4_nl": _ggml(4, 32, 18, "f16"),
    "iq4_xs": _ggml(4, 256, 136, "iq4_nl"),
    "q6_k": _ggml(6, 256, 210, "q8_0"),
    "q5_k": _ggml(5, 256, 176, "q5_1"),
    "q4_k": _ggml(4, 256, 144, "q5_0"),
    "q3_k": _ggml(3, 256, 110, "iq4_nl"),
    "q2_k": _ggml(2, 256, 84, "iq4_nl"),
}
