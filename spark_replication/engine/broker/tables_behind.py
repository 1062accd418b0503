"""Which tables lack rows that they were to have: whoever looks after the cluster is to know, since logs grow (TB4).

A table counts as behind if a row that it lacks is older than `table.flush.ms`, and has been so for GRACE_MS: a new
leader has yet to hear how far its tables are, and a writer that died is replaced within seconds.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_replication.engine.replica.partition import Partition
from spark_replication.messages.commands import TableBehind
from spark_replication.messages.groups import GROUPS_TOPIC
from spark_replication.model import TimeMs

GRACE_MS = 60_000
TOLD_MAX = 20  # tables


class TablesBehind:
    """What one broker tells of the partitions that it leads. One thread uses it."""

    def __init__(self) -> None:
        #: By topic, since when a look has found it behind.
        self._seen_ms: dict[str, TimeMs] = {}
        #: What is to be told.
        self.told: tuple[TableBehind, ...] = ()

    @property
    def names(self) -> str:
        """What is told, but for figures that change all the time."""
        return ",".join(each.topic for each in self.told)

    def look(self, replicas: Iterable[Partition], now_ms: TimeMs) -> None:
        """Cost: of each partition that is led and is a table, a look at its index."""
        since: dict[str, list[TimeMs]] = {}
        for partition in replicas:
            name = partition.topic_partition
            with partition as replica:
                found_ms = None if name.topic == GROUPS_TOPIC else replica.table_lacks_since(now_ms)
            if found_ms is not None:
                since.setdefault(name.topic, []).append(found_ms)
        self._seen_ms = {topic: self._seen_ms.get(topic, now_ms) for topic in since}
        self.told = tuple(
            TableBehind(topic=topic, partitions=len(found), since_ms=min(found))
            for topic, found in sorted(since.items())
            if now_ms - self._seen_ms[topic] >= GRACE_MS
        )[:TOLD_MAX]
