"""A producer's connection after its handshake: batches in, answers out. Only the broker's loop uses it.

put → engine.ends.put_end → ReplicaLoop.produce → high watermark → answer. Many answers go in one frame. A producer that
takes no answers is not read from.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from spark_replication.config import Compression, Settings
from spark_replication.engine.ends.put_end import Buffer, KeptBytes, PutEnd, PutStream, told
from spark_replication.engine.ends.puts import numbers_of
from spark_replication.engine.replica.partition import FindPartition
from spark_replication.errors import CorruptLog, InvalidRequest, without_frames
from spark_replication.messages.lane import PutAnswersFrame, PutFrame, StreamFrame
from spark_replication.ports import PreparedBatch
from spark_replication.storage.format.batches import TopicSchema, as_sent, schema_from_bytes
from spark_replication.storage.format.soundness import require_shown
from spark_replication.transport.frames.client_connection import Admitted, ClientConnection
from spark_replication.transport.meter import PUT, Meter, Traffic, count_puts
from spark_replication.transport.sockets.aside import Aside
from spark_replication.transport.sockets.frames import ReceivedFrame, encoded
from spark_replication.transport.sockets.socket_loop import SocketLoop, loop_ms

# Memory that one connection may hold.
SCHEMA_BYTES_MAX = 16 << 20
HEADER_BYTES_MAX = 64 << 10  # of a frame, beside a batch or a schema


class ProducerShared:
    """What all producers' connections of a broker share."""

    def __init__(
        self,
        loop: SocketLoop,
        aside: Aside,
        find: FindPartition,
        schema_of: Callable[[str], TopicSchema],
        settings: Settings,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        """schema_of: finds a topic's schema; called for each batch, since a topic may be widened."""
        self.loop = loop
        self.aside = aside
        self.find = find
        self.settings = settings
        self.now_ms = now_ms
        self.meter = Meter((PUT,))
        self.produced = Traffic()
        self.frame_bytes_max = max(settings.batch_bytes_max, SCHEMA_BYTES_MAX) + HEADER_BYTES_MAX
        self.kept = KeptBytes(settings.flight_write_bytes_max // 4)
        self._schema_of = schema_of

    def prepare(self, stream: PutStream, frame: PutFrame, payload: Buffer, compression: Compression) -> PreparedBatch:
        if isinstance(stream.schema, InvalidRequest):
            raise InvalidRequest(stream.schema.message)
        return as_sent(
            payload,
            stream.schema,
            self._schema_of(stream.topic),
            crc=frame.crc,
            batch_bytes_max=self.settings.batch_bytes_max,
            compression=compression,
            **numbers_of(frame.batch),
        )

    def accepted(self, batch: PreparedBatch) -> None:
        self.produced.moved(batches=1, records=batch.rows, count_bytes=len(batch.message))


class ProducerConnection(ClientConnection):
    def __init__(self, lane: ProducerShared, client: Admitted) -> None:
        super().__init__(lane.loop, client)
        client.receiver.frame_bytes_max = lane.frame_bytes_max
        self._lane = lane
        self._schema_bytes = 0
        self._end = PutEnd(
            client.rights.guarded(lane.find, client.caller, "write"),
            lane.prepare,
            lane.aside.of(self),
            lane.kept,
            timeout_ms=lane.settings.request_timeout_ms,
            unanswered_max=lane.settings.stream_unanswered_max,
            clock_ms=loop_ms,
            now_ms=lane.now_ms,
            accepted=lane.accepted,
            wake=lambda: lane.loop.post(self.wake),
        )

    def take(self, received: ReceivedFrame) -> None:
        frame, payload = received
        self.share.take("producer_byte_rate", len(payload))
        if isinstance(frame, PutFrame):
            self._end.put(frame, payload)
        elif isinstance(frame, StreamFrame):
            self._open(frame, payload)
        else:
            raise InvalidRequest(f"a producer sends streams and batches, not {type(frame).__name__}")

    def _open(self, frame: StreamFrame, payload: memoryview) -> None:
        self._schema_bytes += len(payload)
        if self._schema_bytes > SCHEMA_BYTES_MAX:
            raise InvalidRequest(f"the schemas of a connection take over {SCHEMA_BYTES_MAX} bytes: connect again")
        self._end.opened(frame.stream, frame.topic, frame.topic_id, _schema(payload))

    def do_due(self, now_ms: float) -> float:
        self._end.owed.expire(now_ms)
        self._say_known(now_ms)
        waits_until_ms = self.waits_until_ms(now_ms, "producer_byte_rate")
        is_sent = self.outbox.flush()
        self.reads = is_sent and not self._end.is_full and waits_until_ms <= now_ms
        due_ms = self._end.owed.due_ms
        return due_ms if waits_until_ms <= now_ms else min(due_ms, waits_until_ms)

    def _say_known(self, now_ms: float) -> None:
        known = self._end.owed.take()
        if known:
            count_puts(self._lane.meter, known, now_ms)
            self.outbox.put(encoded(PutAnswersFrame(answers=tuple(map(told, known)))))

    def over(self) -> None:
        self._end.closed()

    def last_words(self) -> None:
        self._say_known(loop_ms())


def _schema(payload: memoryview) -> pa.Schema | InvalidRequest:
    """An error: the stream's batches are refused with it, and other streams go on."""
    try:
        schema = schema_from_bytes(bytes(payload), "a stream")  # copied: the receive buffer is used again
    except CorruptLog as error:
        raise InvalidRequest(f"{error.message}: a stream begins with one") from error
    try:
        require_shown(schema)
    except InvalidRequest as error:
        return without_frames(error)
    return schema
