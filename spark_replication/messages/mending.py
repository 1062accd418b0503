"""What a broker asks another for what its own disk has lost, and what it tells the controller of that (D1)."""

from __future__ import annotations

from spark_replication.messages.envelope import Message, Part
from spark_replication.model import BrokerId, Count, Epoch, Offset, PartitionNumber, ReplicaOf, TopicPartition


class CopyBatch(Message, frozen=True, kw_only=True):
    """Ask a replica, whatever its role, for the stored bytes of this very batch."""

    topic: str
    partition: PartitionNumber
    topic_id: str
    base_offset: Offset
    last_offset: Offset
    #: The CRC-32C of the bytes.
    crc: Count

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class BatchCopy(Message, frozen=True, kw_only=True):
    data: bytes


class DiskDamage(Part, frozen=True, kw_only=True):
    """What the disk of a replica did not give back as it was written, and whether it refuses writes."""

    #: How many batches are damaged.
    batches: Count
    #: How many were mended since their broker's process began.
    mended: Count
    #: One of those that are damaged, else of those that were, in words: offsets, file, what is wrong with it.
    words: str
    #: Whether it refused something within the last disk.retry.ms. A leader that is alone in the ISR says so here only:
    #: nobody could take over.
    refuses: bool = False


class DamagedReplica(Part, frozen=True, kw_only=True):
    replica: ReplicaOf
    damage: DiskDamage


class DiskDamaged(Message, frozen=True, kw_only=True):
    """Report all that this life of the broker knows of its disk, for people. A replica of an earlier report that it
    leaves out has no trouble any longer."""

    broker_id: BrokerId
    broker_epoch: Epoch
    replicas: tuple[DamagedReplica, ...]
