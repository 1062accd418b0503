"""Fetched jars: a folder that is there whole or not at all. A script stands for Java, and does what Ivy would."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_replication.errors import StartFailed
from spark_replication.process.java import Module, fetch

JAR = Module("org.example", "thing", "1.0")
DEEP = Module("org.example", "deep", "2.0", transitive=True)
# Makes thing-1.0.jar of what was asked for, where the last argument says.
IVY = """#!/bin/sh
for last in "$@"; do :; done
folder=$(dirname "$last")
mkdir "$folder"
{ cat "$folder/../ivy.xml"; echo "$@"; } > "$folder/thing-1.0.jar"
"""


def nothing_wrong(_jars: Path) -> str | None:
    return None


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script."""
    program = tmp_path / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    monkeypatch.setenv("JAVA_HOME", str(program.parent.parent))
    _does(program, IVY)
    return program


def _does(program: Path, script: str) -> None:
    program.write_text(script, encoding="utf-8")
    program.chmod(0o755)


@pytest.mark.usefixtures("java")
def test_what_was_there_is_replaced(tmp_path: Path) -> None:
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / "old.jar").touch()
    fetch([JAR, DEEP], jars, nothing_wrong)
    assert [found.name for found in jars.iterdir()] == [JAR.file_name]
    asked = (jars / JAR.file_name).read_text(encoding="utf-8")
    assert 'name="thing" rev="1.0" conf="default->master" transitive="false"' in asked
    assert 'name="deep" rev="2.0" conf="default->runtime,master" transitive="true"' in asked
    assert sorted(found.name for found in tmp_path.iterdir()) == ["jars", "java"]  # and nothing is left beside it


@pytest.mark.usefixtures("java")
def test_jars_that_are_wrong_change_nothing(tmp_path: Path) -> None:
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / "old.jar").touch()
    with pytest.raises(StartFailed, match="its digest differs"):
        fetch([JAR], jars, lambda found: f"{sorted(each.name for each in found.iterdir())}: its digest differs")
    assert [found.name for found in jars.iterdir()] == ["old.jar"]


def test_a_failure_says_what_ivy_said(java: Path, tmp_path: Path) -> None:
    _does(java, "#!/bin/sh\necho no such module; exit 3\n")
    with pytest.raises(StartFailed, match=r"exit code 3\nno such module"):
        fetch([JAR], tmp_path / "jars", nothing_wrong)
    assert not (tmp_path / "jars").exists()


@pytest.mark.usefixtures("java")
def test_java_is_told_of_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:8080")
    fetch([JAR], tmp_path / "jars", nothing_wrong)
    asked = (tmp_path / "jars" / JAR.file_name).read_text(encoding="utf-8")
    assert "-Dhttps.proxyHost=proxy.example -Dhttps.proxyPort=8080" in asked
