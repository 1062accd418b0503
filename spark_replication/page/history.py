"""The sizes of logs in the last minutes. The page's charts are drawn from them: they are noted whether or not somebody
looks, seldom while nobody does (page.watch), so that a chart is there before somebody looks.

Memory is bounded, however large the cluster is: ROUNDS_MAX rounds are kept, with three numbers for each of at most
PARTITIONS_MAX partitions (29 MB for 10,000) and one for each of at most BROKERS_MAX brokers. Who comes when all places
are taken is not noted, until those that no kept round has give theirs up.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

from spark_replication.model import BrokerId, TopicPartition
from spark_replication.page.answers import Series

ROUND_MS = 5_000
ROUNDS_MAX = 120
PARTITIONS_MAX = 20_000
BROKERS_MAX = 1_000
GAP_MS = 4 * ROUND_MS  # rounds further apart than this give no rate: this process was not running in between
_UNKNOWN = -1

Key = TypeVar("Key", TopicPartition, BrokerId)


class Measure(NamedTuple):
    """The measure of a partition, as its leader tells it; without one, as its largest replica does."""

    bytes: int
    #: The log end.
    end: int | None = None
    #: The largest lag of an in-sync or joining follower, in records.
    lag: int | None = None


class Totals(NamedTuple):
    """The totals of a topic. Rates are the sums over the partitions that have one."""

    bytes: int
    bytes_per_s: float | None
    records_per_s: float | None
    lag: int | None


class _Places(Generic[Key]):
    """The place of each key in the arrays of every round."""

    def __init__(self, places_max: int) -> None:
        self._max = places_max
        self.of: dict[Key, int] = {}
        #: The number of the last round that has each.
        self._last: dict[Key, int] = {}
        #: Invariant: these, and those in `of`, are the places from 0 on.
        self._free: list[int] = []

    def noted(self, measured: Collection[Key], round_: int) -> list[Key]:
        """Give newcomers places, as long as there are any. Return the keys that have one."""
        for gone in [key for key, last in self._last.items() if last <= round_ - ROUNDS_MAX]:
            del self._last[gone]
            self._free.append(self.of.pop(gone))
        for key in sorted(key for key in measured if key not in self.of)[: self._max - len(self.of)]:
            self.of[key] = self._free.pop() if self._free else len(self.of)
        found = [key for key in measured if key in self.of]
        self._last.update(dict.fromkeys(found, round_))
        return found

    def numbers(self, found: Iterable[tuple[Key, int | None]]) -> array[int]:
        numbers = array("q", [_UNKNOWN]) * (len(self.of) + len(self._free))
        for key, number in found:
            if number is not None:
                numbers[self.of[key]] = number
        return numbers


class _Round(NamedTuple):
    at_ms: int
    #: By place, as the next two. Of a partition that this round does not have, they are unknown.
    bytes: array[int]
    ends: array[int]
    lags: array[int]
    #: How much each broker has, by place.
    brokers: array[int]


class History:
    """One thread at a time may use it."""

    def __init__(self) -> None:
        self._rounds: deque[_Round] = deque(maxlen=ROUNDS_MAX)
        self._noted = 0
        self._partitions = _Places[TopicPartition](PARTITIONS_MAX)
        self._brokers = _Places[BrokerId](BROKERS_MAX)
        self._totals: dict[str, Totals] = {}

    @property
    def newest_ms(self) -> int | None:
        return self._rounds[-1].at_ms if self._rounds else None

    @property
    def totals(self) -> Mapping[str, Totals]:
        """The totals of each topic in the last round."""
        return self._totals

    def is_due(self, at_ms: int) -> bool:
        """Whether a round is due; one is, too, if the clock was set back."""
        return self.newest_ms is None or not self.newest_ms <= at_ms < self.newest_ms + ROUND_MS

    def note(self, at_ms: int, measures: Mapping[TopicPartition, Measure], brokers: Mapping[BrokerId, int]) -> None:
        self._noted += 1
        kept = [(each, measures[each]) for each in self._partitions.noted(measures, self._noted)]
        known = self._brokers.noted(brokers, self._noted)
        made = _Round(
            at_ms=at_ms,
            bytes=self._partitions.numbers((partition, each.bytes) for partition, each in kept),
            ends=self._partitions.numbers((partition, each.end) for partition, each in kept),
            lags=self._partitions.numbers((partition, each.lag) for partition, each in kept),
            brokers=self._brokers.numbers((broker, brokers[broker]) for broker in known),
        )
        before = self._rounds[-1] if self._rounds else None
        places: dict[str, list[int]] = {}
        for partition, _measure in kept:
            places.setdefault(partition.topic, []).append(self._partitions.of[partition])
        self._totals = {topic: _total(before, made, found) for topic, found in places.items()}
        self._rounds.append(made)

    def of_partition(self, partition: TopicPartition) -> Series:
        place = self._partitions.of.get(partition)
        rounds = [] if place is None else [each for each in self._rounds if _known(each.bytes, place) is not None]

        def values(numbers: Callable[[_Round], array[int]]) -> list[int | None]:
            return [None if place is None else _known(numbers(each), place) for each in rounds]

        at_ms, sizes = [each.at_ms for each in rounds], values(lambda each: each.bytes)
        return Series(
            at_ms=at_ms,
            bytes=sizes,
            bytes_per_s=rates(at_ms, sizes),
            records_per_s=rates(at_ms, values(lambda each: each.ends)),
            lag=values(lambda each: each.lags),
        )

    def of_topic(self, topic: str) -> Series:
        places = [place for partition, place in self._partitions.of.items() if partition.topic == topic]
        found = [
            (made.at_ms, _total(before, made, present))
            for before, made in pairwise([None, *self._rounds])
            if made is not None and (present := [place for place in places if _known(made.bytes, place) is not None])
        ]
        return Series(
            at_ms=[at_ms for at_ms, _ in found],
            bytes=[each.bytes for _, each in found],
            bytes_per_s=[each.bytes_per_s for _, each in found],
            records_per_s=[each.records_per_s for _, each in found],
            lag=[each.lag for _, each in found],
        )

    def of_broker(self, broker: BrokerId) -> Series:
        place = self._brokers.of.get(broker)
        found = [] if place is None else [(each.at_ms, _known(each.brokers, place)) for each in self._rounds]
        at_ms, sizes = (
            [at for at, known in found if known is not None],
            [known for _, known in found if known is not None],
        )
        nothing = [None] * len(sizes)
        return Series(
            at_ms=at_ms, bytes=[*sizes], bytes_per_s=rates(at_ms, sizes), records_per_s=[*nothing], lag=[*nothing]
        )

    def bytes_per_s(self, partition: TopicPartition) -> float | None:
        """How fast the partition grew in the last round."""
        place = self._partitions.of.get(partition)
        if place is None:
            return None
        newest = list(self._rounds)[-2:]
        found = rates([each.at_ms for each in newest], [_known(each.bytes, place) for each in newest])
        return found[-1] if found else None


def rates(at_ms: Sequence[int], values: Sequence[int | None]) -> list[float | None]:
    """How much each value grew per second since the one before. None if that is not known, no round was noted for too
    long, or retention has made the value smaller."""
    found: list[float | None] = [None] if values else []
    for (began_ms, before), (ended_ms, after) in pairwise(zip(at_ms, values, strict=True)):
        passed_ms = ended_ms - began_ms
        if before is None or after is None or after < before or not 0 < passed_ms <= GAP_MS:
            found.append(None)
        else:
            found.append(round((after - before) * 1_000 / passed_ms, 1))
    return found


def _total(before: _Round | None, made: _Round, places: Sequence[int]) -> Totals:
    """The totals of these places, all of which `made` has."""
    passed_ms = 0 if before is None else made.at_ms - before.at_ms
    earlier = before if 0 < passed_ms <= GAP_MS else None
    lags = [lag for place in places if (lag := _known(made.lags, place)) is not None]
    return Totals(
        bytes=sum(made.bytes[place] for place in places),
        bytes_per_s=None if earlier is None else _growth(earlier.bytes, made.bytes, places, passed_ms),
        records_per_s=None if earlier is None else _growth(earlier.ends, made.ends, places, passed_ms),
        lag=max(lags, default=None),
    )


def _growth(before: array[int], after: array[int], places: Sequence[int], passed_ms: int) -> float | None:
    pairs = [(_known(before, place), _known(after, place)) for place in places]
    grown = [now - then for then, now in pairs if then is not None and now is not None and now >= then]
    return round(sum(grown) * 1_000 / passed_ms, 1) if grown else None


def _known(numbers: array[int], place: int) -> int | None:
    """None if that round does not have it: a round before the place was first taken has fewer."""
    return numbers[place] if place < len(numbers) and numbers[place] != _UNKNOWN else None
