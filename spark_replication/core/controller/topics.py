"""Which topics may exist: names (T1), numbers of partitions, assignments. These functions raise errors, and change
nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise

from msgspec import UNSET, UnsetType

from spark_replication.config import TopicSettings, with_topic
from spark_replication.core.controller import reassignment
from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.widening import check_schema
from spark_replication.core.moves.placement import place
from spark_replication.core.tables.fitting import check_fits
from spark_replication.errors import (
    CorruptState,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidRequest,
    InvalidTopic,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from spark_replication.messages.groups import GROUPS_TOPIC
from spark_replication.messages.requests import CreateTopic
from spark_replication.model import BrokerId, TableOrigin, TopicConfig, TopicState

NAME_LENGTH_MAX = 249
PARTITIONS_MAX = 10_000  # of one topic: its assignment must fit one znode of 512 KB
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def check_name(name: str, existing: Iterable[str]) -> None:
    if not _NAME.fullmatch(name) or len(name) > NAME_LENGTH_MAX or name in (".", ".."):
        raise InvalidTopic(
            f"{name!r} is no topic name: letters, digits, '.', '_' and '-', at most {NAME_LENGTH_MAX} of them"
        )
    alike = name.replace(".", "_")
    for other in existing:
        if other == name:
            raise TopicAlreadyExists(f"topic {name} exists already: see `spark-replication topics describe {name}`")
        if other.replace(".", "_") == alike:
            raise InvalidTopic(f"topic {name} differs from {other} only by '.' and '_': their metrics would collide")


def is_restored_already(creation: CreateTopic, cluster: ClusterState) -> bool:
    """Whether the topic goes on with just this table, since an earlier try has made it (TB7). TopicAlreadyExists: it is
    another one."""
    origin, known = origin_of(creation), cluster.topics.get(creation.name)
    if origin is UNSET or known is None or creation.name in cluster.unreadable.topics:
        return False
    own = TableOrigin(cluster_id=cluster.cluster_id, topic_id=known.state.topic_id)
    if creation.name not in cluster.deleting and origin in (own, known.state.restores):
        return True
    raise TopicAlreadyExists(
        f"topic {creation.name} exists, and goes on with no table of topic {origin.topic_id} of cluster "
        f"{origin.cluster_id}. If its own records are not needed: spark-replication topics delete {creation.name}, and "
        "restore again"
    )


def origin_of(creation: CreateTopic) -> TableOrigin | UnsetType:
    return UNSET if creation.restores is UNSET else creation.restores.origin


def config_of(creation: CreateTopic) -> TopicConfig:
    earlier = () if creation.restores is UNSET else creation.restores.earlier_columns
    return TopicConfig(settings=creation.config, schema=creation.schema, earlier_columns=earlier)


def _check_restored(creation: CreateTopic, settings: TopicSettings, cluster: ClusterState) -> None:
    """Check that the topic can go on with a table, and that the table is no living topic's."""
    if creation.restores is UNSET:
        return
    origin, earlier = creation.restores.origin, creation.restores.earlier_columns
    if not settings.table or not creation.schema:
        raise InvalidRequest(f"topic {creation.name} is to go on with a table: give it a schema, and table=true")
    columns = (*earlier, cluster.compare_schemas(creation.schema, creation.schema).columns_after)
    if any(before >= after for before, after in pairwise(columns)):
        raise InvalidRequest(f"versions of a schema only gain columns, not {list(columns)}: read the table again")
    if origin.cluster_id == cluster.cluster_id:
        living = next((name for name, each in cluster.topics.items() if each.state.topic_id == origin.topic_id), None)
        if living is not None:
            raise InvalidRequest(f"the table is that of topic {living}, which exists: it is not given to another")


def assignment_for(creation: CreateTopic, cluster: ClusterState) -> dict[int, tuple[BrokerId, ...]]:
    """The replicas of the new topic. Raises the error that says why it cannot be made."""
    if creation.name in cluster.unreadable.topics:
        raise unreadable_topic(creation.name)
    check_name(creation.name, [*cluster.topics, *sorted(cluster.unreadable.topics)])
    settings = with_topic(cluster.settings, creation.config)
    check_schema(creation.schema, cluster.compare_schemas)
    _check_restored(creation, settings, cluster)
    if creation.name != GROUPS_TOPIC:
        check_fits(creation.name, creation.schema, settings, cluster.fits_table)
    if creation.assignment is not None:
        if creation.partitions is not None or creation.replication_factor is not None:
            raise InvalidReplicaAssignment("give an assignment, or partitions and a replication factor: not both")
        check_assignment(creation.assignment, cluster)
        return dict(sorted(creation.assignment.items()))
    count = 1 if creation.partitions is None else creation.partitions
    if not 1 <= count <= PARTITIONS_MAX:
        raise InvalidPartitions(f"{count} partitions: a topic has from 1 to {PARTITIONS_MAX}")
    factor = creation.replication_factor
    if factor is None:
        factor = cluster.settings.default_replication_factor
    return _placed(range(count), factor, cluster)


def _placed(partitions: range, factor: int, cluster: ClusterState) -> dict[int, tuple[BrokerId, ...]]:
    registered = {broker: cluster.registered[broker] for broker in sorted(cluster.brokers.electable)}
    present = (replicas for topic in cluster.topics.values() for replicas in topic.state.partitions.values())
    return place(partitions, factor, registered, present)


def check_assignment(assignment: Mapping[int, tuple[BrokerId, ...]], cluster: ClusterState) -> None:
    if sorted(assignment) != list(range(len(assignment))) or not 1 <= len(assignment) <= PARTITIONS_MAX:
        raise InvalidPartitions(
            f"partitions {sorted(assignment)}: they are numbered from 0 on, up to {PARTITIONS_MAX}, without a gap"
        )
    sizes = {len(replicas) for replicas in assignment.values()}
    if len(sizes) != 1:
        raise InvalidReplicaAssignment(f"partitions of one topic have equally many replicas, not {sorted(sizes)}")
    for partition, replicas in sorted(assignment.items()):
        _check_new(f"partition {partition}", replicas, cluster)


def _check_new(what: str, replicas: tuple[BrokerId, ...], cluster: ClusterState) -> None:
    """Check the replicas of a new partition: one of them must be able to lead at once."""
    check_replicas(what, replicas, cluster)
    if not cluster.brokers.electable.intersection(replicas):
        raise InvalidReplicaAssignment(f"no broker of {what} is alive: {list(replicas)}")


def check_replicas(what: str, replicas: tuple[BrokerId, ...], cluster: ClusterState) -> None:
    """Check that each replica occurs once, on a broker that has registered at some time: it may be down."""
    if not replicas:
        raise InvalidReplicaAssignment(f"{what} is given no replicas: it needs at least one")
    if len(set(replicas)) != len(replicas):
        raise InvalidReplicaAssignment(f"{what} names a broker twice: {list(replicas)}")
    unknown = sorted(set(replicas) - cluster.broker_epochs.keys())
    if unknown:
        raise InvalidReplicaAssignment(f"{what} names unknown brokers {unknown}")


def unreadable_topic(topic: str) -> CorruptState:
    return CorruptState(
        f"topic {topic} is in ZooKeeper and cannot be read, so nothing is decided about it: see the cluster's "
        "problems, and write its nodes as they were"
    )


def existing(topic: str, cluster: ClusterState) -> TopicState:
    """The state of a topic that exists, and is not being deleted."""
    if topic in cluster.unreadable.topics:
        raise unreadable_topic(topic)
    found = cluster.topics.get(topic)
    if found is None or topic in cluster.deleting:
        raise UnknownTopicOrPartition(f"there is no topic {topic!r}: check its name")
    return found.state


def added(
    topic: str, count: int | None, assignment: Mapping[int, tuple[BrokerId, ...]] | None, cluster: ClusterState
) -> dict[int, tuple[BrokerId, ...]]:
    """The replicas of the partitions that are added, up to `count`, or as `assignment` has them."""
    _refuse_of_groups(topic)
    state = existing(topic, cluster)
    present = len(state.partitions)
    factor = max(reassignment.replication_factor(state, partition) for partition in state.partitions)
    if assignment is None:
        if count is None or not present < count <= PARTITIONS_MAX:
            raise InvalidPartitions(
                f"{topic} has {present} partitions and is to have {count}: ask for more, up to {PARTITIONS_MAX}"
            )
        return _placed(range(present, count), factor, cluster)
    if sorted(assignment) != list(range(present, present + len(assignment))) or not assignment:
        raise InvalidPartitions(
            f"{topic} has {present} partitions: new ones are numbered from {present} on, without a gap"
        )
    if present + len(assignment) > PARTITIONS_MAX:
        raise InvalidPartitions(f"{topic} would have {present + len(assignment)} partitions: {PARTITIONS_MAX} at most")
    for partition, replicas in sorted(assignment.items()):
        _check_new(f"{topic}-{partition}", replicas, cluster)
        if len(replicas) != factor:
            raise InvalidReplicaAssignment(
                f"{topic}-{partition} has {len(replicas)} replicas, and the partitions of {topic} have {factor}"
            )
    return dict(sorted(assignment.items()))


def _refuse_of_groups(topic: str) -> None:
    """A group is found by how many partitions the groups' log has."""
    if topic == GROUPS_TOPIC:
        raise InvalidPartitions(
            f"{topic} keeps the partitions that it was made with: with others, groups would be looked for where they "
            "are not, and lose their positions"
        )


def check_removed(topic: str, partitions: Iterable[int], cluster: ClusterState) -> None:
    """Check that partitions are removed from the tail only: else keys would move to other partitions (T3)."""
    _refuse_of_groups(topic)
    state = existing(topic, cluster)
    leaving = set(partitions)
    unknown = sorted(leaving - state.partitions.keys())
    if unknown:
        raise UnknownTopicOrPartition(f"{topic} has no partitions {unknown}, it has {len(state.partitions)}")
    left = len(state.partitions) - len(leaving)
    if not leaving or leaving != set(range(left, len(state.partitions))):
        raise InvalidPartitions(
            f"partitions {sorted(leaving)} of {topic} are not its last ones, and keys would move to other "
            f"partitions: name the last ones, up to {max(state.partitions)}"
        )
    if left == 0:
        raise InvalidPartitions(f"{topic} would have no partitions left: delete the topic")
