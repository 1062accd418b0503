"""`spark-replication reassign`: plan a move of replicas, look at it, apply it, see how far it is, or take it back."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, TextIO

import click

from spark_replication.admin.cli.groups import Group
from spark_replication.admin.cli.listing import (
    Format,
    admin_at,
    bootstrap,
    output,
    security,
    show,
    tell_refused,
    watched,
)
from spark_replication.admin.cli.progress_line import ProgressLine
from spark_replication.client.asking.admin import Admin
from spark_replication.client.asking.waves import wait_in_waves
from spark_replication.core.moves.moves import BYTES_PER_SECOND, Plan, size_text
from spark_replication.model import number_of
from spark_replication.process.logs import harmless
from spark_replication.transport.security.security import Security

_COLUMNS = ("partition", "replicas", "adding", "removing", "isr", "bytes_left", "seconds_left")


wait = click.option("--wait", "wait_s", type=click.FloatRange(min=0), metavar="SECONDS", help="until all of it is done")


class Brokers(click.ParamType[tuple[int, ...]]):
    """Ids of brokers, such as 1,2,3."""

    name = "brokers"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        found = []
        for part in str(value).split(","):
            broker = number_of(part.strip())
            if broker is None:
                self.fail(f"{value!r} is not a list of broker ids such as 1,2,3", param, ctx)
            found.append(broker)
        return tuple(found)


class Target(click.ParamType[tuple[str, tuple[int, ...]]]):
    """A partition and its replicas, such as orders-3=1,2,3."""

    name = "target"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[int, ...]]:
        partition, equals, brokers = str(value).partition("=")
        if not equals:
            self.fail(f"{value!r} is not of the form orders-3=1,2,3", param, ctx)
        return partition, Brokers().convert(brokers, param, ctx)


class Successor(click.ParamType[tuple[int, int]]):
    """A broker and the one in its place, such as 3=4."""

    name = "successor"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        left, _, right = str(value).partition("=")
        old, new = number_of(left.strip()), number_of(right.strip())
        if old is None or new is None:
            self.fail(f"{value!r} is not of the form 3=4", param, ctx)
        return old, new


@click.group(cls=Group)
def reassign() -> None:
    """Move replicas to other brokers."""


@reassign.command()
@bootstrap
@security
@output
@click.option("--over", type=Brokers(), metavar="IDS", help="spread evenly over these brokers, such as 1,2,3")
@click.option("--add", type=Brokers(), metavar="IDS", help="give these brokers their share, beside those in use")
@click.option("--without", type=Brokers(), metavar="IDS", help="leave these brokers: drain them")
@click.option("--replace", type=Successor(), multiple=True, metavar="OLD=NEW", help="put NEW in the place of OLD")
@click.option("--replication-factor", type=click.IntRange(min=1), help="so many replicas of each partition")
@click.option("--balance-leaders", is_flag=True, default=None, help="another order of replicas: nothing is copied")
@click.option("--topic", "-t", "topics", multiple=True, help="of this one alone; may be repeated")
@click.option("--save", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="the plan, for `apply`")
@click.option(
    "--rate",
    type=click.IntRange(min=1),
    default=BYTES_PER_SECOND,
    show_default=True,
    help="bytes a second that a broker is expected to send, for the time that is told",
)
@click.argument("targets", nargs=-1, type=Target(), metavar="[PARTITION=IDS]…")
def plan(
    bootstrap: str,
    output: Format,
    security: Security,
    *,
    targets: tuple[tuple[str, tuple[int, ...]], ...],
    replace: tuple[tuple[int, int], ...],
    topics: tuple[str, ...],
    save: Path | None,
    rate: int,
    **goals: Any,
) -> None:
    """What would move, how many bytes, and how long that takes; nothing moves. Name replicas (orders-3=1,2,3), or one
    of the goals.

    Brokers in as many racks as there are have a replica of each partition, whatever the goal. As JSON it is the plan
    itself, which `apply` takes."""
    goals |= {"targets": dict(targets) or None, "replace": dict(replace) or None}
    given = {name: goal for name, goal in goals.items() if goal is not None}
    if len(given) != 1 or (topics and targets):
        raise click.UsageError(
            "Name replicas (PARTITION=IDS), or give --over, --add, --without, --replace, --replication-factor or "
            "--balance-leaders: one of these."
        )
    with closing(admin_at(bootstrap, security)) as admin:
        made = admin.plan_reassignment(topics=list(topics) or None, **given)
    if save is not None:
        save.write_text(made.to_json() + "\n")
    if output == "json":
        click.echo(made.to_json())
        return
    click.echo(harmless(str(made)))
    if made.bytes_to_copy or made.unknown:
        click.echo(_time(made, rate))
    if goals["balance_leaders"] and made.moves:
        click.echo("leaders change once it is applied, by `leader elect` or by themselves within minutes")


def _time(made: Plan, rate: int) -> str:
    seconds = made.estimate_s(rate)
    if seconds is None:
        return "how long it takes is unknown, as its size is"
    about = f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{max(1, round(seconds))} s"
    return f"about {about}, if each broker sends {size_text(rate)}/s (--rate): `reassign status` tells how it goes"


@reassign.command()
@bootstrap
@security
@click.argument("file", type=click.File("r"))
@wait
def apply(bootstrap: str, security: Security, file: TextIO, wait_s: float | None) -> None:
    """Begin what a plan says: FILE is what `plan --save` or `plan --format json` wrote, - is stdin.

    It goes on by itself: `status` says how far it is. What had no room yet begins when it is applied again, or with
    --wait as soon as others have ended."""
    read = Plan.from_json(file.read())
    with closing(admin_at(bootstrap, security)) as admin:
        apply_and_wait(admin, read, wait_s)


def apply_and_wait(admin: Admin, plan: Plan, wait_s: float | None) -> None:
    """Apply a plan, and wait until all moves have ended; the progress goes to stderr. If `wait_s` is None, do not wait.
    Exit with 1 and the refusals if there are any."""
    refused = admin.apply(plan)
    click.echo(f"{len(plan.moves) - len(refused)} of {len(plan.moves)} partitions have begun to move")
    if wait_s is not None:
        with ProgressLine() as line:
            refused = wait_in_waves(admin, plan, refused, wait_s, line.tell)
        click.echo(f"{len(plan.moves) - len(refused)} of {len(plan.moves)} partitions have ended their move")
    tell_refused(refused)


@reassign.command()
@bootstrap
@security
@output
@watched
def status(bootstrap: str, output: Format, security: Security) -> None:
    """What is under way, and how much of it is left: what is unknown is an empty cell."""
    with closing(admin_at(bootstrap, security)) as admin:
        rows = [
            (
                each.partition,
                each.replicas,
                each.adding,
                each.removing,
                each.isr,
                each.bytes_left,
                None if each.time_left_ms is None else each.time_left_ms // 1000,
            )
            for each in admin.reassignments()
        ]
    show(_COLUMNS, rows, output=output)


@reassign.command()
@bootstrap
@security
@click.option("--all", "everything", is_flag=True, help="that is under way")
@click.argument("partitions", nargs=-1)
def cancel(bootstrap: str, security: Security, partitions: tuple[str, ...], *, everything: bool) -> None:
    """Back to the replicas that these partitions had before."""
    if bool(partitions) is everything:
        raise click.UsageError("Name partitions, such as orders-3, or --all: one of these.")
    with closing(admin_at(bootstrap, security)) as admin:
        named = partitions or tuple(each.partition for each in admin.reassignments())
        refused = admin.cancel_reassignment(named) if named else {}
    click.echo(f"{len(named) - len(refused)} of {len(named)} partitions go back")
    tell_refused(refused)
