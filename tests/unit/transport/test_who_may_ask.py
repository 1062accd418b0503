"""Every action, and who may ask for it: nobody, a client, a broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from spark_replication.config import settings_from
from spark_replication.errors import InvalidConfig, ReplicationError
from spark_replication.messages import actions
from spark_replication.messages.actions import ADMIN_REQUESTS, Action
from spark_replication.transport.actions import ActionServer, Handled, error_of_flight
from spark_replication.transport.security import Security, read_security, require_own_brokers
from tests.unit.transport.certificates import Authority, tls_settings
from tests.unit.transport.test_security import broker_settings, token_settings

ASKERS = {
    "add_partitions": "client",
    "broker_died": "cluster",
    "cancel_reassignment": "client",
    "configure": "client",
    "create_topic": "client",
    "delete_topic": "client",
    "describe_events": "client",
    "describe_page": "client",
    "describe_ranges": "client",
    "describe_replicas": "client",
    "describe_topics": "client",
    "disk_failed": "cluster",
    "elect_leaders": "client",
    "get_replica_log_info": "cluster",
    "guarding": "cluster",
    "init_producer": "client",
    "leader_and_isr": "cluster",
    "metadata": "client",
    "metrics": "client",
    "reassign": "client",
    "rebuild_mirror": "client",
    "remove_partitions": "client",
    "renew_lease": "cluster",
    "shutdown": "cluster",
    "stop_replica": "cluster",
    "update_metadata": "cluster",
    "widen_topic": "client",
}
ALL: dict[str, Action[Any, Any]] = {
    each.name: each for each in [*vars(actions).values(), *ADMIN_REQUESTS.values()] if isinstance(each, Action)
}
REACHED = "INVALID_REQUEST"  # the server looks into the request, which is none


def security_of(*settings: dict[str, Any]) -> Security:
    return read_security(settings_from({name: value for each in settings for name, value in each.items()}))


class Mode:
    """How a server is secured, and how each that asks is."""

    def __init__(self, directory: Path, name: str) -> None:
        cluster = broker_settings(directory)
        if name == "token":
            token = token_settings(directory)
            self.server = self.broker = security_of(token, cluster)
            self.client, self.nobody = security_of(token), Security()
        else:
            ours = Authority(directory)
            tls = tls_settings(ours, ours.issue("broker"), mutual=True)
            self.server = self.broker = security_of(tls, cluster)
            self.client, self.nobody = security_of(tls), security_of(tls_settings(ours, None))


@pytest.fixture(scope="module", params=["token", "tls"])
def mode(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mode:
    return Mode(tmp_path_factory.mktemp("who"), request.param)


@pytest.fixture(scope="module")
def port(mode: Mode) -> Iterator[int]:
    server = ActionServer("127.0.0.1", [Handled(each, _unreached) for each in ALL.values()], security=mode.server)
    yield server.port
    threading.Thread(target=server.shutdown, daemon=True).start()


def _unreached(_asked: object, _caller: str) -> Any:
    raise AssertionError("no request is well-formed here")


def told(security: Security, port: int, action: str) -> str:
    with security.client(f"127.0.0.1:{port}") as client:
        try:
            list(client.do_action((action, b"no request"), flight.FlightCallOptions(timeout=10)))
        except flight.FlightError as error:
            found: ReplicationError = error_of_flight(error)
            return found.code
    raise AssertionError("it was answered")


def test_the_table_has_every_action() -> None:
    assert {name: each.asker for name, each in ALL.items()} == ASKERS


@pytest.mark.parametrize("action", sorted(ASKERS))
def test_who_may_ask(mode: Mode, port: int, action: str) -> None:
    is_for_all = ASKERS[action] == "client"
    assert told(mode.broker, port, action) == REACHED
    assert told(mode.client, port, action) == (REACHED if is_for_all else "CLUSTER_AUTHORIZATION_FAILED")
    assert told(mode.nobody, port, action) in ("AUTHENTICATION_FAILED", "BROKER_NOT_AVAILABLE")


def test_a_wrong_token_is_refused_where_clients_need_none(mode: Mode, port: int, tmp_path: Path) -> None:
    other = broker_settings(tmp_path)
    (tmp_path / "broker-token").write_text("guessed")
    wrong = Security(mode=mode.client.mode, broker_token=security_of(token_settings(tmp_path), other).broker_token)
    if mode.client.tls is not None:
        wrong = Security(mode="tls", tls=mode.client.tls, broker_token=wrong.broker_token)
    assert told(wrong, port, "metadata") == "AUTHENTICATION_FAILED"


def test_without_a_secret_of_brokers_a_client_is_taken_for_one(tmp_path: Path) -> None:
    """As long as the start does not refuse that."""
    token = security_of(token_settings(tmp_path))
    server = ActionServer("127.0.0.1", [Handled(actions.SHUTDOWN, _unreached)], security=token)
    assert told(token, server.port, "shutdown") == REACHED
    threading.Thread(target=server.shutdown, daemon=True).start()
    settings = settings_from(token_settings(tmp_path))
    with pytest.raises(InvalidConfig, match=r"security\.mode=token does not tell brokers from clients"):
        require_own_brokers(settings)
    require_own_brokers(settings_from({**token_settings(tmp_path), **broker_settings(tmp_path)}))
    require_own_brokers(settings_from({}))


def test_a_secret_of_brokers_is_of_no_use_without_a_mode(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"security\.broker\.token\.file is set, and security\.mode=none does not"):
        security_of(broker_settings(tmp_path))
