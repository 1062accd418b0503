"""Replication over real sockets, between replicas in one process."""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from spark_replication.config import Settings
from spark_replication.engine.ends import fetch_session
from spark_replication.engine.ends.fetch_session import Taken
from spark_replication.engine.ends.slow_disks import SLOW_MS
from spark_replication.engine.replica.partition import Partition
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import InvalidConfig, NotLeader
from spark_replication.messages.frames import Frame
from spark_replication.messages.replication import (
    ALIVE,
    ALIVE_FRAME,
    ErrorFrame,
    FetchedFrame,
    FetchFrame,
    FetchPartition,
    HelloFrame,
)
from spark_replication.model import TopicPartition
from spark_replication.ports import LogSlice
from spark_replication.process import threads
from spark_replication.storage.disk import files
from spark_replication.storage.format.index import ENTRY_BYTES
from spark_replication.storage.log.segment_memory import BATCH_BYTES_MAX
from spark_replication.transport.frames import replication_client, replication_server
from spark_replication.transport.frames.replication import Address, Replication
from spark_replication.transport.security.rights import Rights
from spark_replication.transport.security.security import NO_SECURITY
from spark_replication.transport.sockets import frames
from spark_replication.transport.sockets.frames import SENDFILE_BYTES_MIN, FrameReceiver, encoded, hang_up, send
from spark_replication.transport.sockets.socket_loop import SocketLoop
from tests.unit.client.tcp_proxy import TcpProxy
from tests.unit.storage.storage_stories import prepared
from tests.unit.transport.replicas import CLUSTER, TIMEOUT_S, Broker, Brokers, served
from tests.waiting import eventually

ORDERS = TopicPartition("orders", 0)
SILENCE_S = 0.3


def all_answered(leader: Broker, partition: TopicPartition, count: int) -> None:
    answers = leader.produce(partition, count)
    eventually(lambda: len(answers) == count, f"{count} acknowledgements")


def test_what_is_acknowledged_is_the_same_on_every_replica(brokers: Brokers) -> None:
    started = [brokers.start(number) for number in (1, 2, 3)]
    for broker in started:
        broker.command(ORDERS, 1, (1, 2, 3))
    all_answered(started[0], ORDERS, 3_000)
    files = [broker.files(ORDERS) for broker in started]
    assert len(files[0]) > 4, "several segments"
    assert files[0] == files[1] == files[2]


def test_many_partitions_share_one_connection(brokers: Brokers) -> None:
    first, second = brokers.start(1), brokers.start(2)
    partitions = [TopicPartition("orders", number) for number in range(150)]
    for partition in partitions:
        leader = 1 + partition.partition % 2
        first.command(partition, leader, (1, 2))
        second.command(partition, leader, (1, 2))
    answers = [(first, second)[partition.partition % 2].produce(partition, 5) for partition in partitions]
    eventually(lambda: all(len(found) == 5 for found in answers), "all are acknowledged")
    assert all(first.files(partition) == second.files(partition) for partition in partitions)
    assert [len(_connections_of(broker)) for broker in (first, second)] == [1, 1]


def test_a_follower_that_asks_before_the_leader_knows_asks_again(brokers: Brokers) -> None:
    leader, follower = brokers.start(1), brokers.start(2)
    follower.command(ORDERS, 1, (1, 2))
    leader.command(ORDERS, 1, (1, 2))
    all_answered(leader, ORDERS, 10)


def test_a_leader_that_refuses_many_partitions_is_not_looked_up_for_each(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[int] = []

    class Addresses(dict[int, Address]):
        def get(self, broker: int, default: Address | None = None) -> Address | None:  # type: ignore[override]
            looked_up.append(broker)
            return super().get(broker, default)

    monkeypatch.setattr(fetch_session, "ADDRESS_LOOK_MS", 60_000)
    brokers.addresses = Addresses()
    leader, follower = brokers.start(1), brokers.start(2)
    partitions = [TopicPartition("orders", number) for number in range(100)]
    for partition in partitions:
        follower.command(partition, 1, (1, 2))
    eventually(lambda: len(looked_up) > 1, "a refusal has come")
    for partition in partitions:
        leader.command(partition, 1, (1, 2))
    answers = [leader.produce(partition, 1) for partition in partitions]
    eventually(lambda: all(len(found) == 1 for found in answers), "all are acknowledged")
    assert looked_up == [1, 1], "to connect, and after the first refusal"


def test_refusals_of_one_kind_are_told_in_one_line(brokers: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    leader, follower = brokers.start(1), brokers.start(2)
    names = [TopicPartition("orders", number) for number in range(300)]
    caplog.set_level(logging.INFO)
    for name in names:
        follower.command(name, 1, (1, 2))
    eventually(lambda: _told(caplog) >= len(names), "each was refused, since the leader has none of them yet")
    lines = [each for each in caplog.messages if each.startswith("replication of ")]
    assert len(lines) < len(names)
    assert all("from broker 1: UNKNOWN_TOPIC_OR_PARTITION: " in line for line in lines)
    for name in names:
        leader.command(name, 1, (1, 2))
    eventually(lambda: set(_waiting(leader)) == set(names), "they go on")


def _told(caplog: pytest.LogCaptureFixture) -> int:
    """How many failures lines tell of."""
    found = [re.match(r"replication of \S+( and (\d+) others)? from", each) for each in caplog.messages]
    return sum(1 + int(each[2] or 0) for each in found if each)


class Gate:
    """A partition that one thread finds taken until it is let go, however long that takes."""

    def __init__(self, partition: Partition, thread: str) -> None:
        self._partition = partition
        self._thread = thread
        self.topic_id = partition.topic_id
        self.unguarded = partition.unguarded
        self.came, self.free = threading.Event(), threading.Event()

    def try_do(self, event: Callable[[ReplicaLoop], None]) -> bool:
        self._stand()
        return self._partition.try_do(event)

    def do(self, event: Callable[[ReplicaLoop], None]) -> None:
        self._stand()
        self._partition.do(event)

    def __enter__(self) -> ReplicaLoop:
        self._stand()
        return self._partition.__enter__()

    def __exit__(self, *error: object) -> None:
        self._partition.__exit__(*error)

    def _stand(self) -> None:
        if threading.current_thread().name == self._thread:
            self.came.set()
            assert self.free.wait(TIMEOUT_S)


def gated(broker: Broker, name: TopicPartition, thread: str) -> Gate:
    gate = Gate(broker.partitions[name], thread)
    broker.partitions[name] = cast("Partition", gate)
    return gate


def open_sockets() -> int:
    return sum(map(_is_socket, Path("/proc/self/fd").iterdir()))


def _is_socket(handle: Path) -> bool:
    try:
        return "socket" in str(handle.readlink())
    except FileNotFoundError:  # another thread has closed it meanwhile
        return False


def test_what_comes_over_a_connection_of_an_earlier_life_is_not_taken(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop stands before the partition with an answer, for longer than whoever registers waits for it."""
    monkeypatch.setattr(replication_client, "CLOSE_TIMEOUT_S", 0.01)
    leader, follower = brokers.start(1), brokers.start(2)
    for broker in (leader, follower):
        broker.command(ORDERS, 1, (1, 2))
    all_answered(leader, ORDERS, 1)
    replica = follower.replica(ORDERS)
    eventually(lambda: ORDERS in _waiting(leader), "it waits at the end")
    before, gate = replica.log.log_end, gated(follower, ORDERS, "broker-loop")
    leader.produce(ORDERS, 1)
    assert gate.came.wait(TIMEOUT_S)
    open_before = open_sockets()
    with follower.partitions[ORDERS] as replica:
        replica.resign("its session expired")
    follower.replication.registered(1)
    gate.free.set()
    eventually(lambda: open_sockets() == open_before - 2, "both ends are closed")
    assert replica.log.log_end == before


def test_a_leader_that_comes_back_at_another_port_is_found(brokers: Brokers) -> None:
    leader, follower = brokers.start(1), brokers.start(2)
    leader.command(ORDERS, 1, (1, 2))
    follower.command(ORDERS, 1, (1, 2))
    all_answered(leader, ORDERS, 10)
    leader.close()
    again = brokers.start(1, epoch=1)
    again.command(ORDERS, 1, (1, 2))
    all_answered(again, ORDERS, 10)
    assert again.files(ORDERS) == follower.files(ORDERS)


def test_a_follower_that_registers_again_is_heard_as_its_new_life(brokers: Brokers) -> None:
    leader, follower = brokers.start(1), brokers.start(2)
    leader.command(ORDERS, 1, (1, 2))
    follower.command(ORDERS, 1, (1, 2))
    all_answered(leader, ORDERS, 10)
    with follower.partitions[ORDERS] as replica:
        replica.resign("its session expired")
    follower.replication.registered(7)
    follower.command(ORDERS, 1, (1, 2))
    all_answered(leader, ORDERS, 10)
    part = leader.replica(ORDERS).leading()
    assert part.followers[2].broker_epoch == 7


def test_the_new_leader_is_followed_and_the_logs_agree(brokers: Brokers) -> None:
    first, second, third = (brokers.start(number) for number in (1, 2, 3))
    for broker in (first, second, third):
        broker.command(ORDERS, 1, (1, 2, 3))
    all_answered(first, ORDERS, 10)
    # Nobody else gets these: they part from the new leader's log.
    second.command(ORDERS, 2, (1, 2, 3), epoch=1)
    third.command(ORDERS, 2, (1, 2, 3), epoch=1)
    eventually(lambda: first.produce(ORDERS, 3) == [], "not acknowledged")
    first.command(ORDERS, 2, (1, 2, 3), epoch=1)
    all_answered(second, ORDERS, 10)
    assert first.files(ORDERS) == second.files(ORDERS) == third.files(ORDERS)


def test_a_partition_that_fails_delays_no_other(brokers: Brokers) -> None:
    leader, follower = brokers.start(1), brokers.start(2)
    broken, other = TopicPartition("broken", 0), TopicPartition("other", 0)
    for broker in (leader, follower):
        broker.command(broken, 1, (1, 2))
        broker.command(other, 1, (1, 2))
    follower.replica(broken).log.close()  # its disk refuses everything
    answers = leader.produce(broken, 1)
    all_answered(leader, other, 200)
    assert answers == []


def test_a_cut_that_waits_for_its_disk_delays_no_other_partition(brokers: Brokers) -> None:
    first, second = brokers.start(1), brokers.start(2)
    other = TopicPartition("other", 0)
    for broker in (first, second):
        broker.command(other, 2, (1, 2))
    first.command(ORDERS, 1, (1, 2))
    first.produce(ORDERS, 3)  # nobody else gets these: they part from the new leader's log
    second.command(ORDERS, 2, (1, 2), epoch=1)
    second.produce(ORDERS, 1)
    gate = gated(first, ORDERS, "replication-aside")
    first.command(ORDERS, 2, (1, 2), epoch=1)
    assert gate.came.wait(TIMEOUT_S)
    all_answered(second, other, 10)
    assert first.files(ORDERS) != second.files(ORDERS)
    gate.free.set()
    eventually(lambda: first.files(ORDERS) == second.files(ORDERS), "it is cut, and goes on")


def test_a_follower_whose_disk_is_slow_for_one_partition_goes_on_with_the_others(brokers: Brokers) -> None:
    """It holds them up once. What comes after that waits aside."""
    leader, follower = brokers.start(1), brokers.start(2)
    other = TopicPartition("other", 0)
    for name in (ORDERS, other):
        for broker in (leader, follower):
            broker.command(name, 1, (1, 2))
    all_answered(leader, ORDERS, 1)
    log = follower.replica(ORDERS).log
    append, free, stands = log.append_slice, threading.Event(), threading.Event()

    def slow(records: LogSlice) -> object:
        time.sleep(2 * SLOW_MS / 1000)
        if threading.current_thread().name == "replication-aside":
            stands.set()
            assert free.wait(TIMEOUT_S)
        return append(records)

    log.append_slice = slow  # type: ignore[method-assign, assignment]
    all_answered(leader, ORDERS, 1)
    held = leader.produce(ORDERS, 1)
    assert stands.wait(TIMEOUT_S)
    all_answered(leader, other, 20)
    assert held == []
    free.set()
    eventually(lambda: held, "the slow one, too")
    assert leader.files(ORDERS) == follower.files(ORDERS)


@pytest.mark.parametrize("is_cached", [True, False])
def test_what_the_leaders_disk_has_lost_delays_no_other_partition(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, *, is_cached: bool
) -> None:
    """Large answers come straight from the leader's file, and large batches are not kept in memory. What is not in the
    page cache is read by a thread that may wait."""
    warmed: list[str] = []
    warm = files.StoredRange.warm

    def counted(found: files.StoredRange) -> None:
        warmed.append(threading.current_thread().name)
        warm(found)

    monkeypatch.setattr(files.StoredRange, "is_cached", is_cached)
    monkeypatch.setattr(files.StoredRange, "warm", counted)
    first, second = brokers.start(1), brokers.start(2)
    whole, sick = TopicPartition("orders", 0), TopicPartition("orders", 1)
    for partition in (whole, sick):
        first.command(partition, 1, (1, 2))
        batch = prepared(0, BATCH_BYTES_MAX // 8)
        assert len(batch.message) > max(SENDFILE_BYTES_MIN, BATCH_BYTES_MAX)
        with first.partitions[partition] as replica:
            replica.produce(batch, acks=1, now_ms=0, acknowledge=lambda _: None)
    data = first.folder(sick) / f"{0:020}.arrow"
    kept = data.read_bytes()
    os.truncate(data, len(kept) - 100)
    second.command(sick, 1, (1, 2))
    second.command(whole, 1, (1, 2))
    eventually(lambda: second.files(whole) == first.files(whole), "the whole partition is there")
    assert second.replica(sick).log.log_end == 0
    data.write_bytes(kept)
    eventually(lambda: second.files(sick) == first.files(sick), "the other one, too, now that it is whole")
    assert set(warmed) == (set() if is_cached else {"replication-aside"})


def test_a_refusal_that_comes_to_a_link_at_rest_looks_nobody_up(brokers: Brokers) -> None:
    """It was taken late, by when its connection had ended, and the leader is elsewhere."""
    leader, follower = brokers.start(1), brokers.start(2)
    for broker in (leader, follower):
        broker.command(ORDERS, 1, (1, 2))
    all_answered(leader, ORDERS, 1)
    link = follower.replication._client._links.to(1)
    connection = link._connection
    assert connection is not None
    brokers.addresses[1] = ("127.0.0.1", 1)  # where nobody is
    leader.close()
    eventually(lambda: link._connection is None, "its connection has ended")
    refused = partial(connection._taken, ORDERS, None, Taken(NotLeader("another leads"), 0.0))
    assert follower.sockets.call(refused, TIMEOUT_S)
    eventually(
        lambda: not [each for each in threading.enumerate() if each.name == "replication-look-up"], "it has looked"
    )
    assert follower.sockets.call(lambda: None, TIMEOUT_S), "the loop goes on"


def test_what_was_read_from_the_disk_waits_for_a_follower_that_takes_nothing(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many partitions at once: what does not fit into the socket stays in the files."""
    monkeypatch.setattr(files.StoredRange, "is_cached", False)
    monkeypatch.setattr(frames, "SENDFILE_BYTES_MIN", 1 << 30)  # as over TLS: it is read before
    leader = brokers.start(1)
    partitions = [TopicPartition("orders", number) for number in range(40)]
    batch = prepared(0, BATCH_BYTES_MAX // 8)
    for partition in partitions:
        leader.command(partition, 1, (1, 2))
        with leader.partitions[partition] as replica:
            replica.produce(batch, acks=1, now_ms=0, acknowledge=lambda _: None)
    read: list[int] = []
    stored = files.StoredRange.read

    def counted(found: files.StoredRange) -> bytes:
        read.append(len(found))
        return stored(found)

    warmed: list[int] = []
    monkeypatch.setattr(files.StoredRange, "read", counted)
    monkeypatch.setattr(files.StoredRange, "warm", lambda found: warmed.append(len(found)))
    peer = Peer(leader)
    peer.connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    peer.say(FetchFrame(number=1, partitions=tuple(map(_fetch, partitions))))
    eventually(lambda: len(warmed) == len(partitions), "all are read ahead")
    assert leader.sockets.call(lambda: None, TIMEOUT_S)
    assert sum(read) < sum(warmed) / 2
    heard = {peer.hears_answer().partition.partition for _ in partitions}
    assert heard == set(range(len(partitions)))


def test_an_answer_for_a_topic_of_the_same_name_is_not_taken(brokers: Brokers) -> None:
    leader, follower = brokers.start(1), brokers.start(2)
    leader.open(ORDERS, "old")
    leader.command(ORDERS, 1, (1,))
    all_answered(leader, ORDERS, 3)
    follower.open(ORDERS, "new")
    follower.command(ORDERS, 1, (1, 2))
    other = TopicPartition("other", 0)
    for broker in (leader, follower):
        broker.command(other, 1, (1, 2))
    all_answered(leader, other, 3)
    assert follower.replica(ORDERS).log.log_end == 0


def test_connections_that_break_again_and_again_lose_nothing(brokers: Brokers) -> None:
    leader, follower = brokers.start(1), brokers.start(2)
    for broker in (leader, follower):
        broker.command(ORDERS, 1, (1, 2))
    for _ in range(40):
        answers = leader.produce(ORDERS, 30)
        for peer in _connections_of(leader):
            hang_up(peer)
        answers += leader.produce(ORDERS, 30)
        eventually(lambda found=answers: len(found) >= 30, "acknowledgements")  # type: ignore[misc]
    eventually(lambda: follower.replica(ORDERS).log.log_end == leader.replica(ORDERS).log.log_end, "all is there")
    assert leader.files(ORDERS) == follower.files(ORDERS)


@pytest.fixture
def impatient(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> Brokers:
    """Leaders say often that they live, and followers do not wait for long."""
    monkeypatch.setattr(fetch_session, "ALIVE_MS", 50)
    monkeypatch.setattr(fetch_session, "SILENCE_MS_MIN", 1000 * SILENCE_S)
    brokers.settings = Settings(replica_lag_time_ms=round(1000 * SILENCE_S))
    return brokers


def test_a_follower_over_whose_connection_nothing_comes_connects_anew(impatient: Brokers) -> None:
    """Neither side is told that the path brings nothing any longer."""
    leader, follower = impatient.start(1), impatient.start(2)
    proxy = TcpProxy(leader.replication.port)
    impatient.addresses[1] = ("127.0.0.1", proxy.port)
    for broker in (leader, follower):
        broker.command(ORDERS, 1, (1, 2))
    all_answered(leader, ORDERS, 3)
    for _ in range(2):
        proxy.swallow()
        all_answered(leader, ORDERS, 3)
    assert leader.files(ORDERS) == follower.files(ORDERS)
    proxy.down()


def test_a_connection_with_nothing_to_say_is_kept(impatient: Brokers) -> None:
    leader, follower = impatient.start(1), impatient.start(2)
    for broker in (leader, follower):
        broker.command(ORDERS, 1, (1, 2))
    all_answered(leader, ORDERS, 1)
    before = _connections_of(leader)
    link = follower.replication._client._links.to(1)
    first_ms = link._end._heard_ms
    eventually(lambda: link._end._heard_ms > first_ms + 3_000 * SILENCE_S, "the leader goes on saying that it lives")
    assert _connections_of(leader) == before


def test_a_follower_whose_loop_was_elsewhere_does_not_take_its_leader_for_silent(impatient: Brokers) -> None:
    leader, follower = impatient.start(1), impatient.start(2)
    for broker in (leader, follower):
        broker.command(ORDERS, 1, (1, 2))
    all_answered(leader, ORDERS, 1)
    before = _connections_of(leader)
    for _ in range(3):
        follower.sockets.post(lambda: time.sleep(2 * SILENCE_S))
        assert follower.sockets.call(lambda: None, TIMEOUT_S)
        all_answered(leader, ORDERS, 1)
    assert _connections_of(leader) == before


def test_a_follower_whose_disks_are_somewhat_slow_lets_others_have_their_turn_and_keeps_its_connection(
    impatient: Brokers,
) -> None:
    """No write is so slow that the next one waits aside, but there are many."""
    leader, follower = impatient.start(1), impatient.start(2)
    names = [TopicPartition("orders", number) for number in range(20)]
    for name in names:
        leader.command(name, 1, (1, 2))
        follower.command(name, 1, (1, 2))
        all_answered(leader, name, 1)
    before = _connections_of(leader)
    written: list[TopicPartition] = []
    sent, second = threading.Event(), threading.Event()

    def slowly(name: TopicPartition, append: Callable[[LogSlice], object], records: LogSlice) -> object:
        if written:
            second.set()
            time.sleep(0.8 * SLOW_MS / 1000)
        else:
            assert sent.wait(TIMEOUT_S)
        written.append(name)
        return append(records)

    for name in names:
        log = follower.replica(name).log
        log.append_slice = partial(slowly, name, log.append_slice)  # type: ignore[method-assign, assignment]
    answers = [leader.produce(name, 1) for name in names]
    assert leader.sockets.call(lambda: None, TIMEOUT_S)
    sent.set()
    assert second.wait(TIMEOUT_S)
    meanwhile: list[int] = []
    assert follower.sockets.call(lambda: meanwhile.append(len(written)), TIMEOUT_S)
    eventually(lambda: all(len(found) == 1 for found in answers), "all are acknowledged")
    assert meanwhile[0] < len(names)
    assert _connections_of(leader) == before


@pytest.mark.parametrize("after_another", [False, True])
def test_a_leader_that_never_says_that_it_lives_is_waited_for(impatient: Brokers, *, after_another: bool) -> None:
    """One of an earlier release, where nothing is written. after_another: it takes the place of one that does."""
    leader, follower = impatient.start(1), impatient.start(2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(TIMEOUT_S)
        if after_another:
            leader.command(ORDERS, 1, (1, 2))
            follower.command(ORDERS, 1, (1, 2))
            all_answered(leader, ORDERS, 1)
        impatient.addresses[1] = ("127.0.0.1", listener.getsockname()[1])
        leader.replication.close()
        follower.command(ORDERS, 1, (1, 2), epoch=1)
        connection, _ = listener.accept()
        with connection:
            connected_s = time.monotonic()
            eventually(lambda: time.monotonic() > connected_s + 3 * SILENCE_S, "it has heard nothing for long")
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()


def test_a_follower_is_told_at_once_and_again_that_its_leader_lives(impatient: Brokers) -> None:
    leader = impatient.start(1)
    leader.command(ORDERS, 1, (1, 2))
    leader.produce(ORDERS, 1)
    peer = Peer(leader)
    peer.fetch(1)
    assert peer.hears_anything() == ALIVE_FRAME
    assert peer.hears_answer().number == 1
    assert [peer.hears_anything() for _ in range(3)] == 3 * [ALIVE_FRAME]


def test_a_fetch_never_has_the_number_of_what_answers_none(brokers: Brokers) -> None:
    """So a follower that does not know what it means makes nothing of it."""
    leader, follower = brokers.start(1), brokers.start(2)
    for broker in (leader, follower):
        broker.command(ORDERS, 1, (1, 2))
    all_answered(leader, ORDERS, 3)
    link = follower.replication._client._links.to(1)
    assert ALIVE < 0 < link._end._number


def _connections_of(broker: Broker) -> list[socket.socket]:
    return list(broker.replication._server._connections)


def test_closing_ends_all_threads(brokers: Brokers) -> None:
    before = set(threading.enumerate())
    started = [brokers.start(number) for number in (1, 2)]
    for broker in started:
        broker.command(ORDERS, 1, (1, 2))
    all_answered(started[0], ORDERS, 10)
    for broker in started:
        broker.replication.close()
        broker.sockets.stop(TIMEOUT_S)
    eventually(lambda: before.issuperset(threading.enumerate()), "no thread is left")


# What a peer says, frame by frame.


def _fetch(partition: TopicPartition, offset: int = 0, last_epoch: int = -1) -> FetchPartition:
    return FetchPartition(
        topic=partition.topic,
        partition=partition.partition,
        topic_id="id",
        leader_epoch=0,
        offset=offset,
        last_epoch=last_epoch,
        clean_since=0,
    )


class Peer:
    """A follower by hand."""

    def __init__(self, broker: Broker, hello: Frame | None = None) -> None:
        self.connection = socket.create_connection(("127.0.0.1", broker.replication.port), timeout=TIMEOUT_S)
        self._receiver = FrameReceiver(self.connection, 1 << 26)
        self._frames: list[Frame] = []
        self.say(hello or HelloFrame(cluster_id=CLUSTER, broker_id=2, broker_epoch=0))

    def say(self, frame: Frame) -> None:
        send(self.connection, encoded(frame))

    def fetch(self, number: int, *, offset: int = 0, last_epoch: int = -1) -> None:
        self.say(FetchFrame(number=number, partitions=(_fetch(ORDERS, offset, last_epoch),)))

    def hears(self) -> Frame:
        """What it is told besides that the leader lives."""
        while (frame := self.hears_anything()) == ALIVE_FRAME:
            pass
        return frame

    def hears_anything(self) -> Frame:
        while not self._frames:
            self._frames += [frame for frame, _ in self._receiver.receive()]
        return self._frames.pop(0)

    def hears_answer(self) -> FetchedFrame:
        heard = self.hears()
        assert isinstance(heard, FetchedFrame), heard
        return heard


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (HelloFrame(cluster_id="another", broker_id=2, broker_epoch=0), "INCONSISTENT_CLUSTER_ID"),
        (HelloFrame(v=3, cluster_id=CLUSTER, broker_id=2, broker_epoch=0), "UNSUPPORTED_VERSION"),
        (FetchFrame(number=1, partitions=()), "INVALID_REQUEST"),
    ],
)
def test_a_stranger_is_told_why_it_is_refused(brokers: Brokers, first: Frame, code: str) -> None:
    heard = Peer(brokers.start(1), first).hears()
    assert isinstance(heard, ErrorFrame)
    assert heard.error == code


def test_an_earlier_life_of_a_follower_is_refused(brokers: Brokers) -> None:
    leader = brokers.start(1)
    leader.command(ORDERS, 1, (1, 2))
    now = Peer(leader, HelloFrame(cluster_id=CLUSTER, broker_id=2, broker_epoch=5))
    now.fetch(1)
    leader.produce(ORDERS, 1)
    assert now.hears_answer().number == 1
    heard = Peer(leader, HelloFrame(cluster_id=CLUSTER, broker_id=2, broker_epoch=4)).hears()
    assert isinstance(heard, ErrorFrame)
    assert heard.error == "STALE_BROKER_EPOCH"
    now.fetch(2)
    assert now.hears_answer().number == 2, "the present one goes on"


def test_every_fetch_is_answered_even_one_that_came_before_its_replica(brokers: Brokers) -> None:
    """Between the fetch and its answer the replica is opened: the engine never saw that fetch."""
    leader = brokers.start(1)
    opened = leader.open(ORDERS)
    lookups = iter([None, opened])
    leader.partitions = _Scripted(lookups)
    peer = Peer(leader)
    peer.fetch(9)
    answer = peer.hears_answer()
    assert (answer.number, answer.partition.error) == (9, "NOT_READY")


class _Scripted(dict):  # type: ignore[type-arg]
    def __init__(self, lookups: Iterator[object]) -> None:
        self._lookups = lookups

    def get(self, key: object, default: object = None) -> object:
        return next(self._lookups, default)

    def values(self) -> tuple[()]:  # type: ignore[override]
        return ()


def test_a_frame_over_the_limit_ends_that_connection_only(brokers: Brokers) -> None:
    leader = brokers.start(1)
    leader.command(ORDERS, 1, (1, 2))
    bad = Peer(leader)
    bad.connection.sendall(b"\xff" * 8)
    heard = bad.hears()
    assert isinstance(heard, ErrorFrame)
    assert "replication.frame.bytes.max" in heard.message
    good = Peer(leader)
    good.fetch(1)
    leader.produce(ORDERS, 1)
    assert good.hears_answer().partition.data_bytes == len(prepared(0).message)


@pytest.mark.parametrize("host", ["0.0.0.0", "8.8.8.8", "::", "no.such.host.invalid"])
def test_nothing_listens_beyond_loopback(host: str) -> None:
    with pytest.raises(InvalidConfig, match=host):
        Replication(
            host,
            SocketLoop("broker-loop"),
            served(lambda partition: pytest.fail(str(partition)), {}),
            cluster_id=CLUSTER,
            broker=1,
            settings=Settings(),
            rights=Rights(NO_SECURITY),
            address_of=lambda broker: None,
            now_ms=lambda: 0,
        )


def test_frames_must_have_room_for_a_batch() -> None:
    with pytest.raises(InvalidConfig, match="too small"):
        Replication(
            "127.0.0.1",
            SocketLoop("broker-loop"),
            served(lambda partition: pytest.fail(str(partition)), {}),
            cluster_id=CLUSTER,
            broker=1,
            settings=Settings(replication_frame_bytes_max=1 << 20),
            rights=Rights(NO_SECURITY),
            address_of=lambda broker: None,
            now_ms=lambda: 0,
        )


@pytest.mark.parametrize(
    ("busy_cores", "flood", "setting"),
    [
        (1_000.0, 0.0, "GATHER_MS"),  # many batches, and time for each
        (0.0, 1_000.0, "GATHER_MS"),  # busy, with few batches: with others' partitions, say
        (0.0, 0.0, "GATHER_FLOOD_MS"),
    ],
)
def test_a_follower_that_is_behind_gets_several_batches_at_once(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, busy_cores: float, flood: float, setting: str
) -> None:
    for gather in ("GATHER_MS", "GATHER_FLOOD_MS"):
        monkeypatch.setattr(replication_server, gather, 10_000 * TIMEOUT_S if gather == setting else 0)
    monkeypatch.setattr(replication_server, "FLOOD_BATCHES_PER_MS", flood)
    monkeypatch.setattr(threads, "BUSY_CORES", busy_cores)
    monkeypatch.setattr(threads, "LOOK_S", 0.0)
    leader = brokers.start(1)
    leader.command(ORDERS, 1, (1, 2))
    leader.produce(ORDERS, 1)
    peer = Peer(leader)
    peer.fetch(1)
    first = peer.hears_answer().partition
    connection = leader.replication._server.followers.of(2)
    assert connection is not None
    peer.fetch(2)  # behind again, and asked too soon
    eventually(lambda: connection.end.has_ready, "its answer is ready")
    leader.produce(ORDERS, 3)

    def moment_is_over() -> None:
        connection.end.gather(0.0, 0.0)
        leader.sockets.touch(connection)

    assert leader.sockets.call(moment_is_over, TIMEOUT_S)
    second = peer.hears_answer().partition
    assert (first.entry_bytes, second.entry_bytes) == (ENTRY_BYTES, 4 * ENTRY_BYTES)


def test_a_follower_that_waits_at_the_log_end_is_answered_at_once(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication_server, "GATHER_MS", 10_000 * TIMEOUT_S)
    leader = brokers.start(1)
    leader.command(ORDERS, 1, (1, 2))
    peer = Peer(leader)
    for number in range(3):
        peer.fetch(number, offset=leader.replica(ORDERS).log.log_end, last_epoch=min(0, number - 1))
        eventually(lambda: ORDERS in _waiting(leader), "the fetch waits")
        leader.produce(ORDERS, 1)
        assert peer.hears_answer().partition.entry_bytes == ENTRY_BYTES


def _waiting(leader: Broker) -> Collection[TopicPartition]:
    """The partitions that follower 2 has asked for without an answer."""
    follower = leader.replication._server.followers.of(2)
    return [] if follower is None else list(follower.end._waiting)


@pytest.mark.slow
def test_a_thousand_idle_partitions_cost_nothing(brokers: Brokers) -> None:
    """Neither side looks at them, and nothing is said of them, while another one is written to."""
    leader, follower = brokers.start(1), brokers.start(2)
    idle = [TopicPartition("idle", number) for number in range(1_000)]
    for partition in (*idle, ORDERS):
        leader.command(partition, 1, (1, 2))
        follower.command(partition, 1, (1, 2))
    all_answered(leader, ORDERS, 1)
    eventually(lambda: len(_waiting(leader)) == len(idle) + 1, "every partition's fetch waits at the leader")
    for broker in (leader, follower):
        broker.partitions = _Counted(broker.partitions)
    for _ in range(50):
        all_answered(leader, ORDERS, 1)
    eventually(lambda: len(_waiting(leader)) == len(idle) + 1, "the last fetch waits, too")
    assert _looked_up(leader) == _looked_up(follower) == {ORDERS}


class _Counted(dict[TopicPartition, Partition]):
    def __init__(self, partitions: Mapping[TopicPartition, Partition]) -> None:
        super().__init__(partitions)
        self.looked_up: set[TopicPartition] = set()

    def get(self, key: TopicPartition, default: object = None) -> Partition | None:  # type: ignore[override]
        self.looked_up.add(key)
        return super().get(key)


def _looked_up(broker: Broker) -> set[TopicPartition]:
    assert isinstance(broker.partitions, _Counted)
    return broker.partitions.looked_up
