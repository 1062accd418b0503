"""A4: what a reassignment would move, before anything moves."""

from __future__ import annotations

import msgspec
import pytest

from spark_replication.core.moves import Move, drained, planned
from spark_replication.errors import InvalidReplicaAssignment
from spark_replication.model import TopicPartition
from tests.unit.core.stories import registration

FOO, BAR = TopicPartition("foo", 0), TopicPartition("bar", 0)


def test_a_plan_names_what_changes_and_the_most_bytes_first() -> None:
    present = {FOO: (1, 2), BAR: (1, 2), TopicPartition("same", 0): (2, 1)}
    targets = {FOO: (1, 3), BAR: (3, 4), TopicPartition("same", 0): (2, 1)}

    moves = planned(targets, present, {FOO: 100, BAR: 70})

    assert [move.partition for move in moves.moves] == [BAR, FOO]
    assert moves.bytes_to_copy == 100 + 2 * 70
    assert moves.targets == {BAR: (3, 4), FOO: (1, 3)}
    assert (moves.moves[1].adding, moves.moves[1].removing) == ((3,), (2,))


def test_the_size_of_a_partition_may_be_unknown() -> None:
    assert planned({FOO: (2,)}, {FOO: (1,)}, {}).moves == (Move(partition=FOO, present=(1,), target=(2,)),)


def test_a_drained_broker_is_replaced_in_its_place_of_the_order_by_who_holds_least_in_an_unused_rack() -> None:
    brokers = {b: registration(b, rack=rack) for b, rack in ((1, "a"), (2, "b"), (3, "b"), (4, "c"), (5, "c"))}
    present = {FOO: (1, 2), BAR: (4, 1), TopicPartition("other", 0): (2, 4)}

    assert drained([1], present, brokers) == {BAR: (4, 3), FOO: (5, 2)}


def test_a_broker_that_shuts_down_takes_nothing_over() -> None:
    stopping = {2: registration(2), 3: registration(3)}
    stopping[2] = msgspec.structs.replace(stopping[2], shutting_down=True)

    assert drained([1], {FOO: (1,)}, stopping) == {FOO: (3,)}


def test_a_drain_is_refused_when_too_few_brokers_are_left() -> None:
    with pytest.raises(InvalidReplicaAssignment, match="only 1 live"):
        drained([1], {FOO: (1, 2)}, {1: registration(1), 2: registration(2)})
