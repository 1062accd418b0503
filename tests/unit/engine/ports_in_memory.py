"""The ports of the engine, in memory: they keep what they are given, and answer when the story says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from spark_replication.config import TopicSettings
from spark_replication.core.controller.news import EverythingTold, News
from spark_replication.core.controller.plan import Reply
from spark_replication.core.law.writes import Group, GroupAnswer, IsrAnswer, IsrWrite
from spark_replication.core.replica.epochs import EpochHistory
from spark_replication.engine.replica.partition import Partition, Turns
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import StorageFailed
from spark_replication.messages.commands import Command
from spark_replication.model import (
    BrokerId,
    Epoch,
    Offset,
    PartitionNumber,
    Registration,
    ReplicaOf,
    TableOrigin,
    TimeMs,
    TopicPartition,
)
from spark_replication.ports import BatchPlace, DamagedBatch, Flush, LogSlice, PreparedBatch, StoredSlice
from spark_replication.sim.scenarios.memory_log import MemoryLog
from spark_replication.sim.scenarios.zookeeper_at_once import ZooKeeperAtOnce
from spark_replication.sim.world.one_at_a_time import OneAtATime, at_once


class HeldStore:
    """ports.ControllerStore: each commit waits for `answer`, as with a ZooKeeper that is asked over a network."""

    def __init__(self, store: ZooKeeperAtOnce) -> None:
        self._session = store.session()
        self.asked: list[tuple[Sequence[Group], Callable[[list[GroupAnswer]], None]]] = []

    def commit(self, groups: Sequence[Group], then: Callable[[list[GroupAnswer]], None]) -> None:
        self.asked.append((groups, then))

    def answer(self, seen: Callable[[GroupAnswer], GroupAnswer] = lambda answer: answer) -> None:
        """seen: what becomes of each answer on its way."""
        groups, then = self.asked.pop(0)
        self._session.commit(groups, lambda answers: then([seen(answer) for answer in answers]))

    def refuse(self, refused: GroupAnswer) -> None:
        """Nothing of it is stored."""
        groups, then = self.asked.pop(0)
        then([refused] * len(groups))


class Sent:
    """ports.CommandSender."""

    def __init__(self) -> None:
        self.commands: list[tuple[BrokerId, Command]] = []
        self.dead: list[BrokerId] = []

    def gone(self, broker: BrokerId) -> None:
        self.dead.append(broker)

    def send(self, broker: BrokerId, registration: Registration, command: Command) -> None:
        self.commands.append((broker, command))

    def take(self) -> list[tuple[BrokerId, Command]]:
        taken, self.commands = self.commands, []
        return taken


class Seals:
    """ports.TableSealer: what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Mapping[PartitionNumber, Epoch]]] = []
        self.restored: dict[str, TableOrigin | None] = {}

    def seal(
        self, topic: str, topic_id: str, epochs: Mapping[PartitionNumber, Epoch], restores: TableOrigin | None
    ) -> None:
        self.restored[topic] = restores
        self.asked.append((topic, topic_id, epochs))

    def take(self) -> list[tuple[str, str, Mapping[PartitionNumber, Epoch]]]:
        taken, self.asked = self.asked, []
        return taken


class Mirrored:
    """ports.MirrorFeed. Of what is gone it keeps the name. commands_before: how many were sent as it was told. origins:
    the kind, number and names of what was told to follow from them, and whether they began with it; own_origins: of
    partitions that follow from something else than the rest, its number."""

    def __init__(self, sent: Sent) -> None:
        self.told: list[tuple[TopicPartition, int]] = []
        self.gone: list[tuple[str, int]] = []
        self.complete: list[EverythingTold] = []
        self.commands_before: list[int] = []
        self.origins: list[tuple[str, str, tuple[str, ...], bool]] = []
        self.own_origins: list[tuple[str, str]] = []
        self.refused: list[str] = []
        self.wants_all = False
        self._sent = sent

    def tell(self, news: News) -> None:
        self.told.extend((each.command.topic_partition, each.zxid) for each in news.partitions)
        self.gone.extend((str(partition), zxid) for partition, zxid in news.removed)
        self.gone.extend(news.deleted)
        if news.complete is not None:
            self.complete.append(news.complete)
            self.wants_all = False
        self.commands_before.append(len(self._sent.commands))
        self.refused += [] if news.refused is None else [news.refused]
        self.own_origins += [
            (str(each.command.topic_partition), each.origin.id) for each in news.partitions if each.origin is not None
        ]
        if news.origin is not None:
            names = (
                *(str(each.command.topic_partition) for each in news.partitions),
                *(name for name, _ in news.topics),
            )
            self.origins.append((news.origin.kind, news.origin.id, names, news.begins))

    def confirmed(self, partition: TopicPartition, topic_id: str, leader_epoch: int) -> None: ...


class IsrWrites:
    """ports.IsrStore: what was asked, until the story says what ZooKeeper answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[IsrWrite, Callable[[IsrAnswer], None]]] = []

    def change_isr(self, write: IsrWrite, then: Callable[[IsrAnswer], None]) -> None:
        self.asked.append((write, then))

    def answer(self, answer: IsrAnswer) -> IsrWrite:
        write, then = self.asked.pop(0)
        then(answer)
        return write


class Failures:
    """ports.FailureReports."""

    def __init__(self) -> None:
        self.told: list[TopicPartition] = []

    def failed(self, replica: ReplicaOf, error: StorageFailed) -> None:
        self.told.append(replica.partition)


class Links:
    """ports.FollowerLinks."""

    def __init__(self) -> None:
        self.readied: list[BrokerId] = []
        self.following: dict[TopicPartition, BrokerId] = {}
        self.asked = 0
        #: Whether each word was said within `together`.
        self.said: list[bool] = []
        self._is_together = False

    def ready(self, follower: BrokerId, partition: TopicPartition) -> None:
        self.said.append(self._is_together)
        self.readied.append(follower)

    def follow(self, partition: TopicPartition, leader: BrokerId) -> None:
        self.said.append(self._is_together)
        self.following[partition] = leader
        self.asked += 1

    def unfollow(self, partition: TopicPartition) -> None:
        self.said.append(self._is_together)
        self.following.pop(partition, None)

    @contextmanager
    def together(self) -> Iterator[None]:
        self._is_together = True
        yield
        self._is_together = False

    def take(self) -> list[BrokerId]:
        taken, self.readied = self.readied, []
        return taken


class HeldFlushes:
    """ports.Flusher: each flush goes on until the story says how it ends."""

    def __init__(self) -> None:
        self.running: list[tuple[Flush, Callable[[StorageFailed | None], None]]] = []

    def flush(self, flush: Flush, ended: Callable[[StorageFailed | None], None]) -> None:
        self.running.append((flush, ended))

    def end(self, failed: StorageFailed | None = None) -> None:
        flush, ended = self.running.pop(0)
        flush.perform()
        ended(failed)


class HeldFlush:
    """ports.Flush. end: how far the log was when it began."""

    def __init__(self, end: Offset) -> None:
        self.end = end

    def perform(self) -> None:
        """The story says how it ended."""


class FailingLog(MemoryLog):
    """Its disk refuses what is named in `failing`. What is flushed is asked for, as on a real disk."""

    failing: frozenset[str] = frozenset()
    closed = False
    flushed_end = 0
    flushing: HeldFlush | None = None
    settings: TopicSettings | None = None
    lost: Sequence[DamagedBatch] = ()

    def configure(self, settings: TopicSettings) -> None:
        self.settings = settings

    def _disk(self, operation: str) -> None:
        if operation in self.failing:
            raise StorageFailed(f"the disk refuses to {operation}")

    def append(self, batch: PreparedBatch, *, leader_epoch: int, timestamp_ms: int) -> BatchPlace:
        self._disk("append")
        return super().append(batch, leader_epoch=leader_epoch, timestamp_ms=timestamp_ms)

    def append_slice(self, records: LogSlice) -> Iterable[BatchPlace]:
        self._disk("append_slice")
        return super().append_slice(records)

    def find(self, offset: Offset, *, bytes_max: int, end: Offset) -> StoredSlice | None:
        self._disk("find")
        return super().find(offset, bytes_max=bytes_max, end=end)

    def find_stored(self, offset: Offset, *, bytes_max: int) -> StoredSlice | None:
        self._disk("find")
        return super().find_stored(offset, bytes_max=bytes_max)

    def damaged(self, start: Offset, end: Offset) -> Sequence[DamagedBatch]:
        self._disk("find")
        return [each for each in self.lost if start <= each.last_offset and each.base_offset < end]

    def mend(self, batch: DamagedBatch, data: bytes) -> None:
        self._disk("mend")
        self.lost = [each for each in self.lost if each != batch]

    def bytes_from(self, offset: Offset) -> int:
        self._disk("read")
        return super().bytes_from(offset)

    def time_of(self, offset: Offset) -> TimeMs:
        self._disk("read")
        return super().time_of(offset)

    def begin_epoch(self, epoch: int) -> None:
        self._disk("begin_epoch")
        super().begin_epoch(epoch)

    def forget(self, before: Offset) -> None:
        self._disk("forget")
        super().forget(before)

    def batch_start(self, offset: Offset) -> Offset:
        self._disk("read")
        return super().batch_start(offset)

    def drop_below(self, offset: Offset) -> None:
        self._disk("drop_below")
        super().drop_below(offset)
        self.flushed_end = max(self.flushed_end, offset)

    def begin_anew(self, log_start: Offset) -> None:
        self._disk("begin_anew")
        super().begin_anew(log_start)
        self.flushed_end = log_start

    def begin_flush(self) -> HeldFlush | None:
        self._disk("flush")
        assert self.flushing is None
        if self.flushed_end < self.log_end:
            self.flushing = HeldFlush(self.log_end)
        return self.flushing

    def end_flush(self, failed: StorageFailed | None) -> None:
        assert self.flushing is not None
        self.flushed_end = self.flushed_end if failed else self.flushing.end
        self.flushing = None

    def truncate(self, end: Offset) -> None:
        super().truncate(end)
        self.flushed_end = min(self.flushed_end, self.log_end)

    def flush(self) -> None:
        self._disk("flush")
        self.flushed_end = self.log_end

    def close(self) -> None:
        self.closed = True


class Logs:
    """ports.ReplicaLogs. `quarantined`: what was put aside, in that order; `asked`: what of it somebody asked for."""

    def __init__(self) -> None:
        self.logs: dict[tuple[TopicPartition, str], FailingLog] = {}
        self.quarantined: list[tuple[TopicPartition, str]] = []
        self.asked: list[tuple[TopicPartition, str]] = []
        self.sick: frozenset[TopicPartition] = frozenset()
        self.takes_high_watermarks = True
        self.saved: list[bool] = []  # high watermarks, each time: whether durably

    def save_high_watermarks(self, *, durable: bool) -> None:
        if not self.takes_high_watermarks:
            raise StorageFailed("the disk is full")
        self.saved.append(durable)

    def open(self, partition: TopicPartition, topic_id: str, settings: TopicSettings) -> FailingLog:
        if partition in self.sick:
            raise StorageFailed(f"{partition} cannot be opened")
        found = self.logs.get((partition, topic_id))
        if found is None:
            found = self.logs[partition, topic_id] = FailingLog(0, [], EpochHistory(), 0)
        return found

    def found(self) -> Iterable[tuple[TopicPartition, str]]:
        return list(self.logs)

    def quarantine(self, partition: TopicPartition, topic_id: str, *, asked: bool) -> None:
        del self.logs[partition, topic_id]
        self.quarantined.append((partition, topic_id))
        self.asked += [(partition, topic_id)] if asked else []


class Answers:
    """Of requests: what each was answered with, in that order. `parts`: of those that were refused in part."""

    def __init__(self) -> None:
        self.given: list[tuple[int, str]] = []
        self.parts: dict[int, dict[str, str]] = {}

    def __call__(self, request: int, reply: Reply) -> None:
        self.given.append((request, "NONE" if reply.error is None else reply.error.code))
        if reply.errors:
            self.parts[request] = {name: error.code for name, error in reply.errors.items()}


def alone(replica: ReplicaLoop) -> Partition:
    """In a test of one thread."""
    return Partition(replica, Turns(OneAtATime(), at_once))
