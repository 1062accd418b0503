"""Locks of an open file."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

import pytest

from spark_replication.process.files import is_lock_taken, let_lock_go, take_lock


def test_an_exclusive_lock_is_one_mans_and_asking_takes_none(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("a+b") as mine, (tmp_path / "lock").open("a+b") as other:
        assert not is_lock_taken(other.fileno())
        assert take_lock(mine.fileno())
        assert is_lock_taken(other.fileno())
        assert not is_lock_taken(mine.fileno()), "one's own is nobody else's"
        assert not take_lock(other.fileno())
        assert not take_lock(other.fileno(), shared=True)
        let_lock_go(mine.fileno())
        assert take_lock(other.fileno())


def test_a_shared_lock_is_for_many_and_keeps_an_exclusive_one_away(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("a+b") as mine, (tmp_path / "lock").open("a+b") as other:
        assert take_lock(mine.fileno(), shared=True)
        assert is_lock_taken(other.fileno())
        assert take_lock(other.fileno(), shared=True)
        assert not take_lock(other.fileno())


def test_it_goes_with_the_file(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("a+b") as other:
        with (tmp_path / "lock").open("a+b") as mine:
            assert take_lock(mine.fileno())
        assert not is_lock_taken(other.fileno())


def test_a_disk_without_locks_is_not_one_whose_locks_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    with (tmp_path / "lock").open("a+b") as mine, pytest.raises(OSError, match="No locks"):
        take_lock(mine.fileno())
