"""A topic that is a table, too, in a cluster whose brokers lose their disks (TB1, TB4, TB5)."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from msgspec.structs import replace

import spark_replication as sr
from spark_replication.client.finding.routes import Routes
from spark_replication.client.reading.log_batch import LogBatch
from spark_replication.engine.broker.tables_behind import GRACE_MS
from spark_replication.errors import ReplicationError, RequestTimedOut
from spark_replication.live.tables.table_topics import table_topics
from spark_replication.live.tables.table_writers import TableWriters
from spark_replication.live.tables.topic_writer import TopicTableWriter
from spark_replication.messages.groups import GROUPS_TOPIC
from spark_replication.mirror.delta.object_store import PATIENCE
from tests.alert_rules import firing
from tests.live.tables.written import SCHEMA, faults, log_folders, produce, stored, write
from tests.scrapes import Scrape
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

OFF = {"page.enabled": False, "min.insync.replicas": 1, "unclean.recovery.timeout.ms": 1_000, "table": True}
DEADLINE_S = 40.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[sr.LocalCluster]:
    with sr.LocalCluster.start(brokers=2, directory=tmp_path, config=OFF) as cluster:
        cluster.admin.create_topic("orders", SCHEMA, partitions=2, replication_factor=2)
        cluster.wait_healthy()
        yield cluster


def loses_logs(cluster: sr.LocalCluster, *partitions: str) -> None:
    """Both brokers die, and the folders of these partitions are gone."""
    folders = [folder for broker in (1, 2) for folder in log_folders(cluster, broker, partitions)]
    assert folders
    for broker in (1, 2):
        cluster.kill_broker(broker)
    for folder in folders:
        shutil.rmtree(folder)
    for broker in (1, 2):
        cluster.restart_broker(broker)


def leader_of(cluster: sr.LocalCluster, partition: int = 0) -> int | None:
    (topic,) = cluster.admin.describe_topics(["orders"])
    return topic.partitions[partition].leader


def waiting_for(cluster: sr.LocalCluster) -> list[tuple[str, str]]:
    """Why elections wait for a table, and what to do about it."""
    reasons = cluster.admin.health().reasons
    return [(str(each), each.mend) for each in reasons if "table must be sealed" in str(each)]


def test_each_row_is_in_the_table_once_however_many_write_it_and_anybody_reads_it(
    cluster: sr.LocalCluster, tmp_path: Path
) -> None:
    for partition in (0, 1):
        produce(cluster, 1_000 * partition, 200, partition=partition)
    with ThreadPoolExecutor(3) as pool:
        written = [each.result() for each in [pool.submit(write, cluster) for _ in range(3)]]
    assert sum(writer.written.rows for writers in written for writer in writers.all) == 400
    assert write(cluster).all[0].written.commits == 0
    assert faults(cluster) == []
    path = str(tmp_path / "tables" / "orders")
    numbers = [*range(200), *range(1_000, 1_200)]
    assert sorted(pl.read_delta(path)["number"].to_list()) == numbers
    with duckdb.connect() as duck:
        found = duck.from_arrow(pl.scan_delta(path).filter(pl.col("_offset") >= 190).collect().to_arrow())
        assert sorted(found.project("number").fetchall()) == [(each,) for each in numbers if each % 1_000 >= 190]


def test_rows_that_were_not_read_to_their_end_are_not_committed(
    cluster: sr.LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in (0, 10, 20):  # a batch each
        produce(cluster, first, 10)
    with closing(Routes(cluster.bootstrap)) as routes, sr.Reader(cluster.bootstrap) as reader:
        whole = reader.read

        def all_but_the_last(*asked: Any, **how: Any) -> Iterator[LogBatch]:
            found = [*whole(*asked, **how)]
            assert len(found) == 3
            yield from found[:-1]

        monkeypatch.setattr(reader, "read", all_but_the_last)
        writers = TableWriters(routes, reader, PATIENCE, topics=["orders"], at_once=True)
        with pytest.raises(RequestTimedOut, match="the table of orders is not up to date"):
            writers.write_once(2.0, threading.Event().wait)
    assert stored(tmp_path, "_offset") == []
    write(cluster)
    assert stored(tmp_path, "_offset") == [(each,) for each in range(30)]


def test_the_log_of_groups_is_no_table_whatever_the_clusters_topics_are(cluster: sr.LocalCluster) -> None:
    produce(cluster, 0, 10)
    with sr.Consumer(cluster.bootstrap, ["orders"], "readers") as consumer:
        next(iter(consumer))
    (groups,) = cluster.admin.describe_topics([GROUPS_TOPIC])
    assert groups.config["table"] is False


def test_after_all_logs_were_lost_no_offset_of_the_table_is_given_again(
    cluster: sr.LocalCluster, tmp_path: Path
) -> None:
    produce(cluster, 0, 100)
    write(cluster)
    produce(cluster, 100, 20)  # which no table has, and which is lost
    loses_logs(cluster, "orders-0")
    eventually(lambda: leader_of(cluster) is not None, "somebody leads", DEADLINE_S)
    assert produce(cluster, 500, 20) == [100, 110]
    (batch, *_) = sr.Reader(cluster.bootstrap).read("orders", 0, "earliest")
    assert batch.base_offset == 100
    write(cluster)
    assert faults(cluster) == []
    wanted = [(each, each) for each in range(100)] + [(100 + each, 500 + each) for each in range(20)]
    assert stored(tmp_path, "_offset", "number", where='"_partition" = 0') == wanted
    (topic,) = cluster.admin.describe_topics(["orders"])
    loss = topic.partitions[0].possible_loss
    assert loss is not None
    assert loss.from_offset == 100, "what the table has is not lost"


@pytest.mark.trust
def test_health_names_a_table_that_nobody_writes_until_somebody_does(tmp_path: Path) -> None:
    nobody = {**OFF, "table.writer.enabled": False, "table.flush.ms": 1_000}
    with sr.LocalCluster.start(brokers=2, directory=tmp_path, config=nobody) as cluster:

        def behind() -> list[str]:
            return [str(each) for each in cluster.admin.health().reasons if "table of orders" in str(each)]

        cluster.admin.create_topic("orders", SCHEMA, partitions=2, replication_factor=2)
        cluster.wait_healthy()
        produce(cluster, 0, 10)
        eventually(behind, "its table is named", DEADLINE_S + GRACE_MS / 1_000)
        (what,) = behind()
        assert what.startswith("table of orders lacks rows of a partition that broker ")
        assert "TableBehind" in alerts(cluster)
        write(cluster)
        eventually(lambda: not behind(), "its table is named no longer", DEADLINE_S)
        assert "TableBehind" not in alerts(cluster)


def alerts(cluster: sr.LocalCluster) -> set[str]:
    """Those of conf/alerts.yml that what brokers tell makes true."""
    found = Scrape.of({f"broker {broker}": cluster.admin.metrics(broker) for broker in cluster.brokers})
    return firing(Scrape(0, ()), found)


def test_an_election_waits_for_a_table_that_is_away(cluster: sr.LocalCluster, tmp_path: Path) -> None:
    produce(cluster, 0, 50)
    write(cluster)
    table = tmp_path / "tables" / "orders"
    table.rename(tmp_path / "away")
    table.write_text("no folder")
    loses_logs(cluster, "orders-0")
    eventually(lambda: waiting_for(cluster), "the election waits for the table", DEADLINE_S)
    ((why, mend),) = waiting_for(cluster)
    assert "orders-0 has no leader" in why
    assert "leader elect --kind longest_log_proactive --without-table orders-0" in mend
    assert leader_of(cluster) is None
    table.unlink()
    (tmp_path / "away").rename(table)
    eventually(lambda: leader_of(cluster) is not None, "somebody leads once it is there", DEADLINE_S)
    assert produce(cluster, 0, 10) == [50]


def test_a_person_may_elect_without_the_table(cluster: sr.LocalCluster, tmp_path: Path) -> None:
    produce(cluster, 0, 50)
    (tmp_path / "tables").write_text("no folder")
    loses_logs(cluster, "orders-0")
    eventually(lambda: waiting_for(cluster), "the election waits for the table", DEADLINE_S)
    assert cluster.admin.elect_leaders("unclean", ["orders-0"], without_table=True) == {}
    eventually(lambda: leader_of(cluster) is not None, "somebody leads", DEADLINE_S)
    assert produce(cluster, 0, 10) == [0]


def test_a_partition_that_is_added_again_goes_on_where_its_table_ends(cluster: sr.LocalCluster, tmp_path: Path) -> None:
    produce(cluster, 0, 60, partition=1)
    write(cluster)
    cluster.admin.remove_partitions("orders", [1])
    cluster.admin.add_partitions("orders", 2)
    eventually(lambda: leader_of(cluster, 1) is not None, "somebody leads it", DEADLINE_S)
    assert produce(cluster, 700, 10, partition=1) == [60]
    write(cluster)
    assert faults(cluster) == []
    wanted = [(each, each) for each in range(60)] + [(60 + each, 700 + each) for each in range(10)]
    assert stored(tmp_path, "_offset", "number", where='"_partition" = 1') == wanted


def test_retention_waits_for_the_table(cluster: sr.LocalCluster) -> None:
    settings = {"segment.bytes": 1_000, "retention.bytes": 1, "log.retention.check.interval.ms": 100}
    cluster.admin.configure(None, {"log.retention.check.interval.ms": settings.pop("log.retention.check.interval.ms")})
    cluster.admin.configure("orders", settings)
    produce(cluster, 0, 300)

    def earliest() -> int:
        return next(iter(sr.Reader(cluster.bootstrap).read("orders", 0, "earliest"))).base_offset

    produce(cluster, 300, 300)
    assert earliest() == 0
    write(cluster)
    eventually(lambda: earliest() > 0, "what the table has goes", DEADLINE_S)
    assert faults(cluster) == []


def test_a_topic_that_is_made_again_is_refused_the_table_of_the_one_before(cluster: sr.LocalCluster) -> None:
    produce(cluster, 0, 10)
    write(cluster)
    cluster.admin.delete_topic("orders")
    cluster.admin.create_topic("orders", SCHEMA, partitions=2, replication_factor=2)
    cluster.wait_healthy()
    produce(cluster, 0, 10)
    with pytest.raises(ReplicationError, match="it stays as it is"):
        write(cluster, patience_s=2)


def test_a_writer_that_does_not_share_the_folder_writes_no_table_of_its_own(
    cluster: sr.LocalCluster, tmp_path: Path
) -> None:
    produce(cluster, 0, 10)
    with closing(Routes(cluster.bootstrap)) as routes, sr.Reader(cluster.bootstrap) as reader:
        (topic,) = table_topics(routes, ["orders"])
        elsewhere = replace(topic, settings=replace(topic.settings, table_path=str(tmp_path / "elsewhere")))
        writer = TopicTableWriter(topic.metadata, routes, reader, elsewhere.table(PATIENCE), topic.rules)
        writer.go_on()
    assert "where the controller has made it: name a folder that all hosts share" in writer.why_not()
    assert not (tmp_path / "elsewhere").exists()
    assert (tmp_path / "tables" / "orders" / "_delta_log").is_dir()


def test_who_asks_for_the_table_of_a_topic_that_is_none_is_told_how_to_make_it_one(cluster: sr.LocalCluster) -> None:
    cluster.admin.create_topic("plain", SCHEMA, partitions=1, replication_factor=1, config={"table": False})
    with pytest.raises(ReplicationError, match="topics configure plain table=true"):
        write(cluster, "plain")
