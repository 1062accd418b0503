"""A task whose rows are written again, while its topic has got more partitions or lost some: each row is there once, or
an error says that it cannot be so."""

from __future__ import annotations

import random
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import TracebackType

import pyarrow as pa
import pytest

from spark_replication.core.replica.producers import OffsetSpan, Producers
from spark_replication.engine.client.numbers import Identity
from spark_replication.engine.client.repeating import Runs
from spark_replication.engine.client.sending import Ack
from spark_replication.errors import InvalidProducerEpoch, NotLeader, ReplicationError
from spark_replication.messages.ranges import KnownAppends
from spark_replication.spark.datasource import writing
from spark_replication.spark.datasource.appends import WriteName
from spark_replication.spark.datasource.options import LogOptions
from spark_replication.spark.datasource.sink_schema import SinkSchema
from spark_replication.storage.format.row_digest import row_digest

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
NAMED = SCHEMA.append(pa.field("_partition", pa.int32()))
QUERY, RUN = "query", "run"


class Died(Exception):
    pass


class Logs:
    """The partitions of a topic, and what is to become of who writes to them."""

    def __init__(self, partitions: int) -> None:
        self.partitions = tuple(range(partitions))
        self._producers: dict[int, Producers] = defaultdict(Producers)
        self._ids: dict[int, list[int]] = defaultdict(list)
        self.appends_left = 1 << 20  # until the task that sends dies
        self.asked: ReplicationError | int = 0

    @property
    def ids(self) -> list[int]:
        return sorted(each for partition in self.partitions for each in self._ids[partition])

    def known(self, _options: LogOptions, producer: int) -> tuple[tuple[int, ...], dict[int, KnownAppends]]:
        if isinstance(self.asked, ReplicationError):
            raise self.asked
        self.asked += 1
        newest = {partition: self._producers[partition].newest(producer) for partition in self.partitions}
        return self.partitions, {
            partition: KnownAppends(producer=producer, **each._asdict())
            for partition, each in newest.items()
            if each is not None
        }

    def take(self, identity: Identity, sequence: int, target: int, batch: pa.RecordBatch) -> OffsetSpan:
        if not self.appends_left:
            raise Died
        self.appends_left -= 1
        log, stored = self._producers[target], self._ids[target]
        numbered = identity.producer, identity.epoch, sequence
        told = {"crc": 0, "digest": row_digest(batch)}
        found = log.check(*numbered, rows=batch.num_rows, **told)
        if found is None:
            found = OffsetSpan(len(stored), len(stored) + batch.num_rows - 1)
            stored += batch.column("id").to_pylist()
            log.wrote(*numbered, found, **told)
        return found


class Producer:
    def __init__(self, logs: Logs, identity: Identity) -> None:
        self._logs = logs
        self._identity = identity
        self._numbers: Counter[int] = Counter()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def send(self, topic: str, batch: pa.RecordBatch, *, partition: int) -> Future[Ack]:
        future: Future[Ack] = Future()
        sequence = self._numbers[partition]
        self._numbers[partition] += 1
        try:
            place = self._logs.take(self._identity, sequence, partition, batch)
        except ReplicationError as error:
            future.set_exception(error)
        else:
            told = {"base_offset": place.base_offset, "last_offset": place.last_offset}
            future.set_result(Ack(topic=topic, partition=partition, **told))
        return future


class Task:
    """Spark's."""

    def __init__(self, number: int, micro_batch: int, run: str) -> None:
        self._number = number
        self._local = {writing.QUERY_ID: QUERY, writing.BATCH_ID: str(micro_batch), writing.RUN_ID: run}

    def partitionId(self) -> int:  # noqa: N802 (Spark's name)
        return self._number

    def getLocalProperty(self, name: str) -> str:  # noqa: N802
        return self._local.get(name, "false")


#: Writes rows in a task, as the process of a run.
Write = Callable[..., None]


def rows(texts: Iterable[str], first: int = 0) -> pa.RecordBatch:
    texts = list(texts)
    return pa.record_batch([pa.array(range(first, first + len(texts))), pa.array(texts)], schema=SCHEMA)


@pytest.fixture
def logs() -> Logs:
    return Logs(3)


@pytest.fixture
def stream(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> Write:
    """In a micro-batch."""
    _joined(logs, monkeypatch)

    def write(
        batch: pa.RecordBatch,
        *by: str,
        task: int = 0,
        micro_batch: int = 0,
        run: str = RUN,
        planned: tuple[int, ...] = (),
    ) -> None:
        monkeypatch.setattr(writing, "_task", lambda: Task(task, micro_batch, run))
        options = LogOptions(topic="orders", bootstrap="127.0.0.1:1", security={}, partition_by=by)
        sink = SinkSchema("orders", SCHEMA, planned or logs.partitions)
        writing.StreamWriter(options, sink).write(iter([batch]))

    return write


@pytest.fixture
def load(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Under a writeId, in appends of a few rows."""
    _joined(logs, monkeypatch)

    def write(batch: pa.RecordBatch, *by: str, task: int = 0, number: int | None = None) -> None:
        monkeypatch.setattr(writing, "_task", lambda: Task(task, 0, RUN))
        options = LogOptions(
            topic="orders",
            bootstrap="127.0.0.1:1",
            security={},
            write_id="load",
            write_batch=number,
            append_bytes=512,
            partition_by=by,
        )
        sink = SinkSchema("orders", SCHEMA, logs.partitions)
        writing.BatchWriter(options, sink, WriteName("load", number, "orders")).write(iter([batch]))

    return write


def _joined(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "_known", logs.known)
    monkeypatch.setattr(writing, "_producer", lambda _options, identity: Producer(logs, identity))
    monkeypatch.setattr(writing, "_runs", Runs())


def dies(write: Callable[[], None], logs: Logs, after: int) -> None:
    """Only after so many appends."""
    logs.appends_left = after
    with pytest.raises(Died):
        write()
    logs.appends_left = 1 << 20


TEXTS = [f"order {number % 17}" for number in range(60)]


@pytest.mark.parametrize("died_after", [1, 2])
@pytest.mark.parametrize("partitions", [3, 4, 7])
def test_a_micro_batch_that_is_repeated_goes_where_its_first_try_put_it(
    logs: Logs, stream: Write, partitions: int, died_after: int
) -> None:
    dies(lambda: stream(rows(TEXTS), "text"), logs, died_after)
    logs.partitions = tuple(range(partitions))
    for run in ("second", "third"):
        stream(rows(TEXTS), "text", run=run)
        assert logs.ids == list(range(60)), "once"


@pytest.mark.parametrize("task", range(7))
@pytest.mark.parametrize("partitions", [3, 4, 7])
def test_a_task_without_keys_has_its_partition_again(logs: Logs, stream: Write, partitions: int, task: int) -> None:
    stream(rows(TEXTS), task=task)
    logs.partitions = tuple(range(partitions))
    stream(rows(TEXTS), task=task, run="second")
    assert logs.ids == list(range(60))


def test_a_micro_batch_that_has_begun_nowhere_is_placed_on_all_partitions(logs: Logs, stream: Write) -> None:
    stream(rows(TEXTS), "text")
    logs.partitions = tuple(range(9))
    stream(rows(TEXTS, first=60), "text", micro_batch=1, run="second")
    assert logs.ids == list(range(120))
    assert any(logs._ids[partition] for partition in range(3, 9))


@pytest.mark.parametrize("number", [None, 4])
@pytest.mark.parametrize("seed", range(12))
def test_a_write_under_an_id_that_is_made_again_is_there_once(
    logs: Logs, load: Write, seed: int, number: int | None
) -> None:
    chance = random.Random(seed)
    logs.partitions = tuple(range(chance.randint(1, 4)))
    by = chance.choice([(), ("text",)])
    for _ in range(2):
        dies(lambda: load(rows(TEXTS), *by, task=seed, number=number), logs, chance.randint(0, 5))
        logs.partitions = tuple(range(len(logs.partitions) + chance.randint(0, 3)))
    load(rows(TEXTS), *by, task=seed, number=number)
    assert logs.ids == list(range(60))


def test_an_attempt_beside_another_places_by_what_their_run_has_planned(logs: Logs, stream: Write) -> None:
    """One has stored a, which is in the first partition by two and by three. It goes on, and stores b by two."""
    names = [str(number) for number in range(100)]
    crcs = {name: zlib.crc32(name.encode()) for name in names}
    a = next(name for name in names if crcs[name] % 6 == 0)
    b = next(name for name in names if crcs[name] % 2 == 1 and crcs[name] % 3 == 2)
    planned = logs.partitions = (0, 1)
    dies(lambda: stream(rows([a, b]), "text"), logs, 1)
    logs.partitions = (0, 1, 2)
    stream(rows([a, b]), "text", planned=planned)
    assert logs._ids == {0: [0], 1: [1]}


def test_a_placement_that_only_counts_alike_is_not_taken(logs: Logs, stream: Write) -> None:
    """One row each: with two partitions the first has a's, with three it would have b's."""
    names = [str(number) for number in range(100)]
    crcs = {name: zlib.crc32(name.encode()) for name in names}
    a = next(name for name in names if crcs[name] % 2 == 0 and crcs[name] % 3 == 1)
    b = next(name for name in names if crcs[name] % 2 == 1 and crcs[name] % 3 == 0)
    logs.partitions = (0, 1)
    dies(lambda: stream(rows([a, b]), "text"), logs, 1)
    assert logs.ids == [0]
    logs.partitions = (0, 1, 2)
    stream(rows([a, b]), "text", run="second")
    assert logs.ids == [0, 1]


def named(*ids: int) -> pa.RecordBatch:
    """Two rows, for the partitions 2 and 0."""
    return pa.record_batch([pa.array(ids), pa.array(["a", "b"]), pa.array([2, 0], pa.int32())], schema=NAMED)


def test_rows_that_name_their_partitions_go_there_again(logs: Logs, stream: Write) -> None:
    dies(lambda: stream(named(0, 1)), logs, 1)
    logs.partitions = tuple(range(5))
    stream(named(0, 1), run="second")
    assert logs.ids == [0, 1]


def test_other_rows_that_name_their_partitions_are_placed_in_one_way_only(logs: Logs, stream: Write) -> None:
    dies(lambda: stream(named(0, 1)), logs, 1)
    assert logs.ids == [1]
    with pytest.raises(InvalidProducerEpoch, match="other rows"):
        stream(named(0, 2), run="second")
    assert logs.ids == [1]


@pytest.mark.parametrize("others", [rows(TEXTS, first=1_000), rows(TEXTS[:-1]), rows([*TEXTS, "order 1"])])
def test_other_rows_are_refused_and_none_is_stored(logs: Logs, stream: Write, others: pa.RecordBatch) -> None:
    stream(rows(TEXTS), "text")
    logs.partitions = tuple(range(5))
    with pytest.raises(InvalidProducerEpoch, match="an earlier attempt of this micro-batch had other rows"):
        stream(others, "text", run="second")
    assert logs.ids == list(range(60))


def test_a_repetition_that_lacks_a_partition_of_its_first_try_is_refused(logs: Logs, stream: Write) -> None:
    """Three rows in four partitions, of which one is removed."""
    stream(rows(TEXTS), "text")
    there = sorted(logs._ids[0] + logs._ids[1])
    logs.partitions = (0, 1)
    with pytest.raises(InvalidProducerEpoch, match=r"an earlier try has rows in the partitions \[0, 1\]") as refused:
        stream(rows(TEXTS), "text", run="second")
    assert refused.value.maybe_written
    assert logs.ids == there


def test_a_query_that_is_behind_stores_nothing_on_a_partition_that_is_new(logs: Logs, stream: Write) -> None:
    stream(rows(TEXTS), task=3, micro_batch=1)
    logs.partitions = tuple(range(4))
    with pytest.raises(InvalidProducerEpoch, match="fenced by 1 on partition 0"):
        stream(rows(TEXTS, first=60), task=3, micro_batch=0, run="second")
    assert logs.ids == list(range(60))


def test_whoever_cannot_find_out_where_rows_went_writes_none(logs: Logs, stream: Write) -> None:
    logs.asked = NotLeader("nobody leads orders-2")
    with pytest.raises(NotLeader, match="nobody leads"):
        stream(rows(TEXTS), "text")
    assert logs.ids == []


def test_only_the_first_micro_batch_of_a_run_asks(logs: Logs, stream: Write) -> None:
    for micro_batch, run, asked in ((4, "a", 1), (4, "a", 2), (5, "a", 2), (6, "a", 2), (6, "b", 3), (7, "b", 3)):
        stream(rows(["x"], first=micro_batch), micro_batch=micro_batch, run=run)
        assert logs.asked == asked, (micro_batch, run)
