"""The simulator's tree beside a real ZooKeeper: after the same multi()s both say the same."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from spark_replication.sim.world.znodes import Znodes
from spark_replication.zk.operations import EXISTS, Check, Committed, Create, Delete, Node, Operation, SetData

if TYPE_CHECKING:
    from .conftest import Cluster

pytestmark = pytest.mark.live

NAMES = ("/a", "/b", "/a/c", "/a/d", "/a/c/e")
MULTIS = 300


def operation(chance: random.Random) -> Operation:
    path, version = chance.choice(NAMES), chance.choice([EXISTS, EXISTS, 0, 1, 2])
    match chance.randrange(6):
        case 0 | 1:
            return Create(path, b"made")
        case 2:
            return SetData(path, b"set", version)
        case 3:
            return Delete(path, version)
        case 4:
            return Check(path, version)
        case _:
            return Create(f"{chance.choice(['/a', '/b'])}/n", sequence=True)


@pytest.mark.parametrize("seed", range(3))
def test_the_same_multis_have_the_same_outcome_and_leave_the_same_nodes(cluster: Cluster, seed: int) -> None:
    chance, session, tree = random.Random(seed), cluster.session(), Znodes()
    stored = 0
    for _ in range(MULTIS):
        operations = [operation(chance) for _ in range(chance.randrange(1, 4))]
        theirs, ours = session.commit_now(operations), tree.multi(operations)
        if isinstance(theirs, Committed):
            assert isinstance(ours, Committed), operations
            stored += 1
            assert [each and each.version for each in theirs.stored] == [each and each.version for each in ours.stored]
        else:
            assert theirs == ours, operations
        for path in NAMES:
            assert shape(session.read_now(path)) == shape(tree.read(path)), (operations, path)
            assert session.children_now(path) == (tree.children(path) or [])
    assert MULTIS / 10 < stored < MULTIS, "both happen"


def shape(node: Node | None) -> tuple[object, ...] | None:
    """What does not depend on where the server's zxids are."""
    if node is None:
        return None
    return node.data, node.version, node.children, node.children_changes, node.owner, node.zxid == node.created_zxid
