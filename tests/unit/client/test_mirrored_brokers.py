"""`delta:/path`: clients begin with the brokers that the mirror's table names."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from spark_replication.client.finding.bootstrap import MirroredBrokers, NamedCluster, parse_bootstrap
from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.routes import Routes
from spark_replication.client.producing.producer import Producer
from spark_replication.errors import BrokerNotAvailable, WrongCluster
from spark_replication.mirror.delta.delta_file import DeltaFile
from spark_replication.mirror.tables.brokers import BrokerRow
from spark_replication.mirror.tables.status import STATUS, StatusRow
from tests.live.mirror.mirror_stories import CLUSTER, broker_row, write_brokers
from tests.unit.client.fake_cluster import PASSES_MS, FakeCluster
from tests.unit.client.test_producer import numbers

TIMEOUT_MS = 2_000


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "mirror")


def named(path: str) -> list[str]:
    return parse_bootstrap(f"delta:{path}").cluster(TIMEOUT_MS).brokers


def test_those_that_live_come_first_and_those_that_are_gone_not_at_all(path: str) -> None:
    write_brokers(path, broker_row(1, 1, shutting_down=True), broker_row(3, 2), broker_row(2, 3), dead=[(4, 4)])
    assert named(path) == ["host2:9002", "host3:9003", "host1:9001"]


def test_the_table_is_read_anew_each_time(path: str) -> None:
    write_brokers(path, broker_row(1, 1), broker_row(2, 1))
    bootstrap = MirroredBrokers(path)
    assert bootstrap.cluster(TIMEOUT_MS).brokers == ["host1:9001", "host2:9002"]
    write_brokers(path, broker_row(1, 5, port=7_000), dead=[(2, 6)])
    assert bootstrap.cluster(TIMEOUT_MS).brokers == ["host1:7001"]


def test_a_relative_path_stays_where_it_was_named(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_brokers(path, broker_row(1, 1))
    monkeypatch.chdir(Path(path).parent)
    bootstrap = parse_bootstrap("delta:mirror")
    monkeypatch.chdir("/")
    assert bootstrap.cluster(TIMEOUT_MS).brokers == ["host1:9001"]


def test_a_table_in_which_nobody_lives_says_so(path: str) -> None:
    write_brokers(path, broker_row(1, 1))
    write_brokers(path, dead=[(1, 2)])
    with pytest.raises(BrokerNotAvailable, match=f"{path}/brokers names no broker that lives: start brokers"):
        named(path)


def test_no_table_or_another_one_says_what_to_name(path: str) -> None:
    with pytest.raises(BrokerNotAvailable, match=r"cannot be read \(.+\): name the mirror.path"):
        named(path)
    assert not Path(path).exists()
    write_deltalake(f"{path}/brokers", pa.table({"deleted": [False], "id": [1]}))
    with pytest.raises(BrokerNotAvailable, match=r"cannot be read \(.+\): name the mirror.path"):
        named(path)
    write_deltalake(f"{path}-other/brokers", pa.table({"id": [1]}))
    with pytest.raises(BrokerNotAvailable, match=r"cannot be read \(.+\): name the mirror.path"):
        named(f"{path}-other")


def test_a_file_of_the_table_that_is_lost_is_no_empty_table(path: str) -> None:
    write_brokers(path, broker_row(1, 1))
    for file in Path(path, "brokers").glob("*.parquet"):
        file.unlink()
    with pytest.raises(BrokerNotAvailable, match="cannot be read"):
        named(path)


def test_a_store_that_does_not_answer_costs_no_more_than_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_REGION", "nowhere")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        begun_s = time.monotonic()
        with pytest.raises(BrokerNotAvailable, match="cannot be read"):
            parse_bootstrap("delta:s3://bucket/mirror").cluster(200)
        assert time.monotonic() - begun_s < 5  # delta-rs by itself tries for 3 minutes


def fake_rows(cluster: FakeCluster, zxid: int, *brokers: int, cluster_id: str = "fake") -> list[BrokerRow]:
    return [
        BrokerRow(
            cluster_id=cluster_id,
            broker=id_,
            registration=cluster.brokers[id_].registration,
            zxid=zxid,
            at_ms=0,
            told_ms=0,
        )
        for id_ in brokers
    ]


def test_routes_begin_with_the_table_and_go_on_with_what_brokers_tell(cluster: FakeCluster, path: str) -> None:
    nobody = msgspec.structs.replace(broker_row(8, 1, port=1 - 8), cluster_id="fake")
    write_brokers(path, nobody, *fake_rows(cluster, 1, 1))
    routes = Routes(f"delta:{path}")
    first = routes.route("orders", 0, Deadline(20_000))
    assert (first.leader, first.address) == (1, cluster.brokers[1].address)
    write_brokers(path, dead=[(1, 2), (8, 2)])  # whatever the table says from now on
    cluster.lead(2)
    routes.stale(first)
    assert routes.route("orders", 0, Deadline(20_000)).leader == 2


def test_a_table_says_which_cluster_it_is_of(path: str) -> None:
    write_brokers(path, broker_row(1, 1))
    assert parse_bootstrap(f"delta:{path}").cluster(TIMEOUT_MS) == NamedCluster(["host1:9001"], CLUSTER)


def test_whoever_has_the_port_of_a_broker_that_a_table_names_is_not_believed(cluster: FakeCluster, path: str) -> None:
    """The table is stale, and a broker of another cluster has got the port, with a topic of the same name."""
    write_brokers(path, *fake_rows(cluster, 1, 1, 2, cluster_id=CLUSTER))
    with Producer(f"delta:{path}", deadline_ms=PASSES_MS) as producer:
        error = producer.send("orders", numbers(1)).exception(20)
    assert isinstance(error, BrokerNotAvailable)
    assert f"a server of cluster fake answered at {cluster.brokers[1].address}" in str(error)
    assert f"this client is of cluster {CLUSTER}" in str(error)
    assert cluster.log().numbers == []


def test_a_table_of_several_clusters_says_so(cluster: FakeCluster, path: str) -> None:
    write_brokers(path, broker_row(1, 1), *fake_rows(cluster, 2, 2))
    with pytest.raises(BrokerNotAvailable, match=rf"are of the clusters \['{CLUSTER}', 'fake'\]"):
        named(path)


def test_a_table_that_another_cluster_has_taken_over_is_not_followed(cluster: FakeCluster, path: str) -> None:
    write_brokers(path, *fake_rows(cluster, 1, 1))
    routes = Routes(f"delta:{path}")
    first = routes.route("orders", 0, Deadline(20_000))
    write_brokers(path, broker_row(8, 2), dead=[(1, 2)])
    for broker in cluster.brokers.values():
        broker.proxy.down()
    routes.stale(first)
    with pytest.raises(WrongCluster, match=f"names cluster {CLUSTER} by now, and this client is of cluster fake"):
        routes.route("orders", 0, Deadline(PASSES_MS))


def test_an_error_names_the_table_that_was_tried(path: str) -> None:
    with pytest.raises(BrokerNotAvailable, match=f"delta:{path}.+name the mirror.path"):
        Routes(f"delta:{path}").route("orders", 0, Deadline(5_000))


def write_status(path: str, controller: str, *, cluster_id: str = CLUSTER, epoch: int = 1) -> None:
    row = StatusRow(
        cluster_id=cluster_id,
        controller=controller,
        controller_epoch=epoch,
        zxid=1,
        event=1,
        as_of_ms=1,
        lag_ms=0,
        heartbeat_ms=10_000,
        problems=(),
    )
    DeltaFile(STATUS, STATUS.path(path), cluster_id).merge(lambda _opened: STATUS.rows([row], []))


def test_the_tables_name_the_controller_too(path: str) -> None:
    write_brokers(path, broker_row(1, 1))
    write_status(path, "h:1")
    assert parse_bootstrap(f"delta:{path}").cluster(TIMEOUT_MS) == NamedCluster(["host1:9001"], CLUSTER, "h:1")
    write_status(path, "h:2", epoch=2)
    write_brokers(path, dead=[(1, 2)])
    assert parse_bootstrap(f"delta:{path}").cluster(TIMEOUT_MS) == NamedCluster([], CLUSTER, "h:2")


def test_the_controller_of_another_cluster_is_not_theirs(path: str) -> None:
    write_brokers(path, broker_row(1, 1))
    write_status(path, "h:1", cluster_id="another")
    assert parse_bootstrap(f"delta:{path}").cluster(TIMEOUT_MS) == NamedCluster(["host1:9001"], CLUSTER, None)


def test_where_no_broker_lives_the_controller_of_the_tables_is_asked(cluster: FakeCluster, path: str) -> None:
    write_brokers(path, *fake_rows(cluster, 1, 1))
    write_brokers(path, dead=[(1, 2)])
    write_status(path, cluster.brokers[2].address, cluster_id="fake")
    assert sorted(Routes(f"delta:{path}").metadata((), Deadline(20_000)).brokers) == sorted(cluster.brokers)


@pytest.mark.slow
def test_who_needs_no_table_does_not_load_delta() -> None:
    program = (
        "import sys; import spark_replication.client.producing.producer, spark_replication.client.reading.reader; "
        "from spark_replication.client.finding.bootstrap import parse_bootstrap; parse_bootstrap('delta:/tables'); "
        "print(sorted({'deltalake', 'pyspark'} & sys.modules.keys()))"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
