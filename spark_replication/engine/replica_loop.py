"""One partition on one broker: commands, appends, fetches and ISR answers, each a step that asks core and performs what
core said through the ports. Not thread-safe: engine.partition is the only way to it.

produce → append → core.replica.replica.appended → followers told there is something → their next fetch →
core.replica.replica.fetched_by → high watermark → acknowledgements. A wait for the high watermark is a callback, never
a blocked thread.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec

from spark_replication.config import Compression, Settings
from spark_replication.core.law.writes import IsrAnswer, IsrUnanswered, StoredPartition
from spark_replication.core.replica import isr, replica, retention
from spark_replication.core.replica.lag import lags
from spark_replication.core.replica.producers import Place
from spark_replication.core.replica.read_start import start_of
from spark_replication.core.replica.replica import Following, Leading, LogView, Me, PendingIsr
from spark_replication.engine.copy_progress import CopyProgress
from spark_replication.engine.copy_throttle import CopyThrottle
from spark_replication.engine.disk_trouble import DiskTrouble
from spark_replication.engine.fetch_answers import answer_to, fetch_asked
from spark_replication.engine.flushing import Flushing
from spark_replication.engine.follower_fetches import FollowerFetches
from spark_replication.engine.numbered_log import NumberedLog
from spark_replication.engine.waiters import Acknowledge, Progress, Waiters
from spark_replication.errors import CorruptLog, NotLeader, Overloaded, ReplicationError, StorageFailed
from spark_replication.messages.commands import PartitionCommand, ReplicaLogInfo
from spark_replication.messages.descriptions import FollowerLag, ReplicaSize
from spark_replication.messages.replication import FetchedPartition, FetchPartition
from spark_replication.model import BrokerId, Epoch, Offset, ReplicaOf, Start, TopicPartition
from spark_replication.ports import (
    FailureReports,
    Flusher,
    FollowerLinks,
    IsrStore,
    LogSlice,
    PreparedBatch,
    Records,
    ReplicaLog,
)


class ReplicaLoop:
    def __init__(
        self,
        partition: TopicPartition,
        topic_id: str,
        log: ReplicaLog,
        *,
        settings: Settings,
        isr_store: IsrStore,
        links: FollowerLinks,
        flusher: Flusher,
        failures: FailureReports,
        throttle: CopyThrottle,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        """post: has something done soon, while nobody else has this replica; from any thread."""
        self.partition = partition
        self.topic_id = topic_id
        self.log = log
        self.part: Leading | Following | None = None
        self.progress = Progress()  # of the high watermark, or another role: consumers wait for it
        self._settings = settings
        self._isr_store = isr_store
        self._links = links
        self.disk_trouble = DiskTrouble(ReplicaOf(partition, topic_id), failures)
        self._order = (-1, -1)
        self._clean_since = 0  # of the registration under which it was commanded last
        self._waiters = Waiters()  # for the high watermark
        self._unflushed = Waiters()  # of acks=1, for the disk, with flush=always
        self._post = post
        self._flushing = Flushing(log, flusher, settings, lambda failed: self._post(partial(self._flush_ended, failed)))
        self._unanswered = False
        self._fetches = FollowerFetches(partition, links, throttle)
        self._copies = CopyProgress(log)
        self._retention_checked_ms = 0
        self._numbered = NumberedLog(log, settings)
        self._asked: FetchPartition | None = None  # the last fetch; None: whatever is answered yet is over

    @property
    def view(self) -> LogView:
        flushed_end = self.log.flushed_end if self._flushing.always else None
        return LogView(self.log.log_start, self.log.log_end, self.log.epochs, flushed_end)

    @property
    def order(self) -> tuple[int, int]:
        """Leader epoch and partition epoch of the newest command that was carried out."""
        return self._order

    @property
    def high_watermark(self) -> Offset:
        """Known to this process, whatever of it the disk has taken: it never falls within one (I5)."""
        return self.log.high_watermark if self.part is None else self.part.high_watermark

    def configure(self, settings: Settings) -> None:
        """The topic's settings, from now on."""
        self._settings = self._flushing.settings = settings
        self.log.configure(settings)
        self._numbered.configure(settings)
        if self.part is not None:
            self._flushing.written()

    # Commands

    def is_of_before(self, created: Epoch) -> bool:
        """What is here is of the partition before it was removed, and added again (E4)."""
        log = self.log
        return bool(log.log_end or log.epochs) and created > max(log.epochs.first_epoch, 0)

    def command(self, command: PartitionCommand, me: Me, now_ms: int) -> None:
        """Lead or follow, if the command is newer than what is known (E2)."""
        self._clean_since = me.clean_since
        if command.order > self._order:
            self._carry_out(command, me, now_ms)
            if self.part is not None:
                self._flushing.written()  # what is there already is to count, too
            # Not before: a command that a failing disk stopped is to be carried out when it comes again.
            self._order = max(self._order, command.order)

    def _carry_out(self, command: PartitionCommand, me: Me, now_ms: int) -> None:
        state = command.state
        if replica.may_lead(state, me):
            self._lead(command, me, now_ms)
            return
        if state.leader == me.broker:
            self._leave(f"broker {me.broker} lost its log since it joined the ISR of {self.partition}")
            return
        before = self.part if isinstance(self.part, Following) else None
        same_leader = before is not None and (before.leader, before.leader_epoch) == (state.leader, state.leader_epoch)
        self.part = Following(
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            partition_epoch=command.partition_epoch,
            high_watermark=self.high_watermark,
            created=state.created,
            served=before.served if before is not None and same_leader else None,
        )
        self._step_aside(f"broker {me.broker} no longer leads {self.partition}: leader is {state.leader}")
        if not same_leader:
            self._asked = None
        if state.leader is None:
            self._links.unfollow(self.partition)
        elif not same_leader:
            self._links.follow(self.partition, state.leader)

    def _lead(self, command: PartitionCommand, me: Me, now_ms: int) -> None:
        leading = self.part
        if isinstance(leading, Leading) and leading.state.leader_epoch == command.state.leader_epoch:
            told = isr.told(leading, StoredPartition(command.state, command.partition_epoch))
            self._take(None if told is None else replica.assigned(told, command, now_ms))
            return
        self._links.unfollow(self.partition)
        self._fetches.answer_all()  # they are of an earlier leader epoch
        if self.log.epochs.last_epoch < command.state.leader_epoch:
            self.log.begin_epoch(command.state.leader_epoch)
        self._take(replica.lead(command, me, self.view, self.high_watermark, now_ms))

    def _step_aside(self, why: str) -> None:
        """No longer leading: whoever waits here is told, and asks the new leader."""
        self._refuse_waiters(NotLeader(f"{why}: reload routes and retry", maybe_written=True))
        self._fetches.answer_all()
        self.progress.wake()

    def _refuse_waiters(self, error: ReplicationError) -> None:
        self._waiters.refuse(error)
        self._unflushed.refuse(error)

    def _leave(self, why: str) -> None:
        """Neither lead nor follow, until a command says so that is newer than what it wrote itself."""
        if isinstance(self.part, Leading):
            self._order = max(self._order, (self.part.state.leader_epoch, self.part.partition_epoch))
        with suppress(StorageFailed):  # an older one is safe, too
            self.log.checkpoint(self.high_watermark)
        self.part = None
        self._links.unfollow(self.partition)
        self._step_aside(why)

    def log_info(self, leader_epoch: int) -> ReplicaLogInfo:
        """What a recovery at this leader epoch chooses by. Who follows stops doing so: the answer must not go stale
        (L4). A late question, of an epoch that is over, is answered and changes nothing."""
        if isinstance(self.part, Following) and self.part.leader is not None and self._order[0] <= leader_epoch:
            self.part = msgspec.structs.replace(self.part, leader=None)
            self._asked = None
            self._links.unfollow(self.partition)
        return ReplicaLogInfo(
            topic=self.partition.topic,
            partition=self.partition.partition,
            topic_id=self.topic_id,
            last_epoch=self.view.epoch_before(self.log.log_end),
            current_epoch=self._order[0],
            end=self.log.log_end,
        )

    def resign(self, why: str) -> None:
        """The session expired: what is read in ZooKeeper after the next registration counts, whatever its epoch."""
        self._leave(why)
        self._order = (-1, -1)

    def lags(self, now_ms: int) -> dict[BrokerId, FollowerLag]:
        """Of all followers, if this replica leads."""
        if not isinstance(self.part, Leading):
            return {}
        return lags(self.part, log_start=self.log.log_start, log_end=self.log.log_end, now_ms=now_ms)

    def size(self, now_ms: int) -> ReplicaSize:
        return ReplicaSize(
            topic=self.partition.topic,
            partition=self.partition.partition,
            topic_id=self.topic_id,
            leads=isinstance(self.part, Leading),
            log_start=self.log.log_start,
            high_watermark=self.high_watermark,
            log_end=self.log.log_end,
            last_epoch=self.view.epoch_before(self.log.log_end),
            lags=self.lags(now_ms),
            copies=self._copies.sizes(self.part),
            bytes=sum(segment.bytes for segment in self.log.segments()),
        )

    @property
    def compression(self) -> Compression:
        """How batches are to be stored."""
        return self._settings.compression

    def leading(self) -> Leading:
        if not isinstance(self.part, Leading):
            known = "nobody" if self.part is None or self.part.leader is None else f"broker {self.part.leader}"
            raise NotLeader(f"this broker does not lead {self.partition}, {known} does: reload routes and retry")
        return self.part

    # Producers

    def produce(self, batch: PreparedBatch, *, acks: int | str, now_ms: int, acknowledge: Acknowledge) -> None:
        """Append; `acknowledge` is called once, with the place or the error: at once for acks=0, for acks=1 once this
        replica vouches for it, else once the high watermark covers it. What is refused here raises, and nothing of it
        is stored."""
        leading = self.leading()
        acks_all = acks == "all"
        replica.check_append(leading, acks_all=acks_all, topic=self.partition)
        waiters = self._waiters if acks_all else self._unflushed
        if acks != 0 and len(waiters) >= self._settings.partition_waiters_max:
            whom = "followers" if acks_all else "the disk"
            raise Overloaded(f"{len(waiters)} appends of {self.partition} wait for {whom}: retry later")
        place = self.known(batch)
        if place is None:
            place = self._append(leading, batch, now_ms)
        reached = self.high_watermark if acks_all else self._flushing.vouched_end
        if acks != 0 and place.last_offset >= reached:
            waiters.add(place, acknowledge)
        else:
            acknowledge(place)
        self._flushing.written()

    def known(self, batch: PreparedBatch) -> Place | None:
        return self._numbered.known(batch)  # as `produce` would answer

    def _append(self, leading: Leading, batch: PreparedBatch, now_ms: int) -> Place:
        end_before = self.log.log_end
        try:
            place = self._numbered.append(batch, leader_epoch=leading.state.leader_epoch, timestamp_ms=now_ms)
        except StorageFailed as error:
            self.disk_trouble.refused(self.part, error)
            raise
        self._take(replica.appended(leading, end_before=end_before, end=self._flushing.vouched_end, now_ms=now_ms))
        self._fetches.appended(self.log.log_end, leading.copying, now_ms)
        return place

    # Followers, seen from the leader

    def fetch(self, fetch: FetchPartition, *, by: BrokerId, broker_epoch: int, now_ms: int) -> None:
        """A follower's fetch arrives. It is answered by `take_answer`, when `links.ready` says there is something."""
        self._fetches.came(by, fetch)
        if isinstance(self.part, Leading) and fetch.topic_id == self.topic_id:
            asked = fetch_asked(fetch, by, broker_epoch)
            try:
                replica.check_fetch(self.part, asked)
            except ReplicationError:
                self._fetches.ready(by)
                return
            view = self.view
            if replica.on_log(self.part, asked, view):
                self._take(replica.fetched_by(self.part, asked, view, now_ms))
                self._propose(self.part, now_ms)
                if fetch.offset == self.log.log_end:
                    return  # nothing to say: it waits, and hears of the high watermark with what comes next
                self._fetches.records_for(by, self.part.copying, now_ms)
                return
        self._fetches.ready(by)

    def take_answer(self, by: BrokerId, broker_epoch: int) -> tuple[FetchedPartition, Records | None] | None:
        """What the follower's waiting fetch is answered with, now; None: it has been answered."""
        taken = self._fetches.take(by)
        if taken is None:
            return None
        fetch, allowed = taken
        records: Records | None = None
        answer = partial(answer_to, fetch, high_watermark=self.high_watermark, log_start=self.log.log_start)
        try:
            leading = self.leading()
            if fetch.topic_id != self.topic_id:
                raise NotLeader(f"{self.partition} is topic {self.topic_id} here, not {fetch.topic_id}")
            asked = fetch_asked(fetch, by, broker_epoch)
            replica.check_fetch(leading, asked)
            parted = replica.diverging(leading, asked, self.view)
            if parted is not None or fetch.offset < self.log.log_start:
                begins_anew = parted is None or parted.end <= self.log.log_start
                known = self._numbered.known_below(self.log.log_start) if begins_anew else b""
                return answer(diverging=parted, producers=known), None
            if allowed is None and self._fetches.must_wait(by, leading.copying):
                return answer(), None  # it asks again, and waits for its turn
            bytes_max = self._settings.replica_fetch_bytes_max
            bytes_max = bytes_max if allowed is None else min(allowed, bytes_max)
            records = self.log.find(fetch.offset, bytes_max=bytes_max, end=self.log.log_end)
        except ReplicationError as error:
            return answer(error=error), None
        finally:
            if allowed is not None:
                self._fetches.sent(by, 0 if records is None else len(records.data))
        return answer(records=records), records

    # Following

    def next_fetch(self) -> FetchPartition | None:
        """What to ask the leader for; None: this replica follows nobody, or is to be asked again when its disk may do
        again, or when what it has is on it, since a fetch says that it has it."""
        if not isinstance(self.part, Following) or self.part.leader is None or self.disk_trouble.is_recent:
            return None
        view = self.view
        if view.vouched_end < view.log_end:
            return None
        self._asked = FetchPartition(
            topic=self.partition.topic,
            partition=self.partition.partition,
            topic_id=self.topic_id,
            leader_epoch=self.part.leader_epoch,
            offset=view.log_end,
            last_epoch=view.epoch_before(view.log_end),
            clean_since=self._clean_since,
            high_watermark=self.part.high_watermark,
        )
        return self._asked

    def fetch_answered(self, fetch: FetchPartition, answer: FetchedPartition, records: LogSlice | None) -> None:
        """The leader's answer to this fetch, the very object that `next_fetch` gave: cut what parts from its log, or
        append the same bytes (F1, F2), and forget what the leader has forgotten. To another fetch, or of another leader
        epoch, it says nothing: since then the log may have grown, and the leader counts on that."""
        following = self.part
        if fetch is not self._asked or not isinstance(following, Following):
            return
        self._asked = None
        if answer.leader_epoch != following.leader_epoch:
            return
        try:
            self._take_records(following, answer, records)
        except Exception as error:
            if isinstance(error, StorageFailed):
                self.disk_trouble.refused(self.part, error)
            if isinstance(self.part, Following):  # what failed half-way may have cut the log
                self.part = replica.within(self.part, self.view)
            raise

    def _take_records(self, following: Following, answer: FetchedPartition, records: LogSlice | None) -> None:
        parted = answer.diverging
        if parted is not None and (parted.end > answer.log_start or not answer.log_start):
            self._numbered.truncate(replica.truncation(self.view, parted))
        elif parted is not None or answer.log_start > self.log.log_end:  # nobody can say what is right below that
            self._numbered.begin_anew(answer.log_start, answer.producers)
        if self.log.log_end and not self.log.epochs:  # it says of which life of the partition it is (E4)
            self.log.begin_epoch(following.created)
        if records is not None:
            if records.first_offset != self.log.log_end:
                raise CorruptLog(f"{self.partition}: asked for {self.log.log_end}, got {records.first_offset}")
            self._numbered.append_slice(records)
        high_watermark, served = max(answer.high_watermark, following.high_watermark), following.served
        if answer.diverging is None:  # else what is left after the cut may part from the leader's log, too
            served = max(answer.high_watermark, served or 0)
        told = msgspec.structs.replace(following, high_watermark=high_watermark, served=served)
        self.part = part = replica.within(told, self.view)
        if answer.log_start > self.log.log_start:
            self._numbered.forget(min(answer.log_start, part.high_watermark))
        if part.served != following.served:
            self.progress.wake()
        self._flushing.written()

    # Consumers

    def read(self, offset: Offset, *, bytes_max: int, to: Offset | None, any_replica: bool = False) -> Records | None:
        """What a consumer may see from `offset` on, at most to `to`; None: nothing (yet). Of a follower only if any
        replica will do: its high watermark lags behind."""
        end = replica.readable_end(self.committed_end(any_replica=any_replica), offset, self.view)
        return self.log.find(offset, bytes_max=bytes_max, end=end) if offset < end and offset != to else None

    def start_of(self, start: Start, *, any_replica: bool = False) -> Offset:
        end = self.committed_end(any_replica=any_replica)
        return start_of(start, log_start=self.log.log_start, end=end, offset_of_time=self.log.offset_of_time)

    def committed_end(self, *, any_replica: bool) -> Offset:
        served = self.part.served if any_replica and isinstance(self.part, Following) else None
        return self.leading().high_watermark if served is None else served

    # Time, and ZooKeeper's answers

    def tick(self, now_ms: int) -> None:
        """Followers that lag leave the ISR, those that caught up join; an unanswered change is asked again. What was
        kept for long enough goes: followers hear of it with their next answer."""
        if isinstance(self.part, Leading):
            self._propose(isr.reconsidered(self.part), now_ms)
            self._copies.observe(self.part, now_ms)
            # A disk that refuses to let go is asked again with the next look.
            with suppress(StorageFailed):
                self._retain(now_ms)
        self._flushing.tick(now_ms)
        if self.disk_trouble.tick(now_ms, self._settings.disk_retry_ms):
            self._ask_leader()

    @property
    def leads(self) -> bool:
        return isinstance(self.part, Leading)

    @property
    def waits_for_time(self) -> bool:
        """For a flush, or to try its disk again: a tick should not be late."""
        return self._flushing.by_interval or self.disk_trouble.is_recent

    def _ask_leader(self) -> None:
        if isinstance(self.part, Following) and self.part.leader is not None:
            self._links.follow(self.partition, self.part.leader)

    def flush_soon(self) -> None:
        """Whatever its topic's `flush` says: it is about to be closed."""
        self._flushing.begin()

    def _flush_ended(self, failed: StorageFailed | None) -> None:
        self._flushing.end(failed)
        if failed is not None:
            self.disk_trouble.refused(self.part, failed)
            self._refuse_waiters(StorageFailed(failed.message, maybe_written=True))
            return
        if isinstance(self.part, Leading):
            self._take(self.part)
            self._unflushed.reached(self._flushing.vouched_end)
        elif self._flushing.always:
            self._ask_leader()
        if self.part is not None:
            self._flushing.written()

    def _retain(self, now_ms: int) -> None:
        if now_ms - self._retention_checked_ms < self._settings.log_retention_check_interval_ms:
            return
        self._retention_checked_ms = now_ms
        start = retention.retained_from(
            self.log.segments(), self._settings, high_watermark=self.high_watermark, now_ms=now_ms
        )
        if start is not None:
            self._numbered.forget(start)

    def _propose(self, leading: Leading, now_ms: int) -> None:
        self.part = isr.propose(
            leading,
            log_end=self.log.log_end,
            now_ms=now_ms,
            lag_ms=self._settings.replica_lag_time_ms,
            too_far=isr.too_far(leading, self._settings.replica_lag_bytes, self.log.log_start, self.log.bytes_from),
        )
        if self.part.pending is not leading.pending or self._unanswered:
            self._write_isr(self.part)
        self._fetches.still_copying(self.part.copying)

    def tell_high_watermark(self) -> None:
        """Followers that wait at the log end hear of a high watermark that has moved since."""
        self._fetches.reached(self.high_watermark)

    def _write_isr(self, leading: Leading) -> None:
        change = leading.pending
        if change is None:
            return
        self._unanswered = False
        write = isr.write_of(leading, change, self.partition, self.topic_id)
        self._isr_store.change_isr(write, lambda answer: self._post(partial(self._isr_answered, change, answer)))

    def _isr_answered(self, change: PendingIsr, answer: IsrAnswer) -> None:
        if not isinstance(self.part, Leading) or self.part.pending is not change:
            return
        self._unanswered = isinstance(answer, IsrUnanswered)
        # An older high watermark is safe, too: a disk that refuses to store it is no reason to fail here.
        with suppress(StorageFailed):
            self._take(isr.answered(self.part, change, answer))

    def _take(self, leading: Leading | None) -> None:
        """The leadership as core says it is now, and what follows from it: acknowledgements, waiting readers."""
        if leading is None:
            self._leave(f"ZooKeeper says that {self.partition} is led otherwise")
            return
        leads = self.part if isinstance(self.part, Leading) else None
        if leads is not None and leads.state is not leading.state:
            # Who was dropped counts as dead until it is heard of: alive, it asks again.
            self._fetches.answer(leads.state.isr - leading.state.isr)
        before = None if leads is None else leads.high_watermark
        self.part = replica.advanced(leading, self._flushing.vouched_end)
        self._fetches.still_copying(self.part.copying)
        if self.part.high_watermark != before:
            self._waiters.reached(self.part.high_watermark)
            self.progress.wake()

    def checkpoint(self) -> None:
        if self.part is not None and self.high_watermark != self.log.high_watermark:
            self.log.checkpoint(self.high_watermark)
