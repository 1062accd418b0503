"""Both ends of a connection between two brokers: what is fetched, which answer counts, who is answered.

The follower's end, for one leader, over all connections to it:

| event                         | what follows                                                                        |
| ----------------------------- | ----------------------------------------------------------------------------------- |
| follow                        | the partition is due                                                                |
| unfollow                      | it is due no longer; its replica ignores an answer that is under way                |
| connected                     | every followed partition is due; no earlier fetch counts                            |
| asked                         | an answer counts with the number of the partition's last fetch on this connection   |
| received, and it was taken    | the partition is due again                                                          |
| received, and its disk waits  | another thread takes it: it may cut the log, or the disk was slow just before, and  |
|                               | has not been fast often since (engine.ends.slow_disks)                              |
| received, and it failed       | the partition is due after BACKOFF_MS, doubled with each failure in a row           |
| nothing was received for long | the connection is given up, if the leader has sent a sign of life before            |
| ended                         | a rest, doubled each time until something is received again                         |
| close                         | nothing that comes counts                                                           |

The leader's end, of one connection:

| event                         | what follows                                                                        |
| ----------------------------- | ----------------------------------------------------------------------------------- |
| joined                        | it replaces the follower's earlier connection, unless that is of a later life       |
| fetched                       | the fetch waits, and replaces the partition's earlier fetch                         |
| ready                         | the fetch is answered once its answer can be sent: no queue of bytes                |
| ready, and it was behind      | the same a moment later, so that each answer has several batches                    |
| answered                      | with the fetch's number; nothing is sent if no fetch waits                          |
| answered as before            | the records are checked before they are sent again (D1)                             |
| nothing was sent for long     | a sign of life                                                                      |

Events of a connection that was replaced are ignored: the engine has one fetch of each follower and partition, which is
fetched and answered over the newest connection.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from spark_replication.decoding import error_of
from spark_replication.engine.ends.slow_disks import SlowDisks
from spark_replication.engine.replica.fetch_answers import answer_to
from spark_replication.engine.replica.partition import FindPartition
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import CorruptLog, NotReady, ReplicationError, StaleBrokerEpoch, StorageFailed
from spark_replication.messages.envelope import NONE
from spark_replication.messages.replication import ALIVE, FetchedPartition, FetchFrame, FetchPartition
from spark_replication.model import BrokerId, Offset, TopicPartition
from spark_replication.ports import LogSlice, Records

BACKOFF_MS = 20
BACKOFF_MS_MAX = 1_000
ADDRESS_LOOK_MS = 1_000  # between two look-ups of a leader that refuses, whatever the number of partitions
FETCHES_PER_FRAME_MAX = 1_000
ANSWERS_PER_SEND_MAX = 128
ALIVE_MS = 2_000  # after so long without an answer the leader sends a sign of life
SILENCE_MS_MIN = 3 * ALIVE_MS


def backoff_ms(failures: int) -> int:
    return min(BACKOFF_MS_MAX, BACKOFF_MS << min(failures, 10))


class FollowerEnd:
    """The follower's end: see the table above."""

    def __init__(self, *, silence_ms: float) -> None:
        """silence_ms: how long a leader that sends signs of life may be silent; SILENCE_MS_MIN at least."""
        self.closed = False
        self.silence_ms = max(silence_ms, SILENCE_MS_MIN)
        self._followed: dict[TopicPartition, None] = {}
        #: To be fetched with the next frame, in the order in which they became due.
        self._due: dict[TopicPartition, None] = {}
        #: A heap of partitions that failed, with the time at which each is due again.
        self._later: list[tuple[float, TopicPartition]] = []
        #: In a row.
        self._failures: dict[TopicPartition, int] = {}
        #: For the next frame.
        self._asks: list[FetchPartition] = []
        self._slow = SlowDisks()
        #: The last fetch of each partition that has no answer yet, with the number of its frame.
        self._outstanding: dict[TopicPartition, tuple[int, FetchPartition]] = {}
        self._number = 0
        #: Connections that ended since something was received last.
        self._attempts = 0
        self._says_it_lives = False  # leaders of an earlier release send no sign of life
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
        """Return how long to rest before the next connection, in ms."""
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
        """How long there is nothing to do, if nothing is received; None for ever."""
        if self._due:
            return 0
        at_ms = min(self._silent_at_ms, self._later[0][0] if self._later else math.inf)
        return None if at_ms == math.inf else max(0.0, at_ms - now_ms)

    # Fetches

    def take_due(self, now_ms: float) -> list[TopicPartition]:
        """Take as many as fit one frame, in the order in which they became due."""
        while self._later and self._later[0][0] <= now_ms:
            _, partition = heapq.heappop(self._later)
            if partition in self._followed:
                self._due[partition] = None
        due = list(self._due)[:FETCHES_PER_FRAME_MAX]
        for partition in due:
            del self._due[partition]
        return due

    def ask(self, fetch: FetchPartition) -> None:
        """Add a fetch to the next frame."""
        self._asks.append(fetch)

    def frame(self) -> FetchFrame | None:
        """Take what was asked, as a frame; None if nothing was."""
        found, self._asks = tuple(self._asks), []
        if not found:
            return None
        self._number += 1
        self._outstanding.update((fetch.topic_partition, (self._number, fetch)) for fetch in found)
        return FetchFrame(number=self._number, partitions=found)

    def received(self, number: int, partition: TopicPartition) -> FetchPartition | None:
        """Take the fetch that this answers. None if the answer does not count, or is a sign of life."""
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
        """Whether taking this answer may wait for the disk: it may cut the log, or the disk was slow a moment ago."""
        may_cut = answer.diverging is not None or answer.log_start > fetch.offset
        return may_cut or (self._slow.are_some and self._slow.has(fetch.topic_partition, now_ms))

    def took(self, partition: TopicPartition, took_ms: float, now_ms: float, *, wrote: bool) -> None:
        """See SlowDisks.took."""
        self._slow.took(partition, took_ms, now_ms, wrote=wrote)

    def answered(self, partition: TopicPartition) -> None:
        self._failures.pop(partition, None)
        if partition in self._followed:
            self._due[partition] = None

    def failed(self, partition: TopicPartition, error: ReplicationError, now_ms: float) -> bool:
        """Note a failure. Returns whether to look the leader up now: at an election thousands of partitions may be
        refused at once, and one look-up does for all."""
        failures = self._failures.get(partition, 0)
        self._failures[partition] = failures + 1
        if partition in self._followed:
            heapq.heappush(self._later, (now_ms + backoff_ms(failures), partition))
        if not error.stale_routes or now_ms < self._look_at_ms:
            return False
        self._look_at_ms = now_ms + ADDRESS_LOOK_MS
        return True


class Link(Protocol):
    """Carries a FollowerEnd over connections."""

    def follow(self, partition: TopicPartition) -> None: ...
    def unfollow(self, partition: TopicPartition) -> None: ...


AnyLink = TypeVar("AnyLink", bound=Link)


class FollowedLeaders(Generic[AnyLink]):
    """The links of one follower: one to each leader of a partition that it follows."""

    def __init__(self, made: Callable[[BrokerId], AnyLink]) -> None:
        """made: makes the link to a leader."""
        self._made = made
        self._links: dict[BrokerId, AnyLink] = {}
        self._leader_of: dict[TopicPartition, BrokerId] = {}

    def to(self, leader: BrokerId) -> AnyLink:
        link = self._links.get(leader)
        if link is None:
            link = self._links[leader] = self._made(leader)
        return link

    def follow(self, partition: TopicPartition, leader: BrokerId) -> None:
        """See ports.FollowerLinks. Called again for the same leader, it fetches anew: the epoch is another."""
        if self._leader_of.get(partition, leader) != leader:
            self.unfollow(partition)
        self._leader_of[partition] = leader
        self.to(leader).follow(partition)

    def unfollow(self, partition: TopicPartition) -> None:
        leader = self._leader_of.pop(partition, None)
        if leader is not None:
            self._links[leader].unfollow(partition)

    def take_all(self) -> list[AnyLink]:
        """Take all links away: they belong to a life of the broker that is over."""
        links = list(self._links.values())
        self._links.clear()
        self._leader_of.clear()
        return links


def ask(end: FollowerEnd, due: Iterable[TopicPartition], find: FindPartition, wake: Callable[[], None]) -> None:
    """Put the fetches of these partitions into the end's next frames. A replica may have nothing to fetch, or be gone.

    wake: called once a partition has been asked that another thread had.
    """

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
    """What an answer cut from a follower's log: rows that its leader does not have."""

    #: The log end before the cut.
    end: Offset
    #: The log end after it.
    to: Offset
    #: How many of these rows were known as committed. After an unclean election some may have been acknowledged.
    committed: int


Outcome = Cut | ReplicationError | None  # None: the answer was taken, and cut nothing


class Taken(NamedTuple):
    """What became of an answer."""

    outcome: Outcome
    #: Without the time in which it waited for its turn.
    took_ms: float


Clock = Callable[[], float]


def take(
    end: FollowerEnd,
    fetch: FetchPartition,
    answer: FetchedPartition,
    records: LogSlice | None,
    find: FindPartition,
    then: Callable[[Taken], None],
    *,
    clock_ms: Clock,
) -> None:
    """Take the leader's answer into the replica: now, or from a copy once another thread gives the partition back."""

    def taking(records: LogSlice | None) -> Callable[[ReplicaLoop], None]:
        return lambda replica: then(_taken(end, fetch, answer, records, replica, clock_ms))

    try:
        partition = find(fetch.topic_partition)
    except ReplicationError as error:
        then(Taken(error, 0.0))
        return
    if not partition.try_do(taking(records)):
        partition.do(taking(None if records is None else records.kept()))


def take_and_wait(
    end: FollowerEnd,
    fetch: FetchPartition,
    answer: FetchedPartition,
    records: LogSlice | None,
    find: FindPartition,
    clock_ms: Clock,
) -> Taken:
    """As `take`, for an answer that `may_wait`. Not on the broker's loop."""
    try:
        with find(fetch.topic_partition) as replica:
            return _taken(end, fetch, answer, records, replica, clock_ms)
    except ReplicationError as error:
        return Taken(error, 0.0)


def _taken(
    end: FollowerEnd,
    fetch: FetchPartition,
    answer: FetchedPartition,
    records: LogSlice | None,
    replica: ReplicaLoop,
    clock_ms: Clock,
) -> Taken:
    began_ms = clock_ms()
    outcome = _outcome(end, fetch, answer, records, replica)
    return Taken(outcome, clock_ms() - began_ms)


def _outcome(
    end: FollowerEnd,
    fetch: FetchPartition,
    answer: FetchedPartition,
    records: LogSlice | None,
    replica: ReplicaLoop,
) -> Outcome:
    if answer.error != NONE:
        return error_of(answer.error, answer.message)
    # The topic ids differ if the topic was made again under its old name meanwhile.
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
    """The leader's end: see the table above."""

    def __init__(self, follower: BrokerId, broker_epoch: int) -> None:
        self.follower = follower
        self.broker_epoch = broker_epoch
        #: Fetches without an answer, with their numbers. Bounded by the number of partitions.
        self._waiting: dict[TopicPartition, tuple[int, FetchPartition]] = {}
        #: Partitions whose fetch can be answered, in the order in which they became so. Bounded likewise.
        self._ready: dict[TopicPartition, None] = {}
        #: The follower's last frame found something new at once.
        self._is_behind = False
        #: From which offset each partition's last answer had records, if any had.
        self._sent: dict[TopicPartition, Offset] = {}
        self._gathers_until_ms = 0.0
        self._quiet_until_ms = 0.0

    def ready(self, partition: TopicPartition) -> bool:
        """Return whether it is the only one: whoever is told of the first will find those that come until it looks."""
        is_first = not self._ready
        self._ready[partition] = None
        return is_first

    def wait_for(self, partition: TopicPartition, number: int, fetch: FetchPartition) -> None:
        self._waiting[partition] = number, fetch

    def take_waiting(self, partition: TopicPartition) -> tuple[int, FetchPartition] | None:
        return self._waiting.pop(partition, None)

    def sends(self, partition: TopicPartition, records: Records | None) -> bool:
        """Note what an answer has. Returns whether the answer before it had records from the same offset: then they
        did not reach the follower whole."""
        if records is None:
            return False
        sent_before = self._sent.get(partition)
        self._sent[partition] = records.first_offset
        return sent_before == records.first_offset

    def frame_came(self) -> None:
        """All fetches of a frame have been taken in."""
        self._is_behind = bool(self._ready)

    def wait_ms(self, now_ms: float) -> float:
        """How long there is nothing to send, if nothing comes."""
        until_ms = self._quiet_until_ms
        if self._ready:
            until_ms = self._gathers_until_ms if self._is_behind else 0.0
        return max(0.0, until_ms - now_ms)

    @property
    def has_ready(self) -> bool:
        return bool(self._ready)

    def take_ready(self) -> list[TopicPartition]:
        """Take those to be answered next; none if only a sign of life is due."""
        taken = list(self._ready)[:ANSWERS_PER_SEND_MAX]
        for partition in taken:
            del self._ready[partition]
        return taken

    def gather(self, now_ms: float, for_ms: float) -> None:
        """Answers have been sent: a follower that is behind gets the next ones in `for_ms`."""
        self._gathers_until_ms = now_ms + for_ms

    def sent(self, now_ms: float) -> None:
        self._quiet_until_ms = now_ms + ALIVE_MS

    def owes_a_sign_of_life(self, now_ms: float) -> bool:
        return self._quiet_until_ms <= now_ms


class FetchAnswer(msgspec.Struct, frozen=True):
    number: int
    told: FetchedPartition
    records: Records | None
    #: The follower asks again for records that it was sent: the leader looks at its own copy before it sends them again
    #: (`checked`), since the disk may be at fault, or what lies between them.
    is_repeated: bool = False


class Connection(Protocol):
    """Carries frames between the two ends."""

    @property
    def end(self) -> LeaderEnd: ...


Carrier = TypeVar("Carrier", bound=Connection)


class FollowerConnections(Generic[Carrier]):
    """The connections of one leader: of each follower the newest counts."""

    def __init__(self, find: FindPartition) -> None:
        self._find = find
        self._current: dict[BrokerId, Carrier] = {}

    def of(self, follower: BrokerId) -> Carrier | None:
        return self._current.get(follower)

    def joined(self, connection: Carrier) -> Carrier | None:
        """Return the connection that it replaces. StaleBrokerEpoch: its follower has registered again since."""
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
        refused: Callable[[TopicPartition, ReplicationError], None],
    ) -> None:
        """Take a fetch in. refused: called if the fetch is to be answered by an error, at once."""
        end, name = connection.end, fetch.topic_partition
        try:
            partition = self._find(name)
        except ReplicationError as error:
            end.wait_for(name, number, fetch)
            refused(name, error)
            return

        def came(replica: ReplicaLoop) -> None:
            if self._current.get(end.follower) is connection:
                end.wait_for(name, number, fetch)
                try:
                    replica.fetch(fetch, by=end.follower, broker_epoch=end.broker_epoch, now_ms=now_ms)
                except ReplicationError as error:
                    refused(name, error)

        partition.do(came)

    def answer(self, connection: Carrier, name: TopicPartition, say: Callable[[FetchAnswer], None]) -> None:
        """Call `say` with the answer; not at all if the fetch has been answered, or came over another connection."""
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


def _answer(waiting: tuple[int, FetchPartition], replica: ReplicaLoop, end: LeaderEnd) -> FetchAnswer:
    try:
        taken = replica.take_answer(end.follower, end.broker_epoch)
    except ReplicationError as error:
        return _refusal(waiting, error)
    if taken is None:
        # Without an answer the follower would wait for ever.
        return _refusal(waiting, NotReady(f"{replica.partition} was not open yet when the fetch came: repeat it"))
    told, records = taken
    return FetchAnswer(waiting[0], told, records, is_repeated=end.sends(replica.partition, records))


def checked(answer: FetchAnswer, find: FindPartition, check: Callable[[LogSlice], object]) -> FetchAnswer:
    """The answer with its records in memory, if they are as they were written; else what is wrong with them. Not on the
    broker's loop: it reads the disk, and may wait for the partition. check: raises CorruptLog."""
    assert answer.records is not None, "there is something to check"
    try:
        records = answer.records.loaded()
        check(records)
        return FetchAnswer(answer.number, answer.told, records)
    except (CorruptLog, StorageFailed) as unread:
        refused: ReplicationError = unread
    try:
        with find(answer.told.topic_partition) as replica:
            replica.damage.require_none(answer.records)
        refused = NotReady(f"{answer.told.topic_partition} was cut as it was read: fetch again")
    except ReplicationError as error:
        refused = error
    return _refused(answer, refused)


def loaded(answer: FetchAnswer, load: Callable[[Records], Records]) -> FetchAnswer:
    """The answer, with its records as they are sent. load may read the disk, since nobody has the partition."""
    if answer.records is None:
        return answer
    try:
        return FetchAnswer(answer.number, answer.told, load(answer.records))
    except ReplicationError as error:
        return _refused(answer, error)


def _refused(answer: FetchAnswer, error: ReplicationError) -> FetchAnswer:
    told = answer.told
    refused = FetchedPartition(
        topic=told.topic,
        partition=told.partition,
        topic_id=told.topic_id,
        leader_epoch=told.leader_epoch,
        error=error.code,
        message=error.message,
    )
    return FetchAnswer(answer.number, refused, None)


def _refusal(waiting: tuple[int, FetchPartition], error: ReplicationError) -> FetchAnswer:
    number, fetch = waiting
    return FetchAnswer(number, answer_to(fetch, high_watermark=0, log_start=0, error=error), None)
