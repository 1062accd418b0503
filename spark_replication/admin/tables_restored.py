"""Topics that are made again from their tables, in a cluster that does not have them (TB7): core.tables.restoring says
what may be, a topic at a time, and the controller does the rest."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from spark_replication.client.asking.admin import Admin, TopicDescription
from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.routes import Routes
from spark_replication.core.tables.restoring import FoundTable, ThenRestored, restored
from spark_replication.errors import InvalidRequest, ReplicationError
from spark_replication.live.tables.table_topics import cluster_tables_path
from spark_replication.mirror.delta.object_store import StoreOptions
from spark_replication.mirror.delta.paths import is_remote
from spark_replication.tables.found import found_tables

ASK_MS = 10_000


class PlannedRestore(NamedTuple):
    table: FoundTable
    #: What is to be done; or why nothing is.
    then: ThenRestored | ReplicationError


class TablesRestoring:
    def __init__(
        self, routes: Routes, admin: Admin, store: StoreOptions, *, path: str | None, taken_over: Collection[str]
    ) -> None:
        """path: where the tables are; None for table.path of the cluster. taken_over: see core.tables.restoring."""
        self._admin = admin
        self._store = store
        self._taken_over = taken_over
        self._cluster_path = cluster_tables_path(routes, Deadline(ASK_MS))
        self._path = self._cluster_path if path is None else _absolute(path)

    def planned(self, topics: Collection[str]) -> Iterator[PlannedRestore]:
        """What is to be done about these tables, or about all that are found."""
        metadata = self._admin.metadata()
        here = {topic.name: topic.topic_id for topic in metadata.topics}
        for table in found_tables(self._path, self._store, topics):
            try:
                then = restored(table, metadata.cluster_id, here.get(table.topic), self._taken_over)
            except ReplicationError as error:
                yield PlannedRestore(table, error)
            else:
                yield PlannedRestore(table, then)

    def restored(self, planned: PlannedRestore, replication_factor: int | None) -> str:
        """Do it. Returns what was done."""
        table, then = planned
        if isinstance(then, ReplicationError):
            raise then
        if self._path.rstrip("/") != self._cluster_path.rstrip("/"):
            raise InvalidRequest(
                f"topics of this cluster have their tables in {self._cluster_path}: start it with "
                f"table.path={self._path}, and restore without --path"
            )
        if then is ThenRestored.DONE and table.outline is None:
            return f"{table.topic} has its table"
        return _told(self._admin.restore_topic(table, replication_factor))


def _absolute(path: str) -> str:
    return path if is_remote(path) else str(Path(path).absolute())


def _told(made: TopicDescription) -> str:
    starts = ", ".join(str(each.start_at or 0) for each in made.partitions)
    return f"{made.name} has {len(made.partitions)} partitions, which go on at {starts}"
