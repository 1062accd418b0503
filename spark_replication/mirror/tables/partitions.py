"""The table `partitions`: a row for each partition of the cluster, or its tombstone.

Of two rows of one partition the one with the greater (zxid, active_epoch) counts, whoever writes it (M2). A new
controller does not know what leaders confirmed to the one before, nor when they were elected. So the merge keeps these:
within one topic_id active_epoch never falls, and within one leader_epoch the earliest leader_since stays.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from spark_replication.core.law.states import partition_state
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.mirroring import partition_face
from spark_replication.mirror.tables.columns import UTC_TIME, Column, Face, Table, Tells, told_columns
from spark_replication.model import TopicPartition

NEVER_CONFIRMED = -1


class PartitionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A partition as decided, and the last epoch that one of its leaders has confirmed."""

    cluster_id: str
    #: The decision, stored at `zxid` and `at_ms`.
    command: PartitionCommand
    zxid: int
    told_ms: int
    at_ms: int = 0
    #: When this leader_epoch began, as far as this controller knows.
    leader_since_ms: int = 0
    #: Why it has no leader.
    waiting_for: str | None = None
    active_epoch: int = NEVER_CONFIRMED


def _to_be_confirmed(row: PartitionRow) -> int | None:
    state = row.command.state
    return None if state.leader is None else state.leader_epoch


def _face(row: PartitionRow) -> Face:
    return partition_face(row.command)


def _kind(was: Face | None, became: Face | None) -> str:
    """The name of a change. If several things change at once, the most important one: who leads, then which replicas
    there are, then who is in sync."""
    if became is None:
        return "removed"
    if was is None or was["topic_id"] != became["topic_id"]:
        return "created"
    if was["leader"] != became["leader"]:
        return "leaderless" if became["leader"] is None else "elected"
    if any(was[name] != became[name] for name in ("replicas", "adding", "removing")):
        return "reassigning" if became["adding"] or became["removing"] else "reassigned"
    if was["leader_epoch"] != became["leader_epoch"]:
        return "elected"
    return "isr" if any(was[name] != became[name] for name in ("isr", "elr", "last_known_elr")) else "changed"


def _why(row: PartitionRow, kind: str) -> str | None:
    if row.command.state.leader is None:
        return row.waiting_for
    return row.command.state.elected if kind == "elected" else None


_brokers = pa.list_(pa.int32())


class _Column(Column[PartitionRow], frozen=True):
    pass


PARTITIONS = Table[PartitionRow](
    name="partitions",
    comment="who leads each partition, and which replicas hold what was acknowledged",
    key=("topic", "partition"),
    order=("zxid", "active_epoch"),
    hides=lambda unreadable, key: unreadable.hides(TopicPartition(*key)),
    tells=Tells(
        columns=(
            *("topic_id", "leader", "leader_epoch", "isr", "elr", "last_known_elr", "replicas", "adding", "removing"),
            *("recovering", "min_isr", "start_at"),
        ),
        face=_face,
        kind=_kind,
        why=_why,
        at_ms=lambda row: row.at_ms,
    ),
    special={
        "active_epoch": (
            "CASE WHEN stored.topic_id = told.topic_id AND stored.active_epoch > told.active_epoch"
            " THEN stored.active_epoch ELSE told.active_epoch END"
        ),
        "leader_since": (
            "CASE WHEN stored.topic_id = told.topic_id AND stored.leader_epoch = told.leader_epoch"
            " AND stored.leader_since < told.leader_since THEN stored.leader_since ELSE told.leader_since END"
        ),
    },
    columns=(
        _Column("topic", pa.string(), "its name", lambda row: row.command.topic, lambda gone: gone.key[0]),
        _Column(
            "partition",
            pa.int32(),
            "its number in the topic",
            lambda row: row.command.partition,
            lambda gone: gone.key[1],
        ),
        _Column("topic_id", pa.string(), "another one: the topic was made again", lambda row: row.command.topic_id),
        _Column("leader", pa.int32(), "null: there is none", lambda row: row.command.state.leader),
        _Column("leader_epoch", pa.int32(), "of the decided leader", lambda row: row.command.state.leader_epoch),
        _Column(
            "active_epoch",
            pa.int32(),
            "the last epoch that a leader has confirmed; route to the leader once it equals leader_epoch; -1: none yet",
            lambda row: row.active_epoch,
            lambda _gone: NEVER_CONFIRMED,
            agreed=_to_be_confirmed,
        ),
        _Column(
            "leader_since",
            UTC_TIME,
            "since when it leads at leader_epoch, by ZooKeeper's clock",
            lambda row: None if row.command.state.leader is None else row.leader_since_ms * 1_000,
            is_mirrors=True,
        ),
        _Column("isr", _brokers, "in-sync replicas, ascending", lambda row: sorted(row.command.state.isr)),
        _Column("elr", _brokers, "eligible leader replicas, ascending", lambda row: sorted(row.command.state.elr)),
        _Column(
            "last_known_elr",
            _brokers,
            "who left the ELR by an unclean start, ascending",
            lambda row: sorted(row.command.state.last_known_elr),
        ),
        _Column(
            "last_known_leader",
            pa.int32(),
            "who led when the ISR became empty",
            lambda row: row.command.state.last_known_leader,
        ),
        _Column(
            "replicas", _brokers, "in assignment order, preferred leader first", lambda row: list(row.command.replicas)
        ),
        _Column("adding", _brokers, "of the replicas, by a running reassignment", lambda row: list(row.command.adding)),
        _Column(
            "removing", _brokers, "of the replicas, by a running reassignment", lambda row: list(row.command.removing)
        ),
        _Column(
            "state",
            pa.string(),
            "new, online, offline or nonexistent",
            lambda row: partition_state(row.command.replicas, row.command.state),
            lambda _gone: "nonexistent",
        ),
        _Column(
            "waiting_for",
            pa.string(),
            "why it had no leader as this was decided; null: it has one",
            lambda row: row.waiting_for,
            is_mirrors=True,
        ),
        _Column(
            "recovering",
            pa.bool_(),
            "led from outside ISR and ELR, no ISR write since",
            lambda row: row.command.state.recovering,
        ),
        _Column(
            "elected_how",
            pa.string(),
            "how the present or last leader was elected; null: chosen as the partition was made",
            lambda row: row.command.state.elected,
        ),
        _Column("min_isr", pa.int32(), "the effective one", lambda row: row.command.state.min_isr),
        _Column(
            "start_at",
            pa.int64(),
            "the log begins here or above, all below is in the topic's table alone; null: no offset was set",
            lambda row: row.command.state.lowest_offset or None,
        ),
        _Column("controller_epoch", pa.int32(), "who decided", lambda row: row.command.state.controller_epoch),
        _Column("partition_epoch", pa.int32(), "rises on every change", lambda row: row.command.partition_epoch),
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
