"""The secrets that a cluster on one host makes for itself."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from spark_replication.config import settings_from
from spark_replication.live.own_secrets import with_own_secrets
from spark_replication.process.secret_files import make_secret

SECURED = settings_from({"security.mode": "token"})


def test_each_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    settings = with_own_secrets(SECURED, tmp_path)
    files = [Path(settings.zookeeper_auth_file), Path(settings.security_broker_token_file)]
    contents = [file.read_text() for file in files]
    assert contents[0].startswith("spark_replication:")
    assert all(len(content) > 40 for content in contents)
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    assert with_own_secrets(SECURED, tmp_path) == settings
    assert [file.read_text() for file in files] == contents
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(files)


def test_a_login_outlives_security_and_a_brokers_token_does_not(tmp_path: Path) -> None:
    secured, settings = with_own_secrets(SECURED, tmp_path), with_own_secrets(settings_from({}), tmp_path)
    assert settings.zookeeper_auth_file == secured.zookeeper_auth_file
    assert settings.security_broker_token_file == "", "no server would ask for it"


def test_of_two_that_make_it_at_one_time_the_first_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "login"
    path.write_text("ours:first")
    with monkeypatch.context() as looked_before:
        looked_before.setattr(Path, "exists", lambda _path: False)
        make_secret(path, "ours:second")
    assert path.read_text() == "ours:first"
    assert [each.name for each in tmp_path.iterdir()] == ["login"]


def test_without_security_and_with_secrets_of_the_users_there_is_nothing_to_make(tmp_path: Path) -> None:
    theirs = settings_from(
        {"security.mode": "token", "zookeeper.auth.file": "/etc/login", "security.broker.token.file": "/etc/token"}
    )
    for settings in (settings_from({}), theirs):
        assert with_own_secrets(settings, tmp_path) is settings
    assert not list(tmp_path.iterdir())
