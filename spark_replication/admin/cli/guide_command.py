"""`spark-replication guide`: the guide in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console
from rich.markdown import Markdown

from spark_replication.admin.cli.listing import Format, output, show, show_json
from spark_replication.page.guide import GuidePage, guide_pages, place_in_guide

WIDTH_MAX = 120


@click.command()
@click.argument("name", required=False, metavar="[PAGE[#SECTION]]")
@output
@click.option(
    "--write-reference",
    "reference",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="write the pages of the reference anew, from the code",
)
def guide(name: str | None, output: Format, reference: Path | None) -> None:
    """Print a page of the guide, or a section of it, as `operate#a-clock-is-wrong`; or list its pages.

    Where the output is no terminal, a page is printed as it is stored: Markdown."""
    if reference is not None:
        if name is not None:
            raise click.UsageError("--write-reference writes all pages of the reference: leave out PAGE")
        from spark_replication.admin.reference import write_reference

        for written in write_reference(reference):
            click.echo(written)
        return
    if name is None:
        show(("page", "about"), [(each.name, each.summary) for each in guide_pages()], output=output)
        return
    page, text = _named(name)
    if output == "json":
        show_json(page._replace(text=text)._asdict())
    elif sys.stdout.isatty():
        console = Console()
        # Without hyperlinks: the name of the page that is meant is shown, for the next `guide`.
        console.print(Markdown(text, hyperlinks=False), width=min(console.width, WIDTH_MAX))
    else:
        click.echo(text, nl=False)


def _named(place: str) -> tuple[GuidePage, str]:
    try:
        return place_in_guide(place)
    except LookupError as missing:
        hint = f"Did you mean {missing.args[0]}?" if missing.args else "`spark-replication guide` lists them"
        raise click.BadParameter(f"there is no page or section {place!r}. {hint}", param_hint="'PAGE'") from missing
