"""Replication between simulated brokers: connections that break, with both ends of engine.ends.fetch_session.

Signs of life are left out: a broken connection is noticed after BREAK_NOTICED_MS.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from spark_replication.engine.ends.fetch_session import (
    FetchAnswer,
    FollowedLeaders,
    FollowerConnections,
    FollowerEnd,
    LeaderEnd,
    Taken,
    ask,
    checked,
    loaded,
    take,
)
from spark_replication.errors import ReplicationError, StaleBrokerEpoch
from spark_replication.messages.replication import FetchFrame
from spark_replication.model import BrokerId, TopicPartition
from spark_replication.sim.world.network import Stream
from spark_replication.storage.format.batches import check_data

if TYPE_CHECKING:
    from spark_replication.sim.cast.broker import BrokerProcess

BREAK_NOTICED_MS = (20, 120)
GATHER_MS = 1


class Connection:
    """A connection from one life of a follower to one process of a leader."""

    def __init__(self, follower: BrokerProcess, leader: BrokerProcess, broker_epoch: int) -> None:
        world, network = follower.world, follower.network
        self.end = LeaderEnd(follower.broker, broker_epoch)
        self.follower = follower
        self.leader = leader
        self.open = True
        self.forth = Stream(world, network, follower.place, leader.place, leader)
        self.back = Stream(world, network, leader.place, follower.place, follower)

    def break_off(self) -> None:
        """Break the connection, on which something was lost. The follower notices after a while."""
        if self.open:
            self.open = False
            world = self.follower.world
            world.counts["connection_broken"] += 1
            link = self.follower.links.link_to(self.leader.broker)
            delay_ms = world.between(*BREAK_NOTICED_MS)
            world.after(delay_ms, "its connection broke", lambda: link.broken(self), on=self.follower)


class Links:
    """ports.FollowerLinks of one broker process: as a follower of others, and as the leader of others."""

    def __init__(self, me: BrokerProcess) -> None:
        self._me = me
        self._links = FollowedLeaders(lambda leader: LeaderLink(me, leader))
        self._followers: FollowerConnections[Connection] = FollowerConnections(
            lambda partition: me.loop.partition(partition)  # noqa: PLW0108 (the loop comes after)
        )
        self._accepted: list[Connection] = []

    def registered(self) -> None:
        """Close the connections of an earlier life: each is made under the broker epoch of one life."""
        for link in self._links.take_all():
            link.close()

    def hang_up(self) -> None:
        """Break all accepted connections, so that followers notice the end of this process."""
        for connection in self._accepted:
            connection.break_off()

    def link_to(self, leader: BrokerId) -> LeaderLink:
        return self._links.to(leader)

    # As a follower

    def follow(self, partition: TopicPartition, leader: BrokerId) -> None:
        self._links.follow(partition, leader)

    def unfollow(self, partition: TopicPartition) -> None:
        self._links.unfollow(partition)

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()

    # As a leader

    def ready(self, follower: BrokerId, partition: TopicPartition) -> None:
        connection = self._followers.of(follower)
        if connection is not None and connection.open and connection.end.ready(partition):
            self._wake(connection)

    def _wake(self, connection: Connection) -> None:
        world = self._me.world
        delay_ms = math.ceil(connection.end.wait_ms(world.now_ms))
        about = connection.end.follower
        world.after(delay_ms, "answers fetches", lambda: self._answer(connection), on=self._me, about=about)

    def accept(self, connection: Connection) -> None:
        self._accepted = [other for other in self._accepted if other.open]
        self._accepted.append(connection)

    def joined(self, connection: Connection) -> None:
        try:
            before = self._followers.joined(connection)
        except StaleBrokerEpoch:
            connection.break_off()
            return
        if before is not None:
            before.break_off()

    def fetch(self, connection: Connection, frame: FetchFrame) -> None:
        refused = partial(self._refuse, connection)
        for fetch in frame.partitions:
            self._followers.fetched(connection, frame.number, fetch, self._me.clock_ms(), refused)
        connection.end.frame_came()

    def _refuse(self, connection: Connection, partition: TopicPartition, _error: ReplicationError) -> None:
        self.ready(connection.end.follower, partition)

    def _answer(self, connection: Connection) -> None:
        end, world = connection.end, self._me.world
        found: list[FetchAnswer] = []
        for partition in end.take_ready():
            self._followers.answer(connection, partition, found.append)
        answers = [self._loaded(answer) for answer in found]
        end.gather(world.now_ms, GATHER_MS)
        if end.has_ready:
            self._wake(connection)
        if not answers:
            return
        link = connection.follower.links.link_to(self._me.broker)
        if not connection.back.send("fetched", lambda: link.received(connection, answers), self._me.place):
            connection.break_off()

    def _loaded(self, answer: FetchAnswer) -> FetchAnswer:
        if answer.is_repeated:
            return checked(answer, self._me.loop.partition, check_data)
        return loaded(answer, lambda records: records.loaded())


class LeaderLink:
    """A follower's link to one leader, over one connection after another."""

    def __init__(self, me: BrokerProcess, leader: BrokerId) -> None:
        self._me = me
        self._leader = leader
        self._end = FollowerEnd(silence_ms=0)
        self._connection: Connection | None = None
        self._wakes_at_ms: int | None = None

    def follow(self, partition: TopicPartition) -> None:
        self._end.follow(partition)
        self._wake(0)

    def unfollow(self, partition: TopicPartition) -> None:
        self._end.unfollow(partition)

    def close(self) -> None:
        self._end.close()
        if self._connection is not None:
            self._connection.open = False

    def broken(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None
            self._wake(self._end.ended())

    def _wake(self, delay_ms: float) -> None:
        world = self._me.world
        at_ms = world.now_ms + math.ceil(delay_ms)
        if self._wakes_at_ms is None or at_ms < self._wakes_at_ms:
            self._wakes_at_ms = at_ms
            world.after(at_ms - world.now_ms, "fetches", lambda: self._woken(at_ms), on=self._me, about=self._leader)

    def _woken(self, at_ms: int) -> None:
        if at_ms == self._wakes_at_ms:
            self._wakes_at_ms = None
            self._send_due()

    def _send_due(self) -> None:
        if self._end.closed or not self._end.follows:
            return
        connection = self._connection or self._connect()
        if connection is None:
            self._wake(self._end.ended())
            return
        if not connection.open:
            return  # the break is noticed soon, and the connection made anew
        due = self._end.take_due(self._me.world.now_ms)
        ask(self._end, due, self._me.loop.partition, self._wait)
        frame = self._end.frame()
        leader = connection.leader
        if frame is not None and not connection.forth.send(
            "fetch", lambda: leader.links.fetch(connection, frame), self._me.place
        ):
            connection.break_off()
        self._wait()

    def _wait(self) -> None:
        wait_ms = self._end.wait_ms(self._me.world.now_ms)
        if wait_ms is not None:
            self._wake(wait_ms)

    def _connect(self) -> Connection | None:
        """Connect under the epoch of this life, and ask for everything that is followed. None if that cannot be."""
        leader = self._me.process_of(self._leader)
        network = self._me.network
        if leader is None or self._me.epoch is None:
            return None
        if network.lost(self._me.place, leader.place) or network.lost(leader.place, self._me.place):
            return None
        connection = self._connection = Connection(self._me, leader, self._me.epoch)
        leader.links.accept(connection)
        self._end.connected(self._me.world.now_ms)
        if not connection.forth.send("hello", lambda: leader.links.joined(connection), self._me.place):
            connection.break_off()
        return connection

    def received(self, connection: Connection, answers: list[FetchAnswer]) -> None:
        if self._connection is not connection:
            return
        has_moved = False
        for answer in answers:
            has_moved = self._take(connection, answer) or has_moved
        if has_moved:
            connection.open = False
            self.broken(connection)
        else:
            self._wait()

    def _clock_ms(self) -> float:
        return self._me.world.now_ms

    def _take(self, connection: Connection, answer: FetchAnswer) -> bool:
        """Take one answer. Return whether it failed, and the leader is another process by now."""
        partition = answer.told.topic_partition
        fetch = self._end.received(answer.number, partition)
        if fetch is None:
            return False
        records = answer.records.loaded() if answer.records is not None else None
        taken: list[Taken] = []
        take(self._end, fetch, answer.told, records, self._me.loop.partition, taken.append, clock_ms=self._clock_ms)
        for outcome, _ in taken:
            if isinstance(outcome, ReplicationError):
                is_to_be_looked_up = self._end.failed(partition, outcome, self._me.world.now_ms)
                return is_to_be_looked_up and self._me.process_of(self._leader) is not connection.leader
            self._end.answered(partition)
        return False
