"""Who a process is to ZooKeeper, by its settings; and what of it is shown."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from spark_replication.config import settings_from
from spark_replication.errors import InvalidConfig
from spark_replication.zk.kazoo_handler import tls_context
from spark_replication.zk.login import NOBODY, read_login, require_protected
from spark_replication.zk.session import Session
from tests.unit.transport.certificates import Authority

SECRET = "ours:a-long-secret"


def secret_file(directory: Path, content: str = SECRET, mode: int = 0o600) -> str:
    path = directory / "login"
    path.write_text(content)
    path.chmod(mode)
    return str(path)


def test_what_a_login_makes_is_its_own_and_all_may_see_which_brokers_there_are(tmp_path: Path) -> None:
    login = read_login(settings_from({"zookeeper.auth.file": secret_file(tmp_path, f"{SECRET}\n")}))
    assert login.of_kazoo == {"default_acl": CREATOR_ALL_ACL, "auth_data": [("digest", SECRET)]}
    for path in ("/brokers", "/brokers/topics/orders", "/brokers/ids_of_another", "/admin"):
        assert login.acl_of(path) == CREATOR_ALL_ACL
    for path in ("", "/brokers/ids", "/brokers/ids/1", "/brokers/epochs/1"):
        assert login.acl_of(path) == [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]


def test_without_a_login_everything_is_everybodys() -> None:
    login = read_login(settings_from({}))
    assert (login.owns, login.of_kazoo) == (False, {})
    assert login.acl_of("/brokers/topics/orders") == OPEN_ACL_UNSAFE
    assert NOBODY.acl_of("/brokers/ids/1") == OPEN_ACL_UNSAFE


def test_a_secret_is_in_no_repr(tmp_path: Path) -> None:
    login = read_login(settings_from({"zookeeper.auth.file": secret_file(tmp_path)}))
    assert SECRET not in repr(login)


@pytest.mark.parametrize("content", ["ours", "ours:", ":secret", "ours:se\ncret", "ours:sécret"])
def test_what_is_no_login_is_refused_and_not_quoted(tmp_path: Path, content: str) -> None:
    with pytest.raises(
        InvalidConfig, match=r"zookeeper\.auth\.file=.* does not hold one line USER:PASSWORD"
    ) as refused:
        read_login(settings_from({"zookeeper.auth.file": secret_file(tmp_path, content)}))
    assert "secret" not in refused.value.message


def test_a_file_that_all_may_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="chmod o-rwx"):
        read_login(settings_from({"zookeeper.auth.file": secret_file(tmp_path, mode=0o644)}))


def test_files_of_tls_go_together(tmp_path: Path) -> None:
    path = secret_file(tmp_path)
    ca, certificate, key = ({f"zookeeper.tls.{name}.file": path} for name in ("ca", "certificate", "key"))
    assert read_login(settings_from(ca)).of_kazoo == {"use_ssl": True, "ca": path}
    assert read_login(settings_from({**ca, **certificate, **key})).of_kazoo == {
        "use_ssl": True,
        "ca": path,
        "certfile": path,
        "keyfile": path,
    }
    for given, why in (({**ca, **key}, "go together"), ({**certificate, **key}, r"needs zookeeper\.tls\.ca\.file")):
        with pytest.raises(InvalidConfig, match=why):
            read_login(settings_from(given))


def test_cas_that_everybody_may_write_say_of_no_zookeeper_that_it_is_ours(tmp_path: Path) -> None:
    """At the start, and at each connection: kazoo tries again, and goes on once it is mended."""
    authority = Authority(tmp_path)
    settings = settings_from({"zookeeper.tls.ca.file": str(authority.file)})
    authority.file.chmod(0o666)
    with pytest.raises(InvalidConfig, match=r"zookeeper\.tls\.ca\.file=.*may be written by every user"):
        read_login(settings)
    with pytest.raises(OSError, match="may be written by every user"):
        tls_context(ca=str(authority.file))
    authority.file.chmod(0o644)
    assert tls_context(**dict(read_login(settings).tls)).verify_mode is ssl.CERT_REQUIRED


TLS = {"zookeeper.tls.ca.file": "/etc/ca.pem"}


def test_a_login_is_sent_to_another_host_over_tls_alone_unless_it_is_waived(tmp_path: Path) -> None:
    given = {"zookeeper.auth.file": secret_file(tmp_path)}
    login = read_login(settings_from(given))
    for address in ("127.0.0.1:2181", "localhost:2181,127.0.0.1:2182", "[::1]:2181"):
        login.require_may_be_sent(address)
    for address in ("192.0.2.1:2181", "127.0.0.1:2181,192.0.2.1:2181"):
        with pytest.raises(
            InvalidConfig, match=r"cross the network to 192\.0\.2\.1:2181 .*zookeeper\.login\.in\.clear=true"
        ):
            login.require_may_be_sent(address)
        with pytest.raises(InvalidConfig, match="cross the network"):
            Session.connect(address, "/x", session_timeout_ms=1_000, request_timeout_ms=1_000, login=login)
        read_login(settings_from({**given, "zookeeper.login.in.clear": True})).require_may_be_sent(address)
        replace(login, tls=(("ca", "/etc/ca.pem"),)).require_may_be_sent(address)
        NOBODY.require_may_be_sent(address)


def test_under_tls_nothing_goes_to_zookeeper_in_the_clear_unless_it_is_waived() -> None:
    given: dict[str, Any] = {"security.mode": "tls", "zookeeper.connect": "zk:2181", "zookeeper.auth.file": "/login"}
    with pytest.raises(InvalidConfig, match=r"set zookeeper\.tls\.ca\.file, or zookeeper\.login\.in\.clear=true"):
        require_protected(settings_from(given))
    require_protected(settings_from({**given, **TLS}))
    require_protected(settings_from({**given, "zookeeper.login.in.clear": True}))
    with pytest.raises(InvalidConfig, match=r"zookeeper\.tls\.ca\.file"):
        require_protected(settings_from({**given, "zookeeper.unprotected": True}))
    require_protected(settings_from({**given, "zookeeper.auth.file": "", "zookeeper.unprotected": True}))


def test_security_without_a_protected_zookeeper_is_refused_unless_it_is_waived() -> None:
    open_door: dict[str, Any] = {"security.mode": "token", "zookeeper.connect": "zk:2181"}
    with pytest.raises(InvalidConfig, match=r"the ZooKeeper at zk:2181 .*zookeeper\.unprotected=true"):
        require_protected(settings_from(open_door))
    require_protected(settings_from({**open_door, "zookeeper.unprotected": True}))
    require_protected(settings_from({**open_door, "zookeeper.auth.file": "/etc/login"}))
    require_protected(settings_from({"zookeeper.connect": "zk:2181"}))
