"""`perfmodel audit`: table, JSON, CSV, reports, the template, and bad files."""

from __future__ import annotations

import csv
import json
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest

from perfmodel.validate.audit.verdict import Verdict
from tests.unit.cli_parts import Run, answer

SMALL = """\
kind: claims
title: A small file
source: made up
claims:
  - id: gain
    section: speed
    kind: derived
    text: "<b>12 | 13</b> is more"
    figures: {gain_frac: 0.5, before: 10, after: 15, change_frac: 0.0}
    checks:
      - {kind: arithmetic, figure: gain_frac, formula: after / before - 1, inputs: {before: before, after: after}}
  - id: gone
    section: speed
    kind: measured
    text: nothing is stated
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "claims.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return path


def test_the_template_can_be_audited_as_it_is(run_cli: Run, tmp_path: Path) -> None:
    printed = run_cli("audit", "--template")
    assert printed.code == 0
    path = tmp_path / "mine.yaml"
    path.write_text(printed.out, encoding="utf-8")
    document = answer(run_cli, "audit", str(path))
    verdicts = {claim["verdict"] for claim in document["claims"]}
    assert {"reproduced", "plausible", "contradicts physics", "not testable"} <= verdicts


def test_json_csv_and_table_say_the_same(run_cli: Run, small: Path) -> None:
    document = answer(run_cli, "audit", str(small))
    assert set(document) == {"title", "source", "counts", "claims"}
    assert set(document["counts"]) == {verdict.value for verdict in Verdict}
    assert sum(document["counts"].values()) == len(document["claims"]) == 2
    gain = document["claims"][0]
    assert gain["verdict"] == "reproduced"
    assert gain["checks"][0]["model"] == pytest.approx(0.5)
    rows = list(csv.DictReader(StringIO(run_cli("audit", str(small), "--csv").out)))
    assert [row["claim_verdict"] for row in rows] == ["reproduced", "not testable"]
    table = run_cli("audit", str(small), "--all").out
    assert "2 claims: 1 reproduced" in table


class Balanced(HTMLParser):
    """Counts open tags; void ones have no end."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_reports_hold_the_working_and_need_nothing_else(run_cli: Run, small: Path, tmp_path: Path) -> None:
    page, text = tmp_path / "a.html", tmp_path / "a.md"
    assert run_cli("audit", str(small), "--report", str(page)).code == 0
    assert run_cli("audit", str(small), "--report", str(text)).code == 0
    html = page.read_text(encoding="utf-8")
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    assert parser.loads == []
    assert "&lt;b&gt;12 | 13&lt;/b&gt;" in html
    for written in (html, text.read_text(encoding="utf-8")):
        assert "after / before - 1 with" in written
        assert "not testable" in written


def test_a_picture_is_written(run_cli: Run, small: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    assert run_cli("audit", str(small), "--plot", str(path)).code == 0
    assert path.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (("kind: arithmetic", "kind: feeling"), "feeling"),
        (("gain_frac: 0.5,", "gain_frac: 12 GB,"), "12 GB"),
        (("figure: gain_frac", "figure: nobody.gain_frac"), "nobody"),
        (("formula: after / before - 1", "formula: __import__('os')"), "formula"),
        (("formula: after /", "formula: later /"), "later"),
        (("id: gone", "id: gain"), "share an id"),
        (("title: A small file", "title: A small file\nverdict: true"), "verdict"),
        (("kind: claims", "kind: opinions"), "claims"),
    ],
)
def test_a_bad_file_is_refused_with_the_place(run_cli: Run, small: Path, change: tuple[str, str], word: str) -> None:
    small.write_text(SMALL.replace(*change), encoding="utf-8")
    ran = run_cli("audit", str(small))
    assert ran.code == 2
    assert word in ran.err
    assert "Traceback" not in ran.err


def test_a_figure_that_is_missing_is_not_testable(run_cli: Run, small: Path) -> None:
    small.write_text(SMALL.replace("gain_frac: 0.5, ", ""), encoding="utf-8")
    document = answer(run_cli, "audit", str(small))
    assert document["claims"][0]["verdict"] == "not testable"
    assert "states no gain_frac" in document["claims"][0]["reason"]


@pytest.mark.parametrize(
    "arguments",
    [("no-such-file.yaml",), ("--report", "a.pdf"), ("--plot", "a.txt"), ("--json", "--csv")],
)
def test_bad_arguments(run_cli: Run, arguments: tuple[str, ...]) -> None:
    ran = run_cli("audit", *arguments)
    assert ran.code == 2
    assert ran.err.startswith("perfmodel: ")


def test_facts_of_ones_own_catalogue_count(run_cli: Run, small: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "hardware" / "claims"
    folder.mkdir(parents=True)
    folder.joinpath("host-facts.yaml").write_text(
        "kind: facts\ntitle: mine\nfacts:\n"
        "  - {name: my-host, title: My host, quantities: {n_cores: {value: 96, source: data sheet}}}\n",
        encoding="utf-8",
    )
    check = "{kind: spec, of: my-host, quantity: n_cores, figure: n_cores}"
    small.write_text(f"{SMALL}    figures: {{n_cores: 64}}\n    checks: [{check}]\n", encoding="utf-8")
    claims = answer(run_cli, "audit", str(small), "--catalog", str(tmp_path / "mine"))["claims"]
    assert claims[1]["verdict"] == "contradicts a public specification"
    assert "96" in claims[1]["reason"]


def test_single_claims_with_their_working(run_cli: Run, small: Path) -> None:
    ran = run_cli("audit", str(small), "--only", "gai")
    assert ran.code == 0
    assert "1 claims" in ran.out
    assert "after / before - 1 with" in ran.out
    missing = run_cli("audit", str(small), "--only", "gold")
    assert missing.code == 2
    assert "gain" in missing.err


def test_the_shipped_claims_are_the_default(run_cli: Run) -> None:
    document = json.loads(run_cli("audit", "--json").out)
    assert len(document["claims"]) == 64
