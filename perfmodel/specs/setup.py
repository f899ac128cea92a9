"""A question's fixed part: which model, how stored and cut, on which devices, under which software."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from perfmodel.errors import SpecError
from perfmodel.specs.device import Device
from perfmodel.specs.layout import Layout
from perfmodel.specs.model import Model
from perfmodel.specs.quantization import Scheme
from perfmodel.specs.runtime import Runtime
from perfmodel.specs.system import System

__all__ = ["KV_ELEMENT_BYTES", "Setup", "Speculation"]

KV_ELEMENT_BYTES: Final[dict[str, float]] = {
    **dict.fromkeys(("fp32", "float32"), 4.0),
    **dict.fromkeys(("fp16", "float16", "half", "bf16", "bfloat16"), 2.0),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "int8"), 1.0),
    **dict.fromkeys(("int4", "fp4"), 0.5),
    "nvfp4": 0.5625,
    "fp8_ds_mla": 656 / 576,
}
"""Bytes of one cache element. fp8_ds_mla: 656 bytes for the 576 elements of a DeepSeek latent (vLLM, FlashMLA)."""

_DTYPE_NAMES: Final = {"half": "fp16", "float16": "fp16", "bfloat16": "bf16", "float": "fp32", "float32": "fp32"}


MOST_DRAFTED: Final = 256
"""Far beyond what any engine drafts for one sequence; a larger number is a slip."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculative decoding: `n_draft` tokens are drafted, and a step yields `acceptance_length` tokens on average.

    That counts all tokens of a step, accepted ones and the one that follows them: from 1 to n_draft + 1.
    """

    n_draft: int
    acceptance_length: float

    def __post_init__(self) -> None:
        if not 1 <= self.n_draft <= MOST_DRAFTED or not 1 <= self.acceptance_length <= self.n_draft + 1:
            raise SpecError(
                "the speculation does not work",
                got=f"{self.n_draft} draft tokens, acceptance length {self.acceptance_length}",
                expected=f"1 to {MOST_DRAFTED} draft tokens, and an acceptance length from 1 to draft tokens + 1",
            )


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything about a deployment that is not a number of sequences or tokens.

    `devices` holds one device, or one per pipeline stage. `dtype` is what unquantised weights and activations are held
    and multiplied in. Use `resolved` to build one: it settles what the hardware cannot do as asked.
    """

    model: Model
    scheme: Scheme
    layout: Layout
    runtime: Runtime
    devices: tuple[Device, ...]
    system: System | None = None
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    speculation: Speculation | None = None
    offload_bytes: float = 0.0
    """Weights of each rank that live in host memory and cross the host link in every step."""
    assumed: tuple[str, ...] = ()

    @property
    def kv_element_bytes(self) -> float:
        """Bytes of one element in the KV cache."""
        return KV_ELEMENT_BYTES[self.kv_dtype]

    @property
    def element_bytes(self) -> float:
        """Bytes of an unquantised weight or activation element."""
        return 4.0 if self.dtype == "fp32" else 2.0

    def device_of_stage(self, stage: int) -> Device:
        """Return the device that runs a pipeline stage."""
        return self.devices[stage if len(self.devices) > 1 else 0]

    def resolved(self) -> Setup:
        """Return the setup as the hardware and engine would run it, with what was settled added to `assumed`.

        Raises SpecError where the model cannot be cut as asked or a name is not known.
        """
        if len(self.devices) not in (1, self.layout.pp):
            raise SpecError(
                "the number of devices named does not match the pipeline stages",
                got=f"{len(self.devices)} devices for {self.layout.pp} stages",
                expected="one device, or one for each stage",
            )
        self.layout.checked_for(self.model)
        return self._with_dtype()._with_kv_dtype()._with_scheme()

    def _with_dtype(self) -> Setup:
        dtype = self.model.dtype if self.dtype == "auto" else _DTYPE_NAMES.get(self.dtype, self.dtype)
        if dtype not in ("bf16", "fp16", "fp32"):
            raise SpecError(f"unknown dtype {self.dtype!r}", expected="auto, bf16, fp16 or fp32")
        if dtype == "bf16" and self.runtime.weight_only_accumulate == "fp16":
            note = f"{self.runtime.name} computes in fp16"
            return replace(self, dtype="fp16", assumed=(*self.assumed, note))
        lacking = [d for d in self.devices if not d.has_rate(dtype)]
        if lacking and dtype == "bf16":
            note = f"{lacking[0].title} does not compute in bf16: fp16 is used"
            return replace(self, dtype="fp16", assumed=(*self.assumed, note))
        return replace(self, dtype=dtype)

    def _with_kv_dtype(self) -> Setup:
        kv = self.dtype if self.kv_dtype == "auto" else self.kv_dtype
        if kv not in KV_ELEMENT_BYTES:
            raise SpecError(
                f"unknown KV cache dtype {self.kv_dtype!r}", expected=f"auto or one of {', '.join(KV_ELEMENT_BYTES)}"
            )
        return replace(self, kv_dtype=kv)

    def _with_scheme(self) -> Setup:
        wanted = self.scheme.compute
        lacking = [d for d in self.devices if wanted not in ("16bit", "fp32") and not d.has_rate(wanted)]
        if not lacking:
            return self
        note = (
            f"{lacking[0].title} has no {wanted} matrix rate: {self.scheme.name} weights are expanded to {self.dtype} "
            "before each matmul"
        )
        return replace(self, scheme=self.scheme.weight_only(), assumed=(*self.assumed, note))
