"""`consume --group`: what it gives is committed as far as it was shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_replication.admin.cli.consume_command import shared
from spark_replication.client.reading.log_batch import LogBatch
from spark_replication.client.reading.selection import RowsAsked, selection
from spark_replication.errors import ClientClosed
from tests.unit.admin.conftest import Run
from tests.unit.client.fake_cluster import FakeCluster

pytestmark = pytest.mark.usefixtures("endings")

SCHEMA = pa.schema([("id", pa.int64())])


class GivingMember:
    """A member that is given batches of five rows, and what it has committed."""

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self.done: list[int] = []

    def __iter__(self) -> Iterator[LogBatch]:
        for first in range(0, 5 * self._batches, 5):
            yield LogBatch(
                topic="orders",
                partition=0,
                batch=pa.record_batch([pa.array(range(first, first + 5))], schema=SCHEMA),
                base_offset=first,
                last_offset=first + 4,
                leader_epoch=0,
                timestamp=0,
                high_watermark=100,
            )
            self.commit_to(first + 5)

    def commit(self, found: LogBatch) -> None:
        assert found.batch.num_rows == found.last_offset - found.base_offset + 1
        self.commit_to(found.last_offset + 1)

    def commit_to(self, offset: int) -> None:
        self.done.append(offset)


def shown(member: GivingMember, rows_max: int | None, *where: tuple[str, str, Any]) -> list[int]:
    selected = selection("orders", SCHEMA, RowsAsked(where=where))
    return [each["id"] for batch in shared(member, selected, rows_max) for each in batch.to_pylist()]


@pytest.mark.parametrize(
    ("rows_max", "done"), [(1, [1]), (5, [5]), (6, [5, 6]), (9, [5, 9]), (10, [5, 10]), (11, [5, 10, 11])]
)
def test_so_many_rows_are_shown_and_no_more_are_committed(rows_max: int, done: list[int]) -> None:
    member = GivingMember(4)
    assert shown(member, rows_max) == [*range(rows_max)]
    assert member.done == done


def test_what_conditions_leave_out_is_done_with_as_far_as_the_last_row_that_is_shown() -> None:
    member = GivingMember(4)
    assert shown(member, 2, ("id", "in", [3, 12, 13, 14])) == [3, 12]
    assert member.done == [5, 10, 13]


def test_who_is_closed_as_the_last_row_is_shown_has_it_shown_again_and_ends_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member = GivingMember(4)

    def closed(_found: LogBatch) -> None:
        raise ClientClosed("this consumer is closed: open another")

    monkeypatch.setattr(member, "commit", closed)
    assert shown(member, 6) == [*range(6)]
    assert member.done == [5]


def test_all_is_shown_that_it_is_given() -> None:
    member = GivingMember(3)
    assert shown(member, None) == [*range(15)]
    assert member.done == [5, 10, 15]


def test_a_batch_counts_as_shown_once_the_next_is_asked_for() -> None:
    member = GivingMember(3)
    batches = shared(member, selection("orders", SCHEMA, RowsAsked()), None)
    next(batches)
    assert member.done == []
    next(batches)
    assert member.done == [5]


@pytest.mark.parametrize("place", ["--partition=1", "--from-time=2026-11-21T10:00:00Z", "--to=5 -p 0", "--from=7 -p 0"])
def test_a_group_says_itself_where_it_goes_on(run: Run, cluster: FakeCluster, place: str) -> None:
    ran = run("consume", "-b", cluster.bootstrap, "orders", "--group", "etl", *place.split())
    assert (ran.exit, "`spark-replication groups reset` moves it" in " ".join(ran.err.split())) == (2, True)


def test_the_name_of_a_group_is_held_against_what_names_are(run: Run, cluster: FakeCluster) -> None:
    ran = run("consume", "-b", cluster.bootstrap, "orders", "--group", "")
    assert (ran.exit, "INVALID_REQUEST" in ran.err) == (1, True)
