"""What memory accounting takes and gives: the case, the budget of a rank, a stage, and the plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from perfmodel.specs.device import Device
from perfmodel.specs.layout import Layout
from perfmodel.specs.model import Model
from perfmodel.specs.quantization import Scheme
from perfmodel.specs.runtime import Runtime
from perfmodel.work.kv import KvFootprint
from perfmodel.work.memory_rules import MemoryOptions, StepLimits

__all__ = ["MemoryCase", "MemoryPlan", "RankMemory", "StagePlan"]


@dataclass(frozen=True, slots=True)
class MemoryCase:
    """One deployment to account for. `devices`: one for all ranks, one a stage, or one a rank (stage by stage)."""

    model: Model
    scheme: Scheme
    layout: Layout
    runtime: Runtime
    devices: tuple[Device, ...]
    options: MemoryOptions = field(default_factory=MemoryOptions)

    def with_options(self, **changes: object) -> MemoryCase:
        """Return the case with some options changed."""
        return replace(self, options=replace(self.options, **changes))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The budget of `n_ranks` equal ranks and where it goes; all in bytes."""

    stage: int
    n_ranks: int
    samples: bool
    device: str
    total_bytes: float
    utilization: float
    budget_bytes: float
    weight_bytes: Mapping[str, float]
    offloaded_bytes: float
    activation_bytes: float
    non_torch_bytes: float
    graph_bytes: float
    graphs_in_budget: bool
    activation_in_budget: bool
    withheld_bytes: float
    """Of the budget, what the engine leaves out of the pool on purpose."""
    available_bytes: float
    """Room for the KV pool before rounding to blocks; below zero where nothing is left."""
    pool_bytes: float
    n_blocks: int

    @property
    def weights_on_device_bytes(self) -> float:
        """Weights that stay in device memory."""
        return sum(self.weight_bytes.values()) - self.offloaded_bytes

    @property
    def outside_bytes(self) -> float:
        """What is needed beside the budget: graphs, and activations where the engine does not plan for them."""
        graphs = 0.0 if self.graphs_in_budget else self.graph_bytes
        return graphs + (0.0 if self.activation_in_budget else self.activation_bytes)

    def waterfall(self) -> tuple[tuple[str, float], ...]:
        """Return the parts of the budget with their bytes; they add up to it. A negative `unused` is what lacks."""
        rows = [(f"weights: {part}", size) for part, size in self.weight_bytes.items()]
        if self.offloaded_bytes:
            rows.append(("weights kept by the host", -self.offloaded_bytes))
        if self.activation_in_budget:
            rows.append(("activation peak", self.activation_bytes))
        rows.append(("outside of the allocator", self.non_torch_bytes))
        if self.graphs_in_budget:
            rows.append(("graphs", self.graph_bytes))
        if self.withheld_bytes:
            rows.append(("withheld by the engine", self.withheld_bytes))
        rows.append(("KV pool", self.pool_bytes))
        return (*rows, ("unused", self.budget_bytes - sum(size for _, size in rows)))


@dataclass(frozen=True, slots=True)
class StagePlan:
    """KV of one pipeline stage: what a sequence leaves there, and how many blocks its smallest rank has room for."""

    start: int
    stop: int
    footprint: KvFootprint
    block_bytes: float
    n_blocks: float
    """Infinite where the stage keeps nothing that grows."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What fits. Token figures are for one data-parallel rank: times `n_pools` for all.

    `kv_tokens` is what the engine's log calls the KV cache size; with windows or fixed states it is the number of
    full-length sequences times their length, since no constant number of bytes a token exists then.
    """

    ranks: tuple[RankMemory, ...]
    stages: tuple[StagePlan, ...]
    limits: StepLimits
    n_pools: int
    block_tokens: int
    n_blocks: int
    kv_tokens: int
    window_pool_tokens: int | None
    kv_bytes_per_token: float
    """Of the largest stage, one rank, all windows still growing."""
    fixed_bytes_per_sequence: float
    """States and full windows of the largest stage, one rank."""
    full_length_bytes: float
    """What one sequence of the full context limit takes on the rank that decides."""
    max_concurrency: float
    """Sequences of the full context limit that fit at once."""
    n_host_blocks: int
    fits_full_length: bool
    starts: bool
    reason: str
    needs_bytes: float
    has_bytes: float
    warnings: tuple[str, ...]
    assumed: tuple[str, ...]

    @property
    def tightest(self) -> RankMemory:
        """The rank with the fewest blocks."""
        return min(self.ranks, key=lambda rank: (rank.n_blocks, rank.available_bytes))
