"""The rows of partitions, brokers, topics, events, lag and consumer groups, for any kind of table.

A column that the mirror's tables have, too, takes its name, type and comment from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa

from spark_replication.client.asking.descriptions import ClusterDescription, TopicDescription
from spark_replication.client.asking.groups import GroupDescription
from spark_replication.client.asking.replica_sizes import ReplicaDescription
from spark_replication.messages.mirroring import ToldEvent
from spark_replication.mirror.tables.brokers import BROKERS
from spark_replication.mirror.tables.columns import UTC_TIME, Table
from spark_replication.mirror.tables.events import EVENTS, text_of
from spark_replication.mirror.tables.partitions import PARTITIONS
from spark_replication.mirror.tables.topics import TOPICS
from spark_replication.view.conditions import WORDS, conditions_of
from spark_replication.view.groups import STATES, summary_of

if TYPE_CHECKING:
    import pandas as pd


def _added(name: str, of_type: pa.DataType, comment: str) -> pa.Field:
    """A column that no table of the mirror has."""
    return pa.field(name, of_type, metadata={"comment": comment})


def _shared(table: Table[Any], *names: str) -> list[pa.Field]:
    return [table.schema.field(name) for name in names]


PARTITION_COLUMNS = pa.schema(
    [
        *_shared(PARTITIONS, "topic", "partition"),
        _added("condition", pa.string(), f"the worst that holds of it: {', '.join(WORDS.values())}"),
        *_shared(PARTITIONS, "leader", "leader_epoch", "isr", "elr", "replicas", "min_isr", "adding", "removing"),
        *_shared(PARTITIONS, "last_known_elr", "last_known_leader", "recovering", "elected_how", "start_at"),
        *_shared(PARTITIONS, "partition_epoch"),
    ]
)
BROKER_COLUMNS = pa.schema(_shared(BROKERS, "broker", "host", "port", "rack", "epoch", "state"))
TOPIC_COLUMNS = pa.schema(
    [
        *_shared(TOPICS, "topic", "partitions"),
        _added("columns", pa.string(), "of its schema, the newest version, as name:type; null: it has none"),
        *_shared(TOPICS, "schema_version", "settings", "topic_id"),
    ]
)
EVENT_COLUMNS = pa.schema(
    [
        *_shared(EVENTS, "at", "kind", "topic", "partition", "broker", "leader", "leader_epoch", "why", "because"),
        *_shared(EVENTS, "cause", "was", "became", "number"),
    ]
)
LAG_COLUMNS = pa.schema(
    [
        *_shared(PARTITIONS, "topic", "partition"),
        _added("follower", pa.int32(), "a replica that does not lead"),
        _added("leader", pa.int32(), "who tells the lag; null: there is none"),
        _added("records", pa.int64(), "how many of the leader's records it lacks; null: nobody knows"),
        _added("ms", pa.int64(), "for how long it has not had the whole log; null: nobody knows"),
        _added("in_sync", pa.bool_(), "it is in the ISR"),
    ]
)
GROUP_COLUMNS = pa.schema(
    [
        _added("group", pa.string(), "its name"),
        _added("state", pa.string(), "; ".join(f"{state}: {meaning}" for state, meaning in STATES.items())),
        _added("members", pa.int32(), "how many read for it"),
        _added("partitions", pa.int32(), "how many it reads, or has read"),
        _added("records", pa.int64(), "how many it has not committed, of the partitions of which that is known"),
        _added("unknown", pa.int32(), "of how many partitions it is not"),
        _added("committed_at", UTC_TIME, "when it committed last; null: never"),
    ]
)
POSITION_COLUMNS = pa.schema(
    [
        GROUP_COLUMNS.field("group"),
        *_shared(PARTITIONS, "topic", "partition"),
        _added("member", pa.string(), "the name of who reads it; null: nobody does"),
        _added("host", pa.string(), "where that member is"),
        _added("offset", pa.int64(), "where the group goes on; null: it has never committed here"),
        _added("end", pa.int64(), "what is committed in the log; null: its leader did not say"),
        _added("records", pa.int64(), "how many are there that the group has not committed; null: nobody knows"),
        _added("committed_at", UTC_TIME, "when the group committed last; null: never"),
    ]
)


class Frame(NamedTuple):
    schema: pa.Schema
    #: The values of each field of the schema. Times are in ms since 1970, lists are tuples.
    columns: Mapping[str, Sequence[Any]]

    def to_pandas(self) -> pd.DataFrame:
        """A frame of pandas. Integers that may be null stay integers (Int32, Int64), times have a zone (UTC), lists are
        tuples."""
        import pandas as pd

        return pd.DataFrame({field.name: _series(field.type, self.columns[field.name]) for field in self.schema})

    def to_arrow(self) -> pa.Table:
        return pa.table(
            [_array(field.type, self.columns[field.name]) for field in self.schema],
            schema=self.schema,
        )


def _series(of_type: pa.DataType, values: Sequence[Any]) -> pd.Series:
    import pandas as pd

    if pa.types.is_timestamp(of_type):
        return pd.to_datetime(pd.Series(values, dtype="Int64"), unit="ms", utc=True).astype("datetime64[ns, UTC]")
    names = {pa.int32(): "Int32", pa.int64(): "Int64", pa.string(): "string", pa.bool_(): "bool"}
    return pd.Series(values, dtype=names.get(of_type, "object"))


def _array(of_type: pa.DataType, values: Sequence[Any]) -> pa.Array:
    if pa.types.is_timestamp(of_type):
        return pa.array(values, pa.timestamp("ms", "UTC")).cast(of_type)
    return pa.array(values, of_type)


def partition_frame(topics: Iterable[TopicDescription]) -> Frame:
    found = [(topic.name, each) for topic in topics for each in topic.partitions]
    columns: dict[str, Sequence[Any]] = {
        "topic": [name for name, _ in found],
        "condition": [WORDS[conditions_of(each)[0]] for _, each in found],
        "elected_how": [each.elected for _, each in found],
        # Sorted, as the mirror has them.
        "isr": [tuple(sorted(each.isr)) for _, each in found],
        "elr": [tuple(sorted(each.elr)) for _, each in found],
    }
    for name in PARTITION_COLUMNS.names:
        if name not in columns:
            columns[name] = [getattr(each, name) for _, each in found]
    return Frame(PARTITION_COLUMNS, columns)


def broker_frame(cluster: ClusterDescription) -> Frame:
    found = cluster.brokers
    columns: dict[str, Sequence[Any]] = {
        "broker": [each.id for each in found],
        "state": ["shutting_down" if each.shutting_down else "live" for each in found],
    }
    columns |= {name: [getattr(each, name) for each in found] for name in ("host", "port", "rack", "epoch")}
    return Frame(BROKER_COLUMNS, columns)


def topic_frame(topics: Sequence[TopicDescription]) -> Frame:
    return Frame(
        TOPIC_COLUMNS,
        {
            "topic": [each.name for each in topics],
            "partitions": [len(each.partitions) for each in topics],
            "columns": [_columns(each.arrow_schema) if each.schema else None for each in topics],
            "schema_version": [each.schema_version for each in topics],
            "settings": [msgspec.json.encode(each.config, order="deterministic").decode() for each in topics],
            "topic_id": [each.topic_id for each in topics],
        },
    )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}:{field.type}" for field in schema)


def event_frame(events: Sequence[ToldEvent]) -> Frame:
    """A row for each event, in their order."""
    columns: dict[str, Sequence[Any]] = {
        "at": [each.at_ms for each in events],
        "was": [text_of(each.was) for each in events],
        "became": [text_of(each.became) for each in events],
    }
    for name in EVENT_COLUMNS.names:
        if name not in columns:
            columns[name] = [getattr(each, name) for each in events]
    return Frame(EVENT_COLUMNS, columns)


def lag_frame(topics: Iterable[TopicDescription], replicas: Iterable[ReplicaDescription]) -> Frame:
    """A row for each replica that does not lead, also if its lag is unknown."""
    told = {(each.topic, each.partition, each.broker): each.lags for each in replicas if each.leads}
    rows = []
    for topic in topics:
        for each in topic.partitions:
            lags = {} if each.leader is None else told.get((topic.name, each.partition, each.leader), {})
            for follower in each.replicas:
                if follower != each.leader:
                    lag = lags.get(follower)
                    records, ms = (None, None) if lag is None else (lag.records, lag.ms)
                    in_sync = follower in each.isr
                    rows.append((topic.name, each.partition, follower, each.leader, records, ms, in_sync))
    return _frame_of(LAG_COLUMNS, rows)


def group_frame(groups: Iterable[GroupDescription]) -> Frame:
    rows = [
        (each.group, each.state, each.members, each.partitions, each.behind, each.unknown, each.committed_ms)
        for each in map(summary_of, groups)
    ]
    return _frame_of(GROUP_COLUMNS, rows)


def position_frame(groups: Iterable[GroupDescription]) -> Frame:
    """A row for each partition that a group reads, or has read."""
    rows = []
    for group in groups:
        members = {each.member: (each.name, each.host) for each in group.members}
        for each in group.partitions:
            member = members.get(each.member or "", (None, None))
            told = (each.offset, each.end, each.lag, each.committed_ms)
            rows.append((group.group, each.topic, each.partition, *member, *told))
    return _frame_of(POSITION_COLUMNS, rows)


def _frame_of(schema: pa.Schema, rows: Sequence[tuple[Any, ...]]) -> Frame:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return Frame(schema, dict(zip(schema.names, columns, strict=True)))
