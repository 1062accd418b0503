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
@click.option("--groups", is_flag=True, help="how far consumer groups are behind: no process knows that alone")
@click.option("--per-partition", is_flag=True, help="with series of each partition: there may be thousands")
def metrics(
    bootstrap: str, security: Security, broker: int | None, *, controller: bool, groups: bool, per_partition: bool
) -> None:
    """Metrics of the controller, of a broker, or of consumer groups, in the exposition format of Prometheus.

    The controller counts partitions, elections and recoveries of the whole cluster; a broker its replicas, followers,
    requests and bytes. conf/alerts.yml and conf/grafana.json are about these."""
    if [controller, broker is not None, groups].count(True) > 1:
        raise click.UsageError("Either --broker, --controller or --groups.")
    with closing(admin_at(bootstrap, security)) as admin:
        told = admin.group_metrics() if groups else admin.metrics(broker, per_partition=per_partition)
    click.echo(told, nl=False)
