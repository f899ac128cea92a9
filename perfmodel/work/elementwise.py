"""Everything that is neither a matmul nor attention: norms, residuals, rotary embedding, activations, gathers."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.estimate import Num
from perfmodel.work.kernel import Work

__all__ = ["Elementwise"]


@dataclass(frozen=True, slots=True)
class Elementwise:
    """`n_launches` kernels that together move `bytes_per_row` and do `flop_per_row` on the vector units.

    `family` is what kind of kernel they are ("norm", "rope", "activation"): kernels of one family share coefficients.
    Kernels of a family work a row in one thread block, so that few rows leave cores idle.
    """

    name: str
    bytes_per_row: float
    flop_per_row: float = 0.0
    n_launches: float = 1.0
    family: str = ""

    def work(self, rows: Num) -> Work:
        """Return the work for `rows` rows."""
        return Work(
            self.name,
            f"elementwise/{self.family}" if self.family else "elementwise",
            "fp32",
            flop=rows * self.flop_per_row,
            io_bytes=rows * self.bytes_per_row,
            n_launches=self.n_launches,
            engine="vector",
            unit_flop_per_row=self.flop_per_row if self.family else None,
        )
