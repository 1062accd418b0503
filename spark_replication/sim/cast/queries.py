"""Queries and jobs that write as spark.datasource.writing does: a repeated append has the numbers that it had before.

A query has tasks, each with its partition. All tasks of a micro-batch finish before the next micro-batch begins. A task
may be tried again, or beside another attempt of it. A restarted driver may repeat the whole micro-batch: at once, or
after longer than brokers remember other producers. Some of the attempts that nobody waits for go on.

A query whose checkpoint was restored from a copy plans its micro-batch anew, with other rows, as many as before. Where
the rows of before are stored, brokers must refuse these. Another query begins then, with a checkpoint of its own.

A job's tasks make several appends each, in the same order each time. The next batch is another job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from spark_replication.engine.client.numbers import Identity
from spark_replication.errors import InvalidProducerEpoch, ReplicationError
from spark_replication.messages.records import KEPT_PRODUCER
from spark_replication.model import TopicPartition
from spark_replication.sim.cast.clients import Client, Cluster
from spark_replication.sim.cast.pipelined import TICK_MS, Pipeline, Sender
from spark_replication.sim.judges.story import ATTEMPT

TASKS = 2
APPENDS = 3  # of each task of a job
BATCHES_MAX = 10_000
AGAIN_MS = (10, 120)
NEXT_MS = (20, 200)
LONG_MS = (800, 1_500)
SPECULATES = 0.02  # at a tick
STARTS_AGAIN = 0.02
REPEATS = 0.3  # a finished micro-batch
STAYS_AWAY = 0.3  # for long, before it repeats
GOES_ON = 0.5
EXPIRE_MS = 300  # when other producers are forgotten, in the log's time
FIRST_ID = 1_000_000


class Append(NamedTuple):
    """What a task sends, and under which numbers."""

    producer: int
    epoch: int
    contents: list[bytes]
    #: As in BatchMetadata.
    any_order: bool


class Attempt(Pipeline):
    def __init__(
        self,
        name: str,
        cluster: Cluster,
        target: TopicPartition,
        append: Append,
        done: Callable[[Attempt], None],
    ) -> None:
        """`done` is called once, whatever the outcome."""
        super().__init__(name, cluster)
        self._target = target
        self._append = append
        self._done = done
        self.is_written = self.is_refused = False

    def start(self) -> None:
        identity = Identity(producer=self._append.producer, epoch=self._append.epoch, any_order=self._append.any_order)
        sender = self._begin(self._target, identity, is_fixed=True)
        for content in self._append.contents:
            sender.send(content)
        self._tick(sender)

    def _tick(self, sender: Sender) -> None:
        if self._target not in self.cluster.topics() or sender.is_idle:
            self.is_written = sender.is_idle and not sender.is_over
            self._done(self)
        else:
            self.world.after(self.world.between(*TICK_MS), "looks", lambda: self._tick(sender), on=self)

    def has_failed(self, content: bytes, error: ReplicationError) -> None:
        self.is_refused |= isinstance(error, InvalidProducerEpoch)


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
        self._targets: list[TopicPartition] = []
        self._left: dict[int, list[Attempt]] = {}  # the unfinished tasks, with the attempts at each

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
        self._leave()
        self._restored += 1
        self._repeats = True
        return True

    def _tick(self) -> None:
        there = self.cluster.topics()
        if self._is_refused or not self._targets or not set(self._targets) <= set(there):
            self._make(there)
        elif self._left:
            self._go_on()
        elif self.world.now_ms >= self._next_ms and (self._repeats or not self.stopped):
            self._begin_batch()
        if not self.stopped or not self.is_through:
            self.world.after(self.world.between(*TICK_MS), "looks", self._tick, on=self)

    def _make(self, there: Sequence[TopicPartition]) -> None:
        self._leave()
        self._lives += 1
        self._batch, self._restored, self._repeats, self._is_refused = 0, 0, False, False
        self._targets = [there[(self._number + task) % len(there)] for task in range(TASKS)] if there else []

    def _begin_batch(self) -> None:
        if self._repeats:
            self.world.counts["query_repeated"] += 1
        else:
            self._batch += 1
        self._left = {task: [] for task in range(TASKS)}
        for task in range(TASKS):
            self._try(task)

    def _go_on(self) -> None:
        """Go on with a batch: try again, speculate, or start the driver again."""
        if self.world.chance(STARTS_AGAIN):
            self.world.counts["query_started_again"] += 1
            self._leave()  # a new driver does not know which tasks had finished
            self._repeats, self._next_ms = True, self.world.now_ms + self.world.between(*AGAIN_MS)
            return
        for task, attempts in self._left.items():
            if not attempts or (len(attempts) == 1 and self.world.chance(SPECULATES)):
                self._try(task)

    def _leave(self) -> None:
        """End the attempts. Some are not reached, and go on."""
        for attempts in self._left.values():
            for attempt in attempts:
                if not self.world.chance(GOES_ON):
                    attempt.ended()
        self._left = {}

    def _try(self, task: int) -> None:
        self._attempts += 1
        left = self._left

        def done(attempt: Attempt) -> None:
            if left is self._left and task in left:
                left[task].remove(attempt)
                self._is_refused |= bool(self._restored) and attempt.is_refused
                if attempt.is_written:
                    self._through(task)

        append = self._appends_of_job(task) if self._are_jobs else self._append_of_stream(task)
        attempt = Attempt(f"{self.name}/{self._attempts}", self.cluster, self._targets[task], append, done)
        self._left[task].append(attempt)
        attempt.start()

    def _append_of_stream(self, task: int) -> Append:
        """The append of a task. Each attempt has the same rows in another order, and so other bytes."""
        producer = FIRST_ID * (self._number + 1) + TASKS * self._lives + task
        content = b"%s%s%d" % (self._content(task), ATTEMPT, self._attempts)
        return Append(producer | KEPT_PRODUCER, self._batch, [content], any_order=True)

    def _appends_of_job(self, task: int) -> Append:
        producer = FIRST_ID * (self._number + 1) + BATCHES_MAX * self._lives + TASKS * self._batch + task
        contents = [b"%s.%d" % (self._content(task), number) for number in range(APPENDS)]
        return Append(producer, 0, contents, any_order=False)

    def _content(self, task: int) -> bytes:
        return b"%s.%d.%d.%d.%d" % (self.name.encode(), self._lives, task, self._batch, self._restored)

    def _through(self, task: int) -> None:
        for attempt in self._left.pop(task):
            if not self.world.chance(GOES_ON):
                attempt.ended()
        if self._left:
            return
        self.world.counts["query_batches"] += 1
        self._repeats = not self._repeats and self.world.chance(REPEATS)
        stays_away = self._repeats and not self._are_jobs and self.world.chance(STAYS_AWAY)
        waits = LONG_MS if stays_away else NEXT_MS
        self._next_ms = self.world.now_ms + self.world.between(*waits)
