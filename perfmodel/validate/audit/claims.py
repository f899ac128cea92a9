"""The claims file: what somebody states, in which words and figures, and what kind of assertion each one is.

No verdict and no coefficient stands in it. A claim holds figures as printed (with units), and checks in terms of
general kinds. Where a printing can be read in several ways, `readings` hold the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from perfmodel.errors import UnitError
from perfmodel.specs.figures import Spec
from perfmodel.validate.audit.base import Setup
from perfmodel.validate.audit.figures import Printed, printed
from perfmodel.validate.audit.rules.capacity import Capacity, ScalesWith
from perfmodel.validate.audit.rules.contention import InstanceSpeed, Knee
from perfmodel.validate.audit.rules.cores import InstructionLatency, IssueCeiling, IssueChange, LineUse
from perfmodel.validate.audit.rules.fitted import DriftThreshold, FormulaFit
from perfmodel.validate.audit.rules.hierarchy import GatherMemory, MatmulMemory
from perfmodel.validate.audit.rules.kv import KvWaste, Reallocation
from perfmodel.validate.audit.rules.messages import CommunicationShare, MessageSize, RowPadding, ShareGrowth
from perfmodel.validate.audit.rules.numbers import Arithmetic, Inputs, Limit, Same, Shares
from perfmodel.validate.audit.rules.physics import Bandwidth, Placement, RotaryError
from perfmodel.validate.audit.rules.public import (
    CacheAxes,
    HasOperator,
    IndexRange,
    Requires,
    RunsOn,
    Specification,
    ToolMeasures,
)
from perfmodel.validate.audit.rules.quality import PerplexityRise
from perfmodel.validate.audit.rules.serving import (
    Feasible,
    LessThanProportional,
    LimitCause,
    MemoryPeak,
    Speedup,
    Throughput,
    Ttft,
)
from perfmodel.validate.audit.rules.steps import (
    CoreUse,
    DispatchTime,
    FusionGain,
    FusionMemory,
    FusionPasses,
    PageWalks,
    Workspace,
)

__all__ = ["AnyCheck", "Claim", "ClaimsDocument", "Reading"]

AnyCheck = Annotated[
    Arithmetic
    | Bandwidth
    | CacheAxes
    | Capacity
    | CommunicationShare
    | CoreUse
    | DispatchTime
    | DriftThreshold
    | Feasible
    | FormulaFit
    | FusionGain
    | FusionMemory
    | FusionPasses
    | GatherMemory
    | HasOperator
    | IndexRange
    | Inputs
    | InstanceSpeed
    | InstructionLatency
    | IssueCeiling
    | IssueChange
    | Knee
    | KvWaste
    | Limit
    | LessThanProportional
    | LimitCause
    | LineUse
    | MatmulMemory
    | MemoryPeak
    | MessageSize
    | PageWalks
    | PerplexityRise
    | Placement
    | Reallocation
    | Requires
    | RotaryError
    | RowPadding
    | RunsOn
    | Same
    | ScalesWith
    | ShareGrowth
    | Shares
    | Specification
    | Speedup
    | Throughput
    | ToolMeasures
    | Ttft
    | Workspace,
    Field(discriminator="kind"),
]
Figures = dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], int | float | str]


def _checked_units(figures: Mapping[str, float | str]) -> None:
    for name, raw in figures.items():
        try:
            printed(name, raw)
        except UnitError as error:
            raise ValueError(str(error).replace("\n  ", "; ")) from error


class Reading(Spec):
    """Another way to read the same printing: what differs, and why one might read it so."""

    text: str
    figures: Figures

    @model_validator(mode="after")
    def _units(self) -> Reading:
        _checked_units(self.figures)
        return self


class Claim(Spec):
    """One statement. `kind` says what it is said to be; it has no part in the verdict."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_+-]*$")]
    section: str
    kind: Literal["measured", "derived", "model", "spec", "cause"]
    text: str
    figures: Figures = Field(default_factory=dict)
    reading: str = ""
    """How the printing was read, where that is not plain."""
    readings: tuple[Reading, ...] = ()
    checks: tuple[AnyCheck, ...] = ()

    @model_validator(mode="after")
    def _units(self) -> Claim:
        _checked_units(self.figures)
        return self

    def values(self, reading: Reading | None = None) -> Mapping[str, Printed]:
        """Return the figures in base units, under another reading where one is given."""
        raw = {**self.figures, **(reading.figures if reading else {})}
        return {name: printed(name, value) for name, value in raw.items()}


class ClaimsDocument(Spec):
    """A file of claims with its source. `setups` are what ran, as far as it is stated."""

    kind: Literal["claims"]
    title: str
    source: str
    how_to_read: str = ""
    setups: dict[str, Setup] = Field(default_factory=dict)
    claims: tuple[Claim, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _ids_are_unique(self) -> ClaimsDocument:
        ids = [claim.id for claim in self.claims]
        twice = sorted({i for i in ids if ids.count(i) > 1})
        if twice:
            raise ValueError(f"claims share an id: {', '.join(twice)}")
        return self
