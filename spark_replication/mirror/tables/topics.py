"""The table `topics`: a row for each topic, or its tombstone.

A topic's assignment and its settings are two nodes. Only controllers write them, one controller after the other. So
what a controller knows at the greater of their two zxids is what was stored then, and of two rows the one with the
greater zxid counts.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from spark_replication.core.controller.cluster import StoredTopic
from spark_replication.mirror.tables.columns import UTC_TIME, Column, Face, Table, Tells, told_columns


class TopicRow(msgspec.Struct, frozen=True, kw_only=True):
    cluster_id: str
    name: str
    topic: StoredTopic
    told_ms: int

    @property
    def zxid(self) -> int:
        return self.topic.zxid


def _settings(row: TopicRow) -> str:
    return msgspec.json.encode(row.topic.config.settings, order="deterministic").decode()


def _face(row: TopicRow) -> Face:
    return {
        "topic_id": row.topic.state.topic_id,
        "partitions": len(row.topic.state.partitions),
        "schema_version": row.topic.config.schema_version,
        "settings": _settings(row),
    }


def _kind(was: Face | None, became: Face | None) -> str:
    if became is None:
        return "deleted"
    if was is None or was["topic_id"] != became["topic_id"]:
        return "created"
    if was["partitions"] != became["partitions"]:
        return "resized"
    return "widened" if was["schema_version"] != became["schema_version"] else "configured"


class _Column(Column[TopicRow], frozen=True):
    pass


TOPICS = Table[TopicRow](
    name="topics",
    comment="which topics there are, of which schema and settings",
    key=("topic",),
    order=("zxid",),
    hides=lambda unreadable, key: key[0] in unreadable.topics,
    tells=Tells(
        columns=("topic_id", "partitions", "schema_version", "settings"),
        face=_face,
        kind=_kind,
        why=lambda _row, _kind: None,
        at_ms=lambda row: row.topic.at_ms,
    ),
    columns=(
        _Column("topic", pa.string(), "its name", lambda row: row.name, lambda gone: gone.key[0]),
        _Column("topic_id", pa.string(), "another one: it was made again", lambda row: row.topic.state.topic_id),
        _Column("partitions", pa.int32(), "how many it has", lambda row: len(row.topic.state.partitions)),
        _Column(
            "schema",
            pa.string(),
            "the Arrow schema of its records, the newest version: an IPC message in base64",
            lambda row: row.topic.config.schema,
        ),
        _Column("schema_version", pa.int32(), "how often it was widened", lambda row: row.topic.config.schema_version),
        _Column("settings", pa.string(), "those that differ from the cluster's, as JSON", _settings),
        _Column(
            "zxid", pa.int64(), "ZooKeeper's order of all changes", lambda row: row.topic.zxid, lambda gone: gone.zxid
        ),
        _Column(
            "changed_at",
            UTC_TIME,
            "when it became so, by ZooKeeper's clock",
            lambda row: (row.topic.at_ms or row.told_ms) * 1_000,
            is_mirrors=True,
        ),
        *told_columns(lambda row: row.cluster_id, lambda row: row.told_ms),
    ),
)
