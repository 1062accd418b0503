"""The table `brokers`: a row for each broker that is registered, and for each that was.

A leader is reached at the address in its broker's row here, not in `partitions`: no row mixes two nodes of ZooKeeper
(M5).
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from spark_replication.mirror.tables.columns import UTC_TIME, Column, Face, Table, Tells, told_columns
from spark_replication.model import BrokerId, Registration


class BrokerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A registration, as it is since `zxid` and `at_ms`."""

    cluster_id: str
    broker: BrokerId
    registration: Registration
    zxid: int
    at_ms: int
    told_ms: int


def _face(row: BrokerRow) -> Face:
    known = row.registration
    return {
        "host": known.host,
        "port": known.port,
        "rack": known.rack,
        "epoch": known.epoch,
        "incarnation": known.incarnation,
        "state": "shutting_down" if known.shutting_down else "live",
    }


def _kind(was: Face | None, became: Face | None) -> str:
    if became is None:
        return "gone"
    if was is None or was["epoch"] != became["epoch"]:
        return "registered"
    return "shutting_down" if became["state"] == "shutting_down" else "changed"


class _Column(Column[BrokerRow], frozen=True):
    pass


BROKERS = Table[BrokerRow](
    name="brokers",
    comment="who can be reached where",
    key=("broker",),
    order=("zxid",),
    hides=lambda unreadable, key: key[0] in unreadable.brokers,
    keeps_gone=True,
    tells=Tells(
        columns=("host", "port", "rack", "epoch", "incarnation", "state"),
        face=_face,
        kind=_kind,
        why=lambda _row, _kind: None,
        at_ms=lambda row: row.at_ms,
    ),
    columns=(
        _Column("broker", pa.int32(), "its id", lambda row: row.broker, lambda gone: gone.key[0]),
        _Column("host", pa.string(), "where clients reach it", lambda row: row.registration.host),
        _Column("port", pa.int32(), "where clients reach it", lambda row: row.registration.port),
        _Column("rack", pa.string(), "null: it has none", lambda row: row.registration.rack),
        _Column("epoch", pa.int64(), "of this life: another one has another", lambda row: row.registration.epoch),
        _Column("incarnation", pa.string(), "of its process", lambda row: row.registration.incarnation),
        _Column(
            "state",
            pa.string(),
            "live, shutting_down (leads until another does), or gone",
            lambda row: "shutting_down" if row.registration.shutting_down else "live",
            lambda _gone: "gone",
        ),
        _Column("zxid", pa.int64(), "ZooKeeper's order of all changes", lambda row: row.zxid, lambda gone: gone.zxid),
        _Column(
            "changed_at",
            UTC_TIME,
            "when it became so, by ZooKeeper's clock",
            lambda row: row.at_ms * 1_000,
            is_mirrors=True,
        ),
        *told_columns(lambda row: row.cluster_id, lambda row: row.told_ms),
    ),
)
