"""A replica that leads: appends and their acknowledgements, answers to followers, who is in sync.

produce → append → core.replica.replica.appended → the waiting fetches are answered → their next fetches →
core.replica.replica.fetched_by → high watermark → acknowledgements. A wait for the high watermark is a callback, never
a blocked thread. Whoever calls has the partition.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from spark_replication.core.law.writes import IsrAnswer, IsrUnanswered, StoredPartition
from spark_replication.core.replica import isr, replica, retention
from spark_replication.core.replica.epochs import NO_EPOCH
from spark_replication.core.replica.lag import lags
from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.core.replica.replica import Leading, PendingIsr
from spark_replication.engine.replica.copy_progress import CopyProgress
from spark_replication.engine.replica.fetch_answers import answer_to, fetch_asked
from spark_replication.engine.replica.follower_fetches import FollowerFetches
from spark_replication.engine.replica.own_log import OwnLog
from spark_replication.engine.replica.waiters import Acknowledge, Waiters
from spark_replication.errors import (
    FencedLeaderEpoch,
    NotLeader,
    OffsetNotAvailable,
    Overloaded,
    ReplicationError,
    StorageFailed,
)
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.descriptions import CopySize, FollowerLag, TableLag
from spark_replication.messages.replication import FetchedPartition, FetchPartition
from spark_replication.model import BrokerId, Epoch, Offset, TimeMs
from spark_replication.ports import IsrStore, PreparedBatch, Records


class LeaderRole:
    """Lives from the command that made this replica leader until another replica leads. Through leader epochs in
    between its waiters stay, since the log is the same."""

    def __init__(
        self,
        own: OwnLog,
        fetches: FollowerFetches,
        isr_store: IsrStore,
        leading: Leading,
        *,
        post: Callable[[Callable[[], None]], None],
        over: Callable[[str], None],
    ) -> None:
        """post: has a call done soon by the loop, which has this partition then; from any thread. over: called with the
        reason when ZooKeeper says that the partition is led otherwise; it calls `end`."""
        self.part = leading
        self._own = own
        self._fetches = fetches
        self._isr_store = isr_store
        self._post = post
        self._over = over
        self._waiters = Waiters()  # for the high watermark
        self._unflushed = Waiters()  # for the disk: acks=1 with flush=always
        self._copies = CopyProgress(own.log)
        self._unanswered = False  # the answer to an ISR change was lost: it is sent again
        self._retention_checked_ms = 0
        #: Below it, the topic's table has every row. None before a writer has said so at this leader epoch.
        self.table_end: Offset | None = None
        self._fetches.copying(leading.copying)
        self._own.progress.wake()

    def goes_on(self, leading: Leading) -> None:
        """Lead on at a later leader epoch."""
        self.table_end = None
        self._take(leading)

    def commanded(self, command: PartitionCommand, now_ms: int) -> None:
        """Take in a command of this leader epoch."""
        told = isr.told(self.part, StoredPartition(command.state, command.partition_epoch))
        self._take_changed(None if told is None else replica.assigned(told, command, now_ms))

    def end(self, why: str) -> None:
        """Refuse all waiters, so that they ask the new leader. A later answer of ZooKeeper is ignored."""
        self.part = replace(self.part, pending=None)
        self.refuse_waiters(NotLeader(f"{why}: reload routes and retry", maybe_written=True))

    def refuse_waiters(self, error: ReplicationError) -> None:
        self._waiters.refuse(error)
        self._unflushed.refuse(error)

    # Producers

    def produce(self, batch: PreparedBatch, *, acks: int | str, now_ms: int, acknowledge: Acknowledge) -> None:
        acks_all = acks == "all"
        replica.check_append(self.part, acks_all=acks_all, topic=self._own.partition)
        waiters = self._waiters if acks_all else self._unflushed
        if acks != 0 and len(waiters) >= self._own.settings.partition_waiters_max:
            whom = "followers" if acks_all else "the disk"
            raise Overloaded(f"{len(waiters)} appends of {self._own.partition} wait for {whom}: retry later")
        place = self._own.numbered.known(batch)
        if place is None:
            place = self._append(batch, now_ms)
        reached = self.part.high_watermark if acks_all else self._own.flushing.vouched_end
        if acks != 0 and place.last_offset >= reached:
            waiters.add(place, acknowledge)
        else:
            acknowledge(place)

    def _append(self, batch: PreparedBatch, now_ms: int) -> OffsetSpan:
        own, end_before = self._own, self._own.log.log_end
        try:
            place = own.numbered.append(batch, leader_epoch=self.part.state.leader_epoch, timestamp_ms=now_ms)
        except StorageFailed as error:
            own.disk_trouble.refused(self.part, error)
            raise
        self._take(replica.appended(self.part, end_before=end_before, end=own.flushing.vouched_end, now_ms=now_ms))
        self._fetches.appended(own.log.log_end, now_ms)
        return place

    # Followers

    def fetched(self, fetch: FetchPartition, *, by: BrokerId, broker_epoch: int, now_ms: int) -> bool:
        """Take a follower's fetch in. False: answer it at once, whatever there is."""
        if fetch.topic_id != self._own.topic_id:
            return False
        asked = fetch_asked(fetch, by, broker_epoch)
        view = self._own.view
        try:
            replica.check_fetch(self.part, asked)
        except ReplicationError:
            return False
        if not replica.on_log(self.part, asked, view):
            return False
        self._take(replica.fetched_by(self.part, asked, view, now_ms))
        self._propose(now_ms)
        # At the log end there is nothing to send: the fetch waits, and the next answer brings the high watermark.
        if fetch.offset != self._own.log.log_end:
            self._fetches.records_for(by, now_ms)
        return True

    def answer_to(
        self, fetch: FetchPartition, *, by: BrokerId, broker_epoch: int, allowed: int | None
    ) -> tuple[FetchedPartition, Records | None]:
        """allowed: what FollowerFetches.take returned. Raises the error that the fetch is to be answered with."""
        own, log = self._own, self._own.log
        answer = partial(answer_to, fetch, high_watermark=self.part.high_watermark, log_start=log.log_start)
        if fetch.topic_id != own.topic_id:
            raise NotLeader(f"{own.partition} is topic {own.topic_id} here, not {fetch.topic_id}")
        asked = fetch_asked(fetch, by, broker_epoch)
        replica.check_fetch(self.part, asked)
        parted = replica.diverging(self.part, asked, own.view)
        if parted is not None or fetch.offset < log.log_start:
            begins_anew = parted is None or parted.end <= log.log_start
            known = own.numbered.known_below(log.log_start) if begins_anew else b""
            return answer(diverging=parted, producers=known), None
        if allowed is None and self._fetches.must_wait(by):
            return answer(), None  # the follower fetches again, and waits for its turn
        bytes_max = own.settings.replica_fetch_bytes_max
        bytes_max = bytes_max if allowed is None else min(allowed, bytes_max)
        records = log.find(fetch.offset, bytes_max=bytes_max, end=log.log_end)
        begins = fetch.last_epoch == NO_EPOCH and fetch.offset == log.log_start > 0 and records is not None
        known = own.numbered.known_below(log.log_start) if begins else b""
        return answer(records=records, producers=known), records

    def lags(self, now_ms: int) -> dict[BrokerId, FollowerLag]:
        return lags(self.part, log_start=self._own.log.log_start, log_end=self._own.log.log_end, now_ms=now_ms)

    def copies(self) -> dict[BrokerId, CopySize]:
        return self._copies.sizes(self.part)

    # The disk, time, and ZooKeeper's answers

    def flushed(self) -> None:
        self._take_changed(self.part)
        self._unflushed.reached(self._own.flushing.vouched_end)

    def tick(self, now_ms: int) -> None:
        """Followers that lag leave the ISR, those that caught up join; an unanswered change is sent again. Retention
        removes what was kept for long enough: followers hear of it with their next answer."""
        self.part = isr.reconsidered(self.part)
        self._propose(now_ms)
        self._copies.observe(self.part, now_ms)
        # If the disk refuses, the next look tries again.
        with suppress(StorageFailed):
            self._retain(now_ms)

    def told_of_table(self, leader_epoch: Epoch, end: Offset) -> None:
        """The topic's table has every row below `end`, says a writer to whom this leader has named its epoch (TB4)."""
        own, epoch = self._own.partition, self.part.state.leader_epoch
        if leader_epoch != epoch:
            raise FencedLeaderEpoch(f"{own} is led at epoch {epoch}, not {leader_epoch}: ask again")
        if end > self.part.high_watermark:
            raise OffsetNotAvailable(
                f"{own} is known to be committed to {self.part.high_watermark}, and its table ends at {end}: wait"
            )
        self.table_end = max(end, self.table_end or 0)

    def table_lacks_since(self, now_ms: TimeMs) -> TimeMs | None:
        """See ReplicaLoop.table_lacks_since."""
        settings, first = self._own.settings, self._first_lacking
        if not settings.table or first >= self.part.high_watermark:
            return None
        appended_ms = self._own.log.time_of(first)
        return appended_ms if now_ms - appended_ms > settings.table_flush_ms else None

    def table_lag(self, now_ms: TimeMs) -> TableLag | None:
        """How far the topic's table is behind; None if the topic is no table. Cost: a look at the segments, and one
        search in an index."""
        own, log, high_watermark = self._own, self._own.log, self.part.high_watermark
        if not own.settings.table:
            return None
        held_back = retention.held_back_bytes(
            log.segments(), own.settings, high_watermark=high_watermark, now_ms=now_ms, table_end=self.table_end
        )
        # The high watermark of a new leader may be too low, so only an empty log proves that the table lacks nothing.
        if self.table_end is None and log.log_end > log.log_start:
            return TableLag(end=None, rows=None, ms=None, held_back_bytes=held_back)
        rows = high_watermark - self._first_lacking
        ms = self._lacking_ms(now_ms) if rows > 0 else 0
        return TableLag(end=self.table_end, rows=max(0, rows), ms=ms, held_back_bytes=held_back)

    def _lacking_ms(self, now_ms: TimeMs) -> int | None:
        try:
            return max(0, now_ms - self._own.log.time_of(self._first_lacking))
        except StorageFailed:
            return None

    @property
    def _first_lacking(self) -> Offset:
        """The first offset here that the table is not known to have."""
        return max(self._own.log.log_start, self.table_end or 0)

    def _retain(self, now_ms: int) -> None:
        own = self._own
        if now_ms - self._retention_checked_ms < own.settings.log_retention_check_interval_ms:
            return
        self._retention_checked_ms = now_ms
        high_watermark = self.part.high_watermark
        start = retention.retained_from(
            own.log.segments(),
            own.settings,
            high_watermark=high_watermark,
            now_ms=now_ms,
            table_end=self.table_end,
        )
        if start is not None:
            own.numbered.forget(start)

    def _propose(self, now_ms: int) -> None:
        before, log = self.part, self._own.log
        self.part = isr.propose(
            before,
            log_end=log.log_end,
            now_ms=now_ms,
            lag_ms=self._own.settings.replica_lag_time_ms,
            too_far=isr.too_far(before, self._own.settings.replica_lag_bytes, log.log_start, log.bytes_from),
        )
        if self.part.pending is not before.pending or self._unanswered:
            self._write_isr()
        if self.part.adding:
            self._fetches.copying(self.part.copying)

    def _write_isr(self) -> None:
        change = self.part.pending
        if change is None:
            return
        self._unanswered = False
        write = isr.write_of(self.part, change, self._own.partition, self._own.topic_id)
        self._isr_store.change_isr(write, lambda answer: self._post(partial(self._isr_answered, change, answer)))

    def _isr_answered(self, change: PendingIsr, answer: IsrAnswer) -> None:
        if self.part.pending is not change:
            return
        self._unanswered = isinstance(answer, IsrUnanswered)
        # An older high watermark is safe, too, so a disk that refuses to store this one is no reason to fail.
        with suppress(StorageFailed):
            self._take_changed(isr.answered(self.part, change, answer))

    def _take_changed(self, leading: Leading | None) -> None:
        """Take a leadership for which the high watermark may rise. None: this replica leads no longer."""
        if leading is None:
            self._over(f"ZooKeeper says that {self._own.partition} is led otherwise")
        else:
            self._take(replica.advanced(leading, self._own.flushing.vouched_end))

    def _take(self, leading: Leading) -> None:
        """Take the leadership as core returns it, its high watermark as high as it may be, and perform what follows:
        acknowledgements, answers, waiting readers."""
        before = self.part
        if before.state is not leading.state:
            # A dropped member counts as dead until its next fetch. Its waiting fetch is answered, so that it sends one.
            self._fetches.answer(before.state.isr - leading.state.isr)
        self.part = leading
        if leading.adding or before.adding:
            self._fetches.copying(leading.copying)
        if leading.high_watermark != before.high_watermark:
            self._fetches.is_news = True
            self._waiters.reached(leading.high_watermark)
            self._own.progress.wake()
