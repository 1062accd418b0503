"""A connection between two brokers, seen from both of its ends: what is asked, which answer counts, who is answered.

The follower's end, of one leader, over all connections to it:

| event                         | what follows                                                                        |
| ----------------------------- | ----------------------------------------------------------------------------------- |
| follow                        | the partition is due                                                                |
| unfollow                      | it is due no longer; an answer that is under way finds a replica that wants none    |
| connected                     | all that is followed is due; nothing that was asked before counts                   |
| asked                         | an answer counts with the number of the partition's last fetch on this connection   |
| received, and it was taken    | the partition is due again                                                          |
| received, and its disk waits  | others take it, and the loop goes on: a cut, or a disk that was slow just before    |
| received, and it failed       | it is due after BACKOFF_MS, each time in a row twice that; no other waits for it    |
| nothing was received for long | the connection is given up, if the leader has said that it lives                    |
| ended                         | a rest, each time twice as long, until something is received again                  |
| close                         | nothing that comes counts                                                           |

The leader's end, of one connection:

| event                         | what follows                                                                        |
| ----------------------------- | ----------------------------------------------------------------------------------- |
| joined                        | it takes over from the follower's connection before, unless that is of a later life |
| fetched                       | it waits; the partition's fetch before is forgotten                                 |
| ready                         | what waits is to be answered, and made when it can be sent: no queue of bytes       |
| ready, and it was behind      | a moment later: so that each answer has several batches                             |
| answered                      | with the fetch's number; without a fetch that waits, not at all                     |
| nothing was sent for long     | a sign of life                                                                      |

An event of a connection that was replaced is nothing: the engine knows one fetch of each follower, and what it says to
that is asked and answered over the newest connection.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

import msgspec

from spark_replication.engine.fetch_answers import answer_to
from spark_replication.engine.partition import FindPartition
from spark_replication.engine.replica_loop import ReplicaLoop
from spark_replication.errors import NotReady, ReplicationError, StaleBrokerEpoch, error_of
from spark_replication.messages.envelope import NONE
from spark_replication.messages.replication import ALIVE, FetchedPartition, FetchFrame, FetchPartition
from spark_replication.model import BrokerId, Offset, TopicPartition
from spark_replication.ports import LogSlice, Records

BACKOFF_MS = 20
BACKOFF_MS_MAX = 1_000
SLOW_MS = 50  # a disk that takes so long for an answer may take as long for the next
SLOW_FOR_MS = 5_000
ADDRESS_LOOK_MS = 1_000  # a leader that refuses is looked up so often, whatever the number of partitions
FETCHES_PER_FRAME_MAX = 1_000
ANSWERS_PER_SEND_MAX = 128
ALIVE_MS = 2_000  # after so long without an answer, a follower is told that its leader lives
SILENCE_MS_MIN = 3 * ALIVE_MS


def backoff_ms(failures: int) -> int:
    return min(BACKOFF_MS_MAX, BACKOFF_MS << min(failures, 10))


class FollowerEnd:
    """silence_ms: how long nothing may come from a leader that says that it lives, if that is more than
    SILENCE_MS_MIN."""

    def __init__(self, *, silence_ms: float) -> None:
        self.closed = False
        self.silence_ms = max(silence_ms, SILENCE_MS_MIN)
        self._followed: dict[TopicPartition, None] = {}
        self._due: dict[TopicPartition, None] = {}
        self._later: list[tuple[float, TopicPartition]] = []
        self._failures: dict[TopicPartition, int] = {}
        self._asks: list[FetchPartition] = []
        self._slow_until_ms: dict[TopicPartition, float] = {}
        self._outstanding: dict[TopicPartition, tuple[int, FetchPartition]] = {}
        self._number = 0
        self._attempts = 0
        self._says_it_lives = False  # an earlier release does not
        self._heard_ms = 0.0
        self._look_at_ms = 0.0

    @property
    def follows(self) -> bool:
        return bool(self._followed)

    def follow(self, partition: TopicPartition) -> None:
        self._followed[partition] = None
        self._due[partition] = None

    def unfollow(self, partition: TopicPartition) -> None:
        self._followed.pop(partition, None)
        self._due.pop(partition, None)

    def close(self) -> None:
        self.closed = True

    # The connection

    def looked_up(self, *, has_moved: bool) -> None:
        self._says_it_lives = self._says_it_lives and not has_moved

    def connected(self, now_ms: float) -> None:
        self._outstanding.clear()
        self._asks.clear()
        self._later.clear()
        self._due = dict(self._followed)
        self._heard_ms = now_ms

    def ended(self) -> int:
        """How long to rest before the next one, in ms."""
        rest_ms = backoff_ms(self._attempts)
        self._attempts += 1
        return rest_ms

    def heard(self, now_ms: float) -> None:
        self._heard_ms = now_ms

    def is_silent(self, now_ms: float) -> bool:
        return self._silent_at_ms <= now_ms

    @property
    def _silent_at_ms(self) -> float:
        return self._heard_ms + self.silence_ms if self._says_it_lives else math.inf

    def wait_ms(self, now_ms: float) -> float | None:
        """Until there is something to be done, if nothing comes. None: for ever."""
        if self._due:
            return 0
        at_ms = min(self._silent_at_ms, self._later[0][0] if self._later else math.inf)
        return None if at_ms == math.inf else max(0.0, at_ms - now_ms)

    # Fetches

    def take_due(self, now_ms: float) -> list[TopicPartition]:
        """As many as one frame has, in the order in which they became due."""
        while self._later and self._later[0][0] <= now_ms:
            _, partition = heapq.heappop(self._later)
            if partition in self._followed:
                self._due[partition] = None
        due = list(self._due)[:FETCHES_PER_FRAME_MAX]
        for partition in due:
            del self._due[partition]
        return due

    def ask(self, fetch: FetchPartition) -> None:
        """With the next frame."""
        self._asks.append(fetch)

    def frame(self) -> FetchFrame | None:
        """The frame that asks. None: there is nothing to ask."""
        found, self._asks = tuple(self._asks), []
        if not found:
            return None
        self._number += 1
        self._outstanding.update((fetch.topic_partition, (self._number, fetch)) for fetch in found)
        return FetchFrame(number=self._number, partitions=found)

    def received(self, number: int, partition: TopicPartition) -> FetchPartition | None:
        """The fetch that this answers, once. None: the answer does not count, or was a sign of life."""
        self._attempts = 0
        if number == ALIVE:
            self._says_it_lives = True
            return None
        asked, fetch = self._outstanding.get(partition, (ALIVE, None))
        if asked != number or self.closed:
            return None
        del self._outstanding[partition]
        return fetch

    def may_wait(self, fetch: FetchPartition, answer: FetchedPartition, now_ms: float) -> bool:
        """Whether taking it may wait for the disk: it may cut the log, or the disk was slow a moment ago."""
        may_cut = answer.diverging is not None or answer.log_start > fetch.offset
        return may_cut or self._slow_until_ms.get(fetch.topic_partition, 0.0) > now_ms

    def took(self, partition: TopicPartition, took_ms: float, now_ms: float) -> None:
        """How long it took to take an answer."""
        if took_ms >= SLOW_MS:
            self._slow_until_ms[partition] = now_ms + SLOW_FOR_MS

    def answered(self, partition: TopicPartition) -> None:
        self._failures.pop(partition, None)
        if partition in self._followed:
            self._due[partition] = None

    def failed(self, partition: TopicPartition, error: ReplicationError, now_ms: float) -> bool:
        """Whether the leader is to be looked up: every partition that is refused may ask this, thousands at an
        election."""
        failures = self._failures.get(partition, 0)
        self._failures[partition] = failures + 1
        if partition in self._followed:
            heapq.heappush(self._later, (now_ms + backoff_ms(failures), partition))
        if not error.stale_routes or now_ms < self._look_at_ms:
            return False
        self._look_at_ms = now_ms + ADDRESS_LOOK_MS
        return True


class Link(Protocol):
    """What carries a FollowerEnd."""

    def follow(self, partition: TopicPartition) -> None: ...
    def unfollow(self, partition: TopicPartition) -> None: ...


AnyLink = TypeVar("AnyLink", bound=Link)


class LeaderLinks(Generic[AnyLink]):
    """Of one follower: one for each leader of anything that it follows."""

    def __init__(self, made: Callable[[BrokerId], AnyLink]) -> None:
        self._made = made
        self._links: dict[BrokerId, AnyLink] = {}
        self._leader_of: dict[TopicPartition, BrokerId] = {}

    def to(self, leader: BrokerId) -> AnyLink:
        link = self._links.get(leader)
        if link is None:
            link = self._links[leader] = self._made(leader)
        return link

    def follow(self, partition: TopicPartition, leader: BrokerId) -> None:
        """See ports.FollowerLinks. Again for the same leader: ask anew, the epoch is another."""
        if self._leader_of.get(partition, leader) != leader:
            self.unfollow(partition)
        self._leader_of[partition] = leader
        self.to(leader).follow(partition)

    def unfollow(self, partition: TopicPartition) -> None:
        leader = self._leader_of.pop(partition, None)
        if leader is not None:
            self._links[leader].unfollow(partition)

    def take_all(self) -> list[AnyLink]:
        """They belong to a life of the broker that is over."""
        links = list(self._links.values())
        self._links.clear()
        self._leader_of.clear()
        return links


def ask(end: FollowerEnd, due: Iterable[TopicPartition], find: FindPartition, wake: Callable[[], None]) -> None:
    """Of those that have something to ask, into the end's next frames; one that was removed meanwhile has not. wake: of
    a partition that is not free, once it has been asked."""

    def asked(replica: ReplicaLoop) -> None:
        fetch = replica.next_fetch()
        if fetch is not None:
            end.ask(fetch)

    def asked_late(replica: ReplicaLoop) -> None:
        asked(replica)
        wake()

    for name in due:
        with suppress(ReplicationError):
            partition = find(name)
            if not partition.try_do(asked):
                partition.do(asked_late)


class Cut(msgspec.Struct, frozen=True):
    """Rows that no leader has any longer. committed: so many of them were known as that; after an unclean election some
    may have been acknowledged."""

    end: Offset
    to: Offset
    committed: int


Taken = Cut | ReplicationError | None  # None: nothing of the log was cut


def take(
    end: FollowerEnd,
    fetch: FetchPartition,
    answer: FetchedPartition,
    records: LogSlice | None,
    find: FindPartition,
    then: Callable[[Taken], None],
) -> None:
    """What the leader has answered, into the replica: now, if nobody else has it, else later, from a copy."""

    def taking(records: LogSlice | None) -> Callable[[ReplicaLoop], None]:
        return lambda replica: then(_taken(end, fetch, answer, records, replica))

    try:
        partition = find(fetch.topic_partition)
    except ReplicationError as error:
        then(error)
        return
    if not partition.try_do(taking(records)):
        partition.do(taking(None if records is None else records.kept()))


def take_and_wait(
    end: FollowerEnd, fetch: FetchPartition, answer: FetchedPartition, records: LogSlice | None, find: FindPartition
) -> Taken:
    """As `take`, of an answer that `may_wait`: not by the broker's loop."""
    try:
        with find(fetch.topic_partition) as replica:
            return _taken(end, fetch, answer, records, replica)
    except ReplicationError as error:
        return error


def _taken(
    end: FollowerEnd,
    fetch: FetchPartition,
    answer: FetchedPartition,
    records: LogSlice | None,
    replica: ReplicaLoop,
) -> Taken:
    if answer.error != NONE:
        return error_of(answer.error, answer.message)
    # Else it was made again under its old name meanwhile.
    if end.closed or replica.topic_id != answer.topic_id:
        return None
    before, high_watermark = replica.log.log_end, replica.high_watermark
    try:
        replica.fetch_answered(fetch, answer, records)
    except ReplicationError as error:
        return error
    after = replica.log.log_end
    return Cut(before, after, max(0, high_watermark - after)) if after < before else None


class LeaderEnd:
    """_waiting: the fetches that are not answered, with their numbers. _ready: those of them that can be, in the order
    in which they became so. Both are bounded by the number of partitions. _is_behind: there was something for the
    follower as it asked last."""

    def __init__(self, follower: BrokerId, broker_epoch: int) -> None:
        self.follower = follower
        self.broker_epoch = broker_epoch
        self._waiting: dict[TopicPartition, tuple[int, FetchPartition]] = {}
        self._ready: dict[TopicPartition, None] = {}
        self._is_behind = False
        self._gathers_until_ms = 0.0
        self._quiet_until_ms = 0.0

    def ready(self, partition: TopicPartition) -> bool:
        """Whether it is the first: what comes until somebody looks is found then."""
        is_first = not self._ready
        self._ready[partition] = None
        return is_first

    def wait_for(self, number: int, fetch: FetchPartition) -> None:
        self._waiting[fetch.topic_partition] = number, fetch

    def take_waiting(self, partition: TopicPartition) -> tuple[int, FetchPartition] | None:
        return self._waiting.pop(partition, None)

    def frame_came(self) -> None:
        """All its fetches are known."""
        self._is_behind = bool(self._ready)

    def wait_ms(self, now_ms: float) -> float:
        """Until there is something to be sent, if nothing comes."""
        until_ms = self._quiet_until_ms
        if self._ready:
            until_ms = self._gathers_until_ms if self._is_behind else 0.0
        return max(0.0, until_ms - now_ms)

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    def take_ready(self) -> list[TopicPartition]:
        """Empty: it has been quiet for long enough."""
        taken = list(self._ready)[:ANSWERS_PER_SEND_MAX]
        for partition in taken:
            del self._ready[partition]
        return taken

    def gather(self, now_ms: float, for_ms: float) -> None:
        """Answers have been sent."""
        self._gathers_until_ms = now_ms + for_ms

    def sent(self, now_ms: float) -> None:
        self._quiet_until_ms = now_ms + ALIVE_MS

    def owes_a_sign_of_life(self, now_ms: float) -> bool:
        return self._quiet_until_ms <= now_ms


class Answer(msgspec.Struct, frozen=True):
    number: int
    told: FetchedPartition
    records: Records | None


class Connection(Protocol):
    """What carries frames between the two ends."""

    @property
    def end(self) -> LeaderEnd: ...


Carrier = TypeVar("Carrier", bound=Connection)


class FollowerConnections(Generic[Carrier]):
    """Of one leader: each of its followers has one that counts, the newest."""

    def __init__(self, find: FindPartition) -> None:
        self._find = find
        self._current: dict[BrokerId, Carrier] = {}

    def of(self, follower: BrokerId) -> Carrier | None:
        return self._current.get(follower)

    def joined(self, connection: Carrier) -> Carrier | None:
        """What it takes over from. StaleBrokerEpoch: its follower has registered again since."""
        end = connection.end
        known = self._current.get(end.follower)
        if known is not None and known.end.broker_epoch > end.broker_epoch:
            raise StaleBrokerEpoch(f"broker {end.follower} has registered again since {end.broker_epoch}")
        self._current[end.follower] = connection
        return known

    def left(self, connection: Carrier) -> None:
        if self._current.get(connection.end.follower) is connection:
            del self._current[connection.end.follower]

    def fetched(
        self,
        connection: Carrier,
        number: int,
        fetch: FetchPartition,
        now_ms: int,
        refused: Callable[[ReplicationError], None],
    ) -> None:
        """refused: it is to be answered by an error, at once."""
        end = connection.end
        try:
            partition = self._find(fetch.topic_partition)
        except ReplicationError as error:
            end.wait_for(number, fetch)
            refused(error)
            return

        def came(replica: ReplicaLoop) -> None:
            if self._current.get(end.follower) is connection:
                end.wait_for(number, fetch)
                try:
                    replica.fetch(fetch, by=end.follower, broker_epoch=end.broker_epoch, now_ms=now_ms)
                except ReplicationError as error:
                    refused(error)

        partition.do(came)

    def answer(self, connection: Carrier, name: TopicPartition, say: Callable[[Answer], None]) -> None:
        """What is to be sent; nothing if its fetch has been answered, or came over another connection."""
        end = connection.end
        try:
            partition = self._find(name)
        except ReplicationError as error:
            waiting = end.take_waiting(name)
            if waiting is not None:
                say(_refusal(waiting, error))
            return

        def made(replica: ReplicaLoop) -> None:
            # A number and its fetch are set and taken together, while nobody else has the partition.
            waiting = end.take_waiting(name) if self._current.get(end.follower) is connection else None
            if waiting is not None:
                say(_answer(waiting, replica, end))

        partition.do(made)


def _answer(waiting: tuple[int, FetchPartition], replica: ReplicaLoop, end: LeaderEnd) -> Answer:
    try:
        taken = replica.take_answer(end.follower, end.broker_epoch)
    except ReplicationError as error:
        return _refusal(waiting, error)
    if taken is None:
        # Without an answer the follower would wait for ever.
        return _refusal(waiting, NotReady(f"{replica.partition} was not open yet when the fetch came: repeat it"))
    return Answer(waiting[0], *taken)


def loaded(answer: Answer, load: Callable[[Records], Records]) -> Answer:
    """With its records as they are sent. load may read the disk: nobody has the partition."""
    if answer.records is None:
        return answer
    try:
        return Answer(answer.number, answer.told, load(answer.records))
    except ReplicationError as error:
        told = answer.told
        refused = FetchedPartition(
            topic=told.topic,
            partition=told.partition,
            topic_id=told.topic_id,
            leader_epoch=told.leader_epoch,
            error=error.code,
            message=error.message,
        )
        return Answer(answer.number, refused, None)


def _refusal(waiting: tuple[int, FetchPartition], error: ReplicationError) -> Answer:
    number, fetch = waiting
    return Answer(number, answer_to(fetch, high_watermark=0, log_start=0, error=error), None)
