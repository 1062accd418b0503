"""A writer of one topic's table: it loads, asks, reads, asks again, commits, and forgets (TB1, TB2).

| it does     | what comes of it      | and then                                                                   |
| ----------- | --------------------- | -------------------------------------------------------------------------- |
| LoadTable   | `loaded`              | AskLeaders                                                                 |
| AskLeaders  | `told`                | TellEnds, if leaders are to know more; then ReadPlanned, or Rest           |
| TellEnds    | `ends_told`           | ReadPlanned, or Rest if nothing is due                                     |
| ReadPlanned | `read`: into files beside the table, which nobody knows of: ConfirmRows                            |
|             | `read`: not all       | Rest, and then the others without those: one file has rows of many         |
| ConfirmRows | `vouched`: for all    | CommitRows                                                                 |
|             | `vouched`: not for all | as if those had not been read                                             |
| CommitRows  | `committed`           | AskLeaders, about the version that was made                                |
|             | `changed`: refused    | LoadTable                                                                  |
| anything    | `failed`: no answer   | Rest, then LoadTable: the table alone tells whether it was done            |
| Rest        | `rested`              | AskLeaders, or LoadTable after a failure                                   |

Any number of writers may do so at once, be stopped for as long as anybody likes, and go on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from spark_replication.core.tables.flushing import FlushPlan, FlushRules, LogTold, PlannedRange, confirmed, plan_flush
from spark_replication.core.tables.table import RowRange, TableVersion
from spark_replication.messages.envelope import NONE
from spark_replication.messages.ranges import FoundRange, WantedRange
from spark_replication.model import Epoch, Offset, PartitionNumber, TimeMs

REST_MS_MAX = 1_000
FAILED_REST_MS = (100, 10_000)


class LoadTable(msgspec.Struct, frozen=True):
    """Call TopicTable.load."""


class AskLeaders(msgspec.Struct, frozen=True):
    """Ask the leaders of all partitions what they have from these offsets on. A partition that is not here: from where
    its log begins."""

    starts: Mapping[PartitionNumber, Offset]


class TellEnds(msgspec.Struct, frozen=True):
    """Tell the leader of each of these partitions, at this epoch of it, how far the table has it (TB4). If that does
    not arrive, it is told again."""

    ends: Mapping[PartitionNumber, tuple[Epoch, Offset]]


class ReadPlanned(msgspec.Struct, frozen=True):
    """Read these rows, from wherever they are, and put them in files beside the table."""

    ranges: tuple[PlannedRange, ...]


class ConfirmRows(msgspec.Struct, frozen=True):
    """Ask the leaders whether the rows before these offsets are of these leader epochs in their logs."""

    ends: Mapping[PartitionNumber, tuple[Offset, Epoch]]


class CommitRows(msgspec.Struct, frozen=True):
    """Call TopicTable.commit, with the rows of these ranges in files."""

    on: TableVersion
    added: tuple[RowRange, ...]


class Rest(msgspec.Struct, frozen=True):
    ms: int


Doing = LoadTable | AskLeaders | TellEnds | ReadPlanned | ConfirmRows | CommitRows | Rest


class TableWriting:
    """Each method takes what came of the last step, and returns the next one. Before a step that is no CommitRows, what
    was put in files and not committed is dropped."""

    def __init__(self, rules: FlushRules) -> None:
        self._rules = rules
        self._version: TableVersion | None = None
        self._planned: tuple[PlannedRange, ...] = ()
        self._last_epochs: Mapping[PartitionNumber, Epoch] = {}
        self._failed_rest_ms = FAILED_REST_MS[0]
        #: What the leaders said last, and what was made of it.
        self.plan = FlushPlan()
        #: What could not be read, or no leader vouched for: the others go first.
        self._doubted: frozenset[PartitionNumber] = frozenset()
        self._told_ends: dict[PartitionNumber, tuple[Epoch, Offset]] = {}
        self._after_telling: Doing = LoadTable()

    def begin(self) -> Doing:
        return LoadTable()

    def configure(self, rules: FlushRules) -> None:
        self._rules = rules

    @property
    def version(self) -> TableVersion | None:
        """The version that it goes by; None if it has to load the table."""
        return self._version

    def has(self, ends: Mapping[PartitionNumber, Offset]) -> bool:
        """Whether the table has these partitions up to there, by the version that it goes by."""
        version = self._version
        return version is not None and all((version.end_of(each) or 0) >= end for each, end in ends.items())

    def loaded(self, version: TableVersion) -> Doing:
        self._version = version
        return self._ask()

    def _ask(self) -> Doing:
        return LoadTable() if self._version is None else AskLeaders(self._version.ends)

    def told(
        self, told: Mapping[PartitionNumber, LogTold], *, mine: Collection[PartitionNumber], now_ms: TimeMs
    ) -> Doing:
        """told: of each partition whose leader has answered."""
        assert self._version is not None, "the table was loaded"
        undoubted = {each: known for each, known in told.items() if each not in self._doubted}
        self.plan = plan_flush(self._version, undoubted, self._rules, mine=mine, now_ms=now_ms)
        if not self.plan.ranges:
            self._doubted = frozenset()
        ends = {
            each: (known.leader_epoch, end)
            for each, known in sorted(told.items())
            if each not in self.plan.troubles and (end := self._version.end_of(each)) is not None
        }
        doing = self._planned_doing(now_ms)
        news = {each: end for each, end in ends.items() if self._told_ends.get(each) != end}
        if not news:
            return doing
        self._told_ends.update(news)
        self._after_telling = doing
        return TellEnds(news)

    def ends_told(self, failed: Collection[PartitionNumber]) -> Doing:
        """failed: the partitions whose leader has not taken it."""
        for each in failed:
            self._told_ends.pop(each, None)
        return self._after_telling

    def _planned_doing(self, now_ms: TimeMs) -> Doing:
        if self.plan.ranges:
            self._planned = self.plan.ranges
            return ReadPlanned(self._planned)
        if self.plan.troubles:
            self._version = None  # another writer, or a seal, may be the reason
        due_ms = self.plan.due_ms
        return Rest(REST_MS_MAX if due_ms is None else max(1, min(REST_MS_MAX, due_ms - now_ms)))

    def read(self, last_epochs: Mapping[PartitionNumber, Epoch]) -> Doing:
        """last_epochs: the leader epoch of the last row of each range that was read whole."""
        self._last_epochs = last_epochs
        if unread := [each.partition for each in self._planned if each.partition not in last_epochs]:
            return self._doubt(unread)
        return ConfirmRows({each.partition: (each.end, last_epochs[each.partition]) for each in self._planned})

    def _doubt(self, partitions: Collection[PartitionNumber]) -> Doing:
        self._doubted |= frozenset(partitions)
        return self._rest_after_failure()

    def vouched(self, told: Mapping[PartitionNumber, LogTold]) -> Doing:
        """told: of each partition whose leader has answered, about the end of what was read."""
        version = self._version
        assert version is not None, "the table was loaded"
        found = {
            each.partition: confirmed(version, each, self._last_epochs[each.partition], told[each.partition])
            for each in self._planned
            if each.partition in told
        }
        added = tuple(each for each in found.values() if each is not None)
        if len(added) < len(self._planned):
            vouched = {each.partition for each in added}
            return self._doubt([each.partition for each in self._planned if each.partition not in vouched])
        return CommitRows(version, added)

    def committed(self, version: TableVersion) -> Doing:
        self._version = version
        self._failed_rest_ms = FAILED_REST_MS[0]
        return self._ask()

    def changed(self) -> Doing:
        """The commit was refused, since another one was stored before it."""
        self._version = None
        return self._ask()

    def failed(self) -> Doing:
        """A step was not answered, or could not be done. What it was about may have been done all the same."""
        return self._rest_after_failure()

    def _rest_after_failure(self) -> Doing:
        self._version = None
        rest_ms, most_ms = self._failed_rest_ms, FAILED_REST_MS[1]
        self._failed_rest_ms = min(2 * rest_ms, most_ms)
        return Rest(rest_ms)

    def rested(self) -> Doing:
        return self._ask()


def wanted_of(
    topic: str, starts: Mapping[PartitionNumber, Offset], partitions: Collection[PartitionNumber], rules: FlushRules
) -> list[WantedRange]:
    """What to ask the leaders of these partitions, for AskLeaders."""
    return [
        WantedRange(
            topic=topic,
            partition=partition,
            start=starts.get(partition, "earliest"),
            piece_bytes=rules.file_bytes,
            timed=True,
        )
        for partition in sorted(partitions)
    ]


def ends_of(topic: str, ends: Mapping[PartitionNumber, tuple[Offset, Epoch]]) -> list[WantedRange]:
    """What to ask them for ConfirmRows."""
    return [
        WantedRange(topic=topic, partition=partition, start=end, to=end)
        for partition, (end, _last_epoch) in sorted(ends.items())
    ]


def told_by(found: FoundRange) -> LogTold | None:
    """What a leader has said; None if it has not."""
    if found.error != NONE or found.leader_epoch < 0:
        return None
    return LogTold(
        leader_epoch=found.leader_epoch,
        log_start=found.log_start,
        high_watermark=found.high_watermark,
        bytes=found.bytes,
        first_ms=found.start_ms,
        pieces=tuple((each.end, each.bytes) for each in found.pieces),
        epoch_before=found.start_epoch,
    )
