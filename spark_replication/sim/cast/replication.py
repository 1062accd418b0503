"""Replication between simulated brokers, as transport/ does it: one connection a pair, fetches by number, and an answer
counts only if it is that of the partition's last fetch on this connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_replication.errors import NotReady, ReplicationError, error_of
from spark_replication.messages.envelope import NONE
from spark_replication.messages.replication import FetchedPartition, FetchPartition
from spark_replication.model import BrokerId, TopicPartition
from spark_replication.ports import LogSlice
from spark_replication.sim.world.network import Stream

if TYPE_CHECKING:
    from spark_replication.sim.cast.broker import BrokerProcess

BACKOFF_MS = (10, 40)
CONNECT_TIMEOUT_MS = 60
BREAK_NOTICED_MS = (20, 120)
LINGERS_PROBABILITY = 0.3
LINGERS_MS = (20, 600)

Answered = tuple[int, FetchedPartition, LogSlice | None]


class Connection:
    """Of one life of a follower to one process of a leader. waiting: the fetches that are not answered, by number."""

    def __init__(self, follower: BrokerProcess, leader: BrokerProcess, broker_epoch: int) -> None:
        world, network = follower.world, follower.network
        self.follower = follower
        self.leader = leader
        self.broker_epoch = broker_epoch
        self.open = True
        self.forth = Stream(world, network, follower.place, leader.place, leader)
        self.back = Stream(world, network, leader.place, follower.place, follower)
        self.waiting: dict[TopicPartition, tuple[int, FetchPartition]] = {}
        self.ready: dict[TopicPartition, None] = {}

    def break_off(self) -> None:
        """Something was lost on it: the follower notices after a while."""
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
        self._links: dict[BrokerId, LeaderLink] = {}
        self._leader_of: dict[TopicPartition, BrokerId] = {}
        self._followers: dict[BrokerId, Connection] = {}
        self._accepted: list[Connection] = []

    def registered(self) -> None:
        """Connections say which life of this broker they belong to: those of an earlier one end."""
        for link in self._links.values():
            link.close()
        self._links.clear()
        self._leader_of.clear()

    def hang_up(self) -> None:
        """The process ends: its peers notice."""
        for connection in self._accepted:
            connection.break_off()

    def link_to(self, leader: BrokerId) -> LeaderLink:
        link = self._links.get(leader)
        if link is None:
            link = self._links[leader] = LeaderLink(self._me, leader)
        return link

    # As a follower

    def follow(self, partition: TopicPartition, leader: BrokerId) -> None:
        before = self._leader_of.get(partition)
        if before is not None and before != leader:
            self._links[before].unfollow(partition)
        self._leader_of[partition] = leader
        self.link_to(leader).follow(partition)

    def unfollow(self, partition: TopicPartition) -> None:
        leader = self._leader_of.pop(partition, None)
        if leader is not None:
            self._links[leader].unfollow(partition)

    # As a leader

    def ready(self, follower: BrokerId, partition: TopicPartition) -> None:
        connection = self._followers.get(follower)
        if connection is None or not connection.open:
            return
        if not connection.ready:
            self._me.world.after(0, "answers fetches", lambda: self._answer(connection), on=self._me, about=follower)
        connection.ready[partition] = None

    def accept(self, connection: Connection) -> None:
        self._accepted = [other for other in self._accepted if other.open]
        self._accepted.append(connection)

    def joined(self, connection: Connection) -> None:
        known = self._followers.get(connection.follower.broker)
        if known is None or known.broker_epoch <= connection.broker_epoch:
            self._followers[connection.follower.broker] = connection
            if known is not None:
                known.break_off()
        else:
            connection.break_off()

    def fetch(self, connection: Connection, number: int, fetches: list[FetchPartition]) -> None:
        follower = connection.follower.broker
        if self._followers.get(follower) is not connection:
            return
        for fetch in fetches:
            partition = fetch.topic_partition
            connection.waiting[partition] = number, fetch
            try:
                self._me.loop.replica(partition).fetch(
                    fetch, by=follower, broker_epoch=connection.broker_epoch, now_ms=self._me.clock_ms()
                )
            except ReplicationError:
                self.ready(follower, partition)

    def _answer(self, connection: Connection) -> None:
        partitions = list(connection.ready)
        connection.ready.clear()
        if self._followers.get(connection.follower.broker) is not connection:
            return
        answers = [answer for partition in partitions if (answer := self._take(connection, partition)) is not None]
        if not answers:
            return
        link = connection.follower.links.link_to(self._me.broker)
        if not connection.back.send("fetched", lambda: link.received(connection, answers), self._me.place):
            connection.break_off()

    def _take(self, connection: Connection, partition: TopicPartition) -> Answered | None:
        waiting = connection.waiting.pop(partition, None)
        if waiting is None:
            return None
        number, fetch = waiting
        try:
            taken = self._me.loop.replica(partition).take_answer(connection.follower.broker, connection.broker_epoch)
            if taken is None:
                raise NotReady(f"{partition} was not open yet when the fetch came: repeat it")
        except ReplicationError as error:
            refused = FetchedPartition(
                topic=fetch.topic,
                partition=fetch.partition,
                topic_id=fetch.topic_id,
                leader_epoch=fetch.leader_epoch,
                error=error.code,
                message=error.message,
            )
            return number, refused, None
        answer, records = taken
        return number, answer, records.loaded() if records is not None else None


class LeaderLink:
    """A follower's side of one connection, and what is made of it after it broke."""

    def __init__(self, me: BrokerProcess, leader: BrokerId) -> None:
        self._me = me
        self._leader = leader
        self._followed: dict[TopicPartition, None] = {}
        self._due: dict[TopicPartition, None] = {}
        self._outstanding: dict[TopicPartition, tuple[int, FetchPartition]] = {}
        self._connection: Connection | None = None
        self._number = 0
        self._busy = False
        self._closed = False
        self._lingers_until_ms = 0

    def follow(self, partition: TopicPartition) -> None:
        self._followed[partition] = None
        self._due[partition] = None
        self._wake(0)

    def unfollow(self, partition: TopicPartition) -> None:
        self._followed.pop(partition, None)
        self._due.pop(partition, None)

    def close(self) -> None:
        """Its thread may be in the midst of something, and take what has come long after it was given up."""
        self._closed = True
        if self._connection is not None:
            self._connection.open = False
            if self._me.world.chance(LINGERS_PROBABILITY):
                self._lingers_until_ms = self._me.world.now_ms + self._me.world.between(*LINGERS_MS)

    def broken(self, connection: Connection) -> None:
        if self._connection is connection:
            self._connection = None
            self._wake(self._me.world.between(*BACKOFF_MS))

    def _wake(self, delay_ms: int) -> None:
        if not self._busy and not self._closed:
            self._busy = True
            self._me.world.after(delay_ms, "fetches", self._send_due, on=self._me, about=self._leader)

    def _send_due(self) -> None:
        self._busy = False
        if self._closed or not self._followed:
            return
        connection = self._connection or self._connect()
        if connection is None:
            self._wake(self._me.world.between(*BACKOFF_MS))
            return
        if not connection.open:
            return  # it is noticed soon, and begun anew
        due, self._due = self._due, {}
        self._number += 1
        fetches: list[FetchPartition] = []
        for partition in due:
            try:
                fetch = self._me.loop.replica(partition).next_fetch()
            except ReplicationError:
                continue  # it was removed meanwhile
            if fetch is not None:
                fetches.append(fetch)
                self._outstanding[partition] = self._number, fetch
        if not fetches:
            return
        number, leader = self._number, connection.leader
        if not connection.forth.send("fetch", lambda: leader.links.fetch(connection, number, fetches), self._me.place):
            connection.break_off()

    def _connect(self) -> Connection | None:
        """Ask for everything that is followed, under the epoch of this life."""
        leader = self._me.process_of(self._leader)
        network = self._me.network
        if leader is None or self._me.epoch is None:
            return None
        if network.lost(self._me.place, leader.place) or network.lost(leader.place, self._me.place):
            return None
        connection = self._connection = Connection(self._me, leader, self._me.epoch)
        leader.links.accept(connection)
        self._outstanding.clear()
        self._due = dict(self._followed)
        if not connection.forth.send("hello", lambda: leader.links.joined(connection), self._me.place):
            connection.break_off()
        return connection

    def received(self, connection: Connection, answers: list[Answered]) -> None:
        if self._connection is not connection:
            return
        if not self._closed:
            self._take(answers)
        elif self._lingers_until_ms > self._me.world.now_ms:
            delay_ms = self._lingers_until_ms - self._me.world.now_ms
            self._me.world.after(delay_ms, "takes what was left over", lambda: self._take(answers), on=self._me)

    def _take(self, answers: list[Answered]) -> None:
        failed = False
        for number, answer, records in answers:
            partition = answer.topic_partition
            asked, fetch = self._outstanding.get(partition, (-1, None))
            if fetch is None or asked != number:
                continue
            del self._outstanding[partition]
            try:
                if answer.error != NONE:
                    raise error_of(answer.error, answer.message)
                replica = self._me.loop.replica(partition)
                if replica.topic_id == answer.topic_id:
                    replica.fetch_answered(fetch, answer, records)
            except ReplicationError:
                failed = True
            if partition in self._followed:
                self._due[partition] = None
        if self._due:
            self._wake(self._me.world.between(*BACKOFF_MS) if failed else 0)
