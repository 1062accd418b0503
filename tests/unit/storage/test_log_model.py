"""A leader and its follower against plain lists: whatever is done to them, they hold what the lists say."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from spark_replication.storage.batches import schema_to_bytes
from spark_replication.storage.partition_log import PartitionLog
from spark_replication.storage.recovery import recover
from tests.unit.storage.storage_stories import SCHEMA, files_of, prepared, read_rows


class LogMachine(RuleBasedStateMachine):
    """Model: one (epoch, offset of the batch's first row) a row."""

    @initialize(segment_bytes=st.sampled_from([1, 900, 1 << 20]))
    def start(self, segment_bytes: int) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="log-model-"))
        self.segment_bytes = segment_bytes
        self.epoch = 0
        self.checkpoint = 0
        self.rows: list[tuple[int, int]] = []
        for name in ("leader", "follower"):
            (self.directory / name).mkdir()
        self.leader, self.follower = self.opened("leader"), self.opened("follower")
        self.leader.begin_epoch(0)

    def opened(self, name: str) -> PartitionLog:
        recovered = recover(self.directory / name, lambda: None)
        assert recovered.report.lossless
        assert (recovered.report.why, recovered.report.rebuilt) == ("", ())
        return PartitionLog(recovered, schema=schema_to_bytes(SCHEMA), segment_bytes=self.segment_bytes)

    @rule(count=st.integers(1, 5))
    def append(self, count: int) -> None:
        base = len(self.rows)
        place = self.leader.append(prepared(base, count), leader_epoch=self.epoch, timestamp_ms=base)
        assert (place.base_offset, place.last_offset) == (base, base + count - 1)
        self.rows += [(self.epoch, base)] * count

    @rule(step=st.integers(1, 3))
    def begin_epoch(self, step: int) -> None:
        self.epoch += step
        self.leader.begin_epoch(self.epoch)

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        end = round(share * len(self.rows))
        end = self.rows[end][1] if end < len(self.rows) else end
        self.leader.truncate(end)
        del self.rows[end:]
        self.checkpoint = min(self.checkpoint, end)
        self.epoch += 1
        self.leader.begin_epoch(self.epoch)

    @rule(share=st.floats(0, 1))
    def move_checkpoint(self, share: float) -> None:
        self.checkpoint = round(share * len(self.rows))
        self.leader.checkpoint(self.checkpoint)

    @rule()
    def reopen(self) -> None:
        self.leader.close()
        self.leader = self.opened("leader")

    @rule()
    def flush(self) -> None:
        self.leader.flush()

    @rule(bytes_max=st.sampled_from([1, 700, 1 << 20]))
    def follow(self, bytes_max: int) -> None:
        """As F1 has it: back to where the histories part, then on with the leader's bytes."""
        while (epoch := self.follower.epochs.last_epoch) >= 0:
            known = self.leader.epochs.end_of(epoch, log_start=0, log_end=self.leader.log_end)
            assert known is not None
            ours = self.follower.epochs.end_of(known.epoch, log_start=0, log_end=self.follower.log_end)
            assert ours is not None
            parting = min(known.end, ours.end)
            if known.epoch == epoch and parting == self.follower.log_end:
                break
            self.follower.truncate(parting)
        leader, follower = self.leader, self.follower
        while (records := leader.read(follower.log_end, bytes_max=bytes_max, end=leader.log_end)) is not None:
            follower.append_slice(records)
        self.follower.close()
        self.follower = self.opened("follower")
        assert files_of(self.directory / "follower") == files_of(self.directory / "leader")

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "rows"):
            return
        log = self.leader
        assert (log.log_start, log.log_end, log.high_watermark) == (0, len(self.rows), self.checkpoint)
        assert read_rows(log) == list(range(len(self.rows)))
        assert [log.epochs.epoch_at(offset) for offset in range(len(self.rows))] == [epoch for epoch, _ in self.rows]
        assert log.epochs.last_epoch == self.epoch

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            self.leader.close()
            self.follower.close()
            shutil.rmtree(self.directory)


TestLog = LogMachine.TestCase
TestLog.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, print_blob=True)
