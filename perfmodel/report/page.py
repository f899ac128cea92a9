"""One self-contained HTML page: text is escaped, pictures are inlined, nothing is fetched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

from perfmodel.errors import SpecError
from perfmodel.report.output import placed, whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MOST_BYTES", "cards", "checked_page", "figure_html", "items", "page", "saved_page", "section", "table"]

MOST_BYTES: Final = 3_000_000
"""A page that is mailed around stays below this."""

_STYLE: Final = """
:root { --ink: #1c2733; --soft: #5b6b7b; --line: #d9e0e7; --blue: #1f3a5f; --good: #0b6e4f; --bad: #a33a1e; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; color: var(--ink);
  max-width: 1080px; margin: 0 auto; padding: 28px 24px 60px; background: #fff; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; color: var(--blue); }
h2 { font-size: 19px; margin: 36px 0 8px; padding-top: 10px; border-top: 2px solid var(--blue); color: var(--blue); }
p { margin: 6px 0 10px; } .lead { font-size: 17px; } .soft { color: var(--soft); font-size: 13px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(215px, 1fr)); gap: 12px; margin: 18px 0; }
.card { border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px; background: #f7f9fb; }
.card b { display: block; font-size: 21px; color: var(--blue); } .card span { color: var(--soft); font-size: 12.5px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; margin: 8px 0; }
th { text-align: left; background: var(--blue); color: #fff; font-weight: 600; padding: 6px 8px;
  vertical-align: bottom; }
td { padding: 5px 8px; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:nth-child(even) td { background: #f7f9fb; } tr.first td { background: #e6f2ec; font-weight: 600; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; } td.number { white-space: nowrap; }
pre { background: #f2f5f8; border: 1px solid var(--line); border-radius: 6px; padding: 10px 12px; font-size: 12.5px;
  white-space: pre-wrap; overflow-wrap: anywhere; }
figure { margin: 14px 0; } figure svg { width: 100%; height: auto; } figcaption { color: var(--soft); font-size: 13px; }
ul { margin: 6px 0; padding-left: 22px; } li { margin: 2px 0; } .warn li { color: var(--bad); }
@page { size: A4; margin: 14mm; }
@media print {
  body { max-width: none; padding: 0; font-size: 11px; } h2 { margin-top: 20px; break-after: avoid; }
  figure, .card, tr, pre { break-inside: avoid; } table { font-size: 9.5px; } th, td { padding: 3px 4px; }
  thead { display: table-header-group; } .wide { overflow: visible; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
}
"""


def page(title: str, body: Iterable[str]) -> str:
    """Return a whole document; `body` is HTML already."""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """Return a headed part of the page; parts are HTML already."""
    return f"<section>\n<h2>{escape(title)}</h2>\n" + "\n".join(parts) + "\n</section>"


def items(texts: Sequence[str], *, kind: str = "") -> str:
    """Return a list; nothing where there is nothing to list.

    >>> items(["a < b"])
    '<ul>\\n<li>a &lt; b</li>\\n</ul>'
    """
    if not texts:
        return ""
    named = f' class="{kind}"' if kind else ""
    return f"<ul{named}>\n" + "\n".join(f"<li>{escape(text)}</li>" for text in texts) + "\n</ul>"


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = (), first: bool = False
) -> str:
    """Return a table; `numbers` are columns to set right, `first` marks the first row."""

    def cell(tag: str, i: int, text: str) -> str:
        kind = ' class="number"' if i in numbers else ""
        return f"<{tag}{kind}>{escape(text)}</{tag}>"

    head = "".join(cell("th", i, name) for i, name in enumerate(columns))
    lines = [
        f"<tr{' class=first' if first and n == 0 else ''}>"
        + "".join(cell("td", i, text) for i, text in enumerate(row))
        + "</tr>"
        for n, row in enumerate(rows)
    ]
    return (
        f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(lines)
        + "\n</tbody></table></div>"
    )


def cards(figures: Sequence[tuple[str, str, str]]) -> str:
    """Return figures as cards: value, what it is, and a remark."""
    found = [
        f'<div class="card"><span>{escape(name)}</span><b>{escape(value)}</b><span>{escape(remark)}</span></div>'
        for value, name, remark in figures
    ]
    return '<div class="cards">\n' + "\n".join(found) + "\n</div>"


def figure_html(figure: Figure, caption: str, *, name: str) -> str:
    """Return a figure as inline SVG whose text stays text; `name` keeps its inner references apart from others'."""
    from matplotlib import rc_context

    out = StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    return f"<figure>\n{svg}\n<figcaption>{escape(caption)}</figcaption>\n</figure>"


def checked_page(path: Path | None) -> Path | None:
    """Return the path as it is; raises SpecError for a suffix that no page has, and where none can stand."""
    if path is None:
        return None
    if path.suffix.lower() not in (".html", ".htm"):
        raise SpecError(
            f"a report cannot be written as {path.name}", got=f"suffix {path.suffix or 'none'}", expected=".html"
        )
    return placed(path)


def saved_page(path: Path, text: str) -> Path:
    """Write a page and return its path; raises SpecError where it cannot be written or is too large to mail."""
    checked_page(path)
    if len(text.encode()) > MOST_BYTES:
        raise SpecError("the report is too large", got=f"{len(text.encode())} bytes", expected=f"at most {MOST_BYTES}")
    with whole_file(path) as file:
        file.write(text)
    return path
