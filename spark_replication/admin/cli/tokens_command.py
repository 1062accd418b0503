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
from spark_replication.admin.token_files import add_token, remove_tokens, salt_tokens, tokens_in
from spark_replication.client.finding.known_tokens import TokensThere
from spark_replication.transport.proofs.verifier import Known, Verifier
from spark_replication.transport.security.security import Security

_COLUMNS = ("principal", "kind", "mark", "holds_at", "not_at")
MARK_SHOWN = 8
ASK_AGAIN_S = 0.25

_file = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
_principal = click.argument("principal")
_until = together(
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
    """Who is let in: the cluster's FILE of tokens (security.token.file), a line each: a token, or a salted verifier of
    one, by which nobody who reads FILE gets in.

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
        kind = "salted" if isinstance(token, Verifier) else "in the clear"
        rows.append(
            (token.name, kind, token.mark[:MARK_SHOWN], holds, [place for place in there if place not in holds])
        )
    show(_COLUMNS, rows, output=output)
    for place, each in there.items():
        if each.trouble:
            tell_error(f"{place}: {each.trouble}")


@tokens.command()
@_file
@_principal
@_until
@click.option(
    "--client-file",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="PRINCIPAL's own file, with one line: made with a new token if it is not there",
)
@click.option(
    "--salted",
    is_flag=True,
    help="FILE gets a verifier of the token. PRINCIPAL's programs need spark_replication[salted] then",
)
def add(
    file: Path,
    principal: str,
    bootstrap: str | None,
    security: Security,
    *,
    within_s: float,
    client_file: Path,
    salted: bool,
) -> None:
    """Let PRINCIPAL in by the token of its own file, too, below the tokens that FILE has."""
    token = add_token(file, principal, client_file, salted=salted)
    _wait(bootstrap, security, [token], within_s, lambda there: _has_all(there, [token]))


@tokens.command()
@_file
@_until
def salt(file: Path, bootstrap: str | None, security: Security, *, within_s: float) -> None:
    """Put verifiers in the place of the tokens that FILE has in the clear.

    Clients' own files stay as they are. Where a cluster runs, security.session.token.file names a token for its own
    session. With several hosts, do this on one and copy FILE to the others, so that all have one salt."""
    made = salt_tokens(file)
    _wait(bootstrap, security, made, within_s, lambda there: _has_all(there, made))


@tokens.command()
@_file
@_principal
@_until
@click.option("--but-newest", is_flag=True, help="the lowest of them in FILE stays: it has taken the others' place")
def remove(
    file: Path, principal: str, bootstrap: str | None, security: Security, *, within_s: float, but_newest: bool
) -> None:
    """Let PRINCIPAL in no longer by the tokens that FILE has of it."""
    removed = remove_tokens(file, principal, but_newest=but_newest)
    left = sum(token.name == principal for token in tokens_in(file))

    def is_gone(there: TokensThere) -> bool:
        return not there.marks and there.counts.get(principal, 0) <= left

    _wait(bootstrap, security, removed, within_s, is_gone)


def _has_all(there: TokensThere, tokens: Sequence[Known]) -> bool:
    return there.marks is not None and there.marks.issuperset(token.mark for token in tokens)


def _wait(
    bootstrap: str | None,
    security: Security,
    changed: Sequence[Known],
    within_s: float,
    holds: Callable[[TokensThere], bool],
) -> None:
    """holds: of what a process that answers tells of these tokens."""
    if bootstrap is None:
        click.echo("written. With -b the controller and the brokers are asked whether it holds there", err=True)
        return
    deadline_s = time.monotonic() + within_s
    with closing(admin_at(bootstrap, security)) as admin:
        while True:
            there = admin.known_tokens([token.mark for token in changed], sorted({token.name for token in changed}))
            lacking = {place: each for place, each in there.items() if each.marks is None or not holds(each)}
            if not lacking:
                click.echo(f"holds everywhere: {', '.join(there)}")
                return
            if time.monotonic() >= deadline_s:
                break
            time.sleep(ASK_AGAIN_S)
    for place, each in lacking.items():
        why = each.trouble or "it has not read such a file: is FILE changed on its host, too, and with the same salt?"
        tell_error(f"{place}: does not hold there: {why}")
    raise click.exceptions.Exit(1)
