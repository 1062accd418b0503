"""What must come about once nothing fails any more (section 11). It is checked again and again until it holds."""

from __future__ import annotations

from collections import Counter
from typing import Any

from spark_replication.core.law.election import Policy
from spark_replication.core.replica.replica import Leading
from spark_replication.messages.requests import ElectLeaders
from spark_replication.mirror.tables.brokers import BROKERS
from spark_replication.mirror.tables.columns import Key
from spark_replication.mirror.tables.partitions import PARTITIONS
from spark_replication.mirror.tables.topics import TOPICS
from spark_replication.model import BrokerId, TopicPartition
from spark_replication.sim.cast.cluster import SimulatedCluster
from spark_replication.sim.cast.groups import GroupMember
from spark_replication.sim.cast.queries import rows_of
from spark_replication.sim.world.world import InvariantBroken
from spark_replication.zk.controller.admin_requests import read_requests

POLL_MS = 150
POLLS_MAX = 60
ACKNOWLEDGED_MAX = 3  # so often a person acknowledges what is shown
BY_HAND_POLLS = 10  # after so many polls, a person looks for partitions that wait for one


def settle(cluster: SimulatedCluster) -> None:
    """Run until everything holds. Raises InvariantBroken with the name of what does not.

    A throttled copy may take any time, as long as it gets on: nobody produces any more, so it ends.
    """
    missing: tuple[str, str] | None = None
    polls, copied = 0, _copied(cluster)
    while polls < POLLS_MAX:
        cluster.world.run(cluster.world.now_ms + POLL_MS)
        missing = _missing(cluster)
        if missing is None:
            return
        polls += 1
        if polls % BY_HAND_POLLS == 0:
            _help_by_hand(cluster)
        further = {copy: end for copy, end in _copied(cluster).items() if end > copied.get(copy, 0)}
        if further:
            polls = 0
            copied.update(further)
    assert missing is not None
    raise InvariantBroken(*missing)


def acknowledge_all(cluster: SimulatedCluster) -> None:
    """Acknowledge all possible loss. Raises InvariantBroken if any is shown afterwards, or something holds no more."""
    for _ in range(ACKNOWLEDGED_MAX):
        known = cluster.losses()
        if not known:
            break
        cluster.acknowledge(known)
        settle(cluster)
    if left := cluster.losses():
        raise InvariantBroken("loss_is_acknowledged", f"{left} are shown, and were acknowledged")


def _copied(cluster: SimulatedCluster) -> dict[tuple[TopicPartition, BrokerId], int]:
    """The log end of each replica that is being added."""
    ends: dict[tuple[TopicPartition, BrokerId], int] = {}
    for name, topic in cluster.store.topics.items():
        for number, adding in topic.state.adding.items():
            partition = TopicPartition(name, number)
            for replica in adding:
                image = cluster.hosts[replica].disk.image((partition, topic.state.topic_id))
                ends[partition, replica] = 0 if image is None else image.end
    return ends


def _help_by_hand(cluster: SimulatedCluster) -> None:
    """Elect by hand, as a person does for partitions that wait for one under the strategy `manual`."""
    names = []
    for partition in cluster.partitions():
        if _leader(cluster, partition) is None and _waits_for_person(cluster, partition):
            names.append(str(partition))
    if names:
        cluster.ask(ElectLeaders(kind="longest_log_proactive", partitions=tuple(names)))


def _waits_for_person(cluster: SimulatedCluster, partition: TopicPartition) -> bool:
    controller = cluster.controller()
    if controller is None or controller.loop is None or partition.topic not in controller.loop.cluster.topics:
        return False
    policy: Policy = controller.loop.cluster.policy_of(partition.topic)
    return policy.recovery_enabled and policy.strategy == "manual"


def _leader(cluster: SimulatedCluster, partition: TopicPartition) -> BrokerId | None:
    stored = cluster.store.partitions.get(partition)
    return None if stored is None else stored.state.leader


def _missing(cluster: SimulatedCluster) -> tuple[str, str] | None:
    for check in (
        _leads_again,
        _reassigned,
        _caught_up,
        _readable,
        _routes,
        _mirrored,
        _producers_are_through,
        _unwritten_is_unwritten,
        _queries_are_through,
        _rows_are_there_once,
        _readers_are_through,
        _everything_is_assigned,
        _tables_are_whole,
    ):
        found = check(cluster)
        if found is not None:
            return found
    return None


def _everything_is_assigned(cluster: SimulatedCluster) -> tuple[str, str] | None:
    """Check that each partition is held by one living member of each group, and that the group has come to its end."""
    groups: dict[str, list[GroupMember]] = {}
    for member in cluster.groups.living():
        groups.setdefault(member.group, []).append(member)
    for group, members in sorted(groups.items()):
        held = Counter(partition for member in members for partition in member.membership.held)
        if held != Counter(cluster.written()):
            shown = {member.name: sorted(map(str, member.membership.held)) for member in members}
            return "everything_is_assigned", f"{group}: {shown} of {[str(each) for each in cluster.written()]}"
        for partition in cluster.written():
            story = cluster.checkers.story(partition, cluster.store.topics[partition.topic].state.topic_id)
            end, position = len(story.committed), cluster.groups.judge.position(group, partition)
            if position != end and not cluster.groups.judge.is_excused(group):
                return (
                    "everything_is_assigned",
                    f"{group} has committed {partition} to {position}, and it ends at {end}",
                )
    return None


def _tables_are_whole(cluster: SimulatedCluster) -> tuple[str, str] | None:
    """Check that tables have all that is committed."""
    for story in cluster.checkers.stories() if cluster.writers else ():
        end = cluster.tables.table(story.topic_id).version.end_of(story.partition.partition) or 0
        if end != len(story.committed):
            return "tables_are_whole", f"{story.partition} is committed to {len(story.committed)}, its table has {end}"
    return None


def _producers_are_through(cluster: SimulatedCluster) -> tuple[str, str] | None:
    for producer in cluster.pipelined:
        if not producer.is_through:
            return "producers_get_on", f"{producer.name} has a batch that is not acknowledged"
    return None


def _unwritten_is_unwritten(cluster: SimulatedCluster) -> tuple[str, str] | None:
    """Whoever was told that a batch is not written may send it anew. Where an election from outside has begun another
    history, a log may come back that nobody knew of."""
    unwritten = {content for producer in cluster.pipelined for content in producer.unwritten}
    for story in cluster.checkers.stories():
        for offset, record in enumerate(story.committed if story.since == 0 else ()):
            if record is not None and record.content in unwritten:
                return "unwritten_is_unwritten", f"{story.partition}: {record.content!r} is at {offset}"
    return None


def _queries_are_through(cluster: SimulatedCluster) -> tuple[str, str] | None:
    for query in cluster.queries:
        if not query.is_through:
            return "queries_get_on", f"{query.name} has a micro-batch that is not through"
    return None


def _rows_are_there_once(cluster: SimulatedCluster) -> tuple[str, str] | None:
    """Each row of a finished batch is in one partition, once. It may be gone with a partition that was removed, by an
    election from outside, or by retention."""
    for query in cluster.queries:
        stories = [story for story in cluster.checkers.stories() if story.topic_id == query.topic_id]
        found = Counter(
            row
            for story in stories
            for record in story.committed
            if record is not None
            for row in rows_of(record.content)
        )
        twice = next((row for row in query.stored if found[row] > 1), None)
        if twice is not None:
            return "rows_are_there_once", f"{twice!r} of {query.name} is there {found[twice]} times"
        is_whole = all(story.since == 0 and None not in story.committed for story in stories)
        if is_whole and not query.has_lost_partitions:
            lost = next((row for row in query.stored if not found[row]), None)
            if lost is not None:
                return "rows_are_there_once", f"{lost!r} of {query.name} is not there"
    return None


def _readers_are_through(cluster: SimulatedCluster) -> tuple[str, str] | None:
    for reader in cluster.readers:
        if not reader.is_through:
            return "readers_are_told", f"{reader.name} has a question that is not answered"
    return None


def _leads_again(cluster: SimulatedCluster) -> tuple[str, str] | None:
    if cluster.store.deleting:
        return "every_partition_leads_again", f"{sorted(cluster.store.deleting)} are not deleted yet"
    for partition in cluster.partitions():
        leader = _leader(cluster, partition)
        stored = cluster.store.partitions.get(partition)
        if leader is None or stored is None:
            return "every_partition_leads_again", f"{partition} has no leader: {stored}"
        process = cluster.hosts[leader].process
        replica = process.loop.replicas.get(partition) if process is not None else None
        part = None if replica is None else replica.part
        if not isinstance(part, Leading) or part.state.leader_epoch != stored.state.leader_epoch:
            return "every_partition_leads_again", f"{partition}: broker {leader} does not lead: {part}, stored {stored}"
    return None


def _reassigned(cluster: SimulatedCluster) -> tuple[str, str] | None:
    for name, topic in sorted(cluster.store.topics.items()):
        if topic.state.adding or topic.state.removing:
            return "no_reassignment_stuck", f"{name}: {topic.state}"
    if left := [found.path for found in read_requests(cluster.store.tree)]:
        return "no_reassignment_stuck", f"requests are left: {left}"
    return None


def _caught_up(cluster: SimulatedCluster) -> tuple[str, str] | None:
    for partition in cluster.partitions():
        topic = cluster.store.topics[partition.topic].state
        stored = cluster.store.partitions[partition]
        replicas = topic.partitions[partition.partition]
        if stored.state.isr != set(replicas):
            return "followers_catch_up", f"{partition}: ISR {sorted(stored.state.isr)} of {replicas}"
        found = [cluster.hosts[replica].disk.image((partition, topic.topic_id)) for replica in replicas]
        logs = [log for log in found if log is not None]
        start = max(log.start for log in logs)
        if len(logs) < len(found) or any(log.since(start) != logs[0].since(start) for log in logs):
            ends = [(log.start, log.end) for log in logs]
            return "followers_catch_up", f"{partition}: {ends} on {replicas}, or not the same records there"
        story = cluster.checkers.story(partition, topic.topic_id)
        if len(story.committed) != logs[0].end:
            return "followers_catch_up", f"{partition}: {len(story.committed)} of {logs[0].end} records are committed"
    return None


def _readable(cluster: SimulatedCluster) -> tuple[str, str] | None:
    """Check that every replica can be read whole, unless it is the only one: what rots on one disk, another has."""
    for partition in cluster.partitions():
        replicas = cluster.store.topics[partition.topic].state.partitions[partition.partition]
        for broker in replicas if len(replicas) > 1 else ():
            process = cluster.hosts[broker].process
            found = None if process is None else process.loop.replicas.get(partition)
            if found is not None:
                log = found.unguarded.log
                for damaged in log.damaged(log.log_start, log.log_end):
                    return "records_can_be_read", f"{partition} on broker {broker}: {damaged}"
    return None


def _routes(cluster: SimulatedCluster) -> tuple[str, str] | None:
    wanted = {
        (partition, stored.state.leader, stored.state.leader_epoch)
        for partition, stored in cluster.store.partitions.items()
        if partition in cluster.partitions()
    }
    for process in cluster.living():
        metadata = process.loop.metadata(None, None)
        known = {
            (command.topic_partition, command.state.leader, command.state.leader_epoch)
            for topic in metadata.topics
            for command in topic.partitions
        }
        if known != wanted:
            return (
                "routes_converge",
                f"{process.name} tells {sorted(known - wanted, key=str)}, not {sorted(wanted - known, key=str)}",
            )
        if metadata.brokers != cluster.store.registered:
            return "routes_converge", f"{process.name} knows {sorted(metadata.brokers)}, or of earlier lives of them"
    return None


def _mirrored(cluster: SimulatedCluster) -> tuple[str, str] | None:
    """Check that the tables show all that ZooKeeper has, as confirmed by leaders: pipelines route by these tables."""
    store = cluster.store
    wanted: dict[str, dict[Key, Any]] = {
        BROKERS.name: {(broker,): found for broker, found in store.registered.items()},
        TOPICS.name: {(name,): (found.state, found.config) for name, found in store.topics.items()},
        PARTITIONS.name: dict.fromkeys(cluster.partitions()),
    }
    shown: dict[str, dict[Key, Any]] = {name: table.existing() for name, table in cluster.mirror.of.items()}
    for name, there in wanted.items():
        if shown[name].keys() != there.keys():
            return "mirror_converges", f"{name} shows {sorted(shown[name])}, and there are {sorted(there)}"
    for (broker,), row in sorted(shown[BROKERS.name].items()):
        if row.registration != store.registered[broker]:
            return "mirror_converges", f"broker {broker} is shown as {row}, and is {store.registered[broker]}"
    for (name,), row in sorted(shown[TOPICS.name].items()):
        if (row.topic.state, row.topic.config) != (store.topics[name].state, store.topics[name].config):
            return "mirror_converges", f"topic {name} is shown as {row}, and is {store.topics[name]}"
    for key, row in sorted(shown[PARTITIONS.name].items()):
        partition = TopicPartition(*key)
        stored = store.partitions[partition]
        # Mending garbage writes the same again, of which nobody is told: the zxid may be behind.
        if row.zxid > stored.zxid or row.command.state != stored.state:
            return "mirror_converges", f"{partition} is shown as of zxid {row.zxid}, and is {stored}"
        if row.active_epoch != stored.state.leader_epoch:
            return "mirror_converges", f"{partition} is shown as confirmed at {row.active_epoch}, and is {stored}"
    return _told(cluster)


def _told(cluster: SimulatedCluster) -> tuple[str, str] | None:
    """Check that the tables show each row as its last event says that it became."""
    became = {row: face for row, face in cluster.mirror.events.became.items() if face is not None}
    for name, table in cluster.mirror.of.items():
        for key, face in table.faces().items():
            if became.pop((name, key), None) != face:
                return "events_are_a_chain", f"{name} shows {key} as {face}, and no event says so last"
    left = next(iter(became), None)
    return None if left is None else ("events_are_a_chain", f"the last event of {left} leaves it there, and it is gone")
