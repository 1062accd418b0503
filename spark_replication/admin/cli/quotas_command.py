"""`spark-replication quotas`: how much each may take."""

from __future__ import annotations

from contextlib import closing
from typing import get_args

import click

from spark_replication.admin.cli.groups import Group
from spark_replication.admin.cli.listing import Format, admin_at, bootstrap, output, security, show, together
from spark_replication.messages.quotas import QuotaKind
from spark_replication.transport.security.security import Security

_COLUMNS = ("principal", "quota", "limit")

#: Which quota, and where.
_of_one = together(
    bootstrap,
    security,
    click.argument("principal"),
    click.argument("quota", type=click.Choice(get_args(QuotaKind)), metavar="QUOTA"),
)


@click.group(cls=Group)
def quotas() -> None:
    """How much principals may take of each broker and of the controller."""


@quotas.command("list")
@bootstrap
@security
@output
def list_(bootstrap: str, security: Security, output: Format) -> None:
    """The quotas that are set. * is everybody who has none of its own."""
    with closing(admin_at(bootstrap, security)) as admin:
        told = admin.quotas()
    if not told.count:
        click.echo("clients do not prove who they are: quotas do not count", err=True)
    show(_COLUMNS, [(each.principal, each.kind, each.limit) for each in told.quotas], output=output)


@quotas.command("set", context_settings={"ignore_unknown_options": True})  # -5 is a limit, and refused as that
@_of_one
@click.argument("limit", type=click.IntRange(min=1))
def set_(bootstrap: str, security: Security, *, principal: str, quota: QuotaKind, limit: int) -> None:
    """Let PRINCIPAL take so much: `alice producer_byte_rate 10485760`, `* request_rate 500`, `* streams 20`.

    producer_byte_rate and consumer_byte_rate are bytes a second, request_rate is requests a second, connections
    are those of Flight over which it calls, and streams are producers, readers and streams of Flight that are open at a
    time. PRINCIPAL is the name of a token or in a certificate, or * for each that has no quota of its own."""
    with closing(admin_at(bootstrap, security)) as admin:
        admin.set_quota(principal, quota, limit)


@quotas.command()
@_of_one
def remove(bootstrap: str, security: Security, *, principal: str, quota: QuotaKind) -> None:
    """Take back what `set` set: then the quota of * holds, if there is one."""
    with closing(admin_at(bootstrap, security)) as admin:
        admin.set_quota(principal, quota, None)
