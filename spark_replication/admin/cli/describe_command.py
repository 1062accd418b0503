"""`spark-replication topics describe`: the leader of each partition, the lag of its followers, and its last event."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import click

from spark_replication.admin.cli.listing import Format, admin_at, bootstrap, output, security, show, show_json, watched
from spark_replication.client.asking.admin import Admin, PartitionDescription, TopicDescription
from spark_replication.client.asking.replica_sizes import ReplicaDescription
from spark_replication.client.asking.told_settings import CONTROLLER, table_uri_of
from spark_replication.config import TOPIC_SETTINGS
from spark_replication.errors import ReplicationError
from spark_replication.messages.descriptions import TableLag
from spark_replication.messages.mirroring import ToldEvent
from spark_replication.messages.observing import ToldSettings
from spark_replication.process.logs import harmless
from spark_replication.transport.security.security import Security
from spark_replication.view.table_lags import WORDS, topic_table_lag

_COLUMNS = (
    *("partition", "leader", "leader_epoch", "isr", "elr", "replicas", "min_isr", "start_at"),
    *("high_watermark", "records", "bytes", "lag_records", "lag_ms"),
    *("last_known_elr", "last_known_leader", "last_change", "because"),
)
#: Those of a topic that is a table stand before these.
_LAST = _COLUMNS.index("lag_records")


@click.command()
@bootstrap
@security
@output
@watched
@click.argument("names", nargs=-1, required=True, metavar="TOPIC…")
def describe(bootstrap: str, security: Security, output: Format, names: tuple[str, ...]) -> None:
    """All about topics: schema, settings, and of each partition who leads, who is in sync or eligible (ELR), how far
    each follower is behind, and the last change with what set it off. Of a topic that is a table where that lies, and
    how far it is behind.

    Lag is told by leaders, as follower=records and follower=ms: what they have not heard is unknown."""
    with closing(admin_at(bootstrap, security)) as admin:
        found = admin.describe_topics(names)
        replicas = admin.replicas(names)
        events = _last_events(admin, names)
        in_force = {topic.name: _in_force(admin, topic.name) for topic in found}
    told = [
        _told(topic, [each for each in replicas if each.topic == topic.name], events, in_force[topic.name])
        for topic in found
    ]
    if output == "json":
        show_json(told)
        return
    for topic in told:
        click.echo(
            harmless(f"{topic['topic']}  topic_id {topic['topic_id']}, version {topic['schema_version']} of its schema")
        )
        click.echo(harmless(f"schema    {', '.join(topic['schema']) or 'none'}"))
        click.echo(
            harmless(f"settings  {', '.join(f'{k}={v}' for k, v in topic['settings'].items()) or 'none of its own'}")
        )
        for each in topic["settings_in_force"]:
            click.echo(harmless(f"          {each['setting']}={each['value']}  ({each['from']})"))
        if topic["settings_unknown"]:
            click.echo(harmless(f"          which values hold is not known: {topic['settings_unknown']}"))
        columns: Sequence[str] = _COLUMNS
        if topic["table"] is not None:
            click.echo(harmless(f"table     {_sentence(topic['table'])}"))
            columns = (*_COLUMNS[:_LAST], *WORDS, *_COLUMNS[_LAST:])
        rows = ([_cell(name, each[name]) for name in columns] for each in topic["partitions"])
        show(columns, rows, output="table")


def _told(
    topic: TopicDescription,
    replicas: Sequence[ReplicaDescription],
    events: dict[str, ToldEvent],
    in_force: ToldSettings | ReplicationError,
) -> dict[str, Any]:
    table = _table_of(topic, replicas, in_force)
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "schema_version": topic.schema_version,
        "schema": [f"{field.name}:{field.type}" for field in topic.arrow_schema] if topic.schema else [],
        "settings": topic.config,
        "settings_in_force": [
            {"setting": each.name, "value": each.value, "from": each.origin}
            for each in (in_force.settings if isinstance(in_force, ToldSettings) else ())
            if each.name in TOPIC_SETTINGS
        ],
        "settings_unknown": "" if isinstance(in_force, ToldSettings) else str(in_force),
        "table": table,
        "partitions": [
            _of_partition(
                each,
                [replica for replica in replicas if replica.partition == each.partition],
                events.get(f"{topic.name}-{each.partition}"),
                is_table=table is not None,
            )
            for each in topic.partitions
        ],
    }


def _of_partition(
    partition: PartitionDescription,
    replicas: Iterable[ReplicaDescription],
    event: ToldEvent | None,
    *,
    is_table: bool,
) -> dict[str, Any]:
    leader = next((each for each in replicas if each.leads and each.broker == partition.leader), None)
    lags = {} if leader is None else leader.lags
    return {
        "partition": partition.partition,
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "isr": partition.isr,
        "elr": partition.elr,
        "replicas": partition.replicas,
        "min_isr": partition.min_isr,
        "start_at": partition.start_at,
        "last_known_elr": partition.last_known_elr,
        "last_known_leader": partition.last_known_leader,
        "high_watermark": None if leader is None else leader.high_watermark,
        "records": None if leader is None else leader.high_watermark - leader.log_start,
        "bytes": None if leader is None else leader.bytes,
        "lag_records": {str(broker): lag.records for broker, lag in sorted(lags.items())},
        "lag_ms": {str(broker): lag.ms for broker, lag in sorted(lags.items())},
        "last_change": None if event is None else {"at_ms": event.at_ms, "kind": event.kind, "changes": event.changes},
        "because": None if event is None else event.because,
        **(_of_table(None if leader is None else leader.table) if is_table else {}),
    }


def _of_table(lag: TableLag | None) -> dict[str, Any]:
    if lag is None:
        return dict.fromkeys(WORDS)
    return {
        "table_end": lag.end,
        "rows_behind": lag.rows,
        "seconds_behind": None if lag.ms is None else lag.ms / 1_000,
        "held_back_bytes": lag.held_back_bytes,
    }


def _table_of(
    topic: TopicDescription, replicas: Iterable[ReplicaDescription], in_force: ToldSettings | ReplicationError
) -> dict[str, Any] | None:
    """None if the topic is no table."""
    told = {(each.partition, each.broker): each.table for each in replicas if each.leads}
    lags = [told.get((each.partition, each.leader)) for each in topic.partitions if each.leader is not None]
    lags += [None for each in topic.partitions if each.leader is None]
    if not topic.config.get("table", any(each is not None for each in lags)):
        return None
    found = topic_table_lag(lags)
    return {
        "where": table_uri_of(in_force, topic.name) if isinstance(in_force, ToldSettings) else None,
        "rows_behind": found.rows_behind,
        "seconds_behind": found.seconds_behind,
        "held_back_bytes": found.held_back_bytes,
        "partitions_not_known": found.not_known,
    }


def _sentence(table: dict[str, Any]) -> str:
    def of(name: str) -> str:
        return f"{WORDS[name]} {'not known' if table[name] is None else table[name]}"

    unknown = table["partitions_not_known"]
    where = table["where"] or "where it lies is not known"
    told = ", ".join((where, of("rows_behind"), of("seconds_behind"), f"{of('held_back_bytes')} bytes"))
    return told + (f"; where it ends is not known of {unknown} of its partitions" if unknown else "")


def _cell(name: str, value: Any) -> Any:
    if name == "last_change" and value is not None:
        at = datetime.fromtimestamp(value["at_ms"] / 1_000, UTC)
        return f"{at:%Y-%m-%d %H:%M:%S} {value['kind']}"
    if isinstance(value, dict):
        return [f"{broker}={'unknown' if lag is None else lag}" for broker, lag in value.items()]
    return value


def _in_force(admin: Admin, topic: str) -> ToldSettings | ReplicationError:
    """As the controller has them in force. One that does not answer keeps nobody from the rest."""
    try:
        return admin.settings(CONTROLLER, topic=topic)[CONTROLLER]
    except ReplicationError as error:
        return error


def _last_events(admin: Admin, names: Sequence[str]) -> dict[str, ToldEvent]:
    """The last event of each partition, as far as the newest events tell. Empty without the mirror."""
    try:
        found = admin.events(topics=names, last=1_000, once=True)
    except ReplicationError:
        return {}
    return {each.subject: each for each in found if each.subject is not None}
