"""Whoever shows, counts or filters partitions says the same of them. SQL: tests/live/mirror/test_views.py."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest

from spark_replication.admin.cli import partitions_command, topics_command
from spark_replication.admin.notebook.cells import grid_of
from spark_replication.admin.notebook.frames import partition_frame
from spark_replication.client.asking.descriptions import TopicDescription
from spark_replication.client.asking.descriptions import described as as_clients_know
from spark_replication.client.asking.health import health_of
from spark_replication.core.controller.describing import described
from spark_replication.page.rows import partition_rows, topic_row
from spark_replication.view.cluster_metrics import metrics
from spark_replication.view.conditions import WORDS, Condition, conditions_of, conditions_of_command, holding
from tests.unit.view.described_conditions import KNOWN, Known, cluster_with

# All of them, and clusters that have one each.
CLUSTERS = (KNOWN, *((each,) for each in KNOWN))


def topic_with(*known: Known) -> TopicDescription:
    (topic,) = described(cluster_with(*known), None, None).topics
    return as_clients_know(topic)


def count(conditions: Counter[Condition], *names: Condition) -> list[int]:
    return [conditions[name] for name in names]


@pytest.mark.parametrize("known", KNOWN)
def test_what_holds_of_a_partition(known: Known) -> None:
    found = holding(
        known.leader, known.isr, known.min_isr, known.replicas, adding=known.adding, removing=known.removing
    )
    assert found == known.holds
    (partition,) = topic_with(known).partitions
    assert conditions_of(partition) == known.holds
    (topic,) = described(cluster_with(known), None, None).topics
    assert conditions_of_command(topic.partitions[0]) == known.holds


@pytest.mark.parametrize("known", CLUSTERS)
def test_all_count_alike(known: tuple[Known, ...]) -> None:
    holds = Counter(chain.from_iterable(each.holds for each in known))
    cluster, topic = cluster_with(*known), topic_with(*known)
    told = health_of(described(cluster, None, None), lambda asked: ())
    counted = metrics(cluster)
    ailing = count(holds, "leaderless", "under_min_isr", "under_replicated")
    assert [told.leaderless, told.under_min_isr, told.under_replicated, told.moving] == [*ailing, holds["moving"]]
    assert [
        counted.offline_partitions,
        counted.under_min_isr_partitions,
        counted.under_replicated_partitions,
        counted.reassigning_partitions,
    ] == [*ailing, holds["moving"]], "metrics"
    assert [*topics_command._row(topic)[3:6]] == ailing, "the shell's topics"
    troubles = partitions_command._TROUBLES
    for name in ("leaderless", "under_min_isr", "under_replicated", "moving"):
        assert sum(map(troubles[name], topic.partitions)) == holds[name], f"the shell's partitions --{name}"
    (of_controller,) = described(cluster, None, None).topics
    shown = topic_row("foo", partition_rows(of_controller))
    assert [shown.leaderless, shown.under_min_isr, shown.under_replicated, shown.moving] == [*ailing, holds["moving"]]
    assert grid_of([topic]).counts == {name: holds[name] for name in WORDS}, "the notebook's grid"


@pytest.mark.parametrize("known", CLUSTERS)
def test_the_worst_is_shown(known: tuple[Known, ...]) -> None:
    topic = topic_with(*known)
    (of_controller,) = described(cluster_with(*known), None, None).topics
    assert [row.conditions for row in partition_rows(of_controller)] == [each.holds for each in known], "the page"
    worst = [WORDS[each.holds[0]] for each in known]
    assert partition_frame([topic]).to_arrow()["condition"].to_pylist() == worst
    assert [WORDS[cell.condition] for cell in grid_of([topic]).cells] == worst
