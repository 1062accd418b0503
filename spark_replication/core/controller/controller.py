"""What a controller does about an event: which writes, and, once they are stored, which commands.

`decide` returns a Decision. The engine stores its steps, and applies what ZooKeeper accepted. Then `announce` (in
announcing) returns the commands (C2: persist, then tell). Both read ClusterState and change nothing. The operations of
the sources:

| cause                  | operation               | writes                             | then                        |
| ---------------------- | ----------------------- | ---------------------------------- | --------------------------- |
| TookOver               | onControllerFailover    | led ones with dead or void members | INIT; Elect, Resume (C3)    |
| BrokersMoved, lost     | onBrokerFailure         | its partitions: ISR, elections     | Recover                     |
| BrokersMoved, started  | onBrokerStartup         | its leaderless or void partitions  | Recover, Advance            |
| BrokersMoved, stopping | shutdownBroker          | its leaderships and memberships    | followers are stopped       |
| PartitionsChanged      |                         | those with a dead, failed or void  | Recover, Advance            |
| BrokerDeathReported    |                         | /brokers/ids/[id] of that life     | the watch reports it        |
| LogsAhead              |                         | an epoch above those logs (Z2)     | Recover                     |
| LogInfoRead            |                         |                                    | Recover                     |
| TableAnswered          |                         | who waited for it; a later epoch   | Recover (TB5)               |
| Ticked                 | onPreferredReplicaEl.   |                                    | Recover, Elect; preferred   |
| Requested              | onNewTopicCreation, …   | as requests says                   | as requests says            |
| Elect                  | onNewPartitionCreation  | new partitions, leaderless ones    | Recover, Advance            |
| Reconsider             |                         | what the changed settings call for | Recover, Advance            |
| Recover                | unclean recovery (L4)   | who is chosen by the logs          | logs are asked for; Advance |
| Advance                | onPartitionReassignment | a leader in the target; completion | Advance, until it waits     |
| Resume                 |                         |                                    | deletions, reassignments, … |
| Delete                 | topic deletion          | partitions go, last the topic      | metadata                    |
| Dismiss                |                         | the request below /admin goes      |                             |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from msgspec.structs import replace

from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.events import (
    BrokerDeathReported,
    LogInfoRead,
    LogsAhead,
    Requested,
    TableAnswered,
    Ticked,
    TookOver,
)
from spark_replication.core.controller.plan import (
    Advance,
    BrokersMoved,
    Cause,
    Decision,
    DeletePartitions,
    Dismiss,
    Elect,
    FollowUp,
    PartitionsChanged,
    Reconsider,
    Recover,
    Reply,
    Resume,
    Step,
    Stop,
)
from spark_replication.core.controller.requests import plan_request, unreadable_of
from spark_replication.core.controller.settling import (
    SEAL_RETRY_MS,
    advance,
    goes_on,
    is_settled_here,
    recover,
    settle,
    stops_of,
    write_of,
)
from spark_replication.core.law import unclean_recovery
from spark_replication.core.law.partition_change import UNREPORTED_MAX, overtaken
from spark_replication.core.law.unclean_recovery import UncleanRecovery
from spark_replication.core.law.writes import (
    BrokerRemoval,
    PartitionRemoval,
    PartitionWrite,
    RequestRemoval,
    TopicRemoval,
)
from spark_replication.core.tables.sealing import is_due
from spark_replication.messages.requests import AddPartitions, DeleteTopic, ElectLeaders, Reassign, RemovePartitions
from spark_replication.model import BrokerId, ReplicaOf, TopicPartition

TOGETHER_MAX = 1_000  # partitions that change in one commit: more are several multi()s anyhow
# The order in which a new controller takes up the requests below /admin (C3).
_ORDER = (DeleteTopic, Reassign, AddPartitions, RemovePartitions, ElectLeaders)


def decide(cluster: ClusterState, cause: Cause) -> Decision:
    match cause:
        case TookOver():
            led = (p for p in cluster.all_partitions() if p not in cluster.leaderless)
            return Decision(steps=_alone(settle(cluster, led)), then=(Elect(), Resume()))
        case BrokersMoved():
            return _brokers_moved(cluster, cause)
        case PartitionsChanged(partitions=partitions):
            return _reconsidered(cluster, partitions)
        case Requested():
            return _requested(cluster, cause)
        case BrokerDeathReported() | TableAnswered():
            return _died(cluster, cause) if isinstance(cause, BrokerDeathReported) else _table_answered(cluster, cause)
        case LogsAhead() | LogInfoRead():
            return _logs_ahead(cluster, cause) if isinstance(cause, LogsAhead) else _log_info(cluster, cause)
        case Ticked(since_ms=since_ms):
            return _ticked(cluster, since_ms)
        case _:
            return _follow_up(cluster, cause)


def _follow_up(cluster: ClusterState, cause: FollowUp) -> Decision:
    match cause:
        case Elect(topic=topic):
            leaderless = tuple(sorted(p for p in cluster.leaderless if topic is None or p.topic == topic))
            return Decision(steps=_alone(settle(cluster, leaderless)), then=_then(cluster, leaderless))
        case Reconsider(topics=topics):
            return _reconsidered(cluster, (p for name in topics for p in cluster.all_partitions(name)))
        case Recover(partitions=partitions):
            return recover(cluster, partitions)
        case Advance(partitions=partitions):
            return _advanced(cluster, partitions)
        case Resume():
            return Decision(then=_resumed(cluster))
        case DeletePartitions(topic=topic, last=last):
            return _deleted(cluster, topic, last=last)
        case Dismiss(path=path):
            return Decision(steps=(Step((RequestRemoval(path=path),)),))
        case _:
            assert_never(cause)


def _requested(cluster: ClusterState, cause: Requested) -> Decision:
    hidden = None if cause.path is None else unreadable_of(cluster, cause.asked)
    if hidden is not None:
        return Decision(reply=Reply(hidden))  # a request about what cannot be read waits below /admin until it can be
    planned = plan_request(cluster, cause.asked)
    if cause.path is None or isinstance(cause.asked, Reassign) or planned.reply.waits:
        # A reassignment's request stays until that is complete: Advance finds out. What waits is requested again.
        return planned
    return replace(planned, then=(*planned.then, Dismiss(cause.path)))


def _died(cluster: ClusterState, cause: BrokerDeathReported) -> Decision:
    registered = cluster.registered.get(cause.broker)
    if registered is None or registered.incarnation != cause.incarnation:
        return Decision()  # that life is known to have ended, or another has begun
    return Decision(steps=(Step((BrokerRemoval(broker=cause.broker, epoch=registered.epoch),)),))


def _alone(writes: Iterable[PartitionWrite]) -> tuple[Step, ...]:
    return tuple(Step((write,)) for write in writes)


def _reconsidered(cluster: ClusterState, partitions: Iterable[TopicPartition]) -> Decision:
    """Settle these partitions, and then go on with those that wait for more than that."""
    named = tuple(partitions)
    return Decision(steps=_alone(settle(cluster, named)), then=_then(cluster, named))


def _then(cluster: ClusterState, partitions: tuple[TopicPartition, ...]) -> tuple[Cause, ...]:
    return (Recover(partitions), *goes_on(cluster, partitions))


def _brokers_moved(cluster: ClusterState, cause: BrokersMoved) -> Decision:
    """Settle the partitions of these brokers. If there are many, those that a lost broker led get a leader first, which
    is stored and announced before anything else: nobody can use them until then."""
    touched = tuple(cluster.hosted_by(cause.lost | cause.started | cause.stopping))
    led = _led_by(cluster, cause.lost, touched)
    if led and len(touched) > max(len(led), TOGETHER_MAX) and not cause.stopping:
        others = tuple(partition for partition in touched if partition not in led)
        first = tuple(led)
        return Decision(steps=_alone(settle(cluster, first)), then=(*_then(cluster, first), PartitionsChanged(others)))
    writes = settle(cluster, touched)
    # On a broker that shuts down, a replica that only follows is stopped. What the broker led, it hears of as ever.
    stops = {p: _stopped(cluster, p, cause.stopping) for p in touched} if cause.stopping else {}
    steps = tuple(Step((write,), stops.pop(write.partition, ())) for write in writes)
    unwritten = tuple(stop for stopped in stops.values() for stop in stopped)
    return Decision(steps=steps, stops=unwritten, then=_then(cluster, touched))


def _led_by(
    cluster: ClusterState, brokers: frozenset[BrokerId], partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, None]:
    known = ((partition, cluster.partitions.get(partition)) for partition in partitions)
    return {partition: None for partition, found in known if found is not None and found.state.leader in brokers}


def _stopped(cluster: ClusterState, partition: TopicPartition, stopping: frozenset[BrokerId]) -> tuple[Stop, ...]:
    stored = cluster.partitions.get(partition)
    if stored is None or not is_settled_here(cluster, partition):
        return ()
    following = stopping.intersection(cluster.replicas(partition)) - {stored.state.leader}
    return tuple(stops_of(cluster, partition, following, stored.state.leader_epoch, delete=False))


def _advanced(cluster: ClusterState, partitions: tuple[TopicPartition, ...]) -> Decision:
    steps = advance(cluster, partitions)
    if steps:
        return Decision(steps=steps, then=(Advance(partitions),))
    done = (path for path, moving in sorted(cluster.open_requests.items()) if not moving & cluster.reassigning)
    return Decision(then=tuple(Dismiss(path) for path in done))


def _resumed(cluster: ClusterState) -> tuple[Cause, ...]:
    """What a new controller takes up: deletions, reassignments, additions and removals, preferred elections, in this
    order (C3)."""
    deletions = [
        cause
        for topic in sorted(cluster.deleting)
        for cause in (DeletePartitions(topic), DeletePartitions(topic, last=True))
    ]
    requests = sorted(cluster.requests, key=lambda found: _ORDER.index(type(found.asked)))
    first = [found for found in requests if isinstance(found.asked, DeleteTopic)]
    return (*deletions, *first, Advance(tuple(sorted(cluster.reassigning))), *requests[len(first) :])


def _deleted(cluster: ClusterState, topic: str, *, last: bool) -> Decision:
    """Delete a topic that is marked: first its partitions, or those that a crash left, and with `last` the topic. What
    below /admin asked for its reassignment is over then."""
    known = cluster.topics.get(topic)
    if known is None or topic not in cluster.deleting or cluster.unreadable.hides_of(topic):
        return Decision()
    if last:
        removal = Step((TopicRemoval(topic=topic, topic_id=known.state.topic_id),))
        return Decision(steps=(removal,), then=(Advance(()),))
    stops = tuple(
        stop
        for partition in cluster.all_partitions(topic)
        for stop in stops_of(cluster, partition, cluster.replicas(partition), cluster.leader_epoch(partition))
    )
    left = sorted(partition for partition in cluster.partitions if partition.topic == topic)
    return Decision(steps=tuple(Step((PartitionRemoval(partition=partition),)) for partition in left), stops=stops)


def _logs_ahead(cluster: ClusterState, cause: LogsAhead) -> Decision:
    """Begin an epoch above the logs. Who was in sync at the time that ZooKeeper is as of may lack what was acknowledged
    since, so logs decide who leads, unless a leader was chosen in spite of that before (Z2)."""
    writes: list[PartitionWrite] = []
    for replica, last_epoch in cause.last_epochs.items():
        stored = cluster.partitions.get(replica.partition)
        if stored is None or not cluster.has(replica) or not is_settled_here(cluster, replica.partition):
            continue
        if stored.state.leader_epoch <= last_epoch:
            after = overtaken(cluster.replicas(replica.partition), stored.state, last_epoch, cause.broker)
            writes.append(write_of(cluster, replica.partition, stored, after))
    written = tuple(write.partition for write in writes)
    return Decision(steps=_alone(writes), then=_then(cluster, written) if written else ())


def _log_info(cluster: ClusterState, cause: LogInfoRead) -> Decision:
    recoveries: dict[TopicPartition, UncleanRecovery | None] = {}
    ahead: dict[ReplicaOf, int] = {}
    for info in cause.answer.partitions:
        partition = info.topic_partition
        known = cluster.recoveries.get(partition)
        if known is None or info.topic_id != cluster.topics[partition.topic].state.topic_id:
            continue  # nobody waits for it
        if info.current_epoch > known.leader_epoch >= UNREPORTED_MAX:
            # It obeys an epoch from before leaderAndISR was removed, above those of this controller: it would take no
            # command of this one.
            ahead[ReplicaOf(partition, info.topic_id)] = info.current_epoch
            continue
        brokers = cluster.brokers_of(partition)
        recoveries[partition] = unclean_recovery.answered(known, cause.broker, cause.answer.broker_epoch, info, brokers)
    raised = _logs_ahead(cluster, LogsAhead(cause.broker, cause.answer.broker_epoch, ahead))
    recovers = (Recover(tuple(recoveries)),) if recoveries else ()
    return Decision(recoveries=recoveries, steps=raised.steps, then=(*recovers, *raised.then))


def _table_answered(cluster: ClusterState, cause: TableAnswered) -> Decision:
    """Elect who has waited for the table. One that names a later epoch shows that ZooKeeper is as of an earlier time
    (Z2): the partition goes on above that."""
    waited = tuple(TopicPartition(cause.topic, number) for number in sorted(cause.told))
    raised: list[PartitionWrite] = []
    for partition in waited:
        stored, ahead = cluster.partitions.get(partition), cluster.sealing_of(partition).ahead
        is_led = stored is not None and stored.state.leader is not None and cluster.assigned(partition)
        if stored is not None and not is_led and ahead is not None:
            after = replace(stored.state, leader_epoch=max(stored.state.leader_epoch, ahead))
            raised.append(write_of(cluster, partition, stored, after))
    writes = {write.partition: write for write in (*settle(cluster, waited), *raised)}
    here = tuple(partition for partition in waited if is_settled_here(cluster, partition))
    return Decision(steps=_alone(writes.values()), then=_then(cluster, here))


def _ticked(cluster: ClusterState, since_ms: int) -> Decision:
    timeout_ms = cluster.settings.unclean_recovery_timeout_ms
    due = tuple(
        partition
        for partition, known in sorted(cluster.recoveries.items())
        if unclean_recovery.is_over(known, cluster.now_ms, timeout_ms)
    )
    unsealed = tuple(
        partition
        for partition, seal in sorted(cluster.seals.items())
        if is_due(seal, seal.epoch, cluster.now_ms, SEAL_RETRY_MS) and partition in cluster.leaderless
    )
    then: tuple[Cause, ...] = (Recover((*due, *unsealed)),) if due or unsealed else ()
    if cluster.to_be_tried_again(since_ms):
        then = (*then, Elect())
    interval_ms = cluster.settings.leader_imbalance_check_interval_ms
    if interval_ms and cluster.now_ms // interval_ms > since_ms // interval_ms:
        then = (*then, Requested(asked=ElectLeaders(kind="preferred")))
    return Decision(then=then)
