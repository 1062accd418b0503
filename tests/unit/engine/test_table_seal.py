"""One seal of a topic's table, step by step."""

from __future__ import annotations

from spark_replication.core.controller.events import TableAnswered
from spark_replication.core.tables.sealing import TableEnd
from spark_replication.core.tables.table import TableVersion
from spark_replication.engine.controller.table_seal import (
    ATTEMPTS_MAX,
    LoadForSeal,
    SealTable,
    TableSeal,
    TakeOverTable,
)
from spark_replication.model import TableOrigin

BEFORE = TableVersion(number=1, ends={0: 12}, epochs={0: 4, 1: 7})
AFTER = TableVersion(number=2, ends={0: 12}, epochs={0: 7, 1: 7})
TOLD = TableAnswered(topic="foo", topic_id="id", told={0: TableEnd(epoch=7, end=12), 1: TableEnd(epoch=7, end=0)})


def begun() -> TableSeal:
    seal = TableSeal("foo", "id", {0: 7, 1: 7})
    assert seal.begin() == LoadForSeal()
    return seal


def test_it_names_what_the_table_has_not_and_tells_what_it_has() -> None:
    seal = begun()
    assert seal.loaded(BEFORE) == SealTable(BEFORE, {0: 7})
    assert seal.sealed(AFTER) == TOLD


def test_where_all_is_named_nothing_is_written() -> None:
    assert begun().loaded(AFTER) == TOLD


def test_a_refused_or_unanswered_seal_is_compared_with_the_table_anew() -> None:
    seal = begun()
    seal.loaded(BEFORE)
    assert seal.refused() == LoadForSeal()
    assert seal.loaded(BEFORE) == SealTable(BEFORE, {0: 7})
    assert seal.failed("no answer") == LoadForSeal()
    assert seal.loaded(AFTER) == TOLD, "it was stored"


def test_a_table_that_cannot_be_loaded_is_not_sealed() -> None:
    failed = TableAnswered(topic="foo", topic_id="id", failed=(0, 1), why="no answer")
    assert begun().failed("no answer") == failed
    seal = begun()
    seal.loaded(BEFORE)
    seal.failed("no answer")
    assert seal.failed("no answer") == failed


def test_one_that_others_write_all_the_time_is_given_up_for_now() -> None:
    seal = begun()
    for _ in range(ATTEMPTS_MAX):
        assert isinstance(seal.loaded(BEFORE), SealTable)
        seal.refused()
    found = seal.loaded(BEFORE)
    assert isinstance(found, TableAnswered)
    assert found.failed == (0, 1)


def test_another_topics_table_is_taken_over_first() -> None:
    origin = TableOrigin(cluster_id="theirs", topic_id="t1")
    seal = TableSeal("foo", "id", {0: 7, 1: 7}, origin)
    assert seal.begin() == TakeOverTable(origin)
    assert seal.taken_over(BEFORE) == SealTable(BEFORE, {0: 7})
    assert seal.sealed(AFTER) == TOLD


def test_one_that_cannot_be_taken_over_is_told_and_nothing_is_sealed() -> None:
    seal = TableSeal("foo", "id", {0: 7, 1: 7}, TableOrigin(cluster_id="theirs", topic_id="t1"))
    seal.begin()
    assert seal.failed("no answer") == TableAnswered(topic="foo", topic_id="id", failed=(0, 1), why="no answer")
