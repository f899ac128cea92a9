"""Markdown tables to paste into an issue or a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfmodel.report.answer import figure_text, headline, setup_text
from perfmodel.report.comparison import (
    Variation,
    change_text,
    common_heading,
    comparison_rows,
    reason,
    setup_names,
    shared_assumptions,
)
from perfmodel.report.memory import waterfall_rows
from perfmodel.report.notes import assumption_lines, rate
from perfmodel.step.answer import Answer
from perfmodel.step.question import Case
from perfmodel.units import GB, GIB, time_text
from perfmodel.work.memory_types import MemoryPlan

__all__ = ["answer_markdown", "comparison_markdown", "markdown_table", "memory_markdown"]


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the first column is text, the others numbers.

    >>> print(markdown_table(["part", "GiB"], [["KV pool", "3.02"]]))
    | part | GiB |
    |:---|---:|
    | KV pool | 3.02 |
    """
    marks = [":---", *["---:"] * (len(columns) - 1)]
    lines = [" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in (columns, *rows)]
    return "\n".join([f"| {lines[0]} |", f"|{'|'.join(marks)}|", *(f"| {line} |" for line in lines[1:])])


def answer_markdown(answer: Answer) -> str:
    """Return what was asked, one row of figures with bands, the limits and what was assumed."""
    work, figures = answer.workload, answer.figures
    cells = {"ISL": f"{work.input_tokens:g}", "OSL": f"{work.output_tokens:g}", "concurrency": f"{work.batch:g}"}
    for name, key, kind in (
        ("TTFT", "ttft_s", "time"),
        ("TPOT", "tpot_s", "time"),
        ("tok/s", "output_tokens_per_s", "number"),
        ("tok/s/device", "output_tokens_per_s_per_device", "number"),
    ):
        value, band = figure_text(figures[key], kind)
        cells[name] = f"{value} ({band})"
    table = markdown_table(list(cells), [list(cells.values())])
    text = "Predicted values with their 80 % band in brackets."
    return _page(f"**{headline(answer)}**", table, text, answer.assumed, answer.warnings)


def comparison_markdown(variations: Sequence[Variation]) -> str:
    """Return one row a variation with its changes in percent against the first that works."""
    rows = []
    for name, row in zip(setup_names(variations), comparison_rows(variations), strict=True):
        if row["error"]:
            rows.append([name, *[""] * 8, f"no: {row['error']}"])
            continue
        rows.append(
            [
                f"**{name}**" if row["best"] else name,
                f"{row['input_tokens']:g}",
                f"{row['output_tokens']:g}",
                f"{row['batch_running']:g}",
                _with_change(time_text(row["ttft_s"]), row["ttft_s_change_frac"]),
                _with_change(time_text(row["tpot_s"]), row["tpot_s_change_frac"]),
                _with_change(rate(row["output_tokens_per_s"]), row["output_tokens_per_s_change_frac"]),
                _with_change(
                    rate(row["output_tokens_per_s_per_device"]), row["output_tokens_per_s_per_device_change_frac"]
                ),
                f"{rate(row['output_tokens_per_s_low'])} to {rate(row['output_tokens_per_s_high'])}",
                row["bound"],
            ]
        )
    columns = ["variation", "ISL", "OSL", "concurrency", "TTFT", "TPOT", "tok/s", "tok/s/device", "80 % band", "bound"]
    return _page(
        f"**{common_heading(variations)}**",
        markdown_table(columns, rows),
        reason(variations),
        shared_assumptions(variations),
        (),
    )


def memory_markdown(
    case: Case, plan: MemoryPlan, lines: Mapping[str, str], assumed: Sequence[str], warnings: Sequence[str]
) -> str:
    """Return the waterfall of each distinct rank in GiB (and GB where there is one), then what fits."""
    labels, parts = waterfall_rows(plan)
    one = len(labels) == 1
    columns = ["", *(f"GiB, {label}" for label in labels), *(["GB"] if one else [])]
    rows = [
        [
            part.name.strip(),
            *(f"{size / GIB:.3f}" for size in part.sizes),
            *([f"{part.sizes[0] / GB:.3f}"] if one else []),
        ]
        for part in parts
    ]
    text = "\n".join(f"- {name}: {value}" for name, value in lines.items())
    return _page(f"**{setup_text(case)}**", markdown_table(columns, rows), text, assumed, warnings)


def _with_change(text: str, frac: float) -> str:
    change = change_text(frac)
    return f"{text} ({change})" if change else text


def _page(title: str, table: str, text: str, assumed: Sequence[str], warnings: Sequence[str]) -> str:
    notes = [*(f"- assumed: {line}" for line in assumption_lines(assumed)), *(f"- note: {w}" for w in warnings)]
    return "\n\n".join(part for part in (title, table, text, "\n".join(notes)) if part)
