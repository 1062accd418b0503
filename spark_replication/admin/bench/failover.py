"""What follows when a broker is lost that leads a third of a topic's partitions, or the controller; and what many
partitions cost to which nobody writes.

All of it in clusters that have a topic of many partitions, with a row in each. For a minute or more after tens of
thousands of files were removed, ext4 takes long to make new ones: so what is measured after each other uses one
cluster.

What differs: our brokers' deaths are reported by their guardians. Kafka's controller waits until a broker's session is
over, of 3 s here, where 9 are usual. The node that is Kafka's active controller is left alive, as ours is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal

import msgspec

from spark_replication.admin.bench import probes
from spark_replication.admin.bench.harness import Harness, Measure, Measured, Round, Row, rows
from spark_replication.admin.bench.losses import Successor, controller_lost
from spark_replication.admin.bench.ours import Ours
from spark_replication.admin.bench.programs import Programs, kept
from spark_replication.admin.bench.side import WHOLE, BrokerLost, Led, Rows, Side, counted
from spark_replication.admin.bench.zookeeper_view import HEALTHY_TIMEOUT_S
from spark_replication.model import Scalar

TOPIC = "many"
ROW_BYTES = 1 << 10
# Brokers, ZooKeeper and the load share this machine: first writes to thousands of partitions make as many files.
PATIENT = {"request.timeout.ms": 60_000}
SETTLE_S = 3.0  # until the work that follows the first writes is over

HALF_WRITTEN = Measure("half of them take rows again", "ms")
WRITTEN = Measure("all of them take rows again", "ms")
REJOINED = Measure("the broker is back, and all is as before", "s")

#: killed: kill -9. silent: it is stopped, as if its host were lost: its guardian sees nothing, and no connection is
#: reset or refused, which the controller would take for a death, too.
Loss = Literal["killed", "silent"]
#: When a producer begins to write to what the broker led: at the kill, as users do; once all is led, so that these
#: writes, which make as many files as there are partitions, delay nothing; or never.
Writes = Literal["at-once", "once-led", "never"]


def settings(session_ms: int) -> dict[str, Scalar]:
    return {**PATIENT, "zookeeper.session.ms": session_ms}


def _rows(partitions: int) -> Rows:
    return Rows(row_bytes=ROW_BYTES, batch_bytes=ROW_BYTES, partitions=partitions)


@contextmanager
def filled(sides: Sequence[Side], partitions: int, harness: Harness) -> Iterator[None]:
    """Each side has the topic while the block runs, with a row in each partition."""
    for side in sides:
        began_s = time.monotonic()
        side.create(TOPIC, partitions, WHOLE)
        with _writer(side, partitions):
            took_s = time.monotonic() - began_s
            harness.progress(f"{side.name}: {counted(partitions)} are in sync with a row after {took_s:.1f} s")
    yield
    for side in sides:
        side.delete(TOPIC)


@contextmanager
def _writer(side: Side, partitions: int) -> Iterator[Programs]:
    """A producer that has written to each of them."""
    with kept(side, side.sender(TOPIC, _rows(partitions), joins=True)) as writer:
        _write(writer, 0, range(partitions))
        yield writer


def _write(writer: Programs, since_ns: int, partitions: Sequence[int]) -> list[float]:
    """Milliseconds since then until each of them has acknowledged a row."""
    (took_ns,) = writer.ask(" ".join(map(str, ("since", since_ns, *partitions))))
    return sorted(ns / 1e6 for ns in took_ns)


class LoseBroker(msgspec.Struct, frozen=True, kw_only=True):
    partitions: int
    loss: Loss = "killed"
    writes: Writes = "at-once"

    @property
    def what(self) -> str:
        return f"a broker of {counted(self.partitions)} is {self.loss}"

    @contextmanager
    def begun(self, side: Side, harness: Harness) -> Iterator[Round]:
        with _writer(side, self.partitions) as writer:
            yield partial(self._lost, side, writer)

    def _lost(self, side: Side, writer: Programs) -> Measured:
        led = side.leader(TOPIC)
        if self.writes != "never":
            _write(writer, 0, range(self.partitions))  # it knows all leaders
        with side.looked_at():
            loss = side.lose(TOPIC, led, silently=self.loss == "silent")
            try:
                written = self._written(loss, led, writer)
                found = {**loss.measured(), **written}
            finally:
                began_s = time.monotonic()
                # whatever is measured next wants all of them
                side.restore(TOPIC, led, was_silent=self.loss == "silent")
        return {**found, REJOINED: time.monotonic() - began_s}

    def _written(self, loss: BrokerLost, led: Led, writer: Programs) -> Measured:
        if self.writes == "once-led":
            loss.wait_led()
        if self.writes == "never":
            return {}
        took_ms = _write(writer, loss.at_ns, led.partitions)
        return {HALF_WRITTEN: took_ms[len(took_ms) // 2], WRITTEN: took_ms[-1]}


class LoseController(msgspec.Struct, frozen=True, kw_only=True):
    """Kill it: until a successor holds /controller, has loaded everything, and every broker has answered its INIT."""

    partitions: int
    successor: Successor
    session_ms: int

    @property
    def what(self) -> str:
        return f"the controller of {counted(self.partitions)} is killed, another one {_SUCCESSORS[self.successor]}"

    @contextmanager
    def begun(self, side: Ours, harness: Harness) -> Iterator[Round]:
        def lost() -> Measured:
            with side.looked_at():
                found = controller_lost(side.cluster, self.successor, settings(self.session_ms))
            side.cluster.wait_healthy(HEALTHY_TIMEOUT_S)
            return found

        yield lost


_SUCCESSORS = {"restarted": "is started", "standby": "stands by"}

CPU = Measure("processor", "%")
MEMORY, GROWN = Measure("memory", "MB"), Measure("memory for each partition", "KiB")
THREADS, OPEN_FILES = Measure("threads", ""), Measure("open files", "")


def idle(side: Ours, partitions: int, seconds: float, harness: Harness) -> list[Row]:
    """What each process uses and holds."""
    time.sleep(SETTLE_S)
    harness.progress(f"idle for {seconds} s")
    pids = side.processes()
    used_s = {name: probes.cpu_s_of([pid]) for name, pid in pids.items()}
    began_s = time.perf_counter()
    time.sleep(seconds)
    found = []
    for name, pid in pids.items():
        cpu_s, took_s = probes.cpu_s_of([pid]) - used_s[name], time.perf_counter() - began_s
        memory_kb = probes.memory_kb(pid)
        measured = {
            CPU: 100 * cpu_s / took_s,
            MEMORY: memory_kb / 1_024,
            GROWN: (memory_kb - side.empty_kb[name]) / partitions,
            THREADS: probes.threads(pid),
            OPEN_FILES: probes.open_files(pid),
        }
        found += rows(f"{name}, {counted(partitions)}", {side.name: [measured]})
    return found
