"""`spark-replication brokers`: which brokers live, what each has, and `brokers drain`, after which one may stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import click

from spark_replication.admin.cli.groups import Listing
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
from spark_replication.admin.cli.reassign_command import apply_and_wait, wait
from spark_replication.client.asking.admin import BrokerDescription, TopicDescription
from spark_replication.transport.security.security import Security

_OF_A_BROKER = ("host", "port", "replication_port", "rack", "epoch", "shutting_down")
_COLUMNS = ("id", "state", "leads", "replicas", "not_in_sync", *_OF_A_BROKER)


@click.group(cls=Listing, invoke_without_command=True)
@optional_bootstrap
@security
@output
@click.pass_context
@watched
def brokers(context: click.Context, bootstrap: str | None, output: Format, security: Security) -> None:
    """The brokers, and how many partitions each leads and has a replica of: those that are gone first."""
    if (bootstrap := own_bootstrap(context, bootstrap)) is not None:
        with closing(admin_at(bootstrap, security)) as admin:
            rows = _rows(admin.describe_cluster().brokers, admin.describe_topics())
        show(_COLUMNS, rows, output=output)


def _rows(live: Sequence[BrokerDescription], topics: Sequence[TopicDescription]) -> list[list[Any]]:
    leads: Counter[int] = Counter()
    holds: Counter[int] = Counter()
    lacks: Counter[int] = Counter()
    for partition in (each for topic in topics for each in topic.partitions):
        holds.update(partition.replicas)
        lacks.update(set(partition.replicas) - set(partition.isr))
        if partition.leader is not None:
            leads[partition.leader] += 1
    known = {broker.id: broker for broker in live}

    def row(broker: int) -> list[Any]:
        found = known.get(broker)
        state = "gone" if found is None else "shutting down" if found.shutting_down else "live"
        told = [getattr(found, name, None) for name in _OF_A_BROKER]
        return [broker, state, leads[broker], holds[broker], lacks[broker], *told]

    return [row(broker) for broker in sorted(known.keys() | holds.keys(), key=lambda each: (each in known, each))]


@brokers.command()
@bootstrap
@security
@wait
@click.option("--dry-run", is_flag=True, help="the plan alone: nothing moves")
@click.argument("broker", type=int)
def drain(bootstrap: str, security: Security, broker: int, *, wait_s: float | None, dry_run: bool) -> None:
    """Move every replica away from BROKER. With --wait it says when the broker has nothing left, and may be stopped.

    `reassign status` says how far it is, `reassign cancel --all` takes it back."""
    with closing(admin_at(bootstrap, security)) as admin:
        plan = admin.plan_reassignment(without=(broker,))
        click.echo(str(plan))
        if not dry_run:
            apply_and_wait(admin, plan, wait_s)
            if wait_s is not None:
                click.echo(f"broker {broker} has no replica left: it may be stopped")
