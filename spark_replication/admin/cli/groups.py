"""Groups of commands, as their help shows them: what each does in a whole sentence; and when a command began."""

from __future__ import annotations

import time
from collections.abc import Iterable

import click

BEGAN = "spark_replication.began_s"  # of click's context
SENTENCE_MAX = 1_000  # click cuts at 45 characters otherwise


def begin(context: click.Context, began_s: float | None = None) -> None:
    """Say when the command began, by default at present: what it may take is counted from then on."""
    context.meta[BEGAN] = time.monotonic() if began_s is None else began_s


class Group(click.Group):
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in self.sections(ctx):
            known = [(name, self.get_command(ctx, name)) for name in names]
            shown = [(name, command) for name, command in known if command is not None and not command.hidden]
            with formatter.section(title):
                formatter.write_dl([(name, command.get_short_help_str(SENTENCE_MAX)) for name, command in shown])

    def sections(self, ctx: click.Context) -> Iterable[tuple[str, Iterable[str]]]:
        """The titles under which the commands stand, each with theirs."""
        return (("Commands", self.list_commands(ctx)),)


class Listing(Group):
    """A group that is a listing if no command follows, for which `list` stands, too, before and after its options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _, words, _ = self.make_parser(ctx).parse_args(list(args))
        if words[:1] == ["list"]:
            args = args[: len(args) - len(words)] + words[1:]
        return super().parse_args(ctx, args)
