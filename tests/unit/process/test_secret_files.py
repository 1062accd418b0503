"""Files of secrets are changed whole, and with their mode, whatever the umask is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_replication.errors import InvalidRequest
from spark_replication.process.files import Care, changed_alone, read_named, replace_secret


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(("before", "after"), [(None, 0o600), (0o600, 0o600), (0o644, 0o640), (0o640, 0o640)])
def test_the_umask_has_no_say(tmp_path: Path, before: int | None, after: int) -> None:
    path = tmp_path / "tokens"
    if before is not None:
        path.touch()
        path.chmod(before)
    replace_secret(path, "alice the-secret-of-alice\n")
    assert path.stat().st_mode & 0o777 == after
    assert read_named("a.setting", str(path), Care.SECRET) == b"alice the-secret-of-alice\n"
    assert [*tmp_path.iterdir()] == [path]


def test_a_link_leads_on(tmp_path: Path) -> None:
    path, link = tmp_path / "tokens", tmp_path / "link"
    path.touch()
    link.symlink_to(path)
    replace_secret(link, "secret")
    assert link.is_symlink()
    assert path.read_text() == "secret"


def test_what_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens"
    path.write_text("before")

    def fails(_handle: int) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="the disk is full"):
        replace_secret(path, "after")
    assert path.read_text() == "before"
    assert [*tmp_path.iterdir()] == [path]


def test_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    with (
        changed_alone(path),
        pytest.raises(InvalidRequest, match="another command changes a file in"),
        changed_alone(path),
    ):
        raise AssertionError("two at once")
    with changed_alone(path):
        pass
