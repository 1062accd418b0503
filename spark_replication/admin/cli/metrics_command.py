"""`spark-replication metrics`: the metrics of a process, as Prometheus reads them."""

from __future__ import annotations

from contextlib import closing

import click

from spark_replication.admin.cli.listing import admin_at, bootstrap, security
from spark_replication.transport.security.security import Security


@click.command()
@bootstrap
@security
@click.option("--broker", type=int, metavar="ID", help="of this broker")
@click.option("--controller", is_flag=True, help="of the controller, as without either")
@click.option("--per-partition", is_flag=True, help="with series of each partition: there may be thousands")
def metrics(bootstrap: str, security: Security, broker: int | None, *, controller: bool, per_partition: bool) -> None:
    """Metrics of the controller or of a broker, in the exposition format of Prometheus.

    The controller counts partitions, elections and recoveries of the whole cluster; a broker its replicas, followers,
    requests and bytes. conf/alerts.yml and conf/grafana.json are about these."""
    if controller and broker is not None:
        raise click.UsageError("Either --broker or --controller.")
    with closing(admin_at(bootstrap, security)) as admin:
        click.echo(admin.metrics(broker, per_partition=per_partition), nl=False)
