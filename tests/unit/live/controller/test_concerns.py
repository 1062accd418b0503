"""What the mirror's status is told of the cluster's health, and how often."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from spark_replication.core.controller.cluster import ClusterState
from spark_replication.live.controller import concerns
from spark_replication.live.controller.concerns import Concerns, counted
from spark_replication.messages.descriptions import Metadata
from tests.unit.core.stories import cluster_of, state, topic

ILL = cluster_of(
    1,
    topics={"foo": topic((1, 2), (1, 2), (2,))},
    states={"foo-0": state(1, [1]), "foo-1": state(None, [], elr=[2]), "foo-2": state(1, [1, 2])},
)


def test_partitions_are_counted_the_worst_first() -> None:
    assert counted(ILL) == [
        "partitions without a leader: 1",
        "partitions with fewer replicas in sync than acks=all needs: 2",
    ]
    assert counted(cluster_of(1, topics={"foo": topic((1,))}, states={"foo-0": state(1, [1], min_isr=1)})) == []


def test_they_are_told_after_what_is_wrong_besides_and_not_with_every_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Sequence[str]] = []

    def others(seen: Metadata) -> list[str]:
        assert seen.topics == ()
        return [f"brokers {sorted(seen.brokers)} are registered"]

    looking = Concerns(others, told.append)
    looking.look(ILL)
    looking.look(ClusterState.__new__(ClusterState))  # it is not looked at
    assert told == [("brokers [1] are registered", *counted(ILL))]
    monkeypatch.setattr(concerns, "LOOK_S", 0.0)
    again = Concerns(others, told.append)
    again.look(ILL)
    again.look(ILL)
    assert len(told) == 3
