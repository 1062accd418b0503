"""Whose directories and secrets are taken for ours."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from spark_replication.errors import InvalidConfig
from spark_replication.process.files import Care, own_directory, read_named, shared_directory
from spark_replication.storage.directory.broker_directory import DirectoryLock

ANOTHER = 4_711


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_directory_is_its_owners_alone_also_if_it_was_not(tmp_path: Path) -> None:
    made, there = tmp_path / "a" / "b", tmp_path / "there"
    there.mkdir(mode=0o777)
    for path in (made, there):
        own_directory(path)
        assert permissions(path) == 0o700
    own_directory(there, 0o750)
    assert permissions(there) == 0o750


def test_another_users_directory_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)
    with pytest.raises(InvalidConfig, match=f"belongs to user {owner}, and this process is of user {ANOTHER}"):
        own_directory(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_one_with_parts_for_others_may_be_roots_but_no_other_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    os.chown(theirs, ANOTHER, -1)
    with pytest.raises(InvalidConfig, match=f"belongs to user {ANOTHER}, and this process is of user 0"):
        shared_directory(theirs)
    monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)
    shared_directory(theirs)
    shared_directory(ours)


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o775, 0o2775, 0o1777])
def test_a_directory_with_parts_for_others_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(mode)
    shared_directory(there)
    assert permissions(there) == mode


@pytest.mark.parametrize("mode", [0o777, 0o757, 0o702])
def test_a_directory_in_which_everybody_may_rename_is_not_taken(tmp_path: Path, mode: int) -> None:
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(mode)
    with pytest.raises(InvalidConfig, match=rf"every user of this host may write in {there}.*: chmod o-w {there}"):
        shared_directory(there)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o755), (0o002, 0o775), (0o077, 0o700), (0, 0o775)])
def test_a_directory_that_is_not_there_is_made_so_that_it_can_be_taken_again(
    tmp_path: Path, mask: int, mode: int
) -> None:
    made, before = tmp_path / "a" / "b", os.umask(mask)
    try:
        shared_directory(made)
        shared_directory(made)
    finally:
        os.umask(before)
    assert permissions(made) == mode


def test_a_broker_takes_a_directory_as_it_is_if_it_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)
    DirectoryLock.take(there, mode=None).release()
    assert permissions(there) == 0o755
    with pytest.raises(InvalidConfig):
        DirectoryLock.take(there)


def test_a_secret_of_another_user_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.touch(mode=0o600)
    file.write_text("secret")
    if os.geteuid() == 0:
        os.chown(file, ANOTHER, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)
    with pytest.raises(InvalidConfig, match=r"a\.setting=.*/token belongs to user \d+, who may read and change it"):
        read_named("a.setting", str(file), Care.SECRET)
    assert read_named("a.setting", str(file)) == b"secret", "a certificate is no secret"


def test_a_link_of_another_user_leads_to_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, link = tmp_path / "token", tmp_path / "link"
    file.touch(mode=0o600)
    file.write_text("secret")
    link.symlink_to(file)
    assert read_named("a.setting", str(link), Care.SECRET) == b"secret", "our own link"
    if os.geteuid() == 0:
        os.lchown(link, ANOTHER, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)
    with pytest.raises(InvalidConfig, match=r"a\.setting=.*/link is a link of user \d+, who may point it elsewhere"):
        read_named("a.setting", str(link), Care.SECRET)
    assert read_named("a.setting", str(link)) == b"secret", "a certificate is no secret"


@pytest.mark.timeout(10)
def test_what_is_no_file_is_refused_and_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    for name in ("fifo", "."):
        with pytest.raises(InvalidConfig, match=r"a\.setting=.* (is no file|cannot be read: Is a directory)"):
            read_named("a.setting", str(tmp_path / name), Care.SECRET)
