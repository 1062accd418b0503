"""What one partition has been through, for an observer that sees everything.

Its history is the committed records: those below the highest high watermark of any leader, in their order. An election
from outside ISR and ELR begins another history: acknowledged records may be gone, and that is on record. Adding a
removed partition again begins another one, too. What leaders of earlier epochs still commit belongs to no history.
"""

from __future__ import annotations

from typing import NamedTuple

from crc32c import crc32c
from msgspec import UnsetType

from spark_replication.core.law.writes import StoredPartition
from spark_replication.model import BrokerId, PartitionState, PossibleLoss, TopicPartition
from spark_replication.sim.world.disk import LogImage, Record
from spark_replication.storage.format.index import DIGEST

ATTEMPT = b"/"  # what follows it in a batch does not count: the same rows in another order
FROM_OUTSIDE = frozenset({"last_known_leader", "unclean", "unclean_recovery", "designated"})


class Answered(NamedTuple):
    """A broker's answer to an unclean recovery."""

    controller_epoch: int
    leader_epoch: int
    broker_epoch: int
    #: The last written epoch, and where the log ends.
    log_end: tuple[int, int]


class Story:
    def __init__(self, partition: TopicPartition, topic_id: str) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.stored: StoredPartition | None = None
        #: Everything ever stored, by partition epoch: once somebody has removed what is stored, these begin anew.
        self.states: dict[int, list[StoredPartition]] = {}
        self.leaders: dict[int, BrokerId] = {}
        self.committed: list[Record | None] = []  # None for a record trimmed before this history began
        self.seen: dict[bytes, int] = {}  # the offset of each batch of an idempotent producer, by its content
        #: All offsets that were acknowledged with acks=all in this history are below.
        self.acked_end = 0
        #: The leader epoch that the present history began with.
        self.since = 0
        self.created = 0
        #: What the leader of an epoch wrote at an offset, and the record that it had before it.
        self.written: dict[tuple[int, int], tuple[Record, Record | None]] = {}
        #: The answers to unclean recoveries, by controller epoch and broker.
        self.answers: dict[tuple[int, BrokerId], Answered] = {}
        #: The answers that had come when the latest election by an unclean recovery was decided.
        self.decided_on: dict[BrokerId, Answered] = {}
        #: When a controller epoch first asked somebody at a leader epoch.
        self.asked_ms: dict[tuple[int, int], int] = {}
        #: The last leader epoch of possible loss that a person has acknowledged.
        self.acknowledged = -1
        #: The brokers whose disk has refused, with the broker epoch of that life.
        self.refused: set[tuple[BrokerId, int]] = set()

    def begin(self, leader_epoch: int) -> None:
        """Begin another history."""
        self.committed = []
        self.seen = {}
        self.acked_end = 0
        self.since = leader_epoch

    def was_stored(self, partition_epoch: int, state: PartitionState) -> list[StoredPartition]:
        """All that was stored with this state at this partition epoch."""
        return [each for each in self.states.get(partition_epoch, ()) if each.state == state]

    def commit(self, image: LogImage, end: int) -> Record | None:
        """Commit everything below `end`. Return a batch that is committed twice, if there is one, even if retention has
        removed the first."""
        self.committed += [None] * (image.start - len(self.committed))
        for offset in range(len(self.committed), end):
            record = image.records[offset - image.start]
            self.committed.append(record)
            if record.producer >= 0 and self.seen.setdefault(_rows(record.content), offset) != offset:
                return record
        return None

    def wrote(self, image: LogImage, offset: int) -> None:
        """Note what a leader wrote at the end of its log."""
        record = image.at(offset)
        if record is not None:
            self.written[record.epoch, offset] = record, image.at(offset - 1)

    def holds(self, offset: int, content: bytes) -> bool:
        """Whether this batch is committed there. Where this history knows no record, whether a leader wrote the batch
        there: a retry is recognised after retention, too."""
        if offset >= len(self.committed):
            return False
        found = self.committed[offset]
        if found is not None:
            return _rows(found.content) == _rows(content)
        written = (self.written.get((epoch, offset)) for epoch in range(self.since + 1))
        return any(each is not None and _rows(each[0].content) == _rows(content) for each in written)

    def mismatch(self, image: LogImage) -> int | None:
        """The first offset whose record, or the record before it, is not what the leader of its epoch had there."""
        before: Record | None = None
        for offset, record in enumerate(image.records, image.start):
            written, followed = self.written.get((record.epoch, offset), (record, before))
            if written != record or (before is not None and followed is not None and before != followed):
                return offset
            before = record
        return None

    def agreed(self, image: LogImage) -> int:
        """Up to which offset the records of this log, from its start on, are the committed ones."""
        records, start, committed = image.records, image.start, self.committed
        agreed, most = max(image.agreed, start), min(len(committed), image.end)
        while agreed < most and committed[agreed] in (records[agreed - start], None):
            agreed += 1
        image.agreed = agreed
        return agreed


def digest_of(content: bytes) -> int:
    """As storage.format.row_digest has it of rows."""
    return crc32c(_rows(content)) & (DIGEST - 1) | DIGEST


def _rows(content: bytes) -> bytes:
    return content.partition(ATTEMPT)[0]


def led_from_outside(before: PartitionState | None, after: PartitionState) -> bool:
    """Whether this change is an election from outside ISR and ELR, and not a later change of its outcome."""
    if before is None or after.leader is None or after.elected not in FROM_OUTSIDE:
        return False
    if after.leader_epoch == before.leader_epoch:
        return False
    return before.leader is None or before.leader != after.leader or _joined_anew(before, after)


def _joined_anew(before: PartitionState, after: PartitionState) -> bool:
    """Whether the leader was no member of ISR or ELR, or was void."""
    leader = after.leader
    return leader is not None and before.epochs.get(leader) != after.epochs[leader]


def untold_loss(story: Story, before: PartitionState | None, after: PartitionState, held: int) -> str | None:
    """What is wrong with the possible loss that a changed leaderAndISR shows; None if it is as it should be.

    `held` is how many of the committed records the leader has. An election by the logs, or by hand, of a member of ISR
    or ELR loses nothing.
    """
    was, found = None if before is None or after.created > before.created else loss_of(before), loss_of(after)
    if (
        before is None
        or after.created > before.created
        or not (led_from_outside(before, after) and _joined_anew(before, after))
    ):
        if found == was or (found is None and was is not None and was.last_epoch <= story.acknowledged):
            return None
        return f"{was} has become {found}, and nobody was elected from outside, nor has a person acknowledged it"
    if found is None or found.last_epoch != after.leader_epoch:
        return f"a leader from outside leads at epoch {after.leader_epoch}, and {found} is shown"
    first = PossibleLoss(since_ms=found.since_ms, first_epoch=after.leader_epoch, last_epoch=after.leader_epoch)
    if (found.since_ms, found.first_epoch) != ((was or first).since_ms, (was or first).first_epoch):
        return f"{was} has become {found}, and begins later"
    if found.from_offset is not None and held < min(found.from_offset, story.acked_end):
        return f"acknowledged records are gone from {held} on, and {found} is shown"
    more = None if found.records_max is None else found.records_max - ((was or first).records_max or 0)
    if more is not None and story.acked_end - held > more:
        return f"{story.acked_end - held} acknowledged records are gone, and {was} has become {found}"
    return None


def loss_of(state: PartitionState) -> PossibleLoss | None:
    return None if isinstance(state.loss, UnsetType) else state.loss
