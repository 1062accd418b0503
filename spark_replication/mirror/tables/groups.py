"""The table `groups`: how far each consumer group is in each partition that it reads, as coordinators and leaders told.

ZooKeeper knows nothing of groups, so a row has no zxid. All rows are told together, and replace those before them. What
a deposed controller tells late replaces nothing.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from spark_replication.mirror.tables.columns import UTC_TIME, Column, Table
from spark_replication.model import Count, EpochOrNone, Offset, PartitionNumber, TimeMs


class GroupRow(msgspec.Struct, frozen=True, kw_only=True):
    cluster_id: str
    group: str
    topic: str
    partition: PartitionNumber
    state: str
    #: None: the group has not committed here.
    position: Offset | None
    position_epoch: EpochOrNone | None
    #: None: its leader did not say.
    log_end: Offset | None
    lag_records: Count | None
    lag_ms: Count | None
    member: str | None
    host: str | None
    committed_ms: TimeMs | None
    told_ms: TimeMs


def _us(time_ms: TimeMs | None) -> int | None:
    return None if time_ms is None else time_ms * 1_000


class _Column(Column[GroupRow], frozen=True):
    pass


GROUPS = Table[GroupRow](
    name="groups",
    comment="how far consumer groups and Spark queries are, those that are most behind if they are many",
    key=("group", "topic", "partition"),
    order=(),
    columns=(
        _Column("group", pa.string(), "its name; that of a Spark query begins with spark:", lambda row: row.group),
        _Column("topic", pa.string(), "a topic that it reads, or has committed in", lambda row: row.topic),
        _Column("partition", pa.int32(), "and its partition", lambda row: row.partition),
        _Column("state", pa.string(), "the group's: stable, moving, empty or spark_query", lambda row: row.state),
        _Column("position", pa.int64(), "the offset of its next record; null: none yet", lambda row: row.position),
        _Column(
            "position_epoch",
            pa.int32(),
            "the leader epoch of the record before that; -1: not known",
            lambda row: row.position_epoch,
        ),
        _Column("log_end", pa.int64(), "of what is committed; null: its leader did not say", lambda row: row.log_end),
        _Column(
            "lag_records", pa.int64(), "so many are there that the group has not committed", lambda row: row.lag_records
        ),
        _Column("lag_ms", pa.int64(), "so long has the first of them been there", lambda row: row.lag_ms),
        _Column("member", pa.string(), "who reads it, by the name that people know", lambda row: row.member),
        _Column("host", pa.string(), "and where", lambda row: row.host),
        _Column(
            "committed_at", UTC_TIME, "when it committed, by its coordinator's clock", lambda row: _us(row.committed_ms)
        ),
        _Column("updated_at", UTC_TIME, "when all of this was told", lambda row: _us(row.told_ms)),
        _Column("cluster_id", pa.string(), "whose row this is", lambda row: row.cluster_id),
    ),
)
