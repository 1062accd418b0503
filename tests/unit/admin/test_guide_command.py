"""The guide in the terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from spark_replication.page import guide
from spark_replication.page.guide import FOLDER, ORDER, GuidePage, guide_pages
from tests.unit.admin.conftest import Run


def test_pages_come_in_the_order_in_which_they_are_read() -> None:
    names = [page.name for page in guide_pages()]
    assert tuple(names[: len(ORDER)]) == ORDER
    assert all(name.startswith("reference/") for name in names[len(ORDER) :]), "give a new page its place"


@pytest.mark.parametrize("page", guide_pages(), ids=lambda page: page.name)
def test_a_page_begins_with_what_it_is_about(page: GuidePage) -> None:
    assert page.title
    assert 20 < len(page.summary) <= 200, page.summary
    assert "](" not in page.summary, "a list of pages shows it, and leads nowhere by it"


def test_without_a_name_the_pages_are_listed(run: Run) -> None:
    listed = json.loads(run("guide", "--format", "json").out)
    assert [each["page"] for each in listed] == [page.name for page in guide_pages()]
    assert "first hour" in run("guide").out


def test_a_page_is_printed_as_it_is_stored(run: Run) -> None:
    assert run("guide", "operate").out == (FOLDER / "operate.md").read_text()
    assert run("guide", "operate.md").out == (FOLDER / "operate.md").read_text()


def test_a_section_is_printed_by_itself(run: Run) -> None:
    text = (FOLDER / "operate.md").read_text()
    printed = run("guide", "operate#a-clock-is-wrong").out
    assert printed.startswith("## A clock is wrong\n\n")
    assert "## " not in printed[3:]
    assert printed.rstrip() in text
    assert run("guide", "operate.md#a-clock-is-wrong").out == printed
    found = json.loads(run("guide", "operate#a-clock-is-wrong", "--format", "json").out)
    assert (found["name"], found["text"]) == ("operate", printed)


def test_a_section_has_those_below_it(run: Run) -> None:
    text = (FOLDER / "operate.md").read_text()
    assert run("guide", "operate#when-something-is-wrong").out == text
    assert "## Which settings are in force" in run("guide", "operate#which-settings-are-in-force").out


def test_a_line_of_a_block_of_code_begins_no_section(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "# A\n\nof a\n\n## B\n\n```sh\n# C\n```\n\nmore\n\n## D\n"
    monkeypatch.setattr(guide, "guide_pages", lambda: [GuidePage("a", "A", "of a", text)])
    assert run("guide", "a#b").out == "## B\n\n```sh\n# C\n```\n\nmore\n"
    assert run("guide", "a#c").exit == 2


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("operate#a-clock-is-wrongg", "Did you mean operate#a-clock-is-wrong?"),
        ("operate#xyz", "lists them"),
        ("#x", "lists"),
    ],
)
def test_a_section_that_is_not_there_is_wrong_usage_with_a_hint(run: Run, name: str, hint: str) -> None:
    refused = run("guide", name)
    assert (refused.exit, refused.out, hint in refused.err) == (2, "", True)


def test_a_page_of_the_reference_has_a_short_name(run: Run) -> None:
    assert run("guide", "settings").out == (FOLDER / "reference" / "settings.md").read_text()
    assert run("guide", "metrics").out == (FOLDER / "metrics.md").read_text(), "the guide's own comes first"
    assert run("guide", "reference/metrics").out == (FOLDER / "reference" / "metrics.md").read_text()


def test_programs_get_a_page_with_its_title(run: Run) -> None:
    found = json.loads(run("guide", "moves", "--format", "json").out)
    assert found["title"] == "Partitions move"
    assert found["text"] == (FOLDER / "moves.md").read_text()


@pytest.mark.parametrize(("name", "hint"), [("opperate", "Did you mean operate?"), ("xyz", "lists them")])
def test_a_page_that_is_not_there_is_wrong_usage_with_a_hint(run: Run, name: str, hint: str) -> None:
    refused = run("guide", name)
    assert (refused.exit, refused.out, hint in refused.err) == (2, "", True)


def test_on_a_terminal_a_page_is_laid_out() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "spark_replication", "guide", "concepts"]
    process = subprocess.Popen(command, stdout=theirs, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    shown = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:  # Linux's way to say that nobody writes any more
            break
        shown += more
    os.close(ours)
    assert process.wait(60) == 0
    assert b"Concepts" in shown
    assert b"```" not in shown
    assert b"from-kafka.md" in shown, "what to ask for next"
    assert b"\x1b]8" not in shown, "a link of the terminal, which leads nowhere"


def test_the_reference_is_what_the_code_says(tmp_path: Path) -> None:
    """In a process of its own: click keeps the options of a command as they were first asked for."""
    command = [sys.executable, "-m", "spark_replication", "guide", "--write-reference", str(tmp_path / "reference")]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    written = {path.name: path.read_text() for path in (tmp_path / "reference").iterdir()}
    assert sorted(told.splitlines()) == sorted(str(tmp_path / "reference" / name) for name in written)
    stored = {path.name: path.read_text() for path in (FOLDER / "reference").iterdir()}
    stale = sorted(name for name in {*stored, *written} if stored.get(name) != written.get(name))
    assert stale == [], "write it anew: spark-replication guide --write-reference spark_replication/guide/reference"


def test_a_page_beside_a_written_reference_is_wrong_usage(run: Run, tmp_path: Path) -> None:
    assert run("guide", "operate", "--write-reference", tmp_path).exit == 2
    assert [*tmp_path.iterdir()] == []
