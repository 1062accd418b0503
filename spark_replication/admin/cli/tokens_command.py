"""`spark-replication tokens`: the cluster's file of tokens, and where a change of it holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import click

from spark_replication.admin.cli.groups import Group
from spark_replication.admin.cli.listing import (
    Format,
    admin_at,
    optional_bootstrap,
    output,
    security,
    show,
    tell_error,
    together,
)
from spark_replication.admin.token_files import add_token, remove_tokens, tokens_in
from spark_replication.client.finding.known_tokens import TokensThere
from spark_replication.transport.proofs.token import Token
from spark_replication.transport.security.security import Security

_COLUMNS = ("principal", "mark", "holds_at", "not_at")
MARK_SHOWN = 8
ASK_AGAIN_S = 0.25

_file = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
_changing = together(
    _file,
    click.argument("principal"),
    optional_bootstrap,
    security,
    click.option(
        "--within",
        "within_s",
        type=click.FloatRange(min=0),
        default=30.0,
        show_default=True,
        metavar="SECONDS",
        help="with --bootstrap: how long to wait until it holds everywhere",
    ),
)


@click.group(cls=Group)
def tokens() -> None:
    """Who is let in: the cluster's FILE of tokens (security.token.file), a line each.

    A change is whole and on the disk, with mode 0600 whatever the umask is. With -b, the controller and all brokers are
    asked until it holds at each. A cluster on several hosts has a FILE on each: change it there likewise, and give -b
    where it is changed last."""


@tokens.command("list")
@_file
@optional_bootstrap
@security
@output
def list_(file: Path, bootstrap: str | None, security: Security, output: Format) -> None:
    """Whose tokens FILE has, and with -b, where each holds. A mark shows nothing of its token."""
    found = tokens_in(file)
    there: Mapping[str, TokensThere] = {}
    if bootstrap is not None:
        with closing(admin_at(bootstrap, security)) as admin:
            there = admin.known_tokens([token.mark for token in found])
    rows = []
    for token in found:
        holds = [place for place, each in there.items() if each.marks is not None and token.mark in each.marks]
        rows.append((token.name, token.mark[:MARK_SHOWN], holds, [place for place in there if place not in holds]))
    show(_COLUMNS, rows, output=output)
    for place, each in there.items():
        if each.trouble:
            tell_error(f"{place}: {each.trouble}")


@tokens.command()
@_changing
@click.option(
    "--client-file",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="PRINCIPAL's own file, with one line: made with a new token if it is not there",
)
def add(
    file: Path, principal: str, bootstrap: str | None, security: Security, *, within_s: float, client_file: Path
) -> None:
    """Let PRINCIPAL in by the token of its own file, too, below the tokens that FILE has."""
    token = add_token(file, principal, client_file)
    _wait(bootstrap, security, [token], within_s, lambda there: token.mark in there)


@tokens.command()
@_changing
@click.option("--but-newest", is_flag=True, help="the lowest of them in FILE stays: it has taken the others' place")
def remove(
    file: Path, principal: str, bootstrap: str | None, security: Security, *, within_s: float, but_newest: bool
) -> None:
    """Let PRINCIPAL in no longer by the tokens that FILE has of it."""
    removed = remove_tokens(file, principal, but_newest=but_newest)
    _wait(bootstrap, security, removed, within_s, lambda there: not there)


def _wait(
    bootstrap: str | None,
    security: Security,
    changed: Sequence[Token],
    within_s: float,
    holds: Callable[[frozenset[str]], bool],
) -> None:
    """holds: of the marks that a process knows of these tokens."""
    if bootstrap is None:
        click.echo("written. With -b the controller and the brokers are asked whether it holds there", err=True)
        return
    deadline_s = time.monotonic() + within_s
    with closing(admin_at(bootstrap, security)) as admin:
        while True:
            there = admin.known_tokens([token.mark for token in changed])
            lacking = {place: each for place, each in there.items() if each.marks is None or not holds(each.marks)}
            if not lacking:
                click.echo(f"holds everywhere: {', '.join(there)}")
                return
            if time.monotonic() >= deadline_s:
                break
            time.sleep(ASK_AGAIN_S)
    for place, each in lacking.items():
        why = each.trouble or "it has not read such a file: is FILE changed on its host, too?"
        tell_error(f"{place}: does not hold there: {why}")
    raise click.exceptions.Exit(1)
