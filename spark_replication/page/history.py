"""The sizes of logs in the last ten minutes, noted while somebody looks. The page's charts are drawn from them.

Memory is bounded: ROUNDS_MAX rounds are kept, with three numbers for each partition (29 MB for 10,000 partitions), and
only the first PARTITIONS_MAX partitions are noted.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from spark_replication.model import BrokerId, TopicPartition
from spark_replication.page.answers import Series

ROUND_MS = 5_000
ROUNDS_MAX = 120
PARTITIONS_MAX = 20_000
GAP_MS = 4 * ROUND_MS  # rounds further apart than this give no rate: nobody was looking in between
_UNKNOWN = -1

Number = TypeVar("Number", int, float)


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


class _Round(NamedTuple):
    at_ms: int
    #: The place of each partition in the arrays; the same object for as long as the partitions are the same.
    at: dict[TopicPartition, int]
    bytes: array[int]
    ends: array[int]
    lags: array[int]
    topics: dict[str, Totals]
    brokers: dict[BrokerId, int]


class History:
    """One thread at a time may use it."""

    def __init__(self) -> None:
        self._rounds: deque[_Round] = deque(maxlen=ROUNDS_MAX)

    @property
    def newest_ms(self) -> int | None:
        return self._rounds[-1].at_ms if self._rounds else None

    @property
    def totals(self) -> Mapping[str, Totals]:
        """The totals of each topic in the last round."""
        return self._rounds[-1].topics if self._rounds else {}

    def is_due(self, at_ms: int) -> bool:
        """Whether a round is due; one is, too, if the clock was set back."""
        return self.newest_ms is None or not self.newest_ms <= at_ms < self.newest_ms + ROUND_MS

    def note(self, at_ms: int, measures: Mapping[TopicPartition, Measure], brokers: Mapping[BrokerId, int]) -> None:
        before = self._rounds[-1] if self._rounds else None
        kept = sorted(measures)[:PARTITIONS_MAX]
        same = before is not None and before.at.keys() == set(kept)
        at = before.at if before is not None and same else {partition: place for place, partition in enumerate(kept)}
        found = [measures[partition] for partition in kept]
        made = _Round(
            at_ms=at_ms,
            at=at,
            bytes=_numbers(each.bytes for each in found),
            ends=_numbers(each.end for each in found),
            lags=_numbers(each.lag for each in found),
            topics={},
            brokers=dict(brokers),
        )
        made.topics.update(_totals(before, made))
        self._rounds.append(made)

    def of_partition(self, partition: TopicPartition) -> Series:
        rounds = [each for each in self._rounds if partition in each.at]

        def values(numbers: Callable[[_Round], array[int]]) -> list[int | None]:
            return [_known(numbers(each)[each.at[partition]]) for each in rounds]

        at_ms, sizes = [each.at_ms for each in rounds], values(lambda each: each.bytes)
        return Series(
            at_ms=at_ms,
            bytes=sizes,
            bytes_per_s=rates(at_ms, sizes),
            records_per_s=rates(at_ms, values(lambda each: each.ends)),
            lag=values(lambda each: each.lags),
        )

    def of_topic(self, topic: str) -> Series:
        return _series([(each.at_ms, each.topics[topic]) for each in self._rounds if topic in each.topics])

    def of_broker(self, broker: BrokerId) -> Series:
        rounds = [(each.at_ms, each.brokers[broker]) for each in self._rounds if broker in each.brokers]
        at_ms, sizes = [at for at, _ in rounds], [known for _, known in rounds]
        nothing = [None] * len(rounds)
        return Series(
            at_ms=at_ms, bytes=[*sizes], bytes_per_s=rates(at_ms, sizes), records_per_s=[*nothing], lag=[*nothing]
        )

    def bytes_per_s(self, partition: TopicPartition) -> float | None:
        """How fast the partition grew in the last round."""
        newest = [each for each in list(self._rounds)[-2:] if partition in each.at]
        sizes = [_known(each.bytes[each.at[partition]]) for each in newest]
        found = rates([each.at_ms for each in newest], sizes)
        return found[-1] if found else None


def rates(at_ms: Sequence[int], values: Sequence[int | None]) -> list[float | None]:
    """How much each value grew per second since the one before. None if that is not known, nobody was looking, or
    retention has made the value smaller."""
    found: list[float | None] = [None] if values else []
    for (began_ms, before), (ended_ms, after) in pairwise(zip(at_ms, values, strict=True)):
        passed_ms = ended_ms - began_ms
        if before is None or after is None or after < before or not 0 < passed_ms <= GAP_MS:
            found.append(None)
        else:
            found.append(round((after - before) * 1_000 / passed_ms, 1))
    return found


def _series(found: Sequence[tuple[int, Totals]]) -> Series:
    return Series(
        at_ms=[at_ms for at_ms, _ in found],
        bytes=[each.bytes for _, each in found],
        bytes_per_s=[each.bytes_per_s for _, each in found],
        records_per_s=[each.records_per_s for _, each in found],
        lag=[each.lag for _, each in found],
    )


def _totals(before: _Round | None, made: _Round) -> dict[str, Totals]:
    passed_ms = 0 if before is None else made.at_ms - before.at_ms
    earlier = before if before is not None and 0 < passed_ms <= GAP_MS else None
    places: dict[str, list[tuple[int, int | None]]] = {}
    for partition, place in made.at.items():
        then = None if earlier is None else earlier.at.get(partition)
        places.setdefault(partition.topic, []).append((place, then))
    return {topic: _total(earlier, made, found, passed_ms) for topic, found in places.items()}


def _total(earlier: _Round | None, made: _Round, places: Sequence[tuple[int, int | None]], passed_ms: int) -> Totals:
    lags = [made.lags[place] for place, _ in places if made.lags[place] != _UNKNOWN]
    pairs = [(place, then) for place, then in places if then is not None]
    return Totals(
        bytes=sum(made.bytes[place] for place, _ in places),
        bytes_per_s=None if earlier is None else _growth(earlier.bytes, made.bytes, pairs, passed_ms),
        records_per_s=None if earlier is None else _growth(earlier.ends, made.ends, pairs, passed_ms),
        lag=max(lags, default=None),
    )


def _growth(before: array[int], after: array[int], pairs: Iterable[tuple[int, int]], passed_ms: int) -> float | None:
    grown = [
        after[place] - before[then]
        for place, then in pairs
        if before[then] != _UNKNOWN and after[place] >= before[then]
    ]
    return round(sum(grown) * 1_000 / passed_ms, 1) if grown else None


def _numbers(found: Iterable[int | None]) -> array[int]:
    return array("q", [_UNKNOWN if each is None else each for each in found])


def _known(number: int) -> int | None:
    return None if number == _UNKNOWN else number
