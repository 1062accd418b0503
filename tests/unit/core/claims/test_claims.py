"""A row of each claim's table, and what its attempts come to."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from spark_replication.core.claims.campaigning import CONTROLLER, EPOCH, Campaigning, Won
from spark_replication.core.claims.claim import (
    RACES_MAX,
    Attempts,
    Claim,
    ClaimRefused,
    ClaimSend,
    ClaimSettled,
    Kind,
    NodeAsRead,
    NodeCheck,
    NodePlace,
    Nodes,
    NodeWrite,
    Remove,
)
from spark_replication.core.claims.marking import Marking
from spark_replication.core.claims.numbering import SENDS_MAX, SEQUENCE, Numbering
from spark_replication.core.claims.registering import Registered, Registering
from spark_replication.errors import CorruptState, DirectoryInUse, RequestTimedOut, StaleBrokerEpoch, StaleLease
from spark_replication.model import (
    BrokerEpoch,
    BrokerSequence,
    ControllerEpoch,
    ControllerInfo,
    HeldDirectory,
    Registration,
)

GARBAGE = CorruptState("garbage")

BROKER_EPOCH, REGISTRATION = NodePlace(Kind.BROKER_EPOCH, 1), NodePlace(Kind.REGISTRATION, 1)
WANTED = Registration(
    host="here",
    port=1,
    replication_port=2,
    epoch=0,
    incarnation="second",
    continues=4,
    boot_id="boot",
    directory_mark="mark",
)
EARLIER = replace(WANTED, epoch=4, incarnation="first", continues=None)
KNOWN = BrokerEpoch(epoch=4, incarnation="first", clean_since=2)
NEXT = BrokerEpoch(epoch=5, incarnation="second", clean_since=2)
FIRST = BrokerEpoch(epoch=0, incarnation="second", clean_since=0)
SENT = Registered(replace(WANTED, epoch=5), NEXT)
REGISTERED_NEXT = (NodeWrite(BROKER_EPOCH, NEXT, 4), NodeWrite(REGISTRATION, SENT.registration))
REPLACED = (NodeWrite(BROKER_EPOCH, NEXT, 4), Remove(REGISTRATION, 1), NodeWrite(REGISTRATION, SENT.registration))


def registering(
    epoch: NodeAsRead[Any] | None, registration: NodeAsRead[Any] | None, sent: Registered | None = None
) -> Any:
    return Registering(1, WANTED).decide({BROKER_EPOCH: epoch, REGISTRATION: registration}, sent)


@pytest.mark.parametrize(
    ("epoch", "registration", "operations"),
    [
        (None, None, (NodeWrite(BROKER_EPOCH, FIRST), NodeWrite(REGISTRATION, WANTED))),
        (NodeAsRead(KNOWN, 4), None, REGISTERED_NEXT),
        (NodeAsRead(KNOWN, 4), NodeAsRead(EARLIER, 1), REPLACED),
        (NodeAsRead(KNOWN, 4), NodeAsRead(replace(EARLIER, boot_id="another"), 1, is_mine=True), REPLACED),
        (NodeAsRead(KNOWN, 4), NodeAsRead(GARBAGE, 1, is_mine=True), REPLACED),
    ],
)
def test_a_registration_is_sent(
    epoch: NodeAsRead[Any] | None, registration: NodeAsRead[Any] | None, operations: tuple[Any, ...]
) -> None:
    claimed = Registered(operations[-1].value, operations[0].value)
    assert registering(epoch, registration) == ClaimSend(operations, claimed)


def test_a_registration_whose_answer_alone_was_lost_is_settled() -> None:
    assert registering(NodeAsRead(NEXT, 5), NodeAsRead(SENT.registration, 0, is_mine=True), SENT) == ClaimSettled(SENT)


@pytest.mark.parametrize(
    ("epoch", "registration"),
    [
        (NodeAsRead(KNOWN, 4), None),  # nothing of it
        (NodeAsRead(NEXT, 5), None),  # removed since
        (NodeAsRead(NEXT, 6), NodeAsRead(SENT.registration, 0, is_mine=True)),  # its epoch is over
        (NodeAsRead(replace(NEXT, incarnation="third"), 5), NodeAsRead(SENT.registration, 0, is_mine=True)),
        (NodeAsRead(NEXT, 5), NodeAsRead(SENT.registration, 0)),  # of a session that is not this one
        (NodeAsRead(NEXT, 5), NodeAsRead(replace(SENT.registration, port=9), 0, is_mine=True)),
        (None, NodeAsRead(SENT.registration, 0, is_mine=True)),
    ],
)
def test_a_registration_that_does_not_show_is_sent_again(
    epoch: NodeAsRead[Any] | None, registration: NodeAsRead[Any] | None
) -> None:
    again = registering(epoch, registration, SENT)
    assert isinstance(again, ClaimSend)
    assert again.claimed.epoch.epoch == (0 if epoch is None else epoch.version + 1)


@pytest.mark.parametrize(
    ("epoch", "registration", "error"),
    [
        (NodeAsRead(GARBAGE, 4), None, CorruptState),
        (NodeAsRead(KNOWN, 4), NodeAsRead(GARBAGE, 1), CorruptState),
        (NodeAsRead(KNOWN, 4), NodeAsRead(replace(EARLIER, boot_id="another"), 1), DirectoryInUse),
        (NodeAsRead(KNOWN, 4), NodeAsRead(replace(EARLIER, directory_mark="copy"), 1), DirectoryInUse),
    ],
)
def test_a_registration_is_refused(
    epoch: NodeAsRead[Any] | None, registration: NodeAsRead[Any] | None, error: type[Exception]
) -> None:
    refused = registering(epoch, registration)
    assert isinstance(refused, ClaimRefused)
    assert isinstance(refused.error, error)


@pytest.mark.parametrize(("version", "clean_since"), [(7, 2), (1, 1)])
def test_the_version_of_an_epoch_that_was_written_by_hand_counts(version: int, clean_since: int) -> None:
    wanted = replace(WANTED, continues=version)
    sent = Registering(1, wanted).decide({BROKER_EPOCH: NodeAsRead(KNOWN, version), REGISTRATION: None}, None)
    assert isinstance(sent, ClaimSend)
    assert sent.claimed.epoch == BrokerEpoch(epoch=version + 1, incarnation="second", clean_since=clean_since)


HELD = HeldDirectory(boot_id="boot", directory_mark="mark")
CANDIDATE = ControllerInfo(id="b", host="here", port=1, epoch=0, held=HELD)
ANOTHER = ControllerInfo(id="a", host="there", port=1, epoch=3)
WON = Won(replace(CANDIDATE, epoch=4), 8)
RAISED = (NodeWrite(CONTROLLER, WON.info), NodeWrite(EPOCH, ControllerEpoch(epoch=4), 7))
AT_3 = NodeAsRead(ControllerEpoch(epoch=3), 7)
AT_4 = NodeAsRead(ControllerEpoch(epoch=4), 8)


def campaigning(
    epoch: NodeAsRead[Any] | None,
    controller: NodeAsRead[Any] | None,
    sent: Won | None = None,
    held: HeldDirectory | None = HELD,
) -> Any:
    return Campaigning(replace(CANDIDATE, held=held)).decide({EPOCH: epoch, CONTROLLER: controller}, sent)


def test_the_first_controller_makes_the_epoch() -> None:
    info = replace(CANDIDATE, epoch=1)
    operations = (NodeWrite(CONTROLLER, info), NodeWrite(EPOCH, ControllerEpoch(epoch=1)))
    assert campaigning(None, None) == ClaimSend(operations, Won(info, 0))


@pytest.mark.parametrize(
    ("controller", "removed"),
    [
        (None, ()),
        (NodeAsRead(replace(ANOTHER, held=HELD), 2), (Remove(CONTROLLER, 2),)),
        (NodeAsRead(replace(CANDIDATE, epoch=2, held=None), 0, is_mine=True), (Remove(CONTROLLER, 0),)),
    ],
)
def test_the_next_controller_raises_the_epoch(controller: NodeAsRead[Any] | None, removed: tuple[Any, ...]) -> None:
    assert campaigning(AT_3, controller) == ClaimSend((*removed, *RAISED), WON)


@pytest.mark.parametrize("epoch", [AT_3, AT_4])  # read before the write had landed, and after
def test_a_campaign_whose_answer_alone_was_lost_is_won(epoch: NodeAsRead[Any]) -> None:
    assert campaigning(epoch, NodeAsRead(WON.info, 0, is_mine=True), WON) == ClaimSettled(WON)


def test_a_campaign_that_does_not_show_is_sent_again() -> None:
    assert campaigning(AT_3, None, WON) == ClaimSend(RAISED, WON)


@pytest.mark.parametrize("held", [HELD, None])
@pytest.mark.parametrize(
    "controller",
    [
        NodeAsRead(ANOTHER, 0),
        NodeAsRead(replace(ANOTHER, held=replace(HELD, directory_mark="copy")), 0),
        NodeAsRead(replace(ANOTHER, held=replace(HELD, boot_id="another")), 0),
        NodeAsRead(GARBAGE, 0),
    ],
)
def test_another_commands(controller: NodeAsRead[Any], held: HeldDirectory | None) -> None:
    for sent in (None, WON):
        assert campaigning(AT_4, controller, sent, held) == ClaimSettled(None)


def test_who_holds_no_directory_has_no_predecessor() -> None:
    assert campaigning(AT_3, NodeAsRead(replace(ANOTHER, held=HELD), 0), held=None) == ClaimSettled(None)


def test_an_own_node_is_another_session_s_too_if_that_has_made_it() -> None:
    assert campaigning(AT_4, NodeAsRead(replace(WON.info, held=None), 0), WON) == ClaimSettled(None)


def test_a_campaign_without_a_readable_epoch_is_refused() -> None:
    assert campaigning(NodeAsRead(GARBAGE, 7), None) == ClaimRefused(GARBAGE)


MINE = SENT.registration
MARKED = replace(MINE, shutting_down=True)


def marking(
    epoch: NodeAsRead[Any] | None, registration: NodeAsRead[Any] | None, sent: Registration | None = None
) -> Any:
    return Marking(1, MINE).decide({BROKER_EPOCH: epoch, REGISTRATION: registration}, sent)


def test_a_mark_is_sent() -> None:
    operations = (NodeCheck(BROKER_EPOCH, 5), NodeWrite(REGISTRATION, MARKED, 0))
    assert marking(NodeAsRead(NEXT, 5), NodeAsRead(MINE, 0, is_mine=True)) == ClaimSend(operations, MARKED)


@pytest.mark.parametrize("sent", [None, MARKED])
def test_a_mark_that_is_there_is_settled(sent: Registration | None) -> None:
    assert marking(NodeAsRead(NEXT, 5), NodeAsRead(MARKED, 1, is_mine=True), sent) == ClaimSettled(MARKED)


@pytest.mark.parametrize(
    ("epoch", "registration"),
    [
        (NodeAsRead(NEXT, 5), None),
        (NodeAsRead(NEXT, 6), NodeAsRead(MINE, 0)),
        (None, NodeAsRead(MINE, 0)),
        (NodeAsRead(NEXT, 5), NodeAsRead(replace(MINE, epoch=6), 0)),
        (NodeAsRead(NEXT, 5), NodeAsRead(GARBAGE, 1)),
    ],
)
def test_a_registration_that_is_over_is_not_marked(
    epoch: NodeAsRead[Any] | None, registration: NodeAsRead[Any] | None
) -> None:
    refused = marking(epoch, registration)
    assert isinstance(refused, ClaimRefused)
    assert isinstance(refused.error, StaleBrokerEpoch)


@pytest.mark.parametrize("sent", [None, 1])
def test_an_id_whose_answer_was_lost_is_not_used(sent: int | None) -> None:
    decide = Numbering().decide
    assert decide({SEQUENCE: None}, None) == ClaimSend((NodeWrite(SEQUENCE, BrokerSequence(next=2)),), 1)
    found = decide({SEQUENCE: NodeAsRead(BrokerSequence(next=2), 0)}, sent)
    assert found == ClaimSend((NodeWrite(SEQUENCE, BrokerSequence(next=3), 0),), 2)
    assert decide({SEQUENCE: NodeAsRead(GARBAGE, 0)}, sent) == ClaimRefused(GARBAGE)


def test_for_a_driver_that_commands_no_more_there_is_no_id() -> None:
    """The one that commands may have all brokers that are wanted."""
    claim, sequence = Numbering(controller_epoch=4), NodeAsRead(BrokerSequence(next=2), 7)
    assert claim.reads == (EPOCH, SEQUENCE)

    def decided(commands: NodeAsRead[Any] | None) -> object:
        return claim.decide({EPOCH: commands, SEQUENCE: sequence}, None)

    write = NodeWrite(SEQUENCE, BrokerSequence(next=3), 7)
    assert decided(NodeAsRead(ControllerEpoch(epoch=4), 9)) == ClaimSend((NodeCheck(EPOCH, 9), write), 2)
    assert decided(None) == ClaimSend((write,), 2)
    assert decided(NodeAsRead(GARBAGE, 9)) == ClaimRefused(GARBAGE)
    refused = decided(NodeAsRead(ControllerEpoch(epoch=5), 10))
    assert isinstance(refused, ClaimRefused)
    assert isinstance(refused.error, StaleLease)


@pytest.mark.parametrize(
    ("claim", "nodes", "sends_max"),
    [
        (Registering(1, WANTED), {BROKER_EPOCH: None, REGISTRATION: None}, RACES_MAX),
        (Campaigning(CANDIDATE), {EPOCH: None, CONTROLLER: None}, RACES_MAX),
        (Marking(1, MINE), {BROKER_EPOCH: NodeAsRead(NEXT, 5), REGISTRATION: NodeAsRead(MINE, 0)}, RACES_MAX),
        (Numbering(), {SEQUENCE: None}, SENDS_MAX),
    ],
)
def test_attempts_end(claim: Claim[Any], nodes: Nodes, sends_max: int) -> None:
    assert set(claim.reads) == set(nodes)
    attempts = Attempts(claim)
    for _ in range(sends_max):
        assert isinstance(attempts.after_reading(nodes), ClaimSend)
    last = attempts.after_reading(nodes)
    assert isinstance(last, ClaimRefused)
    assert isinstance(last.error, RequestTimedOut)
    assert f"{sends_max} times" in str(last.error)


def test_the_last_answer_may_be_lost_too() -> None:
    attempts = Attempts(Registering(1, WANTED))
    for _ in range(RACES_MAX):
        attempts.after_reading({BROKER_EPOCH: NodeAsRead(KNOWN, 4), REGISTRATION: None})
    shown: Nodes = {BROKER_EPOCH: NodeAsRead(NEXT, 5), REGISTRATION: NodeAsRead(MINE, 0, is_mine=True)}
    assert attempts.after_reading(shown) == ClaimSettled(SENT)
