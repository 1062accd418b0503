"""A file that changes is read again, once, and what cannot be read leaves everything as it was."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from spark_replication.errors import InvalidConfig
from spark_replication.process import reread
from spark_replication.process.reread import Reread


class Number:
    """A file with a number in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reads = 0
        path.write_text("1")

    def read(self) -> int:
        self.reads += 1
        try:
            return int(self.path.read_text())
        except (OSError, ValueError) as error:
            raise InvalidConfig(f"{self.path} is no number") from error


@pytest.fixture
def number(tmp_path: Path) -> Number:
    return Number(tmp_path / "number")


def test_a_file_that_does_not_change_is_read_once(number: Number) -> None:
    read = Reread([str(number.path)], number.read)
    assert [read.look() for _ in range(3)] == [False] * 3
    assert read.now() == 1
    assert number.reads == 1


def test_a_change_is_seen_at_once_by_a_look_and_else_in_time(number: Number, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Reread([str(number.path)], number.read)
    number.path.write_text("22")
    assert read.now() == 1, "within LOOK_S nobody looks"
    assert read.look()
    assert read.now() == 22
    monkeypatch.setattr(reread, "LOOK_S", 0.0)
    number.path.unlink()
    number.path.write_text("33")  # another file of the same size
    assert read.now() == 33
    assert number.reads == 3


@pytest.mark.parametrize("content", [None, "nothing"])
def test_what_cannot_be_read_leaves_what_was(
    number: Number, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    read = Reread([str(number.path)], number.read)
    number.path.unlink()
    if content is not None:
        number.path.write_text(content)
    with caplog.at_level(logging.WARNING):
        assert [read.look() for _ in range(3)] == [False] * 3
    assert read.now() == 1
    assert len(caplog.records) == 1, "it is told once, and not at each look"
    number.path.write_text("4")
    assert read.look()
    assert read.now() == 4


def test_the_first_read_must_do(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig):
        Reread([str(tmp_path / "none")], _fails)


def _fails() -> int:
    raise InvalidConfig("there is none")


def test_threads_that_look_at_once_read_once(number: Number) -> None:
    read = Reread([str(number.path)], number.read)
    number.path.write_text("55")
    together = threading.Barrier(8)

    def look() -> None:
        together.wait(5)
        read.look()

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert read.now() == 55
    assert number.reads == 2
