"""The page and the workbook: whole, self-contained, escaped, readable again, and small."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from openpyxl import load_workbook

from perfmodel.errors import SpecError
from perfmodel.plan.demand import Targets
from perfmodel.plan.finalists import contested
from perfmodel.plan.ranking import ranked
from perfmodel.report.page import MOST_BYTES, cards, items, saved_page, table
from perfmodel.report.plan import plan_document
from perfmodel.report.plan_page import plan_page, plan_sheets
from perfmodel.report.plan_view import PlanView
from perfmodel.report.workbook import saved_workbook
from perfmodel.specs.catalogue import Catalogue
from tests.unit.cli_parts import Run
from tests.unit.plan.plan_parts import small_plan

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Balanced(HTMLParser):
    """Collects tags that do not match, the text, and what would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.faults: list[str] = []
        self.fetched: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.fetched += [str(v) for k, v in attrs if k in ("src", "href", "xlink:href") and not str(v).startswith("#")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [str(v) for k, v in attrs if k in ("src", "href", "xlink:href") and not str(v).startswith("#")]

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def view(catalogue: Catalogue) -> PlanView:
    plan = small_plan(catalogue, targets=Targets(ttft_s=1.0, tpot_s=0.04, max_devices=16))
    return PlanView(contested(ranked(plan)))


def test_the_page_is_whole_and_fetches_nothing(view: PlanView) -> None:
    text = plan_page(view)
    parser = Balanced()
    parser.feed(text)
    assert parser.faults == []
    assert parser.open == []
    assert parser.fetched == []
    assert "@import" not in text
    assert "url(http" not in text
    assert len(text.encode()) < MOST_BYTES


def test_the_page_says_what_the_document_says(view: PlanView) -> None:
    parser = Balanced()
    parser.feed(plan_page(view))
    text = " ".join(parser.text)
    document = plan_document(view)
    winner = document["rivals"][0]
    assert f"{winner['n_devices']} x {winner['hardware']}" in text
    assert document["launch"][0]["text"].split(" --")[0] in text
    for line in (*document["warnings"], "Assumed", "Prices", "Sources of the winner"):
        assert line in text
    assert text.count("a100-80gb-sxm") > 3


def test_pictures_keep_their_references_apart(view: PlanView) -> None:
    text = plan_page(view)
    pictures = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(pictures) >= 4
    used = [set(re.findall(r'clip-path="url\(#([^)]+)\)"', picture)) for picture in pictures]
    for i, first in enumerate(used):
        for second in used[i + 1 :]:
            assert not first & second


def test_text_is_escaped() -> None:
    bad = "<script>alert(1)</script>"
    for html in (items([bad]), table([bad], [[bad]]), cards([(bad, bad, bad)])):
        assert "<script>" not in html
    assert items([]) == ""


def test_a_page_that_is_too_large_or_misnamed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="too large"):
        saved_page(tmp_path / "a.html", "x" * (MOST_BYTES + 1))
    with pytest.raises(SpecError, match="suffix"):
        saved_page(tmp_path / "a.txt", "x")
    assert list(tmp_path.iterdir()) == []


def test_the_workbook_holds_the_rows(view: PlanView, tmp_path: Path) -> None:
    sheets = plan_sheets(view)
    path = saved_workbook(tmp_path / "plan.xlsx", sheets)
    book = load_workbook(path)
    assert book.sheetnames == list(sheets)
    rows = list(book["Rivals"].values)
    head = list(rows[0])
    wanted = plan_document(view)["rivals"]
    assert len(rows) == 1 + len(wanted)
    for row, rival in zip(rows[1:], wanted, strict=True):
        for name in ("hardware", "n_devices", "tpot_s", "usd_per_hour", "reason"):
            value = row[head.index(name)]
            assert value == (rival[name] or None) or value == pytest.approx(rival[name])
    assert book["Rivals"].freeze_panes == "A2"


def test_cells_are_no_formulas(tmp_path: Path) -> None:
    path = saved_workbook(tmp_path / "a.xlsx", {"s": [{"a": "=1+1", "b": float("nan"), "c": True}], "empty": []})
    sheet = load_workbook(path)["s"]
    assert [cell.value for cell in sheet[2]] == ["'=1+1", None, True]


def test_without_openpyxl_the_cure_is_named(run_cli: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    ran = run_cli("plan", "llama-3.1-8b", "--isl", "9", "--osl", "9", "--concurrent-users", "1", "--xlsx", "a.xlsx")
    assert ran.code == 2
    assert "pip install 'perfmodel[files]'" in ran.err


def test_files_from_the_command_line(run_cli: Run, tmp_path: Path) -> None:
    page, book = tmp_path / "out.html", tmp_path / "out.xlsx"
    ran = run_cli(
        "plan", "llama-3.1-8b", "--isl", "512", "--osl", "128", "--concurrent-users", "16", "--hardware", "l40s",
        "--tp", "1", "--no-simulation", "--report", str(page), "--xlsx", str(book), "--json",
    )  # fmt: skip
    assert ran.code == 0
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert book.stat().st_size > 4000
    for flag, name in (("--report", "a.pdf"), ("--xlsx", "a.csv"), ("--report", str(tmp_path / "no" / "a.html"))):
        refused = run_cli(
            "plan", "llama-3.1-8b", "--isl", "512", "--osl", "128", "--concurrent-users", "16", "--hardware", "l40s",
            "--tp", "1", "--no-simulation", flag, name,
        )  # fmt: skip
        assert refused.code == 2
        assert "cannot be written" in refused.err
