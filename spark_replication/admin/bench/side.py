"""What is measured: our cluster, Kafka, or the bare limit of the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple, Protocol

import msgspec

from spark_replication.admin.bench.harness import Measured
from spark_replication.model import Scalar

BROKERS = 3
#: By which a topic is read. reader: as users do; flight: by DoGet, as any client of Arrow Flight; files: those of a
#: broker on the same host.
Door = Literal["reader", "flight", "files"]
#: What a topic may hold. A virtual machine is slow at the first use of memory (a write into it took six times as long):
#: a measurement whose files go on growing would measure that.
RECENT_BYTES = 64 << 20
RECENT: Mapping[str, Scalar] = {"segment.bytes": RECENT_BYTES // 4, "retention.bytes": RECENT_BYTES}
WHOLE: Mapping[str, Scalar] = {}


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent to a topic, and read from it."""

    row_bytes: int
    batch_bytes: int
    partitions: int

    @property
    def rows_a_batch(self) -> int:
        return max(1, self.batch_bytes // self.row_bytes)

    @property
    def sizes(self) -> str:
        return f"rows of {size(self.row_bytes)}, batches of {size(self.batch_bytes)}, {counted(self.partitions)}"


def size(of_bytes: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if of_bytes % unit == 0:
            return f"{of_bytes // unit} {name}"
    return f"{of_bytes} bytes"


def counted(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions:,} partitions"


class Target(Protocol):
    """Takes rows in, and gives them back, by programs: see programs."""

    @property
    def name(self) -> str: ...

    @property
    def pids(self) -> tuple[int, ...]:
        """The brokers'."""

    def create(self, topic: str, partitions: int, config: Mapping[str, Scalar], replicas: int = BROKERS) -> None: ...

    def delete(self, topic: str) -> None: ...

    def sender(self, topic: str, of: Rows, *, joins: bool = False) -> list[str]:
        """The program that sends the same batch again and again; with `joins`, it may send several as one. It prints
        nanoseconds, as a list in JSON:

        - `fast COUNT`: what all of them took, one after the other and none awaited;
        - `paced RATE COUNT`: what each took from when it was due, so that one's wait counts for those behind it;
        - `since NS PARTITION…`: how long after that time of day each of these partitions had acknowledged one."""

    def consumer(self, topic: str, of: Rows, rows: int, door: Door, *, looks: bool) -> list[str]:
        """The program that reads all of the topic, so many rows, whenever it is asked: in a `MB` a second, or for 0 as
        fast as it can. It prints the nanoseconds that took, as a list in JSON. looks: at each byte."""

    def mover(self, topic: str) -> list[str]:
        """The program that moves the last replica of each partition to a broker that has none, whenever it is asked.
        It prints the nanoseconds that took, as a list in JSON."""


class Led(NamedTuple):
    broker: int
    #: Of the topic: those that the broker leads.
    partitions: Sequence[int]


class BrokerLost(Protocol):
    """A broker that was lost."""

    #: When: nanoseconds since 1970.
    at_ns: int

    def wait_led(self) -> None:
        """Wait until each partition has a leader that knows it."""

    def measured(self) -> Measured:
        """What followed, as the cluster itself has stored it. It waits until that is all."""


class Side(Target, Protocol):
    """A cluster, whose brokers may be lost."""

    def leader(self, topic: str) -> Led:
        """A broker to lose."""

    def lose(self, topic: str, led: Led, *, silently: bool) -> BrokerLost:
        """Kill it; or silently, stop it, as if its host were lost: nobody sees it end, and no connection is reset."""

    def restore(self, topic: str, led: Led, *, was_silent: bool) -> None:
        """Start it again, and wait until all is as before, the leaders, too. was_silent: it is to be killed first."""

    def looked_at(self) -> AbstractContextManager[None]:
        """People look at this side while the block runs, if it has them."""
