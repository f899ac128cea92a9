"""Hook of the documentation: the help of every command as one page, so that it cannot differ from the program."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from mkdocs.structure.files import File, Files

from perfmodel.cli.app import COMMANDS, GROUPS


def _help(command: str) -> str:
    asked = [sys.executable, "-m", "perfmodel", command, "--help"]
    wide = {**os.environ, "COLUMNS": "110", "NO_COLOR": "1", "TERM": "dumb"}
    return subprocess.run(asked, capture_output=True, text=True, check=True, env=wide).stdout.rstrip()


_PAGES = {"GLOSSARY.md": "glossary.html", "CHANGELOG.md": "changelog.html", "docs/benchmarks.md": "benchmarks.html"}
"""Links of files that stand in the repository's root, and the pages that hold what they lead to."""


def on_page_content(html: str, **_: Any) -> str:
    """Return a page whose links to files of the repository lead to the pages made of them."""
    for file, page in _PAGES.items():
        html = html.replace(f'href="{file}"', f'href="{page}"')
    return html


def on_files(files: Files, config: Any) -> Files:
    """Add the page of the commands."""
    parts = ["# Commands", "", "What `perfmodel COMMAND --help` prints.", ""]
    for command in (*COMMANDS, *GROUPS):
        parts += [f"## {command}", "", "```text", _help(command), "```", ""]
    files.append(File.generated(config, "commands.md", content="\n".join(parts)))
    return files
