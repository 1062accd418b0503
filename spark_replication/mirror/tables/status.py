"""The table `status`: one row, which says how far the others are, and who writes them.

It is renewed at least every `heartbeat_ms`, whatever happens. So a reader that has only the tables can tell those of a
dead driver from fresh ones. A deposed controller's row does not replace its successor's.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from spark_replication.mirror.tables.columns import UTC_TIME, Column, Table


class StatusRow(msgspec.Struct, frozen=True, kw_only=True):
    cluster_id: str
    controller: str
    controller_epoch: int
    #: Everything that the controller has told up to this zxid is in the tables.
    zxid: int
    #: The rows of all events up to this number are in their tables.
    event: int
    as_of_ms: int
    #: How long the oldest change that is not in the tables has waited.
    lag_ms: int
    heartbeat_ms: int
    #: What keeps the cluster from health, the worst first.
    problems: tuple[str, ...]


class _Column(Column[StatusRow], frozen=True):
    pass


STATUS = Table[StatusRow](
    name="status",
    comment="how far the other tables are, and who writes them",
    key=("cluster_id",),
    order=("controller_epoch",),
    last_wins=True,
    columns=(
        _Column("cluster_id", pa.string(), "whose tables these are", lambda row: row.cluster_id),
        _Column("controller", pa.string(), "where it takes requests: host:port", lambda row: row.controller),
        _Column("controller_epoch", pa.int32(), "rises with each take-over", lambda row: row.controller_epoch),
        _Column("zxid", pa.int64(), "all that was stored up to there is in the tables", lambda row: row.zxid),
        _Column(
            "event", pa.int64(), "the rows of all events up to this number are in the tables", lambda row: row.event
        ),
        _Column(
            "as_of",
            UTC_TIME,
            "when that was so; older than twice the heartbeat: nobody writes the tables",
            lambda row: row.as_of_ms * 1_000,
        ),
        _Column("lag_ms", pa.int64(), "for how long the oldest change has waited", lambda row: row.lag_ms),
        _Column("heartbeat_ms", pa.int64(), "this row is renewed as often, at least", lambda row: row.heartbeat_ms),
        _Column(
            "problems",
            pa.list_(pa.string()),
            "what keeps the cluster from health, the worst first; partitions are counted, and their tables have them",
            lambda row: list(row.problems),
        ),
    ),
)
