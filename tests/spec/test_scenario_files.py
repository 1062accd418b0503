"""The scenario files as a whole: each rule has one that shows it, and none of them can be misspelt."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_replication.admin.cli.main import cli

SCENARIOS = Path(__file__).parents[1] / "scenarios"
FILES = sorted(SCENARIOS.rglob("*.yaml"))

# Each rule of section 4 of the design, and those of section 13 that a scenario can show.
RULES = {
    *(f"C{number}" for number in range(1, 5)),
    *(f"E{number}" for number in range(1, 5)),
    *(f"S{number}" for number in range(1, 3)),
    *(f"L{number}" for number in range(1, 6)),
    *(f"I{number}" for number in range(1, 9)),
    *(f"F{number}" for number in range(5)),
    *(f"A{number}" for number in range(1, 5)),
    *(f"T{number}" for number in range(1, 5)),
    *(f"B{number}" for number in range(1, 5)),
    "TB5",
}
NAME = re.compile(r"^name: (?P<name>.*?)\s+# (?P<rules>.*)$", re.MULTILINE)
RULE = re.compile(r"\b(?:[CESLIFATB]|TB)\d\b")

# Of a step, as the files write it: `  - event: …` and `    expect: {key: …` or `      key: …` below it.
EVENT = re.compile(r"^  - (?P<word>\w+):", re.MULTILINE)
EXPECTATION = re.compile(r"^    expect:(?: \{|\n      )(?P<word>[\w.@-]+):", re.MULTILINE)


def test_every_rule_is_shown_by_a_scenario() -> None:
    shown = {rule for path in FILES for name in NAME.finditer(path.read_text()) for rule in RULE.findall(name["rules"])}
    assert sorted(RULES - shown) == []
    assert sorted(shown - RULES) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_scenario_is_named_once_and_says_which_rules_it_shows(path: Path) -> None:
    text = path.read_text()
    names = [found["name"] for found in NAME.finditer(text)]
    assert len(names) == len(re.findall(r"^name:", text, re.MULTILINE))
    assert sorted(name for name in names if names.count(name) > 1) == []


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("part", [EVENT, EXPECTATION], ids=["event", "expectation"])
def test_a_misspelt_word_in_any_file_is_wrong_usage(tmp_path: Path, path: Path, part: re.Pattern[str]) -> None:
    """The last in the file: whatever comes before it, holds."""
    text = path.read_text()
    start, end = list(part.finditer(text))[-1].span("word")
    misspelt = f"{text[start:end]}x"
    copy = tmp_path / path.name
    copy.write_text(f"{text[:start]}{misspelt}{text[end:]}")
    ran = CliRunner().invoke(cli, ["scenario", "-q", str(copy)])
    assert (ran.exit_code, misspelt in ran.output) == (2, True), ran.output
