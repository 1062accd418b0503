"""DoGet of one partition: batches as they are stored, trimmed to what was asked, up to the high watermark.

A stream has one schema, that of the topic as the stream begins. Each batch is decoded with the schema of its own
segment. A batch of an earlier version gets nulls in the columns that came later; a batch of a later version is shown
without them.

If the ticket names no offset, the beginning is decided once, with the first look, and is the first message: whoever
goes on after a broken stream goes on from there. A wait for something new waits for the replica's progress, and never
polls. No partition is held between two batches.

What was read for a consumer stays in memory while the consumer does not take it. All streams together hold at most what
`room` has. Each look takes a part of what is left of it: the more the streams hold, the less the next one reads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from spark_replication.core.replica.epochs import NO_EPOCH
from spark_replication.core.replica.read_start import ReadPlace
from spark_replication.engine.replica.partition import Partition
from spark_replication.engine.replica.reads import LogLook, is_over, look
from spark_replication.errors import UnknownTopicOrPartition
from spark_replication.messages.envelope import to_json
from spark_replication.messages.records import BatchPosition, ReadTicket
from spark_replication.model import Offset
from spark_replication.ports import LogSlice
from spark_replication.storage.format.batches import are_versions, batches_of, in_pieces, projected, segment_schema
from spark_replication.storage.format.index import NO_TIMESTAMP
from spark_replication.transport.flight.actions import told_to_client
from spark_replication.transport.flight.limits import LOOK_S, Room
from spark_replication.transport.frames.loaded_reads import loaded
from spark_replication.transport.meter import Traffic

READ_BYTES = 1 << 20  # of one look into the log, which takes at least one batch
ROOM_SHARE = 16  # one look takes this part of the room that is left, at most

BatchWithMetadata = tuple[pa.RecordBatch, bytes]


class ReadStream:
    def __init__(
        self,
        find: Callable[[], Partition],
        schema: pa.Schema,
        ticket: ReadTicket,
        room: Room,
        is_cancelled: Callable[[], bool],
        *,
        traffic: Traffic,
        pace: Callable[[int], None],
    ) -> None:
        """is_cancelled: whether the consumer is gone. traffic: counts what is delivered. pace: told how many bytes of
        that there were; it returns once there may be more."""
        self._find_partition = find
        self._topic_schema = schema
        self._ticket = ticket
        self._room = room
        self._is_cancelled = is_cancelled
        self._traffic = traffic
        self._pace = pace
        self.schema = projected(schema, ticket.columns)
        self._places = [
            *(range(len(schema)) if ticket.columns is None else map(schema.get_field_index, ticket.columns))
        ]
        self._head = b""  # the schema of the segment that was read last
        self._is_of_topic_schema = False  # whether that segment has the topic's schema
        self._progress = threading.Event()
        self._waits_at: Partition | None = None  # whose progress this stream waits for
        self._place: ReadPlace | None = None  # until the first look
        self._taken = 0  # bytes of the room
        self._first: LogLook | None = None

    def begin(self) -> None:
        """Take the first look, so that a request that cannot be served is refused as a whole. Then call `close` in the
        end."""
        self._pace(0)
        self._first = self._look()

    def close(self) -> None:
        """Give back the room, and wait for no progress any longer."""
        self._give_back()
        partition, self._waits_at = self._waits_at, None
        if partition is not None:
            with partition as replica:
                replica.progress.leave(self._progress.set)

    def batches(self) -> Iterator[BatchWithMetadata]:
        with told_to_client():
            assert self._first is not None
            (offset, _), high_watermark, records = self._first
            self._first = None
            if not isinstance(self._ticket.start, int):
                yield self._beginning(offset, high_watermark)
            while True:
                if records is not None:
                    assert isinstance(records, LogSlice), "it was loaded"
                    yield from self._deliver(records, offset, high_watermark)
                elif not self._wait():
                    return
                if self._done():
                    return
                delivered = 0 if records is None else len(records.data)
                records = None  # so that it does not stay in memory while the next ones are read
                self._give_back()
                self._pace(delivered)
                (offset, _), high_watermark, records = self._look()

    def _done(self) -> bool:
        return self._place is not None and is_over(self._ticket, self._place.offset)

    def _look(self) -> LogLook:
        """What there is, if anything. If there is nothing, the next progress wakes this stream."""
        bytes_max = min(READ_BYTES, self._room.free // ROOM_SHARE)
        partition = self._find_partition()
        with partition as replica:
            looked = look(replica, self._ticket, self._place, bytes_max)
            self._place = looked.place
            if looked.records is None and not self._done() and self._ticket.max_wait_ms:
                self._progress.clear()
                replica.progress.await_next(self._progress.set)
                self._waits_at = partition
        if looked.records is None:
            return looked
        self._take(len(looked.records.data))
        return loaded(looked, self._find_partition, self._ticket)

    def _take(self, count: int) -> None:
        self._room.take(count, self._is_cancelled)
        self._taken = count

    def _give_back(self) -> None:
        count, self._taken = self._taken, 0
        if count:
            self._room.give_back(count)

    def _wait(self) -> bool:
        """Wait until something is new. False: it took too long, the consumer is gone, or there is nothing to wait
        for."""
        if self._done() or not self._ticket.max_wait_ms:
            return False
        deadline_s = time.monotonic() + self._ticket.max_wait_ms / 1000
        while (left_s := deadline_s - time.monotonic()) > 0 and not self._is_cancelled():
            if self._progress.wait(min(LOOK_S, left_s)):
                self._waits_at = None
                return True
        return False

    def _beginning(self, offset: Offset, high_watermark: Offset) -> BatchWithMetadata:
        nothing = pa.RecordBatch.from_pylist([], self.schema)
        position = BatchPosition(
            base_offset=offset, leader_epoch=NO_EPOCH, timestamp=NO_TIMESTAMP, high_watermark=high_watermark
        )
        return nothing, to_json(position)

    def _deliver(self, records: LogSlice, offset: Offset, high_watermark: Offset) -> Iterable[BatchWithMetadata]:
        """Deliver all of a slice in one step, unless its batches lack columns. Flight asks for each batch on a thread
        that is new to Python every time. The first call of a function takes 25 µs there: more than everything else
        about a small batch."""
        if records.schema != self._head:
            self._enter_segment(bytes(records.schema))
        shown = self._shown(records, offset, high_watermark)
        return [*shown] if self._is_of_topic_schema else shown

    def _shown(self, records: LogSlice, offset: Offset, high_watermark: Offset) -> Iterator[BatchWithMetadata]:
        to, columns = self._ticket.to, self._ticket.columns
        batches = rows = 0
        for entry, stored in batches_of(records):
            first = max(offset, entry.base_offset)
            beyond = entry.last_offset + 1 if to is None else min(to, entry.last_offset + 1)
            if first >= beyond:
                break
            wanted = stored
            if beyond - first < stored.num_rows:
                wanted = stored.slice(first - entry.base_offset, beyond - first)
            if not self._is_of_topic_schema:
                pieces: Iterable[pa.RecordBatch] = in_pieces(wanted, self._places, self.schema)
            else:
                pieces = (wanted if columns is None else wanted.select(self._places),)
            for batch in pieces:
                position = BatchPosition(
                    base_offset=first,
                    leader_epoch=entry.leader_epoch,
                    timestamp=entry.timestamp_ms,
                    high_watermark=high_watermark,
                )
                first += batch.num_rows
                self._place = ReadPlace(first, entry.leader_epoch)
                batches += 1
                rows += batch.num_rows
                yield batch, to_json(position)
        self._traffic.moved(batches=batches, records=rows, count_bytes=len(records.data))

    def _enter_segment(self, head: bytes) -> None:
        schema = segment_schema(head)
        if not are_versions(schema, self._topic_schema):
            raise UnknownTopicOrPartition(
                f"{self._ticket.topic} was made again, with another schema, since this stream began: read it anew"
            )
        self._head, self._is_of_topic_schema = head, schema.equals(self._topic_schema)
