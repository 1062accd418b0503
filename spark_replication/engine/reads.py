"""A consumer's look into a partition: where its read is, and what comes next."""

from __future__ import annotations

from typing import NamedTuple

from spark_replication.engine.replica_loop import ReplicaLoop
from spark_replication.errors import UnknownTopicOrPartition
from spark_replication.messages.records import ReadTicket
from spark_replication.model import Offset
from spark_replication.ports import Records


class Looked(NamedTuple):
    #: Where the read was at this look.
    offset: Offset
    high_watermark: Offset
    #: None if there is nothing (yet).
    records: Records | None


def look(replica: ReplicaLoop, ticket: ReadTicket, offset: Offset | None, bytes_max: int) -> Looked:
    """offset: where the read is. None until its first look, which decides where it begins: whoever goes on after a
    broken connection goes on from there."""
    if ticket.topic_id not in (None, replica.topic_id):
        raise UnknownTopicOrPartition(
            f"{replica.partition} is of topic_id {replica.topic_id} here, not {ticket.topic_id}: the topic was made "
            "again, or this broker is yet to hear of that"
        )
    if offset is None:
        offset = replica.start_of(ticket.start, any_replica=ticket.any_replica)
    high_watermark = replica.high_watermark
    if is_over(ticket, offset):
        return Looked(offset, high_watermark, None)
    found = replica.read(offset, bytes_max=bytes_max, to=ticket.to, any_replica=ticket.any_replica)
    return Looked(offset, high_watermark, found)


def is_over(ticket: ReadTicket, offset: Offset) -> bool:
    return ticket.to is not None and offset >= ticket.to
