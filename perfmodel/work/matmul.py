"""Matrix multiplications: the fixed part of each, and its work for a number of rows.

A kernel multiplies [rows, d_in] by [d_in, d_out]. Fusing q, k and v (or gate and up) gives one kernel whose outputs lie
side by side. Source: shapes as in Megatron-LM's column and row split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from perfmodel.estimate import Num
from perfmodel.specs.setup import Setup
from perfmodel.work.kernel import Work
from perfmodel.work.storage import rank_tensor, rank_tensor_bytes
from perfmodel.work.tensors import Tensor

__all__ = ["QUANTISED_SHARE", "Matmul", "fused", "matmul_of", "ranked"]

QUANTISED_SHARE: Final = 1.5
"""Bytes that scaling moves over the bytes of its input: each pair read, one byte written that the multiply reads."""


@dataclass(frozen=True, slots=True)
class Matmul:
    """What of a matmul does not depend on the number of rows.

    `quantise_bytes_per_row`: input of 16 bits that is read, scaled to 8 and written before the kernel runs.
    """

    name: str
    kernel: str
    dtype: str
    depth: float
    flop_per_row: float
    weight_bytes: float
    io_bytes_per_row: float
    quantise_bytes_per_row: float = 0.0
    n_launches: float = 1.0

    def work(self, rows: Num) -> Work:
        """Return the work for `rows` rows."""
        return Work(
            self.name,
            self.kernel,
            self.dtype,
            flop=rows * self.flop_per_row,
            weight_bytes=self.weight_bytes,
            io_bytes=rows * (self.io_bytes_per_row + (1.0 - QUANTISED_SHARE) * self.quantise_bytes_per_row),
            n_launches=self.n_launches,
            rows=rows,
            depth=self.depth,
            quantise_bytes=rows * (QUANTISED_SHARE * self.quantise_bytes_per_row)
            if self.quantise_bytes_per_row
            else None,
        )


def ranked(tensor: Tensor, setup: Setup, *, vocab_pad: int = 1) -> Tensor:
    """Return the part of a tensor that one rank of the layout holds."""
    layout = setup.layout
    return rank_tensor(tensor, tp=layout.tp, ep=layout.ep, moe_tp=layout.expert_tp, vocab_pad=vocab_pad)


def matmul_of(tensor: Tensor, setup: Setup) -> Matmul:
    """Return the matmul that a weight matrix stands for, on one rank."""
    own, scheme = ranked(tensor, setup), setup.scheme
    compute = scheme.compute_of(tensor.name, tensor.part, linear=tensor.linear)
    kernel = scheme.kernel_of(tensor.name, tensor.part, linear=tensor.linear)
    quantised = scheme.dynamic_activations and compute not in ("16bit", "fp32")
    element = setup.element_bytes
    return Matmul(
        name=tensor.name,
        kernel=f"matmul/{kernel}",
        dtype=_multiplied_in(compute, kernel, setup),
        depth=float(own.d_in),
        flop_per_row=2.0 * own.n_weights,
        weight_bytes=rank_tensor_bytes(tensor, own, scheme, high_bytes=element, n_layers=setup.model.n_layers),
        io_bytes_per_row=own.n * (own.d_in + own.d_out) * element,
        quantise_bytes_per_row=own.d_in * element if quantised else 0.0,
        n_launches=2.0 if quantised else 1.0,
    )


def _multiplied_in(compute: str, kernel: str, setup: Setup) -> str:
    """Return the dtype of the multiplication, with the accumulator where it is not the usual one."""
    if compute not in ("16bit", "fp32"):
        return compute
    if kernel.startswith("weight_only") and setup.dtype == "fp16" and setup.runtime.weight_only_accumulate == "fp16":
        return "fp16/fp16"
    return setup.dtype


def fused(name: str, matmuls: Sequence[Matmul], input_bytes_per_row: float) -> Matmul:
    """Return matmuls with the same input as one kernel: the input is read (and quantised) once."""
    first = matmuls[0]
    saved = (len(matmuls) - 1) * input_bytes_per_row
    return replace(
        first,
        name=name,
        flop_per_row=sum(m.flop_per_row for m in matmuls),
        weight_bytes=sum(m.weight_bytes for m in matmuls),
        io_bytes_per_row=sum(m.io_bytes_per_row for m in matmuls) - saved,
    )
