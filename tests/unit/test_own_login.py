"""The login that an embedded ZooKeeper gets."""

from __future__ import annotations

import stat
from pathlib import Path

from spark_replication.config import settings_from
from spark_replication.zk.login import read_login
from spark_replication.zookeeper_server import own_login
from spark_replication.zookeeper_server.own_login import with_own_login

SECURED = settings_from({"security.mode": "token"})


def test_it_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    directory = tmp_path / "zookeeper"
    settings = with_own_login(SECURED, directory)
    path = Path(settings.zookeeper_auth_file)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = read_login(settings).digest
    assert len(first) > 40
    assert read_login(with_own_login(SECURED, directory)).digest == first
    assert [each.name for each in directory.iterdir()] == [path.name]


def test_it_outlives_security(tmp_path: Path) -> None:
    secured = with_own_login(SECURED, tmp_path)
    assert with_own_login(settings_from({}), tmp_path).zookeeper_auth_file == secured.zookeeper_auth_file


def test_two_that_make_it_at_one_time_have_the_same(tmp_path: Path) -> None:
    (tmp_path / "login").write_text("ours:first")
    own_login._make(tmp_path / "login")
    assert (tmp_path / "login").read_text() == "ours:first"
    assert [each.name for each in tmp_path.iterdir()] == ["login"]


def test_without_security_and_with_a_login_of_the_users_there_is_nothing_to_make(tmp_path: Path) -> None:
    theirs = settings_from({"security.mode": "token", "zookeeper.auth.file": "/etc/login"})
    for settings in (settings_from({}), theirs):
        assert with_own_login(settings, tmp_path) is settings
    assert not list(tmp_path.iterdir())
