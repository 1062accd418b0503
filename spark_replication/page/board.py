"""The shown state of a cluster, with a version: a viewer that has a version is sent only what has changed since.

No version is used twice, not even by another process that serves the page: the first one is the time of day.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from spark_replication.client.asking.health import Health
from spark_replication.client.asking.replica_sizes import ReassignmentDescription
from spark_replication.messages.descriptions import Metadata, TopicMetadata
from spark_replication.model import BrokerId
from spark_replication.page.answers import Age, BrokerRow, PartitionRow, Unchanged, View
from spark_replication.page.asking import NO_SIZES, Sizes
from spark_replication.page.history import Totals
from spark_replication.page.rows import broker_rows, partition_rows, topic_row, with_sizes, with_totals


class _Shown:
    """A topic as it is shown."""

    def __init__(self, told: TopicMetadata, version: int) -> None:
        self.told = told
        self.rows = partition_rows(told)
        #: For each of `rows`, the version that last changed it.
        self.since = [version] * len(self.rows)
        self.counted = topic_row(told.name, self.rows)
        self.row = self.counted
        self.row_since = version

    def take(self, told: TopicMetadata, version: int) -> bool:
        """Take a newer description. False if it has other partitions than the last: then nothing is taken."""
        rows = partition_rows(told)
        if [row.partition for row in rows] != [row.partition for row in self.rows]:
            return False
        for place, (row, before) in enumerate(zip(rows, self.rows, strict=True)):
            if row != before:
                self.since[place] = version
        self.told, self.rows, self.counted = told, rows, topic_row(told.name, rows)
        return True


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    """The small parts of a view, which are always sent whole."""

    health: Health | None = None
    brokers: tuple[BrokerRow, ...] = ()
    moves: tuple[ReassignmentDescription, ...] = ()
    errors: tuple[str, ...] = ()


class Board:
    """One thread at a time may use it."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.metadata: Metadata | None = None
        self._whole_since = version
        self._topics: dict[str, _Shown] = {}
        self._brokers: list[BrokerRow] = []
        self._head = _Head()

    @property
    def health(self) -> Health | None:
        return self._head.health

    @property
    def brokers(self) -> tuple[BrokerRow, ...]:
        return self._head.brokers

    @property
    def moves(self) -> tuple[ReassignmentDescription, ...]:
        return self._head.moves

    def topic(self, name: str) -> tuple[TopicMetadata, list[PartitionRow]] | None:
        found = self._topics.get(name)
        return None if found is None else (found.told, found.rows)

    def show(
        self,
        metadata: Metadata | None,
        health: Health | None,
        sizes: Sizes,
        *,
        totals: Mapping[str, Totals] = {},
        moves: Sequence[ReassignmentDescription] = (),
        errors: Sequence[str] = (),
    ) -> None:
        """Show this state; what is new of it makes another version. If `metadata` is None, the last one holds. `errors`
        are those of questions without an answer."""
        version = self.version + 1
        changed = False
        if metadata is not None and metadata is not self.metadata:
            changed = self._take_topics(metadata, version)
            self._brokers = broker_rows(metadata)
            self.metadata = metadata
        for shown in self._topics.values():
            row = with_totals(shown.counted, totals.get(shown.told.name))
            if row != shown.row:
                shown.row, shown.row_since, changed = row, version, True
        bytes_on = sizes.bytes_on() if sizes is not NO_SIZES else {}
        head = _Head(
            health=health,
            brokers=tuple(with_sizes(row, sizes, bytes_on) for row in self._brokers),
            moves=tuple(moves),
            errors=tuple(errors),
        )
        if changed or head != self._head:
            self._head, self.version = head, version

    def _take_topics(self, metadata: Metadata, version: int) -> bool:
        told = {topic.name: topic for topic in metadata.topics}
        changed = other_partitions = told.keys() != self._topics.keys()
        shown: dict[str, _Shown] = {}
        for name in sorted(told):
            known = self._topics.get(name)
            if known is not None and known.told == told[name]:
                shown[name] = known
                continue
            changed = True
            if known is not None and known.take(told[name], version):
                shown[name] = known
            else:
                shown[name], other_partitions = _Shown(told[name], version), True
        self._topics = shown
        if other_partitions:
            self._whole_since = version
        return changed

    def view(self, since: int | None, now_ms: int, ages: Mapping[str, Age]) -> View | Unchanged:
        if since == self.version:
            return Unchanged(version=self.version, now_ms=now_ms, ages=dict(ages))
        whole = since is None or not self._whole_since <= since < self.version
        after = -1 if whole or since is None else since
        return View(
            version=self.version,
            whole=whole,
            now_ms=now_ms,
            ages=dict(ages),
            health=self._head.health,
            brokers=self._head.brokers,
            moves=self._head.moves,
            topics=tuple(each.row for each in self._topics.values() if each.row_since > after),
            partitions={
                name: found
                for name, each in self._topics.items()
                if (found := [row for row, at in zip(each.rows, each.since, strict=True) if at > after]) or whole
            },
        )

    def broker(self, broker: BrokerId) -> BrokerRow | None:
        return next((row for row in self._head.brokers if row.id == broker), None)
