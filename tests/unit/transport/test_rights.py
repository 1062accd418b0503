"""What a caller may do here, where that is known, and where it is not."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from spark_replication.errors import (
    BrokerNotAvailable,
    ClusterAuthorizationFailed,
    NotReady,
    ReplicationError,
    TopicAuthorizationFailed,
)
from spark_replication.messages.acls import Need
from spark_replication.model import TopicPartition
from spark_replication.transport.proofs.caller import Caller
from spark_replication.transport.proofs.token import Token
from spark_replication.transport.proofs.tokens import Tokens
from spark_replication.transport.security.rights import Rights
from spark_replication.transport.security.security import Security

ROOT, ALICE, BROKER = Token("r", "root"), Token("a", "alice"), Token("b", "broker")
WITH_ACLS = Security(
    mode="token",
    tokens=Tokens.of(ROOT, ALICE),
    broker_tokens=Tokens.of(BROKER),
    super_users=frozenset({"root"}),
)
WRITE = Need("write", "orders")


def caller(token: Token) -> Caller:
    return Caller(token.name, is_of_cluster=token is BROKER, mark=token.mark)


class Acls:
    def __init__(self, text: str) -> None:
        self.text = text
        self.rights = Rights(WITH_ACLS, lambda: self.text)


def test_what_changes_holds_at_the_next_question() -> None:
    acls = Acls("")
    assert not acls.rights.allow(caller(ALICE), WRITE)
    acls.text = "alice write topic orders"
    assert acls.rights.allow(caller(ALICE), WRITE)
    acls.text = "bob write topic orders"
    assert not acls.rights.allow(caller(ALICE), WRITE)


def test_who_is_denied_is_told_so_and_nobody_is_advised_to_grant_it() -> None:
    acls = Acls("alice write topic orders; deny alice write topic orders from 10.0.0.0/8")
    here, elsewhere = (caller(ALICE)._replace(host=host) for host in ("10.1.2.3", "11.1.2.3"))
    acls.rights.require(elsewhere, [WRITE])
    with pytest.raises(TopicAuthorizationFailed, match=r"may not write topic orders: it is denied.*acls remove --deny"):
        acls.rights.require(here, [WRITE])
    with pytest.raises(TopicAuthorizationFailed, match=r"acls add alice read topic orders"):
        acls.rights.require(here, [Need("read", "orders")])


def test_super_users_do_what_clients_may_and_brokers_everything() -> None:
    acls = Acls("alice cluster_action cluster")
    command = Need("cluster_action")
    assert [acls.rights.allow(caller(each), WRITE) for each in (ROOT, ALICE, BROKER)] == [True, False, True]
    assert [acls.rights.allow(caller(each), command) for each in (ROOT, ALICE, BROKER)] == [False, True, True]
    assert [acls.rights.sees_all(caller(each)) for each in (ROOT, ALICE, BROKER)] == [True, False, True]


def test_where_acls_are_not_known_yet_those_who_need_none_are_served() -> None:
    def unknown() -> str:
        raise NotReady("not yet")

    rights = Rights(WITH_ACLS, unknown)
    assert rights.allow(caller(ROOT), WRITE)
    assert rights.allow(caller(BROKER), WRITE)
    with pytest.raises(NotReady):
        rights.require(caller(ALICE), [WRITE])
    rights.require(caller(ALICE), [])


def test_acls_that_cannot_be_read_grant_nothing_and_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    acls = Acls("alice write topic orders; alice does something else")
    with caplog.at_level(logging.ERROR):
        assert [acls.rights.allow(caller(ALICE), WRITE) for _ in range(3)] == [False] * 3
    assert len(caplog.records) == 1
    assert acls.rights.allow(caller(ROOT), WRITE)


@pytest.mark.parametrize(
    ("need", "error", "words"),
    [
        (WRITE, TopicAuthorizationFailed, "client alice may not write topic orders"),
        (Need("alter"), ClusterAuthorizationFailed, "client alice may not alter the cluster"),
        (Need("cluster_action"), ClusterAuthorizationFailed, "client alice is no broker, controller or guardian"),
    ],
)
def test_a_refusal_says_which_right_is_missing(need: Need, error: type[ReplicationError], words: str) -> None:
    with pytest.raises(error, match=words) as refused:
        Acls("").rights.require(caller(ALICE), [need])
    if need.right != "cluster_action":
        what = "cluster" if need.topic is None else "topic orders"
        assert f"`spark-replication acls add alice {need.right} {what}`" in refused.value.message


def test_a_partition_is_found_for_those_who_have_the_right(caplog: pytest.LogCaptureFixture) -> None:
    found: list[TopicPartition] = []

    a_partition: Any = object()

    def find(partition: TopicPartition) -> Any:
        found.append(partition)
        return a_partition

    acls = Acls("alice write prefix ord")
    guarded = acls.rights.guarded(find, caller(ALICE), "write")
    assert guarded(TopicPartition("orders", 3)) is a_partition
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            with pytest.raises(TopicAuthorizationFailed):
                guarded(TopicPartition("stock", 0))
    assert found == [TopicPartition("orders", 3)]
    assert len(caplog.records) == 1, "a stream may have many"
    told: Any = caplog.records[0]
    assert (told.who, told.action, told.asked) == ("client alice", "write", "stock")


def test_whose_token_was_removed_is_to_connect_again() -> None:
    rights = Acls("").rights
    for token in (ROOT, ALICE, BROKER):
        rights.require_known(caller(token))
    rights.require_known(Caller("in-a-certificate", is_of_cluster=False))
    with pytest.raises(
        BrokerNotAvailable, match="client alice began with a token, or a certificate, that this cluster does not know"
    ):
        rights.require_known(Caller("alice", is_of_cluster=False, mark=Token("old", "alice").mark))


def test_of_the_refusals_of_a_stream_the_first_is_in_the_audit_log(caplog: pytest.LogCaptureFixture) -> None:
    acls = Acls("alice write topic orders")
    check = acls.rights.check_of(caller(ALICE)._replace(host="10.0.0.7"), "write")
    with caplog.at_level(logging.INFO):
        check("orders")
        assert caplog.records == []
        for topic in ("stock", "prices"):
            with pytest.raises(TopicAuthorizationFailed):
                check(topic)
    (told,) = caplog.records
    assert (told.who, told.host, told.action, told.asked) == (  # type: ignore[attr-defined]
        "client alice",
        "10.0.0.7",
        "write",
        "stock",
    )


def test_everybody_may_find_coordinators_and_nobody_but_who_may_reads_their_log() -> None:
    acls = Acls("deny alice describe topic __groups")
    acls.rights.require(caller(ALICE), [Need("describe", "__groups")])
    for need in (Need("read", "__groups"), Need("describe", "orders")):
        assert not acls.rights.allow(caller(ALICE), need)
    assert not acls.rights.seen_by(caller(ALICE))("__groups"), "who asks for all topics is told of others"
    sees = acls.rights.seen_by(caller(ALICE), {"__groups", None})
    assert (sees("__groups"), sees("orders")) == (True, False)
