"""Copies back what a replica's disk has lost, from any other replica of its partition (D1).

The bytes of a batch count only if they have the CRC-32C that this replica's own entry names. So it does not matter
whose copy they are, who leads, or who is in sync, and nothing is decided: the log is what it was before, and readable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from spark_replication.engine.broker.broker_loop import BrokerLoop
from spark_replication.engine.replica.partition import Partition
from spark_replication.errors import ReplicationError, StorageFailed
from spark_replication.messages.mending import CopyBatch
from spark_replication.model import BrokerId, TopicPartition
from spark_replication.ports import DamagedBatch

#: Asks a broker for the bytes of a batch. Raises ReplicationError if that has none.
Copy = Callable[[BrokerId, CopyBatch], bytes]


class Tried(NamedTuple):
    """What became of a damaged batch."""

    batch: DamagedBatch
    #: Whose copy has mended it; None if nobody's could.
    source: BrokerId | None
    #: Why nobody's could; empty if one has.
    why: str = ""


def sources(loop: BrokerLoop, name: TopicPartition) -> list[BrokerId]:
    """The other brokers that may have the records of this partition, whoever knows most first."""
    me = loop.me
    metadata = loop.metadata((name.topic,), None, {name.topic: (name.partition,)})
    found = [each for topic in metadata.topics for each in topic.partitions if each.topic_partition == name]
    if me is None or not found:
        return []
    (known,) = found
    others = [broker for broker in known.replicas if broker != me.broker and broker in loop.brokers]
    return sorted(others, key=lambda broker: (broker != known.state.leader, broker not in known.state.isr))


def mend(partition: Partition, others: list[BrokerId], copy: Copy) -> Iterator[Tried]:
    """Try to mend each damaged batch of this replica. Nobody waits for it but the caller: the partition is taken to
    read and to write a batch, not while others are asked."""
    with partition as replica:
        try:
            damaged = replica.damage.look_again()
        except StorageFailed as error:  # of its index
            replica.disk_trouble.refused(replica.part, error)
            return
    for batch in damaged:
        yield _tried(partition, batch, others, copy)


def _tried(partition: Partition, batch: DamagedBatch, others: list[BrokerId], copy: Copy) -> Tried:
    name = partition.topic_partition
    wanted = CopyBatch(
        topic=name.topic,
        partition=name.partition,
        topic_id=partition.topic_id,
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        crc=batch.crc,
    )
    why = "no other replica is on a registered broker"
    for other in others:
        try:
            data = copy(other, wanted)
            with partition as replica:
                replica.mend(batch, data)
        except ReplicationError as error:
            why = f"with the copy of broker {other}: {error}"
        else:
            return Tried(batch, other)
    return Tried(batch, None, why)
