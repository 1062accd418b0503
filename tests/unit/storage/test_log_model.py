"""A leader and its follower against plain lists: whatever is done to them, they hold what the lists say."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from spark_replication.core.replica.epochs import NO_EPOCH
from spark_replication.core.replica.replica import LogView
from spark_replication.core.replica.start_at import change_to_start_at
from spark_replication.errors import StorageFailed
from spark_replication.storage.format.batches import TopicSchema
from spark_replication.storage.log.partition_log import PartitionLog
from tests.unit.storage.failing_files import Crash, FailingFiles
from tests.unit.storage.storage_stories import (
    TOPIC,
    WIDENED,
    files_of,
    log_in,
    prepared,
    read,
    read_batches,
    read_rows,
)


class LogMachine(RuleBasedStateMachine):
    """Model: one (epoch, offset of the batch's first row) a row, from offset 0, and how many of them are forgotten.

    schemas: of the batches, by the offset of their first row.
    """

    @initialize(segment_bytes=st.sampled_from([1, 900, 1 << 20]), segment_ms=st.sampled_from([3, 20, 1 << 40]))
    def start(self, segment_bytes: int, segment_ms: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="log-model-"))
        self.segment_bytes, self.segment_ms = segment_bytes, segment_ms
        self.epoch = 0
        self.checkpoint = 0
        self.log_start = 0
        self.rows: list[tuple[int, int]] = []
        self.schemas: dict[int, pa.Schema] = {}
        for name in ("leader", "follower"):
            (self.directory / name).mkdir()
        self.files = FailingFiles()
        self.leader, self.follower = self.opened("leader"), self.opened("follower")
        self.leader.begin_epoch(0)

    def opened(self, name: str, *, crashed: bool = False) -> PartitionLog:
        files = self.files if name == "leader" else None
        log = log_in(self.directory / name, segment_bytes=self.segment_bytes, segment_ms=self.segment_ms, files=files)
        assert log.recovery.lossless
        assert log.recovery.rebuilt == ()
        assert crashed or log.recovery.why == ""
        return log

    def reopened_after_crash(self) -> None:
        self.files = FailingFiles()
        self.leader = self.opened("leader", crashed=True)

    @rule(count=st.integers(1, 5), topic=st.sampled_from([TOPIC, WIDENED]))
    def append(self, count: int, topic: TopicSchema) -> None:
        base = len(self.rows)
        self.schemas[base] = topic.newest
        place = self.leader.append(prepared(base, count, topic=topic), leader_epoch=self.epoch, timestamp_ms=base)
        assert (place.base_offset, place.last_offset) == (base, base + count - 1)
        self.rows += [(self.epoch, base)] * count

    @rule(changes=st.integers(0, 4), topic=st.sampled_from([TOPIC, WIDENED]))
    def crash_within_an_append(self, changes: int, topic: TopicSchema) -> None:
        base = len(self.rows)
        self.schemas[base] = topic.newest
        self.files.changes_left = changes
        with suppress(Crash):
            self.leader.append(prepared(base, topic=topic), leader_epoch=self.epoch, timestamp_ms=base)
            self.rows += [(self.epoch, base)] * 2
        self.reopened_after_crash()

    @rule(room=st.integers(0, 2_000))
    def fill_the_disk(self, room: int) -> None:
        base = len(self.rows)
        self.schemas[base] = TOPIC.newest
        self.files.room = room
        try:
            self.leader.append(prepared(base), leader_epoch=self.epoch, timestamp_ms=base)
            self.rows += [(self.epoch, base)] * 2
        except StorageFailed:
            assert room < 2_000, "there was room enough"
        self.files.heal()

    @rule(step=st.integers(1, 3))
    def begin_epoch(self, step: int) -> None:
        self.epoch += step
        self.leader.begin_epoch(self.epoch)

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        end = max(self.log_start, round(share * len(self.rows)))
        end = self.rows[end][1] if end < len(self.rows) else end
        self.leader.truncate(end)
        del self.rows[end:]
        self.checkpoint = min(self.checkpoint, end)
        self.epoch += 1
        self.leader.begin_epoch(self.epoch)

    @rule(share=st.floats(0, 1))
    def move_checkpoint(self, share: float) -> None:
        self.checkpoint = max(self.log_start, round(share * len(self.rows)))
        self.leader.checkpoint(self.checkpoint)

    @rule(share=st.floats(0, 1))
    def forget(self, share: float) -> None:
        self.forgotten_below(round(share * self.checkpoint))
        self.leader.forget(round(share * self.checkpoint))

    @rule(share=st.floats(0, 1), changes=st.integers(0, 12))
    def crash_within_forgetting(self, share: float, changes: int) -> None:
        before = round(share * self.checkpoint)
        self.files.changes_left = changes
        with suppress(Crash):
            self.leader.forget(before)
        log_start = self.log_start
        self.reopened_after_crash()
        self.forgotten_below(before)
        if self.leader.log_start == log_start:
            self.log_start = log_start

    @rule(share=st.floats(0, 1))
    def drop_below(self, share: float) -> None:
        """Both replicas, as a command tells all of them."""
        offset = self.boundary(share)
        for log in (self.leader, self.follower):
            self.start_at(log, offset)
        self.started_at(offset)

    @rule(share=st.floats(0, 1), changes=st.integers(0, 16))
    def crash_within_dropping(self, share: float, changes: int) -> None:
        offset = self.boundary(share)
        self.files.changes_left = changes
        with suppress(Crash):
            self.start_at(self.leader, offset)
        self.reopened_after_crash()
        assert self.leader.log_start in (self.log_start, offset)
        for log in (self.leader, self.follower):
            self.start_at(log, offset)
        self.started_at(offset)

    def boundary(self, share: float) -> int:
        offset = max(self.log_start, round(share * len(self.rows)))
        return self.rows[offset][1] if offset < len(self.rows) else offset

    @staticmethod
    def start_at(log: PartitionLog, offset: int) -> None:
        view = LogView(log.log_start, log.log_end, log.epochs)
        change = change_to_start_at(offset, view, log.batch_start)
        if change == "drop below":
            log.drop_below(offset)
        elif change == "begin anew":
            log.truncate(min(offset, log.log_end))
            log.begin_anew(offset)

    def started_at(self, offset: int) -> None:
        if offset > self.log_start:
            self.log_start, self.checkpoint = offset, max(self.checkpoint, offset)

    def forgotten_below(self, before: int) -> None:
        bases = [each.base for each in self.leader.segments() if each.base <= before]
        self.log_start = max([self.log_start, *bases])

    @rule()
    def reopen(self) -> None:
        self.leader.close()
        self.leader = self.opened("leader")

    @rule()
    def flush(self) -> None:
        self.leader.flush()

    @rule(bytes_max=st.sampled_from([1, 700, 1 << 20]))
    def follow(self, bytes_max: int) -> None:
        """As F1 has it: back to where the histories part, then on with the leader's bytes, from the leader's start."""
        leader, follower = self.leader, self.follower
        while follower.log_end > leader.log_start and (epoch := follower.epochs.last_epoch) >= 0:
            known = leader.epochs.end_of(epoch, log_start=leader.log_start, log_end=leader.log_end)
            assert known is not None
            ours = follower.epochs.end_of(known.epoch, log_start=follower.log_start, log_end=follower.log_end)
            assert ours is not None
            parting = min(known.end, ours.end)
            if known.epoch == epoch and parting == follower.log_end:
                break
            if parting < follower.log_start:
                follower.begin_anew(parting)
            else:
                follower.truncate(parting)
        if follower.log_end < leader.log_start:
            follower.begin_anew(leader.log_start)
        while (records := read(leader, follower.log_end, bytes_max=bytes_max, end=leader.log_end)) is not None:
            follower.append_slice(records)
        follower.forget(leader.log_start)
        self.follower.close()
        self.follower = self.opened("follower")
        if self.follower.log_start < leader.log_start:
            # Of a leader that was cut to its log start: what ends there stays, so that an epoch can be named (I8).
            assert leader.log_start == leader.log_end == self.follower.log_end
            assert [segment.base for segment in self.follower.segments()] == [self.follower.log_start]
        else:
            assert files_of(self.directory / "follower") == files_of(self.directory / "leader")

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "rows"):
            return
        log, start, end = self.leader, self.log_start, len(self.rows)
        assert (log.log_start, log.log_end, log.high_watermark) == (start, end, self.checkpoint)
        assert read_rows(log, start) == list(range(start, end))
        bases = list(dict.fromkeys(base for _, base in self.rows[start:]))
        assert [batch.schema for batch in read_batches(log, start)] == [self.schemas[base] for base in bases]
        epochs = [epoch for epoch, _ in self.rows[start:]]
        assert [log.epochs.epoch_at(offset) for offset in range(start, end)] == epochs
        assert log.epochs.epoch_at(start - 1) == NO_EPOCH
        assert log.epochs.last_epoch == self.epoch

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            self.leader.close()
            self.follower.close()
            shutil.rmtree(self.directory)


def test_a_follower_of_a_leader_that_was_cut_to_its_log_start_keeps_what_ends_there() -> None:
    """Found by chance, since it takes a cut below the checkpoint, as after an unclean election."""
    machine = LogMachine()
    machine.start(segment_bytes=1, segment_ms=1 << 40)
    try:
        for _ in range(2):
            machine.append(2, TOPIC)
        machine.follow(1 << 20)
        machine.move_checkpoint(1.0)
        machine.forget(1.0)
        machine.truncate(0.0)
        machine.follow(1 << 20)
        assert (machine.leader.log_start, machine.follower.log_start, machine.follower.log_end) == (2, 0, 2)
        machine.append(2, TOPIC)
        machine.follow(1 << 20)
        assert machine.follower.log_start == 2
    finally:
        machine.teardown()


TestLog = LogMachine.TestCase
TestLog.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, print_blob=True)
