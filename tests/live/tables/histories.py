"""Histories of a topic's table: writers that are killed, stopped and woken between any two steps, two or more at once,
in a cluster whose brokers, controller, ZooKeeper and logs are killed and lost meanwhile (TB1, TB2, TB5).

A history: rows are produced, and each writer is to write all, with a drawn end. One that has stopped is woken once
others have written what it was about to write, and more. What must hold is checked after each CHECKED histories, and
after all.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow.compute as pc
from deltalake import DeltaTable

import spark_replication as sr
from spark_replication.client.finding.routes import Routes
from spark_replication.errors import StorageFailed
from spark_replication.live.tables.table_topics import TableTopic, table_topics
from spark_replication.mirror.delta.object_store import StoreOptions
from spark_replication.mirror.delta.reading import rows_of
from spark_replication.tables.table_log import files_of
from spark_replication.tables.types import OFFSET, PARTITION
from tests.live.cluster.faults import kill
from tests.live.tables.stopping_writer import AFTER, BEFORE, STEPS, STORE, End, Order, Told
from tests.live.tables.written import faults, log_folders, rows, write
from tests.waiting import eventually

TOPIC = "orders"
PARTITIONS = 2
CHECKED = 10
PATIENCE_S = 30.0
ANSWER_S = 90.0
END_S = 10.0
AT_ONCE_MS = -1_000  # sweep what was written this very moment, too
#: Out of so many histories, what is done meanwhile.
MEANWHILE = {"nothing": 79, "kill_broker": 7, "kill_controller": 5, "restart_zookeeper": 4, "tidy": 3, "lose_logs": 2}
ENDS = ("killed", "stopped", "none")

Place = tuple[int, int]


class StoppingWriter:
    """One process after the other: tests.live.tables.stopping_writer."""

    def __init__(self, bootstrap: str, store: StoreOptions, log: Path) -> None:
        self._command = [sys.executable, "-m", "tests.live.tables.stopping_writer", bootstrap]
        self._environment = {**os.environ, STORE: msgspec.json.encode(dict(store)).decode()}
        self._log = log
        self._start()

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=self._environment
            )
        assert self._process.stdout is not None
        handle = self._process.stdout.fileno()
        fcntl.fcntl(handle, fcntl.F_SETFL, fcntl.fcntl(handle, fcntl.F_GETFL) | os.O_NONBLOCK)
        self._said = b""

    def order(self, order: Order) -> None:
        eventually(lambda: self._line() is not None, "it has started, or is done with the order before", ANSWER_S)
        assert self._process.stdin is not None
        self._said = b""
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        self._process.stdin.flush()

    def start_again(self) -> None:
        """If it was killed. `order` waits for it."""
        if self.is_killed():
            self._closed()
            self._start()

    def _line(self) -> bytes | None:
        """What it has answered; None if it has not yet."""
        assert self._process.stdout is not None
        self._said += self._process.stdout.read() or b""
        return self._said[:-1] if self._said.endswith(b"\n") else None

    def told(self) -> Told | None:
        line = self._line()
        return None if line is None else msgspec.json.decode(line, type=Told)

    def is_killed(self) -> bool:
        code = self._process.poll()
        assert code in (None, -signal.SIGKILL), f"it has ended by itself: {self._log.read_text()[-2_000:]}"
        return code is not None

    def is_stopped(self) -> bool:
        stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    def rests(self) -> bool:
        return self.is_killed() or self.is_stopped() or self.told() is not None

    def wake(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(END_S)
        self._closed()

    def _closed(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class Row(NamedTuple):
    place: Place
    number: int


class Rows:
    """What was acknowledged, and which of it may be missing: rows of lost logs that no table had then."""

    def __init__(self) -> None:
        self._acknowledged: dict[int, Place] = {}
        self._excused: set[int] = set()
        self._in_table: set[Row] = set()

    def acknowledge(self, number: int, place: Place) -> None:
        self._acknowledged[number] = place

    def lose(self, partition: int, kept: Sequence[Row]) -> None:
        """The logs of this partition are lost, and the table has these rows."""
        there = {row.number for row in kept}
        self._excused |= {n for n, place in self._acknowledged.items() if place[0] == partition and n not in there}
        self._in_table |= {*kept}

    def check(self, found: Sequence[Row], *, is_all: bool) -> None:
        """found: all rows of the table, is_all: which has been written up to its end."""
        twice = [row for row, times in Counter(row.number for row in found).items() if times > 1]
        assert not twice, f"more than once: {twice[:10]}"
        strange = [row for row in found if self._acknowledged.get(row.number) != row.place]
        assert not strange, f"never acknowledged, or not at this place: {strange[:10]}"
        gone = self._in_table - {*found}
        assert not gone, f"not there any more: {sorted(gone)[:10]}"
        self._in_table = {*found}
        missing = self._acknowledged.keys() - {row.number for row in found} - self._excused
        assert not (is_all and missing), f"lost: {sorted(missing)[:10]}"

    @property
    def figures(self) -> str:
        return f"{len(self._acknowledged)} rows acknowledged, {len(self._in_table)} in the table"


class Histories:
    """A context manager. Of one cluster with the topic TOPIC, whose table nobody else writes."""

    def __init__(
        self, cluster: sr.LocalCluster, uri: str, store: StoreOptions, seed: int, *, writers: int, logs: Path
    ) -> None:
        """uri: the table's. logs: where writers' output goes."""
        self._cluster, self._uri, self._store = cluster, uri, store
        self._rng = random.Random(seed)
        self._stack = ExitStack()
        self._writers = [
            self._stack.enter_context(closing(StoppingWriter(cluster.zookeeper, store, logs / f"writer-{number}.log")))
            for number in range(writers)
        ]
        self._producer = self._stack.enter_context(sr.Producer(cluster.zookeeper))
        self._next = 0
        self._rows = Rows()
        self.done: Counter[str] = Counter()
        #: Why writers have given up.
        self.troubles: list[str] = []

    def __enter__(self) -> Histories:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def run(self, count: int) -> None:
        for number in range(1, count + 1):
            self._history()
            if number % CHECKED == 0 or number == count:
                self._check()
        for writer in self._writers:  # whose files are orphans from here on
            writer.close()
        self._check_files()

    @property
    def figures(self) -> str:
        return f"{self._rows.figures}; {dict(sorted(self.done.items()))}; given up: {self.troubles}"

    # A history

    def _history(self) -> None:
        self._produce()
        ends = [self._drawn_end() for _ in self._writers]
        for writer, end in zip(self._writers, ends, strict=True):
            writer.order(Order(PATIENCE_S, end))
        meanwhile = self._rng.choices([*MEANWHILE], [*MEANWHILE.values()])[0]
        self.done[meanwhile] += 1
        self._meanwhile()[meanwhile]()
        eventually(lambda: all(each.rests() for each in self._writers), "each writer is done, or has ended", ANSWER_S)
        self._wake(ends)
        self._note(ends)
        for writer in self._writers:
            writer.start_again()

    def _drawn_end(self) -> End | None:
        how = self._rng.choice(ENDS)
        if how == "none":
            return None
        step, when = self._rng.choice(STEPS), self._rng.choice((BEFORE, AFTER))
        return End(step, when, self._rng.choice((1, 1, 1, 2)), is_killed=how == "killed")

    def _produce(self) -> None:
        sent = []
        for _ in range(self._rng.randint(1, 4)):
            first, count, partition = self._next, self._rng.randint(1, 10), self._rng.randrange(PARTITIONS)
            self._next += count
            sent.append((first, count, partition, self._producer.send(TOPIC, rows(first, count), partition=partition)))
        for first, count, partition, answer in sent:
            offset = answer.result(ANSWER_S).base_offset
            for each in range(count):
                self._rows.acknowledge(first + each, (partition, offset + each))

    def _wake(self, ends: Sequence[End | None]) -> None:
        """Wake who has stopped, one after the other, once others have written all, and more has come to be written."""
        for writer, end in zip(self._writers, ends, strict=True):
            if not writer.is_killed() and writer.is_stopped():
                assert end is not None
                self.done[f"woken {end.when} {end.step}"] += 1
                write(self._cluster, store=self._store)
                if self._rng.random() < 0.5:
                    self._produce()
                writer.wake()
                eventually(writer.rests, "the one that was woken is done", ANSWER_S)

    def _note(self, ends: Sequence[End | None]) -> None:
        for writer, end in zip(self._writers, ends, strict=True):
            told = None if writer.is_killed() else writer.told()
            if told is None:
                assert end is not None
                self.done[f"killed {end.when} {end.step}"] += 1
            else:
                self.done["refused"] += told.refused
                if told.trouble:
                    self.troubles.append(told.trouble)

    # What is done meanwhile

    def _meanwhile(self) -> dict[str, Callable[[], None]]:
        return {
            "nothing": lambda: None,
            "kill_broker": self._kill_broker,
            "kill_controller": self._kill_controller,
            "restart_zookeeper": self._restart_zookeeper,
            "tidy": self._tidy,
            "lose_logs": self._lose_logs,
        }

    def _kill_broker(self) -> None:
        broker = self._rng.choice([*self._cluster.brokers])
        self._cluster.kill_broker(broker)
        self._cluster.restart_broker(broker)
        self._cluster.wait_healthy()

    def _kill_controller(self) -> None:
        kill(self._cluster.controller_pid)
        self._cluster.wait_healthy()

    def _restart_zookeeper(self) -> None:
        self._cluster.kill_zookeeper()
        self._cluster.restart_zookeeper()
        self._cluster.wait_healthy()

    def _tidy(self) -> None:
        topic = self._topic()
        try:
            topic.upkeep(self._store).tidy(topic.upkeep_rules)
        except StorageFailed:  # others have written it all the time
            self.done["not tidied"] += 1

    def _lose_logs(self) -> None:
        partition = self._rng.randrange(PARTITIONS)
        brokers = [*self._cluster.brokers]
        for broker in brokers:
            self._cluster.kill_broker(broker)
        for broker in brokers:
            for folder in log_folders(self._cluster, broker, [f"{TOPIC}-{partition}"]):
                shutil.rmtree(folder)
        # A writer may still commit what it has read, if nobody seals before it: then it is there.
        self._rows.lose(partition, self._found())
        for broker in brokers:
            self._cluster.restart_broker(broker)
        self._cluster.wait_healthy()

    # What must hold

    def _check(self) -> None:
        write(self._cluster, store=self._store)
        assert faults(self._cluster, store=self._store) == []
        self._rows.check(self._found(), is_all=True)

    def _check_files(self) -> None:
        """After a sweep each Parquet file is one that some version names."""
        topic = self._topic()
        swept = topic.upkeep(self._store).sweep(AT_ONCE_MS)
        self.done["swept"] += len(swept)
        table = topic.table(self._store)
        last = table.last()
        assert last is not None
        named = files_of(table.folder, last[0].version())
        there = [each.path for each in table.folder.files() if each.path.endswith(".parquet")]
        data = {path.rpartition("/")[2] for path in there if not path.startswith("_delta_log/")}
        assert data <= named.keys()
        assert {name for name, removed_ms in named.items() if removed_ms is None} <= data
        assert faults(self._cluster, store=self._store) == []
        self._rows.check(self._found(), is_all=True)

    def _topic(self) -> TableTopic:
        with closing(Routes(self._cluster.zookeeper)) as routes:
            (found,) = table_topics(routes, [TOPIC])
            return found

    def _found(self) -> list[Row]:
        options = dict(self._store)
        if not DeltaTable.is_deltatable(self._uri, options):
            return []
        found = rows_of(DeltaTable(self._uri, storage_options=options), [PARTITION, OFFSET, "number", "text"], None)
        assert pc.all(pc.equal(found["text"], pc.binary_join_element_wise("row", found["number"].cast("string"), " ")))
        columns = (found[name].to_pylist() for name in (PARTITION, OFFSET, "number"))
        return [Row((partition, offset), number) for partition, offset, number in zip(*columns, strict=True)]
