"""What a comparison asks of a cluster, ours or Kafka."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, Protocol

import msgspec

from spark_replication.admin.bench.replicate import BROKERS
from spark_replication.model import Scalar

#: What goes on beside a measurement. reassignment: replicas move from one broker to another.
Meanwhile = Literal["nothing", "catch-up", "paced-catch-up", "reassignment"]


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent to a topic, and read from it."""

    row_bytes: int
    batch_bytes: int
    partitions: int

    @property
    def rows_a_batch(self) -> int:
        return max(1, self.batch_bytes // self.row_bytes)


class Paced(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that are sent to a topic one by one, each when it is due."""

    row_bytes: int
    rows_per_s: int
    partitions: int
    meanwhile: Meanwhile = "nothing"


class Side(Protocol):
    """A cluster that takes the load."""

    name: str

    @property
    def bootstrap(self) -> str: ...

    @property
    def pids(self) -> tuple[int, ...]:
        """The brokers'."""

    def create(self, topic: str, partitions: int, config: Mapping[str, Scalar], replicas: int = BROKERS) -> None: ...

    def delete(self, topic: str) -> None: ...

    # Programs, each of which does what each line of its input asks for, and prints a line about it: see programs.

    def producer(self, topic: str, of: Rows) -> list[str]:
        """Asked for a number of batches, it sends them, and tells how many nanoseconds they took."""

    def consumer(self, topic: str, of: Rows, rows: int) -> list[str]:
        """However it is asked, it reads all of the topic, so many rows, and tells how many nanoseconds they took."""

    def paced(self, topic: str, of: Paced) -> list[str]:
        """Asked for a rate and a number of rows, it sends each row when it is due, and tells how many nanoseconds each
        took from then on, as a list in JSON. At a rate of 0 they go as fast as it can: it tells what all took."""

    # Programs that go on until their input ends: see talking.

    def rereading(self, topic: str, of: Rows, mb_per_s: int) -> list[str]:
        """The program that reads all of the topic again and again, at this rate; 0: as fast as it goes."""

    def moving(self, topic: str, partition_bytes: int) -> list[str]:
        """The program that moves the last replica of each partition to a broker that has none, again and again."""

    # Outages

    def victim(self, topic: str) -> tuple[int, list[int]]:
        """A broker to lose, and the partitions of the topic that it leads."""

    def resuming(self, topic: str, partitions: int) -> list[str]:
        """The program that writes to each partition, prints `ready`, reads a line with a time in nanoseconds and with
        numbers of partitions, and writes to these. It prints how long after that time each was acknowledged:
        nanoseconds, as a list in JSON."""

    def kill(self, broker: int) -> None: ...

    def elected_s(self, topic: str, partitions: Collection[int], killed_s: float) -> float:
        """When the last of them had a new leader, as the cluster has stored it since the kill: seconds since 1970."""

    def restore(self, topic: str, broker: int) -> None:
        """Start it again, and wait until all is as before, the leaders, too."""
