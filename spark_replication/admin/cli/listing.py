"""Listings: a table for people and JSON for programs, with the same rows, and the same names but for `_`.

The options that commands share are here, too: the addresses of brokers, security, and the format of a listing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial, reduce, wraps
from pathlib import Path
from typing import Any, Literal

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_replication.client.bootstrap import FORMS
from spark_replication.client.settings_file import read_settings
from spark_replication.config import BOOTSTRAP_VARIABLE, Settings, parse_assignment
from spark_replication.errors import ReplicationError
from spark_replication.process.terminal import harmless, harmless_json
from spark_replication.transport.security import read_security

Format = Literal["table", "json"]

_bootstrap = partial(
    click.option,
    "--bootstrap",
    "-b",
    envvar=BOOTSTRAP_VARIABLE,
    help=f"{FORMS} (or in ${BOOTSTRAP_VARIABLE})",
)
bootstrap = _bootstrap(required=True)
optional_bootstrap = _bootstrap(required=False)
output = click.option(
    "--format",
    "output",
    type=click.Choice(("table", "json")),
    default="table",
    show_default=True,
    help="of the listing",
)

_config = click.option(
    "--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="TOML file of settings: security.…"
)
_set = click.option("--set", "assigned", multiple=True, metavar="NAME=VALUE", help="a setting, over the file's")


_watch = click.option(
    "--watch",
    "watch_s",
    type=click.FloatRange(min=0.2),
    metavar="SECONDS",
    help="again and again, this often, until Ctrl-C",
)


def watched(command: Callable[..., None]) -> Callable[..., None]:
    """Add --watch, which runs the command again and again. Neither an error nor an exit code ends it."""

    @_watch
    @wraps(command)
    def run(*arguments: Any, watch_s: float | None, **others: Any) -> None:
        if watch_s is None:
            command(*arguments, **others)
            return
        with suppress(KeyboardInterrupt):
            while True:
                click.clear()  # does nothing if this is no terminal
                try:
                    command(*arguments, **others)
                except click.exceptions.Exit:
                    pass
                except ReplicationError as error:
                    tell_error(error)
                time.sleep(watch_s)

    return run


def settings_options(command: Callable[..., None]) -> Callable[..., None]:
    """Pass `settings` to the command, from --config, the environment and --set."""

    @_config
    @_set
    @wraps(command)
    def configured(*arguments: Any, config: Path | None, assigned: tuple[str, ...], **others: Any) -> None:
        command(*arguments, settings=read_settings(config, *map(parse_assignment, assigned)), **others)

    return configured


def security(command: Callable[..., None]) -> Callable[..., None]:
    """Pass `security` to the command, from the same options as `settings`."""

    @settings_options
    @wraps(command)
    def secured(*arguments: Any, settings: Settings, **others: Any) -> None:
        command(*arguments, security=read_security(settings), **others)

    return secured


# The width if the output is no terminal: nothing that somebody may grep for is broken in two.
WIDE = 10_000


def together(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What several commands have in common, in the order in which it is read."""
    return lambda command: reduce(lambda made, add: add(made), reversed(decorators), command)


def show(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, output: Format, err: bool = False) -> None:
    """Show rows as a JSON list of objects, or as a table, where None is an empty cell, and a list shows its members.
    With `err`, the table goes to stderr."""
    found = [list(row) for row in rows]
    if output == "json":
        named = [dict(zip(columns, row, strict=True)) for row in found]
        show_json(named)
        return
    table = Table()
    for name in columns:
        table.add_column(Text(harmless(name.replace("_", " "))), overflow="fold")
    for row in found:
        table.add_row(*(_cell(value) for value in row))
    console = Console(stderr=err)
    (console if console.is_terminal else Console(width=WIDE, stderr=err)).print(table)


def show_json(value: Any) -> None:
    click.echo(harmless_json(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode()))


def tell_error(error: ReplicationError | str) -> None:
    click.echo(f"error: {harmless(str(error))}", err=True)


def own_bootstrap(context: click.Context, given: str | None) -> str | None:
    """The bootstrap of a group that is a listing if no command follows. None if a command follows, which then gets what
    was given to the group."""
    if context.invoked_subcommand is None:
        if given is None:
            raise click.MissingParameter(ctx=context, param_hint="'--bootstrap' / '-b'", param_type="option")
        return given
    if given is not None:
        context.default_map = {context.invoked_subcommand: {"bootstrap": given}}
    return None


def tell_refused(refused: Mapping[str, ReplicationError]) -> None:
    """Tell each refusal of a request in a line on stderr, and exit with 1 if there is any."""
    for name, error in refused.items():
        tell_error(f"{name}: {error}")
    if refused:
        raise click.exceptions.Exit(1)


def _cell(value: Any) -> Text:
    """The text of a cell. It is no markup of rich, since a name may look like that."""
    if value is None:
        return Text()
    if isinstance(value, (list, tuple)):
        return Text(harmless(", ".join(map(str, value))))
    return Text(harmless(str(value)))
