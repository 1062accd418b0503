"""Requests to the controller: each becomes a decision, or an error that says why it is not allowed.

If a write of a request meets another's, the part that the write was for is requested again (`narrowed`): the rest is
done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar, assert_never

from msgspec import UNSET
from msgspec.structs import replace

from spark_replication.core.controller import reassignment
from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.configuring import change_acls, configure_cluster, configure_topic, set_quota
from spark_replication.core.controller.elections_by_hand import candidates, check_topics, elect_by_hand, unsealed
from spark_replication.core.controller.plan import Advance, Cause, Decision, DeletePartitions, Elect, Reply, Step
from spark_replication.core.controller.settling import (
    complete_together,
    creating_write,
    stops_of,
    unsealed_epoch,
    write_of,
)
from spark_replication.core.controller.topics import (
    added,
    assignment_for,
    check_removed,
    check_replicas,
    config_of,
    existing,
    is_restored_already,
    origin_of,
    unreadable_topic,
)
from spark_replication.core.controller.widening import widened
from spark_replication.core.law.partition_change import acknowledged, with_replicas
from spark_replication.core.law.unclean_recovery import UncleanRecovery
from spark_replication.core.law.writes import (
    DeletionMark,
    PartitionWrite,
    RequestRemoval,
    StoredPartition,
    TopicConfigWrite,
    TopicWrite,
)
from spark_replication.core.tables.fitting import check_fits
from spark_replication.errors import (
    CorruptState,
    InvalidReplicaAssignment,
    InvalidRequest,
    LossNotAcknowledged,
    NoReassignmentInProgress,
    Overloaded,
    ReplicationError,
    StalePlan,
    UnknownTopicOrPartition,
)
from spark_replication.messages.requests import (
    AcknowledgeLoss,
    AddPartitions,
    CancelReassignment,
    ChangeAcls,
    Configure,
    CreateTopic,
    DeleteTopic,
    ElectLeaders,
    PlannedFrom,
    Reassign,
    RemovePartitions,
    Request,
    SetQuota,
    WidenTopic,
)
from spark_replication.model import ABSENT, BrokerId, Epoch, TopicPartition, TopicState, encode

# Reassignments of one topic that begin in one multi(): its assignment and so many leaderAndISRs.
BEGUN_TOGETHER_MAX = 200
# The size of a topic's znode while its partitions move: with what the multi() stores beside it, ZooKeeper must take it.
ASSIGNMENT_BYTES_MAX = 512 << 10

_OF_SETTINGS = (Configure, ChangeAcls, SetQuota)


def plan_request(cluster: ClusterState, asked: Request) -> Decision:
    try:
        return _planned(cluster, asked)
    except ReplicationError as refusal:
        return Decision(reply=Reply(refusal))


def unreadable_of(cluster: ClusterState, asked: Request) -> CorruptState | None:
    """The error of a request about something that cannot be read; None if all of it can."""
    if cluster.unreadable.settings and isinstance(asked, (CreateTopic, AddPartitions, *_OF_SETTINGS)):
        return CorruptState(
            "what is set for the cluster cannot be read: see the cluster's problems, and repair or remove that node"
        )
    match asked:
        case DeleteTopic(topic=topic):
            return unreadable_topic(topic) if cluster.unreadable.hides_of(topic) else None
        case Reassign(targets=targets):
            return _hidden(cluster, (_topic_named(name) for name in targets), moving(asked))
        case AddPartitions(counts=counts, assignments=assignments):
            return _hidden(cluster, (*counts, *assignments), ())
        case RemovePartitions(partitions=leaving):
            named = [TopicPartition(topic, number) for topic, numbers in leaving.items() for number in numbers]
            return _hidden(cluster, leaving, named)
        case _:
            return None


def _hidden(cluster: ClusterState, topics: Iterable[str], partitions: Iterable[TopicPartition]) -> CorruptState | None:
    for topic in topics:
        if topic in cluster.unreadable.topics:
            return unreadable_topic(topic)
    for partition in sorted(partitions):
        if cluster.unreadable.hides(partition):
            return unreadable_partition(partition)
    return None


def _topic_named(name: str) -> str:
    return name.rpartition("-")[0]


def unreadable_partition(partition: TopicPartition) -> CorruptState:
    return CorruptState(
        f"the state of {partition} is in ZooKeeper and cannot be read, so nothing is decided about it: see the "
        "cluster's problems, and write that node as it was"
    )


def _planned(cluster: ClusterState, asked: Request) -> Decision:
    if isinstance(asked, (CreateTopic, DeleteTopic, *_OF_SETTINGS)) and (hidden := unreadable_of(cluster, asked)):
        raise hidden
    match asked:
        case CreateTopic() | DeleteTopic() | WidenTopic():
            return _of_topic(cluster, asked)
        case AddPartitions():
            names = [*asked.counts, *(name for name in asked.assignments if name not in asked.counts)]
            return _each(names, lambda name: _add(cluster, name, asked))
        case RemovePartitions():
            return _each(asked.partitions, lambda name: _remove(cluster, name, asked.partitions[name]))
        case Reassign():
            return _reassign(cluster, asked)
        case CancelReassignment():
            return _cancel(cluster, asked)
        case ElectLeaders():
            return _elect(cluster, asked)
        case AcknowledgeLoss():
            return _acknowledge(cluster, asked)
        case Configure() | ChangeAcls() | SetQuota():
            return _configured(cluster, asked)
        case _:
            assert_never(asked)


def _configured(cluster: ClusterState, asked: Configure | ChangeAcls | SetQuota) -> Decision:
    match asked:
        case Configure(topic=topic):
            return configure_cluster(cluster, asked) if topic is None else configure_topic(cluster, topic, asked)
        case ChangeAcls():
            return change_acls(cluster, asked)
        case SetQuota():
            return set_quota(cluster, asked)
        case _:
            assert_never(asked)


def narrowed(asked: Request, names: Collection[str]) -> Request:
    """The same request, for these partitions or topics alone. A request of a single write stays as it is."""
    match asked:
        case AddPartitions(counts=counts, assignments=assignments):
            return AddPartitions(counts=_only(counts, names), assignments=_only(assignments, names))
        case RemovePartitions(partitions=partitions):
            return RemovePartitions(partitions=_only(partitions, names))
        case Reassign(targets=targets, planned_from=planned_from):
            return Reassign(targets=_only(targets, names), planned_from=_only(planned_from, names))
        case CancelReassignment(partitions=partitions):
            return CancelReassignment(partitions=tuple(name for name in partitions if name in names))
        case ElectLeaders(partitions=partitions):
            return asked if partitions is None else replace(asked, partitions=tuple(names))
        case AcknowledgeLoss(known=known):
            return AcknowledgeLoss(known=_only(known, names))
        case CreateTopic() | DeleteTopic() | Configure() | WidenTopic() | ChangeAcls() | SetQuota():
            return asked
        case _:
            assert_never(asked)


Of = TypeVar("Of")


def _only(of: Mapping[str, Of], names: Collection[str]) -> dict[str, Of]:
    return {name: found for name, found in of.items() if name in names}


def moving(asked: Reassign) -> frozenset[TopicPartition]:
    """The partitions that the request names, without names that can be no partition's."""
    found = set()
    for name in asked.targets:
        with suppress(ValueError):
            found.add(TopicPartition.parse(name))
    return frozenset(found)


def _each(names: Iterable[str], plan_one: Callable[[str], Decision]) -> Decision:
    """One decision for all names that are allowed, with the errors of the others."""
    steps: list[Step] = []
    then: list[Cause] = []
    recoveries: dict[TopicPartition, UncleanRecovery | None] = {}
    seals: dict[TopicPartition, Epoch] = {}
    errors: dict[str, ReplicationError] = {}
    for name in dict.fromkeys(names):
        try:
            one = plan_one(name)
        except ReplicationError as refusal:
            errors[name] = refusal
        else:
            steps.extend(replace(step, names=(name,)) for step in one.steps)
            then.extend(one.then)
            recoveries.update(one.recoveries)
            seals.update(one.seals)
            errors.update(one.reply.errors)
    return Decision(
        steps=tuple(steps), then=tuple(then), recoveries=recoveries, seals=seals, reply=Reply(errors=errors)
    )


def partition_named(cluster: ClusterState, name: str) -> TopicPartition:
    try:
        partition = TopicPartition.parse(name)
    except ValueError as error:
        raise UnknownTopicOrPartition(str(error)) from error
    if cluster.unreadable.hides(partition):
        raise unreadable_partition(partition)
    if not cluster.assigned(partition) or partition.topic in cluster.deleting:
        raise UnknownTopicOrPartition(f"there is no partition {name}: check its name")
    return partition


def _stored(cluster: ClusterState, partition: TopicPartition) -> StoredPartition:
    stored = cluster.partitions.get(partition)
    if stored is None:
        raise UnknownTopicOrPartition(f"{partition} is being made, none of its replicas has been alive yet: retry")
    return stored


# Topics


def _of_topic(cluster: ClusterState, asked: CreateTopic | DeleteTopic | WidenTopic) -> Decision:
    match asked:
        case CreateTopic():
            return _create(cluster, asked)
        case DeleteTopic(topic=topic):
            return _delete(cluster, topic)
        case WidenTopic():
            return _widen(cluster, asked)
        case _:
            assert_never(asked)


def _create(cluster: ClusterState, creation: CreateTopic) -> Decision:
    if is_restored_already(creation, cluster):
        return Decision(then=(Elect(creation.name),))
    assignment = assignment_for(creation, cluster)
    # Ordered, so that a broker can tell which of two topics of one name is the newer (E4).
    topic_id = f"{cluster.controller_epoch:08x}-{cluster.topics_made:08x}"
    write = TopicWrite(
        topic=creation.name,
        state=TopicState(topic_id=topic_id, partitions=assignment, restores=origin_of(creation)),
        config=config_of(creation),
        version=ABSENT,
    )
    return Decision(steps=(Step((write,)),), then=(Elect(creation.name),))


def _delete(cluster: ClusterState, topic: str) -> Decision:
    """Mark the topic first: whoever is controller later goes on with its deletion."""
    existing(topic, cluster)
    return Decision(
        steps=(Step((DeletionMark(topic=topic),)),), then=(DeletePartitions(topic), DeletePartitions(topic, last=True))
    )


def _widen(cluster: ClusterState, asked: WidenTopic) -> Decision:
    existing(asked.topic, cluster)
    config = cluster.topics[asked.topic].config
    after = widened(asked.topic, config, asked.schema, cluster.compare_schemas)
    check_fits(asked.topic, after.schema, cluster.settings_of(asked.topic), cluster.fits_table)
    return (
        Decision(steps=(Step((TopicConfigWrite(topic=asked.topic, config=after),)),)) if after != config else Decision()
    )


def _add(cluster: ClusterState, topic: str, asked: AddPartitions) -> Decision:
    if topic in asked.counts and topic in asked.assignments:
        raise InvalidRequest(f"{topic}: give a number of partitions, or their replicas: not both")
    if cluster.unreadable.settings and (hidden := unreadable_of(cluster, asked)):
        raise hidden
    replicas = added(topic, asked.counts.get(topic), asked.assignments.get(topic), cluster)
    known = cluster.topics[topic]
    state = replace(known.state, partitions={**known.state.partitions, **replicas})
    writes: list[PartitionWrite] = []
    waits: Decision | None = None
    for number, assigned in replicas.items():
        partition = TopicPartition(topic, number)
        if cluster.unreadable.hides(partition):
            raise unreadable_partition(partition)
        tombstone = cluster.partitions.get(partition)
        epoch = unsealed_epoch(cluster, partition, tombstone)
        if epoch is not None and tombstone is not None:
            waits = unsealed(cluster, partition, epoch, topic, waits)
        elif tombstone is not None and waits is None:
            # In the same multi(): else the partition would be assigned with the state of the removed one, and served.
            write = creating_write(cluster, partition, assigned, tombstone)
            if write is None:
                raise InvalidReplicaAssignment(f"no broker of {partition} can keep it: {list(assigned)}")
            writes.append(write)
    if waits is not None:
        return waits
    step = Step((TopicWrite(topic=topic, state=state, version=known.version), *writes))
    return Decision(steps=(step,), then=(Elect(topic),))


def _remove(cluster: ClusterState, topic: str, partitions: tuple[int, ...]) -> Decision:
    check_removed(topic, partitions, cluster)
    for number in partitions:
        if cluster.unreadable.hides(TopicPartition(topic, number)):
            raise unreadable_partition(TopicPartition(topic, number))
    known = cluster.topics[topic]
    leaving = set(partitions)

    def kept(of: dict[int, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
        return {number: replicas for number, replicas in of.items() if number not in leaving}

    state = replace(
        known.state,
        partitions=kept(known.state.partitions),
        adding=kept(known.state.adding),
        removing=kept(known.state.removing),
        origin=kept(known.state.origin),
    )
    stops = [
        stop
        for partition in (TopicPartition(topic, number) for number in sorted(leaving))
        for stop in stops_of(cluster, partition, cluster.replicas(partition), cluster.leader_epoch(partition))
    ]
    over = _requests_over(cluster, {str(TopicPartition(topic, number)) for number in leaving})
    step = Step((TopicWrite(topic=topic, state=state, version=known.version), *over), tuple(stops))
    return Decision(steps=(step,), then=(Advance(()),))


# Reassignments


def _reassign(cluster: ClusterState, asked: Reassign) -> Decision:
    """Begin reassignments. Those of one topic share its assignment, and so one multi()."""
    errors: dict[str, ReplicationError] = {}
    wanted: dict[str, dict[TopicPartition, tuple[int, ...]]] = {}
    for name, target in asked.targets.items():
        try:
            partition = partition_named(cluster, name)
            _stored(cluster, partition)
            check_replicas(name, target, cluster)
            if name in asked.planned_from:
                _check_planned(cluster, partition, target, asked.planned_from[name])
            wanted.setdefault(partition.topic, {})[partition] = target
        except ReplicationError as refusal:
            errors[name] = refusal
    steps = [step for topic, targets in wanted.items() for step in _grow(cluster, topic, targets, errors)]
    moving = tuple(partition for targets in wanted.values() for partition in targets)
    # A leaderless partition may find a leader among the replicas that are being added.
    then: tuple[Cause, ...] = (*(Elect(topic) for topic in wanted), Advance(moving))
    return Decision(steps=tuple(steps), then=then, reply=Reply(errors=errors))


def _check_planned(
    cluster: ClusterState, partition: TopicPartition, target: tuple[int, ...], planned_from: PlannedFrom
) -> None:
    """Raise StalePlan if the partition is not as it was planned from. One that has this target already is as planned:
    an attempt whose answer was lost may have begun it."""
    topic = cluster.topics[partition.topic].state
    if topic.topic_id != planned_from.topic_id:
        raise StalePlan(f"topic {partition.topic} was made again since this was planned: plan again")
    present = cluster.replicas(partition)
    if present != planned_from.replicas and reassignment.target(topic, partition.partition) != target:
        raise StalePlan(
            f"{partition} was on {list(planned_from.replicas)} when this was planned, and is on {list(present)} now: "
            "plan again"
        )


def _grow(
    cluster: ClusterState,
    topic: str,
    targets: Mapping[TopicPartition, tuple[int, ...]],
    errors: dict[str, ReplicationError],
) -> Iterable[Step]:
    """The steps that begin these reassignments. While they run, the topic's assignment has the target and the origin of
    each: no more begin than its znode has room for."""
    known = cluster.topics[topic]
    state, version = known.state, known.version
    ordered = sorted(targets)
    for start in range(0, len(ordered), BEGUN_TOGETHER_MAX):
        together = ordered[start : start + BEGUN_TOGETHER_MAX]
        after = reassignment.grown(state, {partition.partition: targets[partition] for partition in together})
        if after == state:
            continue
        if len(encode(after)) > max(ASSIGNMENT_BYTES_MAX, len(encode(state))):
            full = Overloaded(
                f"as many partitions of {topic} are being reassigned as its assignment has room for: ask again for "
                "these when others have ended"
            )
            errors.update((str(partition), full) for partition in together)
            continue
        writes = [
            _written_again(cluster, partition, after.partitions[partition.partition])
            for partition in together
            if reassignment.differs(state, after, partition.partition)
        ]
        names = tuple(str(partition) for partition in together)
        yield Step((TopicWrite(topic=topic, state=after, version=version), *writes), names=names)
        state, version = after, version + 1


def _written_again(cluster: ClusterState, partition: TopicPartition, replicas: Sequence[BrokerId]) -> PartitionWrite:
    """Most states do not change as replicas are added. They are written again, since brokers order commands by their
    version (E2)."""
    stored = cluster.partitions[partition]
    return write_of(cluster, partition, stored, with_replicas(stored.state, cluster.replicas(partition), replicas))


def _cancel(cluster: ClusterState, asked: CancelReassignment) -> Decision:
    errors: dict[str, ReplicationError] = {}
    backwards: dict[str, dict[TopicPartition, reassignment.CompleteMove]] = {}
    for name in asked.partitions:
        try:
            partition = partition_named(cluster, name)
            if partition not in cluster.reassigning:
                raise NoReassignmentInProgress(f"{name} is not being reassigned: there is nothing to cancel")
            topic, brokers = cluster.topics[partition.topic].state, cluster.brokers_of(partition)
            stored = _stored(cluster, partition)
            found = reassignment.cancelled(topic, partition.partition, stored.state, brokers, name)
            backwards.setdefault(partition.topic, {})[partition] = found
        except ReplicationError as refusal:
            errors[name] = refusal
    steps = [
        replace(step, writes=(*step.writes, *_requests_over(cluster, step.names)))
        for topic, found in backwards.items()
        for step in complete_together(cluster, topic, found)
    ]
    return Decision(steps=tuple(steps), then=(Advance(()),), reply=Reply(errors=errors))


def _requests_over(cluster: ClusterState, ended: Collection[str]) -> list[RequestRemoval]:
    """Remove the requests below /admin for what is cancelled or goes: left behind, they would begin it again."""
    return [
        RequestRemoval(path=path)
        for path, moved in sorted(cluster.open_requests.items())
        if all(str(partition) in ended for partition in moved)
    ]


def _elect(cluster: ClusterState, asked: ElectLeaders) -> Decision:
    """Elect by hand. A request without a list means all partitions for which this kind can do something."""
    if asked.partitions is None:
        names = [str(partition) for partition in candidates(cluster, asked)]
    else:
        check_topics(asked.partitions)
        names = list(asked.partitions)

    def elect_one(name: str) -> Decision:
        partition = partition_named(cluster, name)
        return elect_by_hand(cluster, partition, _stored(cluster, partition), asked)

    return _each(names, elect_one)


def _acknowledge(cluster: ClusterState, asked: AcknowledgeLoss) -> Decision:
    check_topics(asked.known)

    def acknowledge_one(name: str) -> Decision:
        partition = partition_named(cluster, name)
        stored = _stored(cluster, partition)
        loss = stored.state.loss
        if loss is UNSET:
            raise LossNotAcknowledged(f"{name} shows no possible loss: nothing was lost, or it is acknowledged already")
        if loss.last_epoch > asked.known[name]:
            raise LossNotAcknowledged(
                f"{name} may have lost more by an election at leader epoch {loss.last_epoch}, since this was looked "
                "at: look again, and acknowledge that"
            )
        return Decision(steps=(Step((write_of(cluster, partition, stored, acknowledged(stored.state)),)),))

    return _each(asked.known, acknowledge_one)
