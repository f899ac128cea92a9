"""Variations side by side: what changes by how much, which is best and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.errors import InfeasibleError
from perfmodel.estimate import Bound
from perfmodel.report.answer import bound_text, headline
from perfmodel.report.notes import assumption_lines, count, note_parts, rate
from perfmodel.report.output import plain_value
from perfmodel.step.answer import Answer
from perfmodel.units import GIB, time_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

__all__ = [
    "Variation",
    "best_of",
    "change_text",
    "common_heading",
    "comparison_document",
    "comparison_rows",
    "comparison_tables",
    "reason",
    "setup_names",
    "shared_assumptions",
]

Variation = tuple[Mapping[str, str], "Answer | Exception"]

_LONGEST_NAME = 24
"""Names up to this long stand in the table; longer ones in a list above it."""


def best_of(variations: Sequence[Variation]) -> int | None:
    """Return the index of the variation with the most output tokens/s per device; None where none works."""
    rates = {
        i: a.figures["output_tokens_per_s_per_device"].value
        for i, (_, a) in enumerate(variations)
        if isinstance(a, Answer)
    }
    return max(rates, key=lambda i: rates[i]) if rates else None


def _base(variations: Sequence[Variation]) -> Answer | None:
    return next((a for _, a in variations if isinstance(a, Answer)), None)


def comparison_rows(variations: Sequence[Variation]) -> list[dict[str, Any]]:
    """Return one flat row a variation, with changes against the first that works."""
    base = _base(variations)
    best = best_of(variations)
    rows = []
    for i, (changes, answer) in enumerate(variations):
        row: dict[str, Any] = {name: plain_value(text) for name, text in changes.items()}
        if isinstance(answer, Answer) and base is not None:
            for key in ("ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s", "output_tokens_per_s_per_device"):
                own, first = answer.figures[key], base.figures[key]
                row |= {key: own.value, f"{key}_low": own.low, f"{key}_high": own.high}
                row[f"{key}_change_frac"] = own.value / first.value - 1.0
            rank = answer.memory.tightest
            row |= {
                "n_devices": answer.case.n_devices,
                "batch": answer.case.workload.batch,
                "batch_running": answer.workload.batch,
                "input_tokens": answer.workload.input_tokens,
                "output_tokens": answer.workload.output_tokens,
                "bound": answer.bound.value,
                "weight_bytes_per_rank": rank.weights_on_device_bytes,
                "kv_pool_bytes_per_rank": rank.pool_bytes,
                "kv_tokens": answer.memory.kv_tokens,
                "kv_tokens_change_frac": answer.memory.kv_tokens / max(1, base.memory.kv_tokens) - 1.0,
                "best": i == best,
                "error": "",
            }
        else:
            row |= {"best": False, "error": "; ".join(str(answer).split("\n  "))}
        rows.append(row)
    return rows


def comparison_document(variations: Sequence[Variation]) -> dict[str, Any]:
    """Return the rows with what each assumes and warns of, the index of the best, and why it is."""
    rows = comparison_rows(variations)
    for row, (_, answer) in zip(rows, variations, strict=True):
        row["assumed"] = list(answer.assumed) if isinstance(answer, Answer) else []
        row["warnings"] = list(answer.warnings) if isinstance(answer, Answer) else []
    return {"variations": rows, "best": best_of(variations), "reason": reason(variations)}


def setup_names(variations: Sequence[Variation]) -> list[str]:
    """Return what each variation changes, as short as it stays clear."""
    if len(variations[0][0]) == 1:
        return [next(iter(changes.values())) for changes, _ in variations]
    return [_changes_text(changes) for changes, _ in variations]


def _axis_text(axis: str) -> str:
    """Return an axis as a user writes it."""
    return axis.removeprefix("n_")


def _changes_text(changes: Mapping[str, str]) -> str:
    return " ".join(f"{_axis_text(axis)}={value}" for axis, value in changes.items())


def common_heading(variations: Sequence[Variation]) -> str:
    """Return what the variations are compared with."""
    base = next((i for i, (_, a) in enumerate(variations) if isinstance(a, Answer)), None)
    if base is None:
        return "No variation works"
    answer = variations[base][1]
    assert isinstance(answer, Answer)
    return f"Changes are against #{base + 1}: {headline(answer)}"


def comparison_tables(variations: Sequence[Variation]) -> Iterator[RenderableType]:
    """Yield the tables of speed and memory, a sentence on the best, what does not work, assumptions and warnings."""
    from rich.text import Text

    names = setup_names(variations)
    yield Text(common_heading(variations), style="bold")
    if max(map(len, names)) > _LONGEST_NAME:
        for i, name in enumerate(names):
            yield Text(f"  #{i + 1} {name}")
    if best_of(variations) is not None:
        yield ""
        yield _speed_table(variations, names)
        yield ""
        yield _memory_table(variations, names)
        yield ""
        yield Text(reason(variations))
    for i, (_, answer) in enumerate(variations):
        if isinstance(answer, Exception):
            yield Text(f"#{i + 1} {_without_assumptions(answer)}", style="yellow")
    yield from _notes(variations)


def _without_assumptions(error: Exception) -> str:
    return "\n".join(line for line in str(error).split("\n") if not line.startswith("  assumed: "))


def _table(variations: Sequence[Variation], names: Sequence[str], columns: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("#", no_wrap=True)
    if max(map(len, names)) <= _LONGEST_NAME:
        axes = variations[0][0]
        table.add_column(_axis_text(next(iter(axes))) if len(axes) == 1 else "variation", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="left" if column == "bound by" else "right", no_wrap=True)
    return table


def _speed_table(variations: Sequence[Variation], names: Sequence[str]) -> Table:
    rows = comparison_rows(variations)
    in_table = max(map(len, names)) <= _LONGEST_NAME
    several = any(row.get("n_devices", 1) > 1 for row in rows)
    columns = ["TTFT", "", "TPOT", "", "tokens/s", "", *(["per device"] if several else []), "80 % band", "bound by"]
    table = _table(variations, names, columns)
    running = next((row["batch_running"] for row in rows if not row["error"]), None)
    for i, row in enumerate(rows):
        cells = [f"{i + 1}{' *' if row['best'] and len(rows) > 1 else ''}", *([names[i]] if in_table else [])]
        if row["error"]:
            why = "does not fit" if isinstance(variations[i][1], InfeasibleError) else "not possible"
            table.add_row(*cells, *[""] * (len(columns) - 1), why, style="dim")
            continue
        alike = row["batch_running"] == running
        cells += [time_text(row["ttft_s"]), _latency_change(row, "ttft_s", alike=alike)]
        cells += [time_text(row["tpot_s"]), _latency_change(row, "tpot_s", alike=alike)]
        cells += [rate(row["output_tokens_per_s"]), change_text(row["output_tokens_per_s_change_frac"])]
        cells += [rate(row["output_tokens_per_s_per_device"])] if several else []
        cells.append(f"{rate(row['output_tokens_per_s_low'])} .. {rate(row['output_tokens_per_s_high'])}")
        table.add_row(*cells, row["bound"], style="bold" if row["best"] else "")
    return table


def _memory_table(variations: Sequence[Variation], names: Sequence[str]) -> Table:
    in_table = max(map(len, names)) <= _LONGEST_NAME
    counted = in_table and list(variations[0][0]) == ["n_devices"]
    columns = ["weights/rank", "KV pool/rank", "KV tokens", "", "running"]
    table = _table(variations, names, columns if counted else ["devices", *columns])
    for i, row in enumerate(comparison_rows(variations)):
        if row["error"]:
            continue
        table.add_row(
            str(i + 1),
            *([names[i]] if in_table else []),
            *([] if counted else [str(row["n_devices"])]),
            f"{row['weight_bytes_per_rank'] / GIB:.2f} GiB",
            f"{row['kv_pool_bytes_per_rank'] / GIB:.2f} GiB",
            count(row["kv_tokens"]),
            change_text(row["kv_tokens_change_frac"]),
            f"{row['batch_running']:g} of {row['batch']:g}",
        )
    return table


def _latency_change(row: Mapping[str, Any], key: str, *, alike: bool) -> str:
    """Return the change of a latency; how many requests run where that differs, since then it is not like for like."""
    return change_text(row[f"{key}_change_frac"]) if alike else f"({row['batch_running']:g} run)"


def change_text(frac: float) -> str:
    """Return a change in percent; empty where there is none to speak of.

    >>> change_text(0.3348)
    '+33 %'
    """
    return "" if abs(frac) < 5e-3 else f"{100 * frac:+,.0f} %"


def shared_assumptions(variations: Sequence[Variation]) -> list[str]:
    """Return what every variation that works assumes."""
    answers = [a for _, a in variations if isinstance(a, Answer)]
    return [text for text in answers[0].assumed if all(text in a.assumed for a in answers)] if answers else []


def _notes(variations: Sequence[Variation]) -> Iterator[RenderableType]:
    from rich.text import Text

    answers = [a for _, a in variations if isinstance(a, Answer)]
    shared = shared_assumptions(variations)
    common = [text for text in (answers[0].warnings if answers else ()) if all(text in a.warnings for a in answers)]
    yield from note_parts(shared, common)
    own: dict[str, list[str]] = {}
    for i, (_, answer) in enumerate(variations):
        if isinstance(answer, Answer):
            for line in assumption_lines([text for text in answer.assumed if text not in shared]):
                own.setdefault(f"assumed: {line}", []).append(f"#{i + 1}")
            for warning in answer.warnings:
                if warning not in common:
                    own.setdefault(f"note: {warning}", []).append(f"#{i + 1}")
    for line, numbers in own.items():
        yield Text(f"{' '.join(numbers)} {line}", style="yellow" if line.startswith("note") else "dim")


def reason(variations: Sequence[Variation]) -> str:
    """Return why the best beats the runner-up: the bound whose time per token shrinks most; and who is quickest."""
    best = best_of(variations)
    works = [(i, a) for i, (_, a) in enumerate(variations) if isinstance(a, Answer)]
    if best is None:
        return "No variation works."
    if len(works) < 2:
        return "Only one variation works."
    winner = next(a for i, a in works if i == best)
    rivals = [(i, a) for i, a in works if i != best]
    next_best, second = max(rivals, key=lambda pair: pair[1].figures["output_tokens_per_s_per_device"].value)
    own, other = (a.figures["output_tokens_per_s_per_device"] for a in (winner, second))
    name = f"#{best + 1} {_changes_text(variations[best][0])}"
    lead = own.value / other.value - 1
    if lead < 5e-3:
        return f"Best per device: {name}, but #{next_best + 1} is level with it.{_quickest_text(variations, best)}"
    spent = [_device_s_per_token(a) for a in (winner, second)]
    saved = {bound: spent[1].get(bound, 0.0) - spent[0].get(bound, 0.0) for bound in {*spent[0], *spent[1]}}
    most = max(saved, key=lambda bound: saved[bound])
    sure = "the bands do not overlap" if own.low > other.high else "the bands overlap, so this is likely, not sure"
    return (
        f"Best per device: {name}, {100 * lead:.0f} % ahead of #{next_best + 1}; it saves most on "
        f"{bound_text(most)} ({time_text(max(saved[most], 0.0))} of device time a token); {sure}."
        f"{_quickest_text(variations, best)}"
    )


def _quickest_text(variations: Sequence[Variation], best: int) -> str:
    """Return which variation answers a request soonest; empty where it is the best, or the loads are not alike."""
    works = {i: a for i, (_, a) in enumerate(variations) if isinstance(a, Answer)}
    if len({(a.workload.batch, a.workload.input_tokens, a.workload.output_tokens) for a in works.values()}) > 1:
        return ""
    spent = {i: a.figures["e2e_s"].value for i, a in works.items()}
    first = min(spent, key=lambda i: spent[i])
    if spent[first] > spent[best] * (1 - 5e-3):
        return ""
    lead = 100 * (1 - spent[first] / spent[best])
    changes = _changes_text(variations[first][0])
    return f" Quickest for one request: #{first + 1} {changes}, end to end {lead:.0f} % shorter."


def _device_s_per_token(answer: Answer) -> dict[Bound, float]:
    per_token = 1.0 / answer.figures["output_tokens_per_s_per_device"].value
    return {bound: share * per_token for bound, share in answer.bounds["e2e"] if share < 1.0}
