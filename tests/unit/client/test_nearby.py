"""A reader that prefers who is near: from the replica's files where they are here, else from a broker."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from spark_replication.client.reading import nearby, reader
from spark_replication.client.reading.nearby import is_nearby
from spark_replication.client.reading.reader import Reader
from spark_replication.errors import InvalidRequest, NotReady, UnknownTopicOrPartition
from spark_replication.messages.ranges import FoundRange, ReplicaFolder
from spark_replication.messages.records import BatchMetadata
from spark_replication.process.extras import EXTRA_OF
from spark_replication.storage.directory.replica_folder import replica_folder
from spark_replication.storage.format.batches import TopicSchema, prepare
from spark_replication.storage.log.segment_files import DATA, INDEX
from tests.unit.client.fake_cluster import SCHEMA, FakeBroker, FakeCluster
from tests.unit.storage.storage_stories import StoryLog, log_in

ROWS = 3  # of a batch
BATCHES = 4
ALL = list(range(ROWS * BATCHES))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "orders-0.id-orders"


@pytest.fixture
def log(cluster: FakeCluster, folder: Path) -> Iterator[StoryLog]:
    """The same batches in the brokers' memory and in files, two to a segment."""
    folder.mkdir()
    topic = TopicSchema(SCHEMA)
    opened: StoryLog | None = None
    for number in range(BATCHES):
        batch = pa.record_batch([pa.array(range(ROWS * number, ROWS * (number + 1)), pa.int64())], schema=SCHEMA)
        cluster.log().append(batch, BatchMetadata(producer=99, sequence=number))
        prepared = prepare(batch, topic, batch_bytes_max=1 << 20)
        if opened is None:
            opened = log_in(folder, segment_bytes=2 * len(prepared.message))
            opened.begin_epoch(0)
        opened.append(prepared, leader_epoch=0, timestamp_ms=7)
    assert opened is not None
    assert len(opened.segments()) == 2
    tell(cluster, folder)
    yield opened
    opened.close()


def tell(cluster: FakeCluster, folder: Path, **otherwise: object) -> None:
    """Every broker says that its files are there; otherwise: of the folder."""
    told = replica_folder(folder)
    assert told is not None
    of_replica = replace(told, **otherwise)
    cluster.before_range = lambda _broker, found: replace(found, folder=of_replica)


def read(cluster: FakeCluster, **asked: object) -> list[int]:
    with Reader(cluster.bootstrap, prefer="near", deadline_ms=15_000) as opened:
        found = list(opened.read("orders", 0, **asked))  # type: ignore[arg-type]
    numbers = [number for each in found for number in each.batch.column(0).to_pylist()]
    assert [number for each in found for number in range(each.base_offset, each.last_offset + 1)] == numbers
    assert {(each.leader_epoch, each.timestamp) for each in found} <= {(0, 7)}
    return numbers


def test_a_range_is_read_from_files_alone(cluster: FakeCluster, log: StoryLog) -> None:
    assert read(cluster, start=1, stop=11) == ALL[1:11]
    assert read(cluster, start=4, stop=5, columns=["number"]) == [4]
    assert read(cluster, topic_id="id-orders", stop=12) == ALL
    assert cluster.served == []


CLIENT = f"""
import sys
sys.modules.update(dict.fromkeys({sorted(EXTRA_OF)}))
import spark_replication as sr

bootstrap, folder = sys.argv[1:]
with sr.Producer(bootstrap) as producer:
    acks = producer.send("payments", {{"number": list(range(20))}}, key="number").result(30)
    print(sorted((ack.partition, ack.last_offset - ack.base_offset + 1) for ack in acks))
with sr.Reader(bootstrap, prefer="near") as reader:
    print([number for each in reader.read("orders", 0, start=1, stop=5) for number in each.batch["number"].to_pylist()])
print(sum(each.batch.num_rows for each in sr.LocalReader(folder).read(uncommitted=True)))
"""


def test_a_client_has_no_package_of_an_extra(cluster: FakeCluster, folder: Path, log: StoryLog) -> None:
    """numpy above all: it would be a quarter of a client, and a third of the time that a producer takes to load."""
    cluster.create("payments", 3, SCHEMA)
    command = [sys.executable, "-c", CLIENT, cluster.bootstrap, str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ran.stderr == ""
    assert ran.stdout.splitlines() == ["[(0, 8), (1, 7), (2, 5)]", str(ALL[1:5]), str(len(ALL))]
    assert cluster.served == []


def test_what_has_no_end_is_asked_of_the_leader_after_the_files(cluster: FakeCluster, log: StoryLog) -> None:
    assert read(cluster, start="earliest") == ALL
    assert cluster.served == []


def test_a_follower_on_this_host_is_read_and_the_leader_elsewhere_gives_the_rest(
    cluster: FakeCluster, log: StoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.log().followers_end = 6
    monkeypatch.setattr(reader, "is_nearby", lambda address: address == cluster.brokers[2].address)
    assert read(cluster, stop=12) == ALL
    assert cluster.served == [1, 1]


def test_a_follower_on_this_host_is_read_while_nobody_leads(cluster: FakeCluster, log: StoryLog) -> None:
    cluster.lead(None)
    assert read(cluster, stop=12) == ALL
    assert cluster.served == []


def test_who_is_elsewhere_is_not_asked_for_files(
    cluster: FakeCluster, log: StoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "is_nearby", lambda _address: False)
    cluster.before_range = _not_to_be_asked
    assert read(cluster, stop=12) == ALL
    assert cluster.served == [1] * 4


def _not_to_be_asked(_broker: FakeBroker, found: FoundRange) -> FoundRange:
    raise AssertionError(found)


@pytest.mark.parametrize("otherwise", [{"boot_id": "another host's"}, {"device": 0}, {"inode": 1}, {"path": "/none"}])
def test_another_folder_is_not_read(cluster: FakeCluster, folder: Path, log: StoryLog, otherwise: object) -> None:
    assert isinstance(otherwise, dict)
    tell(cluster, folder, **otherwise)
    assert read(cluster, stop=12) == ALL
    assert cluster.served == [1] * 4


@pytest.mark.parametrize("files_uid", [os.geteuid() + 1, None])
def test_a_folder_of_another_user_than_the_brokers_is_not_read(
    cluster: FakeCluster, log: StoryLog, files_uid: int | None
) -> None:
    """Whatever the answer says. A broker of an earlier release does not say whose files it has."""
    cluster.files_uid = files_uid
    assert read(cluster, stop=12) == ALL
    assert cluster.served == [1] * 4


def test_a_copy_in_its_place_is_not_read(cluster: FakeCluster, folder: Path, log: StoryLog) -> None:
    shutil.copytree(folder, folder.parent / "copy")
    folder.rename(folder.parent / "moved")
    (folder.parent / "copy").rename(folder)
    assert read(cluster, stop=12) == ALL
    assert cluster.served == [1] * 4


def test_files_of_another_topic_of_that_name_are_not_read(cluster: FakeCluster, folder: Path, log: StoryLog) -> None:
    told = replica_folder(folder)
    cluster.before_range = lambda _broker, found: replace(found, folder=told, topic_id="another")
    assert read(cluster, stop=12) == ALL
    assert cluster.served == [1] * 4
    cluster.before_range = lambda _broker, found: replace(found, folder=told)
    assert read(cluster, stop=12, topic_id="another") == ALL, "the brokers of this test do not look at it"
    assert cluster.served == [1] * 8


def test_a_broker_that_cannot_tell_of_files_is_read_from_all_the_same(cluster: FakeCluster, log: StoryLog) -> None:
    def refuse(_broker: FakeBroker, found: FoundRange) -> FoundRange:
        return replace(found, error=NotReady.code, message="not yet")

    cluster.before_range = refuse
    assert read(cluster, stop=12) == ALL
    cluster.before_range = lambda _broker, found: found  # one of before there was such a thing
    assert read(cluster, stop=12) == ALL


def spoil(path: Path) -> None:
    """The rows of its last batch."""
    data = path.read_bytes()
    path.write_bytes(data[:-64] + bytes(64))


def test_damage_is_not_handed_out_and_the_rest_comes_from_a_broker(
    cluster: FakeCluster, folder: Path, log: StoryLog
) -> None:
    spoil(folder / f"{0:020}{DATA}")
    assert read(cluster, stop=12) == ALL
    assert cluster.served == [1] * 3, "what lies before it is sound"


def test_files_that_are_cut_while_they_are_read_end_nothing(cluster: FakeCluster, folder: Path, log: StoryLog) -> None:
    with Reader(cluster.bootstrap, prefer="near", deadline_ms=15_000) as opened:
        found = opened.read("orders", 0, 0, 12)
        numbers = next(found).batch.column(0).to_pylist()
        for path in folder.glob(f"*{DATA}"):
            os.truncate(path, 0)
        for each in found:
            numbers += each.batch.column(0).to_pylist()
    assert numbers == ALL
    assert cluster.served


@pytest.mark.parametrize("name", [f"{6:020}{DATA}", f"{6:020}{INDEX}"])
def test_files_that_are_gone_are_made_up_for(cluster: FakeCluster, folder: Path, log: StoryLog, name: str) -> None:
    (folder / name).unlink()
    assert read(cluster, stop=12) == ALL
    assert cluster.served == [1, 1]


def test_closing_ends_a_read_from_files(cluster: FakeCluster, log: StoryLog) -> None:
    with Reader(cluster.bootstrap, prefer="near", deadline_ms=15_000) as opened:
        found = opened.read("orders", 0, 0, 12)
        next(found)
        opened.close()
        assert list(found) == []


def test_batches_have_the_columns_that_the_topic_has(cluster: FakeCluster, log: StoryLog) -> None:
    cluster.widen("orders", SCHEMA.append(pa.field("late", pa.int8())))
    with Reader(cluster.bootstrap, prefer="near", deadline_ms=15_000) as opened:
        for columns in (None, ["late"], ["late", "number"]):
            first = next(opened.read("orders", 0, 0, 12, columns=columns))
            assert first.batch.schema.names == (columns or ["number", "late"])
            assert first.batch.column("late").to_pylist() == [None] * ROWS
    assert cluster.served == []


def test_an_unknown_preference_names_those_that_there_are(cluster: FakeCluster) -> None:
    with pytest.raises(InvalidRequest, match='"near"'):
        Reader(cluster.bootstrap, prefer="nearest")  # type: ignore[arg-type]


def test_a_topic_that_there_is_not_is_an_error_as_ever(cluster: FakeCluster) -> None:
    with Reader(cluster.bootstrap, prefer="near", deadline_ms=500) as opened, pytest.raises(UnknownTopicOrPartition):
        list(opened.read("none"))


@pytest.mark.parametrize(
    ("address", "is_here"),
    [
        ("127.0.0.1:9092", True),
        ("localhost:1", True),
        ("192.0.2.1:9092", False),  # of no host anywhere
        ("no.such.host.invalid:9092", False),
        ("a" * 70 + ".example:9092", False),
    ],
)
def test_an_address_is_here_if_a_socket_can_have_it(address: str, is_here: bool) -> None:
    nearby._is_this_host.cache_clear()
    assert is_nearby(address) is is_here


def test_a_folder_is_told_by_what_no_other_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").mkdir()
    told = replica_folder(tmp_path / "one")
    monkeypatch.chdir(tmp_path)
    assert replica_folder(Path("one")) == told
    assert isinstance(told, ReplicaFolder)
    found = (tmp_path / "one").stat()
    assert (told.path, told.device, told.inode) == (str(tmp_path / "one"), found.st_dev, found.st_ino)
    assert told.boot_id
    assert replica_folder(tmp_path / "two") is None
