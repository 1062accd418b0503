"""The table of what is defended names, in each row, the tests that attack it: they are there, under these names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
HEAD = "| who | may not | because |"
ATTACKED_BY = "Attacked by "
_STORY = re.compile(r"^def (test_\w+)", re.MULTILINE)


class Row(NamedTuple):
    who: str
    may_not: str
    because: str

    @property
    def attacks(self) -> list[str]:
        """What it names: a file of tests, a test, or a target of make."""
        return re.findall(r"`([^`]+)`", self.because.partition(ATTACKED_BY)[2])


def pages() -> Iterator[Path]:
    yield from ROOT.glob("*.md")
    for folder in ROOT.iterdir():
        if folder.is_dir() and not folder.name.startswith("."):
            yield from folder.rglob("*.md")


def rows() -> list[Row]:
    (page,) = (each for each in pages() if HEAD in each.read_text())
    _, _, below = page.read_text().partition(HEAD)
    table = below.partition("\n\n")[0].strip().splitlines()[1:]  # without the line below the head
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in table]


DEFENDED = [row for row in rows() if row.may_not]


@cache
def stories() -> dict[str, set[str]]:
    """By file, from the root."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return {str(path.relative_to(ROOT)): set(_STORY.findall(path.read_text())) for path in files}


def is_there(attack: str) -> bool:
    if attack.startswith("make "):
        return (
            re.search(rf"^{attack.removeprefix('make ')}:", (ROOT / "Makefile").read_text(), re.MULTILINE) is not None
        )
    if attack.endswith(".py"):
        return any(names for path, names in stories().items() if path == attack or Path(path).name == attack)
    return any(attack in names for names in stories().values())


def test_the_table_has_rows() -> None:
    assert len(DEFENDED) >= 6, "or its head was written in other words"


@pytest.mark.parametrize("row", DEFENDED, ids=lambda row: row.who)
def test_each_row_names_tests_that_are_there(row: Row) -> None:
    assert row.attacks, f"{row.who}: which test attacks that?"
    assert [attack for attack in row.attacks if not is_there(attack)] == []


@pytest.mark.parametrize(
    ("attack", "there"),
    [
        ("tests/unit/test_defended.py", True),
        ("test_defended.py", True),
        ("test_each_row_names_tests_that_are_there", True),
        ("make fuzz", True),
        ("tests/unit/test_of_nothing.py", False),
        ("defended.py", False),
        ("test_of_nothing", False),
        ("make nothing", False),
    ],
)
def test_what_is_not_there_is_found_out(attack: str, *, there: bool) -> None:
    assert is_there(attack) == there
