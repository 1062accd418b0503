"""A viewer that has a version gets what has changed since then, and no more."""

from __future__ import annotations

from msgspec.structs import replace

from spark_replication.client.asking.health import health_of
from spark_replication.messages.descriptions import Metadata
from spark_replication.page.answers import Age, Unchanged, View
from spark_replication.page.asking import NO_SIZES, Sizes
from spark_replication.page.board import Board
from spark_replication.page.history import Totals
from tests.unit.page.page_cluster import WELL, WITHOUT_3

AGES = {"cluster": Age(as_of_ms=5)}
BEGIN = 1_000


def shown(board: Board, metadata: Metadata) -> bool:
    """Whether anything of it is new."""
    known = board.version
    board.show(metadata, health_of(metadata, lambda _asked: ()), NO_SIZES)
    return board.version != known


def view(board: Board, since: int | None) -> View:
    found = board.view(since, 9, AGES)
    assert isinstance(found, View)
    return found


def numbers(found: View) -> dict[str, list[int]]:
    return {topic: [row.partition for row in rows] for topic, rows in found.partitions.items()}


def test_who_has_nothing_gets_everything() -> None:
    board = Board(BEGIN)
    assert view(board, None).topics == ()
    assert shown(board, WELL)
    found = view(board, None)
    assert (found.version, found.whole, found.now_ms, found.ages) == (BEGIN + 1, True, 9, AGES)
    assert numbers(found) == {"bar": [0], "foo": [0, 1]}
    assert [topic.name for topic in found.topics] == ["bar", "foo"]
    assert found.health is not None
    assert found.health.verdict == "healthy"


def test_what_is_shown_already_is_nothing_new() -> None:
    board = Board(BEGIN)
    shown(board, WELL)
    assert not shown(board, WELL)
    again = replace(WELL)
    assert not shown(board, again)
    assert board.view(BEGIN + 1, 9, AGES) == Unchanged(version=BEGIN + 1, now_ms=9, ages=AGES)


def test_who_has_a_version_gets_the_partitions_that_have_changed_since() -> None:
    board = Board(BEGIN)
    shown(board, WELL)
    known = board.version
    assert shown(board, WITHOUT_3)
    found = view(board, known)
    assert (found.whole, numbers(found)) == (False, {"foo": [0, 1]})
    assert [(topic.name, topic.under_replicated) for topic in found.topics] == [("foo", 2)]
    assert [row.condition for row in found.brokers] == ["live", "live", "gone"]
    assert numbers(view(board, None)) == {"bar": [0], "foo": [0, 1]}


def test_other_topics_or_partitions_are_told_whole() -> None:
    board = Board(BEGIN)
    shown(board, WELL)
    known = board.version
    bar, foo = WELL.topics
    shown(board, replace(WELL, topics=(bar, replace(foo, partitions=foo.partitions[:1]))))
    assert (view(board, known).whole, numbers(view(board, known))) == (True, {"bar": [0], "foo": [0]})
    known = board.version
    shown(board, replace(WELL, topics=(bar,)))
    assert (view(board, known).whole, numbers(view(board, known))) == (True, {"bar": [0]})
    shown(board, replace(WELL, topics=()))
    assert numbers(view(board, None)) == {}


def test_a_version_of_another_process_is_none() -> None:
    """Neither one of before its start, nor one that a clock which was set back has yet to come to."""
    board = Board(BEGIN)
    shown(board, WELL)
    shown(board, WITHOUT_3)
    assert [view(board, since).whole for since in (0, BEGIN, BEGIN + 7)] == [True, True, True]
    assert not view(board, BEGIN + 1).whole


def test_sizes_and_failures_are_news_without_any_partition() -> None:
    board = Board(BEGIN)
    shown(board, WELL)
    known = board.version
    health = board.health
    sizes = Sizes(1, {}, {}, {2: "it hangs"})
    board.show(WELL, health, sizes, totals={"foo": Totals(70, None, None, None)})
    found = view(board, known)
    assert (numbers(found), [(topic.name, topic.bytes) for topic in found.topics]) == ({}, [("foo", 70)])
    assert [row.error for row in found.brokers] == ["", "it hangs", ""]
    known = board.version
    board.show(None, health, sizes, totals={"foo": Totals(70, None, None, None)}, errors=["nobody answers"])
    assert board.version > known
    assert numbers(view(board, known)) == {}
    assert board.metadata is WELL


def test_a_topic_that_was_made_again_under_its_name_is_shown_as_it_is_then() -> None:
    board = Board(BEGIN)
    shown(board, WELL)
    bar, foo = WELL.topics
    again = replace(bar, topic_id="another")
    shown(board, replace(WELL, topics=(again, foo)))
    found = board.topic("bar")
    assert found is not None
    assert found[0].topic_id == "another"
    assert board.topic("none") is None
