"""The lanes of a stream in which a batch was refused. A lane is a producer's batches for one partition, in one epoch.

Once a batch of a lane was refused, all later ones are refused unread, until that batch comes again. So a producer may
rely on this: if a batch was surely not written, no later batch was, whatever changed in between (who leads, who is in
sync, how full the broker is).
"""

from __future__ import annotations

from collections import OrderedDict

from spark_replication.errors import OutOfOrderSequence
from spark_replication.messages.records import BatchMetadata

REFUSED_LANES_MAX = 10_000  # of a stream; beyond it, what the partition knows of the producer decides


class RefusedLanes:
    def __init__(self) -> None:
        #: The sequence of the batch that each lane waits for.
        self._refused: OrderedDict[tuple[int | None, int, int | None], int] = OrderedDict()

    def check(self, batch: BatchMetadata) -> None:
        """Raise OutOfOrderSequence unless the batch may be tried: its lane has refused no earlier one."""
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
