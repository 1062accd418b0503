"""What a ZooKeeper server is told: whom it serves, and how much it may log."""

from __future__ import annotations

from pathlib import Path

from spark_replication.zookeeper_server.layout import Peering, ServerPlace
from spark_replication.zookeeper_server.settings import LOG_BYTES_MAX, log_settings, server_settings

TLS = Path("/zk/tls")
ALONE = ServerPlace(number=1, directory=Path("/zk"), client=2181)
THREE = [
    ServerPlace(
        number=number,
        directory=Path(f"/zk/server-{number}"),
        client=2180 + number,
        peering=Peering(quorum=2190 + number, election=2200 + number),
    )
    for number in (1, 2, 3)
]


def test_with_certificates_there_is_no_port_without_tls_and_each_client_shows_one() -> None:
    settings = server_settings(ALONE, [ALONE], tls=TLS, is_native=True, has_secret=False)
    assert {"clientPort", "clientPortAddress"}.isdisjoint(settings)
    assert (settings["secureClientPort"], settings["secureClientPortAddress"]) == (2181, "127.0.0.1")
    assert settings["ssl.clientAuth"] == "need"
    assert settings["ssl.keyStore.location"] == TLS / "server.pem"
    assert settings["ssl.trustStore.location"] == TLS / "ca.pem"
    assert not any(name.startswith(("sslQuorum", "ssl.quorum")) for name in settings), "it has no others"


def test_servers_of_an_ensemble_speak_tls_to_each_other_too() -> None:
    settings = server_settings(THREE[0], THREE, tls=TLS, is_native=True, has_secret=True)
    assert (settings["sslQuorum"], settings["ssl.quorum.clientAuth"]) == ("true", "need")
    assert settings["ssl.quorum.keyStore.location"] == TLS / "server.pem"
    assert settings["server.3"] == "127.0.0.1:2193:2203"
    assert settings["quorum.auth.enableSasl"] == "true"


def test_without_them_it_serves_whoever_reaches_it() -> None:
    for places, has_secret in (([ALONE], False), (THREE, True), (THREE, False)):
        settings = server_settings(places[0], places, tls=None, is_native=False, has_secret=has_secret)
        assert (settings["clientPort"], settings["clientPortAddress"]) == (places[0].client, "127.0.0.1")
        assert not any(name.startswith(("ssl", "secure")) for name in settings)
        assert ("quorum.auth.enableSasl" in settings) is has_secret


def test_its_log_has_a_bound() -> None:
    lines = log_settings(Path("/zk/log")).splitlines()
    assert "appender.file.fileName=/zk/log" in lines
    assert f"appender.file.policies.size={LOG_BYTES_MAX}" in lines
    assert "appender.file.strategy.max=1" in lines
