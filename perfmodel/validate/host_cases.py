"""On which rows the shipped host times were fitted, and with which parameters free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from perfmodel.measure.table import Table

__all__ = ["HOST_CASES", "HostCase"]

_NO_SEQUENCE: Final = ("host_per_layer", "host_per_message", "gqa_reread_frac")
_ALL: Final = ("host_per_sequence", *_NO_SEQUENCE)


@dataclass(frozen=True, slots=True)
class HostCase:
    """One fit: a runtime profile, the rows (runtime word, devices, beginning of the id), the free numbers."""

    profile: str
    runtime: str
    devices: tuple[str, ...]
    parameters: tuple[str, ...] = _ALL
    ids: str = ""
    single_device: bool = False
    """Only rows on one device."""

    def rows(self, table: Table) -> Table:
        """Return the rows of the case."""
        own = table.where(kind=("generate", "decode_step"), runtime=self.runtime, device=self.devices)
        mask = np.char.startswith(own["id"].astype(str), self.ids)
        if self.single_device:
            mask &= np.nan_to_num(own["tp"], nan=1.0) * np.nan_to_num(own["pp"], nan=1.0) == 1
        return own.selected(mask)


HOST_CASES: Final = (
    HostCase("vllm-2024", "vllm-2024", ("a100-40gb-sxm", "h100-sxm", "gh200")),
    HostCase("tensorrt-llm-0.14", "trtllm-2024", ("a100-40gb-sxm", "h100-sxm", "gh200"), _NO_SEQUENCE, ids="argonne"),
    HostCase("vllm-2024-rocm", "vllm-2024-rocm", ("mi250",)),
    HostCase("vllm-2024", "vllm-2024", ("a100-40gb-sxm", "h100-sxm", "gh200"), single_device=True),
    HostCase("vllm-0.6.3", "vllm-0.6.3", ("a100-80gb-sxm",), ("host_per_layer",), single_device=True),
    HostCase("gpt-fast", "gpt-fast", ("a100-80gb-sxm",), ("host_per_layer",)),
)
