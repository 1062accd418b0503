"""The invariants (section 11 of the design), checked after every event. Each is named where it is found broken.

Production code decides nothing here: checkers observe what is committed, who lost what, and who was told what. Their
work is proportional to what an event touched: the replicas of its process, and the members of ISRs and ELRs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from crc32c import crc32c
from msgspec import UNSET

from spark_replication.core.law.unreadable import ALL_READ, Unreadable
from spark_replication.core.law.writes import Group, PartitionWrite, StoredPartition
from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.core.replica.replica import Leading
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import InvalidProducerEpoch, ReplicationError, StaleControllerEpoch
from spark_replication.messages.commands import (
    Command,
    GetReplicaLogInfo,
    LeaderAndIsr,
    PartitionCommand,
    ReplicaLogInfos,
    StopReplica,
    UpdateMetadata,
)
from spark_replication.messages.envelope import NONE
from spark_replication.model import BrokerId, PartitionState, ReplicaOf, TopicPartition, TopicState
from spark_replication.ports import PreparedBatch
from spark_replication.sim.cast.broker import BrokerProcess, Host
from spark_replication.sim.judges.readable import check_decided, check_sent
from spark_replication.sim.judges.story import Answered, Story, led_from_outside, untold_loss
from spark_replication.sim.judges.tables import TablesJudge
from spark_replication.sim.world.disk import LogImage
from spark_replication.sim.world.stored import Stored
from spark_replication.sim.world.world import InvariantBroken, Process, World

PROBED = 60  # how many of the newest committed batches are probed, whenever a replica begins to lead


class SeenReplica:
    """What was seen last of one replica, as long as its process keeps it open."""

    __slots__ = ("epoch", "high_watermark", "log_start", "part")

    def __init__(self) -> None:
        self.part: object = None
        self.epoch = -1
        self.high_watermark = -1
        self.log_start = 0


class Checkers:
    def __init__(
        self, world: World, store: Stored, hosts: Mapping[BrokerId, Host], *, flushed: bool, have_tables: bool
    ) -> None:
        self._world = world
        self._store = store
        self._hosts = hosts
        #: Whether all that counts is on the disk (flush=always), so that a loss of power loses nothing committed.
        self._flushed = flushed
        self._stories: dict[tuple[TopicPartition, str], Story] = {}
        self._seen: dict[ReplicaLoop, SeenReplica] = {}
        self._commanded: dict[object, int] = {}
        self._stored = self._committed = 0  # so often
        self._judged: tuple[object, ...] = ()
        self._acks: list[tuple[Story, int, bytes, int]] = []
        self._narrowed: list[tuple[Story, tuple[BrokerId, ...]]] = []
        self.tables = TablesJudge()
        self._have_tables = have_tables
        #: By topic id and number, when a partition last went from its topic.
        self.gone_ms: dict[str, dict[int, int]] = {}
        #: Brokers whose host lost power, until they register again: whoever lists them in an ISR cannot know it yet.
        self.lost: set[BrokerId] = set()
        store.partition_stored = self.stored
        store.topic_stored = self.topic_stored
        store.store_changed = self.store_changed

    def story(self, partition: TopicPartition, topic_id: str) -> Story:
        found = self._stories.get((partition, topic_id))
        if found is None:
            found = self._stories[partition, topic_id] = Story(partition, topic_id)
        return found

    def stories(self) -> Iterable[Story]:
        """The stories of the partitions that exist, and whose topics are not being deleted."""
        for partition in self._store.partitions:
            topic = self._store.topics.get(partition.topic)
            if topic is None or partition.topic in self._store.deleting:
                continue
            story = self._stories.get((partition, topic.state.topic_id))
            if story is not None and partition.partition in topic.state.partitions:
                yield story

    def _is_there(self, story: Story) -> bool:
        """Whether the partition exists, in a topic that exists."""
        topic = self._store.topics.get(story.partition.topic)
        assigned = topic is not None and story.partition.partition in topic.state.partitions
        return assigned and topic is not None and topic.state.topic_id == story.topic_id

    def recovered(self, broker: BrokerId) -> None:
        """Check Raft's log matching: a log that has the record of an epoch and offset has the one before it that the
        leader had."""
        for story in self._stories.values():
            image = self._hosts[broker].disk.image((story.partition, story.topic_id))
            offset = None if image is None else story.mismatch(image)
            if image is not None and offset is not None:
                raise InvariantBroken(
                    "logs_match",
                    f"{story.partition} on broker {broker} at {offset}: {image.at(offset)} after "
                    f"{image.at(offset - 1)}: no leader had that",
                )

    # After each event

    def after_event(self, process: Process | None) -> None:
        # A process that was killed in this event may have acknowledged before.
        if isinstance(process, BrokerProcess) and (process.alive or self._acks):
            for name, partition in process.loop.replicas.items():
                self._check_replica(process, name, partition.unguarded)
        if (evidence := self._evidence()) != self._judged:
            self._judged = evidence
            for story in self.stories():
                if story.committed:
                    self._check_members(story)
        for story, offset, content, leader_epoch in self._acks:
            self._check_ack(story, offset, content, leader_epoch)
        self._acks.clear()

    def _evidence(self) -> tuple[object, ...]:
        """All that tells whether a member holds what is committed: most events change nothing of it."""
        disks = [host.disk.files.changes for host in self._hosts.values()]
        return self._stored, self._committed, set(self.lost), disks, list(self._store.broker_epochs.values())

    def _check_replica(self, process: BrokerProcess, partition: TopicPartition, replica: ReplicaLoop) -> None:
        seen = self._seen.get(replica)
        if seen is None:
            seen = self._seen[replica] = SeenReplica()
        part, high_watermark, log = replica.part, replica.high_watermark, replica.log
        if not log.log_start <= high_watermark <= log.log_end:
            raise InvariantBroken(
                "high_watermark_within_log",
                f"{partition} on {process.name}: {high_watermark}, its log is [{log.log_start}, {log.log_end})",
            )
        if log.log_start > seen.log_start:
            seen.log_start = log.log_start
            if self._have_tables:
                self.tables.starts_at(partition, replica.topic_id, log.log_start)
        if part is seen.part or part is None:
            return
        epoch = part.state.leader_epoch if isinstance(part, Leading) else part.leader_epoch
        if epoch < seen.epoch:
            raise InvariantBroken(
                "leader_epoch_never_falls", f"{partition} on {process.name}: from {seen.epoch} to {epoch}"
            )
        if isinstance(part, Leading):
            began = not isinstance(seen.part, Leading) or epoch != seen.epoch
            if not began and part.high_watermark < seen.high_watermark:
                raise InvariantBroken(
                    "high_watermark_never_falls",
                    f"{partition} on {process.name}: from {seen.high_watermark} to {part.high_watermark}",
                )
            if began or part.high_watermark != seen.high_watermark:
                self._check_leading(process, replica, part, began=began)
            seen.high_watermark = part.high_watermark
        seen.part, seen.epoch = part, epoch

    def _check_leading(self, process: BrokerProcess, replica: ReplicaLoop, part: Leading, *, began: bool) -> None:
        story = self.story(replica.partition, replica.topic_id)
        epoch = part.state.leader_epoch
        if story.leaders.get(epoch) != part.me:
            raise InvariantBroken(
                "one_leader_per_epoch",
                f"{process.name} leads {replica.partition} at {epoch}, stored is {story.leaders.get(epoch)}",
            )
        if epoch < story.since or not self._is_there(story):
            return
        image = process.host.disk.image((replica.partition, replica.topic_id))
        assert image is not None, "its log is open"
        if began and story.stored is not None and epoch == story.stored.state.leader_epoch:
            self._check_new_leader(process, replica, story, image)
        self._commit(process, story, image, part.high_watermark)

    def _check_new_leader(self, process: BrokerProcess, replica: ReplicaLoop, story: Story, image: LogImage) -> None:
        agreed = story.agreed(image)
        if agreed < len(story.committed):
            name = "acked_records_survive" if agreed < story.acked_end else "committed_prefixes_agree"
            raise InvariantBroken(
                name,
                f"{process.name} begins to lead {story.partition} with {agreed} of {len(story.committed)} committed "
                f"records, {story.acked_end} acknowledged",
            )
        self.tables.begins_to_lead(story, image)
        self._check_knows_producers(process, replica, story)

    def _check_knows_producers(self, process: BrokerProcess, replica: ReplicaLoop, story: Story) -> None:
        """Check that a new leader stores no recently committed batch again, whether or not its log still has it."""
        least = max(0, len(story.committed) - PROBED)
        for offset, record in enumerate(story.committed[least:], least):
            if record is None or record.producer < 0:
                continue
            numbers = record.producer, record.producer_epoch, record.sequence, record.digest
            again = PreparedBatch(1, record.content, crc32c(record.content), b"", *numbers)
            try:
                found: object = replica.known(again)
            except InvalidProducerEpoch:
                continue  # it is fenced by a later epoch of its producer
            except ReplicationError as error:
                found = error
            if found != OffsetSpan(offset, offset):
                raise InvariantBroken(
                    "idempotent_batches_once",
                    f"{process.name} begins to lead {story.partition}, whose {record} is committed at {offset}, and "
                    f"would answer it with {found}",
                )

    def _commit(self, process: BrokerProcess, story: Story, image: LogImage, high_watermark: int) -> None:
        agreed = story.agreed(image)
        if agreed < min(len(story.committed), high_watermark):
            raise InvariantBroken(
                "committed_prefixes_agree",
                f"{story.partition} on {process.name} at {agreed}: {image.at(agreed)}, committed is "
                f"{story.committed[agreed]}",
            )
        if high_watermark <= len(story.committed):
            return
        if image.end < high_watermark:
            raise InvariantBroken(
                "committed_prefixes_agree",
                f"{story.partition} is committed up to {high_watermark}, on {process.name} it ends at {image.end}",
            )
        # Another history may begin with a leader whose high watermark is below what retention has removed elsewhere.
        if 0 < len(story.committed) < image.start and not story.since:
            raise InvariantBroken(
                "committed_prefixes_agree",
                f"{story.partition} on {process.name} starts at {image.start}, committed are {len(story.committed)}",
            )
        first_new = image.at(max(len(story.committed), image.start))
        self._committed += 1
        before = len(story.committed)
        twice = story.commit(image, high_watermark)
        self.tables.committed(story, before)
        if twice is not None:
            raise InvariantBroken("idempotent_batches_once", f"{story.partition}: {twice} is committed twice")
        if first_new is not None and first_new.epoch < story.created:
            raise InvariantBroken(
                "committed_prefixes_agree",
                f"{story.partition} was made again at epoch {story.created}, and {first_new} is from before",
            )

    def _check_members(self, story: Story) -> None:
        stored = story.stored
        if stored is None:
            return
        state = stored.state
        for member in state.isr:
            if self._lacks(story, member, state.epochs[member]):
                raise InvariantBroken("isr_member_holds_all_committed", self._lacking(story, member))
        for member in state.elr:
            if self._lacks(story, member, state.epochs[member]):
                raise InvariantBroken("elr_holds_all_committed", self._lacking(story, member))

    def _lacks(self, story: Story, member: BrokerId, joined: int) -> bool:
        image = self._hosts[member].disk.image((story.partition, story.topic_id))
        if image is not None and image.agreed >= len(story.committed):
            return False
        if story.stored is not None and len(story.committed) <= (story.stored.state.start_at or 0):
            return False  # the table has all of it
        if (member in self.lost and self._may_lose(member)) or self._store.broker_epochs[member].clean_since > joined:
            return False  # void: it is listed, and does not count
        return image is None or story.agreed(image) < len(story.committed)

    def _lacking(self, story: Story, member: BrokerId) -> str:
        image = self._hosts[member].disk.image((story.partition, story.topic_id))
        held = "no log" if image is None else f"{story.agreed(image)} of them in {image.end} records"
        return f"{story.partition}: {len(story.committed)} are committed, broker {member} has {held}; {story.stored}"

    # Clients

    def acknowledged(self, replica: ReplicaLoop, offset: int, content: bytes) -> None:
        """Note that a leader acknowledged this batch with acks=all, in the present event."""
        leader_epoch = replica.part.state.leader_epoch if isinstance(replica.part, Leading) else -1
        self._acks.append((self.story(replica.partition, replica.topic_id), offset, content, leader_epoch))

    def _check_ack(self, story: Story, offset: int, content: bytes, leader_epoch: int) -> None:
        if leader_epoch < story.since or not self._is_there(story):
            return
        self._world.counts["acked"] += 1
        if not story.holds(offset, content):
            raise InvariantBroken(
                "acked_records_survive",
                f"{story.partition}: {content!r} was acknowledged at {offset}, committed are {len(story.committed)}",
            )
        story.acked_end = max(story.acked_end, offset + 1)

    def appended(self, broker: BrokerId, replica: ReplicaLoop, offset: int, head: bytes) -> None:
        """Check that the batch that a leader appended lies below the schema that it was serialised with. Other checks
        find out whether it is there."""
        image = self._hosts[broker].disk.image((replica.partition, replica.topic_id))
        found = None if image is None else image.at(offset)
        if image is not None:
            self.story(replica.partition, replica.topic_id).wrote(image, offset)
        if found is not None and found.head != crc32c(head):
            raise InvariantBroken(
                "batches_have_their_own_schema", f"broker {broker}: {replica.partition} at {offset} lies below another"
            )

    def was_read(self, replica: ReplicaLoop, offset: int, contents: list[bytes], head: bytes) -> None:
        part = replica.part
        if part is None:  # it was stopped while its checksums were looked at
            return
        leader_epoch = part.state.leader_epoch if isinstance(part, Leading) else part.leader_epoch
        story = self.story(replica.partition, replica.topic_id)
        if leader_epoch < story.since or not self._is_there(story):
            return
        self._world.counts["read_from_leader" if isinstance(part, Leading) else "read_from_follower"] += len(contents)
        committed = story.committed[offset : offset + len(contents)]
        same = [found is None or found.content == read for found, read in zip(committed, contents, strict=False)]
        if len(committed) < len(contents) or not all(same):
            raise InvariantBroken(
                "committed_prefixes_agree", f"a reader of {story.partition} got {contents} at {offset}"
            )
        if any(found is not None and found.head != crc32c(head) for found in committed):
            raise InvariantBroken(
                "batches_have_their_own_schema", f"a reader of {story.partition} got {offset} with another"
            )

    def nothing_was_read(self, replica: ReplicaLoop, offset: int, *, any_replica: bool) -> None:
        """Check an answer without records: at that moment there were none."""
        try:
            end = replica.served_end(any_replica=any_replica)
        except ReplicationError:
            return  # it serves no longer
        if offset < end:
            raise InvariantBroken(
                "readers_are_told", f"a reader of {replica.partition} got nothing at {offset}, and {end} is committed"
            )

    def was_read_to_its_end(self, replica: ReplicaLoop, offset: int) -> None:
        """Check what a leader calls the end: nothing that was committed before is beyond it. A leader that has been
        deposed, and does not know yet, calls its own end so."""
        story, part = self.story(replica.partition, replica.topic_id), replica.part
        if not isinstance(part, Leading) or story.stored is None or not self._is_there(story):
            return
        if story.since <= part.state.leader_epoch == story.stored.state.leader_epoch and offset < len(story.committed):
            raise InvariantBroken(
                "the_end_is_the_end",
                f"a reader of {story.partition} was told that it ends at {offset}, and {len(story.committed)} are "
                "committed",
            )

    # ZooKeeper

    def stored(self, partition: TopicPartition, topic_id: str, stored: StoredPartition) -> None:
        story = self.story(partition, topic_id)
        before = story.stored.state if story.stored is not None else None
        state = stored.state
        if before is not None and state.leader_epoch < before.leader_epoch:
            raise InvariantBroken(
                "leader_epoch_never_falls", f"{partition} in ZooKeeper: {before.leader_epoch} to {state.leader_epoch}"
            )
        if state.isr & state.elr:
            raise InvariantBroken("elr_disjoint_from_isr", f"{partition}: {state}")
        if state.leader is not None and story.leaders.setdefault(state.leader_epoch, state.leader) != state.leader:
            raise InvariantBroken(
                "one_leader_per_epoch",
                f"{partition} at {state.leader_epoch}: {story.leaders[state.leader_epoch]}, now {state.leader}",
            )
        self._count_election(story, stored)
        untold = self._untold_loss(story, before, state)  # of the history that may end here
        if before is not None and state.created > before.created:
            story.created = state.created
            self._begin(story, state.leader_epoch)
        elif led_from_outside(before, state):
            if state.elected == "unclean_recovery" and state.leader is not None:
                self._check_recovered(story, state.leader)
            self._begin(story, state.leader_epoch)
        elif before is not None and state.leader is not None and state.leader != before.leader:
            self._check_elected(story, state.leader)
        if untold is not None:
            raise InvariantBroken("loss_is_told", f"{partition}: {untold}")
        story.stored = stored
        story.states.setdefault(stored.version, []).append(stored)

    def _may_lose(self, broker: BrokerId) -> bool:
        """Whether a recovery may cut what this broker had acknowledged: what was not flushed, or has rotted since."""
        return not self._flushed or self._hosts[broker].disk.has_rotted

    def removed(self, partition: TopicPartition, topic_id: str) -> None:
        """Somebody has removed what is stored of a partition: its partition epochs begin anew. An earlier controller,
        and a broker that does not know yet, may go by what was stored. That it was made again is known no more: a
        broker that was down meanwhile may have what was there before."""
        story = self.story(partition, topic_id)
        story.stored, story.created = None, 0

    def _begin(self, story: Story, leader_epoch: int) -> None:
        story.begin(leader_epoch)
        for host in self._hosts.values():
            image = host.disk.image((story.partition, story.topic_id))
            if image is not None:
                image.agreed = 0

    def _untold_loss(self, story: Story, before: PartitionState | None, after: PartitionState) -> str | None:
        """Why what may be lost is not shown as it should be, until a person has acknowledged it (D2). What a leader has
        lost since its answer, with its power, nobody can know. What the table has is not lost (TB5)."""
        leader = after.leader
        held = story.acked_end if leader is None or leader in self.lost else self._held(story, leader)
        held = max(held, after.start_at or 0)
        return untold_loss(story, before, after, held)

    def loss_is_known(self, partition: TopicPartition, topic_id: str, last_epoch: int) -> None:
        """Note what a person has asked to acknowledge."""
        story = self.story(partition, topic_id)
        story.acknowledged = max(story.acknowledged, last_epoch)

    def _check_elected(self, story: Story, leader: BrokerId) -> None:
        """Check that a leader elected from ISR or ELR holds all committed records, unless it lost some in a way that
        nobody can know of yet."""
        held = self._held(story, leader)
        if held < len(story.committed) and leader not in self.lost:
            name = "acked_records_survive" if held < story.acked_end else "committed_prefixes_agree"
            raise InvariantBroken(
                name, f"broker {leader} is elected for {story.partition} with {held} of {len(story.committed)} records"
            )

    def _check_recovered(self, story: Story, leader: BrokerId) -> None:
        """Check that no broker whose answer still holds has an acknowledged record that the elected leader lacks. But a
        log that ends in an earlier epoch, or sooner in the same, gives way, whatever it holds (L4)."""
        if leader in self.lost:
            return  # it lost power after its answer, and nobody can know of that yet
        held = self._held(story, leader)
        elected = story.decided_on.get(leader)
        for broker, told in sorted(story.decided_on.items()):
            registered = self._store.registered.get(broker)
            if registered is None or registered.epoch != told.broker_epoch or broker in self.lost:
                continue
            if registered.shutting_down:
                continue  # it cannot be elected
            if story.stored is None or story.stored.state.leader_epoch != told.leader_epoch:
                continue
            if elected is not None and told.log_end < elected.log_end:
                continue
            if (broker, told.broker_epoch) in story.refused and self._is_waited_for_no_longer(story, told):
                continue
            if self._holds_acked_from(story, broker, held):
                raise InvariantBroken(
                    "acked_records_survive",
                    f"{story.partition} was recovered with {held} committed records on broker {leader}, though broker "
                    f"{broker} had answered, and has {self._held(story, broker)}",
                )

    def _is_waited_for_no_longer(self, story: Story, told: Answered) -> bool:
        """Whether a recovery no longer waits for a broker that has answered, and whose disk refuses."""
        settings = self._store.settings
        most_ms = settings.unclean_recovery_timeout_ms + settings.disk_retry_ms
        since_ms = story.asked_ms.get((told.controller_epoch, told.leader_epoch))
        return since_ms is not None and self._world.now_ms - since_ms >= most_ms

    def _held(self, story: Story, broker: BrokerId) -> int:
        image = self._hosts[broker].disk.image((story.partition, story.topic_id))
        return 0 if image is None else story.agreed(image)

    def _holds_acked_from(self, story: Story, broker: BrokerId, offset: int) -> bool:
        """Whether the broker holds an acknowledged record from `offset` on. It holds none below its log's start."""
        image = self._hosts[broker].disk.image((story.partition, story.topic_id))
        return image is not None and max(image.start, offset) < min(story.agreed(image), story.acked_end)

    def _count_election(self, story: Story, stored: StoredPartition) -> None:
        before, state = story.stored, stored.state
        if before is None or state.leader is None or before.state.leader == state.leader or state.elected is None:
            return
        self._world.counts[f"elected_{state.elected}"] += 1
        leader = before.state.leader
        replicas = self._store.topics[story.partition.topic].state.partitions.get(story.partition.partition, ())
        if leader is not None and leader in state.isr and replicas[:1] == (state.leader,):
            registered = self._store.registered.get(leader)
            if registered is not None and not registered.shutting_down:
                self._world.counts["elected_preferred"] += 1

    def topic_stored(self, topic: str, before: TopicState | None, after: TopicState) -> None:
        """Note the partitions that go, and the assignments that became narrower. A leaderAndISR of the same multi() is
        stored later: what must hold of both is checked after the multi()."""
        if after.restores is not UNSET:
            self.tables.restored(after.topic_id, after.restores.topic_id)
        if before is None or before.topic_id != after.topic_id:
            return
        gone = before.partitions.keys() - after.partitions.keys()
        self.gone_ms.setdefault(after.topic_id, {}).update(dict.fromkeys(gone, self._world.now_ms))
        for number, replicas in before.partitions.items():
            if number in after.partitions and set(after.partitions[number]) < set(replicas):
                story = self.story(TopicPartition(topic, number), after.topic_id)
                self._narrowed.append((story, after.partitions[number]))

    def store_changed(self) -> None:
        """Check what must hold after a whole multi()."""
        self._stored += 1
        writing = self._store.writing
        if writing is not None and writing != self._store.controller_epoch:
            raise InvariantBroken(
                "deposed_controller_changes_nothing", f"epoch {writing} wrote at {self._store.controller_epoch}"
            )
        for topic, stored in self._store.topics.items():
            for number, replicas in stored.state.partitions.items():
                found = self._store.partitions.get(TopicPartition(topic, number))
                if found is not None and not found.state.isr.issubset(replicas):
                    raise InvariantBroken(
                        "isr_within_replicas", f"{topic}-{number}: ISR {sorted(found.state.isr)}, replicas {replicas}"
                    )
        for story, replicas in self._narrowed:
            state = story.stored.state if story.stored is not None else None
            if state is not None and len(state.isr) < min(state.min_isr, len(replicas)):
                raise InvariantBroken(
                    "acked_records_survive",
                    f"{story.partition} dropped replicas: of {replicas} only {sorted(state.isr)} are in sync",
                )
        self._narrowed = []

    # Controllers

    def sent(self, broker: BrokerId, command: Command) -> None:
        if isinstance(command, GetReplicaLogInfo):
            for wanted in command.partitions:
                story = self._stories.get((wanted.topic_partition, wanted.topic_id))
                if story is not None:
                    story.answers.pop((command.controller_epoch, broker), None)
                    story.asked_ms.setdefault((command.controller_epoch, wanted.leader_epoch), self._world.now_ms)
        if isinstance(command, LeaderAndIsr):
            check_sent(command, broker, self._hidden_from(command.controller_epoch))
        if isinstance(command, (LeaderAndIsr, UpdateMetadata)):
            for partition in command.partitions:
                self._check_persisted("persisted_before_sent", partition)
        elif isinstance(command, StopReplica):
            for stop in command.partitions:
                story = self._stories.get((stop.topic_partition, stop.topic_id))
                if (
                    story is not None
                    and story.stored is not None
                    and stop.leader_epoch > story.stored.state.leader_epoch
                ):
                    raise InvariantBroken("persisted_before_sent", f"{stop} is ahead of {story.stored}")

    def _check_persisted(self, name: str, command: PartitionCommand) -> list[StoredPartition]:
        story = self._stories.get((command.topic_partition, command.topic_id))
        found = [] if story is None else story.was_stored(command.partition_epoch, command.state)
        if not found:
            raise InvariantBroken(name, f"{command} was never stored")
        return found

    def applied(self, controller_epoch: int, life: object, error: ReplicationError | None) -> None:
        known = self._commanded.get(life, -1)
        if controller_epoch < known and error is None:
            raise InvariantBroken(
                "deposed_controller_changes_nothing",
                f"a broker obeyed controller epoch {controller_epoch} after {known}",
            )
        if error is None:
            self._commanded[life] = controller_epoch
        elif isinstance(error, StaleControllerEpoch):
            self._world.counts["deposed_command"] += 1

    def told_mirror(self, command: PartitionCommand, zxid: int) -> None:
        found = self._check_persisted("mirror_never_ahead", command)
        if all(each.zxid != zxid for each in found):
            stored_at = [each.zxid for each in found]
            raise InvariantBroken(
                "mirror_never_ahead", f"{command.topic_partition}: zxid {zxid}, stored at {stored_at}"
            )

    def confirmed(self, partition: TopicPartition, topic_id: str, leader_epoch: int) -> None:
        story = self._stories.get((partition, topic_id))
        if story is not None and story.stored is not None and leader_epoch > story.stored.state.leader_epoch:
            raise InvariantBroken("mirror_never_ahead", f"{partition} is confirmed at {leader_epoch}: {story.stored}")

    def answered(self, controller_epoch: int, broker: BrokerId, answer: ReplicaLogInfos) -> None:
        for info in answer.partitions:
            story = self._stories.get((info.topic_partition, info.topic_id))
            if story is not None and info.error == NONE:
                log_end = (info.last_epoch, info.end)
                story.answers[controller_epoch, broker] = Answered(
                    controller_epoch, info.current_epoch, answer.broker_epoch, log_end
                )

    def refused(self, broker: BrokerId, broker_epoch: int, replica: ReplicaOf) -> None:
        story = self._stories.get((replica.partition, replica.topic_id))
        if story is not None:
            story.refused.add((broker, broker_epoch))

    def _hidden_from(self, controller_epoch: int) -> Unreadable:
        return self._store.loaded_without.get(controller_epoch, ALL_READ)

    def deciding(self, controller_epoch: int, groups: Sequence[Group]) -> None:
        """Check what a controller decides. An election by unclean recovery is judged by the answers before its
        decision."""
        hidden = self._hidden_from(controller_epoch)
        for write in (write for group in groups for write in group):
            check_decided(write, controller_epoch, hidden)
            if isinstance(write, PartitionWrite) and write.state.elected == "unclean_recovery":
                topic = self._store.topics.get(write.partition.topic)
                if topic is not None:
                    story = self.story(write.partition, topic.state.topic_id)
                    story.decided_on = {
                        broker: found for (epoch, broker), found in story.answers.items() if epoch == controller_epoch
                    }
