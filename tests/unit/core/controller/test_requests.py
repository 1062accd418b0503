"""What people ask for: the plan, or why it is not allowed."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from spark_replication.core.controller import configuring, requests, widening
from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.plan import (
    Advance,
    Decision,
    DeletePartitions,
    Elect,
    Reconsider,
    Recover,
    Reply,
    Step,
    Stop,
)
from spark_replication.core.controller.requests import moving, narrowed, plan_request
from spark_replication.core.controller.widening import SchemaChange
from spark_replication.core.law import worded
from spark_replication.core.law.acls import ACLS
from spark_replication.core.law.unclean_recovery import UncleanRecovery
from spark_replication.core.law.writes import (
    ClusterConfigWrite,
    DeletionMark,
    Group,
    PartitionWrite,
    RequestRemoval,
    TopicConfigWrite,
    TopicWrite,
)
from spark_replication.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidRequest,
    InvalidSchema,
    InvalidTopic,
    NoReassignmentInProgress,
    NotEnoughReplicas,
    PreferredLeaderNotAvailable,
    ReplicationError,
    UnknownTopicOrPartition,
)
from spark_replication.messages.commands import StopPartition
from spark_replication.messages.requests import (
    AcknowledgeLoss,
    AddPartitions,
    CancelReassignment,
    ChangeAcls,
    Configure,
    CreateTopic,
    DeleteTopic,
    ElectLeaders,
    PlannedFrom,
    Reassign,
    RemovePartitions,
    Request,
    SetQuota,
)
from spark_replication.model import (
    ABSENT,
    BrokerId,
    ClusterSettings,
    How,
    PartitionState,
    Scalar,
    TopicConfig,
    TopicPartition,
    TopicState,
    encode,
)
from spark_replication.storage.format.batches import schema_change
from tests.unit.core.stories import FOO, cluster_of, loss, state, topic

BAR = TopicPartition("bar", 0)
ON_12 = {"foo": topic((1, 2), (2, 1)), "bar": topic((3, 1), name="bar")}
LED = {"foo-0": state(1, [1, 2]), "foo-1": state(2, [1, 2]), "bar-0": state(3, [1, 3])}


def cluster(*live: BrokerId, **others: Any) -> ClusterState:
    """foo-0 on 1, 2 and foo-1 on 2, 1; bar-0 on 3, 1. All are led by their preferred replica."""
    stored: dict[str, Any] = {"topics": ON_12, "states": LED} | others
    return cluster_of(*(live or (1, 2, 3)), **stored)


def write(
    partition: TopicPartition, after: PartitionState, *, version: int = 7, relies_on: tuple[BrokerId, ...] = ()
) -> PartitionWrite:
    written = replace(after, controller_epoch=1)
    return PartitionWrite(
        partition=partition, state=written, version=version, relies_on=dict.fromkeys(relies_on or sorted(after.isr), 0)
    )


def codes(plan: Decision) -> tuple[str | None, dict[str, str]]:
    """What is answered: why not at all, or why not these."""
    error = plan.reply.error
    return None if error is None else error.code, {name: each.code for name, each in plan.reply.errors.items()}


def carried_out(plan: Decision) -> Decision:
    """All but the answer."""
    return replace(plan, reply=Reply())


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (CreateTopic(name="a b"), InvalidTopic),
        (DeleteTopic(topic="baz"), UnknownTopicOrPartition),
        (Configure(topic="baz", settings={}), UnknownTopicOrPartition),
        (Configure(topic="foo", settings={"min.insync.replica": 1}), InvalidConfig),
        (Configure(topic="foo", settings={"replica.lag.time.ms": 1}), InvalidConfig),
        (Configure(settings={"min.insync.replicas": 0}), InvalidConfig),
        (Configure(settings={"request.timeout.ms": 5}), InvalidConfig),
        (Configure(settings={"request.timeout": None}), InvalidConfig),
        (Configure(settings={"security.acls": "alice may write"}), InvalidConfig),
        (Configure(topic="foo", settings={"security.acls": ""}), InvalidConfig),
        (Configure(settings={"security.quotas": "alice streams many"}), InvalidConfig),
        (Configure(settings={"security.quotas": "alice streams 1; alice streams 2"}), InvalidConfig),
        (SetQuota(principal="of alice", kind="streams", limit=1), InvalidConfig),
        (SetQuota(principal="alice;", kind="streams", limit=1), InvalidConfig),
        (ElectLeaders(kind="preferred", partitions=tuple(f"t{n}-0" for n in range(21))), InvalidRequest),
        (AcknowledgeLoss(known={f"t{n}-0": 5 for n in range(21)}), InvalidRequest),
    ],
)
def test_what_is_not_allowed_changes_nothing_and_says_why(asked: Request, error: type[ReplicationError]) -> None:
    planned = plan_request(cluster(), asked)
    assert codes(planned) == (error.code, {})
    assert carried_out(planned) == Decision()


# Topics


def test_a_topic_is_made_then_led_and_its_id_is_above_all_before_it() -> None:
    known = cluster()
    known.compare_schemas = lambda before, after: SchemaChange(columns_before=len(before), columns_after=len(after))
    known.topics_made = 10
    asked = CreateTopic(name="baz", schema="s", assignment={0: (2, 1)}, config={"min.insync.replicas": 1})
    made = TopicWrite(
        topic="baz",
        state=TopicState(topic_id="00000001-0000000a", partitions={0: (2, 1)}),
        config=TopicConfig(settings={"min.insync.replicas": 1}, schema="s"),
        version=ABSENT,
    )
    assert plan_request(known, asked) == Decision(steps=(Step((made,)),), then=(Elect("baz"),))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("abcd", "the schema has 4 columns, and may have 3"),
        ("x" * 7, "the schema takes 7 characters, and at most 6 fit"),
        ("", None),
        ("abc", None),
    ],
)
def test_a_topic_has_a_schema_of_limited_size(
    monkeypatch: pytest.MonkeyPatch, schema: str, message: str | None
) -> None:
    monkeypatch.setattr(widening, "COLUMNS_MAX", 3)
    monkeypatch.setattr(widening, "SCHEMA_CHARACTERS_MAX", 6)
    known = cluster()
    known.compare_schemas = lambda before, after: SchemaChange(columns_before=len(before), columns_after=len(after))
    error = plan_request(known, CreateTopic(name="baz", schema=schema, assignment={0: (2, 1)})).reply.error
    assert (error is None) if message is None else (isinstance(error, InvalidSchema) and message in error.message)


def test_a_topic_is_not_made_with_what_is_no_schema() -> None:
    known = cluster()
    known.compare_schemas = schema_change
    for schema in ("no base64!", "aGVsbG8="):
        error = plan_request(known, CreateTopic(name="baz", schema=schema, assignment={0: (2, 1)})).reply.error
        assert isinstance(error, InvalidSchema)
        assert "there is no schema in it" in error.message


def test_a_topic_is_marked_and_then_deleted() -> None:
    assert plan_request(cluster(), DeleteTopic(topic="foo")) == Decision(
        steps=(Step((DeletionMark(topic="foo"),)),), then=(DeletePartitions("foo"), DeletePartitions("foo", last=True))
    )


def test_partitions_are_added_and_then_led_those_that_may_be() -> None:
    asked = AddPartitions(counts={"foo": 3, "baz": 1}, assignments={"bar": {1: (1, 2)}, "foo": {2: (1, 2)}})
    planned = plan_request(cluster(), replace(asked, assignments={"bar": {1: (1, 2)}}))
    assert codes(planned) == (None, {"baz": "UNKNOWN_TOPIC_OR_PARTITION"})
    assert carried_out(planned) == Decision(
        steps=(
            Step((TopicWrite(topic="foo", state=topic((1, 2), (2, 1), (3, 2)), version=1),), names=("foo",)),
            Step((TopicWrite(topic="bar", state=topic((3, 1), (1, 2), name="bar"), version=1),), names=("bar",)),
        ),
        then=(Elect("foo"), Elect("bar")),
    )
    assert codes(plan_request(cluster(), replace(asked, counts={"foo": 3}))) == (None, {"foo": "INVALID_REQUEST"})


def test_one_that_is_added_again_is_made_above_its_tombstone_in_the_same_step() -> None:
    known = cluster(states=LED | {"foo-2": state(3, [3], leader_epoch=8)})
    planned = plan_request(known, AddPartitions(assignments={"foo": {2: (1, 2), 3: (2, 1)}}))
    made = write(TopicPartition("foo", 2), state(1, [1, 2], leader_epoch=9, created=9))
    assigned = TopicWrite(topic="foo", state=topic((1, 2), (2, 1), (1, 2), (2, 1)), version=1)
    assert planned == Decision(steps=(Step((assigned, made), names=("foo",)),), then=(Elect("foo"),))


def stop(broker: BrokerId, number: int, *, leader_epoch: int = 4, partition_epoch: int | None = None) -> Stop:
    return Stop(
        broker,
        StopPartition(
            topic="foo",
            partition=number,
            topic_id="id-foo",
            leader_epoch=leader_epoch,
            partition_epoch=partition_epoch,
            delete=True,
        ),
    )


def test_partitions_are_removed_from_the_tail_with_what_was_under_way() -> None:
    before = topic((1, 2), (2, 1, 3), adding={1: (3,)}, removing={1: (1,)}, origin={1: (2, 1)})
    known = cluster(1, 2, topics={"foo": before})
    planned = plan_request(known, RemovePartitions(partitions={"foo": (1,), "bar": (0,)}))
    assert codes(planned) == (None, {"bar": "UNKNOWN_TOPIC_OR_PARTITION"})
    removal = TopicWrite(topic="foo", state=topic((1, 2)), version=1)
    assert carried_out(planned) == Decision(
        steps=(Step((removal,), (stop(1, 1), stop(2, 1)), ("foo",)),), then=(Advance(()),)
    )
    leaving = TopicPartition("foo", 1)
    known.open_requests = {"/one": frozenset({leaving}), "/more": frozenset({FOO, leaving})}
    (step,) = plan_request(known, RemovePartitions(partitions={"foo": (1,)})).steps
    assert step.writes == (removal, RequestRemoval(path="/one"))


# Reassignments


def test_a_reassignment_begins_for_those_that_may_move_a_topic_at_a_time() -> None:
    targets = {"foo-1": (3, 1), "foo-0": (3, 2), "bar-0": (3, 1), "foo-9": (1,), "x": (1,)}
    planned = plan_request(cluster(), Reassign(targets=targets))
    assert codes(planned) == (None, {"foo-9": "UNKNOWN_TOPIC_OR_PARTITION", "x": "UNKNOWN_TOPIC_OR_PARTITION"})
    after = topic(
        (3, 2, 1),
        (3, 1, 2),
        adding={0: (3,), 1: (3,)},
        removing={0: (1,), 1: (2,)},
        origin={0: (1, 2), 1: (2, 1)},
    )
    # bar-0 is there already.
    assert carried_out(planned) == Decision(
        steps=(
            Step(
                (
                    TopicWrite(topic="foo", state=after, version=1),
                    write(FOO, LED["foo-0"]),
                    write(TopicPartition("foo", 1), LED["foo-1"]),
                ),
                names=("foo-0", "foo-1"),
            ),
        ),
        then=(Elect("foo"), Elect("bar"), Advance((TopicPartition("foo", 1), FOO, BAR))),
    )


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ((), "INVALID_REPLICA_ASSIGNMENT"),
        ((1, 1), "INVALID_REPLICA_ASSIGNMENT"),
        ((1, 9), "INVALID_REPLICA_ASSIGNMENT"),
    ],
)
def test_one_to_where_it_cannot_go_is_refused(target: tuple[BrokerId, ...], code: str) -> None:
    planned = plan_request(cluster(), Reassign(targets={"foo-0": target}))
    assert (codes(planned), planned.steps, planned.then) == ((None, {"foo-0": code}), (), (Advance(()),))


def test_no_more_of_a_topic_begin_than_its_assignment_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that find no room are asked for again, once others have ended."""
    monkeypatch.setattr(requests, "BEGUN_TOGETHER_MAX", 1)
    targets: dict[str, tuple[BrokerId, ...]] = {"foo-0": (1, 3), "foo-1": (2, 3), "bar-0": (3, 2)}
    first = topic((1, 3, 2), (2, 1), adding={0: (3,)}, removing={0: (2,)}, origin={0: (1, 2)})
    monkeypatch.setattr(requests, "ASSIGNMENT_BYTES_MAX", len(encode(first)))
    planned = plan_request(cluster(), Reassign(targets=targets))
    assert [step.names for step in planned.steps] == [("foo-0",), ("bar-0",)]
    assert codes(planned) == (None, {"foo-1": "THROTTLING_QUOTA_EXCEEDED"})
    assert planned.reply.errors["foo-1"].retriable
    # Where nothing has room, what needs none is done all the same: a smaller assignment, another order.
    monkeypatch.setattr(requests, "ASSIGNMENT_BYTES_MAX", 1)
    planned = plan_request(cluster(), Reassign(targets={"foo-0": (2, 1), "foo-1": (2, 3)}))
    assert [step.names for step in planned.steps] == [("foo-0",)]
    assert codes(planned) == (None, {"foo-1": "THROTTLING_QUOTA_EXCEEDED"})


PLANNED = PlannedFrom(topic_id="id-foo", replicas=(1, 2))


@pytest.mark.parametrize(
    ("planned_from", "present", "why"),
    [
        (PLANNED, topic((1, 2)), None),
        # What goes there already may be our own try that got no answer.
        (PLANNED, topic((1, 3, 2), adding={0: (3,)}, removing={0: (2,)}), None),
        (PLANNED, topic((1, 3)), None),
        (PLANNED, topic((2, 1)), r"foo-0 was on \[1, 2\] when this was planned, and is on \[2, 1\] now"),
        (PLANNED, topic((1, 4, 2), adding={0: (4,)}, removing={0: (2,)}), r"is on \[1, 4, 2\] now"),
        (PlannedFrom(topic_id="id-earlier", replicas=(1, 2)), topic((1, 2)), "topic foo was made again"),
    ],
)
def test_a_partition_that_is_not_as_it_was_planned_does_not_move(
    planned_from: PlannedFrom, present: TopicState, why: str | None
) -> None:
    known = cluster(topics={"foo": present}, states={"foo-0": LED["foo-0"]})
    asked = Reassign(targets={"foo-0": (1, 3)}, planned_from={"foo-0": planned_from})
    errors = plan_request(known, asked).reply.errors
    if why is None:
        assert errors == {}
        return
    assert plan_request(known, asked).steps == ()
    assert errors["foo-0"].code == "STALE_PLAN"
    assert re.search(why, str(errors["foo-0"]))


def test_one_of_a_partition_that_was_never_led_or_of_a_topic_that_goes_is_refused() -> None:
    known = cluster(states={"foo-0": LED["foo-0"]})
    known.deleting.add("bar")
    found, errors = codes(plan_request(known, Reassign(targets={"foo-1": (1,), "bar-0": (1,)})))
    assert (found, errors["bar-0"]) == (None, "UNKNOWN_TOPIC_OR_PARTITION")
    assert errors.keys() == {"bar-0", "foo-1"}


def test_those_of_a_topic_begin_so_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "BEGUN_TOGETHER_MAX", 1)
    planned = plan_request(cluster(), Reassign(targets={"foo-0": (1, 3), "foo-1": (2, 3)}))
    first = topic((1, 3, 2), (2, 1), adding={0: (3,)}, removing={0: (2,)}, origin={0: (1, 2)})
    second = replace(
        first,
        partitions={0: (1, 3, 2), 1: (2, 3, 1)},
        adding={0: (3,), 1: (3,)},
        removing={0: (2,), 1: (1,)},
        origin={0: (1, 2), 1: (2, 1)},
    )
    assert planned.steps == (
        Step((TopicWrite(topic="foo", state=first, version=1), write(FOO, LED["foo-0"])), names=("foo-0",)),
        Step(
            (TopicWrite(topic="foo", state=second, version=2), write(TopicPartition("foo", 1), LED["foo-1"])),
            names=("foo-1",),
        ),
    )


MOVING = topic((1, 3, 2), (2, 1), adding={0: (3,)}, removing={0: (2,)}, origin={0: (1, 2)})


def test_a_reassignment_goes_back_where_it_can() -> None:
    known = cluster(1, 2, 3, topics={"foo": MOVING}, states={"foo-0": state(1, [1, 2, 3]), "foo-1": LED["foo-1"]})
    planned = plan_request(known, CancelReassignment(partitions=("foo-0", "foo-1", "bar-0")))
    assert codes(planned) == (None, {"foo-1": "NO_REASSIGNMENT_IN_PROGRESS", "bar-0": "UNKNOWN_TOPIC_OR_PARTITION"})
    back = Step(
        (TopicWrite(topic="foo", state=ON_12["foo"], version=1), write(FOO, state(1, [1, 2], leader_epoch=5))),
        (stop(3, 0, leader_epoch=5, partition_epoch=8),),
        ("foo-0",),
    )
    assert carried_out(planned) == Decision(steps=(back,), then=(Advance(()),))


@pytest.mark.parametrize(
    ("asked", "error", "text"),
    [
        ("foo-1", NoReassignmentInProgress, "foo-1 is not being reassigned"),
        ("foo-0", NotEnoughReplicas, r"of which \[1\] are in sync"),
    ],
)
def test_one_that_cannot_go_back_says_why(asked: str, error: type[ReplicationError], text: str) -> None:
    known = cluster(1, 3, topics={"foo": MOVING}, states={"foo-0": state(1, [1, 3]), "foo-1": LED["foo-1"]})
    planned = plan_request(known, CancelReassignment(partitions=(asked,)))
    with pytest.raises(error, match=text):
        raise planned.reply.errors[asked]
    assert planned.steps == ()


# Elections by hand (L5)


def led(leader: BrokerId, isr: list[BrokerId], how: How, **others: Any) -> PartitionState:
    return state(leader, isr, leader_epoch=5, elected=how, **others)


def elections(known: ClusterState, asked: ElectLeaders) -> tuple[PartitionState, ...]:
    """What each step of the plan makes of its partition."""
    planned = plan_request(known, asked)
    assert codes(planned) == (None, {})
    writes = [write for step in planned.steps for write in step.writes]
    return tuple(replace(each.state, controller_epoch=0) for each in writes if isinstance(each, PartitionWrite))


def test_preferred_replicas_lead_again_where_they_are_in_sync() -> None:
    known = cluster(
        1,
        2,
        states={"foo-0": state(2, [1, 2]), "foo-1": LED["foo-1"], "bar-0": state(1, [1])},
    )
    assert elections(known, ElectLeaders(kind="preferred")) == (led(1, [1, 2], "isr"),)
    planned = plan_request(known, ElectLeaders(kind="preferred", partitions=("foo-0", "foo-1", "bar-0", "foo-0")))
    assert codes(planned) == (
        None,
        {"foo-1": ElectionNotNeeded.code, "bar-0": PreferredLeaderNotAvailable.code},
    )
    assert [step.names for step in planned.steps] == [("foo-0",)]


def test_a_preferred_replica_that_is_shutting_down_or_whose_partition_is_not_made_yet_is_passed_over() -> None:
    known = cluster(1, 2, shutting_down=[1], states={"foo-0": state(2, [1, 2])})
    assert elections(known, ElectLeaders(kind="preferred")) == ()


GONE = state(None, [], last_known_elr=[1, 2])


@pytest.mark.parametrize(
    ("live", "stored", "after"),
    [
        ((1, 2), GONE, led(1, [1], "unclean", recovering=True, loss=loss())),
        ((2,), GONE, led(2, [2], "unclean", recovering=True, loss=loss())),
        ((1, 2), state(None, [], last_known_leader=2), led(2, [2], "unclean", recovering=True, loss=loss())),
        ((1,), state(None, [], elr=[2]), led(1, [1], "unclean", recovering=True, loss=loss())),  # over a fenced ELR
    ],
)
def test_an_unclean_election_takes_any_live_one(
    live: tuple[BrokerId, ...], stored: PartitionState, after: PartitionState
) -> None:
    known = cluster(*live, states={"foo-0": stored})
    assert elections(known, ElectLeaders(kind="unclean", partitions=("foo-0",))) == (after,)


@pytest.mark.parametrize(
    ("live", "stored", "after"),
    [
        # Before the last known leader, and before the first replica.
        ((1, 2), state(None, [], elr=[2], last_known_leader=1), led(2, [2], "elr")),
        ((1, 2), state(None, [], elr=[1, 2], last_known_leader=2), led(1, [1], "elr", elr=[2])),
    ],
)
def test_an_unclean_election_takes_whoever_loses_nothing_first(
    live: tuple[BrokerId, ...], stored: PartitionState, after: PartitionState
) -> None:
    known = cluster(*live, states={"foo-0": stored})
    assert elections(known, ElectLeaders(kind="unclean", partitions=("foo-0",))) == (after,)


def test_a_designation_of_who_may_lack_records_is_refused_while_a_member_lives() -> None:
    known = cluster(1, 2, states={"foo-0": state(None, [], elr=[2], last_known_leader=1)})
    lossy, lossless = (
        ElectLeaders(kind="designation", partitions=("foo-0",), desired={"foo-0": desired}) for desired in (1, 2)
    )
    assert codes(plan_request(known, lossy)) == (None, {"foo-0": "ELECTION_NOT_NEEDED"})
    assert elections(known, lossless) == (led(2, [2], "elr"),)


def test_a_designation_takes_whom_it_names() -> None:
    known = cluster(1, 2, states={"foo-0": state(None, [], last_known_leader=1)})
    asked = ElectLeaders(kind="designation", partitions=("foo-0",), desired={"foo-0": 2})
    assert elections(known, asked) == (led(2, [2], "designated", recovering=True, loss=loss()),)


@pytest.mark.parametrize(
    ("asked", "live", "error"),
    [
        (ElectLeaders(kind="unclean", partitions=("foo-1",)), (1, 2), ElectionNotNeeded),
        (ElectLeaders(kind="unclean", partitions=("foo-9",)), (1, 2), UnknownTopicOrPartition),
        (ElectLeaders(kind="unclean", partitions=("foo-0",)), (3,), EligibleLeadersNotAvailable),
        (ElectLeaders(kind="designation", partitions=("foo-0",)), (1,), InvalidRequest),
        (ElectLeaders(kind="designation", partitions=("foo-0",), desired={"foo-0": 3}), (3,), InvalidReplicaAssignment),
        (
            ElectLeaders(kind="designation", partitions=("foo-0",), desired={"foo-0": 2}),
            (1,),
            EligibleLeadersNotAvailable,
        ),
        (ElectLeaders(kind="longest_log_balanced", partitions=("foo-0",)), (1,), EligibleLeadersNotAvailable),
        (ElectLeaders(kind="longest_log_proactive", partitions=("foo-0",)), (3,), EligibleLeadersNotAvailable),
    ],
)
def test_an_election_that_cannot_be_says_why(
    asked: ElectLeaders, live: tuple[BrokerId, ...], error: type[ReplicationError]
) -> None:
    known = cluster(*live, states={"foo-0": GONE, "foo-1": LED["foo-1"]})
    (name,) = asked.partitions or ()
    planned = plan_request(known, asked)
    assert (codes(planned), carried_out(planned)) == ((None, {name: error.code}), Decision())


@pytest.mark.parametrize(
    ("kind", "live", "required"),
    [
        ("longest_log_proactive", (1,), ()),
        ("longest_log_balanced", (1, 2), (1, 2)),
    ],
)
def test_a_recovery_by_hand_asks_for_logs(kind: Any, live: tuple[BrokerId, ...], required: tuple[int, ...]) -> None:
    known = cluster(*live, states={"foo-0": GONE}, now_ms=9)
    begun = UncleanRecovery(leader_epoch=4, required=frozenset(required), by_hand=True)
    # Without a list: of all that have no leader, and have had one.
    planned = plan_request(known, ElectLeaders(kind=kind, partitions=("foo-0",)))
    assert planned == Decision(recoveries={FOO: begun}, then=(Recover((FOO,)),))


def test_a_recovery_that_must_wait_names_who_is_waited_for() -> None:
    for stored, named in [
        (state(None, [], elr=[1]), r"all of \[1\] are alive"),
        (GONE, r"all of \[1, 2\] are alive"),
        (state(None, []), r"all of \[1, 2\] are alive"),
    ]:
        known = cluster(3, states={"foo-0": stored})
        planned = plan_request(known, ElectLeaders(kind="longest_log_balanced", partitions=("foo-0",)))
        with pytest.raises(EligibleLeadersNotAvailable, match=named):
            raise planned.reply.errors["foo-0"]


MARKED = state(1, [1, 2], loss=loss(3, 5, since_ms=70))


def test_possible_loss_is_acknowledged_and_nothing_else_changes() -> None:
    known = cluster(states=LED | {"foo-0": MARKED, "foo-1": state(None, [], elr=[1], loss=loss(2))})
    planned = plan_request(known, AcknowledgeLoss(known={"foo-0": 5, "foo-1": 2}))
    assert codes(planned) == (None, {})
    assert [step.writes for step in planned.steps] == [
        (write(FOO, state(1, [1, 2])),),
        (write(TopicPartition("foo", 1), state(None, [], elr=[1])),),
    ]
    assert [step.names for step in planned.steps] == [("foo-0",), ("foo-1",)]


def test_what_shows_no_loss_or_a_later_one_is_not_acknowledged() -> None:
    known = cluster(states=LED | {"foo-0": MARKED})
    planned = plan_request(known, AcknowledgeLoss(known={"foo-0": 4, "foo-1": 5, "foo-9": 0}))
    assert planned.steps == ()
    assert {name: str(error) for name, error in planned.reply.errors.items()} == {
        "foo-0": "LOSS_NOT_ACKNOWLEDGED: foo-0 may have lost more by an election at leader epoch 5, since this was "
        "looked at: look again, and acknowledge that",
        "foo-1": "LOSS_NOT_ACKNOWLEDGED: foo-1 shows no possible loss: nothing was lost, or it is acknowledged already",
        "foo-9": "UNKNOWN_TOPIC_OR_PARTITION: there is no partition foo-9: check its name",
    }


def test_without_a_list_an_election_acts_on_what_has_no_leader() -> None:
    known = cluster(1, 2, states=LED | {"foo-1": GONE})
    assert elections(known, ElectLeaders(kind="unclean")) == (led(2, [2], "unclean", recovering=True, loss=loss()),)


# Settings


def test_a_topics_settings_and_the_min_isr_in_force_change_together() -> None:
    known = cluster(
        topics={"foo": topic((1, 2, 3), (2, 1))},
        states={"foo-0": state(1, [1], elr=[2])},
        configs={"foo": TopicConfig(settings={"segment.bytes": 5, "min.insync.replicas": 2}, schema="s")},
    )
    asked = Configure(topic="foo", settings={"min.insync.replicas": 1, "segment.bytes": None})
    assert plan_request(known, asked) == Decision(
        steps=(
            Step(
                (
                    TopicConfigWrite(topic="foo", config=TopicConfig(settings={"min.insync.replicas": 1}, schema="s")),
                    write(FOO, state(1, [1], min_isr=1)),
                )
            ),
        ),
        then=(Reconsider(("foo",)),),
    )


def test_no_more_are_rewritten_with_the_setting_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuring, "CONFIGURED_TOGETHER_MAX", 1)
    for asked in (
        Configure(topic="foo", settings={"min.insync.replicas": 1}),
        Configure(settings={"min.insync.replicas": 1}),
    ):
        (step,) = plan_request(cluster(), asked).steps
        assert len(step.writes) == 2


def test_acls_change_beside_other_settings_and_nothing_else_does() -> None:
    known = cluster(security_acls="alice write topic foo; bob read topic foo")
    known.apply_settings(ClusterSettings(settings={"retention.ms": 5}))
    alice, bob, carol = ACLS.each(["alice write topic foo", "bob read topic foo", "carol alter cluster"])

    def changed(asked: ChangeAcls) -> Scalar:
        planned = plan_request(known, asked)
        ((write,),) = (step.writes for step in planned.steps)
        assert planned == Decision(steps=(Step((write,)),))
        assert isinstance(write, ClusterConfigWrite)
        assert write.config.settings.keys() == {"retention.ms", "security.acls"}
        known.apply_settings(write.config)
        return write.config.settings["security.acls"]

    both = "alice write topic foo; carol alter cluster"
    assert changed(ChangeAcls(add=(carol, alice), remove=(bob,))) == both, "what the process had set holds on"
    assert changed(ChangeAcls(add=(carol,), remove=(bob,))) == both, "a second time changes nothing"
    assert changed(ChangeAcls(remove=(alice, carol))) == ""
    assert known.settings.security_acls == "", "nobody may do anything, and the process's setting counts no more"


def test_a_quota_is_set_beside_others_and_taken_back() -> None:
    known = cluster(security_quotas="bob streams 2; alice streams 3")

    def changed(asked: SetQuota) -> Scalar:
        planned = plan_request(known, asked)
        ((write,),) = (step.writes for step in planned.steps)
        assert planned == Decision(steps=(Step((write,)),))
        assert isinstance(write, ClusterConfigWrite)
        known.apply_settings(write.config)
        return write.config.settings["security.quotas"]

    alice = SetQuota(principal="alice", kind="streams", limit=1)
    assert changed(alice) == changed(alice) == "alice streams 1; bob streams 2"
    everybody = SetQuota(principal="*", kind="request_rate", limit=10)
    assert changed(everybody) == "* request_rate 10; alice streams 1; bob streams 2"
    for quota in (replace(alice, limit=None), replace(alice, principal="bob", limit=None)):
        changed(quota)
    assert changed(replace(everybody, limit=None)) == known.settings.security_quotas == ""


def test_no_more_acls_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worded, "CHARACTERS_MAX", 20)
    fits, goes_beyond = ACLS.each(["al alter topic foo.bar", "bob read topic foo"])
    planned = plan_request(cluster(), ChangeAcls(add=(fits, goes_beyond)))
    assert codes(planned) == (InvalidConfig.code, {})


def test_a_partition_that_moves_asks_for_what_it_came_from() -> None:
    known = cluster(topics={"foo": MOVING}, states={"foo-0": state(1, [1, 2])}, min_insync_replicas=2)
    (step,) = plan_request(known, Configure(settings={"min.insync.replicas": 3})).steps
    assert step.writes == (ClusterConfigWrite(config=ClusterSettings(settings={"min.insync.replicas": 3})),)


STRATEGY, ENABLE, RECOVERY = "unclean.recovery.strategy", "unclean.leader.election.enable", "unclean.recovery.enabled"


@pytest.mark.parametrize(
    ("before", "topics", "asked", "after", "topics_after"),
    [
        # Not flipped: what was asked for, and a setting that is None goes.
        ({RECOVERY: True}, {}, {STRATEGY: "manual"}, {RECOVERY: True, STRATEGY: "manual"}, {}),
        ({STRATEGY: "manual"}, {"foo": {ENABLE: True}}, {STRATEGY: None}, {}, {}),
        # One that an earlier release has stored, though nobody takes it from the cluster.
        ({"request.timeout.ms": 5}, {}, {"request.timeout.ms": None}, {}, {}),
        # Flipped: the other setting says what the one had said, in the cluster and in each topic that sets it.
        (
            {},
            {"foo": {STRATEGY: "proactive"}, "bar": {STRATEGY: "manual"}},
            {RECOVERY: False},
            {RECOVERY: False, ENABLE: False},
            {"foo": {STRATEGY: "proactive", ENABLE: True}, "bar": {STRATEGY: "manual", ENABLE: False}},
        ),
        ({STRATEGY: "proactive"}, {}, {RECOVERY: False}, {STRATEGY: "proactive", RECOVERY: False, ENABLE: True}, {}),
        (
            {RECOVERY: False, ENABLE: True},
            {"foo": {ENABLE: True}, "bar": {ENABLE: False}},
            {RECOVERY: True},
            {RECOVERY: True, ENABLE: True, STRATEGY: "proactive"},
            {"foo": {ENABLE: True, STRATEGY: "proactive"}, "bar": {ENABLE: False, STRATEGY: "balanced"}},
        ),
        ({RECOVERY: False}, {"foo": {STRATEGY: "manual"}}, {RECOVERY: None}, {STRATEGY: "balanced"}, {}),
        # What is asked for at the same time goes before what is converted.
        ({}, {}, {RECOVERY: False, ENABLE: True}, {RECOVERY: False, ENABLE: True}, {}),
    ],
)
def test_a_flip_of_the_policy_converts_its_settings(
    before: dict[str, Scalar],
    topics: dict[str, dict[str, Scalar]],
    asked: dict[str, Scalar | None],
    after: dict[str, Scalar],
    topics_after: dict[str, dict[str, Scalar]],
) -> None:
    known = cluster(configs={name: TopicConfig(settings=settings) for name, settings in topics.items()})
    known.apply_settings(ClusterSettings(settings=before))
    planned = plan_request(known, Configure(settings=asked))
    writes: Group = (
        ClusterConfigWrite(config=ClusterSettings(settings=after)),
        *(TopicConfigWrite(topic=n, config=TopicConfig(settings=s)) for n, s in sorted(topics_after.items())),
    )
    assert planned == Decision(steps=(Step(writes),), then=(Reconsider(("bar", "foo")),))


# What is asked again


@pytest.mark.parametrize(
    ("asked", "names", "again"),
    [
        (
            AddPartitions(counts={"a": 2, "b": 2}, assignments={"c": {1: (1,)}, "d": {1: (1,)}}),
            ["b", "c"],
            AddPartitions(counts={"b": 2}, assignments={"c": {1: (1,)}}),
        ),
        (RemovePartitions(partitions={"a": (1,), "b": (1,)}), ["b"], RemovePartitions(partitions={"b": (1,)})),
        (
            Reassign(targets={"a-0": (1,), "b-0": (1,)}, planned_from={"a-0": PLANNED, "b-0": PLANNED}),
            ["b-0"],
            Reassign(targets={"b-0": (1,)}, planned_from={"b-0": PLANNED}),
        ),
        (CancelReassignment(partitions=("a-0", "b-0")), ["b-0"], CancelReassignment(partitions=("b-0",))),
        (
            ElectLeaders(kind="unclean", partitions=("a-0", "b-0")),
            ["b-0"],
            ElectLeaders(kind="unclean", partitions=("b-0",)),
        ),
        (ElectLeaders(kind="unclean"), ["b-0"], ElectLeaders(kind="unclean")),
        (AcknowledgeLoss(known={"a-0": 1, "b-0": 2}), ["b-0"], AcknowledgeLoss(known={"b-0": 2})),
        (CreateTopic(name="a"), [], CreateTopic(name="a")),
        (DeleteTopic(topic="a"), [], DeleteTopic(topic="a")),
        (Configure(settings={}), [], Configure(settings={})),
        (ChangeAcls(), [], ChangeAcls()),
        (SetQuota(principal="a", kind="streams"), [], SetQuota(principal="a", kind="streams")),
    ],
)
def test_a_request_is_asked_again_for_what_was_not_done(asked: Request, names: list[str], again: Request) -> None:
    assert narrowed(asked, names) == again


def test_what_a_reassignment_moves_is_what_can_be_a_partition() -> None:
    assert moving(Reassign(targets={"foo-0": (1,), "x": (1,), "-1": (1,), "bar-0": ()})) == {FOO, BAR}


def test_a_topic_without_room_for_another_partition_says_so() -> None:
    planned = plan_request(cluster(), AddPartitions(counts={"foo": 2}))
    assert codes(planned) == (None, {"foo": InvalidPartitions.code})
