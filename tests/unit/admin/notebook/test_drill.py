"""The notebook's drill: what it refuses to kill, and what it tells."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from spark_replication.admin.drill.figures import History
from spark_replication.admin.notebook.drill import Drill, DrillResult, chosen
from spark_replication.errors import InvalidConfig, InvalidRequest, ReplicationError

RESULT = DrillResult(
    broker=2,
    pid=77,
    led=(0,),
    quiet_ms={0: 20.0, 1: 30.4},
    killed_ms={0: 700.6, 1: 31.0},
    in_sync_s=1.25,
    acknowledged=9,
    read=History(read=9, lost=0, doubled=0),
)


def admin(cluster_id: str = "c") -> Any:
    return SimpleNamespace(describe_cluster=lambda: SimpleNamespace(cluster_id=cluster_id))


def cluster(*hosts: str, cluster_id: str = "c") -> Any:
    brokers = {number: SimpleNamespace(host=host) for number, host in enumerate(hosts)}
    return SimpleNamespace(admin=admin(cluster_id), brokers=brokers)


@pytest.mark.parametrize(
    ("of", "kind", "why"),
    [
        (cluster("127.0.0.1", "127.0.0.1", cluster_id="other"), InvalidRequest, "another cluster than this one"),
        (cluster("127.0.0.1"), InvalidRequest, "kills one broker of several"),
        (cluster("127.0.0.1", "192.0.2.1"), InvalidConfig, "a drill ends a process of this host"),
    ],
)
def test_no_process_is_killed_but_a_broker_of_this_cluster_and_host(
    of: Any, kind: type[ReplicationError], why: str
) -> None:
    with pytest.raises(kind, match=why):
        Drill(admin(), of)


def test_a_cluster_of_this_process_is_drilled() -> None:
    Drill(admin(), cluster("127.0.0.1", "localhost"))


def test_a_leader_that_another_process_started_is_left_alone() -> None:
    assert chosen({0: None, 1: 3, 2: 2}, owned={1, 2}) == 2
    with pytest.raises(InvalidRequest, match=r"no broker of \[1\] leads a partition of the drill"):
        chosen({0: None, 1: 3}, owned={1})


def test_what_was_measured_is_a_table() -> None:
    assert RESULT.passed
    html = RESULT._repr_html_()
    assert ">passed</span>" in html
    for what, measured in (
        ("kill -9 of", "broker 2, process 77"),
        ("longest wait, partitions that it led", "701 ms"),
        ("longest wait, other partitions", "31 ms"),
        ("longest wait before, all partitions", "30 ms"),
        ("every replica in sync again after", "1.2 s"),
        ("rows acknowledged", "9"),
        ("rows read again", "9, lost 0, doubled 0"),
    ):
        assert f"<td>{what}</td><td>{measured}</td>" in html
    assert repr(RESULT).startswith("DrillResult(passed: kill -9 of broker 2, process 77; longest wait")


def test_a_broker_that_led_all_leaves_no_others() -> None:
    assert "other partitions" not in structs.replace(RESULT, led=(0, 1))._repr_html_()


@pytest.mark.parametrize(
    "told",
    [
        {"read": History(read=9, lost=1, doubled=0)},
        {"read": History(read=9, lost=0, doubled=1)},
        {"problems": ("the <producer> met an error",)},
    ],
)
def test_a_loss_is_a_failure(told: dict[str, Any]) -> None:
    failed = structs.replace(RESULT, **told)
    assert not failed.passed
    assert ">failed</span>" in failed._repr_html_()
    assert "<producer>" not in failed._repr_html_()
