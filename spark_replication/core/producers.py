"""Idempotent producers: a batch sent again is answered with the place it got the first time, and stored once.

`sequence` counts batches, from 0 for a producer that is not known; a higher epoch of a producer fences the lower ones
and starts at 0 again. The state is rebuilt from the index after a crash, and follows the log when it is truncated or
loses its head. Of a log without its head nobody can say that a producer is new: whom it does not know goes on where it
says it is, or one that was silent for longer than the log's retention could never write again.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from spark_replication.errors import InvalidProducerEpoch, OutOfOrderSequence
from spark_replication.model import Offset

REMEMBERED = 1_000  # batches of a producer that can still be recognised when sent again: more than it has in flight


class Place(msgspec.Struct, frozen=True):
    base_offset: Offset
    last_offset: Offset


class _Written(msgspec.Struct):
    epoch: int
    last_sequence: int
    places: dict[int, Place]


class Producers:
    """What each idempotent producer last wrote to one partition; `wrote`, `truncated` and `trimmed` alone change it."""

    def __init__(self, log_start: Offset = 0) -> None:
        self._written: dict[int, _Written] = {}
        self._log_start = log_start

    def check(self, producer: int, epoch: int, sequence: int) -> Place | None:
        """None: this batch is the next. A place: it was stored there. Else an error that changes nothing."""
        known = self._written.get(producer)
        if known is None and self._log_start > 0:
            return None
        if known is None or epoch > known.epoch:
            if sequence != 0:
                raise OutOfOrderSequence(f"producer {producer} is new at epoch {epoch}: it starts at 0, not {sequence}")
            return None
        if epoch < known.epoch:
            raise InvalidProducerEpoch(f"producer {producer} epoch {epoch} is fenced by {known.epoch}: start anew")
        place = known.places.get(sequence)
        if place is not None:
            return place
        if sequence != known.last_sequence + 1:
            raise OutOfOrderSequence(
                f"producer {producer} sent batch {sequence} after {known.last_sequence}: one was lost or is forgotten"
            )
        return None

    def wrote(self, producer: int, epoch: int, sequence: int, place: Place) -> None:
        known = self._written.get(producer)
        if known is None or epoch > known.epoch:
            known = self._written[producer] = _Written(epoch, sequence, {})
        known.last_sequence = sequence
        known.places[sequence] = place
        if len(known.places) > REMEMBERED:
            del known.places[next(iter(known.places))]

    def truncated(self, end: Offset) -> None:
        """What was cut off never happened. A producer of whom nothing remembered is left is forgotten."""
        self._keep(lambda place: place.last_offset < end)

    def trimmed(self, log_start: Offset) -> None:
        """The log starts there now. What lay below is forgotten with the next trim only: a batch that is sent again
        meanwhile is known, though it is gone."""
        gone_before, self._log_start = self._log_start, log_start
        self._keep(lambda place: place.base_offset >= gone_before)

    def _keep(self, kept_place: Callable[[Place], bool]) -> None:
        for producer, known in list(self._written.items()):
            kept = {sequence: place for sequence, place in known.places.items() if kept_place(place)}
            if kept:
                self._written[producer] = _Written(known.epoch, max(kept), kept)
            else:
                del self._written[producer]
