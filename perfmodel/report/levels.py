"""Steps through the memory hierarchy as a document and as lines below an explanation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perfmodel.step.levels import StepLevels
from perfmodel.units import bytes_text, time_text

__all__ = ["levels_document", "levels_lines"]


def levels_document(steps: Sequence[StepLevels]) -> list[dict[str, Any]]:
    """Return the steps with stable keys in base units."""
    return [
        {
            "phase": one.phase,
            "l2_bytes": one.l2_bytes,
            "dram_bytes": one.dram_bytes,
            "l2_hit_frac": one.hit_frac,
            "weight_bytes": one.weight_bytes,
            "kv_bytes": one.kv_bytes,
            "usable_l2_bytes": one.cache_bytes,
            "weights_stay_in_l2": one.weights_stay,
            "kv_stays_in_l2": one.kv_stays,
            "least_issue_s": one.issue_s,
            "least_issue_share": None if one.issue_s is None else one.issue_s / one.step_s,
        }
        for one in steps
    ]


def levels_lines(steps: Sequence[StepLevels]) -> list[str]:
    """Return a line for each step, and one on issue where it is known; nothing for a device without an L2."""
    lines = []
    for one in steps:
        if one.cache_bytes <= 0:
            continue
        stays = "stay" if one.weights_stay else "do not stay"
        cache = ""
        if one.phase == "decode" and one.kv_bytes > 0:
            fits = "would fit" if one.kv_stays else "does not fit"
            cache = f"; the KV cache it reads, {bytes_text(one.kv_bytes)}, {fits}"
        asked = f"asked for {bytes_text(one.l2_bytes)}, has {100 * one.hit_frac:.1f} %"
        lines.append(
            f"L2 in a {one.phase} step: {asked}, main memory moves {bytes_text(one.dram_bytes)}; weights "
            f"({bytes_text(one.weight_bytes)}) {stays} in the usable {bytes_text(one.cache_bytes)} until the next "
            f"step{cache}."
        )
    issue = [
        f"{time_text(one.issue_s)} of a {one.phase} step ({100 * one.issue_s / one.step_s:.2g} %)"
        for one in steps
        if one.issue_s is not None
    ]
    if issue:
        lines.append(f"Issue: starting its vector instructions takes at least {', '.join(issue)}.")
    return lines
