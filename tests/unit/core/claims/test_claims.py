"""A row of each claim's table, and what its attempts come to."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from spark_replication.core.claims.campaigning import CONTROLLER, EPOCH, Campaigning, Won
from spark_replication.core.claims.claim import (
    RACES_MAX,
    Attempts,
    Check,
    Claim,
    Kind,
    Nodes,
    Place,
    Put,
    Refused,
    Remove,
    Seen,
    Send,
    Settled,
)
from spark_replication.core.claims.marking import Marking
from spark_replication.core.claims.numbering import SENDS_MAX, SEQUENCE, Numbering
from spark_replication.core.claims.registering import Registered, Registering
from spark_replication.errors import CorruptState, DirectoryInUse, RequestTimedOut, StaleBrokerEpoch
from spark_replication.model import (
    BrokerEpoch,
    BrokerSequence,
    ControllerEpoch,
    ControllerInfo,
    HeldDirectory,
    Registration,
)

GARBAGE = CorruptState("garbage")

BROKER_EPOCH, REGISTRATION = Place(Kind.BROKER_EPOCH, 1), Place(Kind.REGISTRATION, 1)
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
REGISTERED_NEXT = (Put(BROKER_EPOCH, NEXT, 4), Put(REGISTRATION, SENT.registration))
REPLACED = (Put(BROKER_EPOCH, NEXT, 4), Remove(REGISTRATION, 1), Put(REGISTRATION, SENT.registration))


def registering(epoch: Seen[Any] | None, registration: Seen[Any] | None, sent: Registered | None = None) -> Any:
    return Registering(1, WANTED).decide({BROKER_EPOCH: epoch, REGISTRATION: registration}, sent)


@pytest.mark.parametrize(
    ("epoch", "registration", "operations"),
    [
        (None, None, (Put(BROKER_EPOCH, FIRST), Put(REGISTRATION, WANTED))),
        (Seen(KNOWN, 4), None, REGISTERED_NEXT),
        (Seen(KNOWN, 4), Seen(EARLIER, 1), REPLACED),
        (Seen(KNOWN, 4), Seen(replace(EARLIER, boot_id="another"), 1, is_mine=True), REPLACED),
        (Seen(KNOWN, 4), Seen(GARBAGE, 1, is_mine=True), REPLACED),
    ],
)
def test_a_registration_is_sent(
    epoch: Seen[Any] | None, registration: Seen[Any] | None, operations: tuple[Any, ...]
) -> None:
    claimed = Registered(operations[-1].value, operations[0].value)
    assert registering(epoch, registration) == Send(operations, claimed)


def test_a_registration_whose_answer_alone_was_lost_is_settled() -> None:
    assert registering(Seen(NEXT, 5), Seen(SENT.registration, 0, is_mine=True), SENT) == Settled(SENT)


@pytest.mark.parametrize(
    ("epoch", "registration"),
    [
        (Seen(KNOWN, 4), None),  # nothing of it
        (Seen(NEXT, 5), None),  # removed since
        (Seen(NEXT, 6), Seen(SENT.registration, 0, is_mine=True)),  # its epoch is over
        (Seen(replace(NEXT, incarnation="third"), 5), Seen(SENT.registration, 0, is_mine=True)),
        (Seen(NEXT, 5), Seen(SENT.registration, 0)),  # of a session that is not this one
        (Seen(NEXT, 5), Seen(replace(SENT.registration, port=9), 0, is_mine=True)),
        (None, Seen(SENT.registration, 0, is_mine=True)),
    ],
)
def test_a_registration_that_does_not_show_is_sent_again(
    epoch: Seen[Any] | None, registration: Seen[Any] | None
) -> None:
    again = registering(epoch, registration, SENT)
    assert isinstance(again, Send)
    assert again.claimed.epoch.epoch == (0 if epoch is None else epoch.version + 1)


@pytest.mark.parametrize(
    ("epoch", "registration", "error"),
    [
        (Seen(GARBAGE, 4), None, CorruptState),
        (Seen(KNOWN, 4), Seen(GARBAGE, 1), CorruptState),
        (Seen(KNOWN, 4), Seen(replace(EARLIER, boot_id="another"), 1), DirectoryInUse),
        (Seen(KNOWN, 4), Seen(replace(EARLIER, directory_mark="copy"), 1), DirectoryInUse),
    ],
)
def test_a_registration_is_refused(
    epoch: Seen[Any] | None, registration: Seen[Any] | None, error: type[Exception]
) -> None:
    refused = registering(epoch, registration)
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, error)


@pytest.mark.parametrize(("version", "clean_since"), [(7, 2), (1, 1)])
def test_the_version_of_an_epoch_that_was_written_by_hand_counts(version: int, clean_since: int) -> None:
    wanted = replace(WANTED, continues=version)
    sent = Registering(1, wanted).decide({BROKER_EPOCH: Seen(KNOWN, version), REGISTRATION: None}, None)
    assert isinstance(sent, Send)
    assert sent.claimed.epoch == BrokerEpoch(epoch=version + 1, incarnation="second", clean_since=clean_since)


HELD = HeldDirectory(boot_id="boot", directory_mark="mark")
CANDIDATE = ControllerInfo(id="b", host="here", port=1, epoch=0, held=HELD)
ANOTHER = ControllerInfo(id="a", host="there", port=1, epoch=3)
WON = Won(replace(CANDIDATE, epoch=4), 8)
RAISED = (Put(CONTROLLER, WON.info), Put(EPOCH, ControllerEpoch(epoch=4), 7))
AT_3 = Seen(ControllerEpoch(epoch=3), 7)
AT_4 = Seen(ControllerEpoch(epoch=4), 8)


def campaigning(
    epoch: Seen[Any] | None, controller: Seen[Any] | None, sent: Won | None = None, held: HeldDirectory | None = HELD
) -> Any:
    return Campaigning(replace(CANDIDATE, held=held)).decide({EPOCH: epoch, CONTROLLER: controller}, sent)


def test_the_first_controller_makes_the_epoch() -> None:
    info = replace(CANDIDATE, epoch=1)
    operations = (Put(CONTROLLER, info), Put(EPOCH, ControllerEpoch(epoch=1)))
    assert campaigning(None, None) == Send(operations, Won(info, 0))


@pytest.mark.parametrize(
    ("controller", "removed"),
    [
        (None, ()),
        (Seen(replace(ANOTHER, held=HELD), 2), (Remove(CONTROLLER, 2),)),
        (Seen(replace(CANDIDATE, epoch=2, held=None), 0, is_mine=True), (Remove(CONTROLLER, 0),)),
    ],
)
def test_the_next_controller_raises_the_epoch(controller: Seen[Any] | None, removed: tuple[Any, ...]) -> None:
    assert campaigning(AT_3, controller) == Send((*removed, *RAISED), WON)


@pytest.mark.parametrize("epoch", [AT_3, AT_4])  # read before the write had landed, and after
def test_a_campaign_whose_answer_alone_was_lost_is_won(epoch: Seen[Any]) -> None:
    assert campaigning(epoch, Seen(WON.info, 0, is_mine=True), WON) == Settled(WON)


def test_a_campaign_that_does_not_show_is_sent_again() -> None:
    assert campaigning(AT_3, None, WON) == Send(RAISED, WON)


@pytest.mark.parametrize("held", [HELD, None])
@pytest.mark.parametrize(
    "controller",
    [
        Seen(ANOTHER, 0),
        Seen(replace(ANOTHER, held=replace(HELD, directory_mark="copy")), 0),
        Seen(replace(ANOTHER, held=replace(HELD, boot_id="another")), 0),
        Seen(GARBAGE, 0),
    ],
)
def test_another_commands(controller: Seen[Any], held: HeldDirectory | None) -> None:
    for sent in (None, WON):
        assert campaigning(AT_4, controller, sent, held) == Settled(None)


def test_who_holds_no_directory_has_no_predecessor() -> None:
    assert campaigning(AT_3, Seen(replace(ANOTHER, held=HELD), 0), held=None) == Settled(None)


def test_an_own_node_is_another_session_s_too_if_that_has_made_it() -> None:
    assert campaigning(AT_4, Seen(replace(WON.info, held=None), 0), WON) == Settled(None)


def test_a_campaign_without_a_readable_epoch_is_refused() -> None:
    assert campaigning(Seen(GARBAGE, 7), None) == Refused(GARBAGE)


MINE = SENT.registration
MARKED = replace(MINE, shutting_down=True)


def marking(epoch: Seen[Any] | None, registration: Seen[Any] | None, sent: Registration | None = None) -> Any:
    return Marking(1, MINE).decide({BROKER_EPOCH: epoch, REGISTRATION: registration}, sent)


def test_a_mark_is_sent() -> None:
    operations = (Check(BROKER_EPOCH, 5), Put(REGISTRATION, MARKED, 0))
    assert marking(Seen(NEXT, 5), Seen(MINE, 0, is_mine=True)) == Send(operations, MARKED)


@pytest.mark.parametrize("sent", [None, MARKED])
def test_a_mark_that_is_there_is_settled(sent: Registration | None) -> None:
    assert marking(Seen(NEXT, 5), Seen(MARKED, 1, is_mine=True), sent) == Settled(MARKED)


@pytest.mark.parametrize(
    ("epoch", "registration"),
    [
        (Seen(NEXT, 5), None),
        (Seen(NEXT, 6), Seen(MINE, 0)),
        (None, Seen(MINE, 0)),
        (Seen(NEXT, 5), Seen(replace(MINE, epoch=6), 0)),
        (Seen(NEXT, 5), Seen(GARBAGE, 1)),
    ],
)
def test_a_registration_that_is_over_is_not_marked(epoch: Seen[Any] | None, registration: Seen[Any] | None) -> None:
    refused = marking(epoch, registration)
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, StaleBrokerEpoch)


@pytest.mark.parametrize("sent", [None, 1])
def test_an_id_whose_answer_was_lost_is_not_used(sent: int | None) -> None:
    decide = Numbering().decide
    assert decide({SEQUENCE: None}, None) == Send((Put(SEQUENCE, BrokerSequence(next=2)),), 1)
    found = decide({SEQUENCE: Seen(BrokerSequence(next=2), 0)}, sent)
    assert found == Send((Put(SEQUENCE, BrokerSequence(next=3), 0),), 2)
    assert decide({SEQUENCE: Seen(GARBAGE, 0)}, sent) == Refused(GARBAGE)


@pytest.mark.parametrize(
    ("claim", "nodes", "sends_max"),
    [
        (Registering(1, WANTED), {BROKER_EPOCH: None, REGISTRATION: None}, RACES_MAX),
        (Campaigning(CANDIDATE), {EPOCH: None, CONTROLLER: None}, RACES_MAX),
        (Marking(1, MINE), {BROKER_EPOCH: Seen(NEXT, 5), REGISTRATION: Seen(MINE, 0)}, RACES_MAX),
        (Numbering(), {SEQUENCE: None}, SENDS_MAX),
    ],
)
def test_attempts_end(claim: Claim[Any], nodes: Nodes, sends_max: int) -> None:
    assert set(claim.reads) == set(nodes)
    attempts = Attempts(claim)
    for _ in range(sends_max):
        assert isinstance(attempts.after_reading(nodes), Send)
    last = attempts.after_reading(nodes)
    assert isinstance(last, Refused)
    assert isinstance(last.error, RequestTimedOut)
    assert f"{sends_max} times" in str(last.error)


def test_the_last_answer_may_be_lost_too() -> None:
    attempts = Attempts(Registering(1, WANTED))
    for _ in range(RACES_MAX):
        attempts.after_reading({BROKER_EPOCH: Seen(KNOWN, 4), REGISTRATION: None})
    shown: Nodes = {BROKER_EPOCH: Seen(NEXT, 5), REGISTRATION: Seen(MINE, 0, is_mine=True)}
    assert attempts.after_reading(shown) == Settled(SENT)
