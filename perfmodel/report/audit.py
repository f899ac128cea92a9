"""The audit to read: a table, rows for programs, and a report with the working in Markdown or HTML."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from perfmodel.errors import SpecError
from perfmodel.report.markdown import markdown_table
from perfmodel.validate.audit.figures import figure_label, figure_text
from perfmodel.validate.audit.run import Audit
from perfmodel.validate.audit.verdict import Finding, Judgement, Verdict

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = [
    "audit_csv_rows",
    "audit_document",
    "audit_html",
    "audit_markdown",
    "audit_tables",
    "counts_text",
    "section_markdown",
    "working_parts",
]

COLOURS: Final = {
    Verdict.REPRODUCED: "#2e7d32",
    Verdict.PLAUSIBLE: "#1b4965",
    Verdict.CONTRADICTS_ITSELF: "#b26a00",
    Verdict.CONTRADICTS_PHYSICS: "#b3261e",
    Verdict.CONTRADICTS_SPECIFICATION: "#8f3b8a",
    Verdict.NOT_TESTABLE: "#6b7280",
}
MEANINGS: Final = {
    Verdict.REPRODUCED: "inside the model's band, or follows from what it should follow from",
    Verdict.PLAUSIBLE: "inside physics; outside of the band, or only under conditions not stated: the cause is named",
    Verdict.CONTRADICTS_ITSELF: "its own figures disagree",
    Verdict.CONTRADICTS_PHYSICS: "beyond a hard bound, which is named",
    Verdict.CONTRADICTS_SPECIFICATION: "against a public datasheet, configuration or statement",
    Verdict.NOT_TESTABLE: "what is missing is named",
}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _cells(finding: Finding) -> tuple[str, str, str]:
    """Return stated, model and band as text; a dash where there is none."""

    def text(value: float) -> str:
        return figure_text(finding.name, value) if math.isfinite(value) else ""

    low, high = text(finding.low), text(finding.high)
    if low and high:
        band = f"{low} .. {high}" if low != high else low
    else:
        band = f"at least {low}" if low else f"at most {high}" if high else "-"
    return text(finding.stated) or "-", text(finding.model) or "-", band


def counts_text(audit: Audit) -> str:
    """Return how many claims have each verdict."""
    return ", ".join(f"{n} {verdict.value}" for verdict, n in audit.counts.items())


def audit_tables(audit: Audit, *, every_check: bool = False) -> Iterator[RenderableType]:
    """Yield the table, one row a claim (or a check), then the counts."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=audit.document.title, title_justify="left", box=box.SIMPLE, padding=(0, 1), pad_edge=False)
    for name, width in (("claim", 16), ("stated", 17), ("model", 11), ("band", 13), ("verdict", 13), ("reason", None)):
        numeric = name in ("model", "band")
        table.add_column(
            name, justify="right" if numeric else "left", overflow="fold", max_width=width, min_width=width
        )
    for judgement in audit.judgements:
        shown = judgement.findings if every_check else (judgement.deciding,)
        for i, finding in enumerate(shown):
            stated, model, band = _cells(finding)
            what = figure_label(finding.name) if finding.name else finding.check.replace("_", " ")
            table.add_row(
                judgement.id if i == 0 else "",
                what if stated == "-" else f"{what} {stated}",
                model,
                band,
                Text(finding.verdict.value, style=COLOURS[finding.verdict]),
                finding.reason,
            )
    yield table
    yield Text(f"{len(audit.judgements)} claims: {counts_text(audit)}", style="bold")


def working_parts(audit: Audit) -> Iterator[RenderableType]:
    """Yield each claim with how it was read and the working of its checks."""
    from rich.text import Text

    for judgement in audit.judgements:
        yield Text(f"{judgement.id}: {judgement.text}", style="bold")
        if judgement.reading:
            yield Text(f"  read as: {judgement.reading}")
        for text, verdict in judgement.other_readings:
            yield Text(f"  read otherwise ({text}): {verdict.value}")
        for finding in judgement.findings:
            yield Text(f"  {finding.check}: {finding.verdict.value}", style=COLOURS[finding.verdict])
            for line in finding.working:
                yield Text(f"    {line}")


def _finding_row(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "figure": finding.name,
        "stated": _number(finding.stated),
        "model": _number(finding.model),
        "low": _number(finding.low),
        "high": _number(finding.high),
        "verdict": finding.verdict.value,
        "reason": finding.reason,
    }


def audit_document(audit: Audit) -> dict[str, Any]:
    """Return the audit as plain data with stable keys; figures in base units, null where there is none."""
    return {
        "title": audit.document.title,
        "source": audit.document.source,
        "counts": {verdict.value: n for verdict, n in audit.counts.items()},
        "claims": [
            {
                "id": judgement.id,
                "section": judgement.section,
                "kind": judgement.kind,
                "text": judgement.text,
                "reading": judgement.reading,
                "verdict": judgement.verdict.value,
                "reason": judgement.deciding.reason,
                "other_readings": [{"reading": t, "verdict": v.value} for t, v in judgement.other_readings],
                "checks": [{**_finding_row(f), "working": list(f.working)} for f in judgement.findings],
            }
            for judgement in audit.judgements
        ],
    }


def audit_csv_rows(audit: Audit) -> list[dict[str, Any]]:
    """Return one flat row a check."""
    return [
        {"claim": j.id, "section": j.section, "claim_verdict": j.verdict.value, **_finding_row(f)}
        for j in audit.judgements
        for f in j.findings
    ]


def _sections(audit: Audit) -> Iterator[tuple[str, Sequence[Judgement]]]:
    for section, group in groupby(audit.judgements, key=lambda j: j.section):
        yield section, tuple(group)


def audit_markdown(audit: Audit) -> str:
    """Return the whole report with the working as Markdown."""
    parts = [f"# Audit: {audit.document.title}", f"Source: {audit.document.source}", audit.document.how_to_read]
    rows = [[v.value, str(n), MEANINGS[v]] for v, n in audit.counts.items()]
    parts.append(markdown_table(["verdict", "claims", "meaning"], rows))
    for section, judgements in _sections(audit):
        parts.append(f"## {section[:1].upper()}{section[1:]}")
        parts.append(
            markdown_table(
                ["claim", "stated", "model", "band", "verdict"],
                [[j.id, *_cells(j.deciding), j.verdict.value] for j in judgements],
            )
        )
        parts += [_markdown_claim(judgement) for judgement in judgements]
    return "\n\n".join(part for part in parts if part) + "\n"


def section_markdown(audit: Audit, section: str) -> str:
    """Return one section as a Markdown table with a row for every check; raises SpecError where there is none."""
    rows = [
        [
            judgement.id if i == 0 else "",
            figure_label(finding.name) if finding.name else finding.check.replace("_", " "),
            *_cells(finding),
            finding.verdict.value,
            finding.reason,
        ]
        for judgement in audit.judgements
        if judgement.section == section
        for i, finding in enumerate(judgement.findings)
    ]
    if not rows:
        known = ", ".join(name for name, _ in _sections(audit))
        raise SpecError("the claims have no such section", got=section, expected=f"one of {known}")
    return markdown_table(["claim", "figure", "stated", "predicted", "band", "verdict", "reason"], rows)


def _markdown_claim(judgement: Judgement) -> str:
    lines = [f"### {judgement.id}: {judgement.verdict.value}", "", f"*{judgement.text}*", ""]
    if judgement.reading:
        lines.append(f"Read as: {judgement.reading}.")
    lines += [f"Read otherwise ({text}): {verdict.value}." for text, verdict in judgement.other_readings]
    for finding in judgement.findings:
        stated, model, band = _cells(finding)
        figures = "" if stated == model == "-" else f" Stated {stated}, model {model}, band {band}."
        lines.append(f"- **{finding.verdict.value}** ({finding.check}): {finding.reason}.{figures}")
        lines += [f"  - {line}" for line in finding.working]
    return "\n".join(lines)


_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #1c2430; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; border-bottom: 1px solid #d5dae1; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .25rem .6rem; vertical-align: top; }
th { color: #5a6472; font-weight: 600; } tr { border-bottom: 1px solid #e8ebf0; }
td.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.v { color: #fff; border-radius: .3rem; padding: 0 .4rem; white-space: nowrap; font-size: .85em; }
details { margin: .15rem 0; } summary { cursor: pointer; } li { margin: .1rem 0; }
.w { color: #5a6472; font-size: .9em; } .q { font-style: italic; }
"""


def audit_html(audit: Audit) -> str:
    """Return the whole report with the working as one HTML page that needs nothing else."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f"<title>Audit: {escape(audit.document.title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Audit: {escape(audit.document.title)}</h1>",
        f"<p>Source: {escape(audit.document.source)}</p><p>{escape(audit.document.how_to_read)}</p><table>",
    ]
    parts += [
        f'<tr><td>{_badge(verdict)}</td><td class="n">{n}</td><td>{escape(MEANINGS[verdict])}</td></tr>'
        for verdict, n in audit.counts.items()
    ]
    parts.append("</table>")
    for section, judgements in _sections(audit):
        parts.append(f"<h2>{escape(section[:1].upper() + section[1:])}</h2><table>")
        parts.append(
            "<tr><th>claim</th><th>stated</th><th>model</th><th>band</th><th>verdict, reason, working</th></tr>"
        )
        for judgement in judgements:
            cells = "".join(f'<td class="n">{escape(cell)}</td>' for cell in _cells(judgement.deciding))
            parts.append(f"<tr><td>{escape(judgement.id)}</td>{cells}<td>{_html_claim(judgement)}</td></tr>")
        parts.append("</table>")
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _badge(verdict: Verdict) -> str:
    return f'<span class="v" style="background:{COLOURS[verdict]}">{escape(verdict.value)}</span>'


def _html_claim(judgement: Judgement) -> str:
    lines = [f'<p class="q">{escape(judgement.text)}</p>']
    if judgement.reading:
        lines.append(f"<p>Read as: {escape(judgement.reading)}.</p>")
    lines += [f"<p>Read otherwise ({escape(t)}): {escape(v.value)}.</p>" for t, v in judgement.other_readings]
    for finding in judgement.findings:
        stated, model, band = _cells(finding)
        figures = "" if stated == model == "-" else f" Stated {stated}, model {model}, band {band}."
        steps = "".join(f"<li>{escape(line)}</li>" for line in finding.working)
        lines.append(
            f"<p>{_badge(finding.verdict)} {escape(finding.reason)}."
            f'<span class="w">{escape(figures)}</span></p><ul class="w">{steps}</ul>'
        )
    head = f"{_badge(judgement.verdict)} {escape(judgement.deciding.reason)}"
    return f"<details><summary>{head}</summary>{''.join(lines)}</details>"
