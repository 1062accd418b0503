"""A task that writes again: whom it asks, what it sends, and what comes of a refusal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pytest

from spark_replication.engine.client.numbers import Identity
from spark_replication.engine.client.repeating import (
    RUNS_MAX,
    Append,
    AppendedTogether,
    FirstTry,
    Known,
    Runs,
    _Stored,
    placements,
)
from spark_replication.errors import InvalidProducerEpoch, NotLeader
from spark_replication.messages.ranges import KnownAppends

UNPLACED = InvalidProducerEpoch("no placement fits")
OTHERS = InvalidProducerEpoch("other rows are there")


class Rows(NamedTuple):
    of: str

    @property
    def num_rows(self) -> int:
        return len(self.of)


def cut(partitions: tuple[int, ...]) -> list[Append]:
    """Four rows, by turns."""
    rows = {target: "abcd"[number :: len(partitions)] for number, target in enumerate(partitions)}
    return [Append(target, 0, Rows(found)) for target, found in rows.items() if found]


def shown(part: AppendedTogether) -> tuple[dict[int, str], bool]:
    return {append.target: append.batch.of for append in part.appends}, part.is_last


def known(producer: int, epoch: int, *rows: int) -> KnownAppends:
    return KnownAppends(producer=producer, epoch=epoch, last_sequence=len(rows) - 1, rows=rows)


def asked(identities: list[Identity], answers: dict[int, Known]) -> tuple[list[int], FirstTry]:
    asking = FirstTry.asking(lambda number: identities[min(number, len(identities) - 1)])
    producers = [next(asking)]
    while True:
        try:
            producers.append(asking.send(answers[producers[-1]]))
        except StopIteration as ended:
            return producers, ended.value


def test_a_process_forgets_runs_and_asks_again() -> None:
    runs = Runs()
    assert runs.may_repeat("a", 1)
    assert not runs.may_repeat("a", 2)
    for number in range(RUNS_MAX):
        runs.may_repeat(f"another {number}", 0)
    assert runs.may_repeat("a", 3)
    assert [runs.may_repeat(None, number) for number in range(3)] == [True] * 3


def test_what_is_planned_comes_first_and_what_was_added_since_comes_last() -> None:
    """So an attempt chooses as another one of its run does that asked before partitions were added."""
    assert list(placements((0, 1), (0, 1))) == [(0, 1), (0,)]
    assert list(placements((0, 1), (0, 1, 4, 5))) == [(0, 1), (0,), (0, 1, 4), (0, 1, 4, 5)]
    assert list(placements((0, 1), (0,))) == [(0, 1), (0,)]
    assert list(placements((1,), (0, 1))) == [(1,), (0,), (0, 1)]


def test_attempts_side_by_side_choose_alike_though_partitions_are_added() -> None:
    """One has stored a row where all placements have it, and the others not yet."""
    found = FirstTry({(1, 0): _Stored(0, (1,))}, (0, 1, 2))

    def two_rows(partitions: tuple[int, ...]) -> list[Append]:
        return [Append(partitions[number % len(partitions)], 0, Rows("x")) for number in (1, 2)]

    parts = found.again(placements((0, 1), found.partitions), two_rows, UNPLACED)
    assert [shown(part) for part in parts] == [({1: "x"}, False), ({0: "x"}, True)]


def test_of_a_task_with_several_producers_all_are_asked_about() -> None:
    answers: dict[int, Known] = {
        10: ((0, 1), {0: known(10, 0, 1, 1)}),
        11: ((0, 1), {0: known(11, 0, 5)}),
        12: ((0, 1), {}),
    }
    producers, found = asked([Identity(producer=10 + number) for number in range(5)], answers)
    assert (producers, found.partitions) == ([10, 11, 12], (0, 1))
    assert found.stored == {(0, 0): (1, (1, 1)), (0, 1): (0, (5,))}


def test_a_producer_of_all_appends_is_asked_about_once() -> None:
    producers, _ = asked([Identity(producer=10)], {10: ((0,), {0: known(10, 0, 1)})})
    assert producers == [10]


def test_what_an_earlier_write_has_stored_says_nothing() -> None:
    _, found = asked([Identity(producer=10, epoch=2)], {10: ((0,), {0: known(10, 1, 1)})})
    assert found.stored == {}


def test_a_later_write_fences_this_one() -> None:
    with pytest.raises(InvalidProducerEpoch, match="is fenced by 3 on partition 0"):
        asked([Identity(producer=10, epoch=2)], {10: ((0,), {0: known(10, 3, 1)})})


def test_what_is_stored_goes_first_and_then_the_rest() -> None:
    parts = FirstTry({(1, 0): _Stored(0, (2,))}, (0, 1)).again([(0, 1)], cut, UNPLACED)
    assert [shown(part) for part in parts] == [({1: "bd"}, False), ({0: "ac"}, True)]


def test_a_placement_that_leaders_refuse_is_followed_by_the_next_that_fits() -> None:
    parts = FirstTry({(0, 0): _Stored(0, (2,))}, (0, 1, 2)).again([(0, 1, 2), (0, 1)], cut, UNPLACED)
    assert shown(next(parts)) == ({0: "ad"}, False)
    assert shown(parts.throw(OTHERS)) == ({0: "ac"}, False)
    assert shown(next(parts)) == ({1: "bd"}, True)
    assert list(parts) == []


def test_if_all_are_refused_the_last_refusal_is_told() -> None:
    parts = FirstTry({(0, 0): _Stored(0, (2,))}, (0, 1)).again([(0, 1)], cut, UNPLACED)
    next(parts)
    with pytest.raises(InvalidProducerEpoch, match="other rows are there"):
        parts.throw(OTHERS)


@pytest.mark.parametrize("error", [NotLeader("not I"), OTHERS])
def test_no_other_placement_is_tried_after_what_is_no_refusal_of_the_stored_rows(error: InvalidProducerEpoch) -> None:
    parts = FirstTry({(0, 0): _Stored(0, (2,))}, (0, 1)).again([(0, 1), (0, 1)], cut, UNPLACED)
    next(parts)
    if error is OTHERS:
        next(parts)  # the rest is on its way
    with pytest.raises(type(error), match=error.message):
        parts.throw(error)


def test_where_nothing_fits_nothing_is_sent() -> None:
    parts = FirstTry({(0, 0): _Stored(0, (3,))}, (0, 1)).again([(0, 1)], cut, UNPLACED)
    with pytest.raises(InvalidProducerEpoch, match="no placement fits"):
        next(parts)


def test_rows_are_not_cut_for_partitions_without_those_that_have_some() -> None:
    tried: list[tuple[int, ...]] = []

    def none(partitions: tuple[int, ...]) -> Iterable[Append]:
        tried.append(partitions)
        return ()

    found = FirstTry({(2, 0): _Stored(0, (7,))}, (0, 1, 2, 3))
    with pytest.raises(InvalidProducerEpoch):
        next(found.again(placements(found.partitions, found.partitions), none, UNPLACED))
    assert tried == [(0, 1, 2, 3), (0, 1, 2)]


def test_of_a_placements_appends_those_beyond_what_is_stored_come_later() -> None:
    found = FirstTry({(0, 0): _Stored(1, (1, 1))}, (0,))
    those = [Append(0, 0, Rows(row)) for row in "abc"]
    assert [append.batch.of for append in found.only(those, stored=True)] == ["a", "b"]
    assert [append.batch.of for append in found.only(those, stored=False)] == ["c"]
