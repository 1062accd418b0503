"""The scenarios of one partition's replicas: the production replica loop and core, over logs in memory.

Nothing moves by itself: a follower fetches, ZooKeeper answers and the clock ticks only where a step says so.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, get_args

from msgspec import UNSET

from spark_replication.config import Settings, settings_from
from spark_replication.core.law.partition_change import effective_min_isr, with_isr
from spark_replication.core.law.writes import (
    IsrAnswer,
    IsrCommitted,
    IsrRefused,
    IsrUnanswered,
    IsrWrite,
    StoredPartition,
)
from spark_replication.core.replica.producers import REMEMBERED, OffsetSpan
from spark_replication.core.replica.replica import Leading, Me, end_of_epoch
from spark_replication.engine.replica.copy_throttle import CopyThrottle
from spark_replication.engine.replica.reads import look
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import ReplicationError, StorageFailed
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.envelope import NONE
from spark_replication.messages.records import ReadTicket
from spark_replication.messages.replication import FetchedPartition, FetchPartition
from spark_replication.model import BrokerId, NamedOffset, PartitionState, ReplicaOf, TopicPartition
from spark_replication.ports import LogSlice, PreparedBatch
from spark_replication.sim.scenarios.expectation import (
    BadScenario,
    Mismatch,
    check_error,
    check_fields,
    expect_int,
    expect_ints,
    expect_keys,
    expect_mapping,
    milliseconds,
    same,
)
from spark_replication.sim.scenarios.memory_log import MemoryLog
from spark_replication.sim.world.one_at_a_time import at_once
from spark_replication.storage.disk.flush_threads import FlushAtOnce

PARTITION = TopicPartition("log", 0)
TOPIC_ID = "id-log"
ROUNDS_MAX = 1_000  # of one `replicate`: more than any log here has records
_COMMAND_KEYS = {"replica", "epoch", "isr", "version", "start_at"}
_KEYS = {"leader", "leader_epoch", "replicas", "isr", "config", "logs", "high_watermark"}


class _Links:
    """ports.FollowerLinks: notes the followers whose waiting fetch can be answered."""

    def __init__(self) -> None:
        self.waiting: set[BrokerId] = set()

    def ready(self, follower: BrokerId, partition: TopicPartition) -> None:
        self.waiting.add(follower)

    def follow(self, partition: TopicPartition, leader: BrokerId) -> None: ...
    def unfollow(self, partition: TopicPartition) -> None: ...

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()


class LogScenario:
    def __init__(self, document: dict[str, Any]) -> None:
        expect_keys(document, "a log scenario", {"name", "log", "steps"})
        keys = expect_keys(document["log"], "log", _KEYS, {"leader", "leader_epoch", "replicas"})
        self._replicas = tuple(expect_ints(keys["replicas"], "replicas"))
        settings = settings_from(expect_mapping(keys.get("config", {}), "config"))
        self._settings: Settings = settings
        runs = {self._known(b): r for b, r in expect_mapping(keys.get("logs", {}), "logs").items()}
        marks = {self._known(b): r for b, r in expect_mapping(keys.get("high_watermark", {}), "high_watermark").items()}
        self._logs = {
            replica: MemoryLog.of_runs(
                _runs(runs.get(replica, [])), expect_int(marks.get(replica, 0), "high_watermark")
            )
            for replica in self._replicas
        }
        self._links = _Links()
        self._epochs = dict.fromkeys(self._replicas, 0)
        self._clean_since = dict.fromkeys(self._replicas, 0)
        self._now_ms = 0
        self._writes: list[tuple[IsrWrite, Callable[[IsrAnswer], None]]] = []
        self._appends: dict[str, OffsetSpan] = {}
        self._acked: list[str] = []
        self._answer: dict[str, Any] | str | None = None
        self._error = "none"
        isr = expect_ints(keys.get("isr", list(self._replicas)), "isr")
        leader = self._known(keys["leader"])
        #: What ZooKeeper holds, as far as the file says.
        self._stored = StoredPartition(self._state(leader, expect_int(keys["leader_epoch"], "leader_epoch"), isr), 0)
        self._loops = {replica: self._loop(replica) for replica in self._replicas}
        for replica in self._replicas:
            self._command(replica, self._stored)
        self.events: dict[str, Callable[[Any], None]] = {
            "append": self._append,
            "fetch": self._fetch,
            "replicate": self._replicate,
            "isr_answer": self._isr_answer,
            "isr_from_controller": self._isr_from_controller,
            "become_leader": self._become_leader,
            "become_follower": self._become_follower,
            "restart": self._restart,
            "read": self._read,
            "end_of": self._end_of,
            "wait": self._wait,
        }

    def change_isr(self, write: IsrWrite, then: Callable[[IsrAnswer], None]) -> None:
        """ports.IsrStore: keep the write until the file says what ZooKeeper answers."""
        self._writes.append((write, then))

    def failed(self, replica: ReplicaOf, error: StorageFailed) -> None:
        """ports.FailureReports. A log in memory never fails."""
        raise error

    def _known(self, replica: Any) -> BrokerId:
        if expect_int(replica, "a replica") not in self._replicas:
            raise BadScenario(f"replica {replica} is not among {list(self._replicas)}")
        return int(replica)

    def _state(self, leader: BrokerId | None, leader_epoch: int, isr: list[int], start_at: int = 0) -> PartitionState:
        members = frozenset(self._known(member) for member in isr)
        return PartitionState(
            leader=leader,
            leader_epoch=leader_epoch,
            isr=members,
            start_at=start_at or UNSET,
            min_isr=effective_min_isr(self._settings.min_insync_replicas, len(self._replicas)),
            epochs={member: self._epochs[member] for member in sorted(members)},
        )

    def _loop(self, replica: BrokerId) -> ReplicaLoop:
        return ReplicaLoop(
            PARTITION,
            TOPIC_ID,
            self._logs[replica],
            settings=self._settings,
            isr_store=self,
            links=self._links,
            flusher=FlushAtOnce(),
            failures=self,
            throttle=CopyThrottle(self._links, nullcontext()),
            post=at_once,
        )

    def _command(self, replica: BrokerId, stored: StoredPartition) -> None:
        command = PartitionCommand(
            topic=PARTITION.topic,
            partition=PARTITION.partition,
            topic_id=TOPIC_ID,
            replicas=self._replicas,
            state=stored.state,
            partition_epoch=stored.version,
        )
        me = Me(replica, self._epochs[replica], self._clean_since[replica])
        self._loops[replica].command(command, me, self._now_ms)

    @property
    def _leader(self) -> BrokerId:
        """The replica of the highest leader epoch among those that believe they lead."""
        leading = {r: loop.part.state.leader_epoch for r, loop in self._loops.items() if isinstance(loop.part, Leading)}
        if not leading:
            raise BadScenario("no replica leads here: name the replica that this step is about")
        return max(leading, key=lambda replica: leading[replica])

    # Events

    def happen(self, event: str, argument: Any) -> None:
        self._answer, self._error = None, "none"
        try:
            self.events[event](argument)
        except ReplicationError as error:
            self._error = error.code

    def _append(self, argument: Any) -> None:
        known = {"records", "acks", "as", "to", "producer", "epoch", "sequence"}
        keys = expect_keys(argument, "append", known, {"records"})
        name = str(keys.get("as", f"append {len(self._appends) + 1}"))
        if name in self._appends:
            raise BadScenario(f"two appends are called {name!r}")
        batch = PreparedBatch(
            rows=expect_int(keys["records"], "records"),
            message=name.encode(),
            crc=0,
            schema=b"",
            producer=expect_int(keys.get("producer", -1), "producer"),
            producer_epoch=expect_int(keys.get("epoch", 0 if "producer" in keys else -1), "epoch"),
            sequence=expect_int(keys.get("sequence", 0 if "producer" in keys else -1), "sequence"),
        )
        acks = keys.get("acks", "all")
        if acks not in ("all", 0, 1):
            raise BadScenario(f"acks is all, 0 or 1, not {acks!r}")
        loop = self._loops[self._known(keys["to"]) if "to" in keys else self._leader]
        end_before = loop.log.log_end

        def acknowledged(place: OffsetSpan | ReplicationError) -> None:
            if isinstance(place, OffsetSpan):
                self._acked.append(name)

        loop.produce(batch, acks=acks, now_ms=self._now_ms, acknowledge=acknowledged)
        if loop.log.log_end > end_before:
            self._appends[name] = OffsetSpan(end_before, loop.log.log_end - 1)
            self._answer = {"base_offset": end_before, "last_offset": loop.log.log_end - 1}
        else:
            self._answer = self._duplicate(loop, batch)

    def _duplicate(self, loop: ReplicaLoop, batch: PreparedBatch) -> dict[str, Any]:
        """The answer to a batch that was not stored again: it names the append that the batch repeats."""
        found = [
            (place.base_offset, name)
            for name, place in self._appends.items()
            for stored in loop.log.places(REMEMBERED)
            if (stored.producer, stored.producer_epoch, stored.sequence)
            == (batch.producer, batch.producer_epoch, batch.sequence)
            and stored.base_offset == place.base_offset
        ]
        base_offset, name = found[0]
        return {"base_offset": base_offset, "duplicate_of": name}

    def _fetch(self, argument: Any) -> None:
        known = {"by", "from", "last_epoch", "leader_epoch", "broker_epoch"}
        keys = expect_keys(argument, "fetch", known, {"by", "from"})
        by, start = self._known(keys["by"]), expect_int(keys["from"], "from")
        leader = self._loops[self._leader]
        self._give(by, start)
        follower = self._loops[by].view
        current = leader.leading().state.leader_epoch
        fetch = FetchPartition(
            topic=PARTITION.topic,
            partition=PARTITION.partition,
            topic_id=TOPIC_ID,
            leader_epoch=self._epoch_given(keys.get("leader_epoch", "current"), current),
            offset=start,
            last_epoch=expect_int(keys.get("last_epoch", follower.epoch_before(start)), "last_epoch"),
            clean_since=self._clean_since[by],
        )
        epoch = self._epoch_given(keys.get("broker_epoch", "current"), self._epochs[by])
        answer, records = self._exchange(leader, fetch, by, epoch)
        if answer is None:
            self._answer = "empty"
        elif answer.error != NONE:
            self._error = answer.error
        elif answer.diverging is not None:
            self._answer = {"diverging": {"epoch": answer.diverging.epoch, "end": answer.diverging.end}}
        else:
            assert records is not None
            offsets = [records.first_offset, records.next_offset - 1]
            self._answer = {"records": offsets, "high_watermark": answer.high_watermark}

    def _epoch_given(self, given: Any, current: int) -> int:
        if given == "current":
            return current
        return current - 1 if given == "old" else expect_int(given, "an epoch")

    def _give(self, by: BrokerId, end: int) -> None:
        """Give the follower what its log lacks below `end`, as if it had come from the leader before."""
        log, source = self._logs[by], self._logs[self._leader]
        missing = source.find(log.log_end, bytes_max=end, end=end) if log.log_end < min(end, source.log_end) else None
        if missing is not None:
            log.append_slice(missing.loaded())

    def _exchange(
        self, leader: ReplicaLoop, fetch: FetchPartition, by: BrokerId, broker_epoch: int
    ) -> tuple[FetchedPartition | None, LogSlice | None]:
        """Send the follower's fetch, and return its immediate answer. None if the fetch waits."""
        self._links.waiting.discard(by)
        leader.fetch(fetch, by=by, broker_epoch=broker_epoch, now_ms=self._now_ms)
        if by not in self._links.waiting:
            return None, None
        answer, records = leader.take_answer(by, broker_epoch) or (None, None)
        return answer, records.loaded() if records is not None else None

    def _replicate(self, argument: Any) -> None:
        by = self._known(argument)
        leader, follower = self._loops[self._leader], self._loops[by]
        for _ in range(ROUNDS_MAX):
            fetch = follower.next_fetch()
            if fetch is None:
                raise BadScenario(f"replica {by} follows nobody")
            answer, records = self._exchange(leader, fetch, by, self._epochs[by])
            if answer is None:
                return
            if answer.error != NONE:
                self._error = answer.error
                return
            follower.fetch_answered(fetch, answer, records)
        raise Mismatch("replicate", "it ends", f"it goes on after {ROUNDS_MAX} rounds")

    def _isr_answer(self, argument: Any) -> None:
        if argument not in ("committed", "refused", "lost"):
            raise BadScenario(f"isr_answer is committed, refused or lost, not {argument!r}")
        if not self._writes:
            # The timer repeats an unanswered change.
            self._tick()
        if not self._writes:
            raise BadScenario("no ISR change is in flight")
        write, then = self._writes.pop(0)
        if argument == "committed":
            self._stored = StoredPartition(write.state, max(self._stored.version, write.version) + 1)
            then(IsrCommitted(self._stored.version))
        elif argument == "refused":
            self._stored = StoredPartition(self._stored.state, max(self._stored.version, write.version + 1))
            then(IsrRefused(self._stored))
        else:
            then(IsrUnanswered())

    def _isr_from_controller(self, argument: Any) -> None:
        isr = frozenset(self._known(member) for member in expect_ints(argument, "isr_from_controller"))
        state = with_isr(self._stored.state, isr, joined=self._epochs)
        self._stored = StoredPartition(state, self._stored.version + 1)
        self._command(self._leader, self._stored)

    def _become_leader(self, argument: Any) -> None:
        keys = expect_keys(argument, "become_leader", _COMMAND_KEYS, {"replica", "epoch"})
        replica = self._known(keys["replica"])
        isr = expect_ints(keys.get("isr", sorted(self._stored.state.isr)), "isr")
        self._told(replica, replica, isr, keys)

    def _become_follower(self, argument: Any) -> None:
        """`leader: -1`: nobody leads."""
        keys = expect_keys(argument, "become_follower", _COMMAND_KEYS | {"leader"}, {"replica", "leader", "epoch"})
        leader = None if keys["leader"] == -1 else self._known(keys["leader"])
        members = self._stored.state.isr if leader is None else self._stored.state.isr | {leader}
        self._told(self._known(keys["replica"]), leader, expect_ints(keys.get("isr", sorted(members)), "isr"), keys)

    def _told(self, replica: BrokerId, leader: BrokerId | None, isr: list[int], keys: dict[str, Any]) -> None:
        known_start = self._stored.state.lowest_offset
        start_at = expect_int(keys.get("start_at", known_start), "start_at")
        if start_at < known_start:
            raise BadScenario(f"start_at never falls, and {start_at} is below {known_start}")
        state = self._state(leader, expect_int(keys["epoch"], "epoch"), isr, start_at)
        version = keys.get("version", "next")
        if version not in ("next", "same", "old"):
            raise BadScenario(f"version is same or old, not {version!r}")
        known = self._loops[replica].order[1]
        stored = StoredPartition(
            state, {"next": max(known, self._stored.version) + 1, "same": known, "old": known - 1}[version]
        )
        if version == "next":
            self._stored = stored
        self._command(replica, stored)

    def _restart(self, argument: Any) -> None:
        keys = expect_keys(argument, "restart", {"replica", "lost"}, {"replica"})
        replica, lost = self._known(keys["replica"]), expect_int(keys.get("lost", 0), "lost")
        log = self._logs[replica]
        log.truncate(max(log.log_end - lost, log.log_start))
        self._epochs[replica] += 1
        if lost:
            # Records are lost from the end only with the host's page cache: that registration is not clean (I8).
            self._clean_since[replica] = self._epochs[replica]
        self._writes = [(write, then) for write, then in self._writes if write.broker != replica]
        self._loops[replica] = self._loop(replica)
        self._command(replica, self._stored)

    def _read(self, argument: Any) -> None:
        """A consumer's read. `to: end`: it ends where there are no more records, and else it waits for some. `after`:
        the leader epoch of the record that it has read before."""
        keys = expect_keys(argument, "read", {"from", "at", "to", "after"}, {"from"})
        if keys.get("to", "end") != "end":
            raise BadScenario(f"to is end, not {keys['to']!r}")
        loop = self._loops[self._known(keys["at"]) if "at" in keys else self._leader]
        start = keys["from"] if keys["from"] in get_args(NamedOffset) else expect_int(keys["from"], "from")
        ticket = ReadTicket(
            topic=loop.partition.topic,
            partition=loop.partition.partition,
            from_offset=start,
            last_epoch=expect_int(keys["after"], "after") if "after" in keys else None,
            max_wait_ms=0 if "to" in keys else 1,
        )
        looked = look(loop, ticket, None, 1 << 40)
        if looked.records is None:
            self._answer = "empty"
        else:
            offsets = [looked.records.first_offset, looked.records.next_offset - 1]
            self._answer = {"records": offsets, "high_watermark": loop.high_watermark}

    def _end_of(self, argument: Any) -> None:
        keys = expect_keys(argument, "end_of", {"epoch", "at"}, {"epoch"})
        loop = self._loops[self._known(keys["at"]) if "at" in keys else self._leader]
        found = end_of_epoch(loop.view, expect_int(keys["epoch"], "epoch"))
        self._answer = {"epoch": "none", "end": -1} if found is None else {"epoch": found.epoch, "end": found.end}

    def _wait(self, argument: Any) -> None:
        self._now_ms += milliseconds(argument, "wait")
        self._tick()

    def _tick(self) -> None:
        for loop in self._loops.values():
            loop.tick(self._now_ms)
            loop.checkpoint()

    # Expectations

    def check_names(self, expected: dict[Any, Any]) -> None:
        for key in expected:
            self._expectation(key)

    def _expectation(self, key: Any) -> Callable[[Any], None]:
        if isinstance(key, int) or str(key).isdecimal():
            replica = self._known(int(key))
            return lambda wanted: check_fields(f"replica {replica}", wanted, self._replica_found(replica))
        if key in ("high_watermark", "log_start", "log_end", "isr", "maximal_isr", "pending"):
            return lambda wanted: check_fields("the leader", {key: wanted}, self._leader_found())
        plain: dict[str, Callable[[Any], None]] = {
            "acked": self._expect_acked,
            "answer": self._expect_answer,
            "error": lambda wanted: check_error(wanted, self._error),
            "identical": self._expect_identical,
        }
        if key not in plain:
            raise BadScenario(f"expectation {key!r} does not exist")
        return plain[key]

    def expect(self, key: Any, wanted: Any) -> None:
        self._expectation(key)(wanted)

    def _replica_found(self, replica: BrokerId) -> dict[str, Any]:
        log, loop = self._logs[replica], self._loops[replica]
        return {
            "log_start": log.log_start,
            "log_end": log.log_end,
            "high_watermark": loop.high_watermark,
            "runs": log.runs,
            "epochs": [list(entry) for entry in log.epochs],
        }

    def _leader_found(self) -> dict[str, Any]:
        loop = self._loops[self._leader]
        leading = loop.leading()
        return {
            "high_watermark": leading.high_watermark,
            "log_start": loop.log.log_start,
            "log_end": loop.log.log_end,
            "isr": leading.state.isr,
            "maximal_isr": leading.maximal_isr,
            "pending": leading.pending is not None,
        }

    def _expect_acked(self, wanted: Any) -> None:
        if not same(wanted, frozenset(self._acked)):
            raise Mismatch("acked", wanted, self._acked)

    def _expect_answer(self, wanted: Any) -> None:
        found = self._answer if self._error == "none" else f"error {self._error}"
        if isinstance(wanted, dict) and isinstance(found, dict):
            known = {
                "base_offset",
                "last_offset",
                "duplicate_of",
                "records",
                "high_watermark",
                "diverging",
                "epoch",
                "end",
            }
            for key, value in expect_keys(wanted, "answer", known).items():
                if not same(value, found.get(key)):
                    raise Mismatch(f"answer: {key}", value, found.get(key))
        elif wanted != found:
            raise Mismatch("answer", wanted, found)

    def _expect_identical(self, wanted: Any) -> None:
        end = min(log.log_end for log in self._logs.values())
        start = max(log.log_start for log in self._logs.values())
        held = {tuple(log.records[start - log.log_start : end - log.log_start]) for log in self._logs.values()}
        if (len(held) == 1) is not wanted:
            raise Mismatch("identical", wanted, {replica: log.runs for replica, log in self._logs.items()})


def _runs(document: Any) -> list[tuple[int, int, int]]:
    if not isinstance(document, list):
        raise BadScenario(f"a log is a list of runs, not {document!r}")
    runs: list[tuple[int, int, int]] = []
    for run in document:
        first, last, epoch = (*expect_ints(run, "a run"), 0, 0, 0)[:3]
        if len(run) != 3 or first > last or (runs and first != runs[-1][1] + 1):
            raise BadScenario(f"{run} is no run [first offset, last offset, leader epoch] that follows the one before")
        runs.append((first, last, epoch))
    return runs
