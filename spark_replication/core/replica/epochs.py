"""Where each leader epoch of a log starts, and so where two logs part (F1).

Invariant: epochs and starts rise together, and no two epochs start at one offset. Only the last epoch may be empty: the
next epoch replaces an epoch without records, at its offset.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from spark_replication.model import Offset, require

NO_EPOCH = -1


class EpochStart(NamedTuple):
    epoch: int
    start: Offset


class EpochEnd(NamedTuple):
    epoch: int
    end: Offset


class EpochHistory(tuple[EpochStart, ...]):
    """The epochs of a log, sorted. It is a value: every change returns a new one."""

    __slots__ = ()

    @classmethod
    def of(cls, pairs: list[tuple[int, int]]) -> EpochHistory:
        """The history that a file holds, checked."""
        history = cls(EpochStart(epoch, start) for epoch, start in pairs)
        for before, after in pairwise(history):
            require(before.epoch < after.epoch, f"epoch {after.epoch} follows epoch {before.epoch}")
            require(
                before.start < after.start, f"epoch {after.epoch} starts at {after.start}, not after {before.start}"
            )
        return history

    @property
    def first_epoch(self) -> int:
        return self[0].epoch if self else NO_EPOCH

    @property
    def last_epoch(self) -> int:
        return self[-1].epoch if self else NO_EPOCH

    def begun(self, epoch: int, start: Offset) -> EpochHistory:
        """The history with `epoch` from `start` on. The last epoch, begun again, goes on; one without records gives
        way."""
        if epoch == self.last_epoch:
            return self
        require(epoch > self.last_epoch, f"epoch {epoch} cannot follow epoch {self.last_epoch}")
        return EpochHistory((*(entry for entry in self if entry.start < start), EpochStart(epoch, start)))

    def truncated(self, end: Offset) -> EpochHistory:
        """The history of the log cut to `end`, without the epochs that start there or later."""
        if not self or self[-1].start < end:
            return self
        return EpochHistory(entry for entry in self if entry.start < end)

    def trimmed(self, log_start: Offset) -> EpochHistory:
        """The history of the log without its head below `log_start`: the epoch of its first record starts there."""
        covering = [entry for entry in self if entry.start <= log_start]
        rest = [entry for entry in self if entry.start > log_start]
        first = [EpochStart(covering[-1].epoch, log_start)] if covering else []
        return EpochHistory((*first, *rest))

    def epoch_at(self, offset: Offset) -> int:
        """The epoch of the record at `offset`; NO_EPOCH below the first known."""
        found = NO_EPOCH
        for epoch, start in self:
            if start > offset:
                break
            found = epoch
        return found

    def end_of(self, epoch: int, *, log_start: Offset, log_end: Offset) -> EpochEnd | None:
        """The largest epoch not above `epoch`, and where it ends (F1).

        Below the first known epoch, the answer is `epoch` itself and the log's start. Above the last, it is None: such
        an epoch is unknown.
        """
        if epoch > self.last_epoch:
            return None
        found = NO_EPOCH
        for known, start in self:
            if known > epoch:
                return EpochEnd(found, start) if found != NO_EPOCH else EpochEnd(epoch, log_start)
            found = known
        return EpochEnd(found, log_end)
