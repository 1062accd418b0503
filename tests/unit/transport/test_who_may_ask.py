"""Every action, and every right: who may ask, who may not, and whoever has proven nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyarrow import flight

from spark_replication.config import settings_from
from spark_replication.core.controller.describing import described_page
from spark_replication.engine.broker.known_topics import KnownTopics
from spark_replication.errors import InvalidConfig, NotController, ReplicationError
from spark_replication.messages import actions
from spark_replication.messages.actions import ADMIN_REQUESTS, INTRODUCE, PROVE, Action
from spark_replication.messages.commands import (
    BrokerNotes,
    GetReplicaLogInfo,
    LeaderAndIsr,
    StopReplica,
    TellNotes,
    UpdateMetadata,
)
from spark_replication.messages.descriptions import DescribeReplicas, DescribeTopics, GetMetadata
from spark_replication.messages.envelope import to_json
from spark_replication.messages.groups import DeleteGroup, DescribeGroups, OpenGroups, ResetGroup
from spark_replication.messages.guarding import BrokerDied, DiskFailed, Guarding, RenewLease, Shutdown
from spark_replication.messages.introducing import Challenge, Introduce, Prove
from spark_replication.messages.mending import CopyBatch, DiskDamaged
from spark_replication.messages.mirroring import DescribeEvents, RebuildMirror
from spark_replication.messages.observing import DescribePage, DescribeSettings, DescribeTokens, GetMetrics
from spark_replication.messages.ranges import DescribeRanges, WantedRange
from spark_replication.messages.records import InitProducer
from spark_replication.messages.requests import (
    AcknowledgeLoss,
    AddPartitions,
    CancelReassignment,
    ChangeAcls,
    Configure,
    CreateTopic,
    DeleteTopic,
    DescribeAcls,
    DescribeQuotas,
    ElectLeaders,
    Reassign,
    RemovePartitions,
    SetQuota,
    WidenTopic,
)
from spark_replication.messages.tables import OpenTable, TellTableEnds
from spark_replication.model import TopicConfig, TopicPartition
from spark_replication.transport.flight.actions import ActionServer, Asker, Handled, call, error_of_flight, handled_seen
from spark_replication.transport.security.rights import Rights
from spark_replication.transport.security.security import Security, read_security, require_own_brokers
from tests.unit.client.test_topic_pages import command
from tests.unit.core.stories import cluster_of, state, topic
from tests.unit.transport.certificates import Authority, tls_settings
from tests.unit.transport.test_security import broker_settings, token_settings

# A principal for each right, which has that one alone.
RIGHTS = {
    "describes": "describe topic orders",
    "reads": "read topic orders",
    "writes": "write topic orders",
    "alters": "alter topic orders",
    "describes_all": "describe prefix ord",
    "reads_all": "read prefix ord",
    "writes_all": "write prefix ord",
    "alters_all": "alter prefix ord",
    "sees_group": "describe group etl",
    "reads_groups": "read group_prefix et",
    "sees_cluster": "describe cluster",
    "alters_cluster": "alter cluster",
    "commands": "cluster_action cluster",
}
NOBODY, NOTHING, ELSEWHERE, SUPER, BROKER = "nobody", "has-nothing", "elsewhere", "super", "broker"

KNOWN = frozenset({*RIGHTS, NOTHING, ELSEWHERE, SUPER, BROKER})
DESCRIBING = frozenset(
    {"describes", "reads", "writes", "alters", "describes_all", "reads_all", "writes_all", "alters_all"}
) | {"alters_cluster", SUPER, BROKER}
READING = frozenset({"reads", "reads_all", SUPER, BROKER})
ALTERING = frozenset({"alters", "alters_all", "alters_cluster", SUPER, BROKER})
SEEING = frozenset({"sees_cluster", "alters_cluster", SUPER, BROKER})
RULING = frozenset({"alters_cluster", SUPER, BROKER})
COMMANDING = frozenset({"commands", BROKER})

READING_GROUPS = frozenset({"reads_groups", SUPER, BROKER})
SEEING_GROUPS = READING_GROUPS | {"sees_group", "alters_cluster"}

ORDERS = TopicPartition("orders", 0)
INTRODUCED = Introduce(name="client", port=1, nonce=b"n" * 32)
RANGE = WantedRange(topic="orders", partition=0)

# Each action with a request about orders, and who may ask that. `None`: whoever reaches the port.
TABLE: dict[str, tuple[Any, frozenset[str] | None]] = {
    "acknowledge_loss": (AcknowledgeLoss(known={"orders-0": 1}), RULING),
    "add_partitions": (AddPartitions(counts={"orders": 2}), ALTERING),
    "broker_died": (BrokerDied(broker_id=1, incarnation="a"), COMMANDING),
    "cancel_reassignment": (CancelReassignment(partitions=("orders-0",)), RULING),
    "change_acls": (ChangeAcls(), RULING),
    "configure": (Configure(topic="orders", settings={}), ALTERING),
    "create_topic": (CreateTopic(name="orders"), ALTERING),
    "delete_topic": (DeleteTopic(topic="orders"), ALTERING),
    "describe_acls": (DescribeAcls(), SEEING),
    "describe_events": (DescribeEvents(), SEEING),
    "describe_groups": (DescribeGroups(groups=("etl",)), SEEING_GROUPS),
    "describe_page": (DescribePage(), SEEING),
    "describe_quotas": (DescribeQuotas(), SEEING),
    "describe_ranges": (DescribeRanges(ranges=(RANGE,)), DESCRIBING),
    "describe_replicas": (DescribeReplicas(partitions=(ORDERS,)), DESCRIBING),
    "broker_noted": (TellNotes(broker_id=1, broker_epoch=1, notes=BrokerNotes()), COMMANDING),
    "describe_settings": (DescribeSettings(), SEEING),
    "describe_tokens": (DescribeTokens(marks=("a",)), SEEING),
    "describe_topics": (DescribeTopics(topics=("orders",)), DESCRIBING),
    "copy_batch": (
        CopyBatch(topic="orders", partition=0, topic_id="id", base_offset=0, last_offset=0, crc=0),
        COMMANDING,
    ),
    "disk_damaged": (DiskDamaged(broker_id=1, broker_epoch=1, replicas=()), COMMANDING),
    "disk_failed": (DiskFailed(broker_id=1, broker_epoch=1, replicas=()), COMMANDING),
    "elect_leaders": (ElectLeaders(kind="unclean"), RULING),
    "get_replica_log_info": (GetReplicaLogInfo(controller_epoch=1, partitions=()), COMMANDING),
    "guarding": (
        Guarding(
            guardian=1,
            controller_epoch=1,
            submission=1,
            broker_id=None,
            serving=None,
            log_dir="",
            adopted=False,
            restarts=0,
            trouble="",
        ),
        COMMANDING,
    ),
    "open_groups": (OpenGroups(), KNOWN),
    "open_table": (OpenTable(topic="orders"), ALTERING),
    "table_ends": (TellTableEnds(topic="orders", topic_id="id", ends=()), ALTERING),
    "reset_group": (ResetGroup(group="etl"), READING_GROUPS),
    "delete_group": (DeleteGroup(group="etl"), READING_GROUPS),
    "init_producer": (InitProducer(), KNOWN),
    "introduce": (INTRODUCED, None),
    "leader_and_isr": (LeaderAndIsr(controller_epoch=1, partitions=(), topics={}, brokers={}), COMMANDING),
    "metadata": (GetMetadata(topics=("orders",)), DESCRIBING),
    "metrics": (GetMetrics(), SEEING),
    "prove": (
        Prove(introduced=INTRODUCED, challenge=Challenge(nonce=b"n" * 32, said_ms=0, stamp=b"s" * 32), proof=b"p" * 32),
        None,
    ),
    "reassign": (Reassign(targets={"orders-0": (1,)}), RULING),
    "rebuild_mirror": (RebuildMirror(), RULING),
    "remove_partitions": (RemovePartitions(partitions={"orders": (0,)}), ALTERING),
    "renew_lease": (RenewLease(controller_epoch=1, attempt=1, lease_ms=1), COMMANDING),
    "set_quota": (SetQuota(principal="alice", kind="streams"), RULING),
    "shutdown": (Shutdown(controller_epoch=1, attempt=1), COMMANDING),
    "stop_replica": (StopReplica(controller_epoch=1, partitions=()), COMMANDING),
    "update_metadata": (UpdateMetadata(controller_epoch=1, partitions=(), brokers={}), COMMANDING),
    "widen_topic": (WidenTopic(topic="orders", schema=""), ALTERING),
}
# The same action about something else.
OTHERWISE: dict[str, tuple[Any, frozenset[str]]] = {
    "configure": (Configure(settings={}), RULING),
    "describe_ranges": (DescribeRanges(ranges=(replace(RANGE, files=True),)), READING),
    "describe_replicas": (DescribeReplicas(), KNOWN),
    "describe_topics": (DescribeTopics(), KNOWN),
    "metadata": (GetMetadata(), KNOWN),
}

ALL: dict[str, Action[Any, Any]] = {
    each.name: each for each in [*vars(actions).values(), *ADMIN_REQUESTS.values()] if isinstance(each, Action)
}
REACHED = NotController.code


def security_of(*settings: dict[str, Any]) -> Security:
    return read_security(settings_from({name: value for each in settings for name, value in each.items()}))


class Mode:
    """How a server is secured, and how each that asks is."""

    def __init__(self, directory: Path, name: str) -> None:
        cluster, users = broker_settings(directory), {"security.super.users": SUPER}
        own: dict[str, Any]
        named = [*RIGHTS, NOTHING, ELSEWHERE, SUPER]
        if name == "token":
            own = _token(directory, *named)
            self.server = security_of(own, cluster, users)
            self.asking = {each: security_of(_token(directory, each)) for each in named}
            self.asking[NOBODY] = Security()
        else:
            ours = Authority(directory)
            own = dict(tls_settings(ours, ours.issue("server"), mutual=True))
            self.server = security_of(own, cluster, users)
            self.asking = {each: security_of(tls_settings(ours, ours.issue(each, each), mutual=True)) for each in named}
            self.asking[NOBODY] = security_of(tls_settings(ours, None))
        self.asking[BROKER] = security_of(own, cluster)
        self.client, self.broker, self.nobody = self.asking[SUPER], self.asking[BROKER], self.asking[NOBODY]


def _token(directory: Path, *names: str) -> dict[str, Any]:
    """With a file that has the tokens of these principals."""
    file = directory / "-".join(names)[:100]
    file.touch(mode=0o600)
    file.write_text("".join(f"{name} the-secret-of-{name}\n" for name in names))
    return {"security.mode": "token", "security.token.file": str(file)}


@pytest.fixture(scope="module", params=["token", "tls"])
def mode(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mode:
    return Mode(tmp_path_factory.mktemp("who"), request.param)


@pytest.fixture(scope="module")
def port(mode: Mode) -> Iterator[int]:
    acls = "; ".join([*(f"{name} {right}" for name, right in RIGHTS.items()), f"{ELSEWHERE} alter topic another"])
    server = ActionServer("127.0.0.1", HANDLED, rights=Rights(mode.server, lambda: acls))
    yield server.port
    threading.Thread(target=server.shutdown, daemon=True).start()


def _reached(_asked: object, _asker: Asker) -> Any:
    raise NotController("it is asked")


HANDLED = [Handled(each, _reached) for each in ALL.values() if each not in (INTRODUCE, PROVE)]


def told(security: Security, port: int, action: str, body: bytes = b"no request") -> str:
    with security.client(f"127.0.0.1:{port}") as client:
        return told_to(client, action, body)


def told_to(client: flight.FlightClient, action: str, body: bytes) -> str:
    try:
        list(client.do_action((action, body), flight.FlightCallOptions(timeout=10)))
    except flight.FlightError as error:
        found: ReplicationError = error_of_flight(error)
        return found.code
    except ReplicationError as error:
        return error.code
    return REACHED


def test_the_table_has_every_action() -> None:
    assert ALL.keys() == TABLE.keys()
    assert {name for name, each in ALL.items() if each.needs is None} == {
        name for name, (_, allowed) in TABLE.items() if allowed is None
    }


@pytest.mark.parametrize("who", sorted(KNOWN))
def test_who_may_ask(mode: Mode, port: int, who: str) -> None:
    with mode.asking[who].client(f"127.0.0.1:{port}") as client:
        for action, (request, allowed) in [*TABLE.items(), *OTHERWISE.items()]:
            if allowed is None:
                continue
            code = told_to(client, action, to_json(request))
            right = "CLUSTER" if allowed in (SEEING, RULING, COMMANDING) else "TOPIC"
            right = "GROUP" if allowed in (SEEING_GROUPS, READING_GROUPS) else right
            assert code == (REACHED if who in allowed else f"{right}_AUTHORIZATION_FAILED"), (action, request)


@pytest.mark.parametrize(
    ("who", "code"),
    [
        ("sees_cluster", "TOPIC_AUTHORIZATION_FAILED"),
        ("describes", "CLUSTER_AUTHORIZATION_FAILED"),
        ("alters_cluster", REACHED),
        (BROKER, REACHED),
    ],
)
def test_settings_for_a_topic_are_told_to_whoever_may_see_it_and_the_cluster(
    mode: Mode, port: int, who: str, code: str
) -> None:
    asked = to_json(DescribeSettings(topic="orders"))
    assert told(mode.asking[who], port, "describe_settings", asked) == code


def test_nobody_may_ask_but_for_a_proof(mode: Mode, port: int) -> None:
    for action, (request, allowed) in TABLE.items():
        code = told(mode.nobody, port, action, to_json(request))
        if mode.server.tls is not None:  # nobody has a connection
            assert code == "BROKER_NOT_AVAILABLE", action
        elif action == "introduce":
            assert code == REACHED
        else:
            assert code == "AUTHENTICATION_FAILED", action
            assert allowed is not None or action == "prove"


def test_what_is_no_request_is_refused_whoever_sends_it(mode: Mode, port: int) -> None:
    for who in (BROKER, NOTHING):
        assert told(mode.asking[who], port, "delete_topic") == "INVALID_REQUEST"


def test_whoever_carries_a_request_out_is_told_who_asks(mode: Mode) -> None:
    """So that the table of events says it."""
    heard: list[str] = []

    def carry_out(_asked: object, asker: Asker) -> Any:
        heard.append(asker.name)
        raise NotController("it is asked")

    server = ActionServer("127.0.0.1", [Handled(ALL["delete_topic"], carry_out)], rights=Rights(mode.server))
    assert told(mode.asking[SUPER], server.port, "delete_topic", to_json(DeleteTopic(topic="orders"))) == REACHED
    assert heard == [f"{SUPER} at 127.0.0.1"]
    threading.Thread(target=server.shutdown, daemon=True).start()


KNOWN_TOPICS = ["layoffs", "orders", "payroll"]
COUNTS = dict.fromkeys(KNOWN_TOPICS, 2)


def paging(server: str) -> Handled:
    """As each of them answers."""
    if server == "controller":
        cluster = cluster_of(
            1, topics={name: topic((1,), (1,), name=name) for name in COUNTS},
            states={f"{name}-{number}": state(1, [1]) for name, count in COUNTS.items() for number in range(count)},
        )  # fmt: skip
        return handled_seen(actions.DESCRIBE_TOPICS, partial(described_page, cluster))
    known = [command(name, number) for name, count in COUNTS.items() for number in range(count)]
    topics = KnownTopics({each.topic_partition: each for each in known}, {name: TopicConfig() for name in COUNTS})
    return handled_seen(actions.DESCRIBE_TOPICS, topics.page)


SEEN = {"alters_cluster": KNOWN_TOPICS, SUPER: KNOWN_TOPICS, BROKER: KNOWN_TOPICS, "describes": ["orders"], NOTHING: []}


@pytest.mark.parametrize("server", ["broker", "controller"])
@pytest.mark.parametrize("who", SEEN)
def test_pages_of_topics_tell_of_those_alone_that_may_be_seen(
    mode: Mode, tmp_path: Path, server: str, who: str
) -> None:
    """The attack: whoever asked for pages of one partition was told the name of each topic that begins one."""
    acls = "; ".join(f"{name} {right}" for name, right in RIGHTS.items())
    rights = Rights(mode.server, lambda: acls)
    served = ActionServer("127.0.0.1", [paging(server)], rights=rights)
    names: list[str] = []
    with mode.asking[who].client(f"127.0.0.1:{served.port}") as client:
        asked: DescribeTopics | None = DescribeTopics(partitions_max=1)
        while asked is not None:
            page = call(client, actions.DESCRIBE_TOPICS, asked, 10_000)
            names += [topic.name for topic in page.topics] + ([] if page.next is None else [page.next.topic])
            asked = None if page.next is None else replace(asked, start=page.next)
    threading.Thread(target=served.shutdown, daemon=True).start()
    assert sorted(set(names)) == SEEN[who]


def test_a_wrong_token_is_refused_where_clients_need_none(mode: Mode, port: int, tmp_path: Path) -> None:
    other = broker_settings(tmp_path)
    (tmp_path / "broker-token").write_text("guessed-by-a-stranger")
    guessed = security_of(token_settings(tmp_path), other).broker_tokens
    wrong = Security(mode=mode.client.mode, certificates=mode.client.certificates, broker_tokens=guessed)
    assert told(wrong, port, "metadata", to_json(GetMetadata())) == "AUTHENTICATION_FAILED"


def test_without_a_secret_of_brokers_a_client_is_taken_for_one(tmp_path: Path) -> None:
    """As long as the start does not refuse that."""
    token = security_of(token_settings(tmp_path))
    server = ActionServer("127.0.0.1", [Handled(actions.SHUTDOWN, _reached)], rights=Rights(token))
    assert told(token, server.port, "shutdown", to_json(Shutdown(controller_epoch=1, attempt=1))) == REACHED
    threading.Thread(target=server.shutdown, daemon=True).start()
    settings = settings_from(token_settings(tmp_path))
    with pytest.raises(InvalidConfig, match=r"security\.mode=token does not tell brokers from clients"):
        require_own_brokers(settings)
    require_own_brokers(settings_from({**token_settings(tmp_path), **broker_settings(tmp_path)}))
    require_own_brokers(settings_from({}))


def test_a_secret_of_brokers_is_of_no_use_without_a_mode(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"security\.broker\.token\.file is set, and security\.mode=none does not"):
        security_of(broker_settings(tmp_path))


@pytest.mark.parametrize("mode_of_clients", ["none", "tls"])
def test_super_users_need_clients_that_prove_who_they_are(tmp_path: Path, mode_of_clients: str) -> None:
    ours = Authority(tmp_path)
    tls = tls_settings(ours, ours.issue("server")) if mode_of_clients == "tls" else {}
    with pytest.raises(InvalidConfig, match=r"security\.super\.users=root tells clients apart, and they prove nothing"):
        security_of(tls, {"security.super.users": "root"})


def test_without_super_users_each_client_may_do_what_clients_may(tmp_path: Path) -> None:
    rights = Rights(security_of(token_settings(tmp_path), broker_settings(tmp_path)))
    server = ActionServer("127.0.0.1", HANDLED, rights=rights)
    client = security_of(token_settings(tmp_path))
    for action, (request, allowed) in TABLE.items():
        if allowed is not None:
            expected = "CLUSTER_AUTHORIZATION_FAILED" if allowed == COMMANDING else REACHED
            assert told(client, server.port, action, to_json(request)) == expected, action
    threading.Thread(target=server.shutdown, daemon=True).start()
