"""What a profile says as one HTML page, the heat map inside, that opens without a server."""

from __future__ import annotations

from html import escape
from io import StringIO

from matplotlib import rc_context

from perfmodel.measure.profiling.answer import ProfileAnswer
from perfmodel.report.heat_map import heat_map_figure
from perfmodel.report.profile import profile_parts

__all__ = ["profile_html"]

_WIDTH = 150
_STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:80rem;color:#222}"
    "pre{font:13px/1.4 ui-monospace,Menlo,Consolas,monospace;white-space:pre;overflow-x:auto}"
    "svg{max-width:100%;height:auto}"
)


def profile_html(answer: ProfileAnswer, *, n_rows: int) -> str:
    """Return the page: heat map, then the tables of the command line; no date, so that equal data give equal pages."""
    name = escape(answer.profile.name)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f"<title>Profile {name}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Profile {name}</h1>",
        _svg(answer),
        f"<pre>{escape(_text(answer, n_rows))}</pre>",
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _svg(answer: ProfileAnswer) -> str:
    out = StringIO()
    with rc_context({"svg.hashsalt": "profile"}):  # names of clip paths would be random otherwise
        heat_map_figure(answer.profile, title="").savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def _text(answer: ProfileAnswer, n_rows: int) -> str:
    from rich.console import Console

    out = StringIO()
    console = Console(file=out, width=_WIDTH, no_color=True, highlight=False)
    for part in profile_parts(answer, n_rows=n_rows):
        console.print(part)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
