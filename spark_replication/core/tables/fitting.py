"""Whether a topic can be a table: its schema is one that a table can have (TB8). It is found out before rows come."""

from __future__ import annotations

from collections.abc import Callable

from spark_replication.config import TopicSettings
from spark_replication.errors import InvalidSchema

# Raises InvalidSchema, which names the column and what to cast it to, if a topic with this schema can be no table that
# is partitioned by these columns. To core both are text: Arrow reads the schema.
FitsTable = Callable[[str, str], None]


def nothing_fits(_schema: str, _partition_by: str) -> None:
    """Refuse every table, where nobody can read a schema."""
    raise InvalidSchema("schemas cannot be read here: ask the controller")


def check_fits(topic: str, schema: str, settings: TopicSettings, fits: FitsTable) -> None:
    """Check a topic that is, or is to be, a table."""
    if not settings.table:
        return
    if not schema:
        raise InvalidSchema(f"topic {topic} has no schema, and a table has columns: make a topic with one")
    try:
        fits(schema, settings.table_partition_by)
    except InvalidSchema as error:
        raise InvalidSchema(f"topic {topic} can be no table (table=true): {error.message}") from error
