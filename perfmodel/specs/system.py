"""Devices wired together: a node, a box of cards, a bridge pair, or a supernode."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from perfmodel.specs.device import Contradiction, Label, LinkKind
from perfmodel.specs.figures import BandwidthFigure, CountFigure, FracFigure, Spec, TimeFigure

__all__ = ["Fabric", "System", "Topology"]

Topology = Literal["switch", "full_mesh", "ring", "pair", "tree"]


class Fabric(Spec):
    """One level of wiring. Bandwidth is what one device can send, one direction, with all its lanes busy.

    In a `full_mesh` each of the n_devices - 1 peers gets its own share of that bandwidth; behind a `switch` any peer
    gets all of it; a `tree` (PCIe) shares the root; a `ring` and a `pair` have neighbours only.
    `latency_class` says how a message starts: peer to peer, staged through host memory, or over a network card.
    """

    name: str
    kind: LinkKind
    topology: Topology
    n_devices: int = Field(ge=2)
    """How many devices this level joins, counted in devices (not in groups)."""
    bandwidth_per_direction: BandwidthFigure
    latency: TimeFigure
    latency_class: Literal["p2p", "host-staged", "network"]
    reduces_in_switch: bool = False
    """The switch can add (NVLink SHARP): an all-reduce may then beat the ring bound."""
    efficiency: FracFigure | None = None
    """Measured share of the nominal bandwidth that a large copy reaches, where known."""


class System(Spec):
    """A node or cluster as the catalogue holds it; `fabrics` runs from the innermost level outwards."""

    kind: Literal["system"] = "system"
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.+-]*$")]
    title: str
    device: str
    n_devices: int = Field(ge=1)
    names: tuple[str, ...] = ()
    sources: dict[str, str] = Field(min_length=1)
    fabrics: tuple[Fabric, ...] = Field(min_length=1)
    host_memory_gib: CountFigure | None = None
    labels: tuple[Label, ...] = ()
    contradictions: tuple[Contradiction, ...] = ()
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _levels_grow(self) -> System:
        sizes = [fabric.n_devices for fabric in self.fabrics]
        if sizes != sorted(set(sizes)):
            raise ValueError(
                "fabrics must run from the innermost level outwards, each joining more devices than the last"
            )
        used = {f.bandwidth_per_direction.source for f in self.fabrics} | {f.latency.source for f in self.fabrics}
        missing = sorted(used - set(self.sources))
        if missing:
            raise ValueError(f"source {', '.join(missing)} is used but not listed under `sources`")
        return self
