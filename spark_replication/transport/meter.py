"""Counts of a server's requests: how many of each kind, how fast, what it refused, and what it moved.

Producers and followers pass here with each batch, so a batch costs one addition under a lock of its own, and no look at
a row. The counts are of this process, and never fall. `live.exposition` exports them.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from operator import add
from typing import NamedTuple

from pyarrow import flight

from spark_replication.engine.ends.puts import PendingPut
from spark_replication.errors import ReplicationError
from spark_replication.ports import Records
from spark_replication.storage.format.index import ENTRY_BYTES

#: Upper bounds of the histograms.
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

# Kinds of requests besides actions.
PUT = "put"  # a producer's batch, until it is answered
GET = "get"  # a read stream, until its first look
GROUP = "group"  # what a member of a consumer group asks of its coordinator
UNKNOWN = "unknown"  # an action that this server does not know
# Of these only refusals are counted.
CALL = "call"  # any call of a client that may not call here
FETCH = "fetch"  # a follower's fetch of one partition: how long it waits for records says nothing
CONNECTION = "connection"  # a follower's connection
INFO = "get_flight_info"


class Took(NamedTuple):
    #: How many requests took at most as long as each of BOUNDS_S, and longer than the bound before; last, how many took
    #: longer than all bounds.
    counts: tuple[int, ...]
    sum_s: float

    def with_(self, other: Took) -> Took:
        return Took(tuple(map(add, self.counts, other.counts)), self.sum_s + other.sum_s)


class _Durations:
    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def took(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds


class Meter:
    """Bounded: one histogram for each kind, and at most one count for each kind and error code."""

    def __init__(self, kinds: Iterable[str]) -> None:
        """kinds: those of the requests that are timed."""
        self._lock = threading.Lock()
        self._durations = {kind: _Durations() for kind in kinds}
        self._refused: dict[tuple[str, str], int] = {}

    def took(self, kind: str, durations_s: Collection[float]) -> None:
        """Count requests of that kind as answered, whatever the answers say."""
        with self._lock:
            durations = self._durations[kind]
            for seconds in durations_s:
                durations.took(seconds)

    def refused(self, kind: str, code: str) -> None:
        with self._lock:
            self._refused[kind, code] = self._refused.get((kind, code), 0) + 1

    @contextmanager
    def timing(self, kind: str) -> Iterator[None]:
        """Times one request, however it ends."""
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self.took(kind, (time.perf_counter() - began_s,))

    @contextmanager
    def refusing(self, kind: str) -> Iterator[None]:
        """Count an error that is raised within as a refusal."""
        try:
            yield
        except ReplicationError as error:
            self.refused(kind, error.code)
            raise
        except flight.FlightError:  # it is counted already
            raise
        except Exception:
            self.refused(kind, ReplicationError.code)
            raise

    def durations(self) -> dict[str, Took]:
        with self._lock:
            return {kind: Took(tuple(found.counts), found.sum_s) for kind, found in self._durations.items()}

    def refusals(self) -> dict[tuple[str, str], int]:
        """The counts of refusals, by kind and error code."""
        with self._lock:
            return dict(self._refused)


def count_puts(meter: Meter, known: Collection[PendingPut], now_ms: float) -> None:
    """Count producers' batches that are answered now."""
    meter.took(PUT, [(now_ms - answer.began_ms) / 1000 for answer in known])
    for answer in known:
        if isinstance(answer.outcome, ReplicationError):
            meter.refused(PUT, answer.outcome.code)


class Moved(NamedTuple):
    batches: int = 0
    records: int = 0
    bytes: int = 0


def durations_of(meters: Iterable[Meter]) -> dict[str, Took]:
    """How long requests of each kind took. Several servers may count one kind: batches come by Flight and by frames."""
    found: dict[str, Took] = {}
    for meter in meters:
        for kind, took in meter.durations().items():
            found[kind] = found[kind].with_(took) if kind in found else took
    return found


def moved_in_all(traffic: Iterable[Traffic]) -> Moved:
    return Moved(*map(sum, zip(*(each.so_far for each in traffic), strict=True)))


class Traffic:
    """Counts batches that went in one direction."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches = self._records = self._bytes = 0

    def moved(self, *, batches: int, records: int, count_bytes: int) -> None:
        with self._lock:
            self._batches += batches
            self._records += records
            self._bytes += count_bytes

    def carried(self, records: Records) -> None:
        """Count stored batches, as replicas exchange them."""
        batches = len(records.entries) // ENTRY_BYTES
        rows = records.next_offset - records.first_offset
        self.moved(batches=batches, records=rows, count_bytes=len(records.data))

    @property
    def so_far(self) -> Moved:
        with self._lock:
            return Moved(self._batches, self._records, self._bytes)
