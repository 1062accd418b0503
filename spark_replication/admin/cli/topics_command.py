"""`spark-replication topics`: what there is, and `topics widen`, which gives one more columns."""

from __future__ import annotations

from contextlib import closing

import click
import pyarrow as pa

from spark_replication.admin.cli.listing import Format, bootstrap, bootstrap_of_group, output, security, show
from spark_replication.client.admin import Admin
from spark_replication.errors import InvalidRequest
from spark_replication.model import TopicConfig
from spark_replication.storage.batches import topic_schema
from spark_replication.transport.security import Security


@click.group(invoke_without_command=True)
@bootstrap_of_group
@security
@output
@click.pass_context
def topics(context: click.Context, bootstrap: str | None, output: Format, security: Security) -> None:
    """The topics, how large and how well replicated they are."""
    if context.invoked_subcommand is None and bootstrap is None:
        raise click.MissingParameter(ctx=context, param_hint="'--bootstrap' / '-b'", param_type="option")
    if bootstrap is not None and context.invoked_subcommand is not None:
        context.default_map = {context.invoked_subcommand: {"bootstrap": bootstrap}}
    elif bootstrap is not None:
        _show_topics(bootstrap, output, security)


def _show_topics(bootstrap: str, output: Format, security: Security) -> None:
    with closing(Admin(bootstrap, security=security)) as admin:
        rows = [
            (
                topic.name,
                len(topic.partitions),
                max((len(p.replicas) for p in topic.partitions), default=0),
                sum(p.leader is None for p in topic.partitions),
                sum(len(p.isr) < len(p.replicas) for p in topic.partitions),
                topic.schema_version,
                topic.topic_id,
            )
            for topic in admin.describe_topics()
        ]
    columns = ("topic", "partitions", "replicas", "leaderless", "under_replicated", "schema_version", "topic_id")
    show(columns, rows, output=output)


@topics.command()
@bootstrap
@security
@click.argument("topic")
@click.argument("columns", nargs=-1, required=True, metavar="NAME:TYPE…")
def widen(bootstrap: str, security: Security, topic: str, columns: tuple[str, ...]) -> None:
    """Add nullable columns, such as region:string, at the end of a topic's schema; one that is there already counts."""
    with closing(Admin(bootstrap, security=security)) as admin:
        (found,) = admin.describe_topics([topic])
        # What has no schema has nothing to widen, and the controller says so.
        before = topic_schema(TopicConfig(schema=found.schema)).newest if found.schema else pa.schema([])
        schema = with_columns(before, columns)
        version = admin.widen_topic(topic, schema).schema_version
    click.echo(f"{topic} has the columns {', '.join(schema.names)}: version {version} of its schema")


def with_columns(schema: pa.Schema, columns: tuple[str, ...]) -> pa.Schema:
    for text in columns:
        name, colon, kind = text.rpartition(":")
        try:
            field = pa.field(name, pa.type_for_alias(kind))
        except ValueError as error:
            raise InvalidRequest(f"{text!r}: {error}. Name one such as int64, string or timestamp[us]") from error
        if not colon or not name:
            raise InvalidRequest(f"{text!r} is not of the form NAME:TYPE, such as region:string")
        schema = schema if field in list(schema) else schema.append(field)
    return schema
