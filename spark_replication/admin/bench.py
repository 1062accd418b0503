"""`spark-replication bench …`: programs that measure. Each prints its figures, those of a limit or a peer measured in
the same run, and the ratio of the two: machines are noisy, ratios less so."""

from __future__ import annotations

import click

from spark_replication.admin.bench_decide import decide
from spark_replication.admin.listing import Format, show


@click.group()
def bench() -> None:
    """Measure something, beside a limit measured in the same run."""


@bench.command(name="decide")
@click.option(
    "--partitions",
    multiple=True,
    type=click.IntRange(min=1),
    default=(10_000, 100_000),
    show_default=True,
    help="how many the broker's failure touches; given twice, the ratio of the times per partition is told",
)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="the best of so many counts")
@click.option("--format", "output", type=click.Choice(("table", "json")), default="table", show_default=True)
def bench_decide(partitions: tuple[int, ...], rounds: int, output: Format) -> None:
    """A broker's failure, decided purely: what is to be stored, and who is told. No ZooKeeper, no network."""
    measured = [decide(count, rounds) for count in partitions]
    columns = (
        "partitions",
        "led_by_it",
        "decide_ms",
        "apply_ms",
        "announce_ms",
        "total_ms",
        "us_per_partition",
        "bare_ms",
        "ratio",
    )
    rows = [[getattr(figures, name) for name in columns] for figures in measured]
    show(columns, rows, output=output)
    if output == "table":
        click.echo(
            "bare: making the same states, writes and commands of ready values, which nothing that decides can beat."
        )
        if len(measured) > 1:
            grown = measured[-1].us_per_partition / measured[0].us_per_partition
            click.echo(f"per partition, {partitions[-1]} cost {grown:.2f} times what {partitions[0]} cost")
