"""`spark-replication acls`: who may do what."""

from __future__ import annotations

from contextlib import closing
from typing import get_args

import click

from spark_replication.admin.cli.listing import Format, bootstrap, output, security, show, together
from spark_replication.client.admin import Admin
from spark_replication.messages.acls import Kind, Right
from spark_replication.transport.security import Security

_COLUMNS = ("principal", "right", "on", "name")

#: Which ACL, and where.
_of_one = together(
    bootstrap,
    security,
    click.argument("principal"),
    click.argument("right", type=click.Choice(get_args(Right))),
    click.argument("kind", type=click.Choice(get_args(Kind)), metavar="[topic|prefix|cluster]"),
    click.argument("name", required=False, default=""),
)


@click.group()
def acls() -> None:
    """Who may do what, once security.super.users is set."""


@acls.command("list")
@bootstrap
@security
@output
def list_(bootstrap: str, security: Security, output: Format) -> None:
    """What each principal may do. Super users may do everything that clients may."""
    with closing(Admin(bootstrap, security=security)) as admin:
        told = admin.acls()
    if not told.super_users:
        click.echo("security.super.users is empty: ACLs do not count", err=True)
    rows: list[tuple[str, str, str, str]] = [(name, "everything", "", "") for name in told.super_users]
    show(_COLUMNS, [*rows, *((each.principal, each.right, each.kind, each.name) for each in told.acls)], output=output)


@acls.command()
@_of_one
def add(bootstrap: str, security: Security, *, principal: str, right: Right, kind: Kind, name: str) -> None:
    """Let PRINCIPAL do something: `alice write topic orders`, `bob read prefix orders-`, `carol alter cluster`.

    PRINCIPAL is the name of a token or in a certificate, or * for everybody who is let in."""
    with closing(Admin(bootstrap, security=security)) as admin:
        admin.add_acls(_text(principal, right, kind, name))


@acls.command()
@_of_one
def remove(bootstrap: str, security: Security, *, principal: str, right: Right, kind: Kind, name: str) -> None:
    """Take back what `add` gave."""
    with closing(Admin(bootstrap, security=security)) as admin:
        admin.remove_acls(_text(principal, right, kind, name))


def _text(*words: str) -> str:
    return " ".join(filter(None, words))
