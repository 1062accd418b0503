"""One writer of many topics: which it writes, when it tidies, and how what it wrote is compared with the logs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest
from deltalake import DeltaTable
from msgspec.structs import replace

import spark_replication as sr
from spark_replication.client.finding.routes import Routes
from spark_replication.client.reading.reader import Reader
from spark_replication.errors import InvalidRequest, InvalidSchema, StorageFailed, UnknownTopicOrPartition
from spark_replication.live.tables import table_writers
from spark_replication.live.tables.agreement import PARTS, differences
from spark_replication.live.tables.table_topics import TableTopic, table_topics
from spark_replication.live.tables.table_writers import TableWriters
from spark_replication.mirror.delta.object_store import PATIENCE, StoreOptions
from spark_replication.tables.aside import UpkeepTask, tidied_aside
from spark_replication.tables.delta_table import DeltaTopicTable
from spark_replication.tables.upkeep import TidiedFiles
from spark_replication.tables.verifying import TableFault
from tests.live.tables.written import SCHEMA, produce, rows, stored, write
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.trust, pytest.mark.timeout(180)]

CONFIG = {"page.enabled": False, "min.insync.replicas": 1, "table.writer.enabled": False}
TABLE = {"table": True}
NOW_MS = 1 << 41


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sr.LocalCluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with sr.LocalCluster.start(brokers=1, directory=directory, config=CONFIG) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: sr.LocalCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = str(request.node.name).replace("[", "-").rstrip("]")
    cluster.admin.create_topic(name, SCHEMA, partitions=1, replication_factor=1, config=TABLE)
    cluster.wait_healthy()
    yield name
    cluster.admin.delete_topic(name)


@pytest.fixture
def writers_of(cluster: sr.LocalCluster) -> Iterator[Callable[..., TableWriters]]:
    with ExitStack() as stack:
        routes = stack.enter_context(closing(Routes(cluster.bootstrap)))
        reader = stack.enter_context(Reader(cluster.bootstrap))
        yield lambda *topics: TableWriters(routes, reader, PATIENCE, topics=topics, at_once=True)


def names(writers: TableWriters) -> list[str]:
    return sorted(each.topic for each in writers.all)


def looked(writers: TableWriters) -> list[str]:
    writers.look()
    return names(writers)


def at_most(looks: int, each_time: Callable[[], None] = lambda: None) -> Callable[[float], bool]:
    """A wait that is over at once, so many times."""
    left = [looks]

    def wait(_seconds: float) -> bool:
        left[0] -= 1
        each_time()
        return left[0] < 0

    return wait


# Which topics


def test_a_topic_that_goes_is_written_no_more_and_one_that_comes_is(
    cluster: sr.LocalCluster, topic: str, writers_of: Callable[..., TableWriters]
) -> None:
    writers = writers_of()
    cluster.admin.create_topic("short-lived", SCHEMA, partitions=1, replication_factor=1, config=TABLE)
    cluster.wait_healthy()
    writers.look()
    assert names(writers) == sorted(["short-lived", topic])
    before = {each.topic: each for each in writers.all}
    cluster.admin.delete_topic("short-lived")
    writers.look()
    assert writers.all == [before[topic]], "the one that stays is the same"
    produce(cluster, 0, 10, topic=topic)
    writers.run(at_most(2))
    assert [each.written.rows for each in writers.all] == [10], "and is written, although the other was due, too"
    written = writers.status(NOW_MS)
    assert (written.tables, written.troubled, written.commits, written.rows, written.refused) == (1, 0, 1, 10, 0)
    assert (written.at_ms, written.failed_ms) == (NOW_MS, None)
    assert written.committed_ms is not None
    cluster.admin.configure(topic, {"table": False})
    eventually(lambda: looked(writers) == [], "brokers know that it is none")
    assert writers.status(NOW_MS) == replace(written, tables=0), "what was done is done"
    cluster.admin.configure(topic, TABLE)
    eventually(lambda: looked(writers) == [topic], "brokers know that it is one")


def test_what_can_be_no_table_keeps_no_other_from_being_written(
    cluster: sr.LocalCluster,
    topic: str,
    writers_of: Callable[..., TableWriters],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A controller refuses such a topic: it may know of more types than this writer."""
    cluster.admin.create_topic("newer", SCHEMA, partitions=1, replication_factor=1, config=TABLE)
    opens = TableTopic.table

    def knows_less(found: TableTopic, store: StoreOptions) -> DeltaTopicTable:
        if found.name == "newer":
            raise InvalidSchema("column 'at' is of a type that is not known here")
        return opens(found, store)

    monkeypatch.setattr(TableTopic, "table", knows_less)
    writers = writers_of()
    with caplog.at_level(logging.WARNING):
        writers.look()
    assert names(writers) == [topic]
    assert "topic newer can be no table: INVALID_SCHEMA: column 'at'" in caplog.text
    with pytest.raises(InvalidSchema, match="'at'"):
        writers_of("newer").look()
    cluster.admin.delete_topic("newer")


def test_what_is_named_and_is_no_table_is_refused(
    cluster: sr.LocalCluster, topic: str, writers_of: Callable[..., TableWriters]
) -> None:
    cluster.admin.create_topic("plain", SCHEMA, partitions=1, replication_factor=1)
    with pytest.raises(InvalidRequest, match="topic plain is no table"):
        writers_of("plain", topic).look()
    with pytest.raises(UnknownTopicOrPartition, match="there is no topic nobodys"):
        writers_of("nobodys", topic).look()
    writers = writers_of(topic)
    writers.look()
    assert names(writers) == [topic]


# Under load


@contextmanager
def load(cluster: sr.LocalCluster, topic: str) -> Iterator[list[int]]:
    """There always is more. Yields the numbers that were acknowledged."""
    acknowledged: list[int] = []
    stopped = threading.Event()

    def produces() -> None:
        with sr.Producer(cluster.bootstrap) as producer:
            while not stopped.is_set():
                producer.send(topic, rows(len(acknowledged), 1), partition=0).result(60)
                acknowledged.append(len(acknowledged))

    thread = threading.Thread(target=produces, daemon=True)
    thread.start()
    try:
        eventually(lambda: acknowledged, "it has begun")
        yield acknowledged
    finally:
        stopped.set()
        thread.join(60)


def test_what_was_committed_when_it_began_is_written_however_much_comes_meanwhile(
    cluster: sr.LocalCluster, topic: str
) -> None:
    with load(cluster, topic) as acknowledged:
        for _ in range(3):
            before = len(acknowledged)
            (writer,) = write(cluster, topic).all
            assert len(stored(cluster.directory, "_offset", topic=topic)) >= before
            assert writer.written.commits <= 2


def test_others_have_their_turn_and_it_hears_of_its_end_however_much_comes(
    cluster: sr.LocalCluster, topic: str, writers_of: Callable[..., TableWriters]
) -> None:
    cluster.admin.create_topic("beside", SCHEMA, partitions=1, replication_factor=1, config=TABLE)
    cluster.wait_healthy()
    produce(cluster, 0, 10, topic="beside")
    writers = writers_of(topic, "beside")
    with load(cluster, topic):
        writers.run(at_most(10))
    written = {each.topic: each.written for each in writers.all}
    assert written["beside"].rows == 10
    assert written[topic].commits <= 10
    cluster.admin.delete_topic("beside")


# Tidying


def is_tidied(cluster: sr.LocalCluster, topic: str) -> bool:
    return (cluster.directory / "tables" / topic / "_delta_log" / "_last_checkpoint").exists()


@pytest.fixture
def tidied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which tables were tidied."""
    found = list[str]()

    def noted(task: UpkeepTask) -> TidiedFiles:
        tidied_aside(task)
        found.append(task.uri.rpartition("/")[2])
        return TidiedFiles(2, 16, 3)

    monkeypatch.setattr(table_writers, "tidied_aside", noted)
    return found


def test_a_table_is_tidied_after_so_many_commits(
    cluster: sr.LocalCluster,
    topic: str,
    writers_of: Callable[..., TableWriters],
    monkeypatch: pytest.MonkeyPatch,
    tidied: list[str],
) -> None:
    monkeypatch.setattr(table_writers, "TIDY_COMMITS", 2)
    writers = writers_of(topic)
    writers.look()
    for commits, times in ((1, 0), (2, 1), (3, 1), (4, 2)):
        produce(cluster, 10 * commits, 10, topic=topic)
        while writers.all[0].written.commits < commits:
            writers.run(at_most(1))
        assert len(tidied) <= times
        eventually(lambda times=times: len(tidied) == times, "it is tidied")  # type: ignore[misc]
    assert is_tidied(cluster, topic)


def test_a_table_is_tidied_once_it_has_been_long(
    cluster: sr.LocalCluster,
    topic: str,
    writers_of: Callable[..., TableWriters],
    monkeypatch: pytest.MonkeyPatch,
    tidied: list[str],
) -> None:
    produce(cluster, 0, 10, topic=topic)
    write(cluster, topic)
    writers_of(topic).run(at_most(2))
    assert tidied == []
    monkeypatch.setattr(table_writers, "TIDY_S", 0.0)
    writers = writers_of(topic)
    writers.run(at_most(2))
    eventually(lambda: writers.status(NOW_MS).joined_files == 16 * len(tidied) > 0, "it is tidied, and told")
    assert writers.status(NOW_MS).swept_files == 3 * len(tidied)
    assert writers.status(NOW_MS).given_up_files == 2 * len(tidied)
    assert is_tidied(cluster, topic)


def test_rows_are_written_while_a_table_is_tidied_and_one_is_at_a_time(
    cluster: sr.LocalCluster,
    topic: str,
    writers_of: Callable[..., TableWriters],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun, goes_on = list[UpkeepTask](), threading.Event()

    def hangs(task: UpkeepTask) -> None:
        begun.append(task)
        assert goes_on.wait(60)
        raise StorageFailed(f"{task.uri} was not tidied: the store is away")

    monkeypatch.setattr(table_writers, "tidied_aside", hangs)
    monkeypatch.setattr(table_writers, "TIDY_COMMITS", 1)
    writers = writers_of(topic)
    writers.look()
    for commits in (1, 2, 3):
        produce(cluster, 10 * commits, 10, topic=topic)
        while writers.all[0].written.commits < commits:
            writers.run(at_most(1))
    assert len(begun) == 1, "it is being tidied, and written all the same"
    with caplog.at_level(logging.WARNING):
        goes_on.set()
        eventually(lambda: "was not tidied: the store is away" in caplog.text, "it is told why not")

    def has_gone_on() -> bool:
        writers.run(at_most(1))
        return len(begun) == 2

    eventually(has_gone_on, "what fell due meanwhile is done")


def test_a_table_that_is_not_tidied_is_written_on(
    cluster: sr.LocalCluster,
    topic: str,
    writers_of: Callable[..., TableWriters],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(table_writers, "TIDY_S", 0.0)
    produce(cluster, 0, 10, topic=topic)
    write(cluster, topic)
    for version in range(1, 9):  # where checkpoints would be
        (cluster.directory / "tables" / topic / "_delta_log" / f"{version:020}.checkpoint.parquet").mkdir()
    writers = writers_of(topic)
    produce(cluster, 10, 10, topic=topic)
    with caplog.at_level(logging.WARNING):
        writers.run(at_most(3))
        eventually(lambda: f"{topic} was not tidied" in caplog.text, "it is told")
    assert writers.all[0].written.rows == 10
    assert writers.status(NOW_MS).joined_files == 0


# Comparing


@pytest.mark.parametrize(
    ("planted", "found", "from_15"),
    [
        (lambda table: None, [], []),
        (lambda table: table.update({"number": "number + 1"}, predicate="_offset = 12"), [(10, 20)], []),
        (lambda table: table.update({"text": "NULL"}, predicate="_offset = 29"), [(20, 30)], [(20, 30)]),
        (lambda table: table.update({"_leader_epoch": "7"}, predicate="_offset = 0"), [(0, 10)], []),
        (lambda table: table.update({"_offset": "1000"}, predicate="_offset = 15"), [(10, 20)], [(15, 20)]),
        (
            lambda table: table.update({"_offset": "15"}, predicate="_offset = 25"),
            [(10, 20), (20, 30)],
            [(15, 20), (20, 30)],
        ),
        (lambda table: table.delete("_offset = 5"), [(0, 10)], []),
        (lambda table: table.delete("_offset >= 10 AND _offset < 20"), [(10, 20)], [(15, 20)]),
        (lambda table: table.delete("true"), [(0, 10), (10, 20), (20, 30)], [(15, 20), (20, 30)]),
    ],
    ids=["nothing", "value", "null", "epoch", "offset", "double", "missing", "batch", "all"],
)
def test_a_table_that_is_not_the_log_is_found(
    cluster: sr.LocalCluster,
    topic: str,
    planted: Callable[[DeltaTable], None],
    found: list[tuple[int, int]],
    from_15: list[tuple[int, int]],
) -> None:
    """from_15: of a table that has given up what lies before."""
    for first in (0, 10, 20):  # each is a batch of its own
        produce(cluster, first, 10, topic=topic)
    write(cluster, topic)
    planted(DeltaTable(str(cluster.directory / "tables" / topic)))
    with closing(Routes(cluster.bootstrap)) as routes, Reader(cluster.bootstrap) as reader:
        (told,) = table_topics(routes, [topic])
        last = told.table(PATIENCE).last()
        assert last is not None
        faults = [*differences(told, reader, *last)]
        faults_from_15 = [*differences(told, reader, last[0], replace(last[1], starts={0: 15}))]
    assert faults == [TableFault(partition=0, what=PARTS, start=start, end=end) for start, end in found]
    assert [(each.start, each.end) for each in faults_from_15] == from_15
    assert [number for (number,) in stored(cluster.directory, "_partition", topic=topic) if number] == []
