"""`spark-replication topics`: lists topics, and creates, changes and deletes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from itertools import chain

import click
import pyarrow as pa

from spark_replication.admin.cli.describe_command import describe
from spark_replication.admin.cli.groups import Listing
from spark_replication.admin.cli.head_command import head, tail
from spark_replication.admin.cli.listing import (
    Format,
    admin_at,
    bootstrap,
    optional_bootstrap,
    output,
    own_bootstrap,
    security,
    show,
    watched,
)
from spark_replication.admin.schema_texts import schema_from, with_columns
from spark_replication.client.asking.admin import TopicDescription
from spark_replication.config import parse_assignment, parse_change
from spark_replication.model import Scalar, TopicConfig
from spark_replication.storage.format.batches import topic_schema
from spark_replication.transport.security.security import Security
from spark_replication.view.conditions import conditions_of

_COLUMNS = (
    *("topic", "partitions", "replicas", "leaderless", "under_min_isr", "under_replicated"),
    *("schema_version", "topic_id"),
)

MIN_INSYNC_REPLICAS = "min.insync.replicas"

_settings = click.argument("assignments", nargs=-1, metavar="NAME=VALUE…")


@click.group(cls=Listing, invoke_without_command=True)
@optional_bootstrap
@security
@output
@click.pass_context
@watched
def topics(context: click.Context, bootstrap: str | None, output: Format, security: Security) -> None:
    """The topics, how large and how well replicated they are: the worst first."""
    if (bootstrap := own_bootstrap(context, bootstrap)) is not None:
        with closing(admin_at(bootstrap, security)) as admin:
            rows = [_row(topic) for topic in admin.describe_topics()]
        show(_COLUMNS, sorted(rows, key=lambda row: (-row[3], -row[4], -row[5], row[0])), output=output)


def _row(topic: TopicDescription) -> tuple[str, int, int, int, int, int, int, str]:
    counts = Counter(chain.from_iterable(map(conditions_of, topic.partitions)))
    return (
        topic.name,
        len(topic.partitions),
        max((len(each.replicas) for each in topic.partitions), default=0),
        counts["leaderless"],
        counts["under_min_isr"],
        counts["under_replicated"],
        topic.schema_version,
        topic.topic_id,
    )


@topics.command()
@bootstrap
@security
@click.argument("topic")
@click.option(
    "--schema",
    required=True,
    metavar="COLUMNS|FILE",
    help="id:int64,at:timestamp[us],amount:float64, or a Parquet, Arrow or JSON file (JSON Schema, or Spark's)",
)
@click.option("--partitions", "-p", type=click.IntRange(min=1), help="by default as many as the cluster says")
@click.option("--replication-factor", "-r", type=click.IntRange(min=1), help="by default as the cluster says")
@_settings
def create(
    bootstrap: str,
    security: Security,
    topic: str,
    *,
    schema: str,
    partitions: int | None,
    replication_factor: int | None,
    assignments: tuple[str, ...],
) -> None:
    """Make TOPIC, with settings of its own such as retention.ms=86400000; it is there once this returns."""
    given = {name: value for each in assignments for name, value in parse_assignment(each).items()}
    columns = schema_from(schema)
    with closing(admin_at(bootstrap, security)) as admin:
        made = admin.create_topic(topic, columns, partitions, replication_factor, given)
    replicas = max(len(each.replicas) for each in made.partitions)
    click.echo(f"{topic} has {len(made.partitions)} partitions of {replicas} replicas each")
    _tell_of_the_least(made, given)


def _tell_of_the_least(topic: TopicDescription, given: Mapping[str, Scalar | None]) -> None:
    """A min.insync.replicas above the number of replicas holds as that number (KIP-966), which few have in mind."""
    least, replicas = given.get(MIN_INSYNC_REPLICAS), min(len(each.replicas) for each in topic.partitions)
    if isinstance(least, int) and least > replicas:
        click.echo(
            f"warning: {topic.name} has {replicas} replicas, fewer than {MIN_INSYNC_REPLICAS}={least}: acks=all waits "
            f"for all {replicas}, and is refused while one is away. Set less than that, or give it more replicas: "
            "`spark-replication guide moves`",
            err=True,
        )


@topics.command()
@bootstrap
@security
@click.argument("topic")
@click.option("--yes", is_flag=True, help="without asking")
def delete(bootstrap: str, security: Security, topic: str, *, yes: bool) -> None:
    """End TOPIC, with all its records."""
    if not yes:
        click.confirm(f"delete {topic} with all its records?", abort=True, err=True)
    with closing(admin_at(bootstrap, security)) as admin:
        admin.delete_topic(topic)
    click.echo(f"{topic} is deleted")


@topics.command()
@bootstrap
@security
@click.argument("topic")
@_settings
def configure(bootstrap: str, security: Security, topic: str, assignments: tuple[str, ...]) -> None:
    """Give TOPIC settings of its own, such as min.insync.replicas=2; NAME= takes its own one away.

    `spark-replication settings` says which a topic can have."""
    if not assignments:
        raise click.UsageError("Name a setting and its value, such as retention.ms=86400000.")
    given = {name: value for each in assignments for name, value in parse_change(each).items()}
    with closing(admin_at(bootstrap, security)) as admin:
        admin.configure(topic, given)
        click.echo(f"{topic} is configured: {', '.join(assignments)}")
        if MIN_INSYNC_REPLICAS in given:
            (found,) = admin.describe_topics([topic])
            _tell_of_the_least(found, given)


@topics.command(name="add-partitions", context_settings={"ignore_unknown_options": True})  # -1 is a number
@bootstrap
@security
@click.argument("topic")
@click.argument("count", type=click.IntRange(min=1))
def add_partitions(bootstrap: str, security: Security, topic: str, count: int) -> None:
    """Give TOPIC partitions until it has COUNT. Keys go to other partitions from then on."""
    with closing(admin_at(bootstrap, security)) as admin:
        found = admin.add_partitions(topic, count)
    click.echo(f"{topic} has {len(found.partitions)} partitions")


@topics.command(name="remove-partitions")
@bootstrap
@security
@click.argument("topic")
@click.argument("partitions", nargs=-1, required=True, type=click.IntRange(min=0))
@click.option("--yes", is_flag=True, help="without asking")
def remove_partitions(
    bootstrap: str, security: Security, topic: str, partitions: tuple[int, ...], *, yes: bool
) -> None:
    """Take the last PARTITIONS (by number) from TOPIC, with all their records."""
    if not yes:
        named = ", ".join(f"{topic}-{number}" for number in partitions)
        click.confirm(f"remove {named} with all their records?", abort=True, err=True)
    with closing(admin_at(bootstrap, security)) as admin:
        admin.remove_partitions(topic, partitions)
        (found,) = admin.describe_topics([topic])
    click.echo(f"{topic} has {len(found.partitions)} partitions")


@topics.command()
@bootstrap
@security
@click.argument("topic")
@click.argument("columns", nargs=-1, required=True, metavar="NAME:TYPE…")
def widen(bootstrap: str, security: Security, topic: str, columns: tuple[str, ...]) -> None:
    """Add nullable columns, such as region:string, at the end of a topic's schema; one that is there already counts."""
    with closing(admin_at(bootstrap, security)) as admin:
        (found,) = admin.describe_topics([topic])
        # A topic without a schema has nothing to widen, and the controller says so.
        before = topic_schema(TopicConfig(schema=found.schema)).newest if found.schema else pa.schema([])
        schema = with_columns(before, columns)
        version = admin.widen_topic(topic, schema).schema_version
    click.echo(f"{topic} has the columns {', '.join(schema.names)}: version {version} of its schema")


topics.add_command(describe)
topics.add_command(head)
topics.add_command(tail)
