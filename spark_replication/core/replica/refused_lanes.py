"""What a stream of batches has refused. A lane is one producer's batches for one partition, in one epoch of his.

Once a batch of a lane was refused, all that come after it are refused unread, until it comes again itself. A producer
may so rely on it: if a batch was surely not written, nothing that it sent after it was, whatever changed in between
(who leads, who is in sync, how full the broker is).
"""

from __future__ import annotations

from collections import OrderedDict

from spark_replication.errors import OutOfOrderSequence
from spark_replication.messages.records import BatchMetadata

REFUSED_LANES_MAX = 10_000  # of a stream; those beyond it are left to what the partition knows of their producers


class RefusedLanes:
    """_refused: the sequence of the batch that a lane waits for."""

    def __init__(self) -> None:
        self._refused: OrderedDict[tuple[int | None, int, int | None], int] = OrderedDict()

    def check(self, batch: BatchMetadata) -> None:
        """It may be tried: its lane has refused nothing before it."""
        if not self._refused or batch.sequence is None:
            return
        lane = batch.producer, batch.epoch, batch.partition
        refused = self._refused.get(lane)
        if refused is None:
            return
        if batch.sequence > refused:
            raise OutOfOrderSequence(
                f"batch {batch.sequence} of producer {batch.producer} comes after {refused}, which was refused on this "
                f"stream: send {refused} again first, or begin another epoch"
            )
        del self._refused[lane]

    def refused(self, batch: BatchMetadata) -> None:
        if batch.sequence is None:
            return
        lane = batch.producer, batch.epoch, batch.partition
        first = self._refused.setdefault(lane, batch.sequence)
        self._refused[lane] = min(first, batch.sequence)
        if len(self._refused) > REFUSED_LANES_MAX:
            self._refused.popitem(last=False)
