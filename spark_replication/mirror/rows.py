"""The rows of `partitions`, and the latest of each that is to be written. Pure.

Rules: of two rows of one partition the one with the greater (zxid, active_epoch) counts (M2); active_epoch never falls
within one topic_id; a row waits at most once, however often its partition changes meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from spark_replication.core.law.states import State, partition_state
from spark_replication.messages.commands import PartitionCommand
from spark_replication.model import TopicPartition

NEVER_CONFIRMED = -1


class MirrorRow(msgspec.Struct, frozen=True, kw_only=True):
    """A partition as decided (`command`, at `zxid`), and the last epoch that a leader of it has confirmed."""

    cluster_id: str
    command: PartitionCommand
    zxid: int
    updated_at_ms: int
    active_epoch: int = NEVER_CONFIRMED
    deleted: bool = False

    @property
    def state(self) -> State:
        return "nonexistent" if self.deleted else partition_state(self.command.replicas, self.command.state)


class Column(msgspec.Struct, frozen=True):
    """`comment` is stored in the table."""

    name: str
    type: pa.DataType
    comment: str
    value: Callable[[MirrorRow], Any]


_brokers = pa.list_(pa.int32())

COLUMNS = (
    Column("topic", pa.string(), "its name", lambda row: row.command.topic),
    Column("partition", pa.int32(), "its number in the topic", lambda row: row.command.partition),
    Column("topic_id", pa.string(), "another one: the topic was made again", lambda row: row.command.topic_id),
    Column("leader", pa.int32(), "null: there is none", lambda row: None if row.deleted else row.command.state.leader),
    Column("leader_epoch", pa.int32(), "of the decided leader", lambda row: row.command.state.leader_epoch),
    Column(
        "active_epoch",
        pa.int32(),
        "the last epoch that a leader has confirmed; route to the leader once it equals leader_epoch; -1: none yet",
        lambda row: row.active_epoch,
    ),
    Column(
        "isr", _brokers, "in-sync replicas, ascending", lambda row: [] if row.deleted else sorted(row.command.state.isr)
    ),
    Column(
        "elr",
        _brokers,
        "eligible leader replicas, ascending",
        lambda row: [] if row.deleted else sorted(row.command.state.elr),
    ),
    Column(
        "last_known_elr",
        _brokers,
        "who left the ELR by an unclean start, ascending",
        lambda row: sorted(row.command.state.last_known_elr),
    ),
    Column(
        "last_known_leader",
        pa.int32(),
        "who led when the ISR became empty",
        lambda row: row.command.state.last_known_leader,
    ),
    Column("replicas", _brokers, "in assignment order, preferred leader first", lambda row: list(row.command.replicas)),
    Column("adding", _brokers, "of the replicas, by a running reassignment", lambda row: list(row.command.adding)),
    Column("removing", _brokers, "of the replicas, by a running reassignment", lambda row: list(row.command.removing)),
    Column("state", pa.string(), "new, online, offline or nonexistent", lambda row: row.state),
    Column(
        "recovering",
        pa.bool_(),
        "led from outside ISR and ELR, no ISR write since",
        lambda row: row.command.state.recovering,
    ),
    Column(
        "elected_how",
        pa.string(),
        "how the present or last leader was elected; null: chosen as the partition was made",
        lambda row: row.command.state.elected,
    ),
    Column("min_isr", pa.int32(), "the effective one", lambda row: row.command.state.min_isr),
    Column("controller_epoch", pa.int32(), "who decided", lambda row: row.command.state.controller_epoch),
    Column("partition_epoch", pa.int32(), "rises on every change", lambda row: row.command.partition_epoch),
    Column("zxid", pa.int64(), "ZooKeeper's order of all changes", lambda row: row.zxid),
    Column("updated_at", pa.timestamp("us", "UTC"), "when the mirror was told", lambda row: row.updated_at_ms * 1_000),
    Column("cluster_id", pa.string(), "whose row this is", lambda row: row.cluster_id),
    Column("deleted", pa.bool_(), "a tombstone: the partition is gone since zxid", lambda row: row.deleted),
)
SCHEMA = pa.schema([(column.name, column.type) for column in COLUMNS])


def to_arrow(rows: Sequence[MirrorRow]) -> pa.Table:
    return pa.Table.from_arrays(
        [pa.array([column.value(row) for row in rows], column.type) for column in COLUMNS], schema=SCHEMA
    )


class LatestRows:
    """What each partition is now, and which of that is to be written. Not thread-safe.

    Bounded by the number of partitions. A row that is waiting or being written is in `_latest`, too.
    """

    def __init__(self, cluster_id: str) -> None:
        self._cluster_id = cluster_id
        self._latest: dict[TopicPartition, MirrorRow] = {}
        # Since when, oldest first: what is to be written next, and what is being written.
        self._waiting: dict[TopicPartition, int] = {}
        self._writing: dict[TopicPartition, int] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def pending(self) -> int:
        return len(self._waiting.keys() | self._writing.keys())

    def pending_since_ms(self) -> int | None:
        """When the oldest change that is not in the table yet was told."""
        return next(iter((self._writing or self._waiting).values()), None)

    def changed(self, partitions: Iterable[tuple[PartitionCommand, int]], now_ms: int) -> None:
        for command, zxid in partitions:
            known = self._latest.get(command.topic_partition)
            if known is not None and zxid <= known.zxid:
                continue  # a new controller tells everything again
            same = known is not None and known.command.topic_id == command.topic_id
            self._put(
                MirrorRow(
                    cluster_id=self._cluster_id,
                    command=command,
                    zxid=zxid,
                    updated_at_ms=now_ms,
                    active_epoch=known.active_epoch if known is not None and same else NEVER_CONFIRMED,
                ),
                now_ms,
            )

    def confirmed(self, partition: TopicPartition, topic_id: str, leader_epoch: int, now_ms: int) -> None:
        """Of another topic of that name it says nothing (E4); and decisions are told first."""
        known = self._latest.get(partition)
        if known is None or known.deleted or known.command.topic_id != topic_id:
            return
        if known.active_epoch < leader_epoch <= known.command.state.leader_epoch:
            self._put(msgspec.structs.replace(known, active_epoch=leader_epoch, updated_at_ms=now_ms), now_ms)

    def deleted(self, topic: str, zxid: int, now_ms: int) -> None:
        """Cost: one look at every partition; topics are deleted rarely."""
        for partition in [known for known in self._latest if known.topic == topic]:
            self.removed(partition, zxid, now_ms)

    def removed(self, partition: TopicPartition, zxid: int, now_ms: int) -> None:
        """From a topic that lives on, or with it."""
        row = self._latest.get(partition)
        if row is not None and row.zxid < zxid and not row.deleted:
            self._put(msgspec.structs.replace(row, zxid=zxid, deleted=True, updated_at_ms=now_ms), now_ms)

    def take(self) -> list[MirrorRow]:
        """What waits is being written from now on, until `written` or `failed`."""
        assert not self._writing, "one MERGE at a time (M2)"
        self._writing, self._waiting = self._waiting, {}
        return [self._latest[partition] for partition in self._writing]

    def written(self) -> None:
        for partition in self._writing:
            if self._latest[partition].deleted and partition not in self._waiting:
                del self._latest[partition]
        self._writing = {}

    def failed(self) -> None:
        """They wait again, as long as they have."""
        self._waiting = self._writing | {p: since for p, since in self._waiting.items() if p not in self._writing}
        self._writing = {}

    def _put(self, row: MirrorRow, now_ms: int) -> None:
        partition = row.command.topic_partition
        self._latest[partition] = row
        self._waiting.setdefault(partition, now_ms)
