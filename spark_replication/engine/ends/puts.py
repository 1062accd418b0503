"""What frames and Flight have in common of the batches that a producer sends: their numbers, and the answers to them.

An answer is owed from the moment its batch has come. It is known once the batch is stored, or refused, or has waited
for too long: the first of these counts. Answers are taken as they become known, or in the order of their batches.

No stream remembers what it has refused: a partition's log alone says which batch is next (core.replica.producers). A
batch that was refused here may be stored since, by another leader whose log this one has by now. A stream that went by
its own memory then answered OUT_OF_ORDER to the batch behind it, of which the producer concludes that the log does not
have it, and sends it under another number: it was stored twice.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from itertools import takewhile
from typing import Any

from spark_replication.core.replica.producers import OffsetSpan
from spark_replication.errors import ReplicationError, RequestTimedOut
from spark_replication.messages.records import BatchMetadata

_NO_PRODUCER = -1


def numbers_of(asked: BatchMetadata) -> dict[str, Any]:
    """The numbers that a prepared batch has of its producer."""
    return {
        "producer": _NO_PRODUCER if asked.producer is None else asked.producer,
        "producer_epoch": _NO_PRODUCER if asked.producer is None else asked.epoch,
        "sequence": _NO_PRODUCER if asked.sequence is None else asked.sequence,
        "any_order": asked.any_order,
    }


class PendingPut:
    """The answer to a batch. The first outcome counts, and a later one is ignored."""

    __slots__ = ("_owed", "began_ms", "number", "outcome")

    def __init__(self, owed: OwedPuts, number: int, began_ms: float) -> None:
        self._owed = owed
        self.number = number
        self.began_ms = began_ms
        self.outcome: OffsetSpan | ReplicationError | None = None

    def fill(self, outcome: OffsetSpan | ReplicationError) -> None:
        """Called by whoever has the partition, so it only leaves a note."""
        if self.outcome is None:
            self.outcome = outcome
            self._owed.filled(self)


class OwedPuts:
    """The answers that a producer's connection or stream owes. Any thread may fill one; everything else is for one
    thread at a time."""

    def __init__(self, *, timeout_ms: float, wake: Callable[[], None]) -> None:
        """wake: called by whoever fills an answer, once until the answers are taken."""
        self._timeout_ms = timeout_ms
        self._wake = wake
        #: By number, the oldest first.
        self._owed: dict[int, PendingPut] = {}
        self._filled: deque[PendingPut] = deque()
        self._is_woken = False

    def __len__(self) -> int:
        return len(self._owed)

    def __contains__(self, number: int) -> bool:
        return number in self._owed

    def begin(self, number: int, now_ms: float) -> PendingPut:
        answer = self._owed[number] = PendingPut(self, number, now_ms)
        return answer

    def filled(self, answer: PendingPut) -> None:
        self._filled.append(answer)
        if not self._is_woken:
            self._is_woken = True
            self._wake()

    def expire(self, now_ms: float) -> None:
        """Fill those of which nothing is known in time."""
        if self.due_ms > now_ms:  # as nearly always
            return
        for answer in list(takewhile(lambda answer: answer.began_ms + self._timeout_ms <= now_ms, self._owed.values())):
            answer.fill(_unconfirmed(self._timeout_ms))

    @property
    def due_ms(self) -> float:
        """When `expire` is due; infinite if nothing is owed."""
        oldest = next(iter(self._owed.values()), None)
        return math.inf if oldest is None else oldest.began_ms + self._timeout_ms

    def take(self) -> list[PendingPut]:
        """Take the answers that are known, in the order in which they became so."""
        self._is_woken = False  # before the look, so that an answer that is filled after it wakes somebody again
        found = []
        while self._filled:
            answer = self._filled.popleft()
            if self._owed.get(answer.number) is answer:
                del self._owed[answer.number]
                found.append(answer)
        return found

    def take_in_order(self) -> list[PendingPut]:
        """Take the answers that are known up to the first that is not."""
        self._is_woken = False  # as above
        self._filled.clear()
        found = list(takewhile(lambda answer: answer.outcome is not None, self._owed.values()))
        for answer in found:
            del self._owed[answer.number]
        return found


def _unconfirmed(timeout_ms: float) -> RequestTimedOut:
    return RequestTimedOut(
        f"followers did not confirm the batch within request.timeout.ms={timeout_ms:.0f}: send it again with its "
        "sequence, or look whether it is there",
        maybe_written=True,
    )
