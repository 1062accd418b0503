"""What frames and Flight have in common of the batches that a producer sends.

No stream remembers what it has refused: a partition's log alone says which batch is next (core.replica.producers). A
batch that was refused here may be stored since, by another leader whose log this one has by now. A stream that went by
its own memory then answered OUT_OF_ORDER to the batch behind it, of which the producer concludes that the log does not
have it, and sends it under another number: it was stored twice.
"""

from __future__ import annotations

from typing import Any

from spark_replication.errors import RequestTimedOut
from spark_replication.messages.records import BatchMetadata

_NO_PRODUCER = -1


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
