"""`spark-replication certificates`: a CA for a cluster, and what it signs."""

from __future__ import annotations

from pathlib import Path

import click

from spark_replication.admin.cli.listing import Format, output, show
from spark_replication.process.certificates import ca_in, host_certificate, principal_certificate

_COLUMNS = ("file", "is")


@click.command()
@output
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME[,NAME…]",
    help="by which others dial it, brokers' hosts and driver's",
)
@click.option("--client", "clients", multiple=True, metavar="NAME", help="the principal, as ACLs name it")
@click.option("--days", type=click.IntRange(1, 3_650), default=365, show_default=True, help="of what the CA signs")
@click.option("--name", default="spark_replication CA", show_default=True, help="of a new CA")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def certificates(
    directory: Path, output: Format, *, hosts: tuple[str, ...], clients: tuple[str, ...], days: int, name: str
) -> None:
    """Make certificates in DIRECTORY for security.mode=tls, and the CA that signs them, unless it is there.

    Nothing is written over. Each host and client gets ca.pem and its own two files; ca.key stays where it is, best on
    no host of the cluster."""
    ca, made = ca_in(directory, name)
    rows = [(path, "the CA's key" if path.suffix == ".key" else "the CA") for path in made]
    for names in hosts:
        host, *others = [each.strip() for each in names.split(",")]
        written = host_certificate(directory, ca, [host, *others], days)
        rows += _rows(written, f"host {names}", directory / f"{host}.pem")
    for client in clients:
        written = principal_certificate(directory, ca, client, days)
        rows += _rows(written, f"client {client}", directory / f"{client}.pem")
    show(_COLUMNS, rows, output=output)


def _rows(written: list[Path], of: str, kept: Path) -> list[tuple[Path, str]]:
    if not written:
        click.echo(f"{kept} is there, and stays: remove it and its key to make another", err=True)
    return [(path, f"the key of {of}" if path.suffix == ".key" else of) for path in written]
