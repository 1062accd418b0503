"""The table `partitions`: a row for each partition of the cluster, or its tombstone.

Of two rows of one partition the one with the greater (zxid, active_epoch) counts, whoever writes it (M2). A new
controller has not heard what leaders confirmed to the one before: within one topic_id active_epoch never falls.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from spark_replication.core.law.states import partition_state
from spark_replication.messages.commands import PartitionCommand
from spark_replication.mirror.columns import Column, Table
from spark_replication.model import TopicPartition

NEVER_CONFIRMED = -1


class PartitionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A partition as decided (`command`, at `zxid`), and the last epoch that a leader of it has confirmed."""

    cluster_id: str
    command: PartitionCommand
    zxid: int
    told_ms: int
    active_epoch: int = NEVER_CONFIRMED


class PartitionGone(msgspec.Struct, frozen=True, kw_only=True):
    """Since `zxid` at the latest."""

    cluster_id: str
    partition: TopicPartition
    zxid: int
    told_ms: int


_brokers = pa.list_(pa.int32())


class _Column(Column[PartitionRow, PartitionGone], frozen=True):
    pass


PARTITIONS = Table[PartitionRow, PartitionGone](
    name="partitions",
    comment="who leads each partition, and which replicas hold what was acknowledged",
    key=("topic", "partition"),
    counts="told.zxid > stored.zxid OR (told.zxid = stored.zxid AND told.active_epoch > stored.active_epoch)",
    special={
        "active_epoch": (
            "CASE WHEN stored.topic_id = told.topic_id AND stored.active_epoch > told.active_epoch"
            " THEN stored.active_epoch ELSE told.active_epoch END"
        )
    },
    columns=(
        _Column("topic", pa.string(), "its name", lambda row: row.command.topic, lambda gone: gone.partition.topic),
        _Column(
            "partition",
            pa.int32(),
            "its number in the topic",
            lambda row: row.command.partition,
            lambda gone: gone.partition.partition,
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
        _Column("controller_epoch", pa.int32(), "who decided", lambda row: row.command.state.controller_epoch),
        _Column("partition_epoch", pa.int32(), "rises on every change", lambda row: row.command.partition_epoch),
        _Column("zxid", pa.int64(), "ZooKeeper's order of all changes", lambda row: row.zxid, lambda gone: gone.zxid),
        _Column(
            "updated_at",
            pa.timestamp("us", "UTC"),
            "when the mirror was told",
            lambda row: row.told_ms * 1_000,
            lambda gone: gone.told_ms * 1_000,
        ),
        _Column(
            "cluster_id", pa.string(), "whose row this is", lambda row: row.cluster_id, lambda gone: gone.cluster_id
        ),
        _Column(
            "deleted",
            pa.bool_(),
            "a tombstone: the partition is gone since zxid",
            lambda _row: False,
            lambda _gone: True,
        ),
    ),
)
