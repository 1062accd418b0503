"""One replica: a partition on one broker. Commands of the controller choose its role, and the role answers requests.

Each method is one step: it asks core, and performs through the ports what core decided. A ReplicaLoop is not
thread-safe: engine.replica.partition is the only way to it.

| a command says            | it was                 | it becomes                                                     |
| ------------------------- | ---------------------- | -------------------------------------------------------------- |
| this broker leads         | anything else          | LeaderRole                                                     |
| this broker leads         | leader                 | the same one; at a later leader epoch its waiters stay         |
| another leads, or nobody  | anything but that      | FollowerRole                                                   |
| another leads, or nobody  | follower of just that  | the same one                                                   |
| this broker leads, but it has lost its log since (I8) | anything  | nothing: it neither leads nor follows           |

A replica that stops leading refuses whoever waits for it, and answers all fetches that wait.

Before that, whoever leads: a log that begins below the state's `start_at` is brought to begin there (TB5). The role
that the replica had is over then, and it takes the new one as if it had had none.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from spark_replication.config import Compression, Settings
from spark_replication.core.replica import replica
from spark_replication.core.replica.epochs import NO_EPOCH
from spark_replication.core.replica.producers import Newest, OffsetSpan
from spark_replication.core.replica.read_start import ReadPlace, cut_below, start_of
from spark_replication.core.replica.replica import Following, Leading, LogView, Me
from spark_replication.engine.replica.copy_throttle import CopyThrottle
from spark_replication.engine.replica.damage import Damage
from spark_replication.engine.replica.disk_trouble import DiskTrouble
from spark_replication.engine.replica.fetch_answers import answer_to
from spark_replication.engine.replica.follower_fetches import FollowerFetches
from spark_replication.engine.replica.follower_role import FollowerRole
from spark_replication.engine.replica.leader_role import LeaderRole
from spark_replication.engine.replica.own_log import OwnLog
from spark_replication.engine.replica.waiters import Acknowledge, Progress
from spark_replication.errors import EpochBehindLog, NotLeader, ReplicationError, StorageFailed
from spark_replication.messages.commands import PartitionCommand, ReplicaLogInfo
from spark_replication.messages.descriptions import FollowerLag, ReplicaSize, TableLag
from spark_replication.messages.replication import FetchedPartition, FetchPartition
from spark_replication.model import BrokerId, Epoch, Offset, PartitionState, ReplicaOf, Start, TimeMs, TopicPartition
from spark_replication.ports import (
    DamagedBatch,
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
        """`post` may be called from any thread: what it is given runs soon, while nobody else has this replica."""
        self.partition = partition
        self.topic_id = topic_id
        self.log = log
        self._own = OwnLog(
            ReplicaOf(partition, topic_id),
            log,
            settings,
            flusher=flusher,
            failures=failures,
            flush_ended=lambda failed: post(partial(self._flush_ended, failed)),
        )
        self._isr_store = isr_store
        self._links = links
        self._post = post
        self._fetches = FollowerFetches(partition, links, throttle)
        #: None before the first command, and where the last command cannot be carried out.
        self._role: LeaderRole | FollowerRole | None = None
        #: Leader epoch and partition epoch of the newest command that was carried out.
        self._order = (-1, -1)
        #: The clean_since of the registration under which the last command came (I8).
        self._clean_since = 0

    @property
    def part(self) -> Leading | Following | None:
        return None if self._role is None else self._role.part

    @property
    def leads(self) -> bool:
        return isinstance(self._role, LeaderRole)

    @property
    def leadership(self) -> object | None:
        """The time for which this process leads without a break; None if it does not. Nobody else has written to the
        log meanwhile."""
        return self._role if isinstance(self._role, LeaderRole) else None

    @property
    def led_epoch(self) -> int:
        """The epoch at which this replica leads; -1 if it does not."""
        role = self._role
        return role.part.state.leader_epoch if isinstance(role, LeaderRole) else NO_EPOCH

    @property
    def view(self) -> LogView:
        return self._own.view

    @property
    def progress(self) -> Progress:
        return self._own.progress

    @property
    def disk_trouble(self) -> DiskTrouble:
        return self._own.disk_trouble

    @property
    def damage(self) -> Damage:
        return self._own.damage

    @property
    def order(self) -> tuple[int, int]:
        return self._order

    @property
    def high_watermark(self) -> Offset:
        """The high watermark that this process knows: the disk may have an older one. It never falls while the process
        lives (I5)."""
        role = self._role  # read once: a thread that does not have the partition may ask
        return self.log.high_watermark if role is None else role.part.high_watermark

    def configure(self, settings: Settings) -> None:
        """Apply the topic's settings from here on."""
        self._own.configure(settings)
        if self._role is not None:
            self._own.flushing.written()

    # Commands

    def is_of_before(self, created: Epoch) -> bool:
        """Whether this log belongs to a partition that was removed and added again since (E4)."""
        log = self.log
        return bool(log.log_end or log.epochs) and created > max(log.epochs.first_epoch, 0)

    def command(self, command: PartitionCommand, me: Me, now_ms: int) -> None:
        """Lead or follow, if the command is newer than the last one that was carried out (E2). A leader epoch below the
        log's last one is refused: another leader has written at it, or above it, already (Z2)."""
        self._clean_since = me.clean_since
        if command.order > self._order:
            epoch, last_epoch = command.state.leader_epoch, self.log.epochs.last_epoch
            if epoch < last_epoch:
                raise EpochBehindLog(
                    f"leader epoch {epoch} of {self.partition} is below {last_epoch}, which its log has: ZooKeeper is "
                    "as of an earlier time than this log. Wait for the controller, which begins an epoch above it"
                )
            self._carry_out(command, me, now_ms)
            if self._role is not None:
                self._own.flushing.written()  # records that the log has already are flushed and counted, too
            # Set only after success: a command that a failing disk stopped is carried out when it comes again.
            self._order = max(self._order, command.order)

    def _carry_out(self, command: PartitionCommand, me: Me, now_ms: int) -> None:
        self._start_log_at(command.state)
        if replica.may_lead(command.state, me):
            self._lead(command, me, now_ms)
        elif command.state.leader == me.broker:
            self._leave(f"broker {me.broker} lost its log since it joined the ISR of {self.partition}")
        else:
            self._follow(command, me)

    def _start_log_at(self, state: PartitionState) -> None:
        """Bring the log to start where the partition does. Its role ends first: nothing below is served if the disk
        then refuses, and no append that waits is acknowledged because the high watermark rises over its place."""
        start_at = state.lowest_offset
        if self.log.log_start < start_at:
            self._leave(f"the log of {self.partition} begins at {start_at} since leader epoch {state.leader_epoch}")
            self._own.start_at(start_at, state.created)

    def _lead(self, command: PartitionCommand, me: Me, now_ms: int) -> None:
        role = self._role
        if isinstance(role, LeaderRole) and role.part.state.leader_epoch == command.state.leader_epoch:
            role.commanded(command, now_ms)
            return
        self._links.unfollow(self.partition)
        self._fetches.answer_all()  # the fetches that wait carry an earlier leader epoch
        if self.log.epochs.last_epoch < command.state.leader_epoch:
            self.log.begin_epoch(command.state.leader_epoch)
        before = role.part if isinstance(role, LeaderRole) else None
        leading = replica.lead(command, me, self.view, self.high_watermark, now_ms, before=before)
        if isinstance(role, LeaderRole):
            role.goes_on(leading)
        else:
            self._role = LeaderRole(
                self._own, self._fetches, self._isr_store, leading, post=self._post, over=self._leave
            )

    def _follow(self, command: PartitionCommand, me: Me) -> None:
        state, role = command.state, self._role
        same_leader = isinstance(role, FollowerRole) and role.follows(state)
        if isinstance(role, FollowerRole) and same_leader:
            role.commanded(command)
        else:
            following = Following(
                leader=state.leader,
                leader_epoch=state.leader_epoch,
                partition_epoch=command.partition_epoch,
                high_watermark=self.high_watermark,
                created=state.created,
            )
            self._role = FollowerRole(self._own, following)
        self._step_aside(role, f"broker {me.broker} no longer leads {self.partition}: leader is {state.leader}")
        if state.leader is None:
            self._links.unfollow(self.partition)
        elif not same_leader:
            self._links.follow(self.partition, state.leader)

    def _step_aside(self, before: LeaderRole | FollowerRole | None, why: str) -> None:
        """Refuse whoever waits for this replica: clients and followers ask the new leader."""
        if isinstance(before, LeaderRole):
            before.end(why)
        self._fetches.answer_all()
        self.progress.wake()

    def _leave(self, why: str) -> None:
        """Neither lead nor follow, until a command comes that is newer than the ISR changes of this replica."""
        before = self._role
        if isinstance(before, LeaderRole):
            self._order = max(self._order, (before.part.state.leader_epoch, before.part.partition_epoch))
        with suppress(StorageFailed):  # an older high watermark is safe, too
            self.log.checkpoint(self.high_watermark)
        self._role = None
        self._links.unfollow(self.partition)
        self._step_aside(before, why)

    def log_info(self, leader_epoch: int) -> ReplicaLogInfo:
        """Answer an unclean recovery at this leader epoch. A follower stops following: its answer must stay true (L4).
        A late question, of an epoch that is over, is answered and changes nothing."""
        role = self._role
        if isinstance(role, FollowerRole) and role.part.leader is not None and self._order[0] <= leader_epoch:
            role.stop()
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
        """The session expired: the state that is read after the next registration counts, whatever its epoch."""
        self._leave(why)
        self._order = (-1, -1)

    # Leading

    def leading(self) -> Leading:
        return self._leader().part

    def _leader(self) -> LeaderRole:
        role = self._role
        if not isinstance(role, LeaderRole):
            known = "nobody" if role is None or role.part.leader is None else f"broker {role.part.leader}"
            raise NotLeader(f"this broker does not lead {self.partition}, {known} does: reload routes and retry")
        return role

    def produce(self, batch: PreparedBatch, *, acks: int | str, now_ms: int, acknowledge: Acknowledge) -> None:
        """Append a batch. `acknowledge` is called once, with the batch's place or an error: at once for acks=0, once
        this replica vouches for the batch for acks=1, else once the high watermark covers it. A batch that is refused
        raises, and nothing of it is stored."""
        self._leader().produce(batch, acks=acks, now_ms=now_ms, acknowledge=acknowledge)
        self._own.flushing.written()

    def check_append(self) -> None:
        """Raises what refuses acks=all."""
        replica.check_append(self._leader().part, acks_all=True, topic=self.partition)

    def forget(self, before: Offset) -> None:
        """Remove whole segments below `before`, which is committed."""
        with suppress(StorageFailed):  # they take room, and go the next time
            self._own.numbered.forget(before)

    def told_of_table(self, leader_epoch: Epoch, end: Offset) -> None:
        """See LeaderRole.told_of_table."""
        self._leader().told_of_table(leader_epoch, end)

    @property
    def table_end(self) -> Offset | None:
        """Below it, the topic's table is known to have every row, as far as this leader was told; None if it was not,
        or does not lead."""
        return self._role.table_end if isinstance(self._role, LeaderRole) else None

    def table_lacks_since(self, now_ms: TimeMs) -> TimeMs | None:
        """When the first row was appended that the topic's table lacks, if it was to have it by now, as far as this
        leader was told; None if it lacks none, or this replica does not lead."""
        return self._role.table_lacks_since(now_ms) if isinstance(self._role, LeaderRole) else None

    def table_lag(self, now_ms: TimeMs) -> TableLag | None:
        """How far the topic's table is behind, as far as this leader was told; None if the topic is no table, or this
        replica does not lead."""
        return self._role.table_lag(now_ms) if isinstance(self._role, LeaderRole) else None

    def known(self, batch: PreparedBatch) -> OffsetSpan | None:
        """The place that `produce` would answer for a repeated batch."""
        return self._own.numbered.known(batch)

    def newest_of(self, producer: int) -> Newest | None:
        """The newest batches of a producer in this log; None if it is not known."""
        return self._own.numbered.newest(producer)

    def fetch(self, fetch: FetchPartition, *, by: BrokerId, broker_epoch: int, now_ms: int) -> None:
        """Take a follower's fetch. `take_answer` answers it, once `links.ready` says that there is an answer."""
        self._fetches.came(by, fetch)
        role = self._role
        if not isinstance(role, LeaderRole) or not role.fetched(fetch, by=by, broker_epoch=broker_epoch, now_ms=now_ms):
            self._fetches.ready(by)

    def take_answer(self, by: BrokerId, broker_epoch: int) -> tuple[FetchedPartition, Records | None] | None:
        """Answer the fetch of this follower that waits. None if none waits: it has been answered."""
        taken = self._fetches.take(by)
        if taken is None:
            return None
        fetch, allowed = taken
        records: Records | None = None
        try:
            answer, records = self._leader().answer_to(fetch, by=by, broker_epoch=broker_epoch, allowed=allowed)
        except ReplicationError as error:
            if isinstance(error, StorageFailed):
                self.disk_trouble.refused(self.part, error)
            answer = answer_to(fetch, high_watermark=self.high_watermark, log_start=self.log.log_start, error=error)
        finally:
            if allowed is not None:
                self._fetches.sent(by, 0 if records is None else len(records.data))
        return answer, records

    @property
    def may_tell(self) -> bool:
        """Whether followers may wait for `tell_high_watermark`."""
        return self._fetches.is_news

    def tell_high_watermark(self) -> None:
        """Tell a high watermark that has moved to the followers that wait at the log end."""
        self._fetches.reached(self.high_watermark)

    def lags(self, now_ms: int) -> dict[BrokerId, FollowerLag]:
        """The lag of each follower, if this replica leads."""
        return self._role.lags(now_ms) if isinstance(self._role, LeaderRole) else {}

    # Following

    def next_fetch(self) -> FetchPartition | None:
        """The fetch to send to the leader. None if there is no leader, or this replica can take nothing at present."""
        return self._role.next_fetch(self._clean_since) if isinstance(self._role, FollowerRole) else None

    def fetch_answered(self, fetch: FetchPartition, answer: FetchedPartition, records: LogSlice | None) -> None:
        """See FollowerRole.answered."""
        if isinstance(self._role, FollowerRole):
            self._role.answered(fetch, answer, records)

    # Consumers, and whoever looks

    def read(self, offset: Offset, *, bytes_max: int, to: Offset | None, any_replica: bool = False) -> Records | None:
        """Committed records from `offset` on, at most up to `to`; None if there are none (yet). A follower answers only
        with `any_replica`: its high watermark lags behind the leader's."""
        end = replica.readable_end(self.served_end(any_replica=any_replica), offset, self.view)
        if offset >= end or offset == to:
            return None
        try:
            return self.log.find(offset, bytes_max=bytes_max, end=end)
        except StorageFailed as error:
            self.disk_trouble.refused(self.part, error)
            raise

    def start_of(self, start: Start, *, any_replica: bool = False) -> Offset:
        is_beside_the_end = start == "earliest" or isinstance(start, int)
        end = (self.served_end if is_beside_the_end else self.committed_end)(any_replica=any_replica)
        return start_of(start, log_start=self.log.log_start, end=end, offset_of_time=self.log.offset_of_time)

    def served_end(self, *, any_replica: bool) -> Offset:
        """How far consumers may read here. There may be more that is committed."""
        served = self._served if any_replica else None
        return self.leading().high_watermark if served is None else served

    def committed_end(self, *, any_replica: bool = False) -> Offset:
        """The end of what is committed. Raises OffsetNotAvailable if this leader does not know it yet. With
        `any_replica`, a follower answers with what it knows."""
        served = self._served if any_replica else None
        return replica.committed_end(self.leading(), self.partition) if served is None else served

    def epoch_before(self, offset: Offset, *, any_replica: bool = False) -> int:
        """The leader epoch of the record before `offset`; NO_EPOCH if that is not committed, as far as is known here:
        another record may still take its place."""
        return self.view.epoch_before(offset) if offset <= self.served_end(any_replica=any_replica) else NO_EPOCH

    def cut_below(self, place: ReadPlace) -> Offset | None:
        """Where this log parts from the one in which a reader has reached this place (K2); None if it does not. A
        follower does not know of what lies beyond its log."""
        beyond = not self.leads and place.offset > self.log.log_end
        return None if beyond else cut_below(place, self.view)

    @property
    def _served(self) -> Offset | None:
        return self._role.part.served if isinstance(self._role, FollowerRole) else None

    @property
    def compression(self) -> Compression:
        return self._own.settings.compression

    def size(self, now_ms: int) -> ReplicaSize:
        return ReplicaSize(
            topic=self.partition.topic,
            partition=self.partition.partition,
            topic_id=self.topic_id,
            leads=self.leads,
            log_start=self.log.log_start,
            high_watermark=self.high_watermark,
            log_end=self.log.log_end,
            last_epoch=self.view.epoch_before(self.log.log_end),
            lags=self.lags(now_ms),
            copies=self._role.copies() if isinstance(self._role, LeaderRole) else {},
            table=self.table_lag(now_ms),
            bytes=sum(segment.bytes for segment in self.log.segments()),
        )

    # Time, and the disk

    def tick(self, now_ms: int) -> None:
        if self.log.has_leftover:  # before retention, which removes as many
            with suppress(StorageFailed):  # the next tick tries again
                self.log.remove_leftover()
        if isinstance(self._role, LeaderRole):
            self._role.tick(now_ms)
        self._own.flushing.tick(now_ms)
        if self.disk_trouble.tick(now_ms, self._own.settings.disk_retry_ms):
            self._ask_leader()

    @property
    def waits_for_time(self) -> bool:
        """Whether a tick should not be late: a flush is due by time, the disk is to be tried again, or files of
        forgotten segments are to go."""
        return self._own.flushing.by_interval or self.disk_trouble.is_recent or self.log.has_leftover

    def _ask_leader(self) -> None:
        if isinstance(self._role, FollowerRole) and self._role.part.leader is not None:
            self._links.follow(self.partition, self._role.part.leader)

    def mend(self, batch: DamagedBatch, data: bytes) -> None:
        """Write the bytes of a damaged batch again. A disk that refuses even that is in trouble as with any write."""
        try:
            self.damage.mend(batch, data)
        except StorageFailed as error:
            self.disk_trouble.refused(self.part, error)
            raise

    def flush_soon(self) -> None:
        """Begin a flush, whatever the topic's `flush` says: this log is about to be closed."""
        self._own.flushing.begin()

    def _flush_ended(self, failed: StorageFailed | None) -> None:
        role, flushing = self._role, self._own.flushing
        flushing.end(failed)
        if failed is not None:
            self.disk_trouble.refused(self.part, failed)
            if isinstance(role, LeaderRole):
                role.refuse_waiters(StorageFailed(failed.message, maybe_written=True))
            return
        if isinstance(role, LeaderRole):
            role.flushed()
        elif flushing.always:
            self._ask_leader()
        if self._role is not None:
            flushing.written()

    @property
    def owes_a_checkpoint(self) -> bool:
        """Whether the high watermark has moved since the last checkpoint."""
        return self.high_watermark != self.log.high_watermark

    def checkpoint(self) -> None:
        if self.owes_a_checkpoint:
            self.log.checkpoint(self.high_watermark)
