"""`spark-replication acls`: who may do what."""

from __future__ import annotations

from contextlib import closing
from typing import Any, get_args

import click

from spark_replication.admin.cli.groups import Group
from spark_replication.admin.cli.listing import Format, admin_at, bootstrap, output, security, show, together
from spark_replication.messages.acls import DENY, FROM, Kind, Right
from spark_replication.transport.security.security import Security

_COLUMNS = ("principal", "effect", "right", "on", "name", "from")

#: Which ACL, and where.
_of_one = together(
    bootstrap,
    security,
    click.argument("principal"),
    click.argument("right", type=click.Choice(get_args(Right)), metavar="RIGHT"),
    click.argument("kind", type=click.Choice(get_args(Kind)), metavar="[topic|prefix|cluster]"),
    click.argument("name", required=False, default=""),
    click.option("--deny", is_flag=True, help="that it is denied, whatever else is granted"),
    click.option("--from", "host", default="", metavar="HOST", help="for who calls from this address or network alone"),
)


@click.group(cls=Group)
def acls() -> None:
    """Who may do what, once security.super.users is set."""


@acls.command("list")
@bootstrap
@security
@output
def list_(bootstrap: str, security: Security, output: Format) -> None:
    """What each principal may do. Super users may do everything that clients may."""
    with closing(admin_at(bootstrap, security)) as admin:
        told = admin.acls()
    if not told.super_users:
        click.echo("security.super.users is empty: ACLs do not count", err=True)
    rows = [(name, "allow", "everything", "", "", "") for name in told.super_users]
    rows += [(each.principal, each.effect, each.right, each.kind, each.name, each.host) for each in told.acls]
    show(_COLUMNS, rows, output=output)


@acls.command()
@_of_one
def add(bootstrap: str, security: Security, **words: Any) -> None:
    """Let PRINCIPAL do something: `alice write topic orders`, `bob read prefix orders-`, `carol alter cluster`. With
    --deny it may not, whatever else is granted to it or to everybody.

    PRINCIPAL is the name of a token or in a certificate, or * for everybody who is let in."""
    with closing(admin_at(bootstrap, security)) as admin:
        admin.add_acls(_text(**words))


@acls.command()
@_of_one
def remove(bootstrap: str, security: Security, **words: Any) -> None:
    """Take back what `add` gave, or denied: with the same words and options."""
    with closing(admin_at(bootstrap, security)) as admin:
        admin.remove_acls(_text(**words))


def _text(*, deny: bool, principal: str, right: Right, kind: Kind, name: str, host: str) -> str:
    place = f"{FROM} {host}" if host else ""
    return " ".join(filter(None, (DENY if deny else "", principal, right, kind, name, place)))
