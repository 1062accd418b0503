"""`spark-replication acls`: what is listed, and what the controller is asked."""

from __future__ import annotations

import json

import pytest

from spark_replication.core.law.acls import ACLS
from spark_replication.messages.requests import ChangeAcls, Request, ToldAcls
from tests.unit.admin.conftest import Run
from tests.unit.client.fake_cluster import FakeCluster

GIVEN = ACLS.each(["alice write topic orders", "* describe cluster", "deny bob read prefix or from 10.0.0.0/8"])


def test_the_list_has_super_users_first(run: Run, cluster: FakeCluster, asked: list[Request]) -> None:
    cluster.acls = ToldAcls(acls=GIVEN, super_users=("root",))
    ran = run("acls", "list", "-b", cluster.bootstrap, "--format=json")
    assert (ran.exit, ran.err) == (0, "")
    assert json.loads(ran.out) == [
        {"principal": "root", "effect": "allow", "right": "everything", "on": "", "name": "", "from": ""},
        {"principal": "alice", "effect": "allow", "right": "write", "on": "topic", "name": "orders", "from": ""},
        {"principal": "*", "effect": "allow", "right": "describe", "on": "cluster", "name": "", "from": ""},
        {"principal": "bob", "effect": "deny", "right": "read", "on": "prefix", "name": "or", "from": "10.0.0.0/8"},
    ]
    assert "alice" in run("acls", "list", "-b", cluster.bootstrap).out
    assert asked == []


def test_acls_that_do_not_count_are_said_to(run: Run, cluster: FakeCluster) -> None:
    ran = run("acls", "list", "-b", cluster.bootstrap)
    assert (ran.exit, ran.err) == (0, "security.super.users is empty: ACLs do not count\n")


@pytest.mark.parametrize("command", ["add", "remove"])
@pytest.mark.parametrize("words", [("alice", "write", "topic", "orders"), ("*", "describe", "cluster")])
def test_one_is_added_or_removed(
    run: Run, cluster: FakeCluster, asked: list[Request], command: str, words: tuple[str, ...]
) -> None:
    ran = run("acls", command, "-b", cluster.bootstrap, *words)
    assert (ran.exit, ran.out, ran.err) == (0, "", "")
    acls = ACLS.each([" ".join(words)])
    assert asked == [ChangeAcls(add=acls) if command == "add" else ChangeAcls(remove=acls)]


@pytest.mark.parametrize("command", ["add", "remove"])
def test_one_may_deny_and_be_of_a_place(run: Run, cluster: FakeCluster, asked: list[Request], command: str) -> None:
    ran = run("acls", command, "-b", cluster.bootstrap, "--deny", "bob", "read", "prefix", "or", "--from", "10.0.0.0/8")
    assert (ran.exit, ran.out, ran.err) == (0, "", "")
    acls = GIVEN[2:]
    assert asked == [ChangeAcls(add=acls) if command == "add" else ChangeAcls(remove=acls)]


@pytest.mark.parametrize(
    ("words", "exit_", "why"),
    [
        (("alice", "writes", "topic", "orders"), 2, "'writes' is not one of 'describe', 'read', 'write', 'alter'"),
        (("alice", "write", "topics", "orders"), 2, "'topics' is not one of 'topic', 'prefix', 'cluster'"),
        (("alice", "write"), 2, "Missing argument"),
        (("alice", "write", "topic"), 1, "'' names no topic"),
        (("alice", "write", "cluster"), 1, "write is no right on a cluster"),
        (("alice", "alter", "cluster", "c"), 1, "'c' names no cluster"),
        (("alice", "alter", "cluster", "--from", "here"), 1, "'here' does not appear to be an IPv4 or IPv6 network"),
    ],
)
def test_what_is_no_acl_is_not_asked_for(
    run: Run, cluster: FakeCluster, asked: list[Request], words: tuple[str, ...], exit_: int, why: str
) -> None:
    ran = run("acls", "add", "-b", cluster.bootstrap, *words)
    assert ran.exit == exit_
    assert why in ran.err
    assert asked == []
