"""`spark-replication topics head|tail`: the first rows of a topic, and the newest."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

import click
import pyarrow as pa

from spark_replication.admin.cli.listing import bootstrap, reach_ms, security, together
from spark_replication.admin.cli.shown_rows import ROWS_SHOWN, RowChoice, first, row_options, show_rows
from spark_replication.messages.records import PARTITION
from spark_replication.storage.format.batches import topic_schema
from spark_replication.transport.security.security import Security

if TYPE_CHECKING:
    from spark_replication.client.reading.topic_rows import TopicRows

_of_a_topic = together(
    bootstrap,
    security,
    click.argument("topic"),
    click.option("--rows", "-n", type=click.IntRange(min=1), default=ROWS_SHOWN, show_default=True, help="how many"),
    row_options,
)


@click.command()
@_of_a_topic
def head(bootstrap: str, security: Security, topic: str, *, rows: int, choice: RowChoice) -> None:
    """The first rows of TOPIC: those of its first partition, then of the next."""
    _show(bootstrap, security, topic, choice, lambda found: found.head(rows))


@click.command()
@_of_a_topic
def tail(bootstrap: str, security: Security, topic: str, *, rows: int, choice: RowChoice) -> None:
    """The rows of TOPIC that were appended last, of whichever partitions: the newest at the end.

    The last rows of each partition are looked at; with --where on other columns than _partition and _offset, all."""
    _show(bootstrap, security, topic, choice, lambda found: found.tail(rows))


def _show(
    bootstrap: str, security: Security, topic: str, choice: RowChoice, ends: Callable[[TopicRows], pa.Table]
) -> None:
    from spark_replication.client.reading.log_batch import OFFSET  # `topics` itself reads none
    from spark_replication.client.reading.reader import Reader
    from spark_replication.client.reading.topic_rows import TopicRows

    with closing(Reader(bootstrap, security=security, reach_ms=reach_ms())) as reader:
        own = topic_schema(reader.topic(topic).config).newest
        shown = ends(TopicRows(topic, reader, choice.asked(topic, own, (PARTITION, OFFSET))))
    show_rows(shown.schema, first(shown.to_batches(), rows_max=None), choice.output)
