"""What a controller does about an event: whole plans."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from spark_replication.core.controller import controller
from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.controller import decide
from spark_replication.core.controller.events import BrokerDeathReported, LogInfoRead, Requested, Ticked, TookOver
from spark_replication.core.controller.plan import (
    Advance,
    BrokersMoved,
    Cause,
    Decision,
    DeletePartitions,
    Dismiss,
    Elect,
    PartitionsChanged,
    Reconsider,
    Recover,
    Resume,
    Step,
    Stop,
)
from spark_replication.core.controller.settling import settle
from spark_replication.core.law.unclean_recovery import LogEnd, UncleanRecovery
from spark_replication.core.law.writes import (
    BrokerRemoval,
    DeletionMark,
    PartitionRemoval,
    PartitionWrite,
    RequestRemoval,
    TopicRemoval,
    TopicWrite,
)
from spark_replication.errors import InvalidTopic
from spark_replication.messages.commands import ReplicaLogInfo, ReplicaLogInfos, StopPartition
from spark_replication.messages.requests import (
    AddPartitions,
    CreateTopic,
    DeleteTopic,
    ElectLeaders,
    Reassign,
    RemovePartitions,
    Request,
)
from spark_replication.model import ABSENT, BrokerId, PartitionState, TopicConfig, TopicPartition
from tests.unit.core.stories import FOO, FOO_ID, cluster_of, state, topic

BAR, NEW = TopicPartition("bar", 0), TopicPartition("foo", 1)
CONFIGS = {"bar": TopicConfig(settings={"min.insync.replicas": 1})}
TOPICS = {"foo": topic((1, 2, 3), (3, 2)), "bar": topic((2, 3), name="bar")}
NOW_MS, TIMEOUT_MS = 20_000, 5_000


def cluster(*live: BrokerId, **partitions: PartitionState) -> ClusterState:
    """foo-0 on 1, 2, 3 and foo-1, not made yet, on 3, 2; bar-0, with min ISR 1, on 2, 3."""
    states = {f"{name}-0": found for name, found in partitions.items()}
    return cluster_of(*live, topics=TOPICS, states=states, configs=CONFIGS, now_ms=NOW_MS)


def write(
    partition: TopicPartition, after: PartitionState, *, version: int = 7, relies_on: tuple[BrokerId, ...] = ()
) -> Step:
    written = replace(after, controller_epoch=1)
    relied = dict.fromkeys(relies_on or sorted(after.isr), 0)
    return Step((PartitionWrite(partition=partition, state=written, version=version, relies_on=relied),))


def elected(leader: BrokerId, isr: list[BrokerId], **others: Any) -> PartitionState:
    return state(leader, isr, leader_epoch=5, **{"elected": "isr"} | others)


CREATED = state(3, [2, 3], leader_epoch=0)
BAR_LED = state(2, [2, 3], min_isr=1)


@pytest.mark.parametrize(
    ("known", "cause", "planned"),
    [
        # Those that are led and hold the dead, in one change each; the leaderless ones come with the elections.
        (
            cluster(2, 3, 4, foo=state(1, [1, 2, 3]), bar=state(None, [], elr=[3], min_isr=1)),
            TookOver(),
            Decision(steps=(write(FOO, elected(2, [2, 3])),), then=(Elect(), Resume())),
        ),
        (cluster(1, 2, 3, foo=state(1, [1, 2, 3]), bar=BAR_LED), TookOver(), Decision(then=(Elect(), Resume()))),
        (
            cluster(2, 3, foo=state(1, [1, 2, 3]), bar=state(None, [], elr=[3], min_isr=1)),
            Elect(),
            Decision(
                steps=(
                    write(BAR, elected(3, [3], elected="elr", min_isr=1)),
                    write(NEW, CREATED, version=ABSENT),
                ),
                then=(Recover((BAR, NEW)),),
            ),
        ),
        (
            cluster(2, 3, foo=state(1, [1, 2, 3]), bar=state(None, [], elr=[3])),
            Elect("foo"),
            Decision(steps=(write(NEW, CREATED, version=ABSENT),), then=(Recover((NEW,)),)),
        ),
        (
            cluster(1, 4, foo=state(1, [1])),
            Elect("foo"),
            Decision(then=(Recover((NEW,)),)),
        ),  # no replica of foo-1 lives
        (
            cluster(2, 3, foo=state(1, [1, 2]), bar=BAR_LED),
            BrokersMoved(lost=frozenset({1}), started=frozenset()),
            Decision(steps=(write(FOO, elected(2, [2], elr=[1])),), then=(Recover((FOO,)),)),
        ),
        (
            cluster(1, 2, 3, foo=state(None, [], elr=[1]), bar=BAR_LED),
            BrokersMoved(lost=frozenset(), started=frozenset({1})),
            Decision(steps=(write(FOO, elected(1, [1], elected="elr")),), then=(Recover((FOO,)),)),
        ),
        (cluster(1), BrokersMoved(lost=frozenset({4}), started=frozenset()), Decision(then=(Recover(()),))),
        (
            cluster(1, 2, foo=state(1, [1, 2, 3]), bar=BAR_LED),
            PartitionsChanged((FOO,)),
            Decision(steps=(write(FOO, state(1, [1, 2])),), then=(Recover((FOO,)),)),
        ),
        (
            cluster(1, 2, 3, foo=state(1, [1, 2, 3]), bar=BAR_LED),
            Reconsider(("foo", "bar")),
            Decision(steps=(write(NEW, CREATED, version=ABSENT),), then=(Recover((FOO, NEW, BAR)),)),
        ),
        (
            cluster(2, 3, foo=state(2, [2, 3]), bar=state(2, [2, 3])),
            Reconsider(("bar",)),
            Decision(steps=(write(BAR, BAR_LED),), then=(Recover((BAR,)),)),
        ),
        (cluster(1), Recover((NEW,)), Decision()),
        (
            cluster(1, foo=state(1, [1])),
            BrokerDeathReported(1, "1-0"),
            Decision(steps=(Step((BrokerRemoval(broker=1, epoch=0),)),)),
        ),
        (cluster(1), BrokerDeathReported(1, "another life"), Decision()),
        (cluster(1), BrokerDeathReported(2, "1-0"), Decision()),  # known to have ended
        (cluster(1), Dismiss("/a"), Decision(steps=(Step((RequestRemoval(path="/a"),)),))),
    ],
)
def test_the_controller_plans(known: ClusterState, cause: Cause, planned: Decision) -> None:
    assert decide(known, cause) == planned


def test_a_death_is_a_processs_whatever_epoch_it_has_by_then() -> None:
    """It may have registered again since its guardian began to watch it, with the same incarnation."""
    known = cluster(1, foo=state(1, [1]))
    known.registered[1] = replace(known.registered[1], epoch=4)
    assert decide(known, BrokerDeathReported(1, "1-0")) == Decision(steps=(Step((BrokerRemoval(broker=1, epoch=4),)),))


@pytest.mark.parametrize(
    ("lost", "split"),
    [(2, ((BAR,), (FOO, NEW))), (4, None)],  # who led nothing splits nothing
)
def test_of_many_partitions_those_that_a_lost_broker_led_come_first(
    monkeypatch: pytest.MonkeyPatch, lost: BrokerId, split: tuple[tuple[TopicPartition, ...], ...] | None
) -> None:
    known = cluster(1, 3, foo=state(1, [1, 2, 3]), bar=BAR_LED)
    moved = BrokersMoved(lost=frozenset({lost}), started=frozenset())
    together = decide(known, moved)
    monkeypatch.setattr(controller, "TOGETHER_MAX", 2)
    if split is None:
        assert decide(known, moved) == together
        return
    first, others = split
    assert decide(known, moved) == Decision(
        steps=(write(BAR, elected(3, [3], min_isr=1)),), then=(Recover(first), PartitionsChanged(others))
    )
    later = decide(known, PartitionsChanged(others)).steps
    assert all(step in together.steps for step in later), "as it is stored together otherwise"
    assert len(later) == len(together.steps) - 1


def test_replicas_whose_disk_failed_are_as_those_of_a_dead_broker() -> None:
    known = cluster(1, 2, 3, foo=state(1, [1, 2, 3]), bar=BAR_LED)
    known.apply_failed(1, [FOO])
    assert decide(known, PartitionsChanged((FOO,))) == Decision(
        steps=(write(FOO, elected(2, [2, 3])),), then=(Recover((FOO,)),)
    )


def test_who_alone_could_lead_is_elected_again_once_its_disk_may_be_well() -> None:
    known = cluster(1, 2, 3, foo=state(None, [], elr=[1]), bar=BAR_LED)
    known.apply_failed(1, [FOO])
    known.now_ms += known.settings.disk_retry_ms - 1
    since_ms = known.now_ms
    assert decide(known, Ticked(since_ms - 1)) == Decision()
    known.now_ms += 1
    assert decide(known, Ticked(since_ms)) == Decision(then=(Elect(),))
    writes = [each for step in decide(known, Elect()).steps for each in step.writes if isinstance(each, PartitionWrite)]
    assert [(each.state.leader, each.state.elected) for each in writes if each.partition == FOO] == [(1, "elr")]


def test_who_lost_its_disk_long_ago_is_elected_as_soon_as_the_last_leader_is_lost() -> None:
    """The time in which it is not tried was over while another led: no tick tells of it."""
    known = cluster(1, 2, foo=state(3, [3], elr=[1]), bar=BAR_LED)
    known.apply_failed(1, [FOO])
    known.now_ms += known.settings.disk_retry_ms - 1
    assert [write.state.leader for write in settle(known, [FOO])] == [None]
    known.now_ms += 1
    assert [(write.state.leader, write.state.elected) for write in settle(known, [FOO])] == [(1, "elr")]


# Controlled shutdown


def stop(
    broker: BrokerId,
    partition: TopicPartition,
    *,
    leader_epoch: int = 4,
    delete: bool = False,
    epoch: int | None = None,
) -> Stop:
    name, number = partition
    return Stop(
        broker,
        StopPartition(
            topic=name,
            partition=number,
            topic_id=f"id-{name}",
            leader_epoch=leader_epoch,
            partition_epoch=epoch,
            delete=delete,
        ),
    )


def test_who_shuts_down_hands_over_what_it_leads_and_stops_what_it_follows() -> None:
    known = cluster_of(
        1,
        2,
        3,
        4,
        shutting_down=[3],
        topics={"foo": topic((3, 1), (1, 3), (1, 2, 3), (3,)), "bar": topic((1, 3), name="bar")},
        states={
            "foo-0": state(3, [1, 3]),
            "foo-1": state(1, [1, 3]),
            "foo-2": state(1, [1, 2]),  # it is out of the ISR already: nothing is written, it is stopped
            "foo-3": state(3, [3], min_isr=1),  # it alone: it leads on
            "bar-0": state(1, [1, 3]),
        },
    )
    known.deleting.add("bar")
    planned = decide(known, BrokersMoved(lost=frozenset(), started=frozenset(), stopping=frozenset({3})))
    partitions = tuple(TopicPartition("foo", number) for number in range(4))
    first, second, third, _ = partitions
    follower = write(second, state(1, [1], elr=[3]))
    assert planned == Decision(
        steps=(
            write(first, elected(1, [1], elr=[3])),
            replace(follower, stops=(stop(3, second),)),
        ),
        stops=(stop(3, third),),
        then=(Recover((BAR, *partitions)),),
    )


def test_of_what_is_not_made_yet_nothing_is_stopped() -> None:
    known = cluster_of(3, shutting_down=[3], topics={"foo": topic((3,))})
    assert decide(known, BrokersMoved(frozenset(), frozenset(), frozenset({3}))) == Decision(then=(Recover((FOO,)),))


# Reassignments

MOVING = topic((1, 4, 2), (3, 2), adding={0: (4,)}, removing={0: (2,)})


def moving(*live: BrokerId, foo: PartitionState) -> ClusterState:
    """foo-0 goes from 1, 2 to 1, 4."""
    states = {"foo-0": foo, "foo-1": state(3, [2, 3])}
    return cluster_of(*live, topics={"foo": MOVING}, states=states, now_ms=NOW_MS)


@pytest.mark.parametrize(
    "cause",
    [
        BrokersMoved(lost=frozenset(), started=frozenset({4})),
        PartitionsChanged((FOO,)),
        Reconsider(("foo",)),
    ],
)
def test_whatever_touches_what_moves_may_let_it_go_on(cause: Cause) -> None:
    assert decide(moving(1, 2, 3, 4, foo=state(1, [1, 2, 4])), cause).then[1:] == (Advance((FOO,)),)


def test_it_goes_on_until_it_waits_and_then_its_request_is_done() -> None:
    known = moving(1, 2, 3, 4, foo=state(1, [1, 2, 4]))
    known.apply_request("/b", frozenset({FOO, NEW}))
    known.apply_request("/a", frozenset({NEW}))
    done = Step(
        (
            TopicWrite(topic="foo", state=topic((1, 4), (3, 2)), version=1),
            *write(FOO, state(1, [1, 4], leader_epoch=5)).writes,
        ),
        (stop(2, FOO, leader_epoch=5, delete=True, epoch=8),),
        ("foo-0",),
    )
    assert decide(known, Advance((FOO,))) == Decision(steps=(done,), then=(Advance((FOO,)),))
    waiting = moving(1, 2, 3, 4, foo=state(1, [1, 2]))
    waiting.open_requests = known.open_requests
    assert decide(waiting, Advance((FOO,))) == Decision(then=(Dismiss("/a"),))


# Requests


def test_a_topic_that_may_not_be_is_refused_and_nothing_is_written() -> None:
    planned = decide(cluster(1), Requested(asked=CreateTopic(name="a b"), request=5))
    assert isinstance(planned.reply.error, InvalidTopic)
    assert planned == Decision(reply=planned.reply)


MARK = Step((DeletionMark(topic="foo"),))


@pytest.mark.parametrize(
    ("path", "then"),
    [
        (None, (DeletePartitions("foo"), DeletePartitions("foo", last=True))),
        ("/a", (DeletePartitions("foo"), DeletePartitions("foo", last=True), Dismiss("/a"))),
    ],
)
def test_a_request_below_admin_is_removed_once_it_is_done(path: str | None, then: tuple[Cause, ...]) -> None:
    asked = Requested(asked=DeleteTopic(topic="foo"), path=path)
    assert decide(cluster(1), asked) == Decision(steps=(MARK,), then=then)


def test_one_that_is_refused_is_removed_too() -> None:
    planned = decide(cluster(1), Requested(asked=DeleteTopic(topic="baz"), path="/a"))
    assert (planned.steps, planned.then) == ((), (Dismiss("/a"),))


def test_that_of_a_reassignment_stays_until_it_is_complete() -> None:
    known = cluster(1, 2, 3, foo=state(1, [1, 2, 3]))
    planned = decide(known, Requested(asked=Reassign(targets={"foo-0": (1, 2)}), path="/a"))
    assert planned.then == (Elect("foo"), Advance((FOO,)))


def test_a_new_controller_goes_on_with_what_was_left_in_this_order() -> None:
    asked: dict[str, Request] = {
        "/e": ElectLeaders(kind="preferred"),
        "/d": RemovePartitions(partitions={"bar": (1,)}),
        "/c": AddPartitions(counts={"foo": 3}),
        "/b": Reassign(targets={"foo-0": (1,)}),
        "/a2": DeleteTopic(topic="foo"),
        "/a1": DeleteTopic(topic="baz"),
    }
    requests = {path: Requested(asked=each, path=path) for path, each in asked.items()}
    known = moving(1, 2, 3, foo=state(1, [1, 2]))
    known.requests = tuple(requests.values())
    known.deleting.update(["y", "x"])
    assert decide(known, Resume()) == Decision(
        then=(
            DeletePartitions("x"),
            DeletePartitions("x", last=True),
            DeletePartitions("y"),
            DeletePartitions("y", last=True),
            requests["/a2"],  # of one kind, as they came
            requests["/a1"],
            Advance((FOO,)),
            requests["/b"],
            requests["/c"],
            requests["/d"],
            requests["/e"],
        )
    )


# Deletions


def test_the_partitions_go_first_and_last_the_topic() -> None:
    known = cluster_of(
        1,
        3,
        topics={"foo": topic((1, 2, 3), (3, 2))},
        states={"foo-0": state(1, [1, 3]), "foo-2": state(1, [1]), "bar-0": state(1, [1])},
    )
    known.deleting.add("foo")
    assert decide(known, DeletePartitions("foo")) == Decision(
        steps=(
            Step((PartitionRemoval(partition=FOO),)),
            Step((PartitionRemoval(partition=TopicPartition("foo", 2)),)),  # a tombstone
        ),
        stops=(
            stop(1, FOO, delete=True),
            stop(3, FOO, delete=True),
            stop(3, NEW, leader_epoch=0, delete=True),
        ),
    )
    assert decide(known, DeletePartitions("foo", last=True)) == Decision(
        steps=(Step((TopicRemoval(topic="foo", topic_id=FOO_ID),)),), then=(Advance(()),)
    )


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("name", ["foo", "baz"])
def test_a_topic_that_is_not_marked_or_not_there_is_not_deleted(name: str, last: bool) -> None:
    known = cluster(1)
    known.deleting.add("baz")
    assert decide(known, DeletePartitions(name, last=last)) == Decision()


# Recovery, time


def log_info(partition: TopicPartition, *, topic_id: str = FOO_ID) -> ReplicaLogInfo:
    name, number = partition
    return ReplicaLogInfo(topic=name, partition=number, topic_id=topic_id, last_epoch=3, current_epoch=4, end=9)


def recovering(*, started_ms: int = NOW_MS) -> tuple[ClusterState, UncleanRecovery]:
    known = cluster(1, 2, foo=state(None, [], last_known_elr=[1, 2]))
    under_way = UncleanRecovery(
        leader_epoch=4, required=frozenset({1, 2}), started_ms=started_ms, asked_ms=started_ms, asked={1: 0, 2: 0}
    )
    known.apply_recoveries({FOO: under_way})
    return known, under_way


def test_an_answer_is_counted_and_then_it_may_be_enough() -> None:
    known, under_way = recovering()
    answer = ReplicaLogInfos(broker_epoch=0, partitions=(log_info(FOO), log_info(NEW), log_info(BAR)))
    counted = replace(under_way, answers={1: LogEnd(3, 9)})
    assert decide(known, LogInfoRead(1, answer)) == Decision(recoveries={FOO: counted}, then=(Recover((FOO,)),))


def test_an_answer_that_nobody_waits_for_says_nothing() -> None:
    known, _ = recovering()
    answer = ReplicaLogInfos(broker_epoch=0, partitions=(log_info(FOO, topic_id="another"), log_info(NEW)))
    assert decide(known, LogInfoRead(1, answer)) == Decision()


@pytest.mark.parametrize(
    ("started_ms", "due"),
    [(NOW_MS - TIMEOUT_MS + 1, False), (NOW_MS - TIMEOUT_MS, True)],
)
def test_after_the_timeout_it_is_elected_or_asked_again(started_ms: int, due: bool) -> None:
    known, _ = recovering(started_ms=started_ms)
    assert decide(known, Ticked(0)) == (Decision(then=(Recover((FOO,)),)) if due else Decision())


@pytest.mark.parametrize(
    ("interval_ms", "since_ms", "asked"),
    [(0, 0, False), (6_000, 17_999, True), (6_000, 18_000, False), (20_000, 19_999, True), (20_001, 0, False)],
)
def test_preferred_replicas_lead_again_every_so_often(interval_ms: int, since_ms: int, asked: bool) -> None:
    known = cluster_of(1, topics={}, now_ms=NOW_MS, leader_imbalance_check_interval_ms=interval_ms)
    then = (Requested(asked=ElectLeaders(kind="preferred")),) if asked else ()
    assert decide(known, Ticked(since_ms)) == Decision(then=then)
