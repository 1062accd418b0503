"""A topic as planners and tasks ask for it: one connection of this process to its cluster, kept for the next task."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from spark_replication.client.deadline import Deadline, back_off_s
from spark_replication.client.log_batch import LogBatch
from spark_replication.client.reader import Preference, Reader
from spark_replication.errors import InvalidRequest, OffsetOutOfRange
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.messages.ranges import FoundRange, WantedRange
from spark_replication.model import AtTime, Offset
from spark_replication.spark.datasource.options import LogOptions
from spark_replication.spark.datasource.positions import Place

HEARD_BY_ALL_MS = 3_000
ASK_AGAIN_S = 0.1

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)


class Topic:
    """Stateless but for the connection."""

    def __init__(self, options: LogOptions) -> None:
        self.name = options.topic
        self._options = options
        self._reader = _reader_of(options)

    def metadata(self, topic_id: str | None = None) -> TopicMetadata:
        """topic_id: InvalidRequest if another topic has its name."""
        if topic_id is None:
            return self._reader.topic(self.name)
        return self._of(topic_id, lambda: self._reader.topic(self.name), lambda found: [found.topic_id])

    def found(
        self,
        starts: Mapping[int, Place | AtTime],
        *,
        topic_id: str,
        ends: Mapping[int, Offset] | None = None,
        piece_bytes: Mapping[int, int] | None = None,
    ) -> dict[int, FoundRange]:
        """By partition, of [start, end); without an end, of what is committed now. InvalidRequest: another topic has
        its name."""
        wanted = [
            WantedRange(
                topic=self.name,
                partition=partition,
                start=0 if isinstance(start, AtTime) else start,
                from_time=start.time_ms if isinstance(start, AtTime) else None,
                to=None if ends is None else ends[partition],
                piece_bytes=(piece_bytes or {}).get(partition, 0),
            )
            for partition, start in starts.items()
        ]

        def ask() -> dict[int, FoundRange]:
            return {each.partition: each for each in self._reader.ranges(wanted).values()}

        return self._of(topic_id, ask, lambda found: [each.topic_id for each in found.values()])

    def _of(self, topic_id: str, ask: Callable[[], Answer], ids: Callable[[Answer], Iterable[str]]) -> Answer:
        """Brokers hear of a topic that is made again at different times: what they all say after a while is so."""
        deadline = Deadline(HEARD_BY_ALL_MS)
        while True:
            answer = ask()
            others = sorted(set(ids(answer)) - {topic_id})
            if not others:
                return answer
            if deadline.passed:
                raise InvalidRequest(
                    f"{self.name} was deleted and made again (topic_id {topic_id} before, {others[0]} at present): its "
                    "offsets begin anew. Read it with a new query, and a stream with a new checkpoint"
                )
            time.sleep(ASK_AGAIN_S)

    def kept_from(self, found: FoundRange) -> Offset:
        """Where to begin in place of an offset that retention has removed. OffsetOutOfRange, if that is to fail."""
        if found.start >= found.log_start:
            return found.start
        name = found.topic_partition
        if self._options.fail_on_data_loss:
            raise OffsetOutOfRange(
                f"{name}: offset {found.start} was next, and the log begins at {found.log_start}: retention has "
                f"removed {found.log_start - found.start} records. Read on without them by failOnDataLoss=false, "
                "and keep records for longer (retention.ms, retention.bytes)"
            )
        log.warning(
            "%s: records from offset %d to %d are gone, removed by retention: they are left out",
            name,
            found.start,
            found.log_start - 1,
        )
        return found.log_start

    def read(
        self, partition: int, start: Offset, end: Offset, columns: Sequence[str], *, topic_id: str
    ) -> Iterator[LogBatch]:
        """All of [start, end), which was committed when it was planned, whoever leads meanwhile. A leader that was
        elected a moment ago may know of a lower high watermark, for a while."""
        offset, deadline, failures = start, Deadline(self._options.deadline_ms), 0
        while True:
            (found,) = self.found({partition: offset}, topic_id=topic_id).values()
            before = offset = min(end, self.kept_from(found))
            try:
                for batch in self._reader.read(self.name, partition, offset, end, columns=columns, topic_id=topic_id):
                    offset = batch.last_offset + 1
                    yield batch
            except OffsetOutOfRange:  # retention was faster: looked at with the next turn
                pass
            if offset >= end:
                return
            if offset > before:
                deadline, failures = Deadline(self._options.deadline_ms), 0
            if deadline.passed:
                raise OffsetOutOfRange(
                    f"{self.name}-{partition} has no records from offset {offset} to {end - 1}, which were committed "
                    f"when this read was planned, for {self._options.deadline_ms} ms: an unclean election has lost "
                    "them. Read it anew"
                )
            failures += 1
            time.sleep(min(back_off_s(failures), deadline.remaining_s))


_readers: dict[tuple[object, ...], Reader] = {}


def _reader_of(options: LogOptions) -> Reader:
    """Spark gives the next task to the same process: connecting anew would take longer than a small task. A fork makes
    its own."""
    prefer: Preference = "near" if options.local_reads else "leader"
    key = (os.getpid(), options.bootstrap, prefer, options.deadline_ms, *sorted(options.security.items()))
    if key not in _readers:
        _readers[key] = Reader(
            options.bootstrap, security=options.security or None, prefer=prefer, deadline_ms=options.deadline_ms
        )
    return _readers[key]
