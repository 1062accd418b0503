"""Which topic a table makes in a cluster that does not have it, and who may take a table over (TB7).

A table names the topic that it is of, as `topic_id` of a cluster, and has an outline of it: all that is needed to make
the topic again. Whoever restores it makes a topic that names the table's as its origin; then the table is taken over,
in one commit, before any partition is made. So a controller that crashes in between leaves a topic that says what is
still to be done.

| the table is of                             | a topic of its name | then                                            |
| ------------------------------------------- | ------------------- | ----------------------------------------------- |
| a topic that this cluster has               |                     | nothing is left to do                           |
| one that this cluster no longer has         | is not there        | it is made                                      |
|                                             | is there            | refused: it is another topic                    |
| another cluster's, which was named          | is not there        | it is made                                      |
|                                             | is there            | the controller knows whether it was made of it  |
| another cluster's, which nobody has named   |                     | refused: that cluster may live, and write it    |
| any, without an outline                     |                     | refused: nobody knows the topic                 |
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Annotated

import msgspec

from spark_replication.core.tables.table import TableVersion
from spark_replication.errors import InvalidRequest, TopicAlreadyExists, WrongCluster
from spark_replication.messages.requests import CreateTopic, RestoredTable
from spark_replication.model import Count, Scalar, TableOrigin, TopicConfig, Value


class TopicOutline(Value, frozen=True, kw_only=True):
    """What a table has written down of its topic."""

    #: The newest version of the topic's schema (IPC, base64), and how many columns each earlier one had.
    schema: str
    earlier_columns: tuple[Count, ...] = ()
    #: The topic's own settings. Those of its cluster are not here.
    settings: dict[str, Scalar] = msgspec.field(default_factory=dict)
    partitions: Annotated[int, msgspec.Meta(ge=1)]


class FoundTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table below a path, as somebody finds it who knows nothing of its topic."""

    topic: str
    uri: str
    origin: TableOrigin
    #: None: it was written by a release that wrote none, or by a later one.
    outline: TopicOutline | None
    version: TableVersion
    row_count: Count
    #: As people write them, `id:int64`; of the topic, where its outline is known.
    columns: tuple[str, ...]


class ThenRestored(Enum):
    DONE = "is this cluster's"
    MADE = "is to be made"
    ASKED = "exists: the controller goes on with it if it was made of this table"


def outline_of(config: TopicConfig, partitions: Count) -> TopicOutline:
    return TopicOutline(
        schema=config.schema, earlier_columns=config.earlier_columns, settings=config.settings, partitions=partitions
    )


def restored(table: FoundTable, cluster_id: str, topic_id: str | None, taken_over: Collection[str]) -> ThenRestored:
    """What is to be done so that the cluster has the table's topic.

    topic_id: of the topic of that name in this cluster; None if there is none. taken_over: the clusters that a person
    has named, of which no part writes tables any more.
    """
    is_ours = table.origin.cluster_id == cluster_id
    if is_ours and table.origin.topic_id == topic_id:
        return ThenRestored.DONE
    if table.outline is None:
        raise InvalidRequest(
            f"the table at {table.uri} has no outline of its topic (its schema, its settings and the number of its "
            "partitions): the release that wrote it wrote none. Open it once with the cluster that has its topic, by "
            f"this release (spark-replication table write --once {table.topic}), or make a topic of another name, and "
            "produce the table's rows to it"
        )
    if is_ours and topic_id is not None:
        raise TopicAlreadyExists(
            f"topic {table.topic} exists, and the table at {table.uri} is that of {table.origin.topic_id}, an earlier "
            f"one. If its own records are not needed: spark-replication topics delete {table.topic}, and restore again"
        )
    if not is_ours and table.origin.cluster_id not in taken_over:
        raise WrongCluster(
            f"the table at {table.uri} is that of cluster {table.origin.cluster_id}, and would be written by this one "
            "alone. If no part of that cluster is to go on with it: --take-over " + table.origin.cluster_id
        )
    return ThenRestored.MADE if topic_id is None else ThenRestored.ASKED


def creation_of(table: FoundTable, replication_factor: int | None) -> CreateTopic:
    """The request that makes the topic. Whatever the cluster's topics are, it is a table."""
    outline = table.outline
    assert outline is not None, f"{table.uri} has none"
    return CreateTopic(
        name=table.topic,
        schema=outline.schema,
        partitions=outline.partitions,
        replication_factor=replication_factor,
        config={**outline.settings, "table": True},
        restores=RestoredTable(origin=table.origin, earlier_columns=outline.earlier_columns),
    )


def is_to_be_taken_over(owner: TableOrigin, ours: TableOrigin, origin: TableOrigin, uri: str) -> bool:
    """Whether the topic `ours`, which restores `origin`, must take over the table that names `owner`. False: it has it.
    WrongCluster: the table is neither's."""
    if owner == ours:
        return False
    if owner != origin:
        raise WrongCluster(
            f"the table at {uri} is topic {owner.topic_id}'s of cluster {owner.cluster_id}, and was to be taken over "
            f"from topic {origin.topic_id} of cluster {origin.cluster_id}: another has it by now. See who writes it, "
            "and delete the topic that was to go on with it"
        )
    return True


def carried_over(before: TableVersion) -> TableVersion:
    """What the version of an earlier topic becomes for the topic that takes it over: starts and ends stay, and each
    epoch is one later. So whatever was confirmed at an epoch of the earlier topic is of before, and all of this topic's
    epochs are above those in its rows."""
    epochs = {partition: epoch + 1 for partition, epoch in before.epochs.items()}
    return TableVersion(number=before.number, ends=before.ends, epochs=epochs, starts=before.starts)
