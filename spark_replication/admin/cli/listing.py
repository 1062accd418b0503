"""Listings: a table for people and JSON for programs, with the same rows, and the same names but for `_`.

The options that commands share are here, too: the addresses of brokers, security, and the format of a listing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial, reduce, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_replication.admin.cli.groups import BEGAN, begin
from spark_replication.client.finding.bootstrap import FORMS
from spark_replication.client.finding.settings_file import given_settings
from spark_replication.config import BOOTSTRAP_VARIABLE, Settings, parse_assignment
from spark_replication.core.replica.read_start import time_in_ms
from spark_replication.core.settings_in_force import GivenSettings
from spark_replication.engine.client.pausing import BACK_OFF_MAX_S
from spark_replication.errors import InvalidRequest, ReplicationError
from spark_replication.process.logs import harmless, harmless_json, harmless_line
from spark_replication.transport.security.security import Security, read_security

if TYPE_CHECKING:
    from spark_replication.client.asking.admin import Admin

Format = Literal["table", "json"]
REACH = "spark_replication.reach_s"  # of click's context

_bootstrap = partial(
    click.option,
    "--bootstrap",
    "-b",
    envvar=BOOTSTRAP_VARIABLE,
    help=f"{FORMS} (or in ${BOOTSTRAP_VARIABLE})",
)
REACH_S = 3.0
#: What of it no search may use: its last wait between two tries, and what Python takes to start and to end.
ENDING_S = BACK_OFF_MAX_S + 0.2
_reach = click.option(
    "--wait-for-cluster",
    "reach_s",
    type=click.FloatRange(min=0),
    default=REACH_S,
    show_default=True,
    metavar="SECONDS",
    expose_value=False,
    callback=lambda context, _parameter, seconds: context.meta.__setitem__(REACH, seconds),
    help="within so long of its start the command finds somebody who answers at all, or ends",
)

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
                begin(click.get_current_context())

    return run


def given_options(command: Callable[..., None]) -> Callable[..., None]:
    """Pass `given` to the command: settings from --config, the environment and --set, and which come from where."""

    @_config
    @_set
    @wraps(command)
    def configured(*arguments: Any, config: Path | None, assigned: tuple[str, ...], **others: Any) -> None:
        command(*arguments, given=given_settings(config, *map(parse_assignment, assigned)), **others)

    return configured


def settings_options(command: Callable[..., None]) -> Callable[..., None]:
    """Pass `settings` to the command, from the same options as `given`."""

    @given_options
    @wraps(command)
    def configured(*arguments: Any, given: GivenSettings, **others: Any) -> None:
        command(*arguments, settings=given.settings, **others)

    return configured


def security(command: Callable[..., None]) -> Callable[..., None]:
    """Pass `security` to the command, from the same options as `settings`."""

    @settings_options
    @wraps(command)
    def secured(*arguments: Any, settings: Settings, **others: Any) -> None:
        command(*arguments, security=read_security(settings), **others)

    return secured


def reach_ms() -> float:
    """How long this command looks for somebody who answers at all, from now on. 0: it asks once."""
    told = click.get_current_context().meta
    now_s = time.monotonic()
    began_s: float = told.get(BEGAN, now_s)
    reach_s: float = told.get(REACH, REACH_S)
    return max(0.0, began_s + reach_s - ENDING_S - now_s) * 1000


def admin_at(bootstrap: str, security: Security) -> Admin:
    from spark_replication.client.asking.admin import Admin  # not every command is for a cluster

    return Admin(bootstrap, security=security, reach_ms=reach_ms())


# The width if the output is no terminal: nothing that somebody may grep for is broken in two.
WIDE = 10_000


def together(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What several commands have in common, in the order in which it is read."""
    return lambda command: reduce(lambda made, add: add(made), reversed(decorators), command)


bootstrap = together(_bootstrap(required=True), _reach)
optional_bootstrap = together(_bootstrap(required=False), _reach)


def moment(_context: click.Context, _parameter: click.Parameter, text: str | None) -> datetime | None:
    """The time that an option names."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        time_in_ms(found)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no time such as 2026-11-21T10:00:00Z: {error}") from error
    except InvalidRequest as error:
        raise click.BadParameter(error.message) from error
    return found


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


class Lines:
    """Rows that are shown as they come: lines of JSON, or columns whose names stand above the first row."""

    def __init__(self, columns: Sequence[str], output: Format) -> None:
        self._columns = columns
        self._output = output
        self._widths = [0] * len(columns)
        self._has_begun = False

    def show(self, rows: Iterable[Sequence[Any]]) -> None:
        found = [list(row) for row in rows]
        if self._output == "json":
            for row in found:
                named = msgspec.json.encode(dict(zip(self._columns, row, strict=True)), enc_hook=str)
                click.echo(harmless_json(named.decode()))
            return
        lines = [[harmless_line(_cell(value).plain) for value in row] for row in found]
        if lines and not self._has_begun:
            lines.insert(0, [harmless_line(name.replace("_", " ").strip()) for name in self._columns])
            self._has_begun = True
        for line in lines:
            self._widths = [max(width, len(text)) for width, text in zip(self._widths, line, strict=True)]
        for line in lines:
            cells = (text.ljust(width) for text, width in zip(line, self._widths, strict=True))
            click.echo("  ".join(cells).rstrip())


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
