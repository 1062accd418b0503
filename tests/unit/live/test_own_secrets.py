"""The secrets that a cluster on one host makes for itself."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from spark_replication.config import settings_from
from spark_replication.errors import InvalidConfig, StartFailed
from spark_replication.live.own_secrets import LOGIN_FILE, with_own_secrets
from spark_replication.process.files import make_secret
from spark_replication.process.processes import LockedProcess
from spark_replication.zookeeper_server.layout import PORT_FILE

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
    tls = tmp_path / "zookeeper" / "tls"
    certificates = [tls / name for name in ("ca.pem", "client.key", "client.pem", "server.pem")]
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted([*files, *certificates])
    assert settings.zookeeper_tls_ca_file == str(tls / "ca.pem")
    assert settings.zookeeper_tls_certificate_file == str(tls / "client.pem")
    assert settings.zookeeper_tls_key_file == str(tls / "client.key")


def test_a_login_outlives_security_and_a_brokers_token_does_not(tmp_path: Path) -> None:
    secured, settings = with_own_secrets(SECURED, tmp_path), with_own_secrets(settings_from({}), tmp_path)
    assert settings.zookeeper_auth_file == secured.zookeeper_auth_file
    assert settings.zookeeper_tls_key_file == secured.zookeeper_tls_key_file, "nothing else is served any more"
    assert settings.security_broker_token_file == "", "no server would ask for it"


@pytest.mark.parametrize("named", [False, True], ids=["of before there were certificates", "of the user's"])
def test_a_login_goes_over_tls_without_security_too(tmp_path: Path, *, named: bool) -> None:
    make_secret(tmp_path / ("login" if named else LOGIN_FILE), "ours:secret")
    given = {"zookeeper.auth.file": str(tmp_path / "login")} if named else {}
    settings = with_own_secrets(settings_from(given), tmp_path)
    assert settings.zookeeper_tls_key_file == str(tmp_path / "zookeeper" / "tls" / "client.key")


@pytest.mark.parametrize("has_certificates", [False, True])
def test_certificates_of_others_are_for_zookeepers_of_others(tmp_path: Path, *, has_certificates: bool) -> None:
    if has_certificates:
        with_own_secrets(SECURED, tmp_path)
    with pytest.raises(InvalidConfig, match=r"the embedded one makes its own certificates.*set zookeeper\.connect"):
        with_own_secrets(settings_from({"zookeeper.tls.ca.file": "/etc/ca.pem"}), tmp_path)


def test_a_server_that_lives_without_tls_is_not_given_certificates_behind_its_back(tmp_path: Path) -> None:
    zookeeper = tmp_path / "zookeeper"
    with LockedProcess(zookeeper).locked():
        (zookeeper / PORT_FILE).write_text("2181")
        (zookeeper / "zoo.cfg").write_text("dataDir=/data\nclientPort=2181\n")
        with pytest.raises(StartFailed, match=r"does not speak TLS.*spark-replication zookeeper stop --directory"):
            with_own_secrets(SECURED, tmp_path)
        assert not (zookeeper / "tls").exists()
        (zookeeper / "zoo.cfg").write_text("dataDir=/data\nsecureClientPort=2181\n")
        with_own_secrets(SECURED, tmp_path)


def test_of_two_that_make_it_at_one_time_the_first_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "login"
    path.write_text("ours:first")
    with monkeypatch.context() as looked_before:
        looked_before.setattr(Path, "exists", lambda _path: False)
        make_secret(path, "ours:second")
    assert path.read_text() == "ours:first"
    assert [each.name for each in tmp_path.iterdir()] == ["login"]


def test_without_security_and_with_secrets_of_the_users_there_is_nothing_to_make(tmp_path: Path) -> None:
    assert with_own_secrets(settings_from({}), tmp_path) == settings_from({})
    assert not list(tmp_path.iterdir())
    theirs = settings_from(
        {"security.mode": "token", "zookeeper.auth.file": "/etc/login", "security.broker.token.file": "/etc/token"}
    )
    found = with_own_secrets(theirs, tmp_path)
    assert found.zookeeper_auth_file == "/etc/login"
    assert found.security_broker_token_file == "/etc/token"
    assert [path.name for path in (tmp_path / "zookeeper").iterdir()] == ["tls"]
