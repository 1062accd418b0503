"""What Spark's JVMs on this host are started with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spark_replication.spark.session import CLASSES, java_options, recording_classes


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return tmp_path


def test_without_kept_classes_none_are_asked_for() -> None:
    assert java_options() == "-XX:TieredStopAtLevel=1"


def test_kept_classes_are_used_and_nothing_is_said_of_those_that_do_not_fit(environment: Path) -> None:
    (environment / CLASSES).touch()
    assert f'"-XX:SharedArchiveFile={environment / CLASSES}"' in java_options()
    assert "-Xlog:cds=off -Xlog:cds+dynamic=off" in java_options()


def test_a_session_that_keeps_its_classes_uses_none(environment: Path) -> None:
    (environment / CLASSES).touch()
    (options,) = recording_classes(environment / "new").values()
    assert "SharedArchiveFile" not in options
    assert f'"-XX:ArchiveClassesAtExit={environment / "new"}"' in options
