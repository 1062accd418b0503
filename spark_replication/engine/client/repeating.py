"""A task whose rows are written again: they go where its first try has put them.

Rows go to partitions by the number of these, and that may have changed since the first try. Only what the log has of
the first try says where rows went, so a task asks each partition's leader what it has stored of the task's producers.

- If nothing is stored, any placement will do.
- Otherwise rows are placed by each number of partitions that there may have been. A placement fits if each append that
  is stored has as many rows in it. Its stored appends are sent first: they change nothing, and their leaders compare
  the rows (core.replica.producers). If the leaders know them all, then all other rows are stored nowhere, whether this
  is the placement of the first try or not: so each row is stored once.
- The placement that this run of the query has planned comes first, and those with more partitions than planned come
  last, the fewest first. So attempts at one task, which Spark may run side by side, choose alike, though partitions are
  added between their questions: what one of them has not stored yet, another does not place elsewhere.
- If no placement fits, nothing is sent.

An append of the first try that is stored only after the question is not seen, and if partitions were added or removed,
its rows may be there twice. Spark ends the tasks of a query that has failed within about three seconds; a broker that
stood still for longer may read then what they had sent.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from spark_replication.engine.client.numbers import Identity
from spark_replication.errors import InvalidProducerEpoch, ReplicationError
from spark_replication.messages.ranges import KnownAppends

RUNS_MAX = 64  # of queries that a process remembers

Partitions = tuple[int, ...]
#: The topic's partitions, and what those that know a producer know of it.
Known = tuple[Partitions, dict[int, KnownAppends]]


class Append(NamedTuple):
    target: int
    #: Which of the task's producers sends it, from 0 on.
    producer: int
    #: Has `num_rows`.
    batch: Any


class AppendedTogether(NamedTuple):
    """What a task sends together."""

    appends: Iterable[Append]
    #: Whether all of its rows are stored with it.
    is_last: bool


Cut = Callable[[Partitions], Iterable[Append]]


class Runs:
    """Which micro-batches may have been tried by an earlier run of their query. Not thread-safe: a process has one task
    at a time."""

    def __init__(self) -> None:
        #: The first micro-batch of each run that this process has had a task of.
        self._firsts: OrderedDict[str, int] = OrderedDict()

    def may_repeat(self, run: str | None, micro_batch: int) -> bool:
        """Only the first micro-batch of a run may: all later ones begin after it was committed. Of a run without a name
        any may."""
        if run is None:
            return True
        first = self._firsts.setdefault(run, micro_batch)
        if len(self._firsts) > RUNS_MAX:
            self._firsts.popitem(last=False)
        return micro_batch <= first


def placements(planned: Partitions, present: Partitions) -> Iterator[Partitions]:
    """The partitions that a topic may have had at the first try: those that this run has planned with, fewer, more."""
    fewer = [planned[:number] for number in range(len(planned), 0, -1)]
    yield from fewer
    yield from (more for number in range(1, len(present) + 1) if (more := present[:number]) not in fewer)


class _Stored(NamedTuple):
    last_sequence: int
    #: Of the newest appends, up to last_sequence.
    rows: tuple[int, ...]

    def fits(self, counts: Sequence[int]) -> bool:
        """Whether appends of so many rows, from sequence 0 on, may begin with those that are stored."""
        end = self.last_sequence + 1
        return tuple(counts[end - len(self.rows) : end]) == self.rows


@dataclass(frozen=True)
class FirstTry:
    """What the log has of the appends of a task: by partition and number of the task's producer."""

    stored: dict[tuple[int, int], _Stored]
    #: Of the topic, as it was asked.
    partitions: Partitions

    @classmethod
    def asking(cls, identity: Callable[[int], Identity]) -> Generator[int, Known, FirstTry]:
        """Yields the producers to ask all leaders about, and is sent what these know. identity: of each of the task's
        producers, which begin one after the other. Raises InvalidProducerEpoch if a later write is there."""
        stored: dict[tuple[int, int], _Stored] = {}
        asked: list[Identity] = []
        partitions: Partitions = ()
        for producer in count():
            numbers = identity(producer)
            if numbers in asked:  # all of a task's appends are one producer's
                break
            asked.append(numbers)
            partitions, known = yield numbers.producer
            for partition, each in known.items():
                if each.epoch > numbers.epoch:
                    raise InvalidProducerEpoch(
                        f"producer {numbers.producer} epoch {numbers.epoch} is fenced by {each.epoch} on partition "
                        f"{partition}: start anew"
                    )
                if each.epoch == numbers.epoch:
                    stored[partition, producer] = _Stored(each.last_sequence, each.rows)
            if not any(number == producer for _, number in stored):
                break
        return cls(stored, partitions)

    def again(
        self, those: Iterable[Partitions], cut: Cut, otherwise: ReplicationError
    ) -> Generator[AppendedTogether, None, None]:
        """Yields what is to be sent next, by the first of these placements that leaders take. An error of what was
        sent is thrown in here. Raises `otherwise` if no placement fits."""
        refusal = otherwise
        for partitions in self._placements(those, cut):
            try:
                yield AppendedTogether(self.only(cut(partitions), stored=True), is_last=False)
            except InvalidProducerEpoch as error:  # other rows are stored there: nothing has changed
                refusal = error
                continue
            yield AppendedTogether(self.only(cut(partitions), stored=False), is_last=True)
            return
        raise refusal

    def _placements(self, those: Iterable[Partitions], cut: Cut) -> Iterator[Partitions]:
        """The placements that fit, in their order. `cut`: the appends of the rows on such partitions."""
        targets = {partition for partition, _ in self.stored}
        return (each for each in those if targets <= set(each) and self._fits(cut(each)))

    def _fits(self, those: Iterable[Append]) -> bool:
        counts: dict[tuple[int, int], list[int]] = {place: [] for place in self.stored}
        for append in those:
            if (append.target, append.producer) in counts:
                counts[append.target, append.producer].append(append.batch.num_rows)
        return all(stored.fits(counts[place]) for place, stored in self.stored.items())

    def only(self, those: Iterable[Append], *, stored: bool) -> Iterator[Append]:
        """The appends that are stored, or the others, in their order."""
        numbers: Counter[tuple[int, int]] = Counter()
        for append in those:
            place = append.target, append.producer
            is_stored = place in self.stored and numbers[place] <= self.stored[place].last_sequence
            numbers[place] += 1
            if is_stored == stored:
                yield append

    def unplaced(self) -> InvalidProducerEpoch:
        places = sorted({partition for partition, _ in self.stored})
        return InvalidProducerEpoch(
            f"an earlier try has rows in the partitions {places}, and these rows are not placed so by any number of "
            "partitions: nothing of this task was written now",
            maybe_written=True,
        )
