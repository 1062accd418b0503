"""The simulator's tree behaves as ZooKeeper's does: tables. tests/live/zk/test_znodes.py asks a real one the same."""

from __future__ import annotations

import pytest

from spark_replication.sim.world.znodes import Znodes
from spark_replication.zk.operations import (
    EXISTS,
    Check,
    Committed,
    Create,
    Delete,
    Operation,
    Rejected,
    RejectionReason,
    SetData,
)

NO_NODE, EXISTS_ALREADY = RejectionReason.NO_NODE, RejectionReason.NODE_EXISTS
BAD_VERSION, NOT_EMPTY = RejectionReason.BAD_VERSION, RejectionReason.NOT_EMPTY


@pytest.mark.parametrize(
    ("operations", "culprit", "reason"),
    [
        ([Check("/none", EXISTS)], 0, NO_NODE),
        ([Check("/a", 1)], 0, BAD_VERSION),
        ([SetData("/a", b"", 1)], 0, BAD_VERSION),
        ([SetData("/none", b"", EXISTS)], 0, NO_NODE),
        ([Create("/a")], 0, EXISTS_ALREADY),
        ([Create("/none/b")], 0, NO_NODE),
        ([Delete("/a", EXISTS)], 0, NOT_EMPTY),
        ([Delete("/a/b", 3)], 0, BAD_VERSION),
        ([Delete("/none", EXISTS)], 0, NO_NODE),
        ([SetData("/a", b"new", 0), SetData("/a", b"newer", 0)], 1, BAD_VERSION),
        ([Create("/c"), Create("/c/d"), Delete("/c", EXISTS)], 2, NOT_EMPTY),
        ([Delete("/a/b", EXISTS), Delete("/a", EXISTS), Check("/a", EXISTS)], 2, NO_NODE),
    ],
)
def test_of_a_multi_that_is_rejected_nothing_is_stored(
    operations: list[Operation], culprit: int, reason: RejectionReason
) -> None:
    tree = Znodes(["/a", "/a/b"])
    before = {path: tree.read(path) for path in ("", "/a", "/a/b", "/c", "/c/d")}
    assert tree.multi(operations) == Rejected(culprit, reason)
    assert {path: tree.read(path) for path in before} == before
    assert (tree.children(""), tree.children("/a"), tree.children("/c")) == (["a"], ["b"], None)
    assert tree.changed == {}


def test_versions_zxids_and_times_are_those_of_zookeeper() -> None:
    clock = [5]
    tree = Znodes(["/a"], lambda: clock[0])
    made = tree.read("/a")
    assert made is not None
    clock[0] = 9
    outcome = tree.multi([SetData("/a", b"x", 0), Create("/a/b"), Create("/a/n", sequence=True)])
    assert isinstance(outcome, Committed)
    stored, *others = outcome.stored
    after = tree.read("/a")
    assert after is not None
    assert stored == (1, made.zxid + 1, 9)
    assert others == [None, None]
    assert (after.version, after.zxid, after.created_zxid) == (1, made.zxid + 1, made.created_zxid)
    assert (after.children, after.children_changes, after.children_zxid) == (2, 2, made.zxid + 1)
    assert tree.children("/a") == ["b", "n0000000001"]
    assert set(tree.changed) == {"/a", "/a/b", "/a/n0000000001"}
    assert tree.changed["/a"] == made
    assert tree.changed["/a/b"] is None


def test_a_node_that_was_removed_and_made_again_begins_anew() -> None:
    tree = Znodes(["/a"])
    tree.multi([SetData("/a", b"x", 0)])
    assert isinstance(tree.multi([Delete("/a", 1), Create("/a")]), Committed)
    again = tree.read("/a")
    assert again is not None
    assert (again.version, again.created_zxid) == (0, tree.zxid)


def test_ephemeral_nodes_are_their_sessions() -> None:
    tree = Znodes()
    tree.multi([Create("/a", ephemeral=True), Create("/b")], session=7)
    assert (tree.owned_by(7), tree.owned_by(8), tree.owned_by(0)) == (["/a"], [], [])
