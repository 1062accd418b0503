"""How far tables are behind what a broker leads, and which lack rows that they were to have: whoever looks after the
cluster is to know, since logs grow (TB4).

A table counts as behind if a row that it lacks is older than `table.flush.ms`, and has been so for GRACE_MS: a new
leader has yet to hear how far its tables are, and a writer that died is replaced within seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from spark_replication.engine.replica.partition import Partition
from spark_replication.errors import StorageFailed
from spark_replication.messages.commands import TableBehind
from spark_replication.messages.descriptions import TableLag
from spark_replication.messages.groups import GROUPS_TOPIC
from spark_replication.model import TimeMs

GRACE_MS = 60_000
TOLD_MAX = 20  # tables


class TablesBehind:
    """What one broker tells of the partitions that it leads. One thread looks; any may read what it has found."""

    def __init__(self) -> None:
        #: By topic, since when a look has found it behind.
        self._seen_ms: dict[str, TimeMs] = {}
        #: What is to be told.
        self.told: tuple[TableBehind, ...] = ()
        #: By topic that is a table, as of the last look, how far each partition is that is led here.
        self.lags: Mapping[str, Sequence[TableLag]] = {}

    @property
    def names(self) -> str:
        """What is told, but for figures that change all the time."""
        return ",".join(each.topic for each in self.told)

    def look(self, replicas: Iterable[Partition], now_ms: TimeMs) -> None:
        """Cost: of each partition that is led and is a table, a look at its segments and its index. StorageFailed: a
        disk does not say how old a row is; the others were looked at all the same."""
        since: dict[str, list[TimeMs]] = {}
        lags: dict[str, list[TableLag]] = {}
        refused: StorageFailed | None = None
        for partition in replicas:
            topic = partition.topic_partition.topic
            if topic == GROUPS_TOPIC or not partition.leads:
                continue
            with partition as replica:
                lag = replica.table_lag(now_ms)
                if lag is None:
                    continue
                lags.setdefault(topic, []).append(lag)
                try:
                    found_ms = replica.table_lacks_since(now_ms)
                except StorageFailed as error:
                    found_ms, refused = None, error
            if found_ms is not None:
                since.setdefault(topic, []).append(found_ms)
        self.lags = lags
        self._seen_ms = {topic: self._seen_ms.get(topic, now_ms) for topic in since}
        self.told = tuple(
            TableBehind(topic=topic, partitions=len(found), since_ms=min(found))
            for topic, found in sorted(since.items())
            if now_ms - self._seen_ms[topic] >= GRACE_MS
        )[:TOLD_MAX]
        if refused is not None:
            raise refused
