"""A verdict has few reasons, however many partitions suffer; each says what set it off and what mends it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from spark_replication.core.controller.describing import described
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.mirroring import ToldEvent, partition_face
from spark_replication.model import PartitionState, TopicPartition
from spark_replication.view import health
from spark_replication.view.problem import Mend, Problem, Severity, mend_from
from spark_replication.view.verdict import (
    EXPLAINED_MAX,
    SUBJECTS_MAX,
    Consequence,
    Incident,
    Verdict,
    events_about,
    explained,
    grouped,
    incidents,
    verdict_of,
)
from tests.unit.core.stories import cluster_of, command, state, topic


def of_orders(stored: PartitionState, number: int, **others: Any) -> PartitionCommand:
    return command(stored, partition=TopicPartition("orders", number), **others)


def leaderless(number: int) -> PartitionCommand:
    return of_orders(state(None, [], elr=[2], leader_epoch=5), number)


def problem(
    number: int, severity: Severity = "critical", what: str = "has no leader", *, by_name: bool = True
) -> Problem:
    about = leaderless(number)
    return Problem(
        severity=severity,
        subject=str(about.topic_partition),
        what=what,
        about=about,
        mend="leader elect" if by_name else "wait",
        mends_by_name=by_name,
    )


@pytest.mark.parametrize(
    ("severities", "verdict"),
    [([], "healthy"), (["warning"], "degraded"), (["warning", "critical"], "critical")],
)
def test_the_worst_reason_is_the_verdict(severities: list[Severity], verdict: Verdict) -> None:
    groups = grouped(problem(number, severity) for number, severity in enumerate(severities))
    assert verdict_of(group.reason for group in groups) == verdict


def test_those_that_suffer_from_the_same_are_one_reason_and_the_worst_comes_first() -> None:
    lagging = problem(100, "warning", "has 2 of 3 replicas in sync", by_name=False)
    first, second = grouped([lagging, *(problem(number) for number in range(SUBJECTS_MAX + 2))])
    assert (first.reason.severity, first.reason.count) == ("critical", SUBJECTS_MAX + 2)
    names = [f"orders-{number}" for number in range(SUBJECTS_MAX)]
    assert first.reason.subjects == tuple(names)
    assert first.reason.mend == " ".join(["leader elect", *names])
    assert str(first.reason) == f"orders-0 has no leader (and 6 more: {', '.join(names[1:])}, …)"
    assert (second.reason.mend, str(second.reason)) == ("wait", "orders-100 has 2 of 3 replicas in sync")


def test_no_more_are_named_than_there_are() -> None:
    (both,) = grouped([problem(0), problem(1)])
    assert str(both.reason) == "orders-0 has no leader (and 1 more: orders-1)"


def test_what_is_mended_differently_is_another_reason() -> None:
    assert len(grouped([problem(0), problem(1, by_name=False)])) == 2


def told(became: PartitionCommand, because: str | None, at_ms: int) -> ToldEvent:
    return ToldEvent(
        number=at_ms,
        at_ms=at_ms,
        kind="leaderless",
        topic=became.topic,
        partition=became.partition,
        became=partition_face(became),
        because=because,
        cause="7.3",
    )


def test_the_newest_event_of_the_first_one_explains_it() -> None:
    (group,) = grouped([problem(0), problem(1)])
    zero, one = leaderless(0), leaderless(1)
    events = [told(zero, "before", 1), told(zero, "broker 2 gone", 2), told(one, "another", 3)]
    assert explained(group, events) == replace(group.reason, because="broker 2 gone", cause="7.3", since_ms=2)
    assert explained(group, events[2:]) == group.reason
    assert explained(group, [told(zero, None, 4)]).because == ""


@pytest.mark.parametrize(
    "known",
    [
        of_orders(state(1, [1, 2, 3], leader_epoch=5), 0),
        of_orders(state(None, [], elr=[2], leader_epoch=4), 0),
        of_orders(state(None, [], elr=[2, 3], leader_epoch=5), 0),
        of_orders(state(None, [], elr=[2], leader_epoch=5), 0, topic_id="another"),
        of_orders(state(None, [], elr=[2], leader_epoch=5), 0, replicas=(2, 3, 4)),
    ],
)
def test_while_the_mirror_lags_no_earlier_event_explains_it(known: PartitionCommand) -> None:
    """Its newest event tells of another state than the present one: what set that off is no cause of this."""
    (group,) = grouped([problem(0)])
    assert explained(group, [told(leaderless(0), "the time before", 1), told(known, "of before", 2)]) == group.reason


def test_a_broker_that_the_mirror_has_as_registered_is_gone_because_of_nothing_that_it_tells() -> None:
    broker = Problem(severity="warning", subject="broker 2", what="is not registered", about=2)
    (group,) = grouped([broker])
    gone = ToldEvent(number=1, at_ms=1, kind="gone", broker=2, because="broker 2 gone", cause="7.1")
    back = ToldEvent(number=2, at_ms=2, kind="registered", broker=2, became={"epoch": 3}, because="broker 2 registered")
    assert explained(group, [gone]).because == "broker 2 gone"
    assert explained(group, [gone, back]) == group.reason


def test_a_topic_that_is_named_as_a_partition_explains_nothing_of_it() -> None:
    (group,) = grouped([problem(0)])
    topic_event = ToldEvent(number=9, at_ms=9, kind="created", topic="orders-0", became={"partitions": 1}, because="x")
    assert explained(group, [told(leaderless(0), "broker 2 gone", 1), topic_event]).because == "broker 2 gone"


def test_events_are_asked_for_of_few_and_of_what_has_any() -> None:
    broker = Problem(severity="warning", subject="broker 2", what="is not registered", about=2)
    asked = events_about(grouped([broker, problem(3)]))
    assert asked is not None
    assert (asked.partitions, asked.brokers) == ((TopicPartition("orders", 3),), (2,))
    mirror = Problem(severity="warning", subject="the mirror", what="lags")
    assert events_about(grouped([mirror])) is None
    many = events_about(grouped(problem(number, what=f"waits for {number}") for number in range(EXPLAINED_MAX + 1)))
    assert many is not None
    assert len(many.partitions) == EXPLAINED_MAX


def test_what_mends_a_partition_names_who_is_to_start_or_that_nobody_is() -> None:
    known = cluster_of(
        1,
        2,
        topics={"foo": topic((1, 2, 3), (1, 2), (1, 2, 4), (1, 2), (1, 2), adding={2: (4,), 3: (2,), 4: (2,)})},
        states={
            "foo-0": state(1, [1, 2]),
            "foo-1": state(1, [1], min_isr=1),
            "foo-2": state(1, [1]),
            "foo-3": state(1, [1], min_isr=1),
            "foo-4": state(1, [1]),
        },
    )
    found = health.problems(described(known, None, None), frozenset())
    assert {each.subject: (each.what, each.mend) for each in found} == {
        "foo-0": ("has 2 of 3 replicas in sync", "start broker 3"),
        "foo-1": (
            "has 1 of 2 replicas in sync",
            "nothing, while broker 2 catches up: spark-replication topics describe foo",
        ),
        "foo-2": (
            "has 1 of 2 replicas in sync, and needs 2 for acks=all",
            "nothing, while broker 2 catches up: spark-replication topics describe foo",
        ),
        "foo-4": (
            "has 1 of 1 replicas in sync, and needs 2 for acks=all",
            "nothing, once a reassignment has added its replicas: spark-replication reassign status",
        ),
    }, "a partition that only moves, as foo-3, is well"


@pytest.mark.parametrize(
    ("text", "words", "commands"),
    [
        ("start broker 2", "start broker 2", ()),
        ("spark-replication mirror status", "", ("spark-replication mirror status",)),
        ("wait: spark-replication a b; spark-replication c", "wait", ("spark-replication a b", "spark-replication c")),
        ("write it with `spark-replication tokens`", "write it with `spark-replication tokens`", ()),
    ],
)
def test_a_mend_is_words_and_commands(text: str, words: str, commands: tuple[str, ...]) -> None:
    assert mend_from(text) == Mend(words=words, commands=commands)
    assert str(mend_from(text)) == text


def cause(what: str, severity: Severity = "warning", **more: Any) -> Problem:
    return Problem(severity=severity, subject="broker 2", what=what, mend="start it", **more)


def test_what_follows_from_a_cause_stands_below_it_and_the_cause_first() -> None:
    lost = [replace(problem(number), follows="dead", counted="without a leader") for number in range(7)]
    late = replace(problem(8, "warning", "lags"), follows="dead", counted="behind")
    other = [cause("has a wrong clock"), problem(9, what="is damaged")]
    dead = cause("is gone", roots="dead", headline="1 of 3 brokers is dead: 2", otherwise="wait: spark-replication x")
    groups = grouped([*other, *lost, late, dead])
    assert [(each.severity, each.what, each.consequences) for each in incidents(groups)] == [
        (
            "critical",
            "1 of 3 brokers is dead: 2",
            (
                Consequence(
                    severity="critical",
                    what="without a leader",
                    count=7,
                    subjects=tuple(f"orders-{number}" for number in range(SUBJECTS_MAX)),
                ),
                Consequence(severity="warning", what="behind", count=1, subjects=("orders-8",)),
            ),
        ),
        ("critical", "orders-9 is damaged", ()),
        ("warning", "broker 2 has a wrong clock", ()),
    ]
    assert incidents(groups)[0].mends == (mend_from("start it"), mend_from("wait: spark-replication x"))


def test_where_the_guide_tells_more_is_said_of_the_cause() -> None:
    late = replace(problem(8), follows="dead", counted="behind", guide="operate#a-follower-is-behind")
    dead = cause("is gone", roots="dead", guide="operate#a-broker-is-gone-for-good")
    assert [each.guide for each in incidents(grouped([late, dead]))] == ["operate#a-broker-is-gone-for-good"]
    assert [each.guide for each in incidents(grouped([late, replace(dead, guide="")]))] == [""]
    assert [each.guide for each in incidents(grouped([late]))] == ["operate#a-follower-is-behind"]


def test_those_whose_leaders_are_away_for_several_reasons_are_counted_together() -> None:
    lost = [replace(problem(number, what=f"waits for {number}"), follows="dead", counted="lost") for number in (1, 2)]
    (found,) = incidents(grouped([cause("is gone", roots="dead"), *lost]))
    assert [(each.count, each.subjects) for each in found.consequences] == [(2, ("orders-1", "orders-2"))]


def test_what_follows_from_a_cause_that_nobody_has_stands_by_itself() -> None:
    lost = replace(problem(1), follows="dead", counted="without a leader")
    (found,) = incidents(grouped([lost]))
    assert (found.what, found.consequences) == ("orders-1 has no leader", ())
    assert found.mends == (mend_from("leader elect orders-1"),)


def test_a_cause_that_several_groups_have_is_one() -> None:
    first, second = (
        cause("is full", "critical", roots="disk"),
        cause("is full", roots="disk", counted="that it refuses"),
    )
    (found,) = incidents(grouped([second, first]))
    assert (found.severity, found.what, [each.what for each in found.consequences]) == (
        "critical",
        "broker 2 is full",
        ["that it refuses"],
    )


def test_an_event_of_a_consequence_tells_of_a_cause_without_one() -> None:
    lost = replace(problem(0), follows="dead", counted="without a leader")
    groups = grouped([cause("is gone", roots="dead"), lost])
    told_of = [group._replace(reason=explained(group, [told(leaderless(0), "broker 2 gone", 2)])) for group in groups]
    (found,) = incidents(told_of)
    assert (found.because, found.cause, found.since_ms) == ("broker 2 gone", "7.3", 2)


def test_an_incident_is_a_sentence() -> None:
    counted = Consequence(severity="critical", what="without a leader", count=3, subjects=("a-0", "a-1"))
    found = Incident(severity="critical", what="2 of 3 brokers are dead: 1, 2", consequences=(counted,), mends=())
    assert str(found) == "2 of 3 brokers are dead: 1, 2: 3 partitions without a leader (a-0, a-1, …)"
    assert str(replace(found, consequences=())) == "2 of 3 brokers are dead: 1, 2"
