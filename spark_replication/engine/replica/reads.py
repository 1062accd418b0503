"""A consumer's look into a partition: where its read is, and what comes next."""

from __future__ import annotations

from typing import NamedTuple

from spark_replication.core.replica.epochs import NO_EPOCH
from spark_replication.core.replica.read_start import ReadPlace
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import LogTruncated, ReplicationError, UnknownTopicOrPartition, mistake
from spark_replication.messages.records import ReadTicket
from spark_replication.model import Offset
from spark_replication.ports import Records


class LogLook(NamedTuple):
    #: Where the read was at this look.
    place: ReadPlace
    high_watermark: Offset
    #: None if there is nothing (yet).
    records: Records | None

    @property
    def offset(self) -> Offset:
        return self.place.offset


def look(replica: ReplicaLoop, ticket: ReadTicket, place: ReadPlace | None, bytes_max: int) -> LogLook:
    """place: where the read is. None until its first look, which decides where it begins: whoever goes on after a
    broken connection goes on from there.

    Raises LogTruncated if the log was cut below that place. Raises OffsetNotAvailable if the read would end where this
    leader does not know that nothing more is committed (K1). What nobody expected is raised as a ReplicationError, too:
    a look changes nothing, so nothing is half done (engine.replica.partition.is_half_done), and its reader alone is
    refused.
    """
    try:
        return _look(replica, ticket, place, bytes_max)
    except (OSError, ReplicationError):
        raise
    except Exception as error:
        raise mistake(error, "this read") from error


def _look(replica: ReplicaLoop, ticket: ReadTicket, place: ReadPlace | None, bytes_max: int) -> LogLook:
    if ticket.topic_id not in (None, replica.topic_id):
        raise UnknownTopicOrPartition(
            f"{replica.partition} is of topic_id {replica.topic_id} here, not {ticket.topic_id}: the topic was made "
            "again, or this broker is yet to hear of that"
        )
    replica.served_end(any_replica=ticket.any_replica)  # refuses whoever asks a replica that serves nothing
    if place is None:
        place = _beginning(replica, ticket)
    _refuse_cut(replica, place)
    if place.last_epoch == NO_EPOCH:
        place = place._replace(last_epoch=replica.epoch_before(place.offset, any_replica=ticket.any_replica))
    high_watermark = replica.high_watermark
    if is_over(ticket, place.offset):
        return LogLook(place, high_watermark, None)
    found = replica.read(place.offset, bytes_max=bytes_max, to=ticket.to, any_replica=ticket.any_replica)
    if found is None and not ticket.max_wait_ms:
        replica.committed_end(any_replica=ticket.any_replica)
    return LogLook(place, high_watermark, found)


def _beginning(replica: ReplicaLoop, ticket: ReadTicket) -> ReadPlace:
    offset = replica.start_of(ticket.start, any_replica=ticket.any_replica)
    return ReadPlace(offset, NO_EPOCH if ticket.last_epoch is None else ticket.last_epoch)


def _refuse_cut(replica: ReplicaLoop, place: ReadPlace) -> None:
    cut = replica.cut_below(place)
    if cut is not None:
        raise LogTruncated(
            f"{replica.partition} was read up to offset {place.offset}, in leader epoch {place.last_epoch}, and has "
            f"been cut at {cut} since: an unclean election has lost the records from there on, or the partition was "
            f"removed and added again. Other records may have their offsets: read on from {cut} if that will do"
        )


def is_over(ticket: ReadTicket, offset: Offset) -> bool:
    return ticket.to is not None and offset >= ticket.to
