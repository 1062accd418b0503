"""Readers: engine.client.reading and the broker's read end, over simulated connections.

What is read is compared with what is committed in the broker, as it answers, and with what was read before as the
reader gives it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from math import ceil

from spark_replication.core.replica.read_start import ReadPlace
from spark_replication.engine.client.reading import (
    AskRecords,
    EndRead,
    FindLeader,
    FindReplicas,
    FindStart,
    Instruction,
    LearnTopic,
    PartitionRead,
    Pause,
    Preference,
    RaiseError,
    Replica,
    ReportRoute,
    ReportTopic,
)
from spark_replication.engine.ends.read_end import Read, ReadEnd
from spark_replication.engine.replica.reads import LogLook, is_over
from spark_replication.errors import BrokerNotAvailable, CorruptLog, LogTruncated, ReplicationError
from spark_replication.messages.lane import ReadFrame
from spark_replication.messages.records import ReadTicket
from spark_replication.model import Offset, TopicPartition
from spark_replication.ports import LogSlice
from spark_replication.sim.cast.broker import BrokerProcess
from spark_replication.sim.cast.clients import Client, Cluster
from spark_replication.sim.judges.reads import BrokerAnswer, GivenRow, KnownPlace, ReadJudge
from spark_replication.sim.world.disk import contents_of
from spark_replication.sim.world.network import Stream
from spark_replication.sim.world.world import InvariantBroken
from spark_replication.storage.format.batches import check_data
from spark_replication.storage.format.index import decode_entries
from spark_replication.transport.frames.loaded_reads import loaded

READ_MS = (10, 90)  # between two reads
READ_BYTES_MAX = 60  # of an answer: ten records
WAITS_MS = (40, 250)  # how long a broker may wait for records, if the reader follows
FOLLOWS_MS = (150, 1_200)  # after which a reader that follows is closed
PATIENCE_MS = 700
TOPIC_MS = 300  # how long a topic is looked for
LOOK_MS = (8, 20)
ANSWER_MS = 160  # beyond the time that the broker may wait
TAKES_MS = (10, 160)  # how long whoever reads takes over what it was given
TAKES_PROBABILITY = 0.15
LEFT_MS = (1, 60)
GOES_ON_PROBABILITY = 0.6  # where an earlier read of the partition has ended
STOP_PROBABILITY = 0.3
STOP_RECORDS_MAX = 20
STALE_PROBABILITY = 0.2  # to take every broker for a replica in sync
ERRS_PROBABILITY = 0.01  # a broker sends what is not next
TIME_MS_MAX = 1_500


class Reader(Client):
    """Reads one partition after another: from where it has come before, or from another start; to the end, to a stop,
    or for a while; from the leader, from a follower, or from a broker by its id."""

    def __init__(self, number: int, cluster: Cluster) -> None:
        super().__init__(f"r{number}", cluster)
        self._reads = count(number)
        self._read: SimulatedRead | None = None
        self._places: dict[TopicPartition, KnownPlace] = {}
        self._connections: dict[BrokerProcess, Connection] = {}

    def start(self) -> None:
        self.world.after(self.world.between(*READ_MS), "reads", self._begin, on=self)

    def _begin(self) -> None:
        there = self.cluster.topics()
        if self.stopped:
            return
        if not there:
            self.start()
            return
        target = there[next(self._reads) % len(there)]
        known = self._places.get(target) if self.world.chance(GOES_ON_PROBABILITY) else None
        self._read = SimulatedRead(self, target, self._ticket(target, known), self._preference(), known)
        self._read.go_on()

    def _ticket(self, target: TopicPartition, known: KnownPlace | None) -> ReadTicket:
        start: Offset | str | None = ("earliest", "earliest", 0, "latest", None)[self.world.between(0, 4)]
        from_time = max(0, self.world.now_ms - self.world.between(0, TIME_MS_MAX)) if start is None else None
        if known is not None:
            start, from_time = known.place.offset, None
        stops = isinstance(start, int) and self.world.chance(STOP_PROBABILITY)
        return ReadTicket(
            topic=target.topic,
            partition=target.partition,
            from_offset=start,  # type: ignore[arg-type]
            from_time=from_time,
            to=start + self.world.between(1, STOP_RECORDS_MAX) if stops and isinstance(start, int) else None,
            max_wait_ms=self.world.between(*WAITS_MS) if self.world.chance(0.3) else 0,
            topic_id=None if known is None else known.topic_id,
            last_epoch=None if known is None or known.place.last_epoch < 0 else known.place.last_epoch,
        )

    def _preference(self) -> Preference:
        chosen = self.world.between(0, 9)
        return "leader" if chosen < 4 else "follower" if chosen < 8 else self.world.between(1, 3)

    def read_over(self, read: SimulatedRead, known: KnownPlace | None) -> None:
        """known: where another read may go on."""
        self._read = None
        if known is None:
            self._places.pop(read.target, None)
        else:
            self._places[read.target] = known
        self.start()

    def connection_to(self, broker: BrokerProcess) -> Connection:
        """One over which nothing is owed."""
        connection = self._connections.get(broker)
        if connection is None or not connection.is_free:
            connection = self._connections[broker] = Connection(self, broker)
        return connection

    @property
    def is_through(self) -> bool:
        return self._read is None


class SimulatedRead:
    """Does what the machine says, as client.reading.reader does."""

    def __init__(
        self, reader: Reader, target: TopicPartition, ticket: ReadTicket, prefer: Preference, known: KnownPlace | None
    ) -> None:
        self.target = target
        self._reader = reader
        self._world = reader.world
        self._machine = PartitionRead(ticket, prefer, patience_s=PATIENCE_MS / 1000, now_s=self._now_s)
        self._judge = ReadJudge(f"{reader.name} of {target}", ticket, known)
        self._is_of = known.topic_id if known is not None else ""
        self._connection: Connection | None = None
        self._asked: AskRecords | FindStart | None = None
        self._answers: deque[BrokerAnswer | ReplicationError] = deque()
        self._takes = False  # whoever reads has not come back for more
        self._waits = 0  # for so many answers it has waited
        self._is_over = False
        if ticket.max_wait_ms:
            self._after(self._world.between(*FOLLOWS_MS), "is closed", self._close)

    @property
    def _now_s(self) -> float:
        return self._world.now_ms / 1000

    def _after(self, delay_ms: int, what: str, action: Callable[[], None]) -> None:
        def act() -> None:
            if not self._is_over:
                action()

        self._world.after(delay_ms, what, act, on=self._reader)

    def go_on(self) -> None:
        self._do(self._machine.next())

    def _do(self, doing: Instruction) -> None:
        match doing:
            case LearnTopic():
                self._learn_topic(self._world.now_ms + TOPIC_MS)
            case FindLeader():
                self._find(lambda: self._machine.leader_known(self._reader.routing.route(*self.target)))
            case FindReplicas():
                self._find(lambda: self._machine.replicas_known(self._replicas()))
            case FindStart():
                self._ask(doing, doing.leader)
            case AskRecords():
                self._ask(doing, doing.replica)
            case ReportRoute() | ReportTopic():
                self._reader.reload(self.target.topic)
                self.go_on()
            case Pause(s):
                self._after(ceil(1000 * s), "tries again", self.go_on)
            case RaiseError(error):
                self._world.counts[f"read_failed_{error.code}"] += 1
                self._judge.failed(error)
                self._end(None)
            case EndRead():
                self._world.counts["read_ended"] += 1
                self._judge.ended()
                self._end(self._known())
            case _:
                raise AssertionError(doing)

    def _known(self) -> KnownPlace | None:
        if self._judge.last is None:
            return None
        return KnownPlace(self._is_of, self._machine.place, self._judge.last)

    def _close(self) -> None:
        self._machine.closed()
        self._world.counts["read_closed"] += 1
        self._end(self._known())

    def _end(self, known: KnownPlace | None) -> None:
        self._leave()
        self._is_over = True
        self._reader.read_over(self, known)

    def _fail(self, error: ReplicationError) -> None:
        asked = self._asked
        self._leave()
        self._machine.failed(error, self._now_s)
        doing = self._machine.next()
        if isinstance(error, LogTruncated):
            self._world.counts["read_was_cut"] += 1
            if asked is not None and not asked.ticket.any_replica:
                self._judge.was_cut(goes_on=not isinstance(doing, RaiseError))
        self._do(doing)

    # Finding

    def _learn_topic(self, until_ms: int) -> None:
        try:
            command = self._reader.routing.partition(*self.target)
        except ReplicationError as error:
            self._reader.reload(self.target.topic)
            if self._world.now_ms < until_ms:
                self._after(self._world.between(*LOOK_MS), "looks again", lambda: self._learn_topic(until_ms))
            else:
                self._fail(error)
        else:
            self._is_of = command.topic_id
            self._judge.is_of(command.topic_id)
            self._machine.topic_known(command.topic_id)
            self.go_on()

    def _find(self, find: Callable[[], None]) -> None:
        try:
            find()
        except ReplicationError as error:
            self._reader.reload(self.target.topic)
            self._fail(error)
        else:
            self.go_on()

    def _replicas(self) -> list[Replica]:
        routing = self._reader.routing
        known = routing.followers(*self.target)
        if self._world.chance(STALE_PROBABILITY):
            known = routing.brokers
        return [Replica.at(broker, registration) for broker, registration in sorted(known.items())]

    # Asking

    def _ask(self, doing: FindStart | AskRecords, replica: Replica) -> None:
        broker = self._reader.cluster.find(replica.broker, replica.port)
        if broker is None:
            error = BrokerNotAvailable(f"broker {replica.broker} is gone")
            self._after(self._world.between(*LEFT_MS), "is refused", lambda: self._fail(error))
            return
        self._asked = doing
        self._connection = self._reader.connection_to(broker)
        self._connection.take(self.came)
        self._send(doing.ticket)

    def _send(self, ticket: ReadTicket) -> None:
        assert self._connection is not None
        self._connection.ask(ticket, checked=isinstance(self._asked, AskRecords) and self._asked.checked)
        self._await()

    def _await(self) -> None:
        self._waits += 1
        waits = self._waits

        def look() -> None:
            if waits == self._waits and self._connection is not None and not self._answers and not self._takes:
                self._fail(BrokerNotAvailable("it does not answer"))

        assert self._asked is not None
        self._after(self._asked.ticket.max_wait_ms + ANSWER_MS, "waits no longer", look)

    def _leave(self) -> None:
        connection, self._connection = self._connection, None
        self._answers.clear()
        self._takes = False
        if connection is not None:
            connection.leave()

    # Answers

    def came(self, answer: BrokerAnswer | ReplicationError) -> None:
        self._answers.append(answer)
        if not self._takes:
            self._next_answer()

    def _next_answer(self) -> None:
        self._takes = False
        if not self._answers:
            self._await()
            return
        answer = self._answers.popleft()
        try:
            if isinstance(answer, ReplicationError):
                raise answer
            self._judge.answered(answer)
            if isinstance(self._asked, FindStart):
                self._judge.begins(answer.offset)
                self._leave()
                self._machine.starts_at(answer.after)
                self.go_on()
            else:
                self._give(answer)
        except ReplicationError as error:
            self._fail(error)

    def _give(self, answer: BrokerAnswer) -> None:
        connection = self._connection
        assert connection is not None
        following = self._machine.answered(answer.after)
        if following is not None:
            self._send(following)
        if not answer.is_whole:
            self._world.counts["read_was_damaged"] += 1
            raise CorruptLog("a batch does not have its CRC-32C")
        for row in answer.rows:
            wanted = self._machine.wanted(row.offset, row.offset)
            if wanted is not None:
                self._judge.gives(row, *wanted, answer)
                self._machine.given(wanted[1], row.leader_epoch, self._now_s)
        if connection.is_free and not self._answers:
            self._leave()
            self._machine.served(self._now_s)
            self.go_on()
        elif self._world.chance(TAKES_PROBABILITY):
            self._takes = True
            self._after(self._world.between(*TAKES_MS), "takes more", self._next_answer)
        elif self._answers:
            self._next_answer()


class Connection:
    """A reader's connection to one broker process, and the read end there."""

    def __init__(self, reader: Reader, broker: BrokerProcess) -> None:
        network = reader.cluster.network
        self._world = reader.world
        self._broker = broker
        self._checkers = reader.cluster.checkers
        self._forth = Stream(reader.world, network, reader.name, broker.name, broker)
        self._back = Stream(reader.world, network, broker.name, reader.name, reader)
        self._is_open = True
        self._asked = 0
        self._received = 0
        self._taker: Callable[[BrokerAnswer | ReplicationError], None] | None = None
        #: In the broker.
        self._owed: set[int] = set()
        self._is_aside = False
        self._is_closed = False
        self._end = ReadEnd(
            broker.loop.partition,
            self._found,
            clock_ms=lambda: self._world.now_ms,
            wake=lambda: self._world.after(0, "reads go on", self._go_on, on=broker),
        )

    # In the reader

    @property
    def is_free(self) -> bool:
        return self._is_open and self._asked == self._received

    def take(self, taker: Callable[[BrokerAnswer | ReplicationError], None]) -> None:
        self._taker = taker

    def ask(self, ticket: ReadTicket, *, checked: bool) -> None:
        frame = ReadFrame(number=self._asked, ticket=ticket, checked=checked)
        self._asked += 1
        self._is_open = self._is_open and self._forth.send("a read", partial(self._came, frame), about=ticket)

    def _told(self, answer: BrokerAnswer | ReplicationError) -> None:
        self._received += 1
        if self._taker is not None:
            self._taker(answer)

    def leave(self) -> None:
        """It waits for the next read, unless something is owed over it."""
        self._taker = None
        if not self.is_free:
            self._is_open = False
            self._world.after(self._world.between(*LEFT_MS), "a connection has ended", self._closed, on=self._broker)

    # In the broker

    def _closed(self) -> None:
        self._is_closed = True
        self._end.closed()

    def _came(self, frame: ReadFrame) -> None:
        if not self._is_closed:
            self._owed.add(frame.number)
            self._end.asked(frame)
            wait_ms = frame.ticket.max_wait_ms
            self._world.after(wait_ms, "a read may be over", partial(self._check_told, frame), on=self._broker)
            self._go_on()

    def _check_told(self, frame: ReadFrame) -> None:
        """Check that a question is answered once its time is over."""
        self._go_on()
        if frame.number in self._owed and not self._is_aside and not self._is_closed:
            raise InvariantBroken("readers_are_told", f"{frame} is not answered, and its time is over")

    def _go_on(self) -> None:
        while not self._is_closed and self._end.go_on(lambda _: READ_BYTES_MAX):
            pass

    def _found(self, read: Read, found: LogLook | ReplicationError) -> None:
        if isinstance(found, LogLook) and found.records is not None and read.frame.checked:
            self._is_aside = True
            self._world.after(0, "looks at checksums", partial(self._check, read, found), on=self._broker)
        else:
            self._say(read, found)

    def _check(self, read: Read, found: LogLook) -> None:
        self._is_aside = False
        try:
            self._say(read, loaded(found, lambda: self._broker.loop.partition(read.name), read.ticket))
        except ReplicationError as error:
            self._say(read, error)
        self._go_on()

    def _say(self, read: Read, found: LogLook | ReplicationError) -> None:
        self._owed.discard(read.frame.number)
        self._end.told(read)
        answer = found if isinstance(found, ReplicationError) else self._answer(read, found)
        self._is_open = self._is_open and self._back.send("is read", lambda: self._told(answer), about=answer)

    def _answer(self, read: Read, found: LogLook) -> BrokerAnswer | ReplicationError:
        try:
            records = None if found.records is None else found.records.loaded()
            partition = self._broker.loop.partition(read.name)
        except ReplicationError as error:
            return error
        replica = partition.unguarded
        answer = BrokerAnswer(
            of_leader=not read.ticket.any_replica,
            topic_id=replica.topic_id,
            offset=found.offset,
            after=found.place,
            rows=[],
            before=None,
            is_whole=True,
        )
        if records is None:
            self._check_nothing_was_there(read, found.offset)
            return answer
        try:
            check_data(records)
        except CorruptLog:
            after = ReadPlace(records.next_offset, found.place.last_epoch)
            return answer._replace(after=after, is_whole=False)
        self._checkers.was_read(replica, records.first_offset, contents_of(records), bytes(records.schema))
        return self._with_rows(read, answer, records)

    def _with_rows(self, read: Read, answer: BrokerAnswer, records: LogSlice) -> BrokerAnswer:
        rows = [
            GivenRow(entry.base_offset, entry.leader_epoch, content)
            for entry, content in zip(decode_entries(records.entries), contents_of(records), strict=True)
        ]
        image = self._broker.host.disk.image((read.name, answer.topic_id))
        found = None if image is None else image.at(rows[0].offset - 1)
        before = None if found is None else GivenRow(rows[0].offset - 1, found.epoch, found.content)
        to = read.ticket.to
        beyond = records.next_offset if to is None else min(to, records.next_offset)
        after = ReadPlace(beyond, rows[-1].leader_epoch)
        if not read.frame.checked and self._world.chance(ERRS_PROBABILITY):
            self._world.counts["read_what_is_not_next"] += 1
            rows = [before, *rows] if before is not None and self._world.chance(0.5) else rows[1:]
        return answer._replace(rows=rows, before=before, after=after)

    def _check_nothing_was_there(self, read: Read, offset: Offset) -> None:
        ticket = read.ticket
        replica = self._broker.loop.partition(read.name).unguarded
        if ticket.to == 0:  # it asks where it starts
            is_end = ticket.start == "latest"
        else:
            is_end = not is_over(ticket, offset)
            if is_end:
                self._checkers.nothing_was_read(replica, offset, any_replica=ticket.any_replica)
        if is_end and not ticket.any_replica and not ticket.max_wait_ms:
            self._checkers.was_read_to_its_end(replica, offset)
