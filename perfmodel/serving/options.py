"""What is decided about scheduling and replicas beside the deployment itself, as far as it is stated."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.errors import SpecError
from perfmodel.serving.fleet_setup import Failure
from perfmodel.serving.scheduler import BatchWindow

__all__ = ["ServingOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """Choices of a simulation; None leaves a thing to the engine's default.

    `n_prefill` and `n_decode` replicas split the work where both are stated. The KV link between them is that of the
    system unless its bandwidth or latency is stated. `n_instances` share each device; `slowdowns` are their factors for
    1, 2, ... that run at once, from the contention model where none are stated. `separate_ranks`: data-parallel ranks
    have blocks of their own and wait for the busiest one, rather than share all evenly.
    """

    order: str = "fcfs"
    routing: str = "round-robin"
    prefix_cache: bool | None = None
    swaps: bool = False
    window: BatchWindow | None = None
    n_prefill: int = 0
    n_decode: int = 0
    link_bytes_per_s: float | None = None
    link_latency_s: float | None = None
    failures: tuple[Failure, ...] = ()
    n_instances: int = 1
    slowdowns: tuple[float, ...] = ()
    separate_ranks: bool = False

    def __post_init__(self) -> None:
        if (self.n_prefill > 0) != (self.n_decode > 0) or min(self.n_prefill, self.n_decode) < 0:
            raise SpecError(
                "prefill and decode cannot be apart",
                got=f"{self.n_prefill} replicas for prefill, {self.n_decode} for decode",
                expected="at least one of each",
            )
        if self.n_instances < 1:
            raise SpecError("the device cannot be shared", got=str(self.n_instances), expected="at least 1 instance")
