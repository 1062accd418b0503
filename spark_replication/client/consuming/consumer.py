"""sr.Consumer: reads topics, alone or together with the other members of a group."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from spark_replication.client.asking.groups import require_group_name
from spark_replication.client.consuming.coordinator_link import CoordinatorLink
from spark_replication.client.consuming.partition_reads import PartitionReads, ReadOf, TakenBatch
from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.own_process import OwnProcess
from spark_replication.client.finding.routes import Routes
from spark_replication.client.reading.log_batch import LogBatch
from spark_replication.client.reading.reader import DEADLINE_MS, Reader
from spark_replication.core.replica.epochs import NO_EPOCH
from spark_replication.engine.client.membership import BeginReading, EndReading, Membership
from spark_replication.engine.client.reading import Preference
from spark_replication.errors import (
    ClientClosed,
    FencedMemberEpoch,
    InvalidRequest,
    ReplicationError,
    RequestTimedOut,
)
from spark_replication.messages.groups import HeldPartition, Introduction
from spark_replication.messages.ranges import WantedRange
from spark_replication.model import NamedOffset, Offset, TopicPartition
from spark_replication.transport.security.security import Security

SESSION_MS = 6_000
COMMIT_INTERVAL_MS = 500
LOOK_S = 1.0  # between two looks for partitions that topics have got, without a group
LEAVE_MS = 5_000.0  # so long a consumer that closes waits for its last commit, and to have left
CLOSED = "this consumer is closed: open another"


class HeardCondition(threading.Condition):
    """A lock, and who waits for what changes under it: threads, and perhaps an event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: Callable[[], None] = lambda: None

    def notify_all(self) -> None:
        super().notify_all()
        self.heard()


class Consumer:
    """Reads topics as their records come: `for found in consumer` gives a LogBatch at a time, of any partition; those
    of one partition come in their order.

    Consumers of one `group` share the partitions of their topics: each partition is read by one of them. What one has
    committed another goes on from, when partitions move because consumers come, go or die. Without a group, a consumer
    reads every partition, and nothing is remembered.

    A batch counts as done with when the next is asked for, and is committed then, together with others, every
    `commit_interval_ms`: whoever dies has what it had not committed read again by another (at least once). With
    `auto_commit=False` nothing is committed but by `commit`.

    Not thread-safe, but for `close`. Of no use in a fork.

    - `start`: where a group begins to read a partition that it has never committed: "earliest" or "latest".
    - `columns`: read these only.
    - `session_timeout_ms`: so long a consumer may be silent before others read its partitions. It need not ask for
      batches in that time, only live: one that keeps a partition which it is to hand over for a minute is out, too.
    - `name`: for people, in listings.
    - `security`, `prefer`, `deadline_ms` and `reach_ms`: as of a Reader.
    """

    def __init__(  # noqa: PLR0913 (each may be named by itself)
        self,
        bootstrap: str,
        topics: Sequence[str],
        group: str | None = None,
        *,
        start: NamedOffset = "earliest",
        auto_commit: bool = True,
        columns: Sequence[str] | None = None,
        commit_interval_ms: int = COMMIT_INTERVAL_MS,
        session_timeout_ms: int = SESSION_MS,
        name: str | None = None,
        security: Security | Mapping[str, Any] | None = None,
        prefer: Preference = "leader",
        deadline_ms: int = DEADLINE_MS,
        reach_ms: float | None = None,
    ) -> None:
        if isinstance(topics, str) or not topics:
            raise InvalidRequest(f'topics={topics!r}: name them in a list, as in ["orders"]')
        if start not in ("earliest", "latest"):
            raise InvalidRequest(f'start={start!r}: it is "earliest" or "latest"')
        if group is not None:
            require_group_name(group)
        self._topics = tuple(dict.fromkeys(topics))
        self._start: NamedOffset = start
        self._auto_commit = auto_commit
        self._columns = None if columns is None else tuple(columns)
        self._deadline_ms = deadline_ms
        self._process = OwnProcess("Consumer")
        self._changed = HeardCondition()  # guards everything below
        self._reads = PartitionReads(self._changed)
        self._membership = None
        self._link: CoordinatorLink | None = None
        self._failed: ReplicationError | None = None
        #: Whoever closes it waits until then. None: nobody has.
        self._leaving: Deadline | None = None
        #: What was given out last, and is not done with.
        self._last: TakenBatch | None = None
        #: Of each partition, the last batch that was given out under the present grant.
        self._given: dict[TopicPartition, TakenBatch] = {}
        self._look_s = 0.0
        membership = None if group is None else self._as_member(group, name, commit_interval_ms, session_timeout_ms)
        self._reader = Reader(bootstrap, security=security, prefer=prefer, deadline_ms=deadline_ms, reach_ms=reach_ms)
        self._membership = membership
        if membership is not None:
            self._routes = Routes(bootstrap, Security.of(security), reach_ms=reach_ms)
            self._link = CoordinatorLink(self._routes, membership, self._changed, self._follow_membership, self._fail)
            self._link.start()

    def _as_member(self, group: str, name: str | None, commit_interval_ms: int, session_timeout_ms: int) -> Membership:
        host = socket.gethostname()
        try:
            introduction = Introduction(
                topics=self._topics,
                host=host,
                name=name or f"{host}:{os.getpid()}",
                session_ms=session_timeout_ms,
            )
        except ValueError as error:
            raise InvalidRequest(str(error)) from error
        return Membership(
            group,
            str(uuid.uuid4()),
            introduction,
            commit_interval_s=commit_interval_ms / 1000,
            now_s=time.monotonic(),
        )

    # Batches

    def __iter__(self) -> Iterator[LogBatch]:
        return self

    def __next__(self) -> LogBatch:
        """Wait for the next batch. Ends once the consumer is closed."""
        try:
            found = self.poll(None)
        except ClientClosed:
            raise StopIteration from None
        assert found is not None, "it has waited"
        return found

    def poll(self, timeout_s: float | None = 0.0) -> LogBatch | None:
        """The next batch; None if there is none in time. timeout_s: None to wait as long as it takes."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self.look()
            with self._changed:
                found = self.take()
                left_s = LOOK_S if until_s is None else until_s - time.monotonic()
                if found is not None or left_s <= 0:
                    return found
                self._changed.wait(min(LOOK_S, left_s))

    def take(self) -> LogBatch | None:
        """The next batch, if one has come. For whoever waits by other means (`call_on_change`, `look`)."""
        self._process.require()
        with self._changed:
            self._done_with_last()
            self._require_usable()
            while (taken := self._reads.take()) is not None:
                if self._gives_out(taken):
                    return taken.batch
            return None

    def call_on_change(self, call: Callable[[], None]) -> None:
        """Call it, on any thread, whenever `take` may find another batch, or raise."""
        self._changed.heard = call

    @property
    def looks(self) -> bool:
        """Whether `look` would ask brokers, which may wait."""
        return self._membership is None and time.monotonic() >= self._look_s and self._leaving is None

    def look(self) -> None:
        """Without a group: once a second, look for partitions that the topics have got. Brokers are asked without the
        lock."""
        self._process.require()
        if not self.looks:
            return
        is_first, self._look_s = not self._look_s, time.monotonic() + LOOK_S
        topics = [self._reader.topic(name) for name in self._topics]
        with self._changed:
            for partition in (TopicPartition(topic.name, number) for topic in topics for number in topic.numbers):
                if partition not in self._reads and self._leaving is None:
                    start = self._start if is_first else "earliest"
                    self._reads.begin(ReadOf(partition, 0), partial(self._from_start, partition, start))

    def _require_usable(self) -> None:
        if self._leaving is not None:
            raise ClientClosed(CLOSED)
        error = self._failed or (None if self._membership is None else self._membership.error)
        if error is not None:
            raise error

    def _gives_out(self, taken: TakenBatch) -> bool:
        read = taken.read
        if self._membership is not None and not self._membership.gives_out(read.partition, read.owner_epoch):
            return False
        self._last = self._given[read.partition] = taken
        return True

    def _done_with_last(self) -> None:
        last, self._last = self._last, None
        if self._membership is None or last is None:
            return
        if self._auto_commit:
            self._processed(last)
        self._membership.done()
        self._follow_membership()
        self._look()

    def _processed(self, taken: TakenBatch) -> bool:
        assert self._membership is not None, "it has a group"
        read, batch = taken.read, taken.batch
        return self._membership.processed(
            read.partition,
            read.owner_epoch,
            taken.topic_id,
            batch.last_offset + 1,
            batch.leader_epoch,
            time.monotonic(),
        )

    # Positions

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this consumer reads at present."""
        with self._changed:
            if self._membership is None:
                return sorted(self._reads.partitions)
            return sorted(self._membership.held)

    def commit(self, found: LogBatch | None = None) -> None:
        """Commit that this batch, and all of its partition before it, is done with; without one, all that was given
        out. Returns once it is stored. FencedMemberEpoch: the partition has gone to another consumer, which reads again
        what was not committed."""
        self._process.require()
        if self._membership is None:
            raise InvalidRequest("without a group there is nothing to commit to: name one, as in Consumer(…, group=…)")
        with self._changed:
            wanted = [*self._given.values()] if found is None else [self._taken_of(found)]
            for taken in wanted:
                if not self._processed(taken):
                    raise _moved(taken)
            self._membership.commit_now()
            self._look()
            self._await_commits(wanted)

    def _taken_of(self, found: LogBatch) -> TakenBatch:
        partition = TopicPartition(found.topic, found.partition)
        taken = self._given.get(partition)
        if taken is None or found.last_offset > taken.batch.last_offset:
            raise FencedMemberEpoch(
                f"this consumer has not given out {partition} up to offset {found.last_offset}, or does not read it "
                "any longer: another reads again what was not committed"
            )
        return TakenBatch(taken.read, taken.topic_id, found)

    def _await_commits(self, wanted: list[TakenBatch]) -> None:
        membership, deadline = self._membership, Deadline(self._deadline_ms)
        assert membership is not None, "it has a group"
        for taken in wanted:
            read, end = taken.read, taken.batch.last_offset + 1
            while membership.owes(read.partition):
                self._require_usable()
                if not self._changed.wait(deadline.remaining_s) and deadline.passed:
                    raise RequestTimedOut(
                        f"nobody has taken the commit of {read.partition} to {end} within {self._deadline_ms} ms: it "
                        "is sent until it is taken; ask again, or see `spark-replication health`",
                        maybe_written=True,
                    )
            if not membership.has_committed(read.partition, read.owner_epoch, end):
                raise _moved(taken)

    # What it reads. Whoever calls has the lock.

    def _look(self) -> None:
        if self._link is not None:
            self._link.look()

    def _fail(self, error: ReplicationError) -> None:
        self._failed = error

    def _follow_membership(self) -> None:
        """After each event: begin and end reads as the membership says."""
        if self._membership is None:
            return
        for reading in self._membership.reads():
            match reading:
                case BeginReading(held):
                    self._given.pop(held.topic_partition, None)
                    self._reads.begin(ReadOf(held.topic_partition, held.owner_epoch), partial(self._goes_on, held))
                case EndReading(partition):
                    self._reads.end(partition)
                    self._given.pop(partition, None)
        self._changed.notify_all()

    def _goes_on(self, held: HeldPartition) -> tuple[str, Generator[LogBatch, None, None]]:
        """On a read's thread."""
        partition = held.topic_partition
        topic_id = self._reader.topic(partition.topic).topic_id
        if held.topic_id == topic_id:
            return topic_id, self._from_place(partition, topic_id, held.offset, held.last_epoch)
        if self._start == "earliest":
            return self._from_start(partition, "earliest")
        wanted = WantedRange(topic=partition.topic, partition=partition.partition, start="latest")
        found = self._reader.ranges([wanted])[partition]
        with self._changed:  # whoever goes on in its place does so from here, and leaves nothing out
            assert self._membership is not None, "it has a group"
            self._membership.processed(
                partition, held.owner_epoch, found.topic_id, found.start, found.start_epoch, time.monotonic()
            )
        self._look()
        return topic_id, self._from_place(partition, topic_id, found.start, found.start_epoch)

    def _from_start(self, partition: TopicPartition, start: NamedOffset) -> tuple[str, Generator[LogBatch, None, None]]:
        topic_id = self._reader.topic(partition.topic).topic_id
        return topic_id, self._read(partition, topic_id, start, None)

    def _from_place(
        self, partition: TopicPartition, topic_id: str, offset: Offset, last_epoch: int
    ) -> Generator[LogBatch, None, None]:
        return self._read(partition, topic_id, offset, None if last_epoch == NO_EPOCH else last_epoch)

    def _read(
        self, partition: TopicPartition, topic_id: str, start: Offset | NamedOffset, last_epoch: int | None
    ) -> Generator[LogBatch, None, None]:
        return self._reader.read(
            partition.topic,
            partition.partition,
            start,
            follow=True,
            columns=self._columns,
            topic_id=topic_id,
            last_epoch=last_epoch,
        )

    # Its end

    def close(self) -> None:
        """Leave the group: others read its partitions at once. What is done with is committed first, but not a batch
        after which no other was asked for. Any thread may call this, and each that does waits for all of it."""
        if not self._process.is_this:
            return
        with self._changed:
            membership = self._membership
            if self._leaving is None:
                self._leaving = Deadline(LEAVE_MS)
                self._reads.end_all()
                if membership is not None:
                    membership.leave()
                    self._look()
                self._changed.notify_all()
            if membership is not None:
                self._changed.wait_for(lambda: membership.is_over, self._leaving.remaining_s)
            self._changed.notify_all()
        if self._link is not None:
            self._link.close()
            self._routes.close()
        self._reader.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _moved(taken: TakenBatch) -> FencedMemberEpoch:
    return FencedMemberEpoch(
        f"{taken.read.partition} has gone to another consumer, which reads again what was not committed: this commit "
        f"to {taken.batch.last_offset + 1} changed nothing"
    )
