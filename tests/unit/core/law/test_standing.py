"""Each row of standing's table, over what is there of one write and of several."""

from __future__ import annotations

import pytest

from spark_replication.core.law.standing import SeenWrite, Standing, moved_on, proof, standing
from spark_replication.core.law.writes import DeletionMark, PartitionWrite, TopicWrite
from spark_replication.model import ABSENT, TopicState
from tests.unit.core.stories import FOO, state

GROWN = TopicWrite(topic="foo", state=TopicState(topic_id="id", partitions={0: (1,)}), version=2)
SHRUNK = PartitionWrite(partition=FOO, state=state(1, [1]), version=4)
MARK = DeletionMark(topic="foo")

SHOWS = SeenWrite(GROWN, 3, shows=True, holds=False)
MOVED_ON = SeenWrite(SHRUNK, 6, shows=False, holds=False)
UNTOUCHED = SeenWrite(SHRUNK, 4, shows=False, holds=True)
MARKED = SeenWrite(MARK, ABSENT, shows=True, holds=True)


@pytest.mark.parametrize(
    ("looks", "if_lost", "if_refused"),
    [
        ([SHOWS], Standing.STORED, Standing.LOST),
        ([SHOWS, MOVED_ON], Standing.STORED, Standing.LOST),
        ([MOVED_ON, SHOWS], Standing.STORED, Standing.LOST),
        ([MARKED], Standing.STORED, Standing.OPEN),
        ([MARKED, MARKED], Standing.STORED, Standing.OPEN),
        ([MARKED, UNTOUCHED], Standing.OPEN, Standing.OPEN),
        ([MARKED, MOVED_ON], Standing.LOST, Standing.LOST),
        ([UNTOUCHED], Standing.OPEN, Standing.OPEN),
        ([UNTOUCHED, MOVED_ON], Standing.LOST, Standing.LOST),
    ],
)
def test_where_a_group_stands(looks: list[SeenWrite], if_lost: Standing, if_refused: Standing) -> None:
    assert standing(looks, is_lost=True) is if_lost
    assert standing(looks, is_lost=False) is if_refused


def test_only_a_write_that_names_a_version_proves() -> None:
    assert proof([MARKED, MOVED_ON, SHOWS]) is GROWN
    assert proof([MARKED, MOVED_ON]) is None


def test_what_leaders_have_written_since_moved_on() -> None:
    shown = SeenWrite(SHRUNK, 5, shows=True, holds=False)
    assert list(moved_on([SHOWS, MOVED_ON, shown, SeenWrite(SHRUNK, ABSENT, shows=False, holds=False)])) == [SHRUNK]
    assert list(moved_on([SeenWrite(GROWN, 9, shows=False, holds=False)])) == []
