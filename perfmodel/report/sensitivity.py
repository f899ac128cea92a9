"""Elasticities, needed figures and break-even points as rows, a document and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from perfmodel.plan.breakeven import BreakEven
from perfmodel.plan.inverse import Needed
from perfmodel.plan.knobs import Knob, Scene
from perfmodel.plan.sensitivity import OUTPUTS, Effect, outputs
from perfmodel.report.answer import setup_document, setup_text
from perfmodel.report.notes import count, note_parts, rate
from perfmodel.units import bandwidth_text, bytes_text, rate_text, time_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

__all__ = ["SensitivityView", "knob_text", "sensitivity_document", "sensitivity_rows", "sensitivity_tables"]

_SHOWN = ("ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s", "kv_tokens", "usd_per_million_tokens")
_LEAST = 0.005
"""Figures with a smaller elasticity stand in the document only."""


@dataclass(frozen=True, slots=True)
class SensitivityView:
    """What was asked and found: `output` orders the effects; `target` is what `needed` aims at."""

    scene: Scene
    output: str
    change_frac: float
    effects: tuple[Effect, ...]
    needed: tuple[Needed, ...] = ()
    target: float | None = None
    target_words: str = ""
    break_evens: tuple[BreakEven, ...] = ()

    @property
    def ordered(self) -> list[Effect]:
        """Effects by how much they move the output, largest first."""
        return sorted(self.effects, key=lambda effect: -abs(_one(effect.elasticity[self.output])))


def _one(value: Any) -> float:
    found = float(np.atleast_1d(value)[0])
    return found if np.isfinite(found) else 0.0


def _finite(value: Any) -> float | None:
    found = float(np.atleast_1d(value)[0])
    return found if np.isfinite(found) else None


def knob_text(knob: Knob, value: float) -> str:
    """Return a figure with its unit, as the name of its knob tells it."""
    name = knob.name
    if "host_" in name or name.endswith(("latency", ".launch", ".start", ".chain", ".peer")) or "launch." in name:
        return time_text(value)
    if "bandwidth_per_direction" in name or name.endswith("].bandwidth"):
        return bandwidth_text(value)
    if ".rates[" in name:
        return rate_text(value)
    if name.endswith(("capacity", "usable_memory")) or "memory.non_torch" in name:
        return bytes_text(value)
    return f"{value:.4g}" if value < 1e4 else count(round(value))


def _output_text(name: str, value: float | None) -> str:
    if value is None:
        return "none, as the queue grows"
    return time_text(value) if name.endswith("_s") and not name.endswith("per_s") else rate(value)


def sensitivity_rows(view: SensitivityView) -> list[dict[str, Any]]:
    """Return a row for each figure, largest effect first: elasticities, and outputs at both ends of the change."""
    rows = []
    for effect in view.ordered:
        row: dict[str, Any] = {
            "figure": effect.knob.name,
            "kind": effect.knob.kind,
            "value": _finite(effect.knob.value),
        }
        row |= {f"elasticity_{name}": _finite(value) for name, value in effect.elasticity.items()}
        row |= {f"{view.output}_low": _finite(effect.low[view.output])}
        row |= {f"{view.output}_high": _finite(effect.high[view.output]), "jumps": ", ".join(effect.jumps)}
        rows.append(row)
    return rows


def sensitivity_document(view: SensitivityView) -> dict[str, Any]:
    """Return everything with stable keys in base units."""
    scene = view.scene
    return setup_document(scene.case) | {
        "concurrency": scene.concurrency,
        "requests_per_s": scene.requests_per_s,
        "input_tokens": scene.input_tokens,
        "output_tokens": scene.output_tokens,
        "outputs": {name: _finite(value) for name, value in outputs(scene).items()},
        "output": view.output,
        "change_frac": view.change_frac,
        "figures": sensitivity_rows(view),
        "target": view.target,
        "needed": [
            {"figure": n.knob.name, "value": n.knob.value, "needed": n.value, "factor": n.factor} for n in view.needed
        ],
        "break_even": [
            {
                "first": b.first,
                "second": b.second,
                "output": b.output,
                "users": list(b.at),
                "text": b.text(),
            }
            for b in view.break_evens
        ],
    }


def _table(view: SensitivityView) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    names = [name for name in _SHOWN if name in view.effects[0].elasticity]
    heads = {
        "ttft_s": "TTFT",
        "tpot_s": "TPOT",
        "e2e_s": "end to\nend",
        "output_tokens_per_s": "tok/s",
        "kv_tokens": "KV\ntokens",
        "usd_per_million_tokens": "USD/\nMtok",
    }
    percent = 100 * view.change_frac
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))  # names of figures are long
    table.add_column("figure", overflow="fold")
    table.add_column("value", justify="right", no_wrap=True)
    for name in names:
        table.add_column(heads[name], justify="right", no_wrap=True)
    for side in ("-", "+"):
        table.add_column(f"at\n{side}{percent:g} %", justify="right", no_wrap=True)
    for effect in view.ordered:
        slopes = [_one(effect.elasticity[name]) for name in names]
        if max(map(abs, slopes)) < _LEAST:
            continue
        ends = [_finite(side[view.output]) for side in (effect.low, effect.high)]
        table.add_row(
            Text(effect.knob.name + (" *" if view.output in effect.jumps else "")),
            knob_text(effect.knob, effect.knob.value) if np.isfinite(effect.knob.value) else "several",
            *("" if abs(slope) < _LEAST else f"{slope:+.2f}" for slope in slopes),
            *("does not fit" if end is None else _output_text(view.output, end) for end in ends),
        )
    return table


def _needed_lines(needed: Sequence[Needed]) -> Iterator[str]:
    impossible = []
    for n in needed:
        if n.factor is None or n.value is None:
            impossible.append(n.knob.name)
        else:
            values = f": {knob_text(n.knob, n.value)} instead of {knob_text(n.knob, n.knob.value)}"
            yield f"{n.knob.name}{'' if n.knob.kind == 'together' else values} ({n.factor:.3g} x)"
    if impossible:
        yield f"no value within 64 x does it alone: {', '.join(impossible)}"


def sensitivity_tables(view: SensitivityView) -> Iterator[RenderableType]:
    """Yield the setup, outputs, elasticities, what would have to be true, break-even points and notes."""
    from rich.padding import Padding
    from rich.text import Text

    scene, case = view.scene, view.scene.case
    load = f"{scene.concurrency:g} users" if scene.requests_per_s is None else f"{scene.requests_per_s:g} requests/s"
    lengths = f"{scene.input_tokens:g} in, {scene.output_tokens:g} out"
    yield Text(f"{setup_text(case)}; {load}, {lengths}; calibration {case.calibration.name}", style="bold")
    for name, value in outputs(scene).items():
        yield Text(f"  {OUTPUTS[name]}: {_output_text(name, _finite(value))}")
    if view.effects:
        yield Text(f"Elasticities (percent for one percent), by their effect on {OUTPUTS[view.output]}", style="bold")
        yield _table(view)
        if any(view.output in effect.jumps for effect in view.effects):
            yield Text(
                "* a step lies here (a prompt just fits, a graph ends): the elasticity is that of the flatter side"
            )
    if view.target is not None:
        wanted = _output_text(view.output, view.target)
        yield Text(f"What would have to be true for {OUTPUTS[view.output]} of {wanted}{view.target_words}", "bold")
        for line in _needed_lines(view.needed):
            yield Padding(Text(line), (0, 0, 0, 2), expand=False)
    if view.break_evens:
        yield Text("Where it pays", style="bold")
        for b in view.break_evens:
            yield Padding(Text(f"{OUTPUTS.get(b.output, b.output)}: {b.text()}"), (0, 0, 0, 2), expand=False)
    yield from note_parts(case.assumed, case.warnings)
