"""A broker process listens beyond loopback only where each client proves who it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_replication.config import settings_from
from spark_replication.engine.guarding.guardian_life import WRONG_USAGE
from spark_replication.messages.actions import METADATA
from spark_replication.messages.descriptions import GetMetadata
from spark_replication.transport.flight.actions import call
from spark_replication.transport.security.security import read_security
from tests.live.broker.brokers import TIMEOUT_S
from tests.live.broker.conftest import StartCluster
from tests.unit.transport.certificates import Authority, tls_settings
from tests.unit.transport.test_security import SECRET, token_settings

pytestmark = pytest.mark.live

EVERYWHERE = "0.0.0.0"


def test_without_authentication_of_clients_it_refuses_to_start(start_cluster: StartCluster, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one_sided = tls_settings(authority, authority.issue("broker"))
    for settings, way_out in (({}, "set security.mode"), (one_sided, "Set security.tls.mutual=true")):
        cluster = start_cluster(brokers=0, settings=settings)
        process = cluster.spawn(1, host=EVERYWHERE)
        _, said = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == WRONG_USAGE
        assert said.decode().startswith(f"broker_process: INVALID_CONFIG: host '{EVERYWHERE}' is {EVERYWHERE}, beyond")
        assert way_out in said.decode()
        assert said.count(b"\n") == 1


def test_with_a_token_that_may_be_heard_it_serves_everywhere(start_cluster: StartCluster, tmp_path: Path) -> None:
    settings = {**token_settings(tmp_path), "security.token.in.clear": True}
    cluster = start_cluster(brokers=0, settings=settings)
    file = cluster.start(1, host=EVERYWHERE)
    with read_security(settings_from(settings)).client(f"127.0.0.2:{file.port}") as client:
        assert 1 in call(client, METADATA, GetMetadata(), 10_000).brokers


def test_a_token_that_will_not_do_is_one_sentence_without_it(start_cluster: StartCluster, tmp_path: Path) -> None:
    settings = token_settings(tmp_path)
    Path(settings["security.token.file"]).chmod(0o644)
    process = start_cluster(brokers=0, settings=settings).spawn(1)
    _, said = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == WRONG_USAGE
    assert "is open to every user of this host" in said.decode()
    assert SECRET not in said.decode()
