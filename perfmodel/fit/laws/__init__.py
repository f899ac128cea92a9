"""The registry of laws that can be fitted."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from perfmodel.errors import UnknownNameError
from perfmodel.fit.laws.base import Array, Columns, FitLaw, Input, Parameter, positive, real
from perfmodel.fit.laws.contention import CONTENTION_LAWS
from perfmodel.fit.laws.general import DRIFT_LAWS, GENERAL_LAWS
from perfmodel.fit.laws.kernels import KERNEL_LAWS

__all__ = [
    "LAWS",
    "Array",
    "Columns",
    "FitLaw",
    "Input",
    "Parameter",
    "candidate_laws",
    "law_by_name",
    "positive",
    "real",
]

LAWS: Final[Mapping[str, FitLaw]] = MappingProxyType(
    {law.name: law for law in (*GENERAL_LAWS, *DRIFT_LAWS, *CONTENTION_LAWS, *KERNEL_LAWS)}
)


def law_by_name(name: str) -> FitLaw:
    """Return the law of that name; raises UnknownNameError with near names.

    >>> law_by_name("alpha_beta").names
    ('t0_s', 'bandwidth_bytes_per_s')
    """
    if name not in LAWS:
        raise UnknownNameError.of("law", name, tuple(LAWS), f"the laws are {', '.join(LAWS)}")
    return LAWS[name]


def candidate_laws(x_names: tuple[str, ...], y_name: str = "") -> tuple[FitLaw, ...]:
    """Return the rival laws that suit columns of these names: those that ask for them, else the general ones.

    One column whose name a family knows (n_instances, layer, bytes) gives that family; transfer laws describe a time
    and the bandwidth law a rate, so a y named after a bandwidth picks the latter. Several columns must bear the names
    of a law's inputs.

    >>> [law.name for law in candidate_laws(("layer",))]
    ['drift_proportional', 'drift_root', 'drift_linear', 'drift_power']
    """
    if len(x_names) > 1:
        wanted = set(x_names)
        return tuple(law for law in LAWS.values() if {i.name for i in law.inputs} == wanted)
    hinted = tuple(law for law in LAWS.values() if x_names[0] in law.hints)
    if {law.family for law in hinted} == {"transfer", "bandwidth"}:
        words = ("bandwidth", "bytes_per_s", "gb/s", "gbps", "busbw", "algbw")
        is_rate = any(word in y_name.lower() for word in words)
        own = tuple(law for law in hinted if law.family == ("bandwidth" if is_rate else "transfer"))
        return (*own, LAWS["linear"], LAWS["offset_power"], *((LAWS["hill"],) if is_rate else ()))
    return hinted or tuple(law for law in LAWS.values() if law.family == "general")
