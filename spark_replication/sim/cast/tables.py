"""Topics' tables, who seals them, and their writers: engine.controller.table_seal and engine.client.table_writing.

A commit takes effect whether or not whoever asked for it still lives, and an answer may be lost. A writer reads from
any disk that has the rows, committed or not, and of whatever leader: it may be stopped for as long as the run lasts
between any two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import TypeVar

from spark_replication.core.controller.events import Event, TableAnswered
from spark_replication.core.tables.flushing import FlushRules, LogTold, PlannedRange
from spark_replication.core.tables.table import TableVersion
from spark_replication.engine.broker.found_ranges import found_range
from spark_replication.engine.broker.table_ends import take_table_ends
from spark_replication.engine.client.table_writing import (
    AskLeaders,
    CommitRows,
    ConfirmRows,
    Doing,
    LoadTable,
    ReadPlanned,
    Rest,
    TableWriting,
    TellEnds,
    ends_of,
    told_by,
    wanted_of,
)
from spark_replication.engine.controller import table_seal
from spark_replication.engine.controller.table_seal import SealStep, SealTable, TableSeal, TakeOverTable
from spark_replication.errors import ReplicationError, StorageFailed, TableChanged, WrongCluster
from spark_replication.messages.ranges import FoundRange, WantedRange
from spark_replication.messages.tables import TableEndsTaken, TellTableEnds, ToldTableEnd
from spark_replication.model import Epoch, Offset, PartitionNumber, TableOrigin, TopicPartition
from spark_replication.sim.cast.broker import BrokerProcess
from spark_replication.sim.cast.clients import Client, Cluster
from spark_replication.sim.judges.tables import TablesJudge
from spark_replication.sim.world.disk import Disk, Record
from spark_replication.sim.world.stored import CLUSTER_ID
from spark_replication.sim.world.topic_tables import FileOfRows, TableHandle, TableInMemory, TableRow
from spark_replication.sim.world.world import Process, World

TAKES_MS = (2, 30)
LOST = 0.05
RULES = FlushRules(flush_ms=40, file_bytes=600)  # a hundred records
LOOKS_MS = (20, 120)
TELLS_MS = (20, 120)  # so long a leader is waited for
READS_MS = (1, 40)
PARTS = 0.7  # that rows are read where a log has parted from the others
ASTRAY = 0.15

Answer = TypeVar("Answer")


class TopicTables:
    """All tables, each known by its topic_id."""

    def __init__(self, world: World, judge: TablesJudge) -> None:
        self._world = world
        self.judge = judge
        #: None answers before.
        self.unreachable_until_ms = 0
        self.is_healed = False
        self._tables: dict[str, TableInMemory] = {}

    def table(self, topic_id: str) -> TableInMemory:
        """The table that is, or was, this topic's."""
        return self._tables.setdefault(topic_id, TableInMemory(_origin(topic_id)))

    def handle(self, topic_id: str) -> TableHandle:
        """As the topic, or who writes for it, has it."""
        return TableHandle(self._tables, _origin(topic_id))

    def heal(self) -> None:
        self.is_healed = True
        self.unreachable_until_ms = 0

    def ask(
        self,
        what: str,
        act: Callable[[], Answer],
        answered: Callable[[Answer | ReplicationError], None],
        on: Process,
    ) -> None:
        """Do it, though `on` may be stopped or ended meanwhile, and answer, if the answer is not lost."""

        def perform() -> None:
            found: Answer | ReplicationError = StorageFailed(f"{what}: no answer")
            if self._world.now_ms >= self.unreachable_until_ms and not self._is_lost():
                try:
                    found = act()
                except (StorageFailed, TableChanged, WrongCluster) as error:
                    found = error
                if self._is_lost():
                    found = StorageFailed(f"{what}: the answer was lost")
            self._world.after(self._world.between(*TAKES_MS), f"{what}: answered", partial(answered, found), on=on)

        self._world.after(self._world.between(*TAKES_MS), what, perform)

    def _is_lost(self) -> bool:
        return not self.is_healed and self._world.chance(LOST)


class SimulatedSealer:
    """ports.TableSealer of one candidate."""

    def __init__(self, tables: TopicTables, process: Process, handle: Callable[[Event], None]) -> None:
        self._tables = tables
        self._process = process
        self._handle = handle

    def seal(
        self, topic: str, topic_id: str, epochs: Mapping[PartitionNumber, Epoch], restores: TableOrigin | None
    ) -> None:
        work = TableSeal(topic, topic_id, epochs, restores)
        self._do(topic_id, work, work.begin())

    def _do(self, topic_id: str, work: TableSeal, step: SealStep) -> None:
        table = self._tables.handle(topic_id)
        match step:
            case TableAnswered():
                self._handle(step)
            case TakeOverTable(origin=origin):
                take = partial(table.take_over, origin)
                self._tables.ask("takes a table over", take, partial(self._loaded, topic_id, work), self._process)
            case table_seal.LoadForSeal():
                self._tables.ask("loads a table", table.load, partial(self._loaded, topic_id, work), self._process)
            case SealTable(on=on, epochs=epochs):
                seal = partial(table.seal, on, epochs)
                self._tables.ask("seals a table", seal, partial(self._sealed, topic_id, work), self._process)

    def _loaded(self, topic_id: str, work: TableSeal, answer: TableVersion | ReplicationError) -> None:
        step = work.failed(str(answer)) if isinstance(answer, ReplicationError) else work.loaded(answer)
        self._do(topic_id, work, step)

    def _sealed(self, topic_id: str, work: TableSeal, answer: TableVersion | ReplicationError) -> None:
        if isinstance(answer, TableChanged):
            step = work.refused()
        elif isinstance(answer, ReplicationError):
            step = work.failed(str(answer))
        else:
            step = work.sealed(answer)
        self._do(topic_id, work, step)


class TableWriter(Client):
    """Writes the table of one topic after the other, as often as it is made again."""

    def __init__(self, number: int, cluster: Cluster, tables: TopicTables, disks: Callable[[], list[Disk]]) -> None:
        super().__init__(f"t{number}", cluster)
        self._number = number
        self._tables = tables
        self._disks = disks
        self._files = count()
        self._topic = self._topic_id = ""
        #: By topic_id.
        self._works: dict[str, TableWriting] = {}
        self._rows: dict[PartitionNumber, list[Record]] = {}
        self._turn = 0

    @property
    def _writing(self) -> TableWriting:
        return self._works[self._topic_id]

    def start(self) -> None:
        self.world.after(self.world.between(*LOOKS_MS), "looks for tables to write", self._begin, on=self)

    def _begin(self) -> None:
        """Turn to the next topic."""
        there = self.cluster.topic_ids()
        following = [each for each in sorted(there) if each > self._topic_id] or sorted(there)
        if not following:
            self.start()
            return
        self._topic_id = following[0]
        self._topic = there[self._topic_id]
        work = self._works.get(self._topic_id)
        if work is None:
            work = self._works[self._topic_id] = TableWriting(RULES)
            self._do(work.begin())
        else:
            self._do(work.rested())

    def _after(self, delay_ms: int, what: str, action: Callable[[], None]) -> None:
        self.world.after(delay_ms, what, action, on=self)

    def _do(self, doing: Doing) -> None:
        table = self._tables.handle(self._topic_id)
        match doing:
            case LoadTable():
                self._tables.ask("loads a table", table.load, self._loaded, self)
            case AskLeaders(starts=starts):
                partitions = [each.partition for each in self.cluster.topics() if each.topic == self._topic]
                self._ask(wanted_of(self._topic, starts, partitions, RULES), self._told)
            case TellEnds(ends=ends):
                self._tell(ends)
            case ReadPlanned():
                self._after(self.world.between(*READS_MS), "reads rows for a table", self._read)
            case ConfirmRows(ends=ends):
                self._ask(ends_of(self._topic, ends), lambda told: self._do(self._writing.vouched(told)))
            case CommitRows():
                self._commit(doing)
            case Rest(ms=ms):
                self._rows.clear()
                self._after(min(ms, self.world.between(*LOOKS_MS)), "turns to the next table", self._begin)

    def _loaded(self, answer: TableVersion | ReplicationError) -> None:
        work = self._writing
        self._do(work.failed() if isinstance(answer, ReplicationError) else work.loaded(answer))

    def _told(self, told: Mapping[PartitionNumber, LogTold]) -> None:
        mine = [each for each in told if each % 2 == self._number % 2]
        self._do(self._writing.told(told, mine=mine, now_ms=self.world.now_ms))

    def _ask(self, wanted: list[WantedRange], then: Callable[[Mapping[PartitionNumber, LogTold]], None]) -> None:
        """Ask those that are known to lead, or were known to; go on with what they have said after a while."""
        self._turn += 1
        turn, told = self._turn, dict[PartitionNumber, LogTold]()

        def came(found: FoundRange) -> None:
            answer = told_by(found)
            if turn == self._turn and answer is not None and found.topic_id == self._topic_id:
                told[found.partition] = answer
                if len(told) == len(wanted):
                    over(turn)

        def over(of: int) -> None:
            if of == self._turn:
                self._turn += 1
                if len(told) < len(wanted):
                    self.reload(self._topic)
                then(told)

        for each in wanted:
            self._call(each.topic_partition, partial(_found, each), came)
        self._after(self.world.between(*TELLS_MS), "has waited for leaders", partial(over, turn))

    def _call(
        self, partition: TopicPartition, ask: Callable[[BrokerProcess], Answer], came: Callable[[Answer], None]
    ) -> None:
        """Ask whoever is known to lead the partition, or was known to; now and then anybody, who may have led it."""
        leader, network, living = self.leader_of(partition), self.cluster.network, self.cluster.brokers()
        if living and self.world.chance(ASTRAY):
            leader = living[self.world.between(0, len(living) - 1)]
        if leader is None:
            return
        broker = leader

        def asked() -> None:
            found = ask(broker)
            network.send(broker.name, self.name, "tells a writer", partial(came, found), to=self, about=found)

        network.send(self.name, broker.name, "is asked by a writer", asked, to=broker, about=partition)

    def _tell(self, ends: Mapping[PartitionNumber, tuple[Epoch, Offset]]) -> None:
        failed = set(ends)

        def took(partition: PartitionNumber, answer: TableEndsTaken) -> None:
            if partition not in answer.errors:
                failed.discard(partition)

        for partition, (leader_epoch, end) in ends.items():
            told = ToldTableEnd(partition=partition, leader_epoch=leader_epoch, end=end)
            asked = TellTableEnds(topic=self._topic, topic_id=self._topic_id, ends=(told,))
            self._call(TopicPartition(self._topic, partition), partial(_taken, asked), partial(took, partition))
        tells_on = partial(self._ends_told, failed)
        self._after(self.world.between(*TELLS_MS), "has told leaders where tables end", tells_on)

    def _ends_told(self, failed: set[PartitionNumber]) -> None:
        self._do(self._writing.ends_told(failed))

    def _read(self) -> None:
        self._rows.clear()
        for planned in self._writing.plan.ranges:
            rows = self._rows_of(planned)
            if rows is not None:
                self._rows[planned.partition] = rows
        self._do(self._writing.read({partition: rows[-1].epoch for partition, rows in self._rows.items()}))

    def _rows_of(self, planned: PlannedRange) -> list[Record] | None:
        """The rows as any disk has them; if not all have the same there, rather as one that is different."""
        key = (TopicPartition(self._topic, planned.partition), self._topic_id)
        images = [image for disk in self._disks() if (image := disk.image(key)) is not None]
        found = [
            image.records[planned.start - image.start : planned.end - image.start]
            for image in images
            if image.start <= planned.start and planned.end <= image.end
        ]
        if not found:
            return None
        others = [rows for rows in found if found.count(rows) == 1]
        if others and len(others) < len(found):
            self.world.counts["table_rows_that_part"] += 1
        chosen = others if others and self.world.chance(PARTS) else found
        return chosen[self.world.between(0, len(chosen) - 1)]

    def _commit(self, doing: CommitRows) -> None:
        table, topic, topic_id = self._tables.handle(self._topic_id), self._topic, self._topic_id
        rows = {each.partition: list(self._rows[each.partition]) for each in doing.added}
        stored = tuple(
            TableRow(each.partition, offset, record)
            for each in doing.added
            for offset, record in enumerate(rows[each.partition], each.start)
        )
        file = FileOfRows(f"{self.name}-{next(self._files)}-{id(self):x}", stored)

        def commit() -> TableVersion:
            version = table.commit(doing.on, doing.added, [file])
            self.world.counts["table_commits"] += 1
            for each in doing.added:
                story = self.cluster.checkers.story(TopicPartition(topic, each.partition), topic_id)
                self._tables.judge.added(story, each, rows[each.partition])
            return version

        self._tables.ask("commits to a table", commit, self._committed, self)

    def _committed(self, answer: TableVersion | ReplicationError) -> None:
        self._rows.clear()
        if isinstance(answer, TableChanged):
            self.world.counts["table_commits_refused"] += 1
            self._do(self._writing.changed())
        elif isinstance(answer, ReplicationError):
            self._do(self._writing.failed())
        else:
            self._do(self._writing.committed(answer))


def _origin(topic_id: str) -> TableOrigin:
    return TableOrigin(cluster_id=CLUSTER_ID, topic_id=topic_id)


def _found(wanted: WantedRange, broker: BrokerProcess) -> FoundRange:
    return found_range(broker.loop.partition, wanted)


def _taken(told: TellTableEnds, broker: BrokerProcess) -> TableEndsTaken:
    return take_table_ends(broker.loop.partition, told)
