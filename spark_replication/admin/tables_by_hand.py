"""Topics' tables, written by a program that a person starts: `spark-replication table write`, jobs/write_tables.py."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import closing

from spark_replication.client.finding.routes import Routes
from spark_replication.client.reading.reader import Reader
from spark_replication.live.tables.table_writers import TableWriters
from spark_replication.mirror.delta.object_store import StoreOptions
from spark_replication.process.stop_signals import on_stop_signals
from spark_replication.transport.security.security import Security

PATIENCE_S = 60.0


def write_tables(
    bootstrap: str,
    security: Security,
    store: StoreOptions,
    topics: Collection[str],
    *,
    once: bool,
    patience_s: float = PATIENCE_S,
    reach_ms: float | None = None,
    progress: Callable[[str], None],
) -> str:
    """Write these topics' tables, or those of all topics that are tables, until a signal says to stop; with `once`
    until they have what is committed by now. Returns what was done; `progress` is told the same meanwhile."""
    stopped = threading.Event()
    on_stop_signals(stopped.set)
    with (
        closing(Routes(bootstrap, security, reach_ms=reach_ms)) as routes,
        Reader(bootstrap, security=security, prefer="near", reach_ms=reach_ms) as reader,
    ):
        writers = TableWriters(routes, reader, store, topics=topics, at_once=once)
        if once:
            writers.write_once(patience_s, stopped.wait, lambda: progress(_told(writers)))
        else:
            writers.run(stopped.wait, lambda: progress(_told(writers)))
        return _told(writers)


def _told(writers: TableWriters) -> str:
    found = [each.written for each in writers.all]
    rows, commits = sum(each.rows for each in found), sum(each.commits for each in found)
    refused = sum(each.refused for each in found)
    others = f", {refused} refused since others had written" if refused else ""
    return f"{rows} rows in {commits} commits to {len(found)} tables{others}"
