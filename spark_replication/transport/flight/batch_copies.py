"""A broker's own bytes of a batch, for another whose disk has lost them (engine.broker.mending)."""

from __future__ import annotations

from spark_replication.engine.replica.partition import FindPartition
from spark_replication.errors import CorruptLog, OffsetOutOfRange, StorageFailed, UnknownTopicOrPartition
from spark_replication.messages.mending import BatchCopy, CopyBatch
from spark_replication.storage.format.batches import check_data


def copy_of(find: FindPartition, wanted: CopyBatch) -> BatchCopy:
    """Read the disk without having the partition. Raises the error that says why there is no such copy here."""
    partition = find(wanted.topic_partition)
    with partition as replica:
        if replica.topic_id != wanted.topic_id:
            raise UnknownTopicOrPartition(
                f"{replica.partition} is topic {replica.topic_id} here, not {wanted.topic_id}"
            )
        log = replica.log
        records = log.find(wanted.base_offset, bytes_max=1, end=log.log_end)
    if records is None:
        raise OffsetOutOfRange(f"the log of {wanted.topic_partition} ends below {wanted.base_offset} here")
    try:
        loaded = records.loaded()
        (entry,) = check_data(loaded)
    except (CorruptLog, StorageFailed):
        with partition as replica:
            replica.damage.require_none(records)
        raise
    if (entry.base_offset, entry.last_offset, entry.crc) != (wanted.base_offset, wanted.last_offset, wanted.crc):
        raise OffsetOutOfRange(f"{wanted.topic_partition} has another batch at {wanted.base_offset} here")
    return BatchCopy(data=bytes(loaded.data))
