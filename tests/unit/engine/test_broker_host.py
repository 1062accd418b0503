"""Each row of a broker's life; what no row has changes nothing."""

from __future__ import annotations

import itertools

import pytest

from spark_replication.config import settings_from
from spark_replication.engine.broker.broker_host import (
    REST_MS,
    REST_MS_MAX,
    BrokerHost,
    Closed,
    Compared,
    DirectoryLookedAt,
    Do,
    Event,
    HasRegistered,
    LogsRecovered,
    RegistrationGone,
    StepDone,
    StepFailed,
    StopAsked,
)
from spark_replication.errors import InvalidConfig, NotReady

EPOCH = 7
PROOF = 4
TIMEOUT_MS = 1_000
MAY_SUCCEED, WILL_NOT = StepFailed(NotReady("not yet")), StepFailed(InvalidConfig("never"))
STOP, STOP_WITH_ALL = StopAsked("somebody asked"), StopAsked("the cluster stops", with_all=True)
REGISTERED = HasRegistered(EPOCH, 0)


def looked(
    now_ms: int = 0, *, waits: bool = True, has_controller: bool = True, is_connected: bool = True
) -> DirectoryLookedAt:
    return DirectoryLookedAt(waits=waits, has_controller=has_controller, connected=is_connected, now_ms=now_ms)


TO_REGISTER: tuple[Event, ...] = (LogsRecovered(None),)
TO_SERVE: tuple[Event, ...] = (*TO_REGISTER, REGISTERED, StepDone(), StepDone())
TO_LOOK: tuple[Event, ...] = (*TO_SERVE, STOP)
PATHS: dict[Do, tuple[Event, ...]] = {
    Do.RECOVER: (),
    Do.COMPARE: (LogsRecovered(PROOF),),
    Do.DROP_PROOF: (LogsRecovered(PROOF), Compared(is_lost=True)),
    Do.REGISTER: TO_REGISTER,
    Do.RECORD: (*TO_REGISTER, REGISTERED),
    Do.READ: (*TO_REGISTER, REGISTERED, StepDone()),
    Do.SERVE: TO_SERVE,
    Do.RESIGN: (*TO_SERVE, RegistrationGone(EPOCH)),
    Do.REST: (*TO_REGISTER, REGISTERED, MAY_SUCCEED),
    Do.LOOK: TO_LOOK,
    Do.MARK: (*TO_LOOK, looked()),
    Do.PAUSE: (*TO_LOOK, looked(), StepDone(), looked()),
    Do.CLOSE: (*TO_LOOK, looked(has_controller=False)),
    Do.LEAVE: (*TO_LOOK, looked(has_controller=False), Closed(is_flushed=True)),
    Do.END: (*TO_LOOK, looked(has_controller=False), Closed(is_flushed=True), StepDone()),
    Do.FAIL: (WILL_NOT,),
}
EVENTS: tuple[Event, ...] = (
    StepDone(),
    LogsRecovered(PROOF),
    LogsRecovered(None),
    Compared(is_lost=True),
    Compared(is_lost=False),
    REGISTERED,
    looked(),
    Closed(is_flushed=True),
    MAY_SUCCEED,
    WILL_NOT,
    RegistrationGone(EPOCH),
    RegistrationGone(EPOCH - 1),
    STOP,
    STOP_WITH_ALL,
)
STARTING = (Do.RECOVER, Do.COMPARE, Do.DROP_PROOF, Do.REGISTER, Do.RECORD, Do.READ, Do.RESIGN, Do.REST)
TABLE: dict[tuple[Do, Event], Do] = {
    (Do.RECOVER, LogsRecovered(PROOF)): Do.COMPARE,
    (Do.RECOVER, LogsRecovered(None)): Do.REGISTER,
    (Do.COMPARE, Compared(is_lost=True)): Do.DROP_PROOF,
    (Do.COMPARE, Compared(is_lost=False)): Do.REGISTER,
    (Do.DROP_PROOF, StepDone()): Do.REGISTER,
    (Do.REGISTER, REGISTERED): Do.RECORD,
    (Do.RECORD, StepDone()): Do.READ,
    (Do.READ, StepDone()): Do.SERVE,
    (Do.RESIGN, StepDone()): Do.REGISTER,
    (Do.REST, StepDone()): Do.REGISTER,
    (Do.LOOK, looked()): Do.MARK,
    (Do.MARK, StepDone()): Do.LOOK,
    (Do.PAUSE, StepDone()): Do.LOOK,
    (Do.CLOSE, Closed(is_flushed=True)): Do.LEAVE,
    (Do.LEAVE, StepDone()): Do.END,
    **{(doing, RegistrationGone(EPOCH)): Do.RESIGN for doing in (Do.RECORD, Do.READ, Do.SERVE)},
    **{(doing, RegistrationGone(EPOCH)): Do.CLOSE for doing in (Do.LOOK, Do.MARK, Do.PAUSE)},
    (Do.SERVE, STOP): Do.LOOK,
    **{(doing, stop): Do.CLOSE for doing in STARTING for stop in (STOP, STOP_WITH_ALL)},
    **{(doing, STOP_WITH_ALL): Do.CLOSE for doing in (Do.SERVE, Do.LOOK, Do.MARK, Do.PAUSE)},
    **{(doing, failed): Do.FAIL for doing in Do for failed in (MAY_SUCCEED, WILL_NOT)},
    **{(doing, MAY_SUCCEED): Do.REST for doing in (Do.RECORD, Do.READ)},
    **{(Do.MARK, failed): Do.CLOSE for failed in (MAY_SUCCEED, WILL_NOT)},
}


def host_after(*events: Event) -> BrokerHost:
    host = BrokerHost(settings_from({"controlled.shutdown.timeout.ms": TIMEOUT_MS}))
    for event in events:
        assert host.after(event), event
    return host


def host_at(doing: Do) -> BrokerHost:
    host = host_after(*PATHS[doing])
    assert host.doing is doing
    return host


@pytest.mark.parametrize(("doing", "event"), list(itertools.product(Do, EVENTS)))
def test_what_follows_from_an_event(doing: Do, event: Event) -> None:
    host, expected = host_at(doing), TABLE.get((doing, event))
    before = host.steps
    assert host.after(event) is (expected is not None)
    assert (host.doing, host.steps) == (expected or doing, before + (expected is not None))


def test_it_continues_what_its_directory_proves() -> None:
    assert host_after(LogsRecovered(PROOF), Compared(is_lost=False)).continues == PROOF
    assert host_after(LogsRecovered(None)).continues is None


def test_a_log_that_has_lost_something_continues_nothing() -> None:
    assert host_after(LogsRecovered(PROOF), Compared(is_lost=True), StepDone()).continues is None


def test_once_registered_it_continues_its_own_epoch_whatever_was_proven_before() -> None:
    host = host_after(
        LogsRecovered(PROOF),
        Compared(is_lost=False),
        REGISTERED,
        StepDone(),
        StepDone(),
        RegistrationGone(EPOCH),
        StepDone(),
    )
    assert (host.doing, host.continues) == (Do.REGISTER, EPOCH)
    host.after(HasRegistered(EPOCH + 2, 0))
    assert (host.epoch, host.continues) == (EPOCH + 2, EPOCH + 2)


def test_a_registration_that_fails_again_is_tried_and_never_given_up() -> None:
    host = host_at(Do.RESIGN)
    host.after(StepDone())
    rests = []
    for _ in range(8):
        host.after(MAY_SUCCEED)
        assert (host.doing, host.error) == (Do.REST, MAY_SUCCEED.error)
        rests.append(host.rest_ms)
        host.after(StepDone())
    assert rests == [REST_MS, 200, 400, 800, 1_600, REST_MS_MAX, REST_MS_MAX, REST_MS_MAX]
    for event in (HasRegistered(9, 0), StepDone(), StepDone(), RegistrationGone(9), StepDone(), MAY_SUCCEED):
        host.after(event)
    assert host.rest_ms == REST_MS, "it has served meanwhile"


def test_one_that_cannot_succeed_ends_it() -> None:
    host = host_at(Do.RESIGN)
    host.after(StepDone())
    host.after(WILL_NOT)
    assert (host.doing, host.error) == (Do.FAIL, WILL_NOT.error)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (looked(), Do.PAUSE),
        (looked(is_connected=False), Do.PAUSE),
        (looked(waits=False), Do.CLOSE),
        (looked(has_controller=False), Do.CLOSE),
        (looked(TIMEOUT_MS - 1), Do.PAUSE),
        (looked(TIMEOUT_MS), Do.CLOSE),
    ],
)
def test_once_marked_it_waits_for_others_to_lead_as_long_as_there_is_time(
    found: DirectoryLookedAt, expected: Do
) -> None:
    host = host_after(*TO_LOOK, looked(), StepDone())
    host.after(found)
    assert host.doing is expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (looked(waits=False), Do.MARK),  # nobody is to let it into an ISR meanwhile
        (looked(is_connected=False), Do.CLOSE),
        (looked(has_controller=False), Do.CLOSE),
    ],
)
def test_before_that_it_is_marked_if_somebody_may_hear_of_it(found: DirectoryLookedAt, expected: Do) -> None:
    host = host_at(Do.LOOK)
    host.after(found)
    assert host.doing is expected


def test_the_proof_that_it_leaves_is_its_own_epoch_if_all_is_flushed() -> None:
    for is_flushed, proof in ((True, EPOCH), (False, None)):
        host = host_at(Do.CLOSE)
        host.after(Closed(is_flushed=is_flushed))
        assert (host.doing, host.proof) == (Do.LEAVE, proof)


def test_who_never_registered_leaves_no_proof() -> None:
    host = host_after(LogsRecovered(PROOF), STOP, Closed(is_flushed=True))
    assert (host.doing, host.proof) == (Do.LEAVE, None)
