"""The problems that keep a cluster from being healthy."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime

from msgspec import UNSET
from msgspec.structs import replace

from spark_replication.core.law.partition_change import acknowledged
from spark_replication.messages.commands import BrokerNotes, PartitionCommand
from spark_replication.messages.descriptions import Awaited, Metadata, TopicMetadata
from spark_replication.messages.mending import DiskDamage
from spark_replication.model import BrokerId, PossibleLoss
from spark_replication.view.conditions import Condition, conditions_of_command
from spark_replication.view.problem import DEAD_BROKERS, DISK, NO_ELECTIONS, Problem

#: Beyond so many partitions with possible loss, health tells of all of them in one reason.
LOSSES_TOLD_MAX = 10
#: Of the logs that a broker has put aside.
PUT_ASIDE_NAMED = 10

TOO_FEW: frozenset[Condition] = frozenset({"under_min_isr", "under_replicated"})

DEAD_NAMED = 20
#: In one command. Those of others are told of once these have moved.
TOPICS_NAMED = 20
#: Beyond so many, a command that elects leaders names no partition: it then acts on all that it can act on.
ELECTED_NAMED = 20


def problems(metadata: Metadata, wanted: frozenset[BrokerId]) -> list[Problem]:
    """What keeps a cluster from being healthy, and why, the worst first. Empty if every broker lives, and every replica
    is in sync but those that a move is still adding (view.conditions)."""
    found: list[Problem] = []
    if metadata.zookeeper_silent_ms:
        found.append(
            Problem(
                severity="critical",
                subject="the controller",
                what=f"has had no connection to ZooKeeper for {metadata.zookeeper_silent_ms / 1000:.0f} s: until it "
                "has one, no leader is elected and no topic changed. See that ZooKeeper runs",
                mend="spark-replication zookeeper status",
                roots=NO_ELECTIONS,
                guide="operate#who-answers-when-brokers-do-not",
            )
        )
    if metadata.secrets is not UNSET:
        found.append(_of_secrets("the controller", metadata.secrets))
    found.extend(
        Problem(
            severity="critical",
            subject=unreadable,
            what="is left as it is",
            mend="write that node as it was, with any client of ZooKeeper; what the tables know of it: "
            "spark-replication mirror show",
        )
        for unreadable in metadata.unreadable
    )
    found.extend(_dead(metadata, wanted))
    live = metadata.brokers.keys()
    lacking: list[Problem] = []
    for topic in metadata.topics:
        for partition in topic.partitions:
            refusing = topic.refused.get(partition.partition, ())
            if partition.state.leader is None:
                found.append(_leaderless(partition, topic.waiting.get(partition.partition), live, refusing))
            elif not TOO_FEW.isdisjoint(conditions_of_command(partition)):
                lacking.append(_lacking(partition, live, refusing))
    found.extend(problem for topic in metadata.topics for problem in _unmade(topic))
    found.extend(sorted(lacking, key=lambda each: each.severity))  # critical, then warning
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
                guide="operate#the-mirror-is-behind-or-somebody-changed-its-tables",
            )
        )
    return found


def without_what_it_outlives(metadata: Metadata) -> Metadata:
    """The metadata without the troubles in spite of which a cluster starts and serves."""
    topics = tuple(replace(topic, refused={}, damaged={}) for topic in metadata.topics)
    return without_what_waits_for_people(
        replace(metadata, unreadable=(), mirror_error="", secrets=UNSET, topics=topics)
    )


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
            guide="operate#a-partition-may-have-lost-records",
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


def _dead(metadata: Metadata, wanted: frozenset[BrokerId]) -> Iterator[Problem]:
    dead = sorted(wanted - metadata.brokers.keys())
    names = ", ".join([*map(str, dead[:DEAD_NAMED]), *["…"] * (len(dead) > DEAD_NAMED)])
    known = len(wanted | metadata.brokers.keys())
    otherwise = _if_lost(metadata, dead)
    for broker in dead:
        yield Problem(
            severity="warning",
            subject=f"broker {broker}",
            what="is not registered",
            about=broker,
            mend="a dead broker is started again by its guardian; if it stays dead, its log says why (broker.log in "
            "its log.dir): spark-replication debug bundle",
            roots=DEAD_BROKERS,
            counted="that are dead",
            headline=f"{len(dead)} of {known} brokers {'is' if len(dead) == 1 else 'are'} dead: {names}",
            otherwise=otherwise,
            guide="operate#a-broker-is-gone-for-good",
        )


def _if_lost(metadata: Metadata, dead: Sequence[BrokerId]) -> str:
    """What to do if these brokers never come back: those lead that can, and others take the replicas over. Commands are
    named only where they are not refused: a topic of more replicas than brokers live stays as it is."""
    live = {broker for broker, known in metadata.brokers.items() if not known.shutting_down}
    left = [each for topic in metadata.topics for each in topic.partitions if not {*dead}.isdisjoint(each.replicas)]
    staying = {each.topic for each in left if len(each.replicas) > len(live)}
    moving = sorted({each.topic for each in left} - staying)
    leaderless = [each for each in left if each.state.leader is None]
    known = [each for each in leaderless if not live.isdisjoint(each.replicas)]
    nowhere = [each for each in leaderless if live.isdisjoint(each.replicas) and each.topic in moving]
    commands = _electing("longest_log_proactive", known)
    if moving:
        chosen = "".join(f" --topic {name}" for name in moving[:TOPICS_NAMED]) if staying else ""
        commands += [
            f"spark-replication reassign plan --without {','.join(map(str, dead))}{chosen} --save moved.json",
            "spark-replication reassign apply moved.json",
            *_electing("unclean", nowhere),
        ]
    lost = f"if {_named(dead)} {'is' if len(dead) == 1 else 'are'} lost for good"
    if not commands:
        return f"{lost}, start others in their place: those that live are too few to take replicas over" if left else ""
    cost = ", without the records that nobody else has" if known else ""
    cost += f", and what is on {_named(dead)} alone begins anew, empty" if nowhere else ""
    return f"{lost}, others take over{cost}: {'; '.join(commands)}"


def _electing(kind: str, partitions: Sequence[PartitionCommand]) -> list[str]:
    named = [str(each.topic_partition) for each in partitions] if len(partitions) <= ELECTED_NAMED else []
    return [" ".join([f"spark-replication leader elect --kind {kind}", *named])] if partitions else []


def _lacking(partition: PartitionCommand, live: Collection[BrokerId], refusing: Collection[BrokerId]) -> Problem:
    """The problem of a partition that has a leader, and fewer replicas in sync than there should be."""
    is_under = len(partition.state.isr) < partition.state.min_isr
    missing = {*partition.replicas} - partition.state.isr - {*partition.adding}
    needed = f", and needs {partition.state.min_isr} for acks=all" if is_under else ""
    return Problem(
        severity="critical" if is_under else "warning",
        subject=str(partition.topic_partition),
        what=f"has {len(partition.state.isr)} of {len(partition.state.isr | missing)} replicas in sync{needed}",
        about=partition,
        mend=_mend_of(partition, missing, live),
        follows=_followed(missing, live, refusing),
        counted="with too few replicas in sync for acks=all" if is_under else "with replicas that are not in sync",
        guide="operate#acksall-is-refused" if is_under else "operate#a-follower-is-behind",
    )


def _followed(missing: Collection[BrokerId], live: Collection[BrokerId], refusing: Collection[BrokerId]) -> str:
    """The trouble because of which these replicas are missing, if it is known."""
    if set(missing) - set(live):
        return DEAD_BROKERS
    refused = sorted(set(missing).intersection(refusing))
    return DISK.format(refused[0]) if refused else ""


def _of_secrets(whose: str, trouble: str) -> Problem:
    return Problem(
        severity="critical",
        subject=whose,
        what=f"cannot use its files of secrets as they are: {trouble}",
        mend="set its owner and mode right (chmod 600), or write it anew: `spark-replication tokens` does so whole. It "
        "is looked at each second",
    )


def _noted(broker: BrokerId, notes: BrokerNotes) -> Iterator[Problem]:
    if notes.secrets:
        yield _of_secrets(f"broker {broker}", notes.secrets)
    if notes.clock_ahead_ms:
        ahead = "ahead of" if notes.clock_ahead_ms > 0 else "behind"
        yield Problem(
            severity="warning",
            subject=f"broker {broker}",
            what=f"has a clock that is {abs(notes.clock_ahead_ms) // 1000} s {ahead} ZooKeeper's: it removes nothing "
            "because of its age, by neither retention.ms nor producer.id.expiration.ms",
            mend="set the wrong clock right, then restart that broker",
            guide="operate#a-clock-is-wrong",
        )
    for each in notes.tables_behind:
        number = "a partition" if each.partitions == 1 else f"{each.partitions} partitions"
        yield Problem(
            severity="warning",
            subject=f"table of {each.topic}",
            what=f"lacks rows of {number} that broker {broker} leads, the first of them from {_time(each.since_ms)}: "
            "logs keep what it lacks, and grow, unless table.blocks.retention is false",
            mend=f"see spark-replication table status {each.topic}; the writer of broker {broker} logs to "
            "table-writer/log in its directory",
            guide="topic-tables#look-at-it",
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
            guide="operate#logs-were-put-aside",
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
                roots=DISK.format(broker),
                counted="that it refuses, too",
                mend=f"free space in log.dir of broker {broker}, whose log says more: it tries again every "
                "disk.retry.ms; a disk that is broken is replaced, and the broker started again",
                guide="operate#a-disk-refuses-or-has-damaged-records",
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
            guide="operate#a-disk-refuses-or-has-damaged-records",
        )
    is_led = broker == partition.state.leader
    return Problem(
        severity="critical" if is_led else "warning",
        subject=name,
        what=f"is damaged on the disk of broker {broker}{', its leader' if is_led else ''}: {damage.batches} batches "
        f"cannot be read, the first {damage.words}",
        mend=_mend_of_damage(partition, broker, see_to_it),
        guide="operate#a-disk-refuses-or-has-damaged-records",
    )


def _mend_of_damage(partition: PartitionCommand, broker: BrokerId, see_to_it: str) -> str:
    others = sorted({*partition.replicas} - {broker})
    if not others:
        return f"there is no other replica to copy these records from: read from the next offset on, and {see_to_it}"
    return (
        f"nothing, while {_named(others)} live and have these records: broker {broker} copies them from there; else "
        f"start them. And {see_to_it}"
    )


def _mend_of(partition: PartitionCommand, missing: Collection[BrokerId], live: Collection[BrokerId]) -> str:
    if down := sorted(set(missing) - set(live)):
        return f"start {_named(down)}"
    if not missing:
        return "nothing, once a reassignment has added its replicas: spark-replication reassign status"
    return f"nothing, while {_named(sorted(missing))} catches up: spark-replication topics describe {partition.topic}"


def _named(brokers: Collection[BrokerId]) -> str:
    return f"{'broker' if len(brokers) == 1 else 'brokers'} {', '.join(map(str, brokers))}"


def _leaderless(
    partition: PartitionCommand, awaited: Awaited | None, live: Collection[BrokerId], refusing: Collection[BrokerId]
) -> Problem:
    """The problem of a leaderless partition. Of the elections by hand it names a choice by logs, which loses least."""
    by_hand = "spark-replication leader elect --kind longest_log_proactive"
    is_led_soon = awaited is None and not partition.state.members.isdisjoint(live)
    match awaited:
        case _ if set(live).isdisjoint(partition.replicas):
            mend, by_name = _mend_of_lost(partition, sorted(live)), False
        case None:
            mend, by_name = "it ends by itself, or this says more: spark-replication health --watch 1", False
        case Awaited(reason="fenced_elr"):
            mend, by_name = f"start {_named(sorted(partition.state.members))}; if they are lost: {by_hand}", True
        case Awaited(reason="table"):
            without = "spark-replication leader elect --kind longest_log_proactive --without-table"
            mend, by_name = (
                f"make the table reachable; if it is lost, or its offsets may be given again: {without}",
                True,
            )
        case _:
            mend, by_name = by_hand, True
    return Problem(
        severity="critical",
        subject=str(partition.topic_partition),
        what=f"has no leader: {_why(partition, awaited, live)}",
        about=partition,
        follows=NO_ELECTIONS if is_led_soon else _followed(partition.replicas, live, refusing),
        counted="without a leader",
        mend=mend,
        mends_by_name=by_name,
        guide="operate#a-partition-has-no-leader",
    )


def _unmade(topic: TopicMetadata) -> Iterator[Problem]:
    """The partitions of a topic that is restored, which wait for its table: they have no state yet."""
    made = {each.partition for each in topic.partitions}
    for number, awaited in sorted(topic.waiting.items()):
        if number not in made:
            why = f": {awaited.why}" if awaited.why else ""
            yield Problem(
                severity="critical",
                subject=f"{topic.name}-{number}",
                what=f"is not made yet, since the topic's table is to be taken over and sealed before{why}",
                counted="that wait for the table that they go on with",
                mend=f"make the table reachable, or give the topic up: spark-replication topics delete {topic.name}",
                guide="topic-tables#when-the-spark-application-goes",
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
        case Awaited(reason="table", why=why):
            sealed = "its topic's table must be sealed first, so that no offset that it has is given again"
            return f"{sealed}: {why}" if why else sealed
        case Awaited(reason=reason):
            return f"it waits for {reason}: start {list(partition.replicas)}, or elect by hand"
