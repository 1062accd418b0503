"""`spark-replication groups`: who reads what, and how far behind; and where a group goes on, if a person says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any

import click

from spark_replication.admin.cli.groups import Listing
from spark_replication.admin.cli.listing import (
    Format,
    admin_at,
    bootstrap,
    moment,
    optional_bootstrap,
    output,
    own_bootstrap,
    security,
    show,
    show_json,
    watched,
)
from spark_replication.client.asking.admin import Admin
from spark_replication.client.asking.groups import (
    GroupDescription,
    GroupMemberDescription,
    GroupPartitionDescription,
    unknown_group,
)
from spark_replication.model import TimeMs
from spark_replication.process.logs import harmless
from spark_replication.transport.security.security import Security
from spark_replication.view.groups import most_behind_first, place_by_lag, summary_of

_COLUMNS = ("group", "state", "members", "partitions", "lag_records", "lag_ms", "oldest_commit")
_OF_A_MEMBER = ("name", "host", "partitions", "hands_over", "silent_ms", "connected", "member")
_OF_A_PARTITION = ("topic", "partition", "position", "end", "lag_records", "lag_ms", "committed", "member")
_OF_A_LAG = ("group", "topic", "partition", "position", "end", "lag_records", "lag_ms", "member")
_OF_A_CHANGE = ("topic", "partition", "before", "after", "skipped", "read_again")


@click.group(cls=Listing, invoke_without_command=True)
@optional_bootstrap
@security
@output
@click.pass_context
@watched
def groups(context: click.Context, bootstrap: str | None, output: Format, security: Security) -> None:
    """The consumer groups, and how far each is behind: the most first.

    `sr.Consumer(…, group=…)` is a member of one."""
    if (bootstrap := own_bootstrap(context, bootstrap)) is not None:
        with closing(admin_at(bootstrap, security)) as admin:
            found = {each.group: each for each in admin.groups()}
        listed = most_behind_first(map(summary_of, found.values()))
        show(_COLUMNS, (_row(found[each.group]) for each in listed), output=output)


def _row(group: GroupDescription) -> tuple[Any, ...]:
    commits = [each.committed_ms for each in group.partitions if each.committed_ms is not None]
    oldest = _at(min(commits, default=None))
    return group.group, group.state, len(group.members), len(group.partitions), group.lag, group.lag_ms, oldest


def _at(time_ms: TimeMs | None) -> datetime | None:
    return None if time_ms is None else datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms)


@groups.command()
@bootstrap
@security
@output
@watched
@click.argument("group")
def describe(bootstrap: str, security: Security, output: Format, group: str) -> None:
    """All about GROUP: its members, with what each reads and has to hand over, and how far it is in each partition."""
    with closing(admin_at(bootstrap, security)) as admin:
        found = _named(admin, group)
    members = [_of_member(each) for each in found.members]
    partitions = [_of_partition(found, each, _OF_A_PARTITION) for each in found.partitions]
    if output == "json":
        show_json(
            {
                "group": found.group,
                "state": found.state,
                "lag_records": found.lag,
                "lag_ms": found.lag_ms,
                "members": [dict(zip(_OF_A_MEMBER, each, strict=True)) for each in members],
                "partitions": [dict(zip(_OF_A_PARTITION, each, strict=True)) for each in partitions],
            }
        )
        return
    behind = "how far behind is not known" if found.lag is None else f"{found.lag} records behind"
    click.echo(harmless(f"{found.group}  {found.state}, {len(members)} members, {behind}"))
    show(_OF_A_MEMBER, members, output=output)
    show(_OF_A_PARTITION, partitions, output=output)


@groups.command()
@bootstrap
@security
@output
@watched
@click.argument("group", required=False)
def lag(bootstrap: str, security: Security, output: Format, group: str | None) -> None:
    """How far GROUP, or each, is behind in each partition: the most first."""
    with closing(admin_at(bootstrap, security)) as admin:
        found = admin.groups() if group is None else [_named(admin, group)]
    of_all = [(own, each) for own in found for each in own.partitions]
    of_all.sort(key=lambda of: place_by_lag(of[1].lag))
    show(_OF_A_LAG, (_of_partition(own, each, _OF_A_LAG) for own, each in of_all), output=output)


def _of_member(member: GroupMemberDescription) -> list[Any]:
    told = {
        "name": member.name,
        "host": member.host,
        "partitions": [*map(str, member.partitions)],
        "hands_over": [*map(str, member.hands_over)],
        "silent_ms": member.silent_ms,
        "connected": member.is_connected,
        "member": member.member,
    }
    return [told[name] for name in _OF_A_MEMBER]


def _of_partition(group: GroupDescription, partition: GroupPartitionDescription, columns: Iterable[str]) -> list[Any]:
    names = {each.member: each.name for each in group.members}
    told = {
        "group": group.group,
        "topic": partition.topic,
        "partition": partition.partition,
        "position": partition.offset,
        "end": partition.end,
        "lag_records": partition.lag,
        "lag_ms": partition.lag_ms,
        "committed": _at(partition.committed_ms),
        "member": None if partition.member is None else names[partition.member],
    }
    return [told[name] for name in columns]


def _destination(command: Callable[..., None]) -> Callable[..., None]:
    """Pass `to` to the command, in the terms of Admin.reset_group, from one of these options."""

    @click.option("--to-offset", type=click.IntRange(min=0), help="the record of this offset is the next")
    @click.option("--to-earliest", is_flag=True, help="to the oldest record that is kept")
    @click.option("--to-latest", is_flag=True, help="behind the last record")
    @click.option("--to-time", callback=moment, help="to what was appended then or later, as 2026-11-21T10:00:00Z")
    @click.option("--shift", type=int, metavar="RECORDS", help="by so many from where it is, back if below 0")
    @wraps(command)
    def with_destination(
        *,
        to_offset: int | None,
        to_earliest: bool,
        to_latest: bool,
        to_time: datetime | None,
        shift: int | None,
        **others: Any,
    ) -> None:
        places = ["earliest"] * to_earliest + ["latest"] * to_latest
        shifts = [] if shift is None else [f"{shift:+}"]
        named = [*(each for each in (to_offset, to_time) if each is not None), *places, *shifts]
        if len(named) != 1:
            raise click.UsageError("name one of --to-offset, --to-earliest, --to-latest, --to-time and --shift")
        command(to=named[0], **others)

    return with_destination


@groups.command()
@bootstrap
@security
@output
@click.argument("group")
@click.option("--topic", help="this one only; a group that nobody knows is made for it")
@click.option(
    "--partition", "-p", "partitions", multiple=True, type=click.IntRange(min=0), help="this one of the topic"
)
@_destination
@click.option("--dry-run", is_flag=True, help="show what would change, and change nothing: do this first")
def reset(
    bootstrap: str,
    security: Security,
    output: Format,
    group: str,
    *,
    topic: str | None,
    partitions: tuple[int, ...],
    to: int | str | datetime,
    dry_run: bool,
) -> None:
    """Set where GROUP, which has no members, goes on in each partition of its topics, and show what that changes: how
    many records it then leaves out, or reads again.

    Ask with --dry-run first. What is reset is taken back by another reset only."""
    if partitions and topic is None:
        raise click.UsageError("a partition is of one topic: name that with --topic, too")
    with closing(admin_at(bootstrap, security)) as admin:
        found = admin.reset_group(group, topic, partitions or None, to=to, dry_run=dry_run)
    show(_OF_A_CHANGE, ([getattr(each, name) for name in _OF_A_CHANGE] for each in found), output=output)
    if dry_run:
        click.echo("nothing is changed: without --dry-run it is", err=True)


@groups.command()
@bootstrap
@security
@click.argument("group")
@click.option("--yes", is_flag=True, help="without asking")
def delete(bootstrap: str, security: Security, group: str, *, yes: bool) -> None:
    """Forget GROUP, which has no members, and where it was: it begins anew if it is used again."""
    with closing(admin_at(bootstrap, security)) as admin:
        _named(admin, group)
        if not yes:
            click.confirm(f"delete {group} with all its positions?", abort=True, err=True)
        admin.delete_group(group)
    click.echo(f"{group} is deleted")


def _named(admin: Admin, name: str) -> GroupDescription:
    found = admin.groups([name])
    if not found:
        raise unknown_group(name, [each.group for each in admin.groups()])
    return found[0]
