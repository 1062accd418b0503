"""What README and the guide print is well formed: links lead somewhere, commands and settings are those of the code.
tests/live/datasource/test_printed.py runs it."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from configparser import ConfigParser
from itertools import pairwise
from pathlib import Path

import click
import pytest

from spark_replication.admin.cli.main import cli
from spark_replication.config import described
from spark_replication.page.guide import anchor_of
from tests.printed import BLOCKS, GUIDE, NOT_RUN, PAGES, ROOT, Block, name_of, why_not_run

_LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]*))?\)")
#: What delta-rs takes, not this package.
_OF_DELTA = "aws_"


def test_readme_is_short_and_begins_with_two_commands() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150
    commands = [line for block in BLOCKS if block.page == "README" for line in block.commands]
    assert [line.partition("#")[0].strip() for line in commands[:2]] == ["make run", "make test"]


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name != "reference"], ids=name_of)
def test_lines_are_no_longer_than_those_of_code(page: Path) -> None:
    lines = [line for line in page.read_text().splitlines() if not line.startswith("|")]
    assert [line for line in lines if len(line) > 120] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_what_is_there(page: Path) -> None:
    for target, part in _LINK.findall(page.read_text()):
        found = (page.parent / target) if target else page
        assert found.exists(), target
        assert not part or part in _anchors(found), f"{target}#{part}"


def test_readme_names_each_page() -> None:
    named = {target for target, _ in _LINK.findall((ROOT / "README.md").read_text())}
    assert {str(page.relative_to(ROOT)) for page in GUIDE.glob("*.md")} <= named


def test_the_wheel_has_every_page() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    patterns = config["options.package_data"]["spark_replication"].split()
    found = {path for pattern in patterns for path in (ROOT / "spark_replication").glob(pattern)}
    assert [page for page in PAGES if page.is_relative_to(GUIDE) and page not in found] == []


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.page}: {block.first}")
def test_a_block_is_what_it_says(block: Block, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if block.language == "python":
        ast.parse(block.text)
    elif block.language == "toml":
        known = {each.name for each in described()}
        assert [name for name in _names(tomllib.loads(block.text)) if name not in known] == []
    else:
        assert block.language in ("", "sh", "text"), "a language that no test runs"
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("SPARK_REPLICATION_BOOTSTRAP", "127.0.0.1:1")
        for line in block.commands:
            _is_understood(line, tmp_path)


@pytest.mark.parametrize(("page", "first"), NOT_RUN)
def test_a_block_that_is_not_run_is_there(page: str, first: str) -> None:
    assert [block.first for block in BLOCKS if block.is_at(page, first)] != []
    reason = NOT_RUN[page, first]
    assert all((ROOT / named).exists() for named in re.findall(r"tests/[\w./]+", reason)), reason


def test_most_blocks_are_run() -> None:
    assert len([block for block in BLOCKS if why_not_run(block)]) == len(NOT_RUN)


def _anchors(page: Path) -> set[str]:
    return {anchor_of(each) for each in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)}


def _names(table: dict[str, object], within: str = "") -> list[str]:
    found = []
    for key, value in table.items():
        name = f"{within}{key}"
        found += _names(value, f"{name}.") if isinstance(value, dict) else [name]
    return [name for name in found if not name.startswith(_OF_DELTA)]


def _is_understood(line: str, folder: Path) -> None:
    words = shlex.split(line, comments=True)
    while "|" in words:
        first = words.index("|")
        _is_understood(shlex.join(words[:first]), folder)
        words = words[first + 1 :]
    program, *words = words[:-1] if words[-1] == "&" else words
    if Path(program).name == "spark-replication":
        _is_parsed(words[: words.index(">")] if ">" in words else words, folder)
    elif program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
    elif Path(program).name in ("python", "spark-submit"):
        assert all((ROOT / each).exists() for each in words if re.fullmatch(r"(jobs|conf)/\S+", each)), line
    else:
        assert program in ("export", "mv", "seq", "sed", "kill"), f"a command that no test knows: {line}"


def _is_parsed(words: list[str], folder: Path) -> None:
    """By click, as far as it goes without running anything."""
    words = [each.replace("/var/lib/broker-1/orders-3.*", str(folder)) for each in words]
    for option, each in pairwise(words):
        if option == "--directory":
            (folder / each).mkdir(exist_ok=True)
    for each in words:
        if each.endswith((".toml", ".json")):
            (folder / each).write_text("{}")
        elif each.startswith("tests/") and not (folder / "tests").exists():
            (folder / "tests").symlink_to(ROOT / "tests")
    command: click.Command = cli
    context = click.Context(cli, info_name="spark-replication", **cli.context_settings)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        context = found.make_context(name, list(words), parent=context)
        words = [*context._protected_args, *context.args]
        command = found
