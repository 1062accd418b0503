"""A reader's bytes are read without its partition's guard: what happens to them meanwhile is not served."""

from __future__ import annotations

import pytest

from spark_replication.core.replica.read_start import ReadPlace
from spark_replication.engine.replica.damage import Damage
from spark_replication.errors import StorageFailed
from spark_replication.messages.records import ReadTicket
from spark_replication.model import Offset, Start, TopicPartition
from spark_replication.ports import Records
from spark_replication.transport.flight.limits import Room
from spark_replication.transport.flight.read_stream import ReadStream
from spark_replication.transport.meter import Traffic
from tests.unit.storage.storage_stories import SCHEMA, prepared
from tests.unit.transport.replicas import Brokers

ORDERS = TopicPartition("orders", 0)
TICKET = ReadTicket(topic="orders", partition=0)


class CutMeanwhile:
    """A replica whose log is cut, and written anew, after a reader has found its bytes and before it reads them."""

    def __init__(self, brokers: Brokers) -> None:
        broker = brokers.start(1)
        broker.command(ORDERS, 1, (1,))
        broker.produce(ORDERS, 3)
        self._replica = broker.replica(ORDERS)
        self.topic_id = self._replica.topic_id
        self.high_watermark: Offset = self._replica.high_watermark
        self.looks = 0

    @property
    def damage(self) -> Damage:
        return self._replica.damage

    def __enter__(self) -> CutMeanwhile:
        return self

    def __exit__(self, *error: object) -> None: ...

    def start_of(self, start: Start, *, any_replica: bool) -> Offset:
        return self._replica.start_of(start, any_replica=any_replica)

    def served_end(self, *, any_replica: bool) -> Offset:
        return self._replica.served_end(any_replica=any_replica)

    def committed_end(self, *, any_replica: bool) -> Offset:
        return self._replica.committed_end(any_replica=any_replica)

    def epoch_before(self, offset: Offset, *, any_replica: bool) -> int:
        return self._replica.epoch_before(offset, any_replica=any_replica)

    def cut_below(self, place: ReadPlace) -> Offset | None:
        return self._replica.cut_below(place)

    def read(self, offset: Offset, *, bytes_max: int, to: Offset | None, any_replica: bool) -> Records | None:
        found = self._replica.read(offset, bytes_max=bytes_max, to=to, any_replica=any_replica)
        self.looks += 1
        if self.looks == 1:
            log = self._replica.log
            log.truncate(2)
            log.append(prepared(100), leader_epoch=0, timestamp_ms=0)
            log.append(prepared(200), leader_epoch=0, timestamp_ms=0)
        return found


def room() -> Room:
    return Room(1 << 20, "room", wait_s=0)


def rows(stream: ReadStream) -> list[int]:
    return [row for batch, _ in stream.batches() for row in batch.column("row").to_pylist()]


def test_what_was_cut_before_it_was_read_is_looked_for_again(brokers: Brokers) -> None:
    replica = CutMeanwhile(brokers)
    stream = ReadStream(lambda: replica, SCHEMA, TICKET, room(), lambda: False, traffic=Traffic(), pace=lambda _: None)  # type: ignore[arg-type,return-value]
    stream.begin()
    assert (rows(stream), replica.looks) == ([0, 1, 100, 101, 200, 201], 3)


def test_bytes_that_are_damaged_on_the_disk_are_refused(brokers: Brokers) -> None:
    broker = brokers.start(1)
    broker.command(ORDERS, 1, (1,))
    broker.produce(ORDERS, 3)
    data = broker.folder(ORDERS) / f"{0:020}.arrow"
    content = bytearray(data.read_bytes())
    content[-8] ^= 1
    data.write_bytes(content)
    with pytest.raises(StorageFailed, match=r"is damaged on this broker's disk, at offsets 4 to 5, at byte .* of /.*"):
        ReadStream(
            lambda: broker.partitions[ORDERS],
            SCHEMA,
            TICKET,
            room(),
            lambda: False,
            traffic=Traffic(),
            pace=lambda _: None,
        ).begin()
    (found,) = broker.partitions[ORDERS].damaged
    assert (found.base_offset, found.last_offset, found.file) == (4, 5, str(data))
