"""What setup.cfg asks for is what the lock files have, each package by its hashes."""

from __future__ import annotations

import re
from configparser import ConfigParser
from importlib.metadata import distribution, metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
LOCKED = ROOT / ".ci" / "locked"
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\b")


def pins(text: str) -> dict[str, str]:
    return {name.lower().replace("_", "-"): version for name, version in _PINNED.findall(text)}


def asked(*extras: str) -> list[Requirement]:
    """What setup.cfg asks for, with these extras and those that they name."""
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    found, texts = (
        [],
        [config["options"]["install_requires"], *(config["options.extras_require"][extra] for extra in extras)],
    )
    for line in "\n".join(texts).splitlines():
        if not line or line.startswith("#"):
            continue
        requirement = Requirement(line)
        found += asked(*requirement.extras) if requirement.name == "spark_replication" else [requirement]
    return found


@pytest.mark.parametrize(
    ("file", "extras"),
    [
        ("project", ("spark", "delta", "server")),
        ("notebook", ("spark", "delta", "server", "notebook")),
        ("test", ("test",)),
    ],
)
def test_what_is_asked_for_is_locked(file: str, extras: tuple[str, ...]) -> None:
    locked = pins((LOCKED / f"{file}.txt").read_text())
    wanted = asked(*extras)
    assert wanted
    missed = [str(each) for each in wanted if not each.specifier.contains(locked.get(each.name.lower(), "0"))]
    assert missed == [], "`make lock` writes the files anew"


def test_a_client_takes_no_more_than_200_mb() -> None:
    """With all that its packages ask for, as they are installed here."""
    wanted = [each.name for each in asked()]
    sizes: dict[str, int] = {}
    while wanted:
        name = wanted.pop()
        if name in sizes:
            continue
        found = distribution(name)
        files = [Path(str(file.locate())) for file in found.files or ()]
        sizes[name] = sum(file.stat().st_size for file in files if file.is_file())
        needs = map(Requirement, found.requires or ())
        wanted += [each.name for each in needs if each.marker is None or each.marker.evaluate({"extra": ""})]
    assert {"pyarrow", "rich"} <= set(sizes)
    assert not {"pyspark", "pandas", "deltalake", "numpy"} & set(sizes)
    assert sum(sizes.values()) <= 200e6, sizes


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


def test_what_builds_is_locked_too() -> None:
    """An isolated build takes what the index has, and nobody looks at its hash."""
    config = (ROOT / "pyproject.toml").read_text()
    (wanted,) = re.findall(r'requires = \["(.*)"\]', config)
    name, _, version = wanted.partition("==")
    assert pins((LOCKED / "tools.txt").read_text())[name] == version
    lines = (ROOT / "Makefile").read_text().splitlines()
    building = [line for line in lines if " pip install" in line and "tools.txt" not in line]
    assert len(building) == 3
    assert all("--no-build-isolation" in line for line in building), building


def test_the_guide_names_the_licence_of_each_package() -> None:
    page = (ROOT / "spark_replication/guide/deploy.md").read_text()
    (table,) = re.findall(r"\| licence \| packages \|\n\| --- \| --- \|\n((?:\|.*\n)+)", page)
    found = {
        package.partition(":")[0].strip(): licence
        for licence, packages in re.findall(r"\| (\w+) \| (.*) \|", table)
        for package in packages.partition(":")[0].split(",")
    }
    assert sorted(found) == sorted(pins((LOCKED / "project.txt").read_text()))
    for package, licence in found.items():
        told = metadata(package).json
        words = [str(told.get(name, "")) for name in ("license_expression", "license", "classifier")]
        assert any(licence in word for word in words), package
