"""Everything that a profile says at once: what commands print and documents hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from perfmodel.cost.kernel import KernelPrices
from perfmodel.errors import SpecError
from perfmodel.measure.profiling.profile_file import Profile
from perfmodel.measure.profiling.roofline_gap import GapPrices, RooflineGaps, roofline_gaps
from perfmodel.measure.profiling.shares import OperatorShare, StreamShare, operator_shares, stream_shares
from perfmodel.measure.profiling.suggest import Suggestion, suggestions
from perfmodel.measure.profiling.timeline import Timeline, WhatIf, timeline_of, what_if
from perfmodel.specs.catalogue import Catalogue

__all__ = ["HANDOVER_S", "ProfileAnswer", "gap_prices", "profile_answer"]

HANDOVER_S: Final = 20e-6
"""A start within this time of an end in another stream counts as having waited for it, where nothing else is said."""


@dataclass(frozen=True, slots=True)
class ProfileAnswer:
    """Everything that was computed from a profile; `untestable` says why there is no timeline, "" where there is."""

    profile: Profile
    operators: tuple[OperatorShare, ...]
    streams: tuple[StreamShare, ...]
    timeline: Timeline | None
    untestable: str
    what_ifs: tuple[WhatIf, ...]
    gaps: RooflineGaps | None
    suggestions: tuple[Suggestion, ...]
    device: str
    assumed: tuple[str, ...]


def gap_prices(catalogue: Catalogue, device: str, *, calibration: str = "auto", runtime: str = "") -> GapPrices:
    """Return the prices of a device by the datasheet, by the hard bound and by its calibration."""
    own = catalogue.hardware(device).device
    engine = catalogue.runtime(runtime).engine if runtime else ""
    fitted = catalogue.calibration_for(calibration, (own,), engine, runtime)
    ideal, bound = catalogue.calibration("ideal"), catalogue.calibration("hard-bound")
    return GapPrices(*(KernelPrices(one.for_device(own)) for one in (ideal, bound, fitted)))


def profile_answer(
    profile: Profile,
    *,
    prices: GapPrices | None = None,
    what_ifs: Sequence[tuple[str, float]] = (),
    handover_s: float | None = HANDOVER_S,
) -> ProfileAnswer:
    """Return shares, timeline, what-ifs (words, factor), gaps where `prices` are given, and suggestions.

    Raises SpecError for a what-if that matches no operator or is none, or a handover below 0.
    """
    if handover_s is not None and not handover_s >= 0.0:
        raise SpecError("a handover cannot be", got=f"{handover_s:g} s", expected="seconds from 0 on, or none")
    line = None if profile.untestable else timeline_of(profile, handover_s=handover_s)
    assumed = []
    if line is not None and line.n_inferred and handover_s is not None:
        assumed.append(
            f"{line.n_inferred:,} waits between streams, where an operator starts within {handover_s * 1e6:g} us after "
            "one of another stream while its own was idle"
        )
    if line is None and what_ifs:
        assumed.append("operators run one after the other (what-if by Amdahl's law)")
    own = prices.ideal.device.device if prices is not None else None
    return ProfileAnswer(
        profile=profile,
        operators=operator_shares(profile),
        streams=stream_shares(profile),
        timeline=line,
        untestable=profile.untestable,
        what_ifs=tuple(what_if(profile, words, factor, timeline=line) for words, factor in what_ifs),
        gaps=roofline_gaps(profile, prices) if prices is not None else None,
        suggestions=suggestions(
            profile,
            timeline=line,
            cache_bytes=own.last_cache_bytes if own is not None else 0.0,
            dram_bytes_per_s=own.dram_bytes_per_s if own is not None else 0.0,
        ),
        device=own.title if own is not None else "",
        assumed=tuple(assumed),
    )
