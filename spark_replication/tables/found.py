"""The tables below a path, as somebody finds them who knows nothing of their topics (TB7)."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from spark_replication import decoding
from spark_replication.core.tables.restoring import FoundTable, TopicOutline
from spark_replication.decoding import UNDECODABLE
from spark_replication.errors import InvalidRequest, ReplicationError, StorageFailed
from spark_replication.mirror.delta.object_store import StoreOptions
from spark_replication.storage.format.batches import schema_of_text
from spark_replication.tables.delta_table import ATTEMPTS_MAX, OUTLINE, anybodys_table, origin_of, version_of
from spark_replication.tables.folder import TableFolder
from spark_replication.tables.places import table_uri
from spark_replication.tables.table_log import LogMoved, TableLog
from spark_replication.tables.types import DAY, OURS


def found_tables(path: str, store: StoreOptions, names: Collection[str] = ()) -> Iterator[FoundTable]:
    """These tables, or all that name a topic if there are none. InvalidRequest: one of these is not there, or no
    topic's."""
    folder = TableFolder(path, store)
    with folder.translated("say which tables are in it"):
        there = folder.folders()
    if missing := sorted({*names} - {*there}):
        raise InvalidRequest(f"there is no table {', '.join(missing)} below {path}: check the name, and table.path")
    for topic in sorted({*names} or there):
        found = found_table(TableFolder(table_uri(path, topic), store), topic)
        if found is not None:
            yield found
        elif topic in names:
            raise InvalidRequest(f"{table_uri(path, topic)} is no table of a topic: nothing in it names one")


def found_table(folder: TableFolder, topic: str) -> FoundTable | None:
    """The table that lies there; None if there is none, or it names no topic."""
    with folder.translated("say what is in it"):
        for _ in range(ATTEMPTS_MAX):
            opened = anybodys_table(folder)
            origin = None if opened is None else origin_of(opened)
            if opened is None or origin is None:
                return None
            try:
                transactions = TableLog(folder).transactions(str(opened.metadata().id), opened.version())
            except LogMoved:
                continue
            outline = outline_in(opened)
            return FoundTable(
                topic=topic,
                uri=folder.uri,
                origin=origin,
                outline=outline,
                version=version_of(origin.topic_id, opened.version(), transactions),
                row_count=_row_count(opened),
                columns=_columns(opened, outline),
            )
    raise StorageFailed(f"{folder.uri} has a log whose parts are missing: restore _delta_log")


def outline_in(opened: DeltaTable) -> TopicOutline | None:
    """What the table has written down of its topic; None: nothing that this release can read."""
    text = opened.metadata().configuration.get(OUTLINE)
    if text is None:
        return None
    try:
        outline = decoding.from_json(text, TopicOutline)
        _schema_in(outline)
    except (*UNDECODABLE, ReplicationError):
        return None
    return outline


def _schema_in(outline: TopicOutline) -> pa.Schema:
    return schema_of_text(outline.schema, "an outline of a topic")


def _row_count(opened: DeltaTable) -> int:
    counts = pa.table(opened.get_add_actions(flatten=True)).column("num_records")
    return int(pc.sum(counts).as_py() or 0)


def _columns(opened: DeltaTable, outline: TopicOutline | None) -> tuple[str, ...]:
    if outline is not None:
        return tuple(f"{field.name}:{field.type}" for field in _schema_in(outline))
    stored = pa.schema(opened.schema().to_arrow())
    return tuple(f"{field.name}:{field.type}" for field in stored if field.name not in (*OURS.names, DAY))
