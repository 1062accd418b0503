"""`sr.connect`: where it asks, what it shows, and what it says where something is missing."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

import spark_replication as sr
from spark_replication.admin.notebook import connected as module
from spark_replication.admin.notebook.connected import ConnectedCluster, connect
from spark_replication.admin.notebook.frames import (
    BROKER_COLUMNS,
    EVENT_COLUMNS,
    GROUP_COLUMNS,
    LAG_COLUMNS,
    PARTITION_COLUMNS,
    POSITION_COLUMNS,
    TOPIC_COLUMNS,
)
from spark_replication.config import BOOTSTRAP_VARIABLE
from spark_replication.errors import InvalidRequest, UnknownTopicOrPartition
from spark_replication.messages.descriptions import FollowerLag, ReplicaSize, ReplicaSizes
from spark_replication.messages.groups import DescribedGroup, DescribedPosition
from spark_replication.messages.records import BatchMetadata
from tests.unit.admin.notebook.described import event
from tests.unit.client.fake_cluster import SCHEMA, FakeCluster

WITHOUT = """
import sys
sys.modules["{missing}"] = None
from spark_replication.admin.notebook.connected import connect
from spark_replication.errors import NotInstalled
try:
    connect("127.0.0.1:1").grid()
except NotInstalled as error:
    sys.stdout.write(str(error))
"""
MODULES = """
import sys
import spark_replication as sr
with sr.connect("{bootstrap}") as cluster:
    cluster.partitions(), cluster.brokers(), cluster.topics(), cluster.events(), cluster.lag(), cluster.groups()
    cluster.positions(), cluster._repr_html_()
    cluster.plan(over=[1, 2]), cluster.timeline("orders"), cluster.grid()
print(*sorted({{name.partition(".")[0] for name in sys.modules}}))
"""


def ran(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tables_have_their_columns(cluster: FakeCluster, connected: ConnectedCluster) -> None:
    cluster.events = [event(1, 1_000, None, (1, 0), kind="created")]
    told: dict[str, Any] = {"topic": "orders", "partition": 0, "topic_id": "id-orders", "leads": True, "bytes": 9}
    cluster.sizes[1] = ReplicaSizes(replicas=(ReplicaSize(**told, lags={2: FollowerLag(records=3, ms=40)}),))
    assert [*connected.partitions().columns] == PARTITION_COLUMNS.names
    assert [*connected.partitions(["orders"]).partition] == [0, 1, 2]
    assert [*connected.brokers().columns] == BROKER_COLUMNS.names
    assert [*connected.brokers().broker] == [1, 2]
    assert [*connected.topics().columns] == TOPIC_COLUMNS.names
    assert [*connected.events().columns] == EVENT_COLUMNS.names
    lag = connected.lag(["orders"])
    assert [*lag.columns] == LAG_COLUMNS.names
    assert lag.iloc[0].to_dict() == {
        "topic": "orders",
        "partition": 0,
        "follower": 2,
        "leader": 1,
        "records": 3,
        "ms": 40,
        "in_sync": True,
    }


def test_groups_are_tables_of_what_each_has_read(cluster: FakeCluster, connected: ConnectedCluster) -> None:
    cluster.create("small")
    cluster.log("small").append(pa.record_batch([[1, 2, 3]], schema=SCHEMA), BatchMetadata(producer=9, sequence=0))
    of: dict[str, Any] = {"topic": "small", "partition": 0, "topic_id": "id-small"}
    size = ReplicaSize(**of, leads=True, bytes=9, high_watermark=3, log_end=3)
    cluster.sizes[1] = ReplicaSizes(replicas=(size,))
    assert [*connected.groups().columns] == GROUP_COLUMNS.names
    for name, offset in (("etl", 1), ("audit", 3)):
        at = DescribedPosition(**of, offset=offset, last_epoch=0, committed_ms=1_000)
        cluster.groups.add(DescribedGroup(group=name, epoch=1, members=(), positions=(at,)))
    groups = connected.groups()
    assert [*zip(groups.group, groups.records, strict=True)] == [("audit", 0), ("etl", 2)]
    found = connected.positions(["etl"])
    assert [*found.columns] == POSITION_COLUMNS.names
    assert [*zip(found.group, found.offset, found.end, found.records, strict=True)] == [("etl", 1, 3, 2)]
    assert [*connected.positions().group] == ["audit", "etl"]
    assert connected.positions(["nobody"]).empty
    with pytest.raises(InvalidRequest, match="groups='etl': name them in a list, as in \\[\"etl\"\\]"):
        connected.positions("etl")


def test_a_topic_is_a_table(cluster: FakeCluster, connected: ConnectedCluster) -> None:
    batch = pa.record_batch([pa.array([1, 2, 3])], schema=SCHEMA)
    cluster.log().append(batch, BatchMetadata(producer=9, sequence=0))
    found = connected.topic("orders", where=[("number", ">", 1)], columns=["number", "_offset"])
    assert found.to_arrow().to_pydict() == {"number": [2, 3], "_offset": [1, 2]}


def test_a_topic_that_is_not_there_is_an_error(connected: ConnectedCluster) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="there is no topic nothing"):
        connected.partitions(["nothing"])


def test_so_many_events(cluster: FakeCluster, connected: ConnectedCluster) -> None:
    cluster.events = [event(number, 1_000, None, (1, 0)) for number in range(5)]
    assert [*connected.events(topics=["orders"], last=2).number] == [3, 4]
    assert len(connected.events()) == 5


def test_charts_are_of_this_cluster(cluster: FakeCluster, connected: ConnectedCluster) -> None:
    cluster.events = [event(1, 1_000, None, (1, 0), kind="created"), event(2, 2_000, (1, 0), (2, 1))]
    assert len(connected.grid().to_dict()["datasets"]["cells"]) == 3
    assert len(connected.grid(["orders"]).to_dict()["datasets"]["cells"]) == 3
    bars = connected.timeline("orders").to_dict()["datasets"]["bars"]
    assert [(bar["partition"], bar["led by"], bar["since"]) for bar in bars][:2] == [
        (0, "broker 1", 1_000),
        (0, "broker 2", 2_000),
    ]
    assert connected.timeline("orders", since=1_500).to_dict()["datasets"]["bars"][0]["since"] == 1_500


def test_the_verdict_its_reasons_and_brokers_are_shown(cluster: FakeCluster, connected: ConnectedCluster) -> None:
    html = connected._repr_html_()
    assert ">healthy</span>: 2 brokers, 1 topics, 3 partitions" in html
    assert f"<td>1</td><td>{cluster.brokers[1].address}</td><td></td><td>live</td><td>3</td><td>3</td>" in html
    assert f"<p>bootstrap {cluster.bootstrap}</p>" in html
    cluster.lead(None)
    html = connected._repr_html_()
    assert ">critical</span>" in html
    assert "orders-0 has no leader" in html


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        (
            "http://h:1/?a=1&b=2",
            '<a href="http://h:1/?a=1&amp;b=2" target="_blank" rel="noopener">page of the cluster</a>',
        ),
        ("javascript:alert(1)", "<p>page of the cluster: javascript:alert(1); bootstrap"),
    ],
)
def test_the_page_is_linked(cluster: FakeCluster, page: str, shown: str) -> None:
    with connect(cluster.bootstrap, page=page) as opened:
        assert shown in opened._repr_html_()


@pytest.mark.parametrize(
    ("told", "tells", "known"),
    [("http://h:2/", True, "http://h:2/"), (None, True, None), ("http://h:2/", False, None), ("x" * 1_001, True, None)],
)
def test_where_the_page_is_the_controller_says(
    cluster: FakeCluster, told: str | None, *, tells: bool, known: str | None
) -> None:
    cluster.page, cluster.tells_page = told, tells
    with connect(cluster.bootstrap) as opened:
        assert opened.page == known
        assert ("page of the cluster</a>" in opened._repr_html_()) == (known is not None)
    with connect(cluster.bootstrap, page="http://mine:1/") as opened:
        assert opened.page == "http://mine:1/"


def test_a_cluster_that_does_not_answer_is_shown_as_that() -> None:
    with connect("127.0.0.1:1", deadline_ms=100) as opened:
        html = opened._repr_html_()
    assert ">critical</span>: 127.0.0.1:1: " in html
    assert repr(opened) == "ConnectedCluster('127.0.0.1:1')"


def test_without_an_address_the_environments_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, "127.0.0.1:7")
    with sr.connect() as opened:
        assert opened.bootstrap == "127.0.0.1:7"
    with sr.connect("127.0.0.1:8") as opened:
        assert opened.bootstrap == "127.0.0.1:8"
    monkeypatch.delenv(BOOTSTRAP_VARIABLE)
    with pytest.raises(InvalidRequest, match="it is not said where the cluster is"):
        sr.connect()


def test_a_pace_of_nothing_is_no_pace(connected: ConnectedCluster) -> None:
    with pytest.raises(InvalidRequest, match="0 bytes a second copy nothing"):
        connected.plan(over=[1], bytes_per_second=0)


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["altair", "vl_convert"])
def test_what_charts_lack_is_said(missing: str) -> None:
    assert ran(WITHOUT.format(missing=missing)) == (
        f"NOT_INSTALLED: a chart needs {missing}, which is not installed: pip install 'spark_replication[notebook]'"
    )


def test_another_module_that_is_missing_is_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spark_replication.admin.notebook.cells", None)
    monkeypatch.delitem(sys.modules, "spark_replication.admin.notebook.charts", raising=False)
    monkeypatch.delattr("spark_replication.admin.notebook.charts", raising=False)
    with pytest.raises(ModuleNotFoundError):
        module._charts()


@pytest.mark.slow
def test_no_spark_is_needed(cluster: FakeCluster) -> None:
    assert not {"pyspark", "py4j", "delta"} & {*ran(MODULES.format(bootstrap=cluster.bootstrap)).split()}
