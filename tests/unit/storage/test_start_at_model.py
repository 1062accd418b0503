"""Three replicas of a partition whose table has ever more of it: whoever is elected, and however stale, all begin where
the table ends or above, and come to the same files (TB5)."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

from hypothesis import settings as examples
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_replication.core.law.writes import IsrAnswer, IsrRefused, IsrWrite, StoredPartition
from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.core.replica.replica import Leading, Me
from spark_replication.engine.replica.copy_throttle import CopyThrottle
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import ReplicationError
from spark_replication.model import PartitionState
from spark_replication.sim.world.one_at_a_time import at_once
from spark_replication.storage.disk.flush_threads import FlushAtOnce
from tests.unit.core.stories import FOO, FOO_ID, command, settings, state
from tests.unit.engine.ports_in_memory import Failures, Links
from tests.unit.storage.failing_files import Crash, FailingFiles
from tests.unit.storage.storage_stories import StoryLog, files_of, log_in, prepared, read_rows

BROKERS = (1, 2, 3)
ROUNDS_MAX = 100  # of one `replicate`: more than any log here has batches


class StartAtMachine(RuleBasedStateMachine):
    """table: the rows that a writer has read of a leader, from offset 0 on. Each row of a log is a number that no other
    append has written."""

    @initialize(segment_bytes=st.sampled_from([1, 900, 1 << 20]), flush=st.sampled_from(["none", "always"]))
    def start(self, segment_bytes: int, flush: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="start-at-model-"))
        self.settings = settings(segment_bytes=segment_bytes, flush=flush)
        self.files = {broker: FailingFiles() for broker in BROKERS}
        self.rows = 0
        self.table: list[int] = []
        self.state: PartitionState = state(1, [1], min_isr=1, leader_epoch=0)
        self.version = 0
        for broker in BROKERS:
            (self.directory / str(broker)).mkdir()
        self.logs: dict[int, StoryLog] = {}
        self.loops = {broker: self.opened(broker) for broker in BROKERS}
        for broker in BROKERS:
            self.told(broker)

    def opened(self, broker: int) -> ReplicaLoop:
        files = self.files[broker] = FailingFiles()
        log = self.logs[broker] = log_in(
            self.directory / str(broker),
            segment_bytes=self.settings.segment_bytes,
            files=files,
            flush=self.settings.flush,
        )
        assert log.recovery.lossless
        links = Links()
        return ReplicaLoop(
            FOO,
            FOO_ID,
            log,
            settings=self.settings,
            isr_store=self,
            links=links,
            flusher=FlushAtOnce(),
            failures=Failures(),
            throttle=CopyThrottle(links, nullcontext()),
            post=at_once,
        )

    def change_isr(self, write: IsrWrite, then: Callable[[IsrAnswer], None]) -> None:
        """ports.IsrStore: nobody joins, so that an unclean election may take whomever it likes."""
        then(IsrRefused(StoredPartition(self.state, self.version)))

    def told(self, broker: int) -> None:
        self.loops[broker].command(command(self.state, self.version), Me(broker, 0, 0), 0)

    def is_told(self, broker: int) -> bool:
        return self.loops[broker].order == (self.state.leader_epoch, self.version)

    @property
    def leader(self) -> ReplicaLoop | None:
        """The one that ZooKeeper names, once it knows."""
        broker = self.state.leader
        return self.loops[broker] if broker is not None and self.is_told(broker) else None

    @rule(count=st.integers(1, 4))
    def append(self, count: int) -> None:
        if (leader := self.leader) is not None:
            end = leader.log.log_end
            newest = leader.newest_of(9)
            following = 0 if newest is None else newest.last_sequence + 1
            batch = prepared(self.rows, count, producer=9, sequence=following)
            answers: list[OffsetSpan | ReplicationError] = []
            leader.produce(batch, acks="all", now_ms=0, acknowledge=answers.append)
            assert answers == [OffsetSpan(end, end + count - 1)]
            assert end >= len(self.table), "no offset is given twice"
            self.rows += count

    @rule(broker=st.sampled_from(BROKERS))
    def replicate(self, broker: int) -> None:
        leader, follower = self.leader, self.loops[broker]
        if leader is None or broker == self.state.leader or not self.is_told(broker):
            return
        for _ in range(ROUNDS_MAX):
            fetch = follower.next_fetch()
            assert fetch is not None
            leader.fetch(fetch, by=broker, broker_epoch=0, now_ms=0)
            if fetch.offset == leader.log.log_end and fetch.last_epoch == leader.view.epoch_before(fetch.offset):
                break
            taken = leader.take_answer(broker, 0)
            assert taken is not None
            answer, records = taken
            assert answer.error == "NONE"
            follower.fetch_answered(fetch, answer, records.loaded() if records is not None else None)
        else:
            raise AssertionError("it never has what its leader has")
        assert read_rows(self.logs[broker], follower.log.log_start) == self.read(follower.log.log_start)
        if follower.log.log_start == leader.log.log_start:
            assert files_of(self.directory / str(broker)) == files_of(self.directory / str(self.state.leader))
            below = leader.log.log_start
            if leader.log.log_end > below:
                known = [each._own.numbered.known_below(below) for each in (leader, follower)]
                assert known[0] == known[1]

    def read(self, start: int) -> list[int]:
        assert self.state.leader is not None
        return read_rows(self.logs[self.state.leader], start)

    @rule(share=st.floats(0, 1))
    def write_table(self, share: float) -> None:
        """A writer reads whole batches of the leader, up to what is committed."""
        leader = self.leader
        if leader is None or leader.log.log_start > len(self.table) or leader.log.log_end <= len(self.table):
            return
        start, end = len(self.table), leader.log.log_end
        upto = start + round(share * (end - start))
        if start < upto < end:
            upto = leader.log.batch_start(upto)
        rows = self.read(leader.log.log_start)[start - leader.log.log_start :]
        self.table += rows[: max(0, upto - start)]

    @rule(leader=st.sampled_from([*BROKERS, None]), told=st.sets(st.sampled_from(BROKERS)))
    def elect(self, leader: int | None, told: set[int]) -> None:
        """From wherever, as nobody knows who has what; the table is sealed first."""
        isr = [] if leader is None else [leader]
        epoch, start_at = self.state.leader_epoch + 1, len(self.table)
        self.state = state(leader, isr, min_isr=1, leader_epoch=epoch, start_at=start_at)
        self.version += 1
        for broker in sorted(told):
            self.told(broker)

    @rule(broker=st.sampled_from(BROKERS))
    def hear(self, broker: int) -> None:
        self.told(broker)

    @rule(broker=st.sampled_from(BROKERS), hears=st.booleans())
    def restart(self, broker: int, *, hears: bool) -> None:
        self.logs[broker].close()
        self.loops[broker] = self.opened(broker)
        if hears:
            self.told(broker)

    @precondition(lambda self: not self.is_told(1) or not self.is_told(2) or not self.is_told(3))
    @rule(changes=st.integers(0, 25))
    def crash_while_it_hears(self, changes: int) -> None:
        broker = next(each for each in BROKERS if not self.is_told(each))
        self.files[broker].changes_left = changes
        with suppress(Crash):
            self.told(broker)
        self.loops[broker] = self.opened(broker)
        self.told(broker)

    @invariant()
    def nobody_has_what_the_table_alone_is_to_have(self) -> None:
        for broker, loop in getattr(self, "loops", {}).items():
            log = self.logs[broker]
            assert log.log_start <= loop.high_watermark <= log.log_end
            if self.is_told(broker):
                assert log.log_start >= self.state.lowest_offset
                assert isinstance(loop.part, Leading) == (self.state.leader == broker)

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            for log in self.logs.values():
                log.close()
            shutil.rmtree(self.directory)


TestStartAt = StartAtMachine.TestCase
TestStartAt.settings = examples(max_examples=60, stateful_step_count=30, deadline=None, print_blob=True)
