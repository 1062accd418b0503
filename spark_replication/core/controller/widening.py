"""The schema of a topic, and its versions: each adds nullable columns after those of the version before, and changes
nothing else."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from spark_replication.errors import InvalidSchema
from spark_replication.model import TopicConfig

SCHEMA_CHARACTERS_MAX = 512 << 10  # in base64, with its metadata: it must fit its znode
COLUMNS_MAX = 4_096  # each read and write of a batch takes time for each of them


class SchemaChange(msgspec.Struct, frozen=True, kw_only=True):
    """How one schema follows another."""

    columns_before: int
    columns_after: int
    #: The first difference that is no nullable column at the end; empty if there is none.
    difference: str = ""


# Compares a topic's schema with the one that it is to have. To core both are text: Arrow reads them.
CompareSchemas = Callable[[str, str], SchemaChange]


def incomparable(_before: str, _after: str) -> SchemaChange:
    """Refuse every change of a schema, where nobody can read one."""
    raise InvalidSchema("schemas cannot be read here: ask the controller")


def check_schema(schema: str, compare: CompareSchemas) -> None:
    """Check the schema of a new topic; it may have none."""
    if schema:
        _compared(schema, schema, compare)


def _compared(before: str, after: str, compare: CompareSchemas) -> SchemaChange:
    """Compare two schemas, after a check of the size of the new one."""
    if len(after) > SCHEMA_CHARACTERS_MAX:
        raise InvalidSchema(
            f"the schema takes {len(after)} characters, and at most {SCHEMA_CHARACTERS_MAX} fit: use fewer columns, or "
            "less metadata"
        )
    change = compare(before, after)
    if change.columns_after > COLUMNS_MAX:
        raise InvalidSchema(f"the schema has {change.columns_after} columns, and may have {COLUMNS_MAX}: use fewer")
    return change


def widened(topic: str, config: TopicConfig, schema: str, compare: CompareSchemas) -> TopicConfig:
    """The topic's config with this schema as the next version; unchanged if it is the present one."""
    if schema == config.schema:
        return config
    if not config.schema:
        raise InvalidSchema(f"topic {topic} has no schema that could be widened: make another with one")
    change = _compared(config.schema, schema, compare)
    if change.difference:
        raise InvalidSchema(f"{change.difference}: {topic} may only gain nullable columns after its last")
    if change.columns_after == change.columns_before:
        return config
    return replace(config, schema=schema, earlier_columns=(*config.earlier_columns, change.columns_before))
