"""What one partition has been through, as somebody sees it who sees everything.

committed: the records below the highest high watermark of any leader, in their order. An election from outside ISR and
ELR begins another history (acknowledged records may be gone, and that is on record), and so does a partition that was
removed and is added again: what leaders of earlier epochs still commit belongs to no history.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_replication.core.law.writes import StoredPartition
from spark_replication.model import BrokerId, PartitionState, TopicPartition
from spark_replication.sim.world.disk import LogImage, Record

ATTEMPT = b"/"  # what follows it in a batch does not count: the same rows in another order
FROM_OUTSIDE = frozenset({"last_known_leader", "unclean", "unclean_recovery", "designated"})


class Answered(NamedTuple):
    """log_end: its last written epoch, and where its log ends."""

    controller_epoch: int
    leader_epoch: int
    broker_epoch: int
    log_end: tuple[int, int]


class Story:
    """since: the leader epoch that the present history began with. states: by partition epoch, everything ever stored.

    acked: the offsets below `committed` that were acknowledged with acks=all are those up to here.
    """

    def __init__(self, partition: TopicPartition, topic_id: str) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self.stored: StoredPartition | None = None
        self.states: dict[int, StoredPartition] = {}
        self.leaders: dict[int, BrokerId] = {}
        self.committed: list[Record | None] = []  # None: trimmed before this history began
        self.seen: dict[bytes, int] = {}  # the batches of idempotent producers, by what is in them
        self.acked_end = 0
        self.since = 0
        self.created = 0
        # What the leader of an epoch wrote at an offset, and the record that it had before it.
        self.written: dict[tuple[int, int], tuple[Record, Record | None]] = {}
        # Who has answered an unclean recovery of which controller epoch, and who had when the latest election by such a
        # recovery was decided.
        self.answers: dict[tuple[int, BrokerId], Answered] = {}
        self.decided_on: dict[BrokerId, Answered] = {}
        # When a controller first asked somebody at a leader epoch.
        self.asked_ms: dict[tuple[int, int], int] = {}
        # Whose disk has refused, in which life.
        self.refused: set[tuple[BrokerId, int]] = set()

    def begin(self, leader_epoch: int) -> None:
        """Another history."""
        self.committed = []
        self.seen = {}
        self.acked_end = 0
        self.since = leader_epoch

    def commit(self, image: LogImage, end: int) -> Record | None:
        """Everything below `end` is committed. The batch that is committed twice, if there is one, wherever retention
        has put the first."""
        self.committed += [None] * (image.start - len(self.committed))
        for offset in range(len(self.committed), end):
            record = image.records[offset - image.start]
            self.committed.append(record)
            if record.producer >= 0 and self.seen.setdefault(_rows(record.content), offset) != offset:
                return record
        return None

    def wrote(self, image: LogImage, offset: int) -> None:
        """A leader, at the end of its log."""
        record = image.at(offset)
        if record is not None:
            self.written[record.epoch, offset] = record, image.at(offset - 1)

    def holds(self, offset: int, content: bytes) -> bool:
        """It is committed there. Below what this history knows, some leader wrote it there: a retry is recognised after
        retention, too."""
        if offset >= len(self.committed):
            return False
        found = self.committed[offset]
        if found is not None:
            return _rows(found.content) == _rows(content)
        written = (self.written.get((epoch, offset)) for epoch in range(self.since + 1))
        return any(each is not None and _rows(each[0].content) == _rows(content) for each in written)

    def mismatch(self, image: LogImage) -> int | None:
        """The first offset whose record is not what its epoch's leader wrote there, or follows another than it did."""
        before: Record | None = None
        for offset, record in enumerate(image.records, image.start):
            written, followed = self.written.get((record.epoch, offset), (record, before))
            if written != record or (before is not None and followed is not None and before != followed):
                return offset
            before = record
        return None

    def agreed(self, image: LogImage) -> int:
        """Up to which offset the records of this log are the committed ones, as far as it goes back."""
        records, start, committed = image.records, image.start, self.committed
        agreed, most = max(image.agreed, start), min(len(committed), image.end)
        while agreed < most and committed[agreed] in (records[agreed - start], None):
            agreed += 1
        image.agreed = agreed
        return agreed


def _rows(content: bytes) -> bytes:
    return content.partition(ATTEMPT)[0]


def led_from_outside(before: PartitionState | None, after: PartitionState) -> bool:
    """This change is an election from outside ISR and ELR, and no later change of what it led to."""
    if before is None or after.leader is None or after.elected not in FROM_OUTSIDE:
        return False
    if after.leader_epoch == before.leader_epoch:
        return False
    rejoined = before.epochs.get(after.leader) != after.epochs[after.leader]
    return before.leader is None or before.leader != after.leader or rejoined
