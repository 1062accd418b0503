"""What setup.cfg asks for is what the lock files have, each package by its hashes."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKED = ROOT / ".ci" / "locked"
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\b")


def pins(text: str) -> dict[str, str]:
    return {name.lower().replace("_", "-"): version for name, version in _PINNED.findall(text)}


def asked(file: str) -> dict[str, str]:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    found = pins(config["options"]["install_requires"])
    return found | pins(config["options.extras_require"].get(file, ""))


@pytest.mark.parametrize("file", ["project", "notebook", "test"])
def test_what_is_asked_for_is_locked(file: str) -> None:
    locked = pins((LOCKED / f"{file}.txt").read_text())
    wanted = asked(file)
    assert wanted
    assert {name: locked.get(name) for name in wanted} == wanted, "`make lock` writes the files anew"


def test_all_have_the_same_versions() -> None:
    files = [pins((LOCKED / f"{name}.txt").read_text()) for name in ("test", "notebook", "project")]
    for less in files[1:]:
        assert less.items() <= files[0].items()


@pytest.mark.parametrize("file", sorted(LOCKED.iterdir()), ids=lambda file: file.stem)
def test_each_package_is_known_by_its_hashes(file: Path) -> None:
    text = file.read_text()
    for entry in re.split(r"\n(?=\S)", text):
        assert _PINNED.match(entry), entry[:80]
        assert _HASH.search(entry), entry[:80]
    assert "://" not in text, "where packages come from is for each machine to say"
