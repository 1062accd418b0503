"""Queries and jobs that write as spark.datasource.writing does: a repeated append has the numbers that it had before,
and goes where its first try went (`engine.client.repeating`).

A query has tasks. All tasks of a micro-batch finish before the next micro-batch begins. A task may be tried again, or
beside another attempt of it. After some attempts that fail the query does, and somebody starts it again. A restarted
driver may repeat the whole micro-batch: at once, or after longer than brokers remember other producers. It plans with
the partitions that there are by then. Some of the attempts that nobody waits for go on.

A query whose checkpoint was restored from a copy plans its micro-batch anew, with other rows, as many as before. Where
the rows of before are stored, brokers must refuse these. Another query begins then, with a checkpoint of its own.

A job's tasks make an append of each row, and are repeated under the same writeId. The next batch is another job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from functools import partial
from typing import NamedTuple

from spark_replication.engine.broker.found_ranges import found_range
from spark_replication.engine.client.numbers import Identity
from spark_replication.engine.client.repeating import (
    Append,
    AppendedTogether,
    FirstTry,
    Known,
    Partitions,
    Runs,
    placements,
)
from spark_replication.errors import InvalidProducerEpoch, ReplicationError
from spark_replication.messages.envelope import NONE
from spark_replication.messages.ranges import FoundRange, WantedRange
from spark_replication.messages.records import KEPT_PRODUCER
from spark_replication.model import TopicPartition
from spark_replication.sim.cast.clients import Client, Cluster
from spark_replication.sim.cast.pipelined import ASK_MS, TICK_MS, Pipeline, Sender
from spark_replication.sim.judges.story import ATTEMPT

TASKS = 2
ROWS = 3  # of each task
BETWEEN = b"|"  # the rows of an append
BATCHES_MAX = 10_000
AGAIN_MS = (10, 120)
NEXT_MS = (20, 200)
LONG_MS = (800, 1_500)
ENDED_MS = 200  # so long after a task has ended nothing of it is on its way
ASKS_MS = 900  # so long a task asks what is stored
SPECULATES = 0.02  # at a tick
STARTS_AGAIN = 0.02
FAILURES_MAX = 4  # of a task, as Spark has it by default
REPEATS = 0.3  # a finished micro-batch
STAYS_AWAY = 0.3  # for long, before it repeats
GOES_ON = 0.5
EXPIRE_MS = 300  # when other producers are forgotten, in the log's time
FIRST_ID = 1_000_000


def rows_of(content: bytes) -> list[bytes]:
    """The rows of an append of a query."""
    return content.partition(ATTEMPT)[0].split(BETWEEN)


class Rows(NamedTuple):
    """What one append has. In a simulated log, each append is one record."""

    content: bytes

    @property
    def num_rows(self) -> int:
        return 1


class Task(NamedTuple):
    """What all attempts at a task have in common."""

    number: int
    topic: str
    identity: Identity
    rows: tuple[bytes, ...]
    #: Whether each row is an append of its own.
    one_by_one: bool
    #: Where they go if no earlier write has put any elsewhere.
    planned: Partitions
    #: Whether an earlier run may have stored some of them.
    may_repeat: bool

    def cut(self, partitions: Partitions, attempt: int) -> list[Append]:
        """Each attempt has the rows of an append in another order, and so other bytes."""
        placed: dict[int, list[bytes]] = {}
        for place, row in enumerate(self.rows):
            placed.setdefault(partitions[(self.number + place) % len(partitions)], []).append(row)
        return [
            Append(target, 0, Rows(b"%s%s%d" % (BETWEEN.join(together), ATTEMPT, attempt)))
            for target, rows in placed.items()
            for together in ([[row] for row in rows] if self.one_by_one else [rows])
        ]


class Attempt(Pipeline):
    """As spark.datasource.writing.TaskWrite: it does what engine.client.repeating says."""

    def __init__(self, number: int, task: Task, query: Query, done: Callable[[Attempt], None]) -> None:
        """`done` is called once, whatever the outcome."""
        super().__init__(f"{query.name}/{number}", query.cluster)
        self._number = number
        self._task = task
        self._done = done
        self.is_written = self.is_refused = False
        self._asking: Generator[int, Known, FirstTry] | None = None
        self._parts: Generator[AppendedTogether, None, None] | None = None
        self._part: AppendedTogether | None = None
        self._senders: dict[int, Sender] = {}
        self._unanswered = 0
        self._error: ReplicationError | None = None
        # What is asked of leaders
        self._partitions: Partitions = ()
        self._told: dict[int, FoundRange] = {}
        self._asks_until_ms = 0

    def start(self) -> None:
        if self._task.may_repeat:
            self._asking = FirstTry.asking(lambda _producer: self._task.identity)
            self._ask(next(self._asking))
        else:
            self._send(self._first())
        self._tick()

    def _first(self) -> AppendedTogether:
        return AppendedTogether(self._task.cut(self._task.planned, self._number), is_last=True)

    def _tick(self) -> None:
        is_asking = self._part is None
        if (is_asking and self.world.now_ms >= self._asks_until_ms) or self._task.topic not in self._topics():
            self._done(self)
            return
        if not is_asking and not self._unanswered and self._go_on():
            self._done(self)
            return
        self.world.after(self.world.between(*TICK_MS), "looks", self._tick, on=self)

    def _topics(self) -> set[str]:
        return {partition.topic for partition in self.cluster.topics()}

    # Sending

    def _send(self, part: AppendedTogether) -> None:
        self._part = part
        for append in part.appends:
            sender = self._senders.get(append.target)
            if sender is None:
                target = TopicPartition(self._task.topic, append.target)
                sender = self._senders[append.target] = self._begin(target, self._task.identity, is_fixed=True)
            self._unanswered += 1
            has_room = sender.send(append.batch.content)
            assert has_room, "a task has few appends"

    def _go_on(self) -> bool:
        """All that was sent has its answers. Whether the attempt is over."""
        assert self._part is not None
        error, self._error = self._error, None
        if error is None and self._part.is_last:
            self.is_written = True
            return True
        if self._parts is None:
            self.is_refused = isinstance(error, InvalidProducerEpoch)
            return True
        try:
            if error is None:
                self._send(next(self._parts))
            else:
                self._senders = {}
                self._send(self._parts.throw(error))
        except ReplicationError as failed:
            self.is_refused = isinstance(failed, InvalidProducerEpoch)
            return True
        return False

    def was_acknowledged(self) -> None:
        self._unanswered -= 1

    def has_failed(self, content: bytes, error: ReplicationError) -> None:
        self.world.note(f"{self.name}: {content!r} has failed: {error}")
        self._unanswered -= 1
        self._error = self._error or error

    # Asking

    def _ask(self, producer: int) -> None:
        """Ask each leader what it has stored of this producer, until all have said so."""
        self._partitions, self._told = (), {}
        self._asks_until_ms = self.world.now_ms + ASKS_MS
        self._ask_again(producer)

    def _ask_again(self, producer: int) -> None:
        if self._part is None and self.world.now_ms < self._asks_until_ms:
            self.reload(self._task.topic, lambda: self._ask_each(producer))
            self.world.after(ASK_MS, "asks again", lambda: self._ask_again(producer), on=self)

    def _ask_each(self, producer: int) -> None:
        topic = self.routing.topics.get(self._task.topic)
        if topic is None:
            return
        self._partitions = self._partitions or topic.numbers
        for partition in self._partitions:
            if partition not in self._told:
                self._ask_leader(TopicPartition(topic.name, partition), producer)

    def _ask_leader(self, partition: TopicPartition, producer: int) -> None:
        leader, network = self.leader_of(partition), self.cluster.network
        if leader is None:
            return
        wanted = WantedRange(
            topic=partition.topic, partition=partition.partition, to=0, may_lag=True, producers=(producer,)
        )

        def asked() -> None:
            found = found_range(leader.loop.partition, wanted)
            network.send(leader.name, self.name, "what is stored", lambda: self._heard(found), to=self)

        network.send(self.name, leader.name, "asks what is stored", asked, to=leader, about=partition)

    def _heard(self, found: FoundRange) -> None:
        if found.error != NONE or self._part is not None or self._asking is None:
            return
        self._told[found.partition] = found
        if self._told.keys() < set(self._partitions):
            return
        known = {each.partition: appends for each in self._told.values() for appends in each.known}
        try:
            self._ask(self._asking.send((self._partitions, known)))
        except StopIteration as ended:
            self._begin_again(ended.value)
        except InvalidProducerEpoch as error:  # a later micro-batch is there
            self.world.note(f"{self.name}: {error}")
            self._asking, self._asks_until_ms = None, 0

    def _begin_again(self, first: FirstTry) -> None:
        if not first.stored:
            self._send(self._first())
            return
        self.world.counts["query_placed_again"] += 1
        cut = partial(self._task.cut, attempt=self._number)
        self._parts = first.again(placements(self._task.planned, first.partitions), cut, first.unplaced())
        try:
            self._send(next(self._parts))
        except InvalidProducerEpoch as error:
            self.world.note(f"{self.name}: {error}")
            self._asking, self.is_refused, self._asks_until_ms = None, True, 0


class Query(Client):
    """A query. Once its topic is gone, another query begins, with a checkpoint of its own."""

    def __init__(self, number: int, cluster: Cluster, *, are_jobs: bool) -> None:
        super().__init__(f"q{number}", cluster)
        self._are_jobs = are_jobs
        self._number = number
        self._lives = 0
        self._attempts = 0
        self._batch = 0
        #: How often the checkpoint was restored: the rows of a micro-batch depend on it.
        self._restored = 0
        self._is_refused = False
        self._repeats = False
        self._next_ms = 0
        self._topic = ""
        self._runs, self._run = Runs(), 0
        #: The topic's partitions, as the present run has planned with them.
        self._planned: Partitions = ()
        self._last_planned: Partitions = ()
        self._has_settled = True  # nothing of runs that planned otherwise is on its way
        #: The attempts that nobody waits for, and that go on.
        self._zombies: list[Attempt] = []
        #: All that any run has planned with, since when.
        self._used: dict[int, int] = {}
        #: The unfinished tasks, with the attempts at each.
        self._left: dict[Task, list[Attempt]] = {}
        #: How many attempts at each task of this micro-batch have failed.
        self._failures: Counter[int] = Counter()
        #: The rows of all finished batches, and the topic that they are in.
        self.stored: set[bytes] = set()
        self.topic_id = ""

    @property
    def has_lost_partitions(self) -> bool:
        """Whether a partition in which it may have rows was removed meanwhile."""
        gone_ms = self.cluster.checkers.gone_ms.get(self.topic_id, {})
        return any(gone_ms.get(number, -1) >= since_ms for number, since_ms in self._used.items())

    @property
    def is_through(self) -> bool:
        """Whether everything that was begun is done."""
        return not self._left and not self._repeats

    def start(self) -> None:
        self.world.after(self.world.between(*TICK_MS), "looks", self._tick, on=self)

    def restored(self) -> bool:
        """Start again from a copy of the checkpoint: the present micro-batch has other rows. False if there is none."""
        if self._are_jobs or not self._batch or self.stopped:
            return False
        self._start_again(0)
        self._restored += 1
        return True

    def _tick(self) -> None:
        if self._is_refused or self.topic_id not in self.cluster.topic_ids():
            self._make()
        elif self._left:
            self._go_on()
        elif self.world.now_ms >= self._next_ms and (self._repeats or not self.stopped):
            self._begin_batch()
        if not self.stopped or not self.is_through:
            self.world.after(self.world.between(*TICK_MS), "looks", self._tick, on=self)

    def _make(self) -> None:
        """Begin another query, on a topic that is there."""
        self._leave()
        self._lives += 1
        self._batch, self._restored, self._repeats, self._is_refused = 0, 0, False, False
        self._planned, self._last_planned, self._used = (), (), {}
        self.stored, self.topic_id = set(), ""
        there = sorted(self.cluster.topic_ids().items())
        if there:
            self.topic_id, self._topic = there[self._number % len(there)]

    def _start_again(self, after_ms: int) -> None:
        """The driver ends, and another repeats its micro-batch. It does not know which tasks had finished."""
        self._leave()
        self._run += 1
        self._repeats, self._planned = True, ()
        self._next_ms = self.world.now_ms + after_ms

    def _plan_with(self, numbers: Partitions) -> None:
        """Some of these may have gone: a broker may not know it yet."""
        self._planned = numbers
        there = {each.partition for each in self.cluster.topics() if each.topic == self._topic}
        for number in numbers:
            self._used.setdefault(number, self.world.now_ms if number in there else 0)

    def _plan(self) -> bool:
        """As any broker knows the topic by now. Whether the next batch may begin.

        With other partitions than before it begins once the attempts of earlier runs have ended, and no broker stands
        still: what one reads of theirs after the question for it would be there twice. Spark ends tasks in time; who
        stands still for longer is what engine.client.repeating names."""
        living = self.cluster.brokers()
        if living and not self._planned:
            broker = living[self.world.between(0, len(living) - 1)]
            for topic in broker.loop.metadata([self._topic], None).topics:
                if topic.topic_id == self.topic_id:
                    self._plan_with(topic.numbers)
                    self.world.note(f"{self.name} plans with {topic.numbers} of {broker.name}, hidden {topic.hidden}")
            if self._planned not in ((), self._last_planned):
                self._last_planned = self._planned
                for attempt in self._zombies:
                    attempt.ended()
                self._zombies = []
                self._has_settled = False
                self._next_ms = self.world.now_ms + ENDED_MS
                return False
        if not self._has_settled and any(broker.stopped_until_ms > self.world.now_ms for broker in living):
            self._next_ms = self.world.now_ms + ENDED_MS
            return False
        self._has_settled = True
        return bool(self._planned)

    def _begin_batch(self) -> None:
        if not self._plan():
            return
        if self._repeats:
            self.world.counts["query_repeated"] += 1
        else:
            self._batch += 1
        may_repeat = self._are_jobs or self._runs.may_repeat(f"{self._lives}.{self._run}", self._batch)
        self._left = {self._task(number, may_repeat=may_repeat): [] for number in range(TASKS)}
        self._failures.clear()
        for task in list(self._left):
            self._try(task)

    def _task(self, number: int, *, may_repeat: bool) -> Task:
        first = FIRST_ID * (self._number + 1) + BATCHES_MAX * self._lives + number
        producer = first + TASKS * self._batch if self._are_jobs else first | KEPT_PRODUCER
        named = b"%s.%d.%d.%d.%d" % (self.name.encode(), self._lives, number, self._batch, self._restored)
        return Task(
            number,
            self._topic,
            Identity(producer=producer, epoch=0 if self._are_jobs else self._batch, any_order=True),
            tuple(b"%s.%d" % (named, row) for row in range(ROWS)),
            self._are_jobs,
            self._planned,
            may_repeat,
        )

    def _go_on(self) -> None:
        """Go on with a batch: try again, speculate, or start the driver again."""
        has_failed = max(self._failures.values(), default=0) >= FAILURES_MAX
        if has_failed or self.world.chance(STARTS_AGAIN):
            self.world.counts["query_started_again"] += 1
            self._start_again(self.world.between(*AGAIN_MS))
            return
        for task, attempts in self._left.items():
            if not attempts or (len(attempts) == 1 and self.world.chance(SPECULATES)):
                self._try(task)

    def _leave(self) -> None:
        """End the attempts. Some are not reached, and go on."""
        for attempts in self._left.values():
            self._let_go(attempts)
        self._left = {}

    def _let_go(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            if self.world.chance(GOES_ON):
                self._zombies.append(attempt)
            else:
                attempt.ended()

    def _try(self, task: Task) -> None:
        self._attempts += 1
        left = self._left

        def done(attempt: Attempt) -> None:
            if left is self._left and task in left:
                left[task].remove(attempt)
                self._is_refused |= attempt.is_refused and (bool(self._restored) or self.has_lost_partitions)
                if attempt.is_written:
                    self._through(task)
                else:
                    self._failures[task.number] += 1

        attempt = Attempt(self._attempts, task, self, done)
        self._left[task].append(attempt)
        attempt.start()

    def _through(self, task: Task) -> None:
        self._let_go(self._left.pop(task))
        self.stored.update(task.rows)
        if self._left:
            return
        self.world.counts["query_batches"] += 1
        if not self._repeats and self.world.chance(REPEATS):
            stays_away = not self._are_jobs and self.world.chance(STAYS_AWAY)
            self._start_again(self.world.between(*(LONG_MS if stays_away else NEXT_MS)))
        else:
            self._repeats = False
            self._next_ms = self.world.now_ms + self.world.between(*NEXT_MS)
