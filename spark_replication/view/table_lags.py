"""How far a topic's table is behind: the one summary of its partitions that metrics, page and commands show.

The words are the same everywhere: where the table *ends*, the *rows behind* and *seconds behind* of what the log has
and the table has not, and the bytes *held back* from retention for it. What is not known is None, and never 0: after an
election a leader has yet to hear where the table ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from spark_replication.messages.descriptions import TableLag
from spark_replication.model import Count

#: What is shown of a partition, by the names that commands give it, in the words of people.
WORDS = {
    "table_end": "table end",
    "rows_behind": "rows behind",
    "seconds_behind": "seconds behind",
    "held_back_bytes": "held back",
}


class TopicTableLag(msgspec.Struct, frozen=True, kw_only=True):
    #: Partitions of which nobody says where the table ends.
    not_known: Count
    #: None unless it is known of each partition.
    rows_behind: Count | None
    #: Since the oldest row was appended that the table lacks; 0 if it lacks none. None as above.
    ms_behind: Count | None
    #: None if the leader of a partition does not answer.
    held_back_bytes: Count | None

    @property
    def seconds_behind(self) -> float | None:
        return None if self.ms_behind is None else self.ms_behind / 1_000


def topic_table_lag(lags: Iterable[TableLag | None]) -> TopicTableLag:
    """The table as the leaders of these partitions tell it, of one topic; None where a leader does not answer."""
    told = [*lags]
    rows = [None if each is None else each.rows for each in told]
    waits_ms = [None if each is None else each.ms for each in told]
    return TopicTableLag(
        not_known=sum(each is None for each in rows),
        rows_behind=_all(rows, sum),
        ms_behind=_all(waits_ms, max),
        held_back_bytes=_all([None if each is None else each.held_back_bytes for each in told], sum),
    )


def _all(known: Sequence[int | None], together: Callable[[list[int]], int]) -> int | None:
    found = [each for each in known if each is not None]
    return together(found or [0]) if len(found) == len(known) else None
