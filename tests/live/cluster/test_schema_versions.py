"""A topic that gets a column while it is written to and read, and while its leader is killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import pyarrow as pa
import pytest

import spark_replication as sr
from spark_replication.admin.cli.log_files import verify
from spark_replication.errors import InvalidSchema, UnknownTopicOrPartition
from spark_replication.storage.log.segment_files import DATA
from tests import waiting
from tests.live.cluster.replica_folders import replica_folders

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

DEADLINE_S = 60.0
CONFIG = {"zookeeper.session.ms": 6_000, "replica.lag.time.ms": 5_000}
NARROW = pa.schema([("number", pa.int64()), ("writer", pa.string())])
WIDE = NARROW.append(pa.field("note", pa.string()))


@pytest.fixture(scope="module")
def cluster() -> Iterator[sr.LocalCluster]:
    with sr.LocalCluster.start(brokers=3, config=CONFIG) as cluster:
        yield cluster


class Writer:
    """Sends the next number once the last is acknowledged, all with one version of the schema."""

    def __init__(self, cluster: sr.LocalCluster, topic: str, schema: pa.Schema) -> None:
        self.acknowledged: dict[int, dict[str, Any]] = {}  # by offset
        self.errors: list[Exception] = []
        self._topic, self._schema = topic, schema
        self._bootstrap = cluster.bootstrap
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def row(self, number: int) -> dict[str, Any]:
        row = {"number": number, "writer": f"of {len(self._schema)} columns", "note": f"note {number}"}
        return {name: row[name] for name in self._schema.names}

    def wait_for_more(self, rows: int) -> None:
        wanted = len(self.acknowledged) + rows
        eventually(lambda: bool(self.errors) or len(self.acknowledged) >= wanted, f"{rows} more rows")
        assert not self.errors, self.errors

    def _write(self) -> None:
        try:
            with sr.Producer(self._bootstrap) as producer:
                number = 0
                while not self._stopping.is_set():
                    row = self.row(number)
                    ack = producer.send(self._topic, pa.RecordBatch.from_pylist([row], self._schema), 0).result(
                        DEADLINE_S
                    )
                    self.acknowledged[ack.base_offset] = row
                    number += 1
        except Exception as error:  # noqa: BLE001 (told to the test's thread)
            self.errors.append(error)


class Following:
    """Reads from the start on, until it is told where the end is."""

    def __init__(self, cluster: sr.LocalCluster, topic: str) -> None:
        self.rows: list[dict[str, Any]] = []
        self.schemas: list[pa.Schema] = []
        self._reader = sr.Reader(cluster.bootstrap)
        self._found = self._reader.read(topic, follow=True)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        for found in self._found:
            assert found.base_offset == len(self.rows)
            if found.batch.schema not in self.schemas:
                self.schemas.append(found.batch.schema)
            self.rows += found.batch.to_pylist()

    def wait_for(self, rows: int) -> None:
        eventually(lambda: len(self.rows) >= rows or not self._thread.is_alive(), f"{rows} rows to be read")

    def ended(self, rows: int) -> list[dict[str, Any]]:
        self.wait_for(rows)
        self._reader.close()
        self._thread.join(DEADLINE_S)
        return self.rows


def eventually(holds: Callable[[], bool], what: str) -> None:
    waiting.eventually(holds, what, DEADLINE_S)


def segments(cluster: sr.LocalCluster, topic: str) -> list[dict[str, bytes]]:
    """Of each broker, file by file."""
    folders = replica_folders(cluster, f"{topic}-0.*")
    return [{path.name: path.read_bytes() for path in sorted(folder.glob("0*"))} for folder in folders]


def leader_of(cluster: sr.LocalCluster, topic: str) -> int:
    (found,) = cluster.admin.describe_topics([topic])
    leader = found.partitions[0].leader
    assert leader is not None
    return leader


def test_a_topic_is_widened_under_load_and_its_leader_is_killed(cluster: sr.LocalCluster) -> None:
    topic = "widened"
    cluster.admin.create_topic(topic, NARROW, partitions=1)
    with Writer(cluster, topic, NARROW) as old:
        old.wait_for_more(20)
        before = Following(cluster, topic)
        before.wait_for(10)
        assert cluster.admin.widen_topic(topic, WIDE).schema_version == 1
        with Writer(cluster, topic, WIDE) as new:
            new.wait_for_more(20)
            after = Following(cluster, topic)
            after.wait_for(10)
            old.wait_for_more(20)
            leader = leader_of(cluster, topic)
            os.kill(cluster.brokers[leader].pid, signal.SIGKILL)
            for writer in (old, new):
                writer.wait_for_more(20)
            cluster.wait_healthy()
            for writer in (old, new):
                writer.wait_for_more(20)
    acknowledged = {**old.acknowledged, **new.acknowledged}
    assert len(acknowledged) == len(old.acknowledged) + len(new.acknowledged)
    end = max(acknowledged) + 1
    narrow, wide = before.ended(end), after.ended(end)
    assert [schema.names for schema in before.schemas] == [NARROW.names], "whatever became of its broker"
    assert [schema.names for schema in after.schemas] == [WIDE.names]
    for offset, row in acknowledged.items():
        assert wide[offset] == {"note": None, **row}
        assert narrow[offset] == {name: row[name] for name in NARROW.names}
    notes = [
        note
        for found in sr.Reader(cluster.bootstrap, prefer="follower").read(topic, 0, columns=["note"], start=5)
        for note in found.batch.column("note").to_pylist()
    ]
    assert notes == [row["note"] for row in wide[5:]]
    check_files(cluster, topic, end)


def check_files(cluster: sr.LocalCluster, topic: str, end: int) -> None:
    """Byte-identical, sound, and each segment a plain stream of its own schema."""

    def identical() -> bool:
        one, *others = segments(cluster, topic)
        return len(others) == 2 and all(other == one for other in others)

    eventually(identical, "the same files on all brokers")
    streams = [pa.ipc.open_stream(data) for name, data in segments(cluster, topic)[0].items() if name.endswith(DATA)]
    widths = [len(stream.schema) for stream in streams]
    assert (widths[0], widths[-1]) == (2, 3)
    assert [stream.schema.names for stream in streams] == [WIDE.names[:width] for width in widths]
    assert sum(stream.read_all().num_rows for stream in streams) >= end
    for folder in replica_folders(cluster, f"{topic}-0.*"):
        (found,) = verify([folder])
        assert (found.problems, found.segments) == ([], len(streams))


def test_what_is_no_widening_is_refused_and_the_topic_stays_as_it_is(cluster: sr.LocalCluster) -> None:
    topic = "kept"
    cluster.admin.create_topic(topic, NARROW, partitions=1)
    with pytest.raises(InvalidSchema, match="column 1 is named 'note' in the new schema and 'writer' in the topic"):
        cluster.admin.widen_topic(topic, pa.schema([NARROW.field(0), WIDE.field(2), NARROW.field(1)]))
    with pytest.raises(UnknownTopicOrPartition):
        cluster.admin.widen_topic("unknown", NARROW)
    (found,) = cluster.admin.describe_topics([topic])
    assert found.schema_version == 0
    assert cluster.admin.widen_topic(topic, NARROW) == found, "the same again is done already"
