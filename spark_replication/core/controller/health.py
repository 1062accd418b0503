"""The health of a cluster: its metrics, and the problems that keep it from being healthy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, get_args

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.settling import waiting
from spark_replication.core.law.election import Reason
from spark_replication.core.law.partition_change import acknowledged
from spark_replication.messages.commands import BrokerNotes, PartitionCommand
from spark_replication.messages.descriptions import Awaited, Metadata, TopicMetadata
from spark_replication.messages.mending import DiskDamage
from spark_replication.model import BrokerId, How, PossibleLoss


class ClusterMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a cluster in numbers, with the names and meanings of KIP-966 where it has one.

    Counters, from unclean_recoveries_finished on, begin at the take-over of this controller.
    """

    partitions: int
    #: Partitions without a leader.
    offline_partitions: int
    #: Partitions with a replica outside the ISR.
    under_replicated_partitions: int
    #: Partitions whose ISR is too small for acks=all.
    under_min_isr_partitions: int
    #: Members of ISR and ELR, over all partitions.
    electable_leaders: int
    reassigning_partitions: int
    #: Leaderless partitions, by what each waits for (L4). A partition that is about to be led waits for nothing.
    waiting: dict[Reason, int]
    #: Partitions whose leader is being chosen by the logs; with `balanced` also those that wait for the replicas that
    #: may have the longest log.
    unclean_recovery_partitions: int
    manual_leader_election_required_partitions: int
    #: Partitions whose possible loss no person has acknowledged yet (D2).
    possible_loss_partitions: int
    #: Replicas that their broker's disk refuses.
    failed_replicas: int
    #: Replicas of which their broker's disk has damaged batches.
    damaged_replicas: int
    unclean_recoveries_finished: int
    unclean_elections: int
    elections: dict[How, int]
    isr_shrinks: int
    isr_expands: int


def metrics(cluster: ClusterState) -> ClusterMetrics:
    """Cost: one look at every partition, one `elect` for each that has no leader."""
    partitions = offline = under_replicated = under_min_isr = electable = lossy = 0
    for partition, stored in cluster.partitions.items():
        topic = cluster.topics.get(partition.topic)
        replicas = None if topic is None else topic.state.partitions.get(partition.partition)
        if replicas is None:
            continue  # a tombstone
        state = stored.state
        in_sync = len(state.isr)
        partitions += 1
        offline += state.leader is None
        under_replicated += in_sync < len(replicas)
        under_min_isr += in_sync < state.min_isr
        electable += in_sync + len(state.elr)
        lossy += state.loss is not UNSET
    found = (waiting(cluster, partition) for partition in cluster.leaderless)
    waits = Counter(each.reason for each in found if each is not None)
    return ClusterMetrics(
        partitions=partitions,
        offline_partitions=offline,
        under_replicated_partitions=under_replicated,
        under_min_isr_partitions=under_min_isr,
        electable_leaders=electable,
        reassigning_partitions=len(cluster.reassigning),
        waiting={reason: waits[reason] for reason in get_args(Reason)},
        unclean_recovery_partitions=_recovering(waits, enabled=cluster.settings.unclean_recovery_enabled),
        manual_leader_election_required_partitions=waits["manual"],
        possible_loss_partitions=lossy,
        failed_replicas=cluster.failed_replicas,
        damaged_replicas=cluster.damaged_replicas,
        unclean_recoveries_finished=cluster.elections["unclean_recovery"],
        unclean_elections=cluster.unclean_elections,
        elections={how: cluster.elections[how] for how in get_args(How)},
        isr_shrinks=cluster.isr_shrinks,
        isr_expands=cluster.isr_expands,
    )


def _recovering(waits: Mapping[Reason, int], *, enabled: bool) -> int:
    """The partitions in recovery. With `balanced`, those that wait for the replicas that may have the longest log
    count, too (KIP-966)."""
    return waits["log_info"] + (waits["last_known_elr"] + waits["last_known_leader"] if enabled else 0)


#: Beyond so many partitions with possible loss, health tells of all of them in one reason.
LOSSES_TOLD_MAX = 10
#: Of the logs that a broker has put aside.
PUT_ASIDE_NAMED = 10

Severity = Literal["critical", "warning"]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps a cluster from being healthy. As text it is a sentence that says what happened, and what ends it."""

    #: `critical` if something cannot be written, read or changed at present.
    severity: Severity
    #: What it is about: a partition or broker by its name, or a part of the cluster.
    subject: str
    #: The rest of the sentence after `subject`: the same for all subjects that suffer from the same.
    what: str
    #: The partition (in its present state) or broker (which is gone) whose events explain the problem. None if no
    #: events do.
    about: PartitionCommand | BrokerId | None = None
    #: A command, or what to do. With `mends_by_name` the command takes partitions: their names follow it.
    mend: str = ""
    mends_by_name: bool = False

    def mend_of(self, subjects: Sequence[str]) -> str:
        """What to do for these subjects, which suffer from the same."""
        return " ".join([self.mend, *subjects]) if self.mends_by_name else self.mend

    def __str__(self) -> str:
        return f"{self.subject} {self.what}"


def problems(metadata: Metadata, wanted: frozenset[BrokerId]) -> list[Problem]:
    """What keeps a cluster from being healthy, and why, the worst first. Empty if every broker lives, and every replica
    is in sync."""
    found: list[Problem] = []
    if metadata.zookeeper_silent_ms:
        found.append(
            Problem(
                severity="critical",
                subject="the controller",
                what=f"has had no connection to ZooKeeper for {metadata.zookeeper_silent_ms / 1000:.0f} s: until it "
                "has one, no leader is elected and no topic changed. See that ZooKeeper runs",
                mend="spark-replication zookeeper status",
            )
        )
    found.extend(
        Problem(
            severity="critical",
            subject=unreadable,
            what="is left as it is",
            mend="write that node as it was, with any client of ZooKeeper: `mirror show` tells what the tables know",
        )
        for unreadable in metadata.unreadable
    )
    found.extend(
        Problem(
            severity="warning",
            subject=f"broker {broker}",
            what="is not registered",
            about=broker,
            mend="its guardian starts it again; where it does not, the log of the broker says why (log.dir)",
        )
        for broker in sorted(wanted - metadata.brokers.keys())
    )
    live = metadata.brokers.keys()
    for topic in metadata.topics:
        for partition in topic.partitions:
            if partition.state.leader is None:
                found.append(_leaderless(partition, topic.waiting.get(partition.partition), live))
    led = [each for topic in metadata.topics for each in topic.partitions if each.state.leader is not None]
    lacking = [each for each in led if len(each.state.isr) < len(each.replicas)]
    found.extend(_under_min_isr(each, live) for each in lacking if len(each.state.isr) < each.state.min_isr)
    found.extend(_under_replicated(each, live) for each in lacking if len(each.state.isr) >= each.state.min_isr)
    found.extend(_possible_losses(metadata))
    found.extend(problem for topic in metadata.topics for problem in _of_disks(topic))
    found.extend(problem for broker, notes in metadata.notes.items() for problem in _noted(broker, notes))
    if metadata.mirror_error:
        found.append(
            Problem(
                severity="warning",
                subject="the mirror's tables",
                what=f"lag behind: {metadata.mirror_error}",
                mend="spark-replication mirror status",
            )
        )
    return found


def without_what_it_outlives(metadata: Metadata) -> Metadata:
    """The metadata without the troubles in spite of which a cluster starts and serves."""
    topics = tuple(replace(topic, refused={}, damaged={}) for topic in metadata.topics)
    return without_what_waits_for_people(replace(metadata, unreadable=(), mirror_error="", topics=topics))


def without_what_waits_for_people(metadata: Metadata) -> Metadata:
    """The metadata without what is past, and waits for people to know of it: possible loss, damage of which nothing is
    left but that they are to see to the disk, and what brokers have told of themselves. Whoever waits for a cluster to
    be whole does not wait for that."""
    return replace(metadata, notes={}, topics=tuple(map(_without_what_is_past, metadata.topics)))


def _without_what_is_past(topic: TopicMetadata) -> TopicMetadata:
    partitions = topic.partitions
    if any(each.state.loss is not UNSET for each in partitions):
        partitions = tuple(replace(each, state=acknowledged(each.state)) for each in partitions)
    damaged = {
        number: {broker: each for broker, each in on.items() if each.batches} for number, on in topic.damaged.items()
    }
    return replace(topic, partitions=partitions, damaged=damaged)


def _possible_losses(metadata: Metadata) -> list[Problem]:
    """What each partition may have lost; what all of them have, if they are many."""
    lossy = [each for topic in metadata.topics for each in topic.partitions if each.state.loss is not UNSET]
    return [
        Problem(
            severity="warning",
            subject=str(each.topic_partition),
            what=may_have_lost(each.state.loss)
            if len(lossy) <= LOSSES_TOLD_MAX
            else "may have lost acknowledged records: `spark-replication partitions --possible-loss` tells of each",
            mend="once whoever relies on them knows: spark-replication leader acknowledge-loss",
            mends_by_name=True,
        )
        for each in lossy
        if each.state.loss is not UNSET
    ]


def may_have_lost(loss: PossibleLoss) -> str:
    """The possible loss of a partition, as the rest of a sentence about it."""
    at = _time(loss.since_ms)
    again = "" if loss.first_epoch == loss.last_epoch else f", and last at leader epoch {loss.last_epoch}"
    start = "an offset that nobody knows" if loss.from_offset is None else f"offset {loss.from_offset} on"
    count = "nobody knows how many" if loss.records_max is None else f"{loss.records_max} at most"
    return (
        f"may have lost acknowledged records from {start}, {count}: a leader from outside ISR and ELR was elected at "
        f"leader epoch {loss.first_epoch}, {at}{again}"
    )


def _under_min_isr(partition: PartitionCommand, live: Collection[BrokerId]) -> Problem:
    return Problem(
        severity="critical",
        subject=str(partition.topic_partition),
        what=f"{_in_sync(partition)}, and needs {partition.state.min_isr} for acks=all",
        about=partition,
        mend=_mend_of(partition, live),
    )


def _under_replicated(partition: PartitionCommand, live: Collection[BrokerId]) -> Problem:
    return Problem(
        severity="warning",
        subject=str(partition.topic_partition),
        what=_in_sync(partition),
        about=partition,
        mend=_mend_of(partition, live),
    )


def _in_sync(partition: PartitionCommand) -> str:
    return f"has {len(partition.state.isr)} of {len(partition.replicas)} replicas in sync"


def _noted(broker: BrokerId, notes: BrokerNotes) -> Iterator[Problem]:
    if notes.clock_ahead_ms:
        ahead = "ahead of" if notes.clock_ahead_ms > 0 else "behind"
        yield Problem(
            severity="warning",
            subject=f"broker {broker}",
            what=f"has a clock that is {abs(notes.clock_ahead_ms) // 1000} s {ahead} ZooKeeper's: it removes nothing "
            "because of its age, by neither retention.ms nor producer.id.expiration.ms",
            mend="set the wrong clock right, then restart that broker",
        )
    if notes.put_aside:
        first = min(notes.put_aside, key=lambda each: each.until_ms)
        names = [f"{each.replica.partition} (topic {each.replica.topic_id})" for each in notes.put_aside]
        more = f" and {len(names) - PUT_ASIDE_NAMED} more" if len(names) > PUT_ASIDE_NAMED else ""
        yield Problem(
            severity="warning",
            subject=f"broker {broker}",
            what=f"has put aside logs that no topic has, and that nobody asked it to delete: "
            f"{', '.join(names[:PUT_ASIDE_NAMED])}{more}. From {_time(first.until_ms)} on it deletes them",
            mend="nothing, if their topics were deleted while it was down. If they were not, copy these folders "
            f"elsewhere before that time: {first.folder} below its log.dir is the first",
        )


def _time(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _of_disks(topic: TopicMetadata) -> Iterator[Problem]:
    """What the disks of live brokers refuse (B4), or do not give back as it was written (D1)."""
    for partition in topic.partitions:
        number, name = partition.partition, str(partition.topic_partition)
        for broker in topic.refused.get(number, ()):
            yield Problem(
                severity="critical" if broker == partition.state.leader else "warning",
                subject=name,
                what=f"is refused by the disk of broker {broker}, which is full or failing",
                about=partition,
                mend=f"free space in log.dir of broker {broker}, whose log says more: it tries again every "
                "disk.retry.ms; a disk that is broken is replaced, and the broker started again",
            )
        for broker, damage in topic.damaged.get(number, {}).items():
            yield _damaged(partition, broker, damage)


def _damaged(partition: PartitionCommand, broker: BrokerId, damage: DiskDamage) -> Problem:
    name = str(partition.topic_partition)  # not `about`: no event tells of a disk
    see_to_it = f"see to the disk of broker {broker}, which may lose more"
    if not damage.batches:
        return Problem(
            severity="warning",
            subject=name,
            what=f"was damaged on the disk of broker {broker}, and is whole again: {damage.mended} batches were lost "
            f"there since that broker started, the last {damage.words}",
            mend=f"nothing: its records came from another replica. But {see_to_it}; this is told until it starts again",
        )
    is_led = broker == partition.state.leader
    return Problem(
        severity="critical" if is_led else "warning",
        subject=name,
        what=f"is damaged on the disk of broker {broker}{', its leader' if is_led else ''}: {damage.batches} batches "
        f"cannot be read, the first {damage.words}",
        mend=_mend_of_damage(partition, broker, see_to_it),
    )


def _mend_of_damage(partition: PartitionCommand, broker: BrokerId, see_to_it: str) -> str:
    others = sorted({*partition.replicas} - {broker})
    if not others:
        return f"there is no other replica to copy these records from: read from the next offset on, and {see_to_it}"
    return (
        f"nothing, while {_named(others)} live and have these records: broker {broker} copies them from there; else "
        f"start them. And {see_to_it}"
    )


def _mend_of(partition: PartitionCommand, live: Collection[BrokerId]) -> str:
    missing = set(partition.replicas) - partition.state.isr
    if down := sorted(missing - set(live)):
        return f"start {_named(down)}"
    if partition.adding:
        return "nothing: a reassignment copies it. spark-replication reassign status"
    return f"nothing, while {_named(sorted(missing))} catches up: spark-replication topics describe {partition.topic}"


def _named(brokers: Collection[BrokerId]) -> str:
    return f"{'broker' if len(brokers) == 1 else 'brokers'} {', '.join(map(str, brokers))}"


def _leaderless(partition: PartitionCommand, awaited: Awaited | None, live: Collection[BrokerId]) -> Problem:
    """The problem of a leaderless partition. Of the elections by hand it names a choice by logs, which loses least."""
    by_hand = "spark-replication leader elect --kind longest_log_proactive"
    match awaited:
        case _ if not set(live).intersection(partition.replicas):
            mend, by_name = _mend_of_lost(partition, sorted(live)), False
        case None:
            mend, by_name = "spark-replication health --watch: it ends by itself, or this says more", False
        case Awaited(reason="fenced_elr"):
            mend, by_name = f"start {_named(sorted(partition.state.members))}; if they are lost: {by_hand}", True
        case _:
            mend, by_name = by_hand, True
    return Problem(
        severity="critical",
        subject=str(partition.topic_partition),
        what=f"has no leader: {_why(partition, awaited, live)}",
        about=partition,
        mend=mend,
        mends_by_name=by_name,
    )


def _mend_of_lost(partition: PartitionCommand, live: Sequence[BrokerId]) -> str:
    """What mends a partition of which no replica lives. Nobody there can be elected, so other brokers come first."""
    start = f"start {_named(sorted(partition.replicas))}"
    if not live:
        return start
    first = partition.partition % len(live)
    target = [*live[first:], *live[:first]][: len(partition.replicas)]
    name = str(partition.topic_partition)
    return (
        f"{start}; if all of its replicas are lost for good, its records are, and it begins anew, empty: "
        f"spark-replication reassign plan {name}={','.join(map(str, target))} --save anew.json; "
        f"spark-replication reassign apply anew.json; spark-replication leader elect --kind unclean {name}"
    )


def _why(partition: PartitionCommand, awaited: Awaited | None, live: Collection[BrokerId]) -> str:
    """What would give the partition a leader. `awaited` is None if the controller waits for nothing, or if the metadata
    came from somebody who does not know."""
    state = partition.state
    match awaited:
        case None:
            return "the controller is about to elect one, or cannot be asked"
        case Awaited(reason="fenced_elr"):
            return f"start one of the brokers {sorted(state.members)}, which hold every acknowledged record"
        case Awaited(reason="log_info", required=required):
            asked = sorted(required or partition.replicas)
            down = sorted(set(asked) - set(live))
            start = f": start {down}" if down else ""
            return f"the longest log is looked for, of its replicas {asked}{start}"
        case Awaited(reason="last_known_elr"):
            return (
                f"start all of the brokers {sorted(state.last_known_elr)}, of which one may hold every acknowledged "
                "record, or elect by hand"
            )
        case Awaited(reason="last_known_leader") if state.last_known_leader is not None:
            return f"start broker {state.last_known_leader}, its last known leader, or elect by hand"
        case Awaited(reason="manual"):
            return "no broker is known to hold every acknowledged record: elect by hand"
        case Awaited(reason=reason):
            return f"it waits for {reason}: start {list(partition.replicas)}, or elect by hand"
