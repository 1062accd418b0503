"""What becomes of a replica's log whose partition is to start at an offset S: all below that is in a table alone (TB5).

| the log                      | it becomes             | because                                                    |
| ---------------------------- | ---------------------- | ---------------------------------------------------------- |
| starts at S, or above it     | as it is               | it has nothing that the table has                          |
| has a batch that begins at S | its records from S on  | they may continue the table: the leader's epochs tell (F1) |
| ends at S                    | empty, from S on       | its next record is the table's next                        |
| ends below S                 | empty, begun anew at S | it lacks records that the table has                        |
| has a batch that spans S     | empty, begun anew at S | it parted from the log whose records the table has         |

A batch that spans S was never committed in the history that the table has, and neither is anything behind it. Writers
of tables flush whole batches: what they commit ends where a batch ends, in the log that they read. So S is the end of a
batch there, and that log has no batch that spans S. This log has one, so it parted from that one at or below the base
of this batch, and all that follows in it is of another history.

What lies below S goes in each case, even where nobody can say whether it is what the table has. A stale replica may
hold other records there, and the epochs that would tell are gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from spark_replication.core.replica.replica import LogView
from spark_replication.model import Offset

LogChange = Literal["none", "drop below", "begin anew"]


def change_to_start_at(start_at: Offset, log: LogView, batch_start: Callable[[Offset], Offset]) -> LogChange:
    """How the log comes to start at `start_at`. Done again, also after a crash within it, it ends in the same place.

    batch_start: where the batch that holds an offset of the log begins. Only asked for what is within the log.
    """
    if log.log_start >= start_at:
        return "none"
    if log.log_end < start_at:
        return "begin anew"
    is_boundary = log.log_end == start_at or batch_start(start_at) == start_at
    return "drop below" if is_boundary else "begin anew"
