"""How much a caller may take, and for how long it is to wait then."""

from __future__ import annotations

import logging
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_replication.errors import Overloaded
from spark_replication.messages.quotas import Rate
from spark_replication.transport.proofs.caller import ANYBODY, Caller
from spark_replication.transport.security import quotas
from spark_replication.transport.security.quotas import LOOK_MS, TOLD_AGAIN_MS, Quotas, Wait

ALICE, BOB = (Caller(name, is_of_cluster=False) for name in ("alice", "bob"))
BROKER = Caller("alice", is_of_cluster=True)
SENDS: Rate = "producer_byte_rate"


class Kept:
    """Quotas at a time that the test says."""

    def __init__(self, text: str = f"alice {SENDS} 1000", *, are_known: bool = True) -> None:
        self.text = text
        self.now_ms = 5_000
        self.quotas = Quotas(lambda: self.text, are_known=are_known, now_ms=lambda: self.now_ms)
        self.alice, self.bob = self.quotas.of(ALICE), self.quotas.of(BOB)

    def waits_ms(self) -> int:
        wait = self.alice.wait(SENDS)
        return 0 if wait is None else wait.ms


def test_a_seconds_worth_is_there_and_what_is_more_is_waited_for() -> None:
    kept = Kept()
    kept.alice.take(SENDS, 1_000)
    assert kept.waits_ms() == 0
    kept.alice.take(SENDS, 250)
    assert kept.alice.wait(SENDS) == Wait(250, SENDS, 1_000)
    kept.now_ms += 249
    assert kept.waits_ms() == 1
    kept.now_ms += 1
    assert kept.waits_ms() == 0
    kept.now_ms += 100_000
    kept.alice.take(SENDS, 1_001)
    assert kept.waits_ms() == 1, "nothing is saved up beyond a second's worth"


def test_each_kind_and_each_principal_by_itself_and_all_connections_of_one_together() -> None:
    kept = Kept(f"* {SENDS} 1000; * request_rate 10")
    for share in (kept.alice, kept.quotas.of(ALICE)):
        share.take(SENDS, 750)
    assert kept.quotas.of(ALICE).wait(SENDS) == Wait(500, SENDS, 1_000)
    assert kept.bob.wait(SENDS, "request_rate") is None
    assert kept.alice.wait("consumer_byte_rate", "request_rate") is None
    kept.alice.take("request_rate", 18)
    assert kept.alice.wait(SENDS, "request_rate") == Wait(800, "request_rate", 10), "the longer of the two"


def test_without_a_quota_for_brokers_and_where_nobody_is_known_nobody_waits() -> None:
    everybody = f"* {SENDS} 1; * request_rate 1; * streams 1"
    for kept, who in ((Kept(""), ALICE), (Kept(everybody), BROKER), (Kept(everybody, are_known=False), ANYBODY)):
        share = kept.quotas.of(who)
        share.take(SENDS, 1 << 40)
        assert share.wait(SENDS) is None
        assert share.at_most(SENDS, 1 << 20) == 1 << 20
        for _ in range(100):
            share.request()
        with share.stream(), share.stream():
            pass
        assert kept.quotas.throttled_s() == {}


def test_who_waits_looks_again_before_long_so_that_a_quota_that_is_lifted_helps_it() -> None:
    kept = Kept()
    kept.alice.take(SENDS, 1_000_000)
    assert kept.waits_ms() == LOOK_MS
    kept.text = f"alice {SENDS} 10000000"
    assert kept.waits_ms() == 100
    kept.text = ""
    assert kept.waits_ms() == 0
    kept.text = f"alice {SENDS} 1000"
    assert kept.waits_ms() == LOOK_MS, "what it owes is not forgotten"


def test_requests_by_themselves_are_refused_and_say_when_to_retry() -> None:
    kept = Kept("alice request_rate 2")
    for _ in range(3):
        kept.alice.request()
    with pytest.raises(
        Overloaded, match=r"client alice makes more than 2 requests a second here \(quota request_rate\): retry in 500 "
    ):
        kept.alice.request()
    kept.now_ms += 499
    with pytest.raises(Overloaded, match="retry in 1 ms"):
        kept.alice.request()
    kept.now_ms += 1
    kept.alice.request()


def test_so_many_streams_are_open_at_a_time() -> None:
    kept = Kept("alice streams 2")
    with kept.alice.stream(), kept.quotas.of(ALICE).stream():
        with (
            pytest.raises(Overloaded, match="client alice has 2 streams open here, as many as it may"),
            kept.alice.stream(),
        ):
            pass
        with kept.bob.stream():
            pass
    with kept.alice.stream():
        pass
    assert not kept.quotas._streams


def test_a_question_takes_no_more_than_a_seconds_worth() -> None:
    kept = Kept("alice consumer_byte_rate 1000")
    assert kept.alice.at_most("consumer_byte_rate", 5_000) == 1_000
    assert kept.alice.at_most("consumer_byte_rate", 500) == 500
    assert kept.bob.at_most("consumer_byte_rate", 5_000) == 5_000


def test_the_log_says_who_waits_and_not_again_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept()
    for _ in range(5):
        kept.alice.take(SENDS, 10_000)
        kept.waits_ms()
    told = ["client alice waits: it takes more than producer_byte_rate=1000"]
    assert caplog.messages == told
    assert kept.quotas.throttled_s() == {(SENDS,): 5.0}
    kept.now_ms += TOLD_AGAIN_MS
    kept.alice.take(SENDS, 100_000)
    kept.waits_ms()
    assert caplog.messages == told * 2
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_accounts_are_kept_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "ACCOUNTS_MAX", 3)
    kept = Kept(f"* {SENDS} 1000")
    for number in range(10):
        kept.quotas.of(Caller(f"p{number}", is_of_cluster=False)).take(SENDS, 5_000)
        kept.alice.take(SENDS, 5_000)
        assert len(kept.quotas._accounts) <= 3
    assert kept.waits_ms() == LOOK_MS, "those who are there stay"


def test_quotas_that_cannot_be_read_limit_nobody_and_are_told(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept("alice may send much")
    kept.alice.take(SENDS, 1 << 40)
    assert kept.waits_ms() == 0
    assert "no quota is kept here: 'alice may send much' is no quota" in caplog.messages[0]
    assert len(caplog.messages) == 1, "once"


def test_a_thread_waits_until_it_may_go_on_or_nobody_wants_it() -> None:
    kept = Kept()
    kept.alice.take(SENDS, 1_500)
    waited: list[float] = []

    class Passes(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waited.append(timeout)
            kept.now_ms += int(timeout * 1000)
            return self.is_set()

    kept.alice.pause(SENDS, until=Passes(), unwanted=lambda: False)
    assert waited == [0.5]
    kept.alice.take(SENDS, 10_000)
    kept.alice.pause(SENDS, until=Passes(), unwanted=lambda: len(waited) == 3)
    assert waited == [0.5, 1.0, 1.0]
    ended = Passes()
    ended.set()
    kept.alice.pause(SENDS, until=ended, unwanted=lambda: False)
    assert waited == [0.5, 1.0, 1.0, 1.0]


@given(
    st.integers(1, 10_000),
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 50_000)), max_size=40),
)
def test_whoever_waits_as_told_takes_its_quota_and_no_more_than_one_piece_beyond(
    limit: int, pieces: list[tuple[int, int]]
) -> None:
    """pieces: each comes so many ms after the one before, or when it may, and has so many bytes."""
    kept = Kept(f"alice {SENDS} {limit}")
    began_ms, taken = kept.now_ms, 0
    for after_ms, size in pieces:
        kept.now_ms += after_ms
        while waits_ms := kept.waits_ms():
            kept.now_ms += waits_ms
        assert taken <= limit * (1 + (kept.now_ms - began_ms) / 1000) + 1e-6 * taken
        kept.alice.take(SENDS, size)
        taken += size
