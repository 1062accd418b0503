"""What one partition has been through, as somebody sees it who sees everything.

committed: the records below the highest high watermark of any leader, in their order. An election from outside ISR and
ELR begins another history (acknowledged records may be gone, and that is on record), and so does a partition that was
removed and is added again: what leaders of earlier epochs still commit belongs to no history.
"""

from __future__ import annotations

from spark_replication.core.law.writes import StoredPartition
from spark_replication.model import BrokerId, PartitionState, TopicPartition
from spark_replication.sim.world.disk import LogImage, Record

FROM_OUTSIDE = frozenset({"last_known_leader", "unclean", "unclean_recovery", "designated"})


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
        self.seen: dict[tuple[int, int, int], int] = {}
        self.acked_end = 0
        self.since = 0
        self.created = 0
        # Who has answered an unclean recovery of which controller epoch: at which leader epoch, in which life. And who
        # had, when the latest election by such a recovery was decided.
        self.answers: dict[tuple[int, BrokerId], tuple[int, int]] = {}
        self.decided_on: dict[BrokerId, tuple[int, int]] = {}

    def begin(self, leader_epoch: int) -> None:
        """Another history."""
        self.committed = []
        self.seen = {}
        self.acked_end = 0
        self.since = leader_epoch

    def commit(self, image: LogImage, end: int) -> Record | None:
        """Everything below `end` is committed. The record that is committed twice, if there is one."""
        self.committed += [None] * (image.start - len(self.committed))
        for offset in range(len(self.committed), end):
            record = image.records[offset - image.start]
            self.committed.append(record)
            if record.producer >= 0:
                key = record.producer, record.producer_epoch, record.sequence
                # Of what retention has deleted, a broker that was started since knows nothing.
                if image.start <= self.seen.setdefault(key, offset) != offset:
                    return record
        return None

    def agreed(self, image: LogImage) -> int:
        """Up to which offset the records of this log are the committed ones, as far as it goes back."""
        records, start, committed = image.records, image.start, self.committed
        agreed, most = max(image.agreed, start), min(len(committed), image.end)
        while agreed < most and committed[agreed] in (records[agreed - start], None):
            agreed += 1
        image.agreed = agreed
        return agreed


def led_from_outside(before: PartitionState | None, after: PartitionState) -> bool:
    """This change is an election from outside ISR and ELR, and no later change of what it led to."""
    if before is None or after.leader is None or after.elected not in FROM_OUTSIDE:
        return False
    if after.leader_epoch == before.leader_epoch:
        return False
    rejoined = before.epochs.get(after.leader) != after.epochs[after.leader]
    return before.leader is None or before.leader != after.leader or rejoined
