"""What a terminal and a notebook show of the values that an admin is told: a line each, and HTML that is only text."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs

from spark_replication.client.asking import descriptions
from spark_replication.client.asking.admin import Admin
from spark_replication.client.asking.descriptions import (
    BrokerDescription,
    ClusterDescription,
    PartitionDescription,
    TopicDescription,
)
from spark_replication.client.asking.health import Health
from spark_replication.client.asking.markup import STYLES, Markup, joined, markup, paragraph, styled, table
from spark_replication.config import Settings
from spark_replication.live.local_cluster import LocalCluster
from spark_replication.transport.security.security import NO_SECURITY
from spark_replication.view.problem import mend_from
from spark_replication.view.verdict import Incident, Reason

HOSTILE = "<script>alert(1)</script>"
ESCAPED = "&lt;script&gt;alert(1)&lt;/script&gt;"


def partition(number: int = 0, leader: int | None = 1) -> PartitionDescription:
    return PartitionDescription(
        partition=number,
        leader=leader,
        leader_epoch=4,
        partition_epoch=9,
        replicas=(1, 2),
        isr=(1,),
        elr=(2,),
        last_known_elr=(),
        last_known_leader=None,
        min_isr=1,
        recovering=False,
    )


def topic(*partitions: PartitionDescription, schema: pa.Schema | None = None, **told: Any) -> TopicDescription:
    text = "" if schema is None else base64.b64encode(schema.serialize().to_pybytes()).decode()
    return TopicDescription(
        **{"name": "orders", "topic_id": "a", "partitions": partitions, "config": {}, "schema": text, **told}
    )


def health(*reasons: Reason, controller: str | None = "h:1") -> Health:
    return Health(
        verdict="degraded" if reasons else "healthy",
        reasons=reasons,
        incidents=tuple(map(incident, reasons)),
        cluster_id="c",
        controller=controller,
        brokers=3,
        topics=1,
        partitions=6,
        leaderless=0,
        under_min_isr=0,
        under_replicated=1,
        moving=0,
    )


def incident(of: Reason) -> Incident:
    return Incident(
        severity=of.severity,
        what=str(of),
        consequences=(),
        mends=(mend_from(of.mend),),
        because=of.because,
        since_ms=of.since_ms,
    )


def reason(**told: Any) -> Reason:
    fields = {"severity": "warning", "what": "has 1 of 2 replicas in sync", "count": 1, "subjects": ("orders-0",)}
    return Reason(**{**fields, "mend": "start broker 2", **told})


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""),
        (0, "0"),
        ((1, 2), "1, 2"),
        ([], ""),
        (["<b>", "&"], "&lt;b&gt;, &amp;"),
        ('"', "&quot;"),
        (Markup("<b>"), "<b>"),
    ],
)
def test_any_value_is_text(value: Any, shown: str) -> None:
    assert markup(value) == shown


def test_markup_is_escaped_once() -> None:
    assert paragraph(joined("<", Markup("<br>"))) == "<p>&lt;<br></p>"
    assert table(("min_isr", "<"), [("<", styled("critical"))]) == (
        "<table><thead><tr><th>min isr</th><th>&lt;</th></tr></thead><tbody><tr><td>&lt;</td>"
        f'<td><span style="{STYLES["critical"]}">critical</span></td></tr></tbody></table>'
    )


def test_a_topic_is_one_line() -> None:
    schema = pa.schema([("id", pa.int64()), ("amount", pa.float64())])
    shown = repr(topic(partition(), partition(1), schema=schema, config={"retention.ms": 5}))
    assert shown == (
        "TopicDescription(orders: 2 partitions, each with a leader; schema id:int64, amount:double; retention.ms=5)"
    )
    assert "1 of them without a leader; schema none" in repr(topic(partition(), partition(1, leader=None)))


def test_a_schema_that_is_none_keeps_nobody_from_looking() -> None:
    assert "the description of orders" in repr(structs.replace(topic(), schema="AAAA"))


def test_a_wide_topic_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptions, "SHOWN_COLUMNS_MAX", 1)
    monkeypatch.setattr(descriptions, "SHOWN_PARTITIONS_MAX", 2)
    schema = pa.schema([("id", pa.int64()), ("amount", pa.float64())])
    wide = topic(*(partition(number) for number in range(3)), schema=schema)
    assert "schema id:int64, …)" in repr(wide)
    html = wide._repr_html_()
    assert html.count("<tr>") == 1 + 2
    assert "and 1 more partitions" in html
    assert "more partitions" not in topic(partition(), partition(1))._repr_html_()


def test_a_topic_in_a_notebook_is_a_table_of_its_partitions() -> None:
    html = topic(partition(), schema=pa.schema([(HOSTILE, pa.int64())]))._repr_html_()
    assert f"{ESCAPED}:int64; settings: none of its own" in html
    assert "<td>0</td><td>1</td><td>4</td><td>1</td><td>2</td><td>1, 2</td><td>1</td><td></td>" in html


def broker(number: int, *, shutting_down: bool = False) -> BrokerDescription:
    return BrokerDescription(
        id=number, host=HOSTILE, port=5, replication_port=6, rack=None, epoch=1, shutting_down=shutting_down
    )


def test_a_cluster_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert repr(ClusterDescription(cluster_id="c", controller=None, brokers=())) == (
        "ClusterDescription(c: controller none, 0 brokers: )"
    )
    monkeypatch.setattr(descriptions, "SHOWN_BROKERS_MAX", 1)
    cluster = ClusterDescription(cluster_id="c", controller="h:1", brokers=(broker(1), broker(2)), unreadable=("/x",))
    assert repr(cluster) == f"ClusterDescription(c: controller h:1, 2 brokers: 1 at {HOSTILE}:5, …; unreadable: /x)"


def test_a_cluster_in_a_notebook_is_a_table_of_its_brokers() -> None:
    cluster = ClusterDescription(
        cluster_id="c", controller="h:1", brokers=(broker(1), broker(2, shutting_down=True)), unreadable=(HOSTILE,)
    )
    html = cluster._repr_html_()
    assert HOSTILE not in html
    assert f"<td>1</td><td>{ESCAPED}:5</td><td></td><td>live</td>" in html
    assert "<td>shutting down</td>" in html
    assert html.endswith(f"<p>{ESCAPED}</p>")


def test_health_in_a_notebook_says_where_the_guide_tells_more() -> None:
    told = structs.replace(incident(reason()), guide="operate#a-follower-is-behind")
    html = structs.replace(health(reason()), incidents=(told, incident(reason())))._repr_html_()
    assert html.count("start broker 2; more: spark-replication guide operate#a-follower-is-behind</td>") == 1
    assert html.count("start broker 2</td>") == 1


def test_health_is_one_line() -> None:
    size = "3 brokers, 1 topics, 6 partitions, controller"
    assert repr(health()) == f"Health(healthy: {size} h:1)"
    first = "orders-0 has 1 of 2 replicas in sync"
    assert repr(health(reason(), controller=None)) == f"Health(degraded: {size} none; {first})"
    assert repr(health(reason(), reason())) == f"Health(degraded: {size} h:1; {first}, and 1 more reasons)"


def test_health_in_a_notebook_says_since_when_and_because_of_what() -> None:
    html = health(reason(because=HOSTILE, since_ms=1_000), reason(mend=HOSTILE))._repr_html_()
    assert HOSTILE not in html
    assert f"<td>{ESCAPED}</td><td>1970-01-01 00:00:01 UTC</td><td>start broker 2</td>" in html
    assert f"<td></td><td></td><td>{ESCAPED}</td>" in html
    assert "<table>" not in health()._repr_html_()


def test_who_asks_says_where() -> None:
    with Admin("zk://127.0.0.1:1/there") as admin:
        assert repr(admin) == "Admin('zk://127.0.0.1:1/there')"


def test_a_cluster_that_has_not_started_says_so() -> None:
    cluster = LocalCluster(Path("/there"), Settings(), NO_SECURITY, zookeepers=1, temporary=False)
    assert repr(cluster) == "LocalCluster(0 brokers, not started, in /there)"
