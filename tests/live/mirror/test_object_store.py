"""The tables in an object store: written by the options of one file, read by whoever has the environment for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from deltalake.table import TableAlterer

import spark_replication as sr
from spark_replication.admin.mirror_agreement import verified
from spark_replication.config import settings_from
from spark_replication.errors import InvalidRequest, StorageFailed
from spark_replication.mirror.asking.load import read_partitions, read_status
from spark_replication.mirror.delta.delta_file import LOW_WATER, DeltaFile
from spark_replication.mirror.delta.object_store import StoreOptions, read_store_options
from spark_replication.mirror.tables.partitions import PARTITIONS, PartitionRow
from spark_replication.mirror.telling.feed import MirrorThread, Teller
from tests.live.mirror.mirror_stories import CLUSTER, DEADLINE_S, command, everything, row, wait_for
from tests.live.mirror.object_store import MIRROR, SECRET, ObjectStore

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

SCHEMA = pa.schema([("number", pa.int64())])
WRITES = 8


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    started = ObjectStore()
    yield started
    started.down()


@pytest.fixture
def may_read(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def options(store: ObjectStore, tmp_path: Path) -> StoreOptions:
    settings = settings_from({"mirror.path": MIRROR, "mirror.storage.file": str(store.options_file(tmp_path))})
    return read_store_options(settings)


def are_led(table: sr.LeaderTable) -> bool:
    table.refresh()
    return None not in {table.route("orders", partition) for partition in range(4)}


@pytest.mark.usefixtures("may_read")
def test_a_clusters_tables_lie_there_and_its_clients_begin_with_them(store: ObjectStore, tmp_path: Path) -> None:
    config = {"mirror.path": MIRROR, "mirror.storage.file": str(store.options_file(tmp_path))}
    with sr.LocalCluster.start(brokers=3, config=config) as cluster:
        cluster.admin.create_topic("orders", SCHEMA, partitions=4)
        cluster.wait_healthy()
        assert not verified(cluster.zookeeper, MIRROR, DEADLINE_S, cluster.security).differences
        assert cluster.controller_pid is not None
        os.kill(cluster.controller_pid, signal.SIGKILL)
        cluster.admin.create_topic("payments", SCHEMA, partitions=2)
        agreed = verified(cluster.zookeeper, MIRROR, DEADLINE_S, cluster.security)
        assert (agreed.rows, agreed.differences) == (2 + 6 + 3, ())
        with sr.Producer(f"delta:{MIRROR}") as producer:
            producer.send("orders", pa.record_batch({"number": [1, 2]}, SCHEMA), partition=0).result(DEADLINE_S)
        with sr.Reader(f"delta:{MIRROR}") as reader:
            found = [each for batch in reader.read("orders") for each in batch.batch["number"].to_pylist()]
        assert found == [1, 2]
        table = sr.LeaderTable(MIRROR)
        wait_for(lambda: are_led(table))


def test_of_two_that_write_one_version_the_later_writes_another(options: StoreOptions) -> None:
    def write(partition: int) -> None:
        file = DeltaFile(PARTITIONS, PARTITIONS.path(MIRROR), CLUSTER, options)
        for zxid in range(1, WRITES + 1):
            told: PartitionRow = row(command("orders", partition, leader_epoch=zxid), zxid)
            file.merge(lambda _opened, told=told: PARTITIONS.rows([told], []))  # type: ignore[misc]

    DeltaFile(PARTITIONS, PARTITIONS.path(MIRROR), CLUSTER, options).open()
    with ThreadPoolExecutor(2) as writers:
        for written in [writers.submit(write, partition) for partition in range(2)]:
            written.result(DEADLINE_S)
    opened = DeltaTable(PARTITIONS.path(MIRROR), storage_options=dict(options))
    assert opened.version() == 2 * WRITES
    rows = opened.to_pyarrow_table().select(["partition", "leader_epoch"]).to_pylist()
    assert sorted(rows, key=lambda each: each["partition"]) == [
        {"partition": partition, "leader_epoch": WRITES} for partition in range(2)
    ]


def refused(*_args: object, **_named: object) -> None:
    raise AssertionError("while it waits for the store no other thread of this process goes on")


def test_a_table_there_is_tidied_by_another_process(options: StoreOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    file = DeltaFile(PARTITIONS, PARTITIONS.path(MIRROR), CLUSTER, options)
    for zxid in range(1, 4):
        told = PARTITIONS.rows([row(command(leader_epoch=zxid), zxid)], [])
        file.merge(lambda _opened, told=told: told)  # type: ignore[misc]
    monkeypatch.setattr(TableAlterer, "set_table_properties", refused)
    monkeypatch.setattr(DeltaStorageHandler, "get_file_info_selector", refused)
    file.tidy(1)
    file.forget(3)
    opened = DeltaTable(PARTITIONS.path(MIRROR), storage_options=dict(options))
    assert opened.metadata().configuration["delta.deletedFileRetentionDuration"] == "interval 10 seconds"
    assert opened.metadata().configuration[LOW_WATER] == "3"
    assert opened.to_pyarrow_table()["leader_epoch"].to_pylist() == [3]


def test_what_another_process_could_not_do_is_told(store: ObjectStore, options: StoreOptions) -> None:
    file = DeltaFile(PARTITIONS, PARTITIONS.path(MIRROR), CLUSTER, {**options, "max_retries": "0", "timeout": "2s"})
    file.open()
    store.down()
    with pytest.raises(StorageFailed, match=r"s3a://lake/mirror/partitions did not tidy: .* was not written") as told:
        file.tidy(1)
    assert SECRET not in str(told.value)
    store.up()


@pytest.mark.usefixtures("may_read")
def test_a_store_that_was_away_is_written_again_once_it_is_back(store: ObjectStore, options: StoreOptions) -> None:
    impatient = {**options, "max_retries": "0", "timeout": "2s", "retry_timeout": "2s"}
    mirror = MirrorThread(MIRROR, Teller(CLUSTER, 4, "127.0.0.1:9"), settings_from({}), impatient)
    try:
        mirror.tell(everything(20, (command(leader_epoch=2), 10)))
        mirror.flush(DEADLINE_S)
        store.down()
        mirror.tell(everything(30, (command(leader_epoch=3), 25)))
        wait_for(lambda: mirror.error is not None)
        assert isinstance(mirror.error, StorageFailed)
        assert SECRET not in str(mirror.error)
        store.up()
        mirror.tell(everything(30, (command(leader_epoch=3), 25)))
        mirror.flush(DEADLINE_S)
        assert read_partitions(MIRROR)["leader_epoch"].to_pylist() == [3]
        wait_for(lambda: read_status(MIRROR)["zxid"].to_pylist() == [30])
    finally:
        mirror.close()


def test_who_has_no_credentials_is_told_so(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises((InvalidRequest, StorageFailed), match=r"s3a://lake/mirror"):
        sr.LeaderTable(MIRROR).refresh()
