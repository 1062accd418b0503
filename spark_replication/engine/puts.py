"""The batches that a producer sends over one stream: each is appended or refused, in the order in which they came.

A batch that was refused takes with it the later ones of its lane (core.replica.refused_lanes).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_replication.core.replica.refused_lanes import RefusedLanes
from spark_replication.engine.waiters import Acknowledge
from spark_replication.errors import ReplicationError, RequestTimedOut
from spark_replication.messages.records import BatchMetadata

_NO_PRODUCER = -1


class Puts:
    def __init__(self) -> None:
        self._refused = RefusedLanes()

    def put(self, asked: BatchMetadata, append: Callable[[], None], acknowledge: Acknowledge) -> bool:
        """Returns whether the batch was appended. acknowledge: called with the error if it is refused."""
        try:
            self.check(asked)
            append()
        except ReplicationError as error:
            self.refuse(asked, error, acknowledge)
            return False
        return True

    def check(self, asked: BatchMetadata) -> None:
        """Raises OutOfOrderSequence if an earlier batch of the lane was refused, and has not come again."""
        self._refused.check(asked)

    def refuse(self, asked: BatchMetadata, error: ReplicationError, acknowledge: Acknowledge) -> None:
        self._refused.refused(asked)
        acknowledge(error)


def unconfirmed(timeout_ms: float) -> RequestTimedOut:
    """The answer to a batch of which nothing is known in time."""
    return RequestTimedOut(
        f"followers did not confirm the batch within request.timeout.ms={timeout_ms:.0f}: send it again with its "
        "sequence, or look whether it is there",
        maybe_written=True,
    )


def numbers_of(asked: BatchMetadata) -> dict[str, Any]:
    """The numbers that a prepared batch has of its producer."""
    return {
        "producer": _NO_PRODUCER if asked.producer is None else asked.producer,
        "producer_epoch": _NO_PRODUCER if asked.producer is None else asked.epoch,
        "sequence": _NO_PRODUCER if asked.sequence is None else asked.sequence,
        "any_order": asked.any_order,
    }
