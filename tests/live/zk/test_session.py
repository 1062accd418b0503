"""The session itself: what every store of this package trusts it to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from spark_replication.errors import BrokerNotAvailable
from spark_replication.zk.operations import (
    Check,
    Committed,
    Create,
    Delete,
    Operation,
    Rejected,
    RejectionReason,
    SetData,
)
from spark_replication.zk.session import Session

from .helpers import Heard, Proxy, expire

if TYPE_CHECKING:
    from .conftest import Cluster

pytestmark = pytest.mark.live


def test_no_zookeeper_is_said_so() -> None:
    with pytest.raises(BrokerNotAvailable, match=r"no ZooKeeper answers at 127\.0\.0\.1:1 "):
        Session.connect("127.0.0.1:1", "/x", session_timeout_ms=2_000, request_timeout_ms=500)


def test_a_session_answers_everything_that_is_outstanding_when_it_closes(cluster: Cluster) -> None:
    proxy = Proxy(cluster.address)
    session = cluster.session(proxy.address)
    proxy.swallow()
    heard = [Heard() for _ in range(1_000)]  # more than are with kazoo at one time, and than its socket pair holds
    for answer in heard:
        session.read("/nothing", answer)
    late = Heard()
    session.commit((SetData("/nothing", b"", 0),), late)
    session.close()
    assert {type(answer.take()).__name__ for answer in (*heard, late)} == {"SessionLost"}
    after = Heard()
    session.read("/nothing", after)
    assert type(after.take()).__name__ == "SessionLost"
    proxy.close()


def test_reading_many_at_once_finds_what_reading_each_finds(cluster: Cluster) -> None:
    session = cluster.session()
    made = [f"/node{number}" for number in range(100)]
    session.commit_now([Create(path, b"x" * number) for number, path in enumerate(made)])
    session.commit_now((SetData("/node7", b"again", 0), Create("/gone", ephemeral=True)))
    wanted = [*made[:50], "/never", "/gone", *made[50:], "/never/never"]
    together = session.read_many(wanted)
    assert together == [session.read_now(path) for path in wanted]
    assert together == session.read_many(wanted, watch=Heard())
    seventh = together[7]
    assert seventh is not None
    assert (seventh.data, seventh.version) == (b"again", 1)
    assert [node is None for node in together] == [path.startswith("/never") for path in wanted]
    assert session.read_many([]) == []


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (Check("/there", 1), RejectionReason.BAD_VERSION),
        (Check("/never", 0), RejectionReason.NO_NODE),
        (SetData("/there", b"", 1), RejectionReason.BAD_VERSION),
        (SetData("/never", b"", -1), RejectionReason.NO_NODE),
        (Create("/there"), RejectionReason.NODE_EXISTS),
        (Create("/never/child"), RejectionReason.NO_NODE),
        (Delete("/there", -1), RejectionReason.NOT_EMPTY),
        (Delete("/there/child", 3), RejectionReason.BAD_VERSION),
    ],
)
def test_a_rejected_multi_names_its_culprit_and_stores_nothing(
    cluster: Cluster, operation: Check | SetData | Create | Delete, reason: RejectionReason
) -> None:
    session = cluster.session()
    session.commit_now((Create("/there"), Create("/there/child")))
    outcome = session.commit_now((Create("/before"), operation, Create("/after")))
    assert outcome == Rejected(1, reason)
    assert session.read_many(["/before", "/after"]) == [None, None]


def test_a_sets_version_and_zxid_are_told(cluster: Cluster) -> None:
    session = cluster.session()
    outcome = session.commit_now((Create("/a"), SetData("/a", b"1", 0), Check("/a", 1), Create("/s_", sequence=True)))
    node = session.read_now("/a")
    assert node is not None
    assert outcome == Committed((None, node.made, None, None))
    assert "s_0000000001" in session.children_now("/")


def test_reads_are_repeated_over_lost_connections(cluster: Cluster) -> None:
    proxy = Proxy(cluster.address)
    session = cluster.session(proxy.address, session_timeout_ms=15_000)
    session.commit_now((Create("/a", b"data"),))
    proxy.swallow()
    heard = [Heard() for _ in range(400)]
    for answer in heard:
        session.read("/a", answer)
    proxy.wait_swallowed()
    proxy.cut()
    assert {answer.take().data for answer in heard} == {b"data"}
    proxy.close()


@pytest.mark.parametrize("version", [1 << 31, 1 << 40, 1 << 70, -2])
@pytest.mark.parametrize("kind", [Check, Delete, lambda path, version: SetData(path, b"", version)])
def test_a_version_that_no_node_can_have_is_refused_and_the_session_goes_on(
    cluster: Cluster, version: int, kind: Callable[[str, int], Operation]
) -> None:
    session = cluster.session()
    session.commit_now((Create("/a"),))
    assert session.commit_now((Create("/b"), kind("/a", version))) == Rejected(1, RejectionReason.BAD_VERSION)
    assert session.read_now("/b") is None
    assert session.read_now("/a") is not None


def test_an_error_of_the_clients_own_thread_ends_the_session_alone(cluster: Cluster) -> None:
    session = cluster.session()
    states = Heard()
    session.listen(states)
    with pytest.raises(BrokerNotAvailable, match="open another"):
        session.read_now("/\ud800")  # which kazoo cannot send
    assert states.take_until(lambda state: state.value == "lost")
    assert session.lost


def test_a_lost_session_answers_listeners_and_requests_and_stays_lost(cluster: Cluster) -> None:
    session = cluster.session()
    states = Heard()
    session.listen(states)
    expire(session)
    assert states.take_until(lambda state: state.value == "lost")
    assert session.lost
    late = Heard()
    session.listen(late)
    assert late.take().value == "lost"
    with pytest.raises(BrokerNotAvailable, match="open another"):
        session.read_now("/a")
    with pytest.raises(BrokerNotAvailable, match="open another"):
        session.commit_now((Create("/a"),))
    assert states.count == 0
