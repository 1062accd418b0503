"""`spark-replication quotas`: what is listed, and what the controller is asked."""

from __future__ import annotations

import json

import pytest

from spark_replication.core.law.quotas import QUOTAS
from spark_replication.messages.requests import Request, SetQuota, ToldQuotas
from tests.unit.admin.conftest import Run
from tests.unit.client.fake_cluster import FakeCluster


def test_the_list_says_whose_limit_of_what(run: Run, cluster: FakeCluster, asked: list[Request]) -> None:
    cluster.quotas = ToldQuotas(quotas=QUOTAS.each(["alice request_rate 10", "* streams 20"]), count=True)
    ran = run("quotas", "list", "-b", cluster.bootstrap, "--format=json")
    assert (ran.exit, ran.err) == (0, "")
    assert json.loads(ran.out) == [
        {"principal": "alice", "quota": "request_rate", "limit": 10},
        {"principal": "*", "quota": "streams", "limit": 20},
    ]
    assert "alice" in run("quotas", "list", "-b", cluster.bootstrap).out
    assert asked == []


def test_quotas_that_do_not_count_are_said_to(run: Run, cluster: FakeCluster) -> None:
    ran = run("quotas", "list", "-b", cluster.bootstrap)
    assert (ran.exit, ran.err) == (0, "clients do not prove who they are: quotas do not count\n")


def test_one_is_set_and_taken_back(run: Run, cluster: FakeCluster, asked: list[Request]) -> None:
    for words in (("set", "alice", "streams", "5"), ("remove", "alice", "streams")):
        ran = run("quotas", words[0], "-b", cluster.bootstrap, *words[1:])
        assert (ran.exit, ran.out, ran.err) == (0, "", "")
    assert asked == [SetQuota(principal="alice", kind="streams", limit=limit) for limit in (5, None)]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("set", "alice", "stream", "5"), "'stream' is not one of 'producer_byte_rate', 'consumer_byte_rate'"),
        (("set", "alice", "streams", "0"), "0 is not in the range x>=1"),
        (("set", "alice", "streams", "many"), "'many' is not a valid integer"),
        (("set", "alice", "streams"), "Missing argument"),
        (("remove", "alice"), "Missing argument"),
    ],
)
def test_what_is_no_quota_is_not_asked_for(
    run: Run, cluster: FakeCluster, asked: list[Request], words: tuple[str, ...], why: str
) -> None:
    ran = run("quotas", words[0], "-b", cluster.bootstrap, *words[1:])
    assert ran.exit == 2
    assert why in ran.err
    assert asked == []
