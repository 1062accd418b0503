"""`spark-replication page`: the page of any cluster, also of one without a driver."""

from __future__ import annotations

import threading

import click

from spark_replication.admin.cli.listing import bootstrap, security
from spark_replication.model import PORT_MAX
from spark_replication.page.process import serve_page
from spark_replication.page.served import LOOPBACK
from spark_replication.process.stop_signals import on_stop_signals
from spark_replication.transport.security.security import Security


@click.command()
@bootstrap
@security
@click.option("--host", default=LOOPBACK, show_default=True, help="where to listen; beyond loopback only with a token")
@click.option("--port", type=click.IntRange(0, PORT_MAX), default=0, show_default=True, help="0 = any that is free")
def page(bootstrap: str, security: Security, host: str, port: int) -> None:
    """Serve the page that shows how a cluster is, until Ctrl-C. Drivers serve it themselves; this needs none."""
    stopping = threading.Event()
    on_stop_signals(stopping.set)
    serve_page(bootstrap, security, host=host, port=port, stopping=stopping, say=click.echo)
