"""What a producer makes of the arguments of `send`: rows in a version of the topic's schema, and who sends them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from spark_replication.client.finding.deadline import Deadline, persistently
from spark_replication.client.finding.own_process import OwnProcess
from spark_replication.client.finding.routes import Routes
from spark_replication.client.producing.placing import Placing, Rounds
from spark_replication.client.producing.rows import Rows, one_batch
from spark_replication.client.producing.sender import Sender
from spark_replication.client.producing.senders import Senders
from spark_replication.core.routing import partition_of
from spark_replication.engine.client.numbers import Identity, number_within
from spark_replication.engine.client.sending import Ack, SenderSettings
from spark_replication.engine.client.window import Promise
from spark_replication.errors import InvalidRequest, RequestTimedOut, SchemaMismatch
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.model import NUMBER_MAX, TopicPartition
from spark_replication.storage.format.batches import in_a_version, topic_schema

UNKNOWN_VERSION_MS = 3_000  # how long a batch is retried whose schema version no broker knows

#: The rows for each partition, in order of partition, and who sends them.
Parts = list[tuple[Sender, pa.RecordBatch]]


class AskedSend(NamedTuple):
    """The arguments of a call that may be carried out."""

    topic: str
    partition: int | None
    key: bytes | None
    #: Those that place each row. Empty: all rows go to one partition.
    columns: tuple[str, ...]
    deadline: Deadline


class Sends:
    """Thread-safe."""

    def __init__(
        self,
        routes: Routes,
        senders: Senders,
        identity: Identity,
        settings: SenderSettings,
        process: OwnProcess,
        *,
        is_fixed: bool,
    ) -> None:
        self._routes = routes
        self._senders = senders
        self._settings = settings
        self._process = process
        self._is_fixed = is_fixed
        self._rounds = Rounds(senders.of, settings.batch_bytes, identity.producer)

    def asked(self, topic: object, partition: object, key: object) -> AskedSend:
        """Check all arguments but the rows. Their time runs from here on."""
        self._process.require()
        self._senders.require_open()
        number = None if partition is None else number_within("partition", partition, NUMBER_MAX)
        if not isinstance(topic, str):
            raise InvalidRequest(f"topic={topic!r} is no text: name a topic")
        columns = _columns(number, key)
        if self._is_fixed and key is None and number is None:
            raise InvalidRequest("with an identity the same sends go to the same partitions: give partition= or key=")
        bytes_key = key if isinstance(key, bytes) else None
        return AskedSend(topic, number, bytes_key, columns, Deadline(self._settings.deadline_ms))

    def parts(self, asked: AskedSend, rows: Rows) -> Parts:
        """Wait until the topic is known, up to the deadline.

        SchemaMismatch is raised only after a second look at the topic, which may have been made again. A batch of a
        newer version is retried for UNKNOWN_VERSION_MS, so that brokers have time to learn of it."""
        found = self._routes.await_topic(asked.topic, asked.deadline, asked.partition)
        try:
            return self._placed(asked, found, _in_a_version(found, rows))
        except SchemaMismatch:
            within = asked.deadline.within_ms(UNKNOWN_VERSION_MS)

        def look_again() -> pa.RecordBatch:
            self._routes.stale_topic(asked.topic)
            return _in_a_version(self._routes.await_topic(asked.topic, asked.deadline, asked.partition), rows)

        return self._placed(asked, found, persistently(look_again, within))

    def parts_at_once(self, asked: AskedSend, rows: Rows) -> Parts | None:
        """As `parts`, without a question to anybody. None: that takes one."""
        found = self._routes.known_topic(asked.topic, asked.partition)
        if found is None:
            return None
        try:
            return self._placed(asked, found, _in_a_version(found, rows))
        except SchemaMismatch:
            return None

    def unanswered(self) -> tuple[list[Promise[Ack]], float]:
        """What has no answer yet, and for how many seconds it is waited for at most. Nothing of it waits for more sends
        to join its batch."""
        self._process.require()
        return self._senders.unanswered(), self._settings.deadline_ms / 1000 + 1.0

    def require_none(self, unanswered: int) -> None:
        """Raise RequestTimedOut if so many sends have no answer in spite of that."""
        if unanswered:
            raise RequestTimedOut(
                f"{unanswered} sends have no answer within {self._settings.deadline_ms} ms: ask their futures",
                maybe_written=True,
            )

    def _placed(self, asked: AskedSend, topic: TopicMetadata, rows: pa.RecordBatch) -> Parts:
        if asked.partition is not None:
            return [(self._sender(topic, asked.partition), rows)]
        self._senders.leaders.watch(topic.name)
        if asked.columns:
            return [(self._sender(topic, number), part) for number, part in _by_columns(topic, rows, asked.columns)]
        if asked.key is not None:
            return [(self._sender(topic, partition_of(topic, asked.key)), rows)]
        return [(self._rounds.taker(topic), rows)]

    def _sender(self, topic: TopicMetadata, number: int) -> Sender:
        return self._senders.of(TopicPartition(topic.name, number))


def _columns(partition: int | None, key: object) -> tuple[str, ...]:
    """The columns that `key` names."""
    if key is not None and partition is not None:
        raise InvalidRequest(f"partition={partition} and a key: give one of them")
    if key is None or isinstance(key, bytes):
        return ()
    columns = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, Sequence) else ()
    if not columns or not all(isinstance(name, str) for name in columns):
        raise InvalidRequest(f"key={key!r} is {type(key).__name__}: it is bytes, or the name of a column, or several")
    return columns


def _by_columns(topic: TopicMetadata, rows: pa.RecordBatch, columns: Sequence[str]) -> list[tuple[int, pa.RecordBatch]]:
    names = rows.schema.names
    for name in columns:
        if name not in names:
            raise InvalidRequest(f"key={name!r} is no column of {topic.name}: it has {', '.join(names)}")
    try:
        return list(Placing(topic.name, topic.numbers, columns, 0).parts(rows, rows))
    except pa.ArrowException as error:
        raise InvalidRequest(f"rows of {topic.name} cannot be placed by {', '.join(columns)}: {error}") from error


def _in_a_version(topic: TopicMetadata, rows: Rows) -> pa.RecordBatch:
    if not topic.config.schema:  # its brokers decide
        return one_batch(rows, topic.name, None)
    schema = topic_schema(topic.config)
    return in_a_version(one_batch(rows, topic.name, schema.newest), schema)
