"""Readers that look on while things are killed: what they were given must be what was acknowledged, and what a leader
has called committed it never takes back."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Protocol

import msgspec
from pyarrow import flight

import spark_replication as sr
from spark_replication.messages.envelope import from_json, to_json
from spark_replication.messages.records import BatchPosition, ReadTicket
from spark_replication.transport.security.security import Security
from tests.live.cluster.history import Load

DEADLINE_S = 60.0
LOOK_S = 0.2
ASK_S = 1.0

Process = tuple[int, int]  # a pid, and a partition that it leads


class Member(Protocol):
    """A broker that serves."""

    @property
    def pid(self) -> int: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


class Witnessed(Protocol):
    """The cluster that is looked at."""

    @property
    def zookeeper(self) -> str: ...

    @property
    def security(self) -> Security: ...

    @property
    def brokers(self) -> Mapping[int, Member]: ...


class Watermark(msgspec.Struct, frozen=True):
    high_watermark: int
    before: int


class Witness:
    """One reader follows each partition, every other of them at a follower; each leader is asked for its high watermark
    again and again."""

    def __init__(self, cluster: Witnessed, topic: str, partitions: int) -> None:
        self.errors: list[Exception] = []
        self.fell: list[tuple[Process, Watermark]] = []
        self._cluster = cluster
        self._topic = topic
        self._read: list[list[int]] = [[] for _ in range(partitions)]
        self._highest: dict[Process, int] = {}
        self._readers = [
            sr.Reader(
                cluster.zookeeper,
                security=cluster.security,
                prefer="follower" if partition % 2 else "leader",
                deadline_ms=60_000,
            )
            for partition in range(partitions)
        ]
        self._stopping = threading.Event()
        self._progress = threading.Condition()
        self._threads = [threading.Thread(target=self._follow, args=(number,)) for number in range(partitions)]
        self._threads.append(threading.Thread(target=self._look))

    def __enter__(self) -> Witness:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.set()
        for reader in self._readers:
            reader.close()
        for thread in self._threads:
            thread.join()
        if error is None:
            assert len(self._highest) >= len(self._read), "somebody led each partition"
            assert not self.fell, self.fell

    def check(self, load: Load) -> None:
        """Of a load that has ended: each reader comes to its end, and was given each acknowledged row at its offset."""
        for partition, read in enumerate(self._read):
            sent = [found for found in load.acknowledged if found.partition == partition]
            end = sent[-1].offset + 1
            with self._progress:
                self._progress.wait_for(partial(self._is_over, read, end), DEADLINE_S)
            assert not self.errors, self.errors
            assert len(read) >= end, f"the reader of partition {partition} has {len(read)} of {end} rows"
            wrong = [found for found in sent if read[found.offset] != found.number]
            assert not wrong, f"{len(wrong)} acknowledged rows were read as others, the first: {wrong[0]}"

    def _is_over(self, read: list[int], end: int) -> bool:
        return bool(self.errors) or len(read) >= end

    def _follow(self, partition: int) -> None:
        read = self._read[partition]
        try:
            for found in self._readers[partition].read(self._topic, partition=partition, follow=True):
                assert found.base_offset == len(read), f"offset {found.base_offset} came after {len(read) - 1}"
                with self._progress:
                    read.extend(found.batch.column(0).to_pylist())
                    self._progress.notify_all()
        except Exception as error:  # noqa: BLE001 (told to the test's thread)
            with self._progress:
                self.errors.append(error)
                self._progress.notify_all()

    def _look(self) -> None:
        """A process that leads twice, and followed in between, has still seen all that it had called committed."""
        while not self._stopping.wait(LOOK_S):
            self._look_at_all()
        self._look_at_all()  # once at least, however short the story is

    def _look_at_all(self) -> None:
        for broker, member in self._cluster.brokers.items():
            for partition in range(len(self._read)):
                self._look_at(broker, member.pid, f"{member.host}:{member.port}", partition)

    def _look_at(self, broker: int, pid: int, address: str, partition: int) -> None:
        ticket = ReadTicket(topic=self._topic, partition=partition, from_offset="latest", to=0)
        try:
            with self._cluster.security.client(address) as client:
                options = flight.FlightCallOptions(timeout=ASK_S)
                chunk = client.do_get(flight.Ticket(to_json(ticket)), options).read_chunk()
        except (flight.FlightError, OSError, StopIteration):
            return  # it does not lead, or does not live
        now = self._cluster.brokers.get(broker)
        if now is None or now.pid != pid:
            return  # its next life took the same port, and answered
        high_watermark = from_json(chunk.app_metadata.to_pybytes(), BatchPosition).high_watermark
        before = self._highest.get((pid, partition), 0)
        if high_watermark < before:
            self.fell.append(((pid, partition), Watermark(high_watermark, before)))
        self._highest[pid, partition] = max(before, high_watermark)
