"""`spark-replication settings`: all settings, and what they mean."""

from __future__ import annotations

import click

from spark_replication.admin.cli.listing import Format, output, show
from spark_replication.config import described


@click.command()
@output
def settings(output: Format) -> None:
    """Every setting: what it takes, its default, whether a topic may have its own, and what it means."""
    columns = ("setting", "values", "default", "topic", "meaning")
    rows = [(each.name, each.values, each.default, each.of_topic, each.meaning) for each in described()]
    show(columns, rows, output=output)
