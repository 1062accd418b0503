"""The model of a larger cluster says what such a cluster's controller really sends and writes."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from spark_replication.admin.bench.decide import EACH, FAILED, TOTAL, cluster_of, failed
from spark_replication.admin.bench.scale import Cluster, Costs, measure, needs
from spark_replication.admin.cli.main import cli
from spark_replication.core.controller.announcing import announce
from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.events import TookOver
from spark_replication.core.controller.plan import BrokersMoved, Cause
from spark_replication.messages.envelope import to_json
from spark_replication.model import TopicPartition

pytestmark = pytest.mark.slow  # two controllers, one with ten times as many partitions

SIZE = Cluster(brokers=5, partitions=2_000)
SIZES = [SIZE, pytest.param(Cluster(brokers=9, partitions=20_000), marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def costs() -> Costs:
    (found,) = measure([SIZE], lambda _what: None)
    return found


def amounts(costs: Costs, of: Cluster) -> dict[str, float]:
    return {need.what: need.amount for need in needs(costs, of)}


def told_bytes(state: ClusterState, cause: Cause, written: list[TopicPartition]) -> int:
    return sum(len(to_json(command)) for _, command in announce(state, cause, written))


@pytest.mark.parametrize("of", SIZES)
def test_what_is_told_at_a_takeover(costs: Costs, of: Cluster) -> None:
    state = cluster_of(of.partitions, range(1, of.brokers + 1))
    found = told_bytes(state, TookOver(), []) / 1e9
    assert amounts(costs, of)["a controller takes over: told to all"] == pytest.approx(found, rel=0.05, abs=0.01)


@pytest.mark.parametrize("of", SIZES)
def test_what_is_written_and_told_when_a_broker_fails(costs: Costs, of: Cluster) -> None:
    state = cluster_of(of.partitions, range(1, of.brokers + 1))
    hosted = [partition for partition, stored in state.partitions.items() if FAILED in stored.state.isr]
    ours, bare = failed(state)
    assert ours[TOTAL] == pytest.approx(ours[EACH] * len(hosted) / 1_000), "it is told for each that the broker had"
    assert bare.keys() < ours.keys()
    written = [partition for partition, stored in state.partitions.items() if stored.state.leader_epoch > 0]
    expected = amounts(costs, of)
    assert expected["a broker fails: nodes that the controller writes"] == pytest.approx(len(written), rel=0.01)
    left = [partition for partition in hosted if FAILED in state.partitions[partition].state.isr]
    assert expected["a broker fails: nodes that leaders write later"] == pytest.approx(len(left), rel=0.01)
    moved = BrokersMoved(lost=frozenset({FAILED}), started=frozenset(), stopping=frozenset())
    found = told_bytes(state, moved, written) / 1e9
    assert expected["a broker fails: told to the others"] == pytest.approx(found, rel=0.05, abs=0.01)


def test_a_cost_is_that_of_one_partition(costs: Costs) -> None:
    assert 100 < costs.znode_bytes < costs.command_bytes < costs.controller_bytes < 10_000
    for cost_us in (costs.encode_us, costs.decode_us, costs.failure_us):  # on a busy machine any of them may be longest
        assert 0 < cost_us < 10_000


def test_the_command_shows_what_was_measured_and_what_that_makes() -> None:
    asked = ["bench", "scale", "--partitions", "300", "--brokers", "3", "--format", "json"]
    ran = CliRunner().invoke(cli, asked)
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    assert [(each["brokers"], each["partitions"]) for each in found["costs"]] == [(3, 300)]
    assert {need["unit"] for need in found["needs"]} == {"GB", "s", "nodes"}
    assert next(each["amount"] for each in found["needs"] if each["unit"] == "nodes") == 10_000
