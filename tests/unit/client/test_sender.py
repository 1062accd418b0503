"""What a sender's streams tell it, in the orders that threads may tell it in."""

from __future__ import annotations

import threading
from typing import Any, cast

from spark_replication.client.put_stream import PutStream
from spark_replication.client.routes import Routes
from spark_replication.client.sender import Sender, SenderSettings
from spark_replication.model import TopicPartition

TIMEOUT_S = 10.0


def test_the_late_end_of_an_older_stream_does_not_hide_that_of_the_present_one() -> None:
    """Else the present one's sending thread would wait for a batch for ever, and its reader for that thread."""
    settings = SenderSettings(
        acks="all", deadline_ms=1_000, in_flight_batches_max=1, in_flight_bytes_max=1, linger_ms=0, batch_bytes=0
    )
    sender = Sender(TopicPartition("orders", 0), cast(Routes, None), lambda _deadline: 7, settings)
    older, present = cast(Any, object()), cast(PutStream, object())
    sender._stream = present
    sender.broken(present)
    sender.broken(older)
    given: list[object] = []
    sending = threading.Thread(target=lambda: given.append(sender.next_batch(present)), daemon=True)
    sending.start()
    sending.join(TIMEOUT_S)
    assert given == [None]
    sender.close()
