"""A program on a core as rows, as a table with a time line, and what a change of IPC does to a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from perfmodel.cost.issue import Issued, PipelineRun, core_share, instruction_growth, issue_share, slowdown
from perfmodel.estimate import Estimate
from perfmodel.units import time_text

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = [
    "change_document",
    "change_text",
    "pipeline_document",
    "pipeline_rows",
    "pipeline_tables",
    "stretched_documents",
    "stretched_text",
]

_MOST_ROWS = 40


def pipeline_rows(run: PipelineRun) -> list[dict[str, Any]]:
    """Return one row for each instruction that was run."""
    return [
        {
            "instruction": one.call.text,
            "n_elements": one.call.n_elements,
            "pipe": one.pipe,
            "dispatched_cycles": one.dispatched_cycles,
            "start_cycles": one.start_cycles,
            "free_cycles": one.free_cycles,
            "ready_cycles": one.ready_cycles,
            "stall_cycles": one.stall_cycles,
            "waits_for": one.waits_for,
        }
        for one in run.issued
    ]


def pipeline_document(run: PipelineRun, *, core: str, clock_hz: float | None) -> dict[str, Any]:
    """Return the run with stable keys."""
    return {
        "core": core,
        "n_instructions": run.n_instructions,
        "n_cycles": run.n_cycles,
        "time_s": run.n_cycles / clock_hz if clock_hz else None,
        "ipc": run.whole_ipc,
        "steady_ipc": run.steady_ipc,
        "ceiling_ipc": run.ceiling_ipc,
        "stall_cycles": run.stalls(),
        "instructions": pipeline_rows(run),
    }


def pipeline_tables(run: PipelineRun, *, core: str, clock_hz: float | None) -> Iterator[RenderableType]:
    """Yield the instructions with a time line, then cycles and IPC; long runs show their first instructions."""
    from rich.table import Table
    from rich.text import Text

    yield Text(core, style="bold")
    table = Table(box=None, pad_edge=False)
    for column in ("instruction", "pipe", "start", "ready", "stall", "waits for", ""):
        table.add_column(column, justify="right" if column in ("start", "ready", "stall") else "left", no_wrap=True)
    shown = run.issued[:_MOST_ROWS]
    end = max(one.ready_cycles for one in shown)
    for one in shown:
        cells = (f"{one.start_cycles:.4g}", f"{one.ready_cycles:.4g}", f"{one.stall_cycles:.4g}")
        table.add_row(one.call.text, one.pipe, *cells, one.waits_for or "-", _bar(one, end))
    yield table
    if len(run.issued) > len(shown):
        yield Text(f"... and {len(run.issued) - len(shown)} more", style="dim")
    time = f", {run.n_cycles / clock_hz * 1e9:.4g} ns at {clock_hz / 1e9:.4g} GHz" if clock_hz else ""
    yield Text(f"{run.n_instructions} instructions in {run.n_cycles:.4g} cycles{time}")
    yield Text(
        f"IPC {run.whole_ipc:.4g}, in steady state {run.steady_ipc:.4g}; "
        f"if none depended on another {run.ceiling_ipc:.4g}"
    )
    stalls = ", ".join(f"{name} {cycles:.4g}" for name, cycles in run.stalls().items())
    yield Text(f"Cycles of waiting: {stalls}" if stalls else "Nothing waits.")


def _bar(one: Issued, end_cycles: float, *, width: int = 36) -> str:
    """Return a line from start to ready: = while the unit is busy, - while the result is on its way."""
    start, free, ready = (
        round(width * at / end_cycles) for at in (one.start_cycles, one.free_cycles, one.ready_cycles)
    )
    busy = max(free - start, 1)
    return " " * start + "=" * busy + "-" * max(ready - start - busy, 0)


def change_document(
    before_ipc: float, after_ipc: float, *, bound_share: float, longer_frac: float | None
) -> dict[str, float | None]:
    """Return what a change of IPC does to a time, and what a stated change of time would need."""
    asked = longer_frac is not None
    share = issue_share(before_ipc=before_ipc, after_ipc=after_ipc, longer_frac=longer_frac or 0.0) if asked else None
    growth = (
        instruction_growth(
            before_ipc=before_ipc, after_ipc=after_ipc, longer_frac=longer_frac or 0.0, bound_share=bound_share
        )
        if asked
        else None
    )
    return {
        "ipc_before": before_ipc,
        "ipc_after": after_ipc,
        "issue_share": bound_share,
        "time_ratio": float(slowdown(before_ipc=before_ipc, after_ipc=after_ipc, bound_share=bound_share)),
        "largest_time_ratio": float(slowdown(before_ipc=before_ipc, after_ipc=after_ipc)),
        "stated_longer_frac": longer_frac,
        "needed_issue_share": None if share is None else float(share),
        "needed_instruction_growth": None if growth is None else float(growth),
    }


def change_text(change: dict[str, float | None]) -> list[str]:
    """Return the change as lines."""
    known = {name: value for name, value in change.items() if value is not None}
    longer, most = (100.0 * (known[name] - 1.0) for name in ("time_ratio", "largest_time_ratio"))
    whole = f"{100 * known['issue_share']:g} % of the time bound by issue"
    lines = [f"IPC {known['ipc_before']:g} to {known['ipc_after']:g}, {whole}: {longer:+.4g} %; at most {most:+.4g} %"]
    if "stated_longer_frac" in known:
        needed = known["needed_issue_share"]
        whether = "" if 0 <= needed <= 1 else ", which cannot be"
        lines.append(
            f"{100 * known['stated_longer_frac']:+.4g} % would need {100 * needed:.4g} % of the time bound by "
            f"issue{whether}, or {known['needed_instruction_growth']:.4g} times as many instructions"
        )
    return lines


def stretched_documents(
    times: Mapping[str, Estimate], *, before_ipc: float, after_ipc: float
) -> dict[str, dict[str, float]]:
    """Return time by name -> now, share that cores work, and the most that it becomes when all of that stretches."""
    found = {}
    for name, tree in times.items():
        share, now = float(core_share(tree)), float(tree.value)
        ratio = float(slowdown(before_ipc=before_ipc, after_ipc=after_ipc, bound_share=share))
        found[name] = {"time_s": now, "core_share": share, "stretched_s": now * ratio, "time_ratio": ratio}
    return found


def stretched_text(found: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the same as lines."""
    return [
        f"{name.upper()} {time_text(one['time_s'])}, of which cores work {100 * one['core_share']:.3g} %: at most "
        f"{time_text(one['stretched_s'])} ({100 * (one['time_ratio'] - 1):+.3g} %)"
        for name, one in found.items()
    ]
