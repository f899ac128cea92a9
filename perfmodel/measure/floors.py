"""The least that work costs on a device: datasheet rates at the highest clock, caches full of the right data.

Bounds err on the low side on purpose: what is quicker than they say cannot have been measured. Weights that several
devices share are divided by all of them, of a mixture only the chosen experts are read, and last-level caches serve
whatever fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from perfmodel.errors import SpecError, UnknownNameError
from perfmodel.estimate import Num, larger
from perfmodel.specs.catalogue import Catalogue
from perfmodel.specs.device import Device, Rate
from perfmodel.specs.model import CompressedAttention, Model, MoeFfn
from perfmodel.specs.quantization import Scheme
from perfmodel.work.kv import KvFootprint, kv_footprint
from perfmodel.work.params import param_counts
from perfmodel.work.storage import weight_bytes

__all__ = ["DeviceFloor", "Floors", "ModelFloor", "element_bytes"]

_BYTES: Final[Mapping[str, float]] = {
    "fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0,
    "fp6": 0.75, "int4": 0.5, "fp4": 0.5,
}  # fmt: skip
_COMPUTE: Final = {"16bit": ("bf16", "fp16"), "fp32": ("fp32", "tf32")}


def element_bytes(dtype: str, default: float) -> float:
    """Return bytes of an element of a dtype; names such as fp8_e4m3 are read by their beginning."""
    return next((size for name, size in _BYTES.items() if dtype.startswith(name)), default)


@dataclass(frozen=True)
class DeviceFloor:
    """What a device cannot beat."""

    device: Device

    @cached_property
    def cache_bytes(self) -> float:
        """Last-level caches: what fits may never be read from the main memory."""
        levels = [self.device.level("l2"), self.device.level("infinity_cache")]
        return sum(level.capacity.value for level in levels if level is not None and level.capacity is not None)

    @property
    def bytes_per_s(self) -> float:
        """Nominal bandwidth of the main memory."""
        return self.device.dram_bytes_per_s

    @cached_property
    def link_bytes_per_s(self) -> float | None:
        """Quickest way out of the device, one direction; None where the file lists none."""
        return max((link.bandwidth_per_direction.value for link in self.device.links), default=None)

    def flop_per_s(self, *dtypes: str) -> float:
        """Return the highest rate for any of the dtypes at the maximum clock, with whichever accumulator is quickest.

        A dtype that the engine lacks is computed in 16 bits; no dtype at all means the quickest one of at least 8 bits.
        """
        rates = self._rates(dtypes) or self._rates(("bf16", "fp16")) or self._rates(())
        return max(rate.value for rate in rates) * self.device.clock_headroom

    def _rates(self, dtypes: tuple[str, ...]) -> list[Rate]:
        engines = [engine for engine in (self.device.matrix, self.device.vector) if engine is not None]
        every = [rate for engine in engines for rate in engine.rates]
        wide = ("fp32", "tf32") if "fp32" in dtypes else ()
        if not dtypes:
            return [rate for rate in every if rate.dtype not in ("int4", "fp4", "fp6")] or every
        return [rate for rate in every if rate.dtype in (*dtypes, *wide)]


@dataclass(frozen=True)
class ModelFloor:
    """What a model cannot do without: weights that one token touches, multiply-adds, cached tokens."""

    model: Model
    scheme: Scheme | None

    @cached_property
    def step_weight_bytes(self) -> float:
        """Bytes of weights that one decode step of one sequence reads; half a byte each where the scheme is unknown."""
        if self.scheme is None:
            return 0.5 * param_counts(self.model).active_excl_input_embedding
        parts = weight_bytes(self.model, self.scheme)
        kept = {name: size for name, size in parts.items() if name not in ("vision", "experts")}
        if not self.model.tied_embeddings:
            kept.pop("embed", None)
        return sum(kept.values()) + parts.get("experts", 0.0) * self._chosen_frac

    @cached_property
    def total_weight_bytes(self) -> float | None:
        """Bytes of all weights, None where the scheme is not known."""
        return None if self.scheme is None else sum(weight_bytes(self.model, self.scheme).values())

    @cached_property
    def _chosen_frac(self) -> float:
        mixtures = [layer.ffn for layer, _ in self.model.layer_counts() if isinstance(layer.ffn, MoeFfn)]
        return min((ffn.top_k / ffn.n_experts for ffn in mixtures), default=1.0)

    @cached_property
    def flop_per_token(self) -> float:
        """Flop of the weights of all layers for one token, without head and attention."""
        return 2.0 * param_counts(self.model).active_excl_embed_and_head

    def kv_read_bytes(self, context_tokens: Num, kv_bytes: float) -> Num:
        """Return the cache that a decode step reads of one sequence; 0 for sparse attention, which reads a choice."""
        footprint = self.footprint(kv_bytes)
        return 0.0 * context_tokens if footprint is None else footprint.held_bytes(context_tokens)

    def footprint(self, kv_bytes: float) -> KvFootprint | None:
        """Return the cache of one sequence, None for sparse attention."""
        attentions = [layer.attention for layer, _ in self.model.layer_counts()]
        if any(isinstance(a, CompressedAttention) or getattr(a, "indexer", None) is not None for a in attentions):
            return None
        return kv_footprint(self.model, kv_bytes_per_element=kv_bytes)

    @property
    def compute_dtypes(self) -> tuple[str, ...]:
        """Dtypes that the scheme multiplies in; none where it is not known."""
        if self.scheme is None:
            return ()
        compute = self.scheme.compute
        return _COMPUTE.get(compute, (compute, "bf16", "fp16"))


@dataclass
class Floors:
    """Floors by name, looked up once; names that the catalogue lacks are remembered."""

    catalogue: Catalogue
    unknown_devices: set[str] = field(default_factory=set)
    unknown_models: set[str] = field(default_factory=set)
    _devices: dict[str, DeviceFloor | None] = field(default_factory=dict)
    _models: dict[tuple[str, str], ModelFloor | None] = field(default_factory=dict)

    def device(self, name: str) -> DeviceFloor | None:
        """Return the floor of a device, None where the catalogue does not know it."""
        if name not in self._devices:
            try:
                self._devices[name] = DeviceFloor(self.catalogue.hardware(name).device)
            except (UnknownNameError, SpecError):
                self.unknown_devices.add(name)
                self._devices[name] = None
        return self._devices[name]

    def model(self, name: str, quantization: str) -> ModelFloor | None:
        """Return the floor of a model under a scheme, None where the catalogue does not know the model."""
        key = (name, quantization)
        if name and key not in self._models:
            try:
                choice = self.catalogue.model(name)
                self._models[key] = ModelFloor(choice.model, self._scheme(quantization or choice.scheme))
            except (UnknownNameError, SpecError):
                self.unknown_models.add(name)
                self._models[key] = None
        return self._models.get(key)

    def _scheme(self, name: str) -> Scheme | None:
        try:
            return self.catalogue.scheme(name)
        except (UnknownNameError, SpecError):
            return None


def beyond_cache(size_bytes: Num, cache_bytes: float) -> Num:
    """Return the bytes that cannot have come from a cache."""
    return larger(size_bytes - cache_bytes, 0.0)
