"""What people may write below /admin, and what is no request: tables."""

from __future__ import annotations

import pytest

from spark_replication.decoding import UNDECODABLE
from spark_replication.messages.requests import (
    AddPartitions,
    DeleteTopic,
    ElectLeaders,
    Reassign,
    RemovePartitions,
    Request,
)
from spark_replication.zk.controller.admin_requests import asked_by

MOVED = "/admin/partitions_reassigned/foo-bar/3"
ADDED = "/admin/partitions_add/foo/3"
ELECTION = "/admin/preferred_replica_election"


@pytest.mark.parametrize(
    ("path", "data", "asked"),
    [
        (MOVED, b"[4, 5,6]", Reassign(targets={"foo-bar-3": (4, 5, 6)})),
        (MOVED, b' {"v":1,"replicas":[4]}\n', Reassign(targets={"foo-bar-3": (4,)})),
        (ADDED, b"[1,2]", AddPartitions(assignments={"foo": {3: (1, 2)}})),
        ("/admin/partitions_remove/foo/0", b"", RemovePartitions(partitions={"foo": (0,)})),
        ("/admin/partitions_remove/foo/0", b"whatever", RemovePartitions(partitions={"foo": (0,)})),
        ("/admin/delete_topics/foo", b"", DeleteTopic(topic="foo")),
        (ELECTION, b"", ElectLeaders(kind="preferred")),
        (ELECTION, b"{}", ElectLeaders(kind="preferred")),
        (ELECTION, b'["foo-1"]', ElectLeaders(kind="preferred", partitions=("foo-1",))),
        (ELECTION, b'{"v":1,"partitions":["a-b-0"]}', ElectLeaders(kind="preferred", partitions=("a-b-0",))),
    ],
)
def test_a_node_is_this_request(path: str, data: bytes, asked: Request) -> None:
    assert asked_by(path, data) == asked


@pytest.mark.parametrize(
    ("path", "data"),
    [
        (MOVED, b""),
        (MOVED, b"nonsense"),
        (MOVED, b"[]"),
        (MOVED, b'["1"]'),
        (MOVED, b"[1"),
        (MOVED, b'{"replica":[1]}'),
        (MOVED, b'{"v":2,"replicas":[1]}'),
        (MOVED, b"\xff"),
        ("/admin/partitions_add/foo/x", b"[1]"),
        ("/admin/partitions_add/foo/03", b"[1]"),
        ("/admin/partitions_add/foo/-1", b"[1]"),
        ("/admin/partitions_remove/foo/last", b""),
        (ELECTION, b'["foo"]'),
        (ELECTION, b'{"v":7}'),
        (ELECTION, b"foo-1"),
    ],
)
def test_a_node_is_no_request(path: str, data: bytes) -> None:
    with pytest.raises((ValueError, *UNDECODABLE)):
        asked_by(path, data)
